// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests of performance management by datagrams, as remote monitoring uses it (specification,
//! 16.1).
use super::counters::{added, send, sysfs};
use super::multicast::{group, to_group};
use super::unreliable::{datagram_end, GRH};
use crate::ffi::qp::{op, SendWr};
use crate::ffi::umad::{Agent, MAD};
use crate::ffi::GidEntry;
use crate::outcome::ErrorContext as _;
use crate::rig::*;
use crate::{Fail, GuestTest, TestResult};

pub static TESTS: &[GuestTest] = &[
    GuestTest::new("ops/counters-of-performance-management", read).alone(),
    GuestTest::new("ops/counters-of-performance-management-cleared", clear).alone(),
    GuestTest::new("ops/counters-of-performance-management-by-bit", each_bit)
        .limit(120)
        .alone(),
    GuestTest::new("ops/counters-of-performance-management-refused", refused).alone(),
];

const PERF_MGMT: u8 = 4;
const GET: u8 = 1;
const SET: u8 = 2;
const GET_RESP: u8 = 0x81;
const CLASS_PORT_INFO: u16 = 0x01;
const PORT_COUNTERS: u16 = 0x12;
const PORT_COUNTERS_EXTENDED: u16 = 0x1d;
const ALL_PORTS: u8 = 0xff;
/// Offset of the attribute in the datagram.
const DATA: usize = 64;

/// The fields of a request that differ between tests.
#[derive(Clone, Copy)]
struct MadRequest {
    method: u8,
    version: u8,
    attribute: u16,
    port: u8,
    select: u16,
}

const DEFAULT_REQUEST: MadRequest = MadRequest {
    method: GET,
    version: 1,
    attribute: PORT_COUNTERS_EXTENDED,
    port: 1,
    select: 0,
};

/// Returns the number of `len` bytes at an offset of an attribute.
fn number(attribute: &[u8], at: usize, len: usize) -> u64 {
    let bytes = &attribute[at..at + len];
    bytes.iter().fold(0, |sum, &b| sum << 8 | u64::from(b))
}

/// Opens the `umad` device of the RDMA device.
fn agent() -> Result<Agent, Fail> {
    for n in 0..8 {
        let of = std::fs::read_to_string(format!("/sys/class/infiniband_mad/umad{n}/ibdev"));
        if of.is_ok_and(|name| name.trim() == env().device) {
            return Agent::new(&format!("/dev/infiniband/umad{n}"), PERF_MGMT).at("an agent");
        }
    }
    Err("the device has no umad".into())
}

/// Returns an IPv6 GID of the port. The kernel finds the agent of a response by the destination in
/// the GRH, which does not exist over IPv4.
fn ipv6(rig: &Rig) -> Result<GidEntry, Fail> {
    const ROCE_V2: u32 = 2;
    let all = (0..=u8::MAX).filter_map(|i| rig.ctx.query_gid(1, i.into()).ok());
    let mut own = all.filter(|e| e.gid_type == ROCE_V2 && e.gid.raw[0] == 0xfe);
    own.next().ok_or_else(|| "no IPv6 GID".into())
}

/// Sends a request and returns status and attribute of the response.
fn send_request(rig: &Rig, request: MadRequest) -> Result<(u16, Vec<u8>), Fail> {
    let mut mad = [0; MAD];
    (mad[0], mad[1], mad[2], mad[3]) = (1, PERF_MGMT, request.version, request.method);
    mad[16..18].copy_from_slice(&request.attribute.to_be_bytes());
    mad[DATA + 1] = request.port;
    mad[DATA + 2..DATA + 4].copy_from_slice(&request.select.to_be_bytes());
    let to = ipv6(rig)?;
    let before = sysfs("counters")?;
    let answer = match agent()?.request(to.gid, to.gid_index as u8, &mad) {
        Ok(answer) => answer,
        Err(wrong) => {
            // The counters show whether the request or the response was lost.
            let after = sysfs("counters")?;
            let sent = added(&before, &after, "port_xmit_packets")?;
            let received = added(&before, &after, "port_rcv_packets")?;
            let of = request.attribute;
            let message = format!(
                "attribute {of:#x} over {to:?}: {wrong}; {sent} packets sent, {received} received"
            );
            return Err(message.into());
        }
    };
    ensure_eq!(answer[3], GET_RESP, "method of the answer");
    ensure_eq!(answer[16..18], mad[16..18], "attribute of the answer");
    Ok((number(&answer, 4, 2) as u16, answer[DATA..].to_vec()))
}

fn query(rig: &Rig, request: MadRequest) -> Result<Vec<u8>, Fail> {
    let (status, attribute) = send_request(rig, request)?;
    ensure_eq!(status, 0, "status of attribute {:#x}", request.attribute);
    ensure_eq!(attribute[1], request.port, "PortSelect");
    Ok(attribute)
}

/// Name of a counter in sysfs, its offset in PortCountersExtended, and its offset in PortCounters
/// if it is there (four bytes).
const FIELDS: [(&str, usize, Option<usize>); 8] = [
    ("port_xmit_data", 8, Some(24)),
    ("port_rcv_data", 16, Some(28)),
    ("port_xmit_packets", 24, Some(32)),
    ("port_rcv_packets", 32, Some(36)),
    ("unicast_xmit_packets", 40, None),
    ("unicast_rcv_packets", 48, None),
    ("multicast_xmit_packets", 56, None),
    ("multicast_rcv_packets", 64, None),
];

/// Responses have the values of sysfs, and the datagrams themselves are counted.
fn read(rig: &Rig) -> TestResult {
    let (status, info) = send_request(
        rig,
        MadRequest {
            attribute: CLASS_PORT_INFO,
            ..DEFAULT_REQUEST
        },
    )?;
    ensure_eq!(status, 0, "status of ClassPortInfo");
    ensure_eq!((info[0], info[1]), (1, 1), "versions");
    ensure_eq!(number(&info, 2, 2), 0x300, "capabilities");
    ensure!(info[7] & 0x1f > 0, "RespTimeValue is 0");
    send(&rig.pair(&PairOpts::default())?, 5)?;
    for port in [1, ALL_PORTS] {
        let before = sysfs("counters")?;
        let extended = query(
            rig,
            MadRequest {
                port,
                ..DEFAULT_REQUEST
            },
        )?;
        let basic = MadRequest {
            attribute: PORT_COUNTERS,
            port,
            ..DEFAULT_REQUEST
        };
        let basic = query(rig, basic)?;
        let after = sysfs("counters")?;
        for (name, at, short) in FIELDS {
            // The datagrams have 256 bytes in each direction.
            let (own, total) = match name {
                _ if name.ends_with("_data") => (64, 4 * 64),
                _ if name.starts_with("multicast") => (0, 0),
                _ => (1, 4),
            };
            ensure_eq!(
                added(&before, &after, name)?,
                total,
                "{name} of the datagrams"
            );
            let first = before.get(name).copied().unwrap_or(0);
            ensure_eq!(number(&extended, at, 8), first + own, "{name}, extended");
            if let Some(at) = short {
                let want = (first + 3 * own).min(u32::MAX.into());
                ensure_eq!(number(&basic, at, 4), want, "{name}");
            }
        }
        ensure_eq!(number(&basic, 8, 2), after["port_rcv_errors"], "errors");
        ensure_eq!(number(&basic, 7, 1), after["link_downed"], "link_downed");
    }
    Ok(())
}

/// Set clears the counters that it selects, in this attribute only; the device's own counters
/// continue.
fn clear(rig: &Rig) -> TestResult {
    let own = sysfs("hw_counters")?;
    send(&rig.pair(&PairOpts::default())?, 20)?;
    let set = MadRequest {
        method: SET,
        select: 1 << 2 | 1 << 5,
        ..DEFAULT_REQUEST
    };
    let cleared = query(rig, set)?;
    ensure_eq!(
        number(&cleared, 2, 2),
        u64::from(set.select),
        "CounterSelect"
    );
    let few = |name: &str, value: u64, wanted: bool| {
        let is_few = value < 10;
        ensure_eq!(is_few, wanted, "{name} is {value}: it was cleared");
        Ok::<(), Fail>(())
    };
    let of_sysfs = sysfs("counters")?;
    for (name, at, _) in FIELDS {
        if !name.starts_with("multicast") {
            let wanted = ["port_xmit_packets", "unicast_rcv_packets"].contains(&name);
            few(name, number(&cleared, at, 8), wanted)?;
            few(name, of_sysfs.get(name).copied().unwrap_or(0), wanted)?;
        }
    }
    let basic = MadRequest {
        method: SET,
        attribute: PORT_COUNTERS,
        select: 1 << 15,
        ..DEFAULT_REQUEST
    };
    let cleared = query(rig, basic)?;
    few("packets sent", number(&cleared, 32, 4), false)?;
    few("packets received", number(&cleared, 36, 4), true)?;
    let extended = query(rig, DEFAULT_REQUEST)?;
    few("packets received", number(&extended, 32, 8), false)?;
    // The device's own counters were not cleared.
    let sent = added(&own, &sysfs("hw_counters")?, "tx_packets")?;
    ensure!((40..100).contains(&sent), "{sent} packets sent");
    Ok(())
}

/// Bits of CounterSelect in PortCounters, and the offsets of the counters that they clear
/// (16.1.3.5).
const BASIC: [(u16, usize); 4] = [(12, 24), (13, 28), (14, 32), (15, 36)];

/// Returns an upper limit for a counter that was just cleared, which counts only the datagrams of
/// the requests, and a lower limit for the counter before; in words or packets.
fn bounds(name: &str) -> (u64, u64) {
    if name.ends_with("_data") {
        (400, 1000)
    } else {
        (10, 30)
    }
}

/// Each bit of CounterSelect clears its own counter and no other. Before that, all counters are
/// greater than the datagrams of the requests explain.
fn each_bit(rig: &Rig) -> TestResult {
    sysfs("counters")?;
    let multicast = [datagram_end(rig)?, datagram_end(rig)?];
    let group = group(7);
    multicast[1].qp.attach_mcast(group).at("attaching")?;
    let to = to_group(rig, group)?;
    let p = rig.pair(&PairOpts::default())?;
    let count = || -> TestResult {
        // The WRITE has a packet for each KiB.
        let wr = SendWr::new(op::WRITE, 1, &[p.a.mr.sge(0, 64 << 10)]);
        let wr = wr.remote(p.b.mr.at(0), p.b.mr.rkey());
        p.a.qp.post_send(&[wr]).at("a WRITE")?;
        expect_success(&wait_one(&p.a.scq, "a WRITE")?, 1, wc::RDMA_WRITE)?;
        for wr_id in 0..40 {
            multicast[1].recv(wr_id, 0, 8 + GRH)?;
            let wr = SendWr::new(op::SEND, wr_id, &[multicast[0].mr.sge(0, 8)]);
            let wr = wr.to(&to);
            multicast[0].qp.post_send(&[wr]).at("a datagram")?;
            expect_success(&wait_one(&multicast[0].scq, "a datagram")?, wr_id, wc::SEND)?;
            expect_success(&wait_one(&multicast[1].rcq, "a member")?, wr_id, wc::RECV)?;
        }
        Ok(())
    };
    count()?;
    let all = |request: MadRequest| -> Result<Vec<(&str, u64, u64)>, Fail> {
        let attribute = query(rig, request)?;
        let extended = request.attribute == PORT_COUNTERS_EXTENDED;
        let fields = FIELDS.iter().filter_map(|&(name, long, short)| {
            let (at, len) = if extended { (long, 8) } else { (short?, 4) };
            Some((name, at as u64, number(&attribute, at, len)))
        });
        Ok(fields.collect())
    };
    let extended = (0..8).map(|bit| (PORT_COUNTERS_EXTENDED, bit, FIELDS[usize::from(bit)].1));
    let basic = BASIC.into_iter().map(|(bit, at)| (PORT_COUNTERS, bit, at));
    for (attribute, bit, cleared) in extended.chain(basic) {
        let get = MadRequest {
            attribute,
            ..DEFAULT_REQUEST
        };
        let set = MadRequest {
            method: SET,
            select: 1 << bit,
            ..get
        };
        count()?;
        let before = all(get)?;
        all(set)?;
        let after = all(get)?;
        for ((name, at, was), (_, _, is)) in before.iter().zip(&after) {
            let (few, many) = bounds(name);
            ensure!(*was >= many, "{name} was {was} before bit {bit}");
            let is_cleared = *at == cleared as u64;
            ensure_eq!(
                *is < few,
                is_cleared,
                "attribute {attribute:#x}, bit {bit}: {name} was {was} and is {is}: it was cleared"
            );
        }
    }
    multicast[1].qp.detach_mcast(group).at("detaching")
}

/// The device refuses each of these requests with the status of 13.4.7 for its error.
fn refused(rig: &Rig) -> TestResult {
    const VERSION: u16 = 1 << 2;
    const METHOD_ATTRIBUTE: u16 = 3 << 2;
    const VALUE: u16 = 7 << 2;
    sysfs("counters")?;
    for (method, version, attribute, port, want) in [
        (GET, 2, PORT_COUNTERS, 1, VERSION),
        (GET, 1, 0x00ff, 1, METHOD_ATTRIBUTE),
        (SET, 1, 0x00ff, 1, METHOD_ATTRIBUTE),
        (SET, 1, CLASS_PORT_INFO, 1, METHOD_ATTRIBUTE),
        (GET, 1, PORT_COUNTERS, 2, VALUE),
        (GET, 1, PORT_COUNTERS, 0, VALUE),
        (SET, 1, PORT_COUNTERS, 2, VALUE),
        (GET, 1, PORT_COUNTERS_EXTENDED, 2, VALUE),
    ] {
        let request = MadRequest {
            method,
            version,
            attribute,
            port,
            select: 0xffff,
        };
        let (status, _) = send_request(rig, request)?;
        ensure_eq!(
            status,
            want,
            "method {method}, version {version}, attribute {attribute:#x}, port {port}"
        );
    }
    query(rig, DEFAULT_REQUEST).map(drop)
}
