// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests of multicast groups: one datagram reaches all members.
use super::limits::run;
use super::unreliable::{datagram_end, GRH, QKEY};
use crate::ffi::qp::{op, Ah, SendWr, UdDestination};
use crate::ffi::sys::Errno;
use crate::ffi::{AhAttr, GlobalRoute};
use crate::outcome::ErrorContext as _;
use crate::rig::*;
use crate::{pattern, Fail, GuestTest, TestResult};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub static TESTS: &[GuestTest] = &[
    GuestTest::new("ops/multicast-reaches-all-members", all_members),
    GuestTest::new("ops/multicast-drops-affect-one-member", drops),
    GuestTest::new("ops/multicast-by-two-lids", two_lids),
];

const LEN: usize = 500;

/// Returns a multicast group of this test, 239.1.2.n.
pub fn group(n: u8) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, n]
}

/// Returns the destination of a group.
pub fn to_group(rig: &Rig, group: [u8; 16]) -> Result<UdDestination, Fail> {
    let attr = attrs(rig.gid, 0, &Conn::default()).ah_attr;
    let attr = AhAttr {
        grh: GlobalRoute {
            dgid: crate::ffi::Gid { raw: group }.into(),
            ..attr.grh
        },
        ..attr
    };
    Ok(UdDestination {
        ah: Arc::new(Ah::new(&rig.pd, &attr).at("the address of a group")?),
        qpn: 0xff_ffff,
        qkey: QKEY,
    })
}

/// Sends from the first end until the given members have received the same datagram, each in its
/// receive `wr_id`.
fn expect_all_receive(
    ends: &[QpEndpoint],
    to: &UdDestination,
    seed: u64,
    wr_id: u64,
    members: &[usize],
) -> TestResult {
    let data = pattern::bytes(seed, LEN);
    let sender = &ends[0];
    sender.mr.buf.write(0, &data);
    let first = &ends[members[0]];
    let got = 'sent: loop {
        let wr = SendWr::new(op::SEND, 9, &[sender.mr.sge(0, LEN)]).to(to);
        sender.qp.post_send(&[wr]).at("a datagram")?;
        expect_success(&wait_one(&sender.scq, "a datagram")?, 9, wc::SEND)?;
        let until = Instant::now() + Duration::from_millis(if is_lossy() { 100 } else { 5000 });
        while Instant::now() < until {
            if let Some(one) = first.rcq.poll(1)?.first() {
                break 'sent *one;
            }
            std::thread::yield_now();
        }
        ensure!(is_lossy(), "member {} receives nothing", members[0]);
    };
    for &m in members {
        let end = &ends[m];
        let got = match m == members[0] {
            true => got,
            false => wait_one(&end.rcq, &format!("member {m}"))?,
        };
        expect_success(&got, wr_id, wc::RECV).at(&format!("member {m}"))?;
        ensure_eq!(got.byte_len as usize, LEN + GRH, "length at member {m}");
        ensure_eq!(got.qp_num, end.qp.qpn(), "QPN of member {m}");
        ensure_eq!(got.src_qp, sender.qp.qpn(), "QPN of the sender");
        ensure!(got.wc_flags & 1 != 0, "no GRH at member {m}");
        let at = place(wr_id);
        pattern::compare("received", &end.mr.buf.read(at + GRH, LEN), &data)?;
        // The IPv4 header of RoCE v2 is at the end of the GRH.
        let header = end.mr.buf.read(at + 20, 20);
        ensure_eq!(header[0], 0x45, "version and length of the IPv4 header");
        ensure_eq!(header[16..18], [239, 1], "the group's address");
    }
    for (m, end) in ends.iter().enumerate() {
        expect_quiet(&end.rcq, QUIET / 3, &format!("end {m}, after the datagram"))?;
    }
    Ok(())
}

/// Returns the offset of a receive in the buffer.
fn place(wr_id: u64) -> usize {
    1000 * wr_id as usize
}

fn receive(end: &QpEndpoint, wr_id: u64) -> TestResult {
    end.recv(wr_id, place(wr_id), LEN + GRH)
}

fn three(rig: &Rig) -> Result<[QpEndpoint; 3], Fail> {
    Ok([datagram_end(rig)?, datagram_end(rig)?, datagram_end(rig)?])
}

/// Each member receives a datagram once, however often it is attached, including the sender if it
/// is a member. A detached QP receives none.
fn all_members(rig: &Rig) -> TestResult {
    let (ends, group) = (three(rig)?, group(3));
    let to = to_group(rig, group)?;
    for end in &ends {
        for wr_id in 1..5 {
            receive(end, wr_id)?;
        }
        end.qp.attach_mcast(group).at("attaching")?;
    }
    expect_all_receive(&ends, &to, 1, 1, &[0, 1, 2])?;
    ends[2].qp.attach_mcast(group).at("attaching again")?;
    expect_all_receive(&ends, &to, 2, 2, &[0, 1, 2])?;
    ends[1].qp.detach_mcast(group).at("detaching")?;
    expect_all_receive(&ends, &to, 3, 3, &[0, 2])?;
    let again = ends[1].qp.detach_mcast(group);
    ensure_eq!(
        again,
        Err(Errno::EINVAL),
        "detaching a QP that is no member"
    );
    // The sender is not a member any more either.
    ends[0].qp.detach_mcast(group).at("detaching the sender")?;
    expect_all_receive(&ends, &to, 4, 4, &[2])?;
    ends[2].qp.detach_mcast(group).at("detaching the last")?;
    rig.expect_no_event(QUIET)
}

/// A QP is a member until its last attachment is removed; the core counts each attachment.
fn two_lids(rig: &Rig) -> TestResult {
    let (ends, group) = (three(rig)?, group(5));
    let to = to_group(rig, group)?;
    let member = &ends[1];
    for wr_id in 1..3 {
        receive(member, wr_id)?;
    }
    for wr_id in 1..3 {
        for lid in [1, 2] {
            member.qp.attach_mcast_by(group, lid).at("attaching")?;
        }
        member.qp.detach_mcast_by(group, 1).at("detaching")?;
        expect_all_receive(&ends, &to, wr_id, wr_id, &[1])?;
        member.qp.detach_mcast_by(group, 2).at("the last")?;
    }
    let again = member.qp.detach_mcast_by(group, 2);
    ensure_eq!(
        again,
        Err(Errno::EINVAL),
        "detaching a QP that is no member"
    );
    let log = run("dmesg", &[])?;
    ensure!(
        !log.contains("refused to detach a queue pair from a multicast group"),
        "the driver has logged an error of the device"
    );
    Ok(())
}

/// A member without a receive misses the datagram; the others receive it.
fn drops(rig: &Rig) -> TestResult {
    let (ends, group) = (three(rig)?, group(4));
    let to = to_group(rig, group)?;
    for end in &ends {
        end.qp.attach_mcast(group).at("attaching")?;
    }
    receive(&ends[0], 1)?;
    receive(&ends[2], 1)?;
    expect_all_receive(&ends, &to, 5, 1, &[0, 2])?;
    // That member receives the next datagram.
    for end in &ends {
        receive(end, 2)?;
    }
    expect_all_receive(&ends, &to, 6, 2, &[0, 1, 2])?;
    // The core does not destroy a QP that is a member.
    for end in &ends {
        end.qp.detach_mcast(group).at("detaching")?;
    }
    rig.expect_no_event(QUIET)
}
