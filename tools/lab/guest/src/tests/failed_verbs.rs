// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests that a verb that fails changes nothing: neither objects and their number, nor attributes,
//! nor the contents of queues. Requests that are posted to a failed device, by any interface, are
//! flushed.
use super::events::checked_exchange;
use super::objects::counts;
use crate::ffi::context::EventType;
use crate::ffi::cq::{Channel, Cq};
use crate::ffi::mr::{access, Mr};
use crate::ffi::qp::{mask, op, state, Ah, Qp, QpInit, RecvWr, SendWr, Srq};
use crate::ffi::sys::{Buf, Errno};
use crate::ffi::{AhAttr, GlobalRoute, QpAttr};
use crate::outcome::ErrorContext as _;
use crate::pattern::PatternRng;
use crate::rig::*;
use crate::{GuestTest, TestResult};
use std::sync::Arc;

pub static TESTS: &[GuestTest] = &[
    GuestTest::new("res/verbs-that-fail-change-nothing", verbs)
        .limit(120)
        .alone(),
    GuestTest::new("5/posts-to-a-dead-device-are-flushed", dead)
        .limit(90)
        .alone(),
];

/// The objects on which the failing verbs are called.
struct VerbFixture<'r> {
    rig: &'r Rig,
    p: QpPair,
    srq: Arc<Srq>,
    cq: Arc<Cq>,
    /// Memory that cannot be pinned.
    unpinnable: Arc<Buf>,
    limits: crate::ffi::DeviceAttr,
}

type FailingVerb = (&'static str, fn(&VerbFixture<'_>) -> Result<(), Errno>);

fn qp(fixture: &VerbFixture<'_>, change: impl FnOnce(&mut QpInit)) -> Result<(), Errno> {
    let mut init = fixture.p.a.qp.init.clone();
    change(&mut init);
    Qp::new(&fixture.rig.pd, &init).map(drop)
}

fn modify(
    fixture: &VerbFixture<'_>,
    to: u32,
    wanted: u32,
    change: impl FnOnce(&mut QpAttr),
) -> Result<(), Errno> {
    let mut attr = QpAttr {
        qp_state: to,
        ..attrs(fixture.rig.gid, fixture.p.b.qp.qpn(), &Conn::default())
    };
    change(&mut attr);
    fixture.p.a.qp.modify(&attr, wanted)
}

fn address(fixture: &VerbFixture<'_>, change: impl FnOnce(&mut AhAttr)) -> Result<(), Errno> {
    let mut attr = attrs(fixture.rig.gid, 0, &Conn::default()).ah_attr;
    change(&mut attr);
    Ah::new(&fixture.rig.pd, &attr).map(drop)
}

const GROUP: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 99];

/// Calls that must fail.
const VERBS: &[FailingVerb] = &[
    ("create_cq of 0", |l| Cq::new(&l.rig.ctx, 0).map(drop)),
    ("create_cq of too many", |l| {
        Cq::new(&l.rig.ctx, l.limits.max_cqe + 1).map(drop)
    }),
    ("create_cq with an invalid vector", |l| {
        let channel = Channel::new(&l.rig.ctx)?;
        let vector = l.rig.ctx.num_comp_vectors();
        Cq::with_channel(&l.rig.ctx, 8, Some(&channel), vector).map(drop)
    }),
    ("resize_cq to fewer entries than completions", |l| {
        l.cq.resize(2)
    }),
    ("resize_cq to too many", |l| {
        l.cq.resize(l.limits.max_cqe + 1)
    }),
    ("create_qp of too many sends", |l| {
        qp(l, |i| i.cap.max_send_wr = l.limits.max_qp_wr as u32 + 1)
    }),
    ("create_qp of too many receives", |l| {
        qp(l, |i| i.cap.max_recv_wr = l.limits.max_qp_wr as u32 + 1)
    }),
    ("create_qp of too many elements", |l| {
        qp(l, |i| i.cap.max_send_sge = l.limits.max_sge as u32 + 1)
    }),
    ("create_qp of too much inline data", |l| {
        qp(l, |i| i.cap.max_inline_data = 1 << 20)
    }),
    ("create_qp of an unknown type", |l| {
        qp(l, |i| i.qp_type = 77)
    }),
    ("create_srq of 0", |l| Srq::new(&l.rig.pd, 0, 1).map(drop)),
    ("create_srq of too many", |l| {
        Srq::new(&l.rig.pd, l.limits.max_srq_wr as u32 + 1, 1).map(drop)
    }),
    ("create_srq of too many elements", |l| {
        Srq::new(&l.rig.pd, 8, l.limits.max_srq_sge as u32 + 1).map(drop)
    }),
    ("modify_srq to fewer entries than receives", |l| {
        l.srq.resize(4)
    }),
    ("modify_srq to a limit above the size", |l| {
        l.srq.set_limit(1 << 20)
    }),
    ("modify_srq of both, the limit too high", |l| {
        l.srq.modify(Some(256), Some(257))
    }),
    ("modify_srq of both, the size too small", |l| {
        l.srq.modify(Some(4), Some(3))
    }),
    ("reg_mr of unmapped memory", |l| {
        Mr::of(&l.rig.pd, &l.unpinnable, 0, 4096, access::ALL).map(drop)
    }),
    ("reg_mr with remote write alone", |l| {
        Mr::new(&l.rig.pd, 4096, access::REMOTE_WRITE).map(drop)
    }),
    ("rereg_mr to unmapped memory", |l| {
        l.p.b.mr.change(Some(&l.unpinnable), None, None)
    }),
    ("rereg_mr of all, with remote write alone", |l| {
        let pd = l.rig.ctx.alloc_pd()?;
        let buf = Arc::new(Buf::new(8192)?);
        let rights = Some(access::REMOTE_WRITE);
        l.p.b.mr.change(Some(&buf), Some(&pd), rights)
    }),
    ("modify_qp to an unknown state", |l| {
        modify(l, 200, mask::STATE, |_| ())
    }),
    ("modify_qp to RTR from RTS", |l| {
        modify(l, state::RTR, RTR_MASK, |_| ())
    }),
    ("modify_qp with a surplus attribute", |l| {
        modify(
            l,
            state::RTS,
            mask::STATE | mask::ACCESS_FLAGS | mask::SQ_PSN,
            |a| {
                a.qp_access_flags = 0;
            },
        )
    }),
    ("modify_qp from another state", |l| {
        modify(
            l,
            state::RTS,
            mask::STATE | mask::CUR_STATE | mask::ACCESS_FLAGS,
            |a| {
                (a.cur_qp_state, a.qp_access_flags) = (state::SQD, 0);
            },
        )
    }),
    ("modify_qp with an alternate path", |l| {
        modify(
            l,
            state::RTS,
            mask::STATE | mask::ALT_PATH | mask::MIN_RNR_TIMER,
            |a| {
                (a.min_rnr_timer, a.alt_port_num) = (31, 9);
            },
        )
    }),
    ("modify_qp with a timer out of range", |l| {
        modify(
            l,
            state::RTS,
            mask::STATE | mask::ACCESS_FLAGS | mask::MIN_RNR_TIMER,
            |a| {
                (a.min_rnr_timer, a.qp_access_flags) = (32, 0);
            },
        )
    }),
    ("attach_mcast of a connection", |l| {
        l.p.a.qp.attach_mcast(GROUP)
    }),
    ("detach_mcast from a group that it is not in", |l| {
        l.p.a.qp.detach_mcast(GROUP)
    }),
    ("create_ah with an invalid GID", |l| {
        address(l, |a| {
            a.grh = GlobalRoute {
                sgid_index: 255,
                ..a.grh
            }
        })
    }),
    ("create_ah with an invalid port", |l| {
        address(l, |a| a.port_num = 2)
    }),
    ("create_ah without GRH", |l| address(l, |a| a.is_global = 0)),
];

/// Returns all that queries report, as text.
fn snapshot(fixture: &VerbFixture<'_>) -> Result<String, crate::Fail> {
    let mut all = format!("{:?}\n", counts(fixture.rig)?);
    for end in [&fixture.p.a, &fixture.p.b] {
        let (q, cap) = end.qp.query()?;
        all += &format!(
            "state {} access {:x} MTU {} timers {} {} {} {} reads {} {} PSNs {:x} {:x} Q_Key {:x} port {} cap {} {} {} {} {}\n",
            q.qp_state, q.qp_access_flags, q.path_mtu, q.timeout, q.retry_cnt, q.rnr_retry, q.min_rnr_timer,
            q.max_rd_atomic, q.max_dest_rd_atomic, q.sq_psn, q.rq_psn, q.qkey, q.port_num,
            cap.max_send_wr, cap.max_recv_wr, cap.max_send_sge, cap.max_recv_sge, cap.max_inline_data,
        );
    }
    let srq = fixture.srq.query()?;
    all += &format!("SRQ {} {} {}\n", srq.max_wr, srq.max_sge, srq.srq_limit);
    all += &format!(
        "CQ {} keys {:x} {:x}",
        fixture.cq.cqe(),
        fixture.p.b.mr.lkey(),
        fixture.p.b.mr.rkey()
    );
    Ok(all)
}

/// Calls the verbs in an order drawn from a seed, with completions in the CQ and receives in the
/// SRQ that must not change.
fn verbs(rig: &Rig) -> TestResult {
    const WAITING: u64 = 20;
    let seed = std::env::var("VERBENA_SEED").ok();
    let seed = seed.and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let mut rng = PatternRng::new(seed);
    let srq = Srq::new(&rig.pd, 32, 1)?;
    let cq = Cq::new(&rig.ctx, 64)?;
    let opts = PairOpts::default().with(|o| {
        o.buf = 1 << 17;
        o.cap.max_send_wr = 64;
    });
    let a = rig.end_on(&opts, cq.clone(), Cq::new(&rig.ctx, 16)?)?;
    let b = rig.end(&opts)?;
    connect(&a.qp, rig.gid, b.qp.qpn(), &opts.conn_a)?;
    connect(&b.qp, rig.gid, a.qp.qpn(), &opts.conn_b)?;
    // A third pair takes receives from the SRQ.
    let taker = rig.pair(&PairOpts {
        srq: Some(srq.clone()),
        ..PairOpts::default()
    })?;
    let unpinnable = Arc::new(Buf::new(8192)?);
    unpinnable.forbid();
    let fixture = VerbFixture {
        rig,
        p: QpPair { a, b },
        srq,
        cq,
        unpinnable,
        limits: rig.ctx.query_device()?,
    };
    for id in 0..WAITING {
        fixture.srq.post(&[RecvWr::new(id, &[])]).at("a receive")?;
        let wr =
            SendWr::new(op::WRITE, id, &[]).remote(fixture.p.b.mr.at(0), fixture.p.b.mr.rkey());
        fixture.p.a.qp.post_send(&[wr]).at("a WRITE")?;
    }
    let read = SendWr::new(op::READ, 99, &[fixture.p.a.mr.sge(0, 8)]).flags(0);
    fixture.p.b.mr.buf.write(0, &[7; 8]);
    fixture
        .p
        .a
        .qp
        .post_send(&[read.remote(fixture.p.b.mr.at(0), fixture.p.b.mr.rkey())])?;
    wait_for("the data of the READ", || {
        Ok(fixture.p.a.mr.buf.read(0, 8) == [7; 8])
    })?;
    let before = snapshot(&fixture)?;
    for round in 0..2 {
        let mut order: Vec<&FailingVerb> = VERBS.iter().collect();
        while !order.is_empty() {
            let (name, verb) = order.swap_remove(rng.below(order.len() as u64) as usize);
            let at = format!("seed {seed}, round {round}, {name}");
            ensure!(verb(&fixture).is_err(), "{at}: the verb has not failed");
            let now = snapshot(&fixture).at(&at)?;
            ensure_eq!(now, before, "{at}: results of the queries");
        }
        rig.expect_no_event(QUIET)?;
    }
    // The completions and receives are still there, in order, and work.
    for (one, id) in wait(&fixture.cq, WAITING as usize, "completions")?
        .iter()
        .zip(0..)
    {
        expect_success(one, id, wc::RDMA_WRITE)?;
    }
    for id in 0..WAITING {
        taker.a.qp.post_send(&[SendWr::new(op::SEND, id, &[])])?;
        expect_success(&wait_one(&taker.a.scq, "a SEND")?, id, wc::SEND)?;
        expect_success(&wait_one(&taker.b.rcq, "a receive")?, id, wc::RECV)?;
    }
    checked_exchange(&fixture.p, seed).at("after all verbs")
}

/// Sends of every kind and receives, single and in lists, must be accepted and flushed in order; an
/// SRQ accepts receives until it is full.
fn dead(rig: &Rig) -> TestResult {
    let srq = Srq::new(&rig.pd, 8, 1)?;
    let taker = rig.pair(&PairOpts {
        srq: Some(srq.clone()),
        ..PairOpts::default()
    })?;
    let p = rig.pair(&PairOpts::default())?;
    let extended = crate::ffi::clock::cq(&rig.ctx, 64, 0)?;
    let other = rig.end_on(&PairOpts::default(), extended.clone(), extended.clone())?;
    connect(&other.qp, rig.gid, p.b.qp.qpn(), &Conn::default())?;
    super::faults::inject("device")?;
    rig.expect_device_fatal()?;
    let remote = (p.b.mr.at(0), p.b.mr.rkey());
    for round in 0..3u64 {
        let at = format!("round {round}");
        let kinds = [
            op::SEND,
            op::SEND_IMM,
            op::WRITE,
            op::WRITE_IMM,
            op::READ,
            op::CMP_SWP,
            op::FETCH_ADD,
        ];
        let list: Vec<_> = (0..)
            .zip(kinds)
            .map(|(n, opcode)| {
                let wr = SendWr::new(opcode, 100 * round + n, &[p.a.mr.sge(0, 8)]);
                // Unsignaled requests are flushed with a completion, too.
                let wr = wr.flags(if n % 2 == 0 { 1 << 1 } else { 0 });
                wr.remote(remote.0, remote.1)
            })
            .collect();
        let last = 100 * round + list.len() as u64;
        p.a.qp.post_send(&list).at(&at)?;
        let wr = SendWr::new(op::SEND, last, &[]).inline(&[]);
        p.a.qp.post_send(&[wr]).at(&at)?;
        for (one, wr_id) in wait(&p.a.scq, list.len() + 1, &at)?
            .iter()
            .zip(100 * round..)
        {
            expect_error(one, wr_id, status::WR_FLUSH_ERR, &p.a.qp).at(&at)?;
        }
        let receives: Vec<_> = (0..5).map(|n| RecvWr::new(n, &[])).collect();
        p.a.qp.post_recv(&receives).at(&at)?;
        for (one, wr_id) in wait(&p.a.rcq, 5, &at)?.iter().zip(0..) {
            expect_error(one, wr_id, status::WR_FLUSH_ERR, &p.a.qp).at(&at)?;
        }
        // The same requests are polled by the extended interface.
        other.qp.post_send(&list).at(&at)?;
        let mut flushed = Vec::new();
        wait_for("the flushes of an extended CQ", || {
            flushed.extend(crate::ffi::clock::drain(&extended)?);
            Ok(flushed.len() >= list.len())
        })?;
        ensure_eq!(flushed.len(), list.len(), "{at}: flushes");
        for (one, wr_id) in flushed.iter().zip(100 * round..) {
            let reported = (one.wr_id, one.status);
            ensure_eq!(reported, (wr_id, status::WR_FLUSH_ERR), "{at}: a flush");
        }
    }
    for id in 0..8 {
        srq.post(&[RecvWr::new(id, &[])])
            .at("a receive of an SRQ")?;
    }
    let more = srq.post(&[RecvWr::new(8, &[])]).map_err(|e| e.errno);
    ensure_eq!(more, Err(Errno::ENOMEM), "one receive more");
    for cq in [&p.a.scq, &p.a.rcq, &taker.b.rcq] {
        expect_quiet(cq, QUIET, "after the flushes")?;
    }
    wait_for("the device is back", || {
        Ok(Rig::new().is_ok_and(|new| new.gid.raw != [0; 16]))
    })
}

impl Rig {
    /// Checks that the next event is DEVICE_FATAL.
    fn expect_device_fatal(&self) -> Result<(), crate::Fail> {
        let event = self.event("DEVICE_FATAL")?;
        ensure_eq!(event.kind(), EventType::DEVICE_FATAL, "event");
        Ok(())
    }
}
