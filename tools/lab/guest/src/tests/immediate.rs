// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Section 2: the verb refuses a request that is invalid in itself, with `bad_wr`. Earlier requests
//! of the list are queued; that request and the later ones are not.
use crate::ffi::qp::{flag, op, state, PostError, RecvWr, SendWr, Srq};
use crate::ffi::sys::Errno;
use crate::ffi::Sge;
use crate::outcome::ErrorContext as _;
use crate::rig::*;
use crate::{Fail, GuestTest, TestResult};

pub static TESTS: &[GuestTest] = &[
    GuestTest::new("2/unknown-opcode", unknown_opcode),
    GuestTest::new("2/too-many-send-sges", too_many_send_sges),
    GuestTest::new("2/too-many-recv-sges", too_many_recv_sges),
    GuestTest::new("2/inline-too-long", inline_too_long),
    GuestTest::new("2/inline-read-is-refused", inline_read),
    GuestTest::new("2/send-queue-full", send_queue_full),
    GuestTest::new("2/recv-queue-full", recv_queue_full),
    GuestTest::new("2/post-send-before-rts", post_send_before_rts),
    GuestTest::new("2/post-recv-in-reset", post_recv_in_reset),
    GuestTest::new("2/post-recv-on-a-qp-with-srq", post_recv_with_srq),
    GuestTest::new("2/bad-wr-in-the-middle-of-a-send-list", bad_send_in_list),
    GuestTest::new("2/bad-wr-in-the-middle-of-a-recv-list", bad_recv_in_list),
    GuestTest::new("2/full-in-the-middle-of-a-list", full_in_list),
];

fn refused(what: &str, got: Result<(), PostError>, errno: Errno, bad_wr: usize) -> TestResult {
    ensure_eq!(
        got,
        Err(PostError {
            errno,
            bad_wr: Some(bad_wr)
        }),
        "{what}"
    );
    Ok(())
}

/// Checks that the QP works as if the refused request had not been posted, and that the request
/// does not complete.
fn still_works(p: &QpPair) -> TestResult {
    p.b.recv(901, 0, 64)?;
    p.a.qp
        .post_send(&[SendWr::new(op::SEND, 902, &[p.a.mr.sge(0, 8)])])
        .at("posting afterwards")?;
    expect_success(&wait_one(&p.a.scq, "send afterwards")?, 902, wc::SEND)?;
    expect_success(&wait_one(&p.b.rcq, "receive afterwards")?, 901, wc::RECV)?;
    expect_quiet(&p.a.scq, QUIET, "send CQ afterwards")?;
    expect_quiet(&p.b.rcq, QUIET, "receive CQ afterwards")
}

fn unknown_opcode(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts::default())?;
    for opcode in [12, 13, 63, 255, 0x8000_0000, u32::MAX] {
        let wr = SendWr::new(opcode, 1, &[p.a.mr.sge(0, 8)]);
        refused(
            &format!("opcode {opcode:#x}"),
            p.a.qp.post_send(&[wr]),
            Errno::EINVAL,
            0,
        )?;
    }
    still_works(&p)
}

fn too_many_send_sges(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts::default())?;
    let sges = vec![p.a.mr.sge(0, 8); p.a.qp.cap.max_send_sge as usize + 1];
    refused(
        "SGEs",
        p.a.qp.post_send(&[SendWr::new(op::SEND, 1, &sges)]),
        Errno::EINVAL,
        0,
    )?;
    still_works(&p)
}

fn too_many_recv_sges(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts::default())?;
    let sges = vec![p.b.mr.sge(0, 8); p.b.qp.cap.max_recv_sge as usize + 1];
    refused(
        "SGEs",
        p.b.qp.post_recv(&[RecvWr::new(1, &sges)]),
        Errno::EINVAL,
        0,
    )?;
    still_works(&p)
}

fn inline_too_long(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts::default().with(|o| o.cap.max_inline_data = 32))?;
    let max = p.a.qp.cap.max_inline_data as usize;
    ensure!(max >= 32, "asked for 32 bytes of inline data, got {max}");
    let long = vec![1u8; max + 1];
    let wr = SendWr::new(op::SEND, 1, &[]).inline(&[&long]);
    refused("one long piece", p.a.qp.post_send(&[wr]), Errno::EINVAL, 0)?;
    let wr = SendWr::new(op::SEND, 1, &[]).inline(&[&long[..max], &long[..1]]);
    refused(
        "two pieces that are too long together",
        p.a.qp.post_send(&[wr]),
        Errno::EINVAL,
        0,
    )?;
    still_works(&p)
}

fn inline_read(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts::default().with(|o| o.cap.max_inline_data = 32))?;
    let wr = SendWr::new(op::READ, 1, &[])
        .inline(&[&[0; 8]])
        .remote(p.b.mr.at(0), p.b.mr.rkey());
    refused("an inline READ", p.a.qp.post_send(&[wr]), Errno::EINVAL, 0)?;
    still_works(&p)
}

fn send_queue_full(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts {
        cqe: 1000,
        ..PairOpts::default()
    })?;
    let max = u64::from(p.a.qp.cap.max_send_wr);
    ensure!(max >= 16, "asked for 16 send WRs, got {max}");
    // The peer has no receive, so nothing completes and the queue stays full.
    for i in 0..max {
        let wr = SendWr::new(op::SEND, i, &[p.a.mr.sge(0, 8)]);
        p.a.qp
            .post_send(&[wr])
            .at(&format!("posting WR {i} of {max}"))?;
    }
    let wr = SendWr::new(op::SEND, 77, &[p.a.mr.sge(0, 8)]);
    refused(
        "one more",
        p.a.qp.post_send(std::slice::from_ref(&wr)),
        Errno::ENOMEM,
        0,
    )?;
    // Receives are posted one by one; each polled completion makes room for one more send.
    for i in 0..=max {
        p.b.recv(1000 + i, 0, 64)?;
        let want = if i == max { 77 } else { i };
        expect_success(
            &wait_one(&p.a.scq, "a send of the full queue")?,
            want,
            wc::SEND,
        )?;
        expect_success(&wait_one(&p.b.rcq, "its receive")?, 1000 + i, wc::RECV)?;
        if i == 0 {
            p.a.qp
                .post_send(std::slice::from_ref(&wr))
                .at("posting after one was polled")?;
        }
    }
    expect_quiet(&p.a.scq, QUIET, "after all")
}

fn recv_queue_full(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts {
        cqe: 1000,
        ..PairOpts::default()
    })?;
    let max = u64::from(p.b.qp.cap.max_recv_wr);
    ensure!(max >= 16, "asked for 16 receive WRs, got {max}");
    for i in 0..max {
        p.b.recv(i, 0, 8).at(&format!("receive {i} of {max}"))?;
    }
    let wr = RecvWr::new(77, &[p.b.mr.sge(0, 8)]);
    refused("one more", p.b.qp.post_recv(&[wr]), Errno::ENOMEM, 0)?;
    for i in 0..max {
        p.a.qp
            .post_send(&[SendWr::new(op::SEND, 500 + i, &[p.a.mr.sge(0, 8)])])?;
        expect_success(&wait_one(&p.a.scq, "send")?, 500 + i, wc::SEND)?;
        expect_success(&wait_one(&p.b.rcq, "receive")?, i, wc::RECV)?;
    }
    expect_quiet(&p.b.rcq, QUIET, "after all receives")
}

fn post_send_before_rts(rig: &Rig) -> TestResult {
    let opts = PairOpts::default();
    let (a, b) = (rig.end(&opts)?, rig.end(&opts)?);
    let wr = SendWr::new(op::SEND, 1, &[a.mr.sge(0, 8)]);
    refused(
        "in RESET",
        a.qp.post_send(std::slice::from_ref(&wr)),
        Errno::EINVAL,
        0,
    )?;
    for to in [state::INIT, state::RTR] {
        move_to(&a.qp, to, rig.gid, b.qp.qpn(), &opts.conn_a)?;
        let what = format!("in {}", state::NAMES[to as usize]);
        refused(
            &what,
            a.qp.post_send(std::slice::from_ref(&wr)),
            Errno::EINVAL,
            0,
        )?;
    }
    move_to(&a.qp, state::RTS, rig.gid, b.qp.qpn(), &opts.conn_a)?;
    connect(&b.qp, rig.gid, a.qp.qpn(), &opts.conn_b)?;
    still_works(&QpPair { a, b })
}

fn post_recv_in_reset(rig: &Rig) -> TestResult {
    let opts = PairOpts::default();
    let (a, b) = (rig.end(&opts)?, rig.end(&opts)?);
    let wr = RecvWr::new(1, &[b.mr.sge(0, 8)]);
    refused("in RESET", b.qp.post_recv(&[wr]), Errno::EINVAL, 0)?;
    // Posting a receive in INIT is allowed.
    move_to(&b.qp, state::INIT, rig.gid, a.qp.qpn(), &opts.conn_b)?;
    b.recv(5, 0, 64)?;
    move_to(&b.qp, state::RTR, rig.gid, a.qp.qpn(), &opts.conn_b)?;
    move_to(&b.qp, state::RTS, rig.gid, a.qp.qpn(), &opts.conn_b)?;
    connect(&a.qp, rig.gid, b.qp.qpn(), &opts.conn_a)?;
    a.qp.post_send(&[SendWr::new(op::SEND, 6, &[a.mr.sge(0, 8)])])?;
    expect_success(&wait_one(&b.rcq, "receive posted in INIT")?, 5, wc::RECV)
}

fn post_recv_with_srq(rig: &Rig) -> TestResult {
    let srq = match Srq::new(&rig.pd, 16, 1) {
        Err(Errno::EOPNOTSUPP) => return Err(Fail::Skipped("no SRQ".into())),
        other => other?,
    };
    // The receive capacity in the attributes is ignored (ibv_create_qp(3)).
    let mut opts = PairOpts {
        srq: Some(srq),
        ..PairOpts::default()
    };
    (opts.cap.max_recv_wr, opts.cap.max_recv_sge) = (u32::MAX, u32::MAX);
    let p = rig.pair(&opts)?;
    let wr = RecvWr::new(1, &[p.b.mr.sge(0, 8)]);
    refused(
        "on a QP with an SRQ",
        p.b.qp.post_recv(&[wr]),
        Errno::EINVAL,
        0,
    )
}

fn bad_send_in_list(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts::default())?;
    let good = |id| SendWr::new(op::SEND, id, &[p.a.mr.sge(0, 8)]);
    for i in 0..8 {
        p.b.recv(i, 0, 64)?;
    }
    let list = [
        good(1),
        good(2),
        SendWr::new(250, 3, &[p.a.mr.sge(0, 8)]),
        good(4),
    ];
    refused(
        "the third of four",
        p.a.qp.post_send(&list),
        Errno::EINVAL,
        2,
    )?;
    for (i, w) in wait(&p.a.scq, 2, "the requests before it")?
        .iter()
        .enumerate()
    {
        expect_success(w, 1 + i as u64, wc::SEND)?;
    }
    wait(&p.b.rcq, 2, "receives")?;
    expect_quiet(&p.a.scq, QUIET, "after the requests before the bad one")?;
    expect_quiet(&p.b.rcq, QUIET, "after the requests before the bad one")?;
    // The queue continues after the last valid request.
    p.a.qp.post_send(&[good(5).flags(flag::SIGNALED)])?;
    expect_success(&wait_one(&p.a.scq, "the next post")?, 5, wc::SEND)
}

fn bad_recv_in_list(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts::default())?;
    let sge = p.b.mr.sge(0, 64);
    let many: Vec<Sge> = vec![sge; p.b.qp.cap.max_recv_sge as usize + 1];
    let list = [
        RecvWr::new(1, &[sge]),
        RecvWr::new(2, &many),
        RecvWr::new(3, &[sge]),
    ];
    refused(
        "the second of three",
        p.b.qp.post_recv(&list),
        Errno::EINVAL,
        1,
    )?;
    p.b.recv(4, 0, 64)?;
    for id in [1, 4] {
        p.a.qp
            .post_send(&[SendWr::new(op::SEND, id, &[p.a.mr.sge(0, 8)])])?;
        expect_success(&wait_one(&p.b.rcq, "receive")?, id, wc::RECV)?;
    }
    expect_quiet(&p.b.rcq, QUIET, "after both")
}

fn full_in_list(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts {
        cqe: 2000,
        ..PairOpts::default()
    })?;
    let max = p.b.qp.cap.max_recv_wr as usize;
    let list: Vec<RecvWr> = (0..max + 3)
        .map(|i| RecvWr::new(i as u64, &[p.b.mr.sge(0, 8)]))
        .collect();
    refused(
        "more receives than the queue holds",
        p.b.qp.post_recv(&list),
        Errno::ENOMEM,
        max,
    )?;
    set_state(&p.b.qp, state::ERR)?;
    for (i, w) in wait(&p.b.rcq, max, "flushed receives")?.iter().enumerate() {
        expect_error(w, i as u64, status::WR_FLUSH_ERR, &p.b.qp)?;
    }
    expect_quiet(&p.b.rcq, QUIET, "after the flush")
}
