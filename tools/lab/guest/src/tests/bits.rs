// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests of each single bit of a Q_Key, of access rights and of send flags. Another bit must not
//! have the same effect.
use super::unreliable::{ends, GRH, QKEY, UD};
use crate::ffi::cq::Cq;
use crate::ffi::mr::{access, Mr};
use crate::ffi::qp::{flag, mask, op, state, SendWr, UdDestination};
use crate::ffi::QpAttr;
use crate::outcome::ErrorContext as _;
use crate::rig::*;
use crate::{GuestTest, TestResult};

pub static TESTS: &[GuestTest] = &[
    GuestTest::new("3/each-bit-of-a-qkey", qkey),
    GuestTest::new("6/query-returns-each-bit-of-a-qkey", qkey_query),
    GuestTest::new("7/each-right-of-a-region-alone", region_rights),
    GuestTest::new("6/each-right-of-a-queue-pair-alone", pair_rights),
    GuestTest::new("1/each-send-flag-alone", send_flags),
];

/// A request whose Q_Key has this bit is sent with the Q_Key of its own QP.
const CONTROLLED: u32 = 1 << 31;

fn set_qkey(end: &QpEndpoint, qkey: u32) -> TestResult {
    let attr = QpAttr {
        qp_state: state::RTS,
        qkey,
        ..QpAttr::default()
    };
    end.qp
        .modify(&attr, mask::STATE | mask::QKEY)
        .at(&format!("Q_Key {qkey:#x}"))
}

/// A datagram whose Q_Key differs in one bit must not arrive; the next datagram, with the right
/// Q_Key, must arrive.
fn qkey(rig: &Rig) -> TestResult {
    let (p, to) = ends(rig, UD)?;
    let to = to.ok_or("a destination")?;
    let send = |wr_id: u64, qkey: u32| -> TestResult {
        let to = UdDestination { qkey, ..to.clone() };
        let wr = SendWr::new(op::SEND, wr_id, &[p.a.mr.sge(0, 8)]).to(&to);
        p.a.qp.post_send(&[wr]).at("a datagram")?;
        expect_success(&wait_one(&p.a.scq, "a datagram")?, wr_id, wc::SEND)
    };
    for bit in 0..32u32 {
        // A's own Q_Key, used for requests with the controlled bit, is not the one that B expects.
        set_qkey(&p.a, !QKEY)?;
        // B has another Q_Key for each bit, without the controlled bit, so that the last bit can
        // differ, too.
        let expected = QKEY.rotate_left(bit) & !CONTROLLED;
        set_qkey(&p.b, expected)?;
        p.b.recv(u64::from(bit), 0, 8 + GRH)?;
        p.a.mr.buf.write(0, &[0xbb; 8]);
        send(1, expected ^ 1 << bit)?;
        p.a.mr.buf.write(0, &u64::from(bit).to_le_bytes());
        let right = if bit % 2 == 0 {
            expected
        } else {
            set_qkey(&p.a, expected)?;
            CONTROLLED
        };
        send(2, right)?;
        let mut got = Vec::new();
        wait_for(&format!("bit {bit}: the right Q_Key"), || {
            got = p.b.rcq.poll(1)?;
            if got.is_empty() && is_lossy() {
                // The datagram may be lost. If both copies arrive, there is no receive for the
                // second.
                send(2, right)?;
            }
            Ok(!got.is_empty())
        })?;
        expect_success(&got[0], bit.into(), wc::RECV)?;
        let bytes = p.b.mr.buf.read(GRH, 8);
        ensure_eq!(bytes, u64::from(bit).to_le_bytes(), "bit {bit}: data");
    }
    expect_quiet(&p.b.rcq, QUIET, "another receive")
}

fn qkey_query(rig: &Rig) -> TestResult {
    let (p, _) = ends(rig, UD)?;
    for bit in 0..32 {
        set_qkey(&p.a, 1 << bit)?;
        ensure_eq!(p.a.qp.query()?.0.qkey, 1 << bit, "Q_Key of bit {bit}");
    }
    Ok(())
}

/// Operations that need a right at the peer, and that right.
const REMOTE: [(u32, u32); 3] = [
    (op::WRITE, access::REMOTE_WRITE),
    (op::READ, access::REMOTE_READ),
    (op::FETCH_ADD, access::REMOTE_ATOMIC),
];
/// Regions with remote writes require the local right, which grants nothing to the peer.
const RIGHTS: [u32; 5] = [
    access::LOCAL_WRITE,
    access::LOCAL_WRITE | access::REMOTE_WRITE,
    access::LOCAL_WRITE | access::REMOTE_READ,
    access::LOCAL_WRITE | access::REMOTE_ATOMIC,
    access::LOCAL_WRITE | access::MW_BIND,
];

fn post_and_wait(p: &QpPair, opcode: u32, to: &Mr) -> Result<u32, crate::Fail> {
    let wr = SendWr::new(opcode, 1, &[p.a.mr.sge(0, 8)]).remote(to.buf.addr(), to.rkey());
    p.a.qp.post_send(&[wr]).at("a request")?;
    Ok(wait_one(&p.a.scq, "a request")?.status)
}

fn check_status(what: &str, got: u32, granted: bool, refusal: u32) -> TestResult {
    let want = if granted { status::SUCCESS } else { refusal };
    let hidden = !granted && is_lossy() && got == status::RETRY_EXC_ERR;
    ensure!(
        got == want || hidden,
        "{what}: {}, not {}",
        status::name(got),
        status::name(want)
    );
    Ok(())
}

fn region_rights(rig: &Rig) -> TestResult {
    let everything = access::ALL | access::REMOTE_ATOMIC;
    for rights in RIGHTS {
        for (opcode, needed) in REMOTE {
            let p = rig.pair(&PairOpts::default().conn(|c| c.access = everything))?;
            let mr = Mr::new(&rig.pd, 4096, rights).at(&format!("rights {rights:#x}"))?;
            let what = format!("opcode {opcode} with rights {rights:#x} of the region");
            let got = post_and_wait(&p, opcode, &mr)?;
            check_status(&what, got, rights & needed != 0, status::REM_ACCESS_ERR)?;
        }
    }
    Ok(())
}

fn pair_rights(rig: &Rig) -> TestResult {
    let everything = access::ALL | access::REMOTE_ATOMIC;
    for rights in RIGHTS {
        for (opcode, needed) in REMOTE {
            // Local write, MW_BIND and the rights of A must have no effect.
            let remote = rights & !access::LOCAL_WRITE & !access::MW_BIND;
            let opts = PairOpts::default().with(|o| {
                o.conn_a.access = everything;
                o.conn_b.access = remote;
            });
            let p = rig.pair(&opts)?;
            let mr = Mr::new(&rig.pd, 4096, everything)?;
            let what = format!("opcode {opcode} with rights {remote:#x} of the queue pair");
            let got = post_and_wait(&p, opcode, &mr)?;
            check_status(&what, got, remote & needed != 0, status::REM_INV_REQ_ERR)?;
            ensure_eq!(
                p.b.qp.query()?.0.qp_access_flags,
                remote,
                "rights that the query returns"
            );
        }
    }
    Ok(())
}

/// Each flag must have its own effect and not that of another flag.
fn send_flags(rig: &Rig) -> TestResult {
    let (rcq, channel) = rig.cq_with_events(64)?;
    for sig_all in [false, true] {
        let opts = PairOpts::default().with(|o| {
            o.sig_all = sig_all;
            o.cap.max_inline_data = 64;
        });
        let a = rig.end(&opts)?;
        let b = rig.end_on(&opts, Cq::new(&rig.ctx, 64)?, rcq.clone())?;
        connect(&a.qp, rig.gid, b.qp.qpn(), &opts.conn_a)?;
        connect(&b.qp, rig.gid, a.qp.qpn(), &opts.conn_b)?;
        let flags = [
            0,
            flag::FENCE,
            flag::SIGNALED,
            flag::SOLICITED,
            flag::INLINE,
        ];
        for (wr_id, flags) in (1..).zip(flags) {
            let at = format!("flags {flags:#x}, sq_sig_all {sig_all}");
            b.recv(wr_id, 0, 8)?;
            rcq.arm(true)?;
            a.mr.buf.write(0, &wr_id.to_le_bytes());
            let mut wr = SendWr::new(op::SEND, wr_id, &[a.mr.sge(0, 8)]).flags(flags);
            if flags & flag::INLINE != 0 {
                // If the data is not sent inline, the device reads these other bytes.
                a.mr.buf.write(0, &[0; 8]);
                wr = wr.flags(0).inline(&[&wr_id.to_le_bytes()]);
            }
            a.qp.post_send(&[wr]).at(&at)?;
            expect_success(&wait_one(&rcq, "the receive").at(&at)?, wr_id, wc::RECV)?;
            ensure_eq!(b.mr.buf.read(0, 8), wr_id.to_le_bytes(), "{at}: data");
            // The completion of a signaled request after the first one shows that a completion of
            // the first would have arrived.
            let mark = SendWr::new(op::WRITE, 99, &[]).remote(b.mr.at(0), b.mr.rkey());
            a.qp.post_send(&[mark]).at(&at)?;
            let first = wait_one(&a.scq, "a completion").at(&at)?;
            let signaled = sig_all || flags == flag::SIGNALED;
            if signaled {
                expect_success(&first, wr_id, wc::SEND).at(&at)?;
                expect_success(&wait_one(&a.scq, "the mark").at(&at)?, 99, wc::RDMA_WRITE)?;
            } else {
                expect_success(&first, 99, wc::RDMA_WRITE).at(&at)?;
            }
            // The CQ is armed for solicited completions only.
            let solicited = flags == flag::SOLICITED;
            let ms = if solicited {
                event_timeout().as_millis()
            } else {
                50
            };
            let has_event = channel.event(ms as i32).is_some();
            ensure_eq!(has_event, solicited, "{at}: a completion event");
        }
        // The last arm is still pending because its round was not solicited; a solicited message
        // raises its event.
        b.recv(7, 0, 8)?;
        let last = SendWr::new(op::SEND, 7, &[]).flags(flag::SOLICITED | flag::SIGNALED);
        a.qp.post_send(&[last])?;
        expect_success(&wait_one(&a.scq, "the last")?, 7, wc::SEND)?;
        expect_success(&wait_one(&rcq, "the last")?, 7, wc::RECV)?;
        let ms = event_timeout().as_millis() as i32;
        ensure!(channel.event(ms).is_some(), "no event of the last message");
    }
    Ok(())
}
