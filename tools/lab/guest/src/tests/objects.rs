// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests of resources: queries, limits, and the release of all resources.
use super::events::checked_exchange;
use crate::ffi::cq::{Channel, Cq};
use crate::ffi::mr::{access, Mr};
use crate::ffi::qp::{op, Qp, QpInit, SendWr};
use crate::ffi::sys::Errno;
use crate::ffi::QpCap;
use crate::outcome::ErrorContext as _;
use crate::rig::*;
use crate::{Fail, GuestTest, TestResult};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

pub static TESTS: &[GuestTest] = &[
    GuestTest::new("res/query-device", query_device),
    GuestTest::new("res/query-port", query_port),
    GuestTest::new("res/query-gid-and-pkey", query_gid),
    GuestTest::new("res/qp-limits", qp_limits),
    GuestTest::new("res/cq-limits", cq_limits),
    GuestTest::new("res/mr-limits", mr_limits),
    GuestTest::new("res/create-destroy-pd-cq-mr", create_destroy)
        .alone()
        .limit(120),
    GuestTest::new("res/create-destroy-connected-qps", create_destroy_qps)
        .alone()
        .limit(180),
    GuestTest::new("res/open-close", open_close)
        .alone()
        .limit(120),
    GuestTest::new("res/rdma-resource-shows-our-objects", resource_shows).alone(),
    GuestTest::new("res/rdma-resource-is-current", resource_is_fresh),
    GuestTest::new("res/rdma-resource-hides-keys", resource_hides_keys),
    GuestTest::new("res/many-connected-qps", many_qps).limit(120),
    GuestTest::new("res/threads-create-and-destroy", threads)
        .alone()
        .limit(120),
    GuestTest::new("res/more-threads-than-command-slots", crowd)
        .alone()
        .limit(120),
];

fn query_device(rig: &Rig) -> TestResult {
    let d = rig.ctx.query_device().at("query_device")?;
    ensure!(d.vendor_id != 0, "vendor_id is 0");
    let fw_ver: Vec<u8> = d.fw_ver.iter().map(|c| *c as u8).collect();
    let fw_ver = String::from_utf8_lossy(&fw_ver);
    let shown = format!("/sys/class/infiniband/{}/fw_ver", env().device);
    let shown = std::fs::read_to_string(shown)?;
    ensure_eq!(fw_ver.trim_end_matches('\0'), shown.trim_end(), "fw_ver");
    ensure!(d.node_guid != 0, "node_guid is 0");
    ensure!(d.sys_image_guid != 0, "sys_image_guid is 0");
    ensure_eq!(d.phys_port_cnt, 1, "phys_port_cnt");
    ensure!(d.max_pkeys >= 1, "max_pkeys is 0");
    ensure!(
        d.page_size_cap & 4096 != 0,
        "page_size_cap {:#x} lacks 4 KiB",
        d.page_size_cap
    );
    for (name, value, least) in [
        ("max_qp", d.max_qp, 128),
        ("max_qp_wr", d.max_qp_wr, 1024),
        ("max_sge", d.max_sge, 4),
        ("max_sge_rd", d.max_sge_rd, 1),
        ("max_cq", d.max_cq, 128),
        ("max_cqe", d.max_cqe, 4096),
        ("max_mr", d.max_mr, 128),
        ("max_pd", d.max_pd, 128),
        ("max_qp_rd_atom", d.max_qp_rd_atom, 1),
        ("max_qp_init_rd_atom", d.max_qp_init_rd_atom, 1),
    ] {
        ensure!(value >= least, "{name} is {value}");
    }
    ensure!(
        d.max_mr_size >= 1 << 30,
        "max_mr_size is {:#x}",
        d.max_mr_size
    );
    Ok(())
}

fn query_port(rig: &Rig) -> TestResult {
    const ACTIVE: u32 = 4;
    const LINK_LAYER_ETHERNET: u8 = 2;
    let p = rig.ctx.query_port(1).at("query_port")?;
    ensure_eq!(p.state, ACTIVE, "state");
    ensure_eq!(p.link_layer, LINK_LAYER_ETHERNET, "link_layer");
    ensure_eq!(p.phys_state, 5, "phys_state (link up)");
    ensure!(
        (1..=5).contains(&p.active_mtu),
        "active_mtu {}",
        p.active_mtu
    );
    ensure!(
        p.active_mtu <= p.max_mtu,
        "active_mtu {} over max_mtu {}",
        p.active_mtu,
        p.max_mtu
    );
    ensure!(
        p.gid_tbl_len > 0 && p.pkey_tbl_len > 0,
        "empty GID or P_Key table"
    );
    ensure!(p.max_msg_sz >= 8 << 20, "max_msg_sz {}", p.max_msg_sz);
    ensure!(
        p.active_speed != 0 && p.active_width != 0,
        "no speed or width"
    );
    for port in [0, 2, 255] {
        ensure_eq!(
            rig.ctx.query_port(port).err(),
            Some(Errno::EINVAL),
            "query of port {port}"
        );
    }
    Ok(())
}

fn query_gid(rig: &Rig) -> TestResult {
    let e = rig.ctx.query_gid(1, env().gid_index).at("query_gid")?;
    ensure_eq!(e.gid, rig.gid, "GID");
    ensure!(e.ndev_ifindex != 0, "a GID without netdev");
    ensure_eq!(e.port_num, 1, "port");
    ensure_eq!(
        rig.ctx.query_pkey(1, 0).at("query_pkey")?,
        0xffff,
        "P_Key 0"
    );
    ensure!(
        rig.ctx.query_pkey(1, 30_000).is_err(),
        "P_Key index 30000 exists"
    );
    Ok(())
}

fn init(rig: &Rig, cap: QpCap) -> Result<QpInit, Fail> {
    let cq = Cq::new(&rig.ctx, 16)?;
    Ok(QpInit {
        send_cq: cq.clone(),
        recv_cq: cq,
        srq: None,
        cap,
        sq_sig_all: false,
        qp_type: 2,
    })
}

fn qp_limits(rig: &Rig) -> TestResult {
    let d = rig.ctx.query_device()?;
    let base = PairOpts::default().cap;
    let (wr, sge) = (d.max_qp_wr as u32, d.max_sge as u32);
    // The device grants the limits themselves.
    for cap in [
        QpCap {
            max_send_wr: wr,
            ..base
        },
        QpCap {
            max_recv_wr: wr,
            ..base
        },
        QpCap {
            max_send_sge: sge,
            max_recv_sge: sge,
            ..base
        },
        QpCap {
            max_send_wr: 0,
            max_recv_wr: 0,
            max_send_sge: 0,
            max_recv_sge: 0,
            ..base
        },
        QpCap {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            ..base
        },
    ] {
        let qp = Qp::new(&rig.pd, &init(rig, cap)?).at(&format!("{cap:?}"))?;
        let got = qp.cap;
        ensure!(
            got.max_send_wr >= cap.max_send_wr
                && got.max_recv_wr >= cap.max_recv_wr
                && got.max_send_sge >= cap.max_send_sge
                && got.max_recv_sge >= cap.max_recv_sge,
            "asked for {cap:?}, got {got:?}"
        );
    }
    // Values above the limits fail with EINVAL.
    for cap in [
        QpCap {
            max_send_wr: wr + 1,
            ..base
        },
        QpCap {
            max_recv_wr: wr + 1,
            ..base
        },
        QpCap {
            max_send_wr: u32::MAX,
            ..base
        },
        QpCap {
            max_send_sge: sge + 1,
            ..base
        },
        QpCap {
            max_recv_sge: sge + 1,
            ..base
        },
        QpCap {
            max_inline_data: 1 << 20,
            ..base
        },
    ] {
        let got = Qp::new(&rig.pd, &init(rig, cap)?).err();
        ensure_eq!(got, Some(Errno::EINVAL), "creating a QP with {cap:?}");
    }
    Ok(())
}

fn cq_limits(rig: &Rig) -> TestResult {
    let max = rig.ctx.query_device()?.max_cqe;
    for n in [1, 2, 3, 100, 4096, max] {
        let cq = Cq::new(&rig.ctx, n).at(&format!("a CQ of {n}"))?;
        ensure!(
            cq.cqe() >= n as usize,
            "asked for {n} entries, got {}",
            cq.cqe()
        );
    }
    for n in [0, -1, i32::MIN] {
        ensure!(
            Cq::new(&rig.ctx, n).is_err(),
            "a CQ of {n} entries was made"
        );
    }
    if let Some(more) = max.checked_add(1) {
        ensure_eq!(
            Cq::new(&rig.ctx, more).err(),
            Some(Errno::EINVAL),
            "a CQ over max_cqe"
        );
    }
    let channel = Channel::new(&rig.ctx)?;
    let vector = rig.ctx.num_comp_vectors();
    let got = Cq::with_channel(&rig.ctx, 16, Some(&channel), vector).err();
    ensure_eq!(
        got,
        Some(Errno::EINVAL),
        "a completion vector that does not exist"
    );
    Ok(())
}

fn mr_limits(rig: &Rig) -> TestResult {
    // Remote writes require the right of local writes.
    for bad in [access::REMOTE_WRITE, access::REMOTE_ATOMIC] {
        ensure_eq!(
            Mr::new(&rig.pd, 4096, bad).err(),
            Some(Errno::EINVAL),
            "access {bad:#x}"
        );
    }
    let p = rig.pair(&PairOpts {
        buf: 1 << 17,
        ..PairOpts::default()
    })?;
    let buf = &p.a.mr.buf;
    // The regions have odd lengths, including zero, and overlap in one buffer.
    let mut mrs = Vec::new();
    for i in 0..50 {
        let mr = Mr::of(&rig.pd, buf, i * 97, i * 513, access::ALL).at(&format!("MR {i}"))?;
        ensure!(
            mrs.iter().all(|m: &Mr| m.lkey() != mr.lkey()),
            "two regions with one lkey"
        );
        ensure!(
            mrs.iter().all(|m: &Mr| m.rkey() != mr.rkey()),
            "two regions with one rkey"
        );
        mrs.push(mr);
    }
    // Keys are reused as late as possible, and not at the next registration.
    let old = Mr::new(&rig.pd, 64, access::ALL)?;
    let (lkey, rkey) = (old.lkey(), old.rkey());
    drop(old);
    for _ in 0..50 {
        let new = Mr::new(&rig.pd, 64, access::ALL)?;
        ensure!(
            new.lkey() != lkey && new.rkey() != rkey,
            "a stale key is valid again at once"
        );
    }
    checked_exchange(&p, 1)
}

/// Returns the number of objects that the kernel tracks, by kind, as `rdma resource show` prints
/// them.
pub fn counts(rig: &Rig) -> Result<Vec<(String, u64)>, Fail> {
    let out = Command::new("rdma").args(["resource", "show"]).output();
    let out = match out {
        Ok(out) if out.status.success() => out,
        _ => return Err(Fail::Skipped("no rdma tool".into())),
    };
    let text = String::from_utf8_lossy(&out.stdout);
    let line = text
        .lines()
        .find(|l| {
            l.split_whitespace()
                .any(|w| w.trim_end_matches(':') == rig.ctx.name)
        })
        .ok_or_else(|| format!("rdma resource show does not list {}: {text}", rig.ctx.name))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    Ok(words
        .windows(2)
        .filter_map(|w| Some((w[0].to_owned(), w[1].parse().ok()?)))
        .filter(|(kind, _)| kind.chars().all(|c| c.is_ascii_alphabetic() || c == '_'))
        .collect())
}

/// Waits until the counts are as before, because the kernel may still be closing a killed process.
pub fn counts_return(rig: &Rig, before: &[(String, u64)]) -> TestResult {
    let mut last = Vec::new();
    let r = wait_for("the resource counts come back", || {
        last = counts(rig)?;
        Ok(last == before)
    });
    r.map_err(|_| format!("resources before: {before:?}, afterwards: {last:?}").into())
}

fn create_destroy(rig: &Rig) -> TestResult {
    let before = counts(rig)?;
    for i in 0..300 {
        let pd = rig.ctx.alloc_pd()?;
        let channel = Channel::new(&rig.ctx)?;
        let cq = Cq::with_channel(&rig.ctx, 1 + i, Some(&channel), 0)?;
        let mr = Mr::new(&pd, 1 + 4096 * (i as usize % 40), access::ALL)?;
        drop((cq, mr));
    }
    counts_return(rig, &before)
}

fn create_destroy_qps(rig: &Rig) -> TestResult {
    let before = counts(rig)?;
    for i in 0..60 {
        let p = rig.pair(&PairOpts {
            buf: 1 << 17,
            ..PairOpts::default()
        })?;
        checked_exchange(&p, i).at(&format!("pair {i}"))?;
    }
    counts_return(rig, &before)
}

fn open_close(rig: &Rig) -> TestResult {
    let before = counts(rig)?;
    for i in 0..40 {
        let other = Rig::new().at(&format!("context {i}"))?;
        let p = other.pair(&PairOpts {
            buf: 1 << 17,
            ..PairOpts::default()
        })?;
        checked_exchange(&p, i)?;
    }
    counts_return(rig, &before)
}

fn resource_shows(rig: &Rig) -> TestResult {
    let get =
        |kind: &str, all: &[(String, u64)]| all.iter().find(|c| c.0 == kind).map_or(0, |c| c.1);
    let before = counts(rig)?;
    let p = rig.pair(&PairOpts::default())?;
    let with = counts(rig)?;
    for (kind, more) in [("qp", 2), ("cq", 4), ("mr", 2)] {
        ensure_eq!(
            get(kind, &with),
            get(kind, &before) + more,
            "number of {kind}"
        );
    }
    let mut cmd = Command::new("rdma");
    cmd.args([
        "resource",
        "show",
        "qp",
        "link",
        &format!("{}/1", rig.ctx.name),
    ]);
    let out = cmd.args(["lqpn", &p.a.qp.qpn().to_string()]).output()?;
    let text = String::from_utf8_lossy(&out.stdout);
    ensure!(
        text.contains("state RTS"),
        "rdma resource show qp lqpn {}: {text}",
        p.a.qp.qpn()
    );
    ensure!(
        text.contains(&format!("rqpn {}", p.b.qp.qpn())),
        "no remote QPN in: {text}"
    );
    drop(p);
    counts_return(rig, &before)
}

/// The shown indexes of queues must be current, also without the raw context.
fn resource_is_fresh(rig: &Rig) -> TestResult {
    const MESSAGES: u64 = 5;
    counts(rig)?;
    let p = rig.pair(&PairOpts::default())?;
    for id in 0..MESSAGES {
        p.b.recv(id, 0, 64)?;
        p.a.qp
            .post_send(&[SendWr::new(op::SEND, id, &[p.a.mr.sge(0, 64)])])?;
        expect_success(&wait_one(&p.a.scq, "a send")?, id, wc::SEND)?;
        expect_success(&wait_one(&p.b.rcq, "a receive")?, id, wc::RECV)?;
    }
    let me = std::process::id().to_string();
    for (kind, fields, queues) in [
        ("cq", ["drv_pi", "drv_ci"], 2),
        ("qp", ["drv_sq_pi", "drv_sq_ci"], 1),
        ("qp", ["drv_rq_pi", "drv_rq_ci"], 1),
    ] {
        let text = super::limits::run("rdma", &["-dd", "resource", "show", kind])?;
        // An object may take several lines, and begins with its device or link.
        let words: Vec<&str> = text.split_whitespace().collect();
        let begins = |word: &&str| matches!(*word, "dev" | "link");
        let has = |object: &[&str], name: &str, value: &str| {
            object.windows(2).any(|pair| pair == [name, value])
        };
        let messages = MESSAGES.to_string();
        let found = words
            .split(begins)
            .filter(|object| has(object, "pid", &me))
            .filter(|object| fields.iter().all(|field| has(object, field, &messages)))
            .count();
        ensure_eq!(
            found,
            queues,
            "queues of {kind} with {fields:?} {MESSAGES}: {text}"
        );
    }
    Ok(())
}

/// The keys of regions are shown to administrators only.
fn resource_hides_keys(rig: &Rig) -> TestResult {
    const NOBODY: u32 = 65534;
    counts(rig)?;
    let _mr = Mr::new(&rig.pd, 4096, access::ALL)?;
    for uid in [0, NOBODY] {
        let mut cmd = Command::new("rdma");
        let out = cmd
            .args(["-dd", "resource", "show", "mr"])
            .uid(uid)
            .output()?;
        let text = String::from_utf8_lossy(&out.stdout);
        ensure!(text.contains("mrlen 4096"), "for user {uid}: {text}");
        let has_key = text.contains("key");
        ensure_eq!(has_key, uid == 0, "user {uid} sees keys: {text}");
    }
    Ok(())
}

fn many_qps(rig: &Rig) -> TestResult {
    let opts = PairOpts {
        buf: 1 << 17,
        cqe: 16,
        ..PairOpts::default()
    };
    let pairs: Vec<QpPair> = (0..50).map(|_| rig.pair(&opts)).collect::<Result<_, _>>()?;
    for round in 0..3u64 {
        for (i, p) in pairs.iter().enumerate() {
            checked_exchange(p, round * 1000 + i as u64).at(&format!("pair {i}"))?;
        }
    }
    Ok(())
}

/// Runs each job in a thread of its own, and waits for all of them.
fn side_by_side<F>(jobs: impl Iterator<Item = F>) -> TestResult
where
    F: FnOnce() -> TestResult + Send,
{
    std::thread::scope(|s| {
        let all: Vec<_> = jobs.map(|job| s.spawn(job)).collect();
        all.into_iter()
            .try_for_each(|t| t.join().map_err(|_| Fail::from("a thread panicked"))?)
    })
}

fn threads(rig: &Rig) -> TestResult {
    let before = counts(rig)?;
    side_by_side((0..3u64).map(|t| {
        move || {
            for i in 0..15 {
                let p = rig.pair(&PairOpts {
                    buf: 1 << 17,
                    ..PairOpts::default()
                })?;
                checked_exchange(&p, t << 32 | i).at(&format!("thread {t}, pair {i}"))?;
            }
            Ok(())
        }
    }))?;
    counts_return(rig, &before)
}

/// The device executes 32 commands at the same time: a caller that finds no free slot waits, and
/// the commands of all callers are executed.
fn crowd(rig: &Rig) -> TestResult {
    const THREADS: usize = 96;
    let before = counts(rig)?;
    for _round in 0..5 {
        side_by_side((0..THREADS).map(|_| {
            || {
                for _ in 0..10 {
                    drop(Mr::new(&rig.pd, 64, access::ALL)?);
                }
                Ok(())
            }
        }))?;
    }
    counts_return(rig, &before)
}
