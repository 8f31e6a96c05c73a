// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests of UC and UD: which packets arrive, which are dropped silently, and how the send queues
//! fail and recover.
use crate::ffi::qp::{mask, op, state, Ah, Qp, QpInit, RecvWr, SendWr, Srq, UdDestination};
use crate::ffi::sys::Errno;
use crate::ffi::{QpAttr, Wc};
use crate::outcome::ErrorContext as _;
use crate::rig::*;
use crate::{Fail, GuestTest, TestResult};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub static TESTS: &[GuestTest] = &[
    GuestTest::new("1.6/ud-header-address-and-immediate", ud_receive),
    GuestTest::new("3/ud-drops", ud_drops),
    GuestTest::new("3.1/ud-longer-than-the-mtu", ud_too_long),
    GuestTest::new("3.2/ud-has-no-write", |rig| op_err(rig, UD, op::WRITE)),
    GuestTest::new("3.2/uc-has-no-read", |rig| op_err(rig, UC, op::READ)),
    GuestTest::new("3.2/ud-address-handle-of-another-pd", foreign_ah),
    GuestTest::new("ops/uc", uc_operations),
    GuestTest::new("3/uc-drops", uc_drops),
    GuestTest::new("5/sqe-back-to-rts", sqe_recovery),
    GuestTest::new("3.16/uc-on-an-srq-abandoned-message", abandoned).limit(120),
    GuestTest::new("3/uc-receive-of-an-abandoned-message", used_again).limit(120),
    GuestTest::new("3/too-long-for-a-receive-of-an-srq", too_long_for_srq),
    GuestTest::new("6/illegal-transitions-from-sqe", illegal_from_sqe),
];

const UC: u32 = 3;
pub(super) const UD: u32 = 4;
pub(super) const QKEY: u32 = 0x1234_5678;
/// Bytes before the data of a received datagram.
pub(super) const GRH: usize = 40;

fn to_state(qp: &Qp, qp_type: u32, to: u32, gid: crate::ffi::Gid, dest: u32) -> TestResult {
    let attr = QpAttr {
        qp_state: to,
        qkey: QKEY,
        ..attrs(gid, dest, &Conn::default())
    };
    let wanted = match (qp_type, to) {
        (UD, state::INIT) => mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::QKEY,
        (UD, state::RTR) => mask::STATE,
        (UD, state::RTS) => mask::STATE | mask::SQ_PSN,
        (_, state::RTR) => mask_to(to) & !(mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER),
        (_, state::RTS) => mask::STATE | mask::SQ_PSN,
        _ => mask_to(to),
    };
    qp.modify(&attr, wanted).at(state::NAMES[to as usize])
}

/// Creates a UD end in RTS.
pub(super) fn datagram_end(rig: &Rig) -> Result<QpEndpoint, Fail> {
    let end = unreliable_end(rig, UD, &PairOpts::default(), None)?;
    for to in [state::INIT, state::RTR, state::RTS] {
        to_state(&end.qp, UD, to, rig.gid, 0)?;
    }
    Ok(end)
}

fn unreliable_end(
    rig: &Rig,
    qp_type: u32,
    opts: &PairOpts,
    srq: Option<Arc<Srq>>,
) -> Result<QpEndpoint, Fail> {
    let end = rig.end(opts)?;
    let init = QpInit {
        qp_type,
        srq,
        ..end.qp.init.clone()
    };
    let qp = Qp::new(&rig.pd, &init).at("a queue pair")?;
    Ok(QpEndpoint { qp, ..end })
}

/// Creates two ends of a transport in RTS, and for UD the destination of the second end.
pub(super) fn ends(rig: &Rig, qp_type: u32) -> Result<(QpPair, Option<UdDestination>), Fail> {
    ends_of(rig, qp_type, &PairOpts::default(), None)
}

/// Creates two ends like [`ends`]; the second end may take its receives from an SRQ.
fn ends_of(
    rig: &Rig,
    qp_type: u32,
    opts: &PairOpts,
    srq: Option<Arc<Srq>>,
) -> Result<(QpPair, Option<UdDestination>), Fail> {
    let a = unreliable_end(rig, qp_type, opts, None)?;
    let b = unreliable_end(rig, qp_type, opts, srq)?;
    for (own, peer) in [(&a, &b), (&b, &a)] {
        for to in [state::INIT, state::RTR, state::RTS] {
            to_state(&own.qp, qp_type, to, rig.gid, peer.qp.qpn())?;
        }
    }
    let to = match qp_type {
        UD => Some(UdDestination {
            ah: Arc::new(Ah::new(
                &rig.pd,
                &attrs(rig.gid, 0, &Conn::default()).ah_attr,
            )?),
            qpn: b.qp.qpn(),
            qkey: QKEY,
        }),
        _ => None,
    };
    Ok((QpPair { a, b }, to))
}

fn post(p: &QpPair, to: &Option<UdDestination>, wr: SendWr) -> TestResult {
    let wr = match to {
        Some(to) => wr.to(to),
        None => wr,
    };
    p.a.qp.post_send(&[wr]).at("a post")
}

/// Sends until the peer has received a message, because packets may be lost. Each send must
/// complete with success.
fn expect_arrival(p: &QpPair, to: &Option<UdDestination>, wr: &SendWr) -> Result<Wc, Fail> {
    for _ in 0..100 {
        post(p, to, wr.clone())?;
        let sent = wait_one(&p.a.scq, "a send")?;
        ensure_eq!(sent.status, status::SUCCESS, "status of a send");
        let until = Instant::now() + Duration::from_millis(if is_lossy() { 100 } else { 5000 });
        while Instant::now() < until {
            if let Some(one) = p.b.rcq.poll(1)?.first() {
                return Ok(*one);
            }
            std::thread::yield_now();
        }
    }
    Err("no message arrives".into())
}

/// Sends a few messages that succeed and do not arrive, and checks that the peer's receive does not
/// complete.
fn expect_dropped(p: &QpPair, to: &Option<UdDestination>, wr: &SendWr, what: &str) -> TestResult {
    for _ in 0..3 {
        post(p, to, wr.clone())?;
        let sent = wait_one(&p.a.scq, what)?;
        ensure_eq!(sent.status, status::SUCCESS, "{what}: status of the send");
    }
    expect_quiet(&p.b.rcq, QUIET, what)?;
    ensure_eq!(p.b.qp.state()?, state::RTS, "{what}: state of the peer");
    Ok(())
}

fn send(p: &QpPair, wr_id: u64, len: usize) -> SendWr {
    SendWr::new(op::SEND, wr_id, &[p.a.mr.sge(0, len)])
}

fn ud_receive(rig: &Rig) -> TestResult {
    let (p, to) = ends(rig, UD)?;
    let bytes: Vec<u8> = (0..700).map(|i| (i * 11 + 3) as u8).collect();
    p.a.mr.buf.write(0, &bytes);
    p.b.recv(5, 1000, 1024)?;
    let wr = SendWr {
        opcode: op::SEND_IMM,
        ..send(&p, 9, 700).imm(0x0102_0304)
    };
    let got = expect_arrival(&p, &to, &wr)?;
    expect_success(&got, 5, wc::RECV)?;
    ensure_eq!(got.byte_len as usize, 700 + GRH, "length");
    ensure_eq!(got.src_qp, p.a.qp.qpn(), "QPN of the sender");
    ensure_eq!(got.qp_num, p.b.qp.qpn(), "QPN");
    ensure_eq!(got.imm_data, 0x0102_0304, "immediate data");
    const WITH_GRH: u32 = 1;
    ensure!(
        got.wc_flags & WITH_GRH != 0,
        "no GRH: flags {}",
        got.wc_flags
    );
    ensure!(
        got.wc_flags & wc::WITH_IMM != 0,
        "no immediate: flags {}",
        got.wc_flags
    );
    ensure!(p.b.mr.buf.read(1000 + GRH, 700) == bytes, "the bytes");
    // The IPv4 header of RoCE v2 is at the end of the GRH.
    let header = p.b.mr.buf.read(1000 + 20, 20);
    ensure_eq!(header[0], 0x45, "version and length of the IPv4 header");
    let own = &rig.gid.raw[12..];
    ensure_eq!(
        (&header[12..16], &header[16..20]),
        (own, own),
        "its addresses"
    );
    Ok(())
}

fn ud_drops(rig: &Rig) -> TestResult {
    let (p, to) = ends(rig, UD)?;
    let good = to.clone().ok_or("a destination")?;
    expect_dropped(&p, &to, &send(&p, 1, 8), "no receive is posted")?;
    p.b.recv(5, 0, GRH + 100)?;
    let wrong = Some(UdDestination {
        qkey: QKEY + 1,
        ..good.clone()
    });
    expect_dropped(&p, &wrong, &send(&p, 2, 8), "another Q_Key")?;
    let nobody = Some(UdDestination {
        qpn: 0xff_fff0,
        ..good
    });
    expect_dropped(&p, &nobody, &send(&p, 3, 8), "no such queue pair")?;
    expect_dropped(&p, &to, &send(&p, 4, 101), "longer than the receive")?;
    // The next datagram that fits takes the receive.
    let got = expect_arrival(&p, &to, &send(&p, 5, 100))?;
    expect_success(&got, 5, wc::RECV)?;
    ensure_eq!(got.byte_len as usize, 100 + GRH, "length");
    rig.expect_no_event(QUIET)
}

/// Checks that nothing is sent and that there is no error (C10-93.1.1).
fn ud_too_long(rig: &Rig) -> TestResult {
    let (p, to) = ends(rig, UD)?;
    p.b.recv(5, 0, 20_000)?;
    expect_dropped(&p, &to, &send(&p, 1, 9_000), "longer than a packet")?;
    expect_success(&expect_arrival(&p, &to, &send(&p, 2, 1000))?, 5, wc::RECV)
}

/// Checks that the send completes in error, that the next send is flushed, and that the QP moves to
/// SQE without an event.
fn fails(rig: &Rig, p: &QpPair, to: &Option<UdDestination>, bad: SendWr) -> TestResult {
    let bad = SendWr { wr_id: 1, ..bad };
    p.a.qp.post_send(&[bad]).at("a post")?;
    // The send is flushed whether it is posted before or after the QP moves to SQE.
    post(p, to, send(p, 2, 8))?;
    let sends = wait(&p.a.scq, 2, "the error and the flush")?;
    expect_error(&sends[0], 1, status::LOC_QP_OP_ERR, &p.a.qp)?;
    expect_error(&sends[1], 2, status::WR_FLUSH_ERR, &p.a.qp)?;
    wait_state(&p.a.qp, state::SQE)?;
    rig.expect_no_event(QUIET)
}

fn op_err(rig: &Rig, qp_type: u32, opcode: u32) -> TestResult {
    let (p, to) = ends(rig, qp_type)?;
    // The request has address and key of the peer, in UD at the place of the address handle.
    let bad = SendWr::new(opcode, 1, &[p.a.mr.sge(0, 8)]).remote(p.b.mr.at(0), p.b.mr.rkey());
    fails(rig, &p, &to, bad)
}

fn foreign_ah(rig: &Rig) -> TestResult {
    let (p, to) = ends(rig, UD)?;
    let pd = rig.ctx.alloc_pd()?;
    let attr = attrs(rig.gid, 0, &Conn::default()).ah_attr;
    let foreign = UdDestination {
        ah: Arc::new(Ah::new(&pd, &attr)?),
        ..to.clone().ok_or("a destination")?
    };
    let bad = send(&p, 1, 8).to(&foreign);
    p.a.qp.post_send(&[bad]).at("a post")?;
    let one = wait_one(&p.a.scq, "the error")?;
    expect_error(&one, 1, status::LOC_QP_OP_ERR, &p.a.qp)?;
    wait_state(&p.a.qp, state::SQE)
}

fn uc_operations(rig: &Rig) -> TestResult {
    let (p, to) = ends(rig, UC)?;
    // The message has several packets.
    let bytes: Vec<u8> = (0..5000).map(|i| (i * 13 + 1) as u8).collect();
    p.a.mr.buf.write(0, &bytes);
    p.b.recv(5, 100, 6000)?;
    let got = expect_arrival(&p, &to, &send(&p, 1, 5000))?;
    expect_success(&got, 5, wc::RECV)?;
    ensure_eq!(got.byte_len, 5000, "length");
    ensure!(p.b.mr.buf.read(100, 5000) == bytes, "the bytes of a SEND");
    p.b.recv(6, 0, 0)?;
    let wr = SendWr::new(op::WRITE_IMM, 2, &[p.a.mr.sge(0, 5000)]).imm(7);
    let wr = wr.remote(p.b.mr.at(20_000), p.b.mr.rkey());
    let got = expect_arrival(&p, &to, &wr)?;
    expect_success(&got, 6, wc::RECV_RDMA_WITH_IMM)?;
    ensure_eq!(
        (got.byte_len, got.imm_data),
        (5000, 7),
        "length and immediate data"
    );
    ensure!(
        p.b.mr.buf.read(20_000, 5000) == bytes,
        "the bytes of a WRITE"
    );
    Ok(())
}

fn uc_drops(rig: &Rig) -> TestResult {
    let (p, to) = ends(rig, UC)?;
    expect_dropped(&p, &to, &send(&p, 1, 8), "no receive is posted")?;
    p.b.recv(5, 0, 3000)?;
    p.b.mr.buf.write(30_000, &[9; 8]);
    for (what, addr, rkey) in [
        ("another key", p.b.mr.at(30_000), p.b.mr.rkey() ^ 0x55),
        ("out of its bounds", p.b.mr.at(64 * 1024 - 4), p.b.mr.rkey()),
    ] {
        let wr = SendWr::new(op::WRITE_IMM, 2, &[p.a.mr.sge(0, 8)]).imm(1);
        expect_dropped(&p, &to, &wr.remote(addr, rkey), what)?;
    }
    ensure_eq!(p.b.mr.buf.read(30_000, 8), [9; 8], "the unchanged memory");
    expect_dropped(&p, &to, &send(&p, 3, 3001), "longer than the receive")?;
    expect_success(&expect_arrival(&p, &to, &send(&p, 4, 3000))?, 5, wc::RECV)?;
    rig.expect_no_event(QUIET)
}

fn sqe_recovery(rig: &Rig) -> TestResult {
    for qp_type in [UD, UC] {
        let (p, to) = ends(rig, qp_type)?;
        let opcode = if qp_type == UD { op::WRITE } else { op::READ };
        for round in 0..3 {
            let bad = SendWr::new(opcode, 1, &[p.a.mr.sge(0, 8)]);
            let bad = match qp_type {
                UD => bad,
                _ => bad.remote(p.b.mr.at(0), p.b.mr.rkey()),
            };
            fails(rig, &p, &to, bad).at(&format!("type {qp_type}, round {round}"))?;
            let attr = QpAttr {
                qp_state: state::RTS,
                cur_qp_state: state::SQE,
                ..QpAttr::default()
            };
            p.a.qp
                .modify(&attr, mask::STATE | mask::CUR_STATE)
                .at("SQE to RTS")?;
            p.b.recv(50, 0, 2000)?;
            expect_success(&expect_arrival(&p, &to, &send(&p, 3, 500))?, 50, wc::RECV)?;
        }
    }
    Ok(())
}

/// The sender is reset in the middle of a message and begins another. The receive of the first
/// message must complete as aborted.
fn abandoned(rig: &Rig) -> TestResult {
    let srq = Srq::new(&rig.pd, 16, 1).at("an SRQ")?;
    let (p, _) = ends_of(rig, UC, &long_buffers(), Some(srq.clone()))?;
    for round in 0..ROUNDS {
        for wr_id in [1, 2] {
            // If enough receives are left from the previous round, the SRQ has no room for more.
            let _ = srq.post(&[RecvWr::new(wr_id, &[p.b.mr.sge(0, LONG)])]);
        }
        reset_while_sending(rig, &p, round)?;
        let small = expect_arrival(&p, &None, &send(&p, 9, 8))?;
        ensure_eq!(p.b.qp.state()?, state::RTS, "state of the receiver");
        if small.status == status::REM_ABORT_ERR {
            ensure!(small.vendor_err != 0, "no vendor_err");
            // If packets are lost, a lost packet of the long message may have aborted it, and the
            // small message may be lost, too.
            let next = match is_lossy() {
                true => expect_arrival(&p, &None, &send(&p, 9, 8))?,
                false => wait_one(&p.b.rcq, "the message after it")?,
            };
            ensure_eq!(
                (next.status, next.byte_len),
                (status::SUCCESS, 8),
                "the message after it"
            );
            return Ok(());
        }
        ensure_eq!(small.status, status::SUCCESS, "round {round}");
        // Further completions do not matter. The receives that are left serve the next round.
        while !p.b.rcq.poll(4)?.is_empty() {}
    }
    Err("in no round a message was in flight at the change".into())
}

const LONG: usize = 4 << 20;

/// Maximum number of attempts to abandon a message before it has arrived; on a busy machine most
/// messages arrive first.
const ROUNDS: u64 = 2000;

fn long_buffers() -> PairOpts {
    PairOpts {
        buf: 2 * LONG,
        ..PairOpts::default()
    }
}

/// Begins a long message at A and resets A after a delay that differs by round.
fn reset_while_sending(rig: &Rig, p: &QpPair, round: u64) -> TestResult {
    let long = SendWr::new(op::SEND, round, &[p.a.mr.sge(0, LONG)]);
    p.a.qp.post_send(&[long]).at("a long SEND")?;
    std::thread::sleep(Duration::from_micros(round % 20 * 50));
    set_state(&p.a.qp, state::RESET)?;
    for to in [state::INIT, state::RTR, state::RTS] {
        to_state(&p.a.qp, UC, to, rig.gid, p.b.qp.qpn())?;
    }
    Ok(())
}

/// Without an SRQ, the next message takes the receive of an abandoned message, from the beginning
/// of the buffer.
fn used_again(rig: &Rig) -> TestResult {
    let (p, _) = ends_of(rig, UC, &long_buffers(), None)?;
    // Offset in the buffer that the small message does not reach.
    const BEHIND: usize = 512;
    p.a.mr.buf.fill(0, 1024, 0x5a);
    for round in 0..ROUNDS {
        p.b.mr.buf.fill(0, 1024, 0);
        p.b.recv(1, 0, LONG)?;
        reset_while_sending(rig, &p, round)?;
        let first = match p.b.rcq.poll(1)?.first() {
            // The long message had arrived before the reset.
            Some(one) => *one,
            None => expect_arrival(&p, &None, &send(&p, 9, 8))?,
        };
        expect_success(&first, 1, wc::RECV).at(&format!("round {round}"))?;
        if first.byte_len == 8 && p.b.mr.buf.read(BEHIND, 1) == [0x5a] {
            ensure!(p.b.mr.buf.read(0, 8) == [0x5a; 8], "the small message");
            return Ok(());
        }
    }
    Err("in no round a message was in flight at the change".into())
}

/// A receive cannot return to its SRQ, so it completes in error; the QP stays in RTS.
fn too_long_for_srq(rig: &Rig) -> TestResult {
    for (qp_type, head) in [(UD, GRH), (UC, 0)] {
        let srq = Srq::new(&rig.pd, 16, 1).at("an SRQ")?;
        let (p, to) = ends_of(rig, qp_type, &PairOpts::default(), Some(srq.clone()))?;
        for wr_id in 5..15 {
            let room = p.b.mr.sge(0, head + 100);
            srq.post(&[RecvWr::new(wr_id, &[room])]).at("a receive")?;
        }
        let long = expect_arrival(&p, &to, &send(&p, 1, 101))?;
        expect_error(&long, 5, status::LOC_LEN_ERR, &p.b.qp)?;
        ensure_eq!(p.b.qp.state()?, state::RTS, "state of the receiver");
        let good = expect_arrival(&p, &to, &send(&p, 2, 100))?;
        expect_success(&good, 6, wc::RECV).at("the next")?;
        ensure_eq!(good.byte_len as usize, head + 100, "its length");
    }
    rig.expect_no_event(QUIET)
}

/// A QP in SQE can only move to RTS, ERR and RESET.
fn illegal_from_sqe(rig: &Rig) -> TestResult {
    let (p, to) = ends(rig, UC)?;
    let bad = SendWr::new(op::READ, 1, &[p.a.mr.sge(0, 8)]);
    fails(rig, &p, &to, bad.remote(p.b.mr.at(0), p.b.mr.rkey()))?;
    for to in [state::INIT, state::RTR, state::SQD, state::SQE, 7, 200] {
        let attr = QpAttr {
            qp_state: to,
            ..attrs(rig.gid, p.b.qp.qpn(), &Conn::default())
        };
        for wanted in [mask_to(to), mask::STATE] {
            let got = p.a.qp.modify(&attr, wanted);
            ensure_eq!(got, Err(Errno::EINVAL), "SQE to state {to}");
            ensure_eq!(p.a.qp.state()?, state::SQE, "state after it");
        }
    }
    for to in [state::ERR, state::RESET] {
        set_state(&p.a.qp, to).at(state::NAMES[to as usize])?;
    }
    Ok(())
}
