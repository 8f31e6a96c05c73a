// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests of the order in which the bytes of RDMA WRITEs become visible to a program that polls
//! one of the last 8 bytes.
//!
//! Lengths are uniform in the logarithm from 8 B to 64 KiB. A message is one WRITE, one WRITE from
//! two pieces of memory, or two consecutive WRITEs. In all three cases the program that polls a
//! byte at the end of the message relies on everything below that byte being new, which this test
//! checks. `1/last-bytes-come-last` has both ends in one process.
//! `verbena-guest-order COUNT PORT [PEER]` has one end in each of two guests, of which the one with
//! PEER is the sender, and ends with `N passed, N failed`.
use crate::ffi::mr::{access, Mr};
use crate::ffi::qp::{flag, op, Qp, SendWr};
use crate::ffi::sys::Buf;
use crate::many::OtherGuest;
use crate::outcome::ErrorContext as _;
use crate::pattern::PatternRng;
use crate::rig::{self, expect_success, wait_one, wc, Conn, PairOpts, QpEndpoint, Rig};
use crate::{ensure, ensure_eq, runner, Fail, GuestTest, TestResult};
use std::process::ExitCode;
use std::time::{Duration, Instant};

pub static TESTS: &[GuestTest] = &[
    GuestTest::new("1/last-bytes-come-last", |rig| in_one_guest(rig, 3000)),
    GuestTest::new("long/last-bytes-come-last", |rig| {
        in_one_guest(rig, 1_000_000)
    })
    .limit(3000)
    .long(),
];

/// Maximum length of a message in bytes.
const LONGEST: usize = 64 << 10;
/// Bytes of the buffer in which messages have random offsets.
const ROOM: usize = 2 * LONGEST;
/// Offset, after that room, of the word in which the poller writes the number of messages that it
/// is prepared for.
const READY: usize = ROOM;
const BUFFER: usize = ROOM + 4096;

/// Returns the parameters of an end.
fn options() -> PairOpts {
    PairOpts {
        buf: BUFFER,
        mr_access: access::ALL,
        ..PairOpts::default()
    }
}

/// A message, of which both ends draw the same parameters.
struct ProbeMessage {
    /// Offset in the target's buffer.
    at: usize,
    length: usize,
    /// Distance of the polled byte from the end of the message.
    polled: usize,
    /// Offset at which the message is divided, for messages of two parts.
    division: usize,
    value: u8,
}

impl ProbeMessage {
    fn draw(rng: &mut PatternRng, number: u64) -> Self {
        let octave = 8 << rng.below(13);
        let length = (octave + rng.below(octave)) as usize;
        Self {
            at: rng.below((ROOM - length) as u64) as usize,
            length,
            polled: 1 + rng.below(8) as usize,
            division: 1 + rng.below(length as u64 - 1) as usize,
            value: (number % 255) as u8 + 1,
        }
    }
}

/// Polls until a condition holds. Every 1024 rounds the thread yields the processor, which the
/// other end may need.
fn poll(what: &str, mut done: impl FnMut() -> bool) -> TestResult {
    let began = Instant::now();
    for round in 1u64.. {
        if done() {
            break;
        }
        if round % 1024 == 0 {
            ensure!(
                began.elapsed() < rig::event_timeout(),
                "timeout: waited for {what}"
            );
            std::thread::yield_now();
        }
    }
    Ok(())
}

/// The end that polls.
struct Poller<'a> {
    qp: &'a Qp,
    end: &'a QpEndpoint,
    mr: &'a Mr,
    /// Address and key of the sender's buffer.
    remote: (u64, u32),
}

impl Poller<'_> {
    /// Returns the number of messages that had stale bytes, and a description of one of them.
    fn run(&self, seed: u64, messages: u64) -> Result<(u64, String), Fail> {
        let (mut rng, mut bad, mut example) = (PatternRng::new(seed), 0, String::new());
        let buf: &Buf = &self.mr.buf;
        for number in 0..messages {
            let message = ProbeMessage::draw(&mut rng, number);
            let end = message.at + message.length;
            // The polled byte may have the new value already, from an earlier message.
            buf.fill(end - 8, 8, !message.value);
            buf.write(READY, &(number + 1).to_ne_bytes());
            let wr = SendWr::new(op::WRITE, number, &[self.mr.sge(READY, 8)])
                .remote(self.remote.0 + READY as u64, self.remote.1)
                .flags(flag::SIGNALED);
            self.qp.post_send(&[wr]).at("telling the sender")?;
            let polled = end - message.polled;
            poll("a message", || buf.load(polled) == message.value)
                .at(&format!("message {number}"))?;
            let stale = buf.count_others(message.at, polled - message.at, message.value);
            if stale > 0 {
                bad += 1;
                example = format!(
                    "{} bytes at {}, byte {} from the end was polled, {stale} were stale",
                    message.length, message.at, message.polled
                );
            }
            // The next message is requested only after this one has arrived completely.
            poll("its end", || buf.load(end - 1) == message.value)?;
            expect_success(
                &wait_one(&self.end.scq, "telling the sender")?,
                number,
                wc::RDMA_WRITE,
            )?;
        }
        Ok((bad, example))
    }
}

/// The end that writes.
fn send(end: &QpEndpoint, remote: (u64, u32), seed: u64, messages: u64) -> TestResult {
    let mut rng = PatternRng::new(seed);
    let buf = &end.mr.buf;
    for number in 0..messages {
        let message = ProbeMessage::draw(&mut rng, number);
        let ProbeMessage { at, length, .. } = message;
        buf.fill(0, length, message.value);
        // Other devices may write the word in several pieces: the loop waits for the exact number,
        // not for a smaller or greater one.
        poll("the poller", || {
            let word = buf.read(READY, 8);
            word == (number + 1).to_ne_bytes()
        })
        .at(&format!("message {number}"))?;
        let write = |from: usize, to: usize, sges: &[(usize, usize)]| {
            let sges: Vec<_> = sges.iter().map(|&(at, n)| end.mr.sge(at, n)).collect();
            let wr = SendWr::new(op::WRITE, number, &sges);
            let wr = wr.remote(remote.0 + (at + from) as u64, remote.1);
            wr.flags(if to == length { flag::SIGNALED } else { 0 })
        };
        let (first, rest) = (message.division, length - message.division);
        let wrs = match number % 3 {
            0 => vec![write(0, length, &[(0, length)])],
            1 => vec![write(0, length, &[(0, first), (first, rest)])],
            _ => vec![
                write(0, first, &[(0, first)]),
                write(first, length, &[(first, rest)]),
            ],
        };
        end.qp.post_send(&wrs).at("posting a message")?;
        expect_success(&wait_one(&end.scq, "a message")?, number, wc::RDMA_WRITE)?;
    }
    Ok(())
}

fn check_stale((bad, example): (u64, String), messages: u64) -> TestResult {
    println!("{messages} messages, {bad} of them with stale bytes");
    ensure!(
        bad == 0,
        "{bad} of {messages} messages had stale bytes; one of them: {example}"
    );
    Ok(())
}

fn in_one_guest(rig: &Rig, messages: u64) -> TestResult {
    let pair = rig.pair(&options())?;
    let (a, b) = (&pair.a, &pair.b);
    let seed = 1;
    let outcome = std::thread::scope(|scope| {
        let sender = scope.spawn(|| send(a, (b.mr.at(0), b.mr.rkey()), seed, messages));
        let remote = (a.mr.at(0), a.mr.rkey());
        let (qp, mr) = (&b.qp, &*b.mr);
        let polled = Poller {
            qp,
            end: b,
            mr,
            remote,
        }
        .run(seed, messages);
        let sent = sender.join().map_err(|_| Fail::from("a thread panicked"))?;
        sent.and(polled)
    })?;
    check_stale(outcome, messages)
}

/// Runs the program `verbena-guest-order`.
pub fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| args.get(at).and_then(|text| text.parse::<u64>().ok());
    let (Some(messages), Some(port)) = (number(0), number(1)) else {
        eprintln!("usage: verbena-guest-order COUNT PORT [PEER]");
        return ExitCode::from(2);
    };
    let gid = std::env::var("GID").ok().and_then(|text| text.parse().ok());
    if let Err(why) = runner::set_env(std::env::var("DEVICE").ok(), gid) {
        eprintln!("{why}");
        return ExitCode::FAILURE;
    }
    let result = between_guests(messages, port as u16, args.get(2).map(String::as_str));
    runner::report("order", result.map(|()| 1))
}

fn between_guests(messages: u64, port: u16, peer: Option<&str>) -> TestResult {
    let rig = Rig::new()?;
    let mut other = OtherGuest::new(port, peer)?;
    let end = rig.end(&options())?;
    let half = |at: usize| u64::from_be_bytes(std::array::from_fn(|i| rig.gid.raw[at + i]));
    let key = u64::from(end.mr.rkey());
    let received = other.exchange(&[half(0), half(8), end.qp.qpn().into(), end.mr.at(0), key])?;
    let [high, low, qpn, addr, key] = received[..] else {
        return Err("the other guest's message is too short".into());
    };
    let mut gid = rig.gid;
    gid.raw[..8].copy_from_slice(&high.to_be_bytes());
    gid.raw[8..].copy_from_slice(&low.to_be_bytes());
    rig::connect(&end.qp, gid, qpn as u32, &Conn::default())?;
    other.barrier(1)?;
    let (remote, seed, began) = ((addr, key as u32), 2, Instant::now());
    let result = if peer.is_some() {
        send(&end, remote, seed, messages)
    } else {
        let (qp, mr) = (&end.qp, &*end.mr);
        let poller = Poller {
            qp,
            end: &end,
            mr,
            remote,
        };
        poller
            .run(seed, messages)
            .and_then(|found| check_stale(found, messages))
    };
    let each: Duration = began.elapsed() / messages.max(1) as u32;
    println!("{} us for each message", each.as_micros());
    // An end that fails exits without waiting, and the other end sees that its connection is
    // closed.
    result?;
    other.barrier(2)?;
    ensure_eq!(
        end.qp.state()?,
        crate::ffi::qp::state::RTS,
        "state at the end"
    );
    Ok(())
}
