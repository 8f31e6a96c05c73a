// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests of counters where administrators read them: sysfs, and the `rdma` tool.
use super::multicast::{group, to_group};
use super::port::{ip, netdev, until};
use super::unreliable::{datagram_end, ends, GRH, UD};
use crate::ffi::context::EventType;
use crate::ffi::qp::{op, state, SendWr, UdDestination};
use crate::outcome::ErrorContext as _;
use crate::rig::*;
use crate::tests::faults::debugfs;
use crate::{Fail, GuestTest, TestResult};
use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

pub static TESTS: &[GuestTest] = &[
    GuestTest::new("ops/counters-of-the-port", port).alone(),
    GuestTest::new("ops/counters-of-each-direction", directions)
        .limit(120)
        .alone(),
    GuestTest::new("ops/counters-of-queue-pairs", queue_pairs).alone(),
    GuestTest::new("ops/counters-of-queue-pairs-without-reads", unread).alone(),
    GuestTest::new("ops/counters-of-each-type", automatic).alone(),
    GuestTest::new("ops/counters-are-read-once-for-all-values", few_commands).alone(),
];

pub(super) type CounterMap = BTreeMap<String, u64>;

/// Delay before each read, longer than the 10 ms for which the core keeps the values.
const FRESH: Duration = Duration::from_millis(50);

fn link() -> String {
    format!("{}/1", env().device)
}

/// Returns the counters that sysfs has in a folder of the port.
pub(super) fn sysfs(folder: &str) -> Result<CounterMap, Fail> {
    if is_lossy() {
        return Err(Fail::Skipped("lost packets change the counters".into()));
    }
    std::thread::sleep(FRESH);
    let path = format!("/sys/class/infiniband/{}/ports/1/{folder}", env().device);
    let mut all = CounterMap::new();
    for entry in std::fs::read_dir(&path).at(&path)? {
        let entry = entry.at(&path)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let value = std::fs::read_to_string(entry.path()).at(&name)?;
        // The file `lifespan` is no counter but the time for which values are kept; no test
        // compares it.
        if let Ok(value) = value.trim().parse() {
            all.insert(name, value);
        }
    }
    if folder == "hw_counters" && !all.contains_key("rx_sends") {
        return Err(Fail::Skipped("the device has other counters".into()));
    }
    Ok(all)
}

/// Returns the increase of a counter.
pub(super) fn added(before: &CounterMap, after: &CounterMap, name: &str) -> Result<u64, Fail> {
    let of = |all: &CounterMap| all.get(name).copied();
    match (of(before), of(after)) {
        (Some(before), Some(after)) => Ok(after.wrapping_sub(before)),
        _ => Err(format!("no counter {name}").into()),
    }
}

fn compare(before: &CounterMap, after: &CounterMap, want: &[(&str, u64)]) -> TestResult {
    for &(name, want) in want {
        ensure_eq!(added(before, after, name)?, want, "{name}");
    }
    Ok(())
}

/// Sends `count` SENDs of 100 bytes.
pub(super) fn send(p: &QpPair, count: u64) -> TestResult {
    for wr_id in 0..count {
        p.b.recv(wr_id, 0, 100)?;
        let wr = SendWr::new(op::SEND, wr_id, &[p.a.mr.sge(0, 100)]);
        p.a.qp.post_send(&[wr]).at("a SEND")?;
        expect_success(&wait_one(&p.a.scq, "a SEND")?, wr_id, wc::SEND)?;
        expect_success(&wait_one(&p.b.rcq, "a receive")?, wr_id, wc::RECV)?;
    }
    Ok(())
}

/// Known traffic increases each counter by the expected number.
fn port(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts::default())?;
    let (own, pma) = (sysfs("hw_counters")?, sysfs("counters")?);
    send(&p, 7)?;
    for (opcode, done) in [(op::WRITE, wc::RDMA_WRITE), (op::READ, wc::RDMA_READ)] {
        let wr = SendWr::new(opcode, 9, &[p.a.mr.sge(0, 64)]);
        let wr = wr.remote(p.b.mr.at(0), p.b.mr.rkey());
        p.a.qp.post_send(&[wr]).at("a post")?;
        expect_success(&wait_one(&p.a.scq, "a post")?, 9, done)?;
    }
    // An invalid key causes an error on both sides.
    p.a.recv(1, 0, 8)?;
    let wr = SendWr::new(op::WRITE, 9, &[p.a.mr.sge(0, 8)]);
    let wr = wr.remote(p.b.mr.at(0), !p.b.mr.rkey());
    p.a.qp.post_send(&[wr]).at("a post")?;
    let ends = wait_one(&p.a.scq, "a wrong key")?;
    expect_error(&ends, 9, status::REM_ACCESS_ERR, &p.a.qp)?;
    wait_one(&p.a.rcq, "the flush")?;
    let (own_after, pma_after) = (sysfs("hw_counters")?, sysfs("counters")?);
    let bytes = 7 * 100 + 2 * 64 + 8;
    compare(
        &own,
        &own_after,
        &[
            ("rx_sends", 7),
            ("rx_write_requests", 2),
            ("rx_read_requests", 1),
            ("tx_bytes", bytes),
            ("rx_bytes", bytes),
            ("posts", 10),
            ("recvs", 8),
            ("req_cqe_error", 1),
            ("req_remote_access_errors", 1),
            ("resp_remote_access_errors", 1),
            ("resp_cqe_flush_error", 1),
            ("duplicate_request", 0),
        ],
    )?;
    // The values are in units of four bytes, and each value is rounded down separately.
    let words = |all: &CounterMap| all.get("tx_bytes").map_or(0, |bytes| bytes / 4);
    let packets = added(&own, &own_after, "tx_packets")?;
    compare(
        &pma,
        &pma_after,
        &[
            ("port_xmit_data", words(&own_after) - words(&own)),
            ("port_rcv_data", words(&own_after) - words(&own)),
            ("port_xmit_packets", packets),
            ("port_rcv_packets", packets),
            ("unicast_xmit_packets", packets),
            ("unicast_rcv_packets", packets),
            ("multicast_xmit_packets", 0),
            ("port_rcv_errors", 0),
            ("link_downed", 0),
        ],
    )
}

/// Returns the increases of those counters, in both folders of the port, that differ by direction.
fn moved(own: &CounterMap, pma: &CounterMap) -> Result<[u64; 10], Fail> {
    let (own_after, pma_after) = (sysfs("hw_counters")?, sysfs("counters")?);
    let own = |name| added(own, &own_after, name);
    let pma = |name| added(pma, &pma_after, name);
    let data = |name, bytes: u64| -> Result<u64, Fail> {
        // The values are in units of four bytes, rounded down. The increase is exact because all
        // lengths are multiples of four.
        ensure_eq!(pma(name)?, bytes / 4, "{name}");
        Ok(bytes)
    };
    Ok([
        pma("port_xmit_packets")?,
        pma("port_rcv_packets")?,
        data("port_xmit_data", own("tx_bytes")?)?,
        data("port_rcv_data", own("rx_bytes")?)?,
        pma("multicast_xmit_packets")?,
        pma("multicast_rcv_packets")?,
        own("rx_no_qp")?,
        pma("port_rcv_errors")?,
        pma("port_xmit_discards")?,
        pma("link_downed")?,
    ])
}

/// Each counter increases alone if sent and received traffic differ.
fn directions(rig: &Rig) -> TestResult {
    let now = || Ok::<_, Fail>((sysfs("hw_counters")?, sysfs("counters")?));
    let (p, to) = ends(rig, UD)?;
    // A datagram to a QP that does not exist is sent and not received, and is no error of the link.
    let nobody = UdDestination {
        qpn: 0xff_fff0,
        ..to.ok_or("a destination")?
    };
    let (own, pma) = now()?;
    for wr_id in 0..3 {
        let wr = SendWr::new(op::SEND, wr_id, &[p.a.mr.sge(0, 100)]).to(&nobody);
        p.a.qp.post_send(&[wr]).at("a datagram")?;
        expect_success(&wait_one(&p.a.scq, "a datagram")?, wr_id, wc::SEND)?;
    }
    let want = [3, 0, 300, 0, 0, 0, 3, 0, 0, 0];
    ensure_eq!(moved(&own, &pma)?, want, "datagrams to an unknown QPN");
    // The same holds for a connection with one retry.
    let end = rig.end(&PairOpts::default())?;
    let conn = Conn {
        retry_cnt: 1,
        timeout: 12,
        ..Conn::default()
    };
    connect(&end.qp, rig.gid, 0xff_fff0, &conn)?;
    let (own, pma) = now()?;
    let wr = SendWr::new(op::SEND, 1, &[end.mr.sge(0, 100)]);
    end.qp.post_send(&[wr]).at("a SEND")?;
    let ends = wait_one(&end.scq, "a SEND to an unknown QPN")?;
    expect_error(&ends, 1, status::RETRY_EXC_ERR, &end.qp)?;
    // With a wire between the ends, the requester sends the request a few more times as probes.
    let sent = moved(&own, &pma)?;
    let n = sent[0];
    ensure!(n >= 2, "a SEND with a retry was sent {n} times");
    ensure_eq!(
        sent,
        [n, 0, n * 100, 0, 0, 0, n, 0, 0, 0],
        "a SEND to an unknown QPN"
    );
    // A multicast datagram to two members is sent once and received twice.
    let (members, group) = ([datagram_end(rig)?, datagram_end(rig)?], group(5));
    for member in &members {
        member.qp.attach_mcast(group).at("attaching")?;
        member.recv(1, 0, 100 + GRH)?;
    }
    let to = to_group(rig, group)?;
    let (own, pma) = now()?;
    let wr = SendWr::new(op::SEND, 1, &[p.a.mr.sge(0, 100)]).to(&to);
    p.a.qp.post_send(&[wr]).at("a datagram")?;
    expect_success(&wait_one(&p.a.scq, "a datagram")?, 1, wc::SEND)?;
    for member in &members {
        expect_success(&wait_one(&member.rcq, "a member")?, 1, wc::RECV)?;
    }
    let want = [1, 2, 100, 200, 1, 2, 0, 0, 0, 0];
    ensure_eq!(moved(&own, &pma)?, want, "a datagram to two members");
    for member in &members {
        member.qp.detach_mcast(group).at("detaching")?;
    }
    // The link goes down once.
    let netdev = netdev()?;
    let (own, pma) = now()?;
    ip(&["link", "set", &netdev, "down"])?;
    let down = until(rig, EventType::PORT_ERR);
    ip(&["link", "set", &netdev, "up"])?;
    until(rig, EventType::PORT_ACTIVE)?;
    down?;
    let want = [0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    ensure_eq!(moved(&own, &pma)?, want, "the link goes down");
    Ok(())
}

fn rdma(words: &[&str]) -> Result<String, Fail> {
    let out = Command::new("rdma").args(words).output();
    let out = out.at("the rdma tool")?;
    if !out.status.success() {
        let why = String::from_utf8_lossy(&out.stderr);
        return Err(format!("rdma {}: {}", words.join(" "), why.trim()).into());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Returns the counters that QPs are bound to, as `rdma statistic qp show` prints them, with their
/// QPs.
fn bound_counters() -> Result<Vec<(CounterMap, Vec<u32>)>, Fail> {
    std::thread::sleep(FRESH);
    let text = rdma(&["statistic", "qp", "show", "link", &link()])?;
    let counters = text.split("link ").skip(1).map(|counter| {
        let (values, qps) = counter.split_once("LQPN:").unwrap_or((counter, ""));
        let words: Vec<&str> = values.split_whitespace().collect();
        let values = words
            .windows(2)
            .filter_map(|pair| Some((pair[0].to_owned(), pair[1].parse().ok()?)))
            .collect();
        let qps = qps.split(|c: char| !c.is_ascii_digit());
        (values, qps.filter_map(|qp| qp.parse().ok()).collect())
    });
    Ok(counters.collect())
}

/// Returns the only counter that QPs are bound to.
fn only() -> Result<(CounterMap, Vec<u32>), Fail> {
    let mut all = bound_counters()?;
    ensure_eq!(all.len(), 1, "counters of queue pairs");
    Ok(all.remove(0))
}

fn bind(words: &[&str]) -> TestResult {
    let link = link();
    let mut all = vec!["statistic", "qp", "bind", "link", &link];
    all.extend(words);
    rdma(&all).map(drop)
}

/// QPs that are bound to a counter count for that counter and for the port. Other QPs, and QPs
/// after they are unbound, count for the port alone.
fn queue_pairs(rig: &Rig) -> TestResult {
    let port = sysfs("hw_counters")?;
    let p = rig.pair(&PairOpts::default())?;
    let (a, b) = (p.a.qp.qpn().to_string(), p.b.qp.qpn().to_string());
    send(&p, 3)?;
    bind(&["lqpn", &a])?;
    let (values, qps) = only()?;
    ensure_eq!(qps, vec![p.a.qp.qpn()], "queue pairs of the counter");
    ensure_eq!(values.get("posts"), Some(&0), "posts before it was bound");
    send(&p, 5)?;
    let (values, _) = only()?;
    ensure_eq!(values.get("posts"), Some(&5), "posts");
    ensure_eq!(values.get("tx_bytes"), Some(&500), "bytes sent");
    ensure_eq!(
        values.get("rx_sends"),
        Some(&0),
        "SENDs of the other queue pair"
    );
    // A QP that is bound already cannot be bound again.
    ensure!(bind(&["lqpn", &a]).is_err(), "bound twice");
    let id = values.get("cntn").ok_or("a counter without number")?;
    let id = id.to_string();
    bind(&["lqpn", &b, "cntn", &id])?;
    send(&p, 2)?;
    let (values, qps) = only()?;
    ensure_eq!(qps.len(), 2, "queue pairs of the counter");
    ensure_eq!(values.get("posts"), Some(&7), "posts of both");
    ensure_eq!(values.get("rx_sends"), Some(&2), "SENDs after the bind");
    let sum = |want: u64| compare(&port, &sysfs("hw_counters")?, &[("posts", want)]);
    sum(10)?;
    let link = link();
    let unbind = ["statistic", "qp", "unbind", "link", &link, "cntn", &id];
    rdma(&[&unbind[..], &["lqpn", &a]].concat())?;
    send(&p, 4)?;
    let (values, _) = only()?;
    ensure_eq!(
        values.get("posts"),
        Some(&7),
        "posts after one queue pair was unbound"
    );
    ensure_eq!(
        values.get("rx_sends"),
        Some(&6),
        "SENDs of the other queue pair"
    );
    sum(14)?;
    drop(p);
    ensure_eq!(bound_counters()?.len(), 0, "counters that are left");
    sum(14)
}

/// If a QP is bound, counts and is unbound without a read in between, the port loses none of its
/// counts, and the next counter begins at 0.
fn unread(rig: &Rig) -> TestResult {
    let port = sysfs("hw_counters")?;
    let p = rig.pair(&PairOpts::default())?;
    let a = p.a.qp.qpn().to_string();
    let link = link();
    let mut total = 0;
    for (round, (bound, free)) in [(3, 2), (0, 1), (4, 0), (1, 5)].into_iter().enumerate() {
        bind(&["lqpn", &a])?;
        // This command also reads the counter, before there is anything to count.
        let text = rdma(&["statistic", "qp", "show", "link", &link])?;
        let mut words = text.split_whitespace().skip_while(|word| *word != "cntn");
        let id = words.nth(1).ok_or("a counter without number")?.to_owned();
        send(&p, bound)?;
        let unbind = ["statistic", "qp", "unbind", "link", &link, "cntn", &id];
        rdma(&[&unbind[..], &["lqpn", &a]].concat())?;
        send(&p, free)?;
        total += bound + free;
        let now = sysfs("hw_counters")?;
        compare(&port, &now, &[("posts", total), ("rx_sends", total)])
            .at(&format!("round {round}"))?;
    }
    bind(&["lqpn", &a])?;
    let (values, _) = only()?;
    ensure_eq!(values.get("posts"), Some(&0), "posts of a new counter");
    let id = values.get("cntn").ok_or("a counter without number")?;
    let id = id.to_string();
    bind(&["lqpn", &p.b.qp.qpn().to_string(), "cntn", &id])?;
    send(&p, 4)?;
    total += 4;
    // The QP that is unbound leaves its counts with the counter, to which the other QP is still
    // bound.
    let unbind = ["statistic", "qp", "unbind", "link", &link, "cntn", &id];
    rdma(&[&unbind[..], &["lqpn", &a]].concat())?;
    let (values, qps) = only()?;
    ensure_eq!(qps, vec![p.b.qp.qpn()], "queue pairs of the counter");
    ensure_eq!(
        values.get("posts"),
        Some(&4),
        "posts of the destroyed queue pair"
    );
    ensure_eq!(
        values.get("rx_sends"),
        Some(&4),
        "SENDs of the other queue pair"
    );
    send(&p, 2)?;
    // The remaining QP is destroyed while it is bound.
    drop(p);
    ensure_eq!(bound_counters()?.len(), 0, "counters that are left");
    compare(&port, &sysfs("hw_counters")?, &[("posts", total + 2)])
}

/// With one counter for each type of QP, everything is counted there, and remains in the port's
/// counters after the QPs are destroyed.
fn automatic(rig: &Rig) -> TestResult {
    let port = sysfs("hw_counters")?;
    let link = link();
    let set = |mode: &[&str]| {
        let words = ["statistic", "qp", "set", "link", &link, "auto"];
        rdma(&[&words[..], mode].concat()).map(drop)
    };
    set(&["type", "on"])?;
    let counted = (|| {
        let p = rig.pair(&PairOpts::default())?;
        send(&p, 6)?;
        let (values, qps) = only()?;
        ensure_eq!(qps.len(), 2, "queue pairs of the counter");
        ensure_eq!(values.get("rx_sends"), Some(&6), "SENDs");
        // The counts of a QP remain when the QP is reset.
        set_state(&p.a.qp, state::RESET)?;
        let (values, _) = only()?;
        ensure_eq!(values.get("posts"), Some(&6), "posts after RESET");
        drop(p);
        ensure_eq!(bound_counters()?.len(), 0, "counters that are left");
        Ok(())
    })();
    set(&["off"])?;
    counted?;
    let after = sysfs("hw_counters")?;
    compare(&port, &after, &[("rx_sends", 6), ("posts", 6)])
}

/// Returns the number of commands so far.
fn commands() -> Result<u64, Fail> {
    let text = std::fs::read_to_string(debugfs("commands")?).at("commands")?;
    let line = text.lines().next().unwrap_or("");
    let count = line.rsplit(' ').next().and_then(|word| word.parse().ok());
    count.ok_or_else(|| format!("no number of commands in {line}").into())
}

/// Reading all counters of the port does not query the bound QPs for each value again, because
/// values are valid for 10 ms. A slow guest takes longer for each file, and may query again for
/// each.
fn few_commands(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts::default())?;
    for end in [&p.a, &p.b] {
        bind(&["lqpn", &end.qp.qpn().to_string()])?;
    }
    // A full read queries the port, and each QP once for the port's sum and once for its own
    // counter.
    const AT_ONCE: u128 = 5;
    let (before, start) = (commands()?, Instant::now());
    sysfs("hw_counters")?;
    let executed = u128::from(commands()? - before);
    let most = AT_ONCE * (start.elapsed().as_millis() / 10 + 2);
    ensure!(
        executed <= most,
        "{executed} commands, at most {most} are necessary"
    );
    Ok(())
}
