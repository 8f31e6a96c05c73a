// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Two or four queue pairs, connected in pairs, and arbitrary operations on them.
//!
//! The first bytes choose the setup. After that, each operation is a byte followed by its operands.
//! At the end all queue pairs go to ERR, and every posted work request must have completed once.
//! [`FuzzHost`](super::adapter::FuzzHost) asserts the other rules, and [`FuzzRun::settle`] that a queue
//! pair comes to rest and has no deadline in the past.
//!
//! | file | operations |
//! | --- | --- |
//! | `posts.rs` | work requests and receives are posted |
//! | `flight.rs` | packets are delivered, lost, doubled, changed |
//! | `forge.rs` | a stranger sends a packet |
//! | `owner.rs` | states and regions change, queue pairs are destroyed |

use super::adapter::{pd, FuzzAdapter};
use super::FuzzInput;
use std::rc::Rc;
use verbena_abi::ctx::access;
use verbena_transport::host::Syndrome;
use verbena_transport::packet::Packet;
use verbena_transport::wire::{ipv4_to_gid, Path};
use verbena_transport::{Attr, Budget, Qp, QpConfig, QpState, QpType};

mod flight;
mod forge;
mod owner;
mod posts;

use flight::MAX_FLIGHT;

/// Number of polls after which a queue pair that has more to do is considered to hang.
const MAX_POLLS: u32 = 20_000;
/// Time in ns beyond which the clock is not moved.
const MAX_TIME_NS: u64 = 1 << 62;
const QKEY: u32 = 0x1234;

/// The form in which packets travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlightMode {
    /// Super-packets by reference.
    Local,
    /// Single packets by reference.
    Split,
    /// Frames with bytes of their own.
    Wire,
}

/// The queue pairs, their surroundings and the packets between them.
struct FuzzRun {
    qps: Vec<Qp>,
    adapter: FuzzAdapter,
    /// Packets on their way, with their destinations.
    flight: Vec<(usize, Packet)>,
    mode: FlightMode,
    attr: Attr,
    psns: [u32; 2],
    now: u64,
    wr_id: u64,
    /// Bytes for the payloads of forged packets.
    junk: Rc<Vec<u8>>,
}

/// Runs a sequence of operations.
pub fn operations(bytes: &[u8]) {
    let mut input = FuzzInput::new(bytes);
    let mut lab = FuzzRun::new(&mut input);
    while !input.is_empty() {
        lab.operation(&mut input);
    }
    lab.finish();
}

fn path(from: usize) -> Path {
    let gid = |node: usize| ipv4_to_gid([10, 0, 0, node as u8 + 1]);
    Path {
        sgid: gid(from),
        dgid: gid(from ^ 1),
        ..Path::default()
    }
}

impl FuzzRun {
    fn new(input: &mut FuzzInput<'_>) -> Self {
        let (kind, shape) = (input.u8(), input.u8());
        let qp_type = match kind % 8 {
            0..=2 => QpType::Rc,
            3 => QpType::XrcIni,
            4 | 5 => QpType::Uc,
            6 => QpType::Ud,
            _ => QpType::Gsi,
        };
        let mode = match kind >> 3 & 3 {
            0 | 1 => FlightMode::Local,
            2 => FlightMode::Split,
            _ => FlightMode::Wire,
        };
        let is_xrc = qp_type == QpType::XrcIni;
        let has_srq = kind & 0x20 != 0 || is_xrc;
        let count = if kind & 0x40 != 0 { 4 } else { 2 };
        let limits = input.u8();
        let attr = Attr {
            path_mtu: [256, 256, 512, 1024][usize::from(shape & 3)],
            access_flags: access::REMOTE_WRITE
                | access::REMOTE_READ
                | access::REMOTE_ATOMIC
                | access::FLUSH_GLOBAL,
            qkey: QKEY,
            max_rd_atomic: limits & 3,
            max_dest_rd_atomic: limits >> 2 & 3,
            min_rnr_timer: 1,
            timeout: [8, 0, 1, 14][usize::from(limits >> 4 & 3)],
            retry_cnt: [7, 1][usize::from(limits >> 6 & 1)],
            rnr_retry: [7, 1][usize::from(limits >> 7)],
            sqd_notify: shape & 4 != 0,
            local_peer: mode == FlightMode::Local,
            ..Attr::default()
        };
        let psns = match shape >> 3 & 3 {
            0 => [0, 0],
            1 => [0xff_fffe, 0xff_ffff],
            2 => [0x7f_fff8, 0x80_0000],
            _ => [input.u32() & 0xff_ffff, input.u32() & 0xff_ffff],
        };
        let config = |node: usize| {
            // One end sends, the other receives.
            let qp_type = match qp_type {
                QpType::XrcIni if node % 2 == 1 => QpType::XrcTgt,
                qp_type => qp_type,
            };
            let mut config = QpConfig::new(0x10 + node as u32, qp_type, pd(node));
            config.has_srq = has_srq;
            config.window = [64, 4, 1, 2048][usize::from(shape >> 5 & 3)];
            config.wire_window = config.window.min(128);
            config.super_bytes = if shape & 0x80 != 0 { 4096 } else { 1024 };
            config.max_outstanding = if kind & 0x80 != 0 { 2 } else { 64 };
            config.max_msg_size = if shape & 0x80 != 0 { 1 << 31 } else { 4000 };
            config.min_timeout_ns = 100_000;
            config.credits = (kind & 8 != 0) == (limits & 0x80 != 0);
            config
        };
        let mut lab = Self {
            qps: (0..count).map(|node| Qp::new(config(node))).collect(),
            adapter: FuzzAdapter::new(count, has_srq, kind & 0x10 != 0),
            flight: Vec::with_capacity(32),
            mode,
            attr,
            psns,
            now: 0,
            wr_id: 1,
            junk: Rc::new(vec![0x5a; 1100]),
        };
        (0..count).for_each(|node| lab.connect(node));
        lab
    }

    fn attr(&self, node: usize) -> Attr {
        Attr {
            dest_qpn: 0x10 + (node ^ 1) as u32,
            sq_psn: self.psns[node & 1],
            rq_psn: self.psns[node & 1 ^ 1],
            ..self.attr
        }
    }

    fn modify(&mut self, node: usize, to: QpState, attr: &Attr) -> Result<(), Syndrome> {
        // The driver empties the rings of a queue pair in RESET, and the queue pair reports nothing
        // in that state.
        let was = self.adapter.nodes[node].idle;
        if to == QpState::Init {
            self.adapter.nodes[node].idle = false;
        }
        let result = self.qps[node].handle_modify(&mut self.adapter.host(node), self.now, to, attr);
        match result {
            Ok(()) if to == QpState::Reset => self.adapter.nodes[node].clear(),
            Ok(()) => {}
            Err(_) => self.adapter.nodes[node].idle = was,
        }
        self.carry(node);
        result
    }

    fn connect(&mut self, node: usize) {
        let attr = self.attr(node);
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let result = self.modify(node, to, &attr);
            assert_eq!(result, Ok(()), "to {to:?}");
        }
    }

    fn operation(&mut self, input: &mut FuzzInput<'_>) {
        let code = input.u8();
        let node = usize::from(code >> 6) % self.qps.len();
        match code & 0x3f {
            0..=15 => self.post_send(node, code & 8 != 0, input),
            16..=21 => self.post_recv(node, input),
            22 => self.notify_posts(node),
            23..=26 => self.deliver(0),
            27 | 28 => self.deliver(usize::from(input.u8())),
            29 | 30 => drop(self.take(input)),
            31 => self.duplicate(input),
            32..=34 => {
                let packets = u32::from(code & 3) * 3 + 1;
                self.poll(node, &mut Budget::new(packets, 3000));
            }
            35..=39 => self.run(usize::from(code & 7) * 16),
            40..=42 => self.wait_for_deadline(),
            43 => {
                self.now = self
                    .now
                    .saturating_add(1 << (input.u8() & 0x3f))
                    .min(MAX_TIME_NS)
            }
            44..=49 => self.forge(node, input),
            50 | 51 => self.change_state(node, input),
            52 => self.fail(node, input),
            53 | 54 => self.source_fault(input),
            55 | 56 => self.change_region(input),
            57 | 58 => self.tamper(input),
            59 => self.revive(node),
            60 => self.replace(node),
            61 => self.kill_ring(node, input),
            62 => {
                self.notify_receives_posted(node);
                self.qps[node].prefetch();
                self.qps[node].prefetch_work();
                self.qps[node].prefetch_buffers();
            }
            _ => self.settle_all(),
        }
    }

    fn poll(&mut self, node: usize, budget: &mut Budget) -> bool {
        let more = self.qps[node].poll(&mut self.adapter.host(node), self.now, budget);
        self.carry(node);
        more
    }

    /// Polls a queue pair until it has no more to do now.
    fn settle(&mut self, node: usize) {
        let mut polls = 0;
        while self.poll(node, &mut Budget::new(16, 64 << 10)) {
            polls += 1;
            assert!(polls < MAX_POLLS, "a queue pair does not come to rest");
        }
        if let Some(deadline) = self.qps[node].next_deadline() {
            assert!(
                deadline > self.now,
                "a deadline that has passed: {deadline} at {}",
                self.now
            );
        }
    }

    fn settle_all(&mut self) {
        (0..self.qps.len()).for_each(|node| self.settle(node));
    }

    /// Delivers up to `packets` packets in order.
    fn run(&mut self, packets: usize) {
        self.settle_all();
        for _ in 0..packets {
            let Some((to, _)) = self.flight.first() else {
                return;
            };
            let to = *to;
            self.deliver(0);
            self.settle(to);
        }
    }

    fn wait_for_deadline(&mut self) {
        if let Some(next) = self.qps.iter().filter_map(Qp::next_deadline).min() {
            self.now = self.now.max(next.min(MAX_TIME_NS));
        }
    }

    /// Moves everything to ERR: each posted work request completes once, and packets that arrive
    /// later change nothing.
    fn finish(&mut self) {
        for node in 0..self.qps.len() {
            if self.qps[node].state() == QpState::Reset {
                continue;
            }
            if !self.adapter.nodes[node].recvs.dead {
                self.notify_posts(node);
            }
            let attr = *self.qps[node].attr();
            let result = self.modify(node, QpState::Err, &attr);
            assert_eq!(result, Ok(()), "to ERR from {:?}", self.qps[node].state());
            self.settle(node);
            let ring = &self.adapter.nodes[node];
            let silent = ring.sends[ring.done..ring.producer].iter();
            assert!(
                silent.clone().all(|send| !send.wqe.signaled),
                "a send never completed"
            );
            let consumer = self.qps[node].snapshot().sq_consumer as usize;
            assert_eq!(
                consumer, ring.producer,
                "a send is still outstanding in ERR"
            );
            assert!(
                ring.held.is_empty(),
                "a receive that was taken never completed"
            );
            if !ring.has_srq && !ring.recvs.dead {
                assert_eq!(
                    ring.recvs.taken,
                    ring.recvs.posts.len(),
                    "a receive was not flushed"
                );
            }
        }
        while !self.flight.is_empty() {
            self.deliver(0);
            if self.flight.len() > MAX_FLIGHT / 2 {
                self.flight.clear();
            }
        }
        self.settle_all();
    }
}
