// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests of rule 1.7: an arm is never lost, and never has two events.
use crate::ffi::cq::{Channel, Cq};
use crate::ffi::qp::{flag, op, state, Qp, QpInit, RecvWr, SendWr};
use crate::ffi::QpCap;
use crate::outcome::ErrorContext as _;
use crate::rig::*;
use crate::{Fail, GuestTest, TestResult};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub static TESTS: &[GuestTest] = &[
    GuestTest::new("1.7/no-event-without-arm", no_arm),
    GuestTest::new("1.7/arm-then-completion", arm_first),
    GuestTest::new("1.7/completion-just-before-the-arm", slipped_in),
    GuestTest::new("1.7/no-second-event-for-the-same-cqe", no_second),
    GuestTest::new("1.7/one-event-per-arm", one_per_arm),
    GuestTest::new("1.7/armed-then-polled-completion", armed_then_polled),
    GuestTest::new("1.7/solicited-arm-waits-for-solicited", solicited),
    GuestTest::new("1.7/solicited-arm-does-not-weaken-full-arm", not_weakened),
    GuestTest::new("1.7/error-counts-as-solicited", error_solicited),
    GuestTest::new(
        "1.7/arm-poll-and-wait-loop-misses-no-completion",
        usual_loop,
    )
    .limit(120),
    GuestTest::new("1.7/completion-vectors", vectors).alone(),
    GuestTest::new("1.7/2000-armed-cqs-on-one-vector", crowd).limit(240),
];

/// Creates a pair whose end B receives into a CQ with events.
fn rig_up(rig: &Rig) -> Result<(QpPair, Arc<Cq>, Arc<Channel>), Fail> {
    let (cq, channel) = rig.cq_with_events(64)?;
    let opts = PairOpts::default();
    let a = rig.end(&opts)?;
    let scq = Cq::new(&rig.ctx, 64)?;
    let b = rig.end_on(&opts, scq, cq.clone())?;
    connect(&a.qp, rig.gid, b.qp.qpn(), &opts.conn_a)?;
    connect(&b.qp, rig.gid, a.qp.qpn(), &opts.conn_b)?;
    Ok((QpPair { a, b }, cq, channel))
}

/// Sends a message and waits until it is acknowledged; by then its receive has completed.
fn send(p: &QpPair, wr_id: u64, solicited: bool) -> TestResult {
    p.b.recv(wr_id, 0, 64)?;
    let f = flag::SIGNALED | if solicited { flag::SOLICITED } else { 0 };
    p.a.qp
        .post_send(&[SendWr::new(op::SEND, wr_id, &[p.a.mr.sge(0, 8)]).flags(f)])?;
    expect_success(&wait_one(&p.a.scq, "send")?, wr_id, wc::SEND)
}

fn expect_event(channel: &Channel, cq: &Cq, what: &str) -> TestResult {
    let ms = event_timeout().as_millis() as i32;
    let element = channel
        .event(ms)
        .ok_or_else(|| Fail::Failed(format!("no event: {what}")))?;
    ensure_eq!(element, cq.element(), "CQ of the event");
    Ok(())
}

fn expect_no_event(channel: &Channel, what: &str) -> TestResult {
    ensure!(
        channel.event(QUIET.as_millis() as i32).is_none(),
        "unexpected event: {what}"
    );
    Ok(())
}

fn no_arm(rig: &Rig) -> TestResult {
    let (p, cq, channel) = rig_up(rig)?;
    send(&p, 1, true)?;
    expect_no_event(&channel, "the CQ was never armed")?;
    expect_success(&wait_one(&cq, "receive")?, 1, wc::RECV)
}

fn arm_first(rig: &Rig) -> TestResult {
    let (p, cq, channel) = rig_up(rig)?;
    cq.arm(false)?;
    expect_no_event(&channel, "armed, but nothing completed yet")?;
    send(&p, 1, false)?;
    expect_event(&channel, &cq, "a completion after the arm")?;
    expect_success(&wait_one(&cq, "receive")?, 1, wc::RECV)
}

fn slipped_in(rig: &Rig) -> TestResult {
    let (p, cq, channel) = rig_up(rig)?;
    // The CQE exists when the program arms the CQ, and the program has not seen it.
    send(&p, 1, false)?;
    cq.arm(false)?;
    expect_event(&channel, &cq, "a completion that was there before the arm")?;
    expect_success(&wait_one(&cq, "receive")?, 1, wc::RECV)
}

fn no_second(rig: &Rig) -> TestResult {
    let (p, cq, channel) = rig_up(rig)?;
    cq.arm(false)?;
    for round in 0..20 {
        send(&p, round, false)?;
        expect_event(&channel, &cq, "a completion")?;
        // As in the usual loop, the program first arms again and then drains. At the arm the CQE is
        // not polled yet, but its event has been sent.
        cq.arm(false)?;
        expect_success(&wait_one(&cq, "receive")?, round, wc::RECV)?;
    }
    expect_no_event(&channel, "for a CQE that was notified already")?;
    send(&p, 99, false)?;
    expect_event(&channel, &cq, "the arm is still pending")
}

fn one_per_arm(rig: &Rig) -> TestResult {
    let (p, cq, channel) = rig_up(rig)?;
    cq.arm(false)?;
    for i in 0..5 {
        send(&p, i, false)?;
    }
    expect_event(&channel, &cq, "five completions after one arm")?;
    expect_no_event(&channel, "one arm gives one event")?;
    ensure_eq!(wait(&cq, 5, "receives")?.len(), 5, "completions");
    // The CQ is not armed any more.
    send(&p, 9, false)?;
    expect_no_event(&channel, "the arm was used up")
}

fn armed_then_polled(rig: &Rig) -> TestResult {
    let (p, cq, channel) = rig_up(rig)?;
    cq.arm(false)?;
    send(&p, 1, false)?;
    expect_success(
        &wait_one(&cq, "receive polled without waiting for its event")?,
        1,
        wc::RECV,
    )?;
    expect_event(&channel, &cq, "the CQE that was polled early")?;
    cq.arm(false)?;
    expect_no_event(&channel, "the CQ is empty and all was notified")?;
    send(&p, 2, false)?;
    expect_event(&channel, &cq, "the next completion")
}

fn solicited(rig: &Rig) -> TestResult {
    let (p, cq, channel) = rig_up(rig)?;
    cq.arm(true)?;
    send(&p, 1, false)?;
    expect_no_event(&channel, "an unsolicited message on a solicited arm")?;
    send(&p, 2, true)?;
    expect_event(&channel, &cq, "a solicited message")?;
    ensure_eq!(wait(&cq, 2, "receives")?.len(), 2, "completions");
    // A full arm needs no solicited completion.
    cq.arm(false)?;
    send(&p, 3, false)?;
    expect_event(&channel, &cq, "an unsolicited message on a full arm")
}

fn not_weakened(rig: &Rig) -> TestResult {
    let (p, cq, channel) = rig_up(rig)?;
    cq.arm(false)?;
    cq.arm(true)?;
    send(&p, 1, false)?;
    expect_event(&channel, &cq, "a full arm followed by a solicited one")
}

fn error_solicited(rig: &Rig) -> TestResult {
    let (p, cq, channel) = rig_up(rig)?;
    p.b.recv(1, 0, 64)?;
    cq.arm(true)?;
    set_state(&p.b.qp, state::ERR)?;
    expect_event(&channel, &cq, "a flushed receive on a solicited arm")?;
    expect_error(
        &wait_one(&cq, "flushed receive")?,
        1,
        status::WR_FLUSH_ERR,
        &p.b.qp,
    )?;
    Ok(())
}

fn usual_loop(rig: &Rig) -> TestResult {
    const TOTAL: u64 = 3000;
    let (p, cq, channel) = rig_up(rig)?;
    // The number of polled messages, so that the sender does not exceed the depth of the receive
    // queue.
    let polled = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    let receive = || -> TestResult {
        let mut next = 0;
        cq.arm(false)?;
        while next < TOTAL {
            let until = Instant::now() + event_timeout();
            while channel.event(100).is_none() {
                ensure!(!failed.load(Ordering::Relaxed), "the sender stopped");
                if Instant::now() > until {
                    let there = describe(&cq.poll(16).at("poll_cq")?);
                    return Err(format!(
                        "no event after {next} completions; in the CQ without an event: {there}"
                    )
                    .into());
                }
            }
            cq.arm(false)?;
            loop {
                let got = cq.poll(4).at("poll_cq")?;
                if got.is_empty() {
                    break;
                }
                for w in got {
                    expect_success(&w, next, wc::RECV)?;
                    next += 1;
                }
                polled.store(next, Ordering::Relaxed);
            }
        }
        Ok(())
    };
    let transmit = || -> TestResult {
        let mut rng = crate::pattern::PatternRng::new(11);
        for i in 0..TOTAL {
            wait_for("the receiver keeps up", || {
                let stop = failed.load(Ordering::Relaxed);
                Ok(stop || i - polled.load(Ordering::Relaxed) < 8)
            })?;
            if failed.load(Ordering::Relaxed) {
                return Ok(());
            }
            send(&p, i, false).at(&format!("message {i}"))?;
            if rng.below(8) == 0 {
                std::thread::sleep(Duration::from_micros(rng.below(800)));
            }
        }
        Ok(())
    };
    std::thread::scope(|s| {
        let sender = s.spawn(|| {
            let r = transmit();
            failed.fetch_or(r.is_err(), Ordering::Relaxed);
            r
        });
        let received = receive();
        failed.fetch_or(received.is_err(), Ordering::Relaxed);
        // The thread that failed first is the cause of the failure.
        sender.join().map_err(|_| "the sending thread panicked")??;
        received
    })
}

/// Returns the number of times that each interrupt of the device's PCI function was taken, by line
/// of /proc/interrupts.
fn interrupts(rig: &Rig) -> Result<BTreeMap<String, u64>, Fail> {
    let device = format!("/sys/class/infiniband/{}/device", rig.ctx.name);
    let device = std::fs::canonicalize(device)?;
    let address = device
        .file_name()
        .and_then(|n| n.to_str())
        .ok_or("no PCI address")?;
    let text = std::fs::read_to_string("/proc/interrupts")?;
    Ok(text
        .lines()
        .filter(|line| line.contains(address))
        .filter_map(|line| {
            let (number, rest) = line.split_once(':')?;
            // A line has a count for each CPU, then names.
            let counts = rest.split_whitespace().map_while(|w| w.parse::<u64>().ok());
            Some((number.trim().to_owned(), counts.sum()))
        })
        .collect())
}

fn vectors(rig: &Rig) -> TestResult {
    const ROUNDS: u64 = 5;
    const MOST_ROUNDS: u64 = 4 * ROUNDS;
    let n = rig.ctx.num_comp_vectors();
    ensure!(n >= 1, "num_comp_vectors is {n}");
    let mut used = Vec::new();
    for v in 0..n.min(8) {
        let channel = Channel::new(&rig.ctx)?;
        let cq = Cq::with_channel(&rig.ctx, 16, Some(&channel), v).at("creating on a vector")?;
        let p = rig.pair(&PairOpts {
            cq: Some(cq.clone()),
            ..PairOpts::default()
        })?;
        let before = interrupts(rig)?;
        let mut grown = Vec::new();
        // There is one event at a time and no other work of the device, so each event has an
        // interrupt of its own. But on a slow host the driver may handle an event before its
        // interrupt, which then coincides with the next.
        for round in 0..MOST_ROUNDS {
            cq.arm(false)?;
            let wr = SendWr::new(op::WRITE, round, &[p.a.mr.sge(0, 8)]);
            p.a.qp
                .post_send(&[wr.remote(p.b.mr.at(0), p.b.mr.rkey())])?;
            expect_event(&channel, &cq, &format!("on completion vector {v}"))?;
            expect_success(&wait_one(&cq, "write")?, round, wc::RDMA_WRITE)?;
            grown = interrupts(rig)?
                .into_iter()
                .filter(|(line, count)| count - before.get(line).unwrap_or(&0) >= ROUNDS)
                .map(|(line, _)| line)
                .collect();
            if !grown.is_empty() {
                break;
            }
        }
        ensure_eq!(
            grown.len(),
            1,
            "interrupts {grown:?} of completion vector {v}"
        );
        used.extend(grown);
    }
    let distinct: BTreeSet<&String> = used.iter().collect();
    ensure_eq!(
        distinct.len(),
        used.len(),
        "number of distinct interrupts in {used:?}"
    );
    Ok(())
}

/// Number of CQs that have an event at the same time, more than the device's event queues hold.
const CROWD: usize = 2000;

/// Many QPs that send to one CQ fail with it, and each flushes a receive into a CQ of its own,
/// which is armed.
fn crowd(rig: &Rig) -> TestResult {
    let channel = Channel::new(&rig.ctx)?;
    let dying = Cq::new(&rig.ctx, 8)?;
    let opts = PairOpts::default().with(|o| o.cap.max_send_wr = 256);
    let mut members = Vec::with_capacity(CROWD);
    for n in 0..CROWD {
        let cq = Cq::with_channel(&rig.ctx, 4, Some(&channel), 0).at("creating a CQ")?;
        let init = QpInit {
            send_cq: dying.clone(),
            recv_cq: cq.clone(),
            srq: None,
            cap: QpCap {
                max_send_wr: 1,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            sq_sig_all: false,
            qp_type: 2,
        };
        let qp = Qp::new(&rig.pd, &init).at("creating a QP")?;
        move_to(&qp, state::INIT, rig.gid, 0, &opts.conn_a).at("to INIT")?;
        qp.post_recv(&[RecvWr::new(n as u64, &[])])?;
        cq.arm(false)?;
        members.push((cq, qp));
    }
    let a = rig.end_on(&opts, dying.clone(), Cq::new(&rig.ctx, 64)?)?;
    let b = rig.end(&opts)?;
    connect(&a.qp, rig.gid, b.qp.qpn(), &opts.conn_a)?;
    connect(&b.qp, rig.gid, a.qp.qpn(), &opts.conn_b)?;
    let writes = dying.cqe() as u64 + 1;
    ensure!(writes <= 256, "8 entries were rounded up to {}", writes - 1);
    for i in 0..writes {
        let wr = SendWr::new(op::WRITE, i, &[a.mr.sge(0, 8)]);
        a.qp.post_send(&[wr.remote(b.mr.at(0), b.mr.rkey())])?;
    }
    let mut notified_cqs: HashMap<_, u32> = HashMap::new();
    let ms = event_timeout().as_millis() as i32;
    while notified_cqs.len() < CROWD {
        let Some(element) = channel.event(ms) else {
            return Err(format!("events of only {} of {CROWD} CQs", notified_cqs.len()).into());
        };
        *notified_cqs.entry(element).or_default() += 1;
    }
    expect_no_event(&channel, "each CQ was armed once")?;
    for (n, (cq, qp)) in members.iter().enumerate() {
        ensure_eq!(notified_cqs.get(&cq.element()), Some(&1), "events of a CQ");
        expect_error(&wait_one(cq, "flush")?, n as u64, status::WR_FLUSH_ERR, qp)?;
    }
    Ok(())
}
