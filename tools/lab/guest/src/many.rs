// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `verbena-guest-many COUNT PORT [PEER]`: COUNT reliable connections from guest to guest, all with
//! traffic at the same time.
//!
//! Without PEER the program waits for the other end at a TCP port. Over TCP both ends exchange the
//! numbers of their QPs and synchronize their steps. Then each end sends a message over all
//! connections before it polls for a completion, writes to the peer's memory over all connections,
//! and reads from that memory over all connections. Each connection has its own lengths and bytes,
//! and every byte is compared, including those after the message. The program prints the memory
//! that a connection takes in the guest, and ends with `N passed, N failed`.
use crate::ffi::cq::Cq;
use crate::ffi::mr::{access, Mr};
use crate::ffi::qp::{flag, op, Qp, QpInit, RecvWr, SendWr};
use crate::ffi::{Gid, QpCap};
use crate::outcome::ErrorContext as _;
use crate::rig::{self, status, Conn, Rig};
use crate::{ensure, ensure_eq, pattern, runner, Fail, TestResult};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of the buffer for each connection: two packets of the path MTU of an ordinary Ethernet,
/// and some bytes after them.
const ROOM: usize = 2304;
/// Maximum length of a message in bytes.
const LONGEST: u64 = 2048;
/// Value of the bytes to which nothing was sent.
const UNTOUCHED: u8 = 0xa5;
/// Limit for one message over each of the connections, and for the other end to arrive.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Maximum number of completions in one poll.
const BATCH: usize = 256;

/// Runs the program `verbena-guest-many`.
pub fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| args.get(at).and_then(|text| text.parse::<u32>().ok());
    let (Some(count), Some(port)) = (number(0), number(1)) else {
        eprintln!("usage: verbena-guest-many COUNT PORT [PEER]");
        return ExitCode::from(2);
    };
    let gid = std::env::var("GID").ok().and_then(|text| text.parse().ok());
    if let Err(why) = runner::set_env(std::env::var("DEVICE").ok(), gid) {
        eprintln!("{why}");
        return ExitCode::FAILURE;
    }
    let result = run(count, port as u16, args.get(2).map(String::as_str));
    runner::report(&format!("many/{count}"), result)
}

/// The connection to the process in the other guest.
pub(crate) struct OtherGuest {
    to: TcpStream,
    from: BufReader<TcpStream>,
}

impl OtherGuest {
    pub(crate) fn new(port: u16, peer: Option<&str>) -> Result<Self, Fail> {
        let to = match peer {
            None => TcpListener::bind(("0.0.0.0", port))?.accept()?.0,
            Some(peer) => {
                let deadline = Instant::now() + TIMEOUT;
                loop {
                    match TcpStream::connect((peer, port)) {
                        Ok(stream) => break stream,
                        Err(e) if Instant::now() > deadline => return Err(e.into()),
                        Err(_) => std::thread::sleep(Duration::from_millis(100)),
                    }
                }
            }
        };
        let from = BufReader::new(to.try_clone()?);
        Ok(Self { to, from })
    }

    /// Sends numbers and receives as many.
    pub(crate) fn exchange(&mut self, sent: &[u64]) -> Result<Vec<u64>, Fail> {
        let words: Vec<String> = sent.iter().map(u64::to_string).collect();
        writeln!(self.to, "{}", words.join(" "))?;
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        let received = crate::peer::parse_numbers(&line)?;
        ensure_eq!(received.len(), sent.len(), "numbers from the other guest");
        Ok(received)
    }

    /// Waits until the other end has reached this step as well.
    pub(crate) fn barrier(&mut self, step: u64) -> TestResult {
        ensure_eq!(self.exchange(&[step])?, [step], "step of the other guest");
        Ok(())
    }
}

/// All connections of this end.
struct Connections {
    qps: Vec<Qp>,
    sends: Arc<Cq>,
    receives: Arc<Cq>,
    /// Buffers from which messages are sent and into which they arrive, with a place for each
    /// connection in both.
    from: Mr,
    to: Mr,
    /// Address and key of the other end's send buffer and of its receive buffer.
    remote: [(u64, u32); 2],
    other: OtherGuest,
    /// Number of this end, 0 or 1.
    side: u64,
}

/// Returns the bytes of a value that a file in /proc shows in kilobytes.
fn memory(file: &str, name: &str) -> Result<u64, Fail> {
    let text = std::fs::read_to_string(file)?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let word = line.and_then(|rest| rest.split_whitespace().nth(1));
    let kilobytes: Option<u64> = word.and_then(|word| word.parse().ok());
    Ok(kilobytes.ok_or_else(|| format!("{file} has no number {name}"))? * 1024)
}

/// Returns the available memory of the guest and the resident memory of this process, in bytes.
fn memory_use() -> Result<[u64; 2], Fail> {
    let available = memory("/proc/meminfo", "MemAvailable")?;
    Ok([available, memory("/proc/self/status", "VmRSS")?])
}

/// Returns the length of a connection's message in a step, from 1 to [`LONGEST`].
fn length(step: u64, at: usize) -> usize {
    let mut rng = pattern::PatternRng::new(step << 32 | at as u64);
    (1 + rng.below(LONGEST)) as usize
}

fn seed(step: u64, side: u64, at: usize) -> u64 {
    (step << 1 | side) << 32 | at as u64
}

impl Connections {
    fn new(count: u32, rig: &Rig, mut other: OtherGuest, side: u64) -> Result<Self, Fail> {
        let room = count as usize * ROOM;
        let region = || Mr::new(&rig.pd, room, access::ALL).at("registering");
        let (from, to) = (region()?, region()?);
        let cq = || Cq::new(&rig.ctx, count as i32).at("creating a CQ");
        let (sends, receives) = (cq()?, cq()?);
        let init = QpInit {
            send_cq: sends.clone(),
            recv_cq: receives.clone(),
            srq: None,
            cap: QpCap {
                max_send_wr: 2,
                max_recv_wr: 2,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            sq_sig_all: true,
            qp_type: 2,
        };
        // The pinned memory of the regions is not part of the cost of the connections.
        let before = memory_use()?;
        let new = |_| Qp::new(&rig.pd, &init).at("creating a QP");
        let qps = (0..count).map(new).collect::<Result<Vec<_>, _>>()?;
        let mut sent = vec![u64::from(from.rkey()), from.at(0)];
        sent.extend([u64::from(to.rkey()), to.at(0)]);
        let raw = rig.gid.raw;
        let half = |at: usize| u64::from_be_bytes(std::array::from_fn(|i| raw[at + i]));
        sent.extend([half(0), half(8)]);
        sent.extend(qps.iter().map(|qp| u64::from(qp.qpn())));
        let received = other.exchange(&sent)?;
        let [from_key, from_at, to_key, to_at, high, low] = received[..6] else {
            return Err("the other guest's message is too short".into());
        };
        let mut gid = rig.gid;
        gid.raw[..8].copy_from_slice(&high.to_be_bytes());
        gid.raw[8..].copy_from_slice(&low.to_be_bytes());
        connect(&qps, gid, &received[6..])?;
        let after = memory_use()?;
        println!(
            "{count} connections: {} bytes of the guest for each, {} of them the process's own",
            before[0].saturating_sub(after[0]) / u64::from(count),
            after[1].saturating_sub(before[1]) / u64::from(count),
        );
        Ok(Self {
            qps,
            sends,
            receives,
            from,
            to,
            remote: [(from_at, from_key as u32), (to_at, to_key as u32)],
            other,
            side,
        })
    }

    /// Fills the send buffer with this end's messages and the receive buffer with [`UNTOUCHED`].
    fn fill(&self, step: u64) {
        self.to
            .buf
            .write(0, &vec![UNTOUCHED; self.qps.len() * ROOM]);
        for at in 0..self.qps.len() {
            let bytes = pattern::bytes(seed(step, self.side, at), length(step, at));
            self.from.buf.write(at * ROOM, &bytes);
        }
    }

    /// Checks that every received byte is the other end's, and that all other bytes are untouched.
    fn check(&self, step: u64) -> TestResult {
        for at in 0..self.qps.len() {
            let length = length(step, at);
            let mut wanted = pattern::bytes(seed(step, 1 - self.side, at), length);
            wanted.resize(ROOM, UNTOUCHED);
            let found = self.to.buf.read(at * ROOM, ROOM);
            pattern::compare(&format!("connection {at}, {length} bytes"), &found, &wanted)?;
        }
        Ok(())
    }

    fn receive(&self, step: u64) -> TestResult {
        for (at, qp) in self.qps.iter().enumerate() {
            let place = self.to.sge(at * ROOM, length(step, at));
            let posted = qp.post_recv(&[RecvWr::new(at as u64, &[place])]);
            posted.at("posting a receive")?;
        }
        Ok(())
    }

    fn post(&self, step: u64, opcode: u32) -> TestResult {
        for (at, qp) in self.qps.iter().enumerate() {
            let local = if opcode == op::READ {
                &self.to
            } else {
                &self.from
            };
            let (base, key) = self.remote[usize::from(opcode != op::READ)];
            let place = local.sge(at * ROOM, length(step, at));
            let wr = SendWr::new(opcode, at as u64, &[place]).flags(flag::SIGNALED);
            let wr = match opcode {
                op::SEND => wr,
                _ => wr.remote(base + (at * ROOM) as u64, key),
            };
            qp.post_send(&[wr]).at("posting a send")?;
        }
        Ok(())
    }

    /// Waits for one completion of each connection.
    fn wait(&self, cq: &Cq, what: &str) -> TestResult {
        let count = self.qps.len();
        let (mut seen, mut left) = (vec![false; count], count);
        let deadline = Instant::now() + TIMEOUT * rig::slowness() as u32;
        let mut spins = 0;
        while left > 0 {
            let got = cq.poll(BATCH).at("poll_cq")?;
            ensure!(
                Instant::now() < deadline,
                "{what}: {left} of {count} did not complete"
            );
            if got.is_empty() {
                rig::yield_cpu(&mut spins);
            }
            for wc in got {
                spins = 0;
                let name = status::name(wc.status);
                ensure_eq!(wc.status, status::SUCCESS, "{what} {}: {name}", wc.wr_id);
                let first = seen.get_mut(wc.wr_id as usize);
                let is_first = first.is_some_and(|seen| !std::mem::replace(seen, true));
                ensure!(is_first, "{what}: connection {} completes again", wc.wr_id);
                left -= 1;
            }
        }
        Ok(())
    }

    /// Transfers a message over each connection in both directions.
    fn turn(&mut self, step: u64, opcode: u32, name: &str) -> TestResult {
        let began = Instant::now();
        self.fill(step);
        if opcode == op::SEND {
            self.receive(step)?;
        }
        self.other.barrier(4 * step)?;
        self.post(step, opcode)?;
        self.wait(&self.sends, name)?;
        if opcode == op::SEND {
            self.wait(&self.receives, "receive")?;
        }
        // The other end's data has arrived when the other end has its completions.
        self.other.barrier(4 * step + 1)?;
        self.check(step)?;
        self.other.barrier(4 * step + 2)?;
        println!(
            "ok many/{}_{name} ({:.1} s)",
            self.qps.len(),
            began.elapsed().as_secs_f32()
        );
        Ok(())
    }
}

/// Connects each QP to the number at the same place in `remote`.
fn connect(qps: &[Qp], gid: Gid, remote: &[u64]) -> TestResult {
    let conn = Conn {
        // All retries together take eight seconds: the peer serves as many other connections, on a
        // machine that may be busy.
        timeout: 18,
        ..Conn::default()
    };
    for (qp, number) in qps.iter().zip(remote) {
        rig::connect(qp, gid, *number as u32, &conn)?;
    }
    Ok(())
}

fn run(count: u32, port: u16, peer: Option<&str>) -> Result<u64, Fail> {
    let rig = Rig::new()?;
    let other = OtherGuest::new(port, peer)?;
    let began = Instant::now();
    let mut many = Connections::new(count, &rig, other, u64::from(peer.is_some()))?;
    println!("connected in {:.1} s", began.elapsed().as_secs_f32());
    let turns = [
        (op::SEND, "send"),
        (op::WRITE, "write"),
        (op::READ, "read"),
        (op::SEND, "send_again"),
    ];
    for (step, (opcode, name)) in (1..).zip(turns) {
        many.turn(step, opcode, name).at(name)?;
    }
    Ok(turns.len() as u64)
}
