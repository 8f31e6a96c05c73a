// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Many queue pairs of one engine, run as a NIC runs them: rings of WQEs, keys that are checked,
//! memory that is copied, a completion queue, turns and timers. Nothing here allocates for a
//! message, so measurements and counts are those of the transport.
//!
//! Queue pair 2n is connected with 2n + 1. Each has a memory region of its own. The queue pair
//! sends from the first half of the region and receives to the second half.

use super::pair::{path, PairSetup};
use super::{PairSide, Rng};
use std::rc::Rc;
use verbena_transport::frame;
use verbena_transport::host::*;
use verbena_transport::packet::Packet;
use verbena_transport::prefetch;
use verbena_transport::sched::{self, ReadyQueue, TimerWheel};
use verbena_transport::{Attr, Qp, QpConfig, QpState};

mod load;
mod nic;
#[cfg(test)]
mod tests;

pub use load::{EngineLoad, GIANT};
use nic::{copy_apart, EngineHost, EngineNic, EngineWqe, PD, QKEY};

/// Number of steps between two checks of the timers, which corresponds to a slice of a NIC.
const SLICE_STEPS: u32 = 64;

/// Queue pairs, their surroundings, and the scheduler that runs them.
#[derive(Debug)]
pub struct BenchEngine {
    qps: Vec<Qp>,
    nic: EngineNic,
    ready: ReadyQueue,
    timers: TimerWheel,
    now: u64,
    /// Number of messages completed at their senders.
    completed: u64,
    /// Number of turns of queue pairs. `longest` is the highest number of turns between a post and
    /// its completion.
    turns: u64,
    longest: u64,
}

impl BenchEngine {
    /// Returns connected queue pairs in RTS, each with its first work requests posted.
    pub fn new(shape: EngineLoad) -> Self {
        let count = 2 * shape.pairs;
        let mut engine = Self {
            qps: Vec::new(),
            nic: EngineNic::new(shape),
            ready: ReadyQueue::new(),
            timers: TimerWheel::new(),
            now: 0,
            completed: 0,
            turns: 0,
            longest: 0,
        };
        engine.ready.reserve(count, 1);
        engine.timers.reserve(count);
        for end in 0..count {
            engine.connect(end);
        }
        // Turns go in an order that no cache can foresee, as after some time in a NIC.
        let mut rng = Rng::new(1);
        let mut order: Vec<u32> = (0..count).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, rng.below(last as u64 + 1) as usize);
        }
        for end in order {
            if shape.both || end % 2 == 0 {
                engine.post(end, shape.depth);
            }
        }
        engine
    }

    fn connect(&mut self, end: u32) {
        let shape = self.nic.load;
        let attr = Attr {
            path_mtu: shape.path_mtu,
            dest_qpn: end ^ 1,
            qkey: QKEY,
            local_peer: !shape.wire,
            timeout: 14,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            ..PairSetup::default().attr
        };
        let mut qp = Qp::new(QpConfig::new(end, shape.qp_type, PD));
        let mut host = EngineHost {
            nic: &mut self.nic,
            end,
        };
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            assert_eq!(qp.handle_modify(&mut host, 0, to, &attr), Ok(()));
        }
        self.qps.push(qp);
    }

    /// Posts `count` work requests as the program does.
    fn post(&mut self, end: u32, count: u32) {
        let shape = self.nic.load;
        let (own, peer) = (
            self.nic.arena.regions.0[end as usize],
            self.nic.arena.regions.0[end as usize ^ 1],
        );
        let half = own.length / 2;
        let reads = matches!(
            shape.opcode,
            WqeOpcode::RdmaRead | WqeOpcode::CompareSwap | WqeOpcode::FetchAdd
        );
        // A READ goes from the peer's first half to the own second half, and a WRITE the other way
        // round.
        let (local, remote) = if reads { (half, 0) } else { (0, half) };
        let place = &mut self.nic.queues[end as usize];
        let first = place.posted;
        place.posted = first.wrapping_add(count);
        place.posted_at = self.turns;
        let giant = shape.giant && end == 0;
        for index in first..first.wrapping_add(count) {
            let at = end * shape.depth + index % shape.depth;
            self.nic.sq[at as usize] = EngineWqe {
                wr_id: index.into(),
                remote_addr: peer.addr + remote,
                rkey: peer.key,
                signaled: index % shape.signal_every == shape.signal_every - 1,
                sge: Sge {
                    addr: own.addr + local,
                    length: if giant { GIANT } else { shape.size },
                    lkey: own.key,
                },
            };
        }
        self.qps[end as usize].handle_posts(self.now, first.wrapping_add(count));
        self.ready.push(0, end);
    }

    /// Takes completions as the program does, and posts new work requests for the completed ones.
    fn poll_cq(&mut self) {
        while self.nic.cq_consumed != self.nic.cq_produced {
            let at = self.nic.cq_consumed as usize & (self.nic.cq.len() - 1);
            let cqe = self.nic.cq[at];
            self.nic.cq_consumed = self.nic.cq_consumed.wrapping_add(1);
            assert_eq!(cqe.status, WcStatus::Success.to_raw());
            if !cqe.recv {
                let count = self.nic.load.signal_every;
                self.completed += u64::from(count);
                let posted_at = self.nic.queues[cqe.qp as usize].posted_at;
                self.longest = self.longest.max(self.turns - posted_at);
                self.post(cqe.qp, count);
            }
        }
    }

    /// Calls a queue pair, and sets its timer.
    fn call<R>(&mut self, end: u32, call: impl FnOnce(&mut Qp, &mut EngineHost<'_>) -> R) -> R {
        let mut host = EngineHost {
            nic: &mut self.nic,
            end,
        };
        let qp = &mut self.qps[end as usize];
        let before = qp.next_deadline();
        let result = call(qp, &mut host);
        let deadline = qp.next_deadline();
        // A future deadline that has not changed is in the wheel already.
        let known = deadline == before && deadline > Some(self.now);
        if let (Some(at), false) = (deadline, known) {
            if self.timers.deadline(end).is_none_or(|set| at < set) {
                self.timers.set(end, at);
            }
        }
        result
    }

    fn deliver(&mut self, packet: Packet) {
        let now = self.now;
        if !self.nic.load.wire {
            let to = packet.dst_qpn;
            self.call(to, |qp, host| qp.handle_packet(host, now, packet));
            self.ready.push(0, to);
            return;
        }
        let path = path(PairSide::A);
        for packet in packet.split(self.nic.load.path_mtu) {
            if !packet.payload.is_alive() {
                return;
            }
            let mut bytes = self.nic.pool.buffer(packet.payload.len() as usize);
            let room =
                Rc::get_mut(&mut bytes).expect("the pool lends buffers without other references");
            room.clear();
            let nic = &mut self.nic;
            frame::emit(&path, &packet, room, |place| {
                nic.copy(CopyTarget::Buffer(place), packet.payload.source())
            })
            .expect("keys stay valid");
            self.nic.pool.keep_buffer(&bytes);
            drop(packet);
            let frame = frame::parse_in(&bytes, &mut self.nic.pool).expect("own frames are valid");
            let to = frame.packet.dst_qpn;
            self.call(to, |qp, host| qp.handle_packet(host, now, frame.packet));
            self.ready.push(0, to);
        }
    }

    /// Delivers a packet, or gives a queue pair its turn. Returns false if there is nothing to do.
    pub fn step(&mut self) -> bool {
        if let Some(packet) = self.nic.outgoing.pop_front() {
            self.deliver(packet);
            return true;
        }
        let Some(end) = self.ready.pop() else {
            return false;
        };
        self.prefetch();
        self.turns += 1;
        let now = self.now;
        if self.call(end, |qp, host| qp.poll(host, now, &mut sched::turn())) {
            self.ready.push(0, end);
        }
        true
    }

    /// Prefetches the memory that the next turns need, at both ends of a connection.
    fn prefetch(&self) {
        let [_, buffers, work, own, far] = self.ready.ahead();
        let qp = |end: Option<u32>| self.qps.get(end? as usize);
        if let Some(end) = far {
            prefetch::element(&self.nic.queues, end as usize);
            self.timers.prefetch(end);
        }
        if let (Some(qp), Some(end)) = (qp(own), own) {
            qp.prefetch();
            self.nic.prefetch(end);
        }
        if let (Some(qp), Some(peer)) = (
            qp(work),
            qp(work).and_then(|q| self.qps.get(q.attr().dest_qpn as usize)),
        ) {
            qp.prefetch_work();
            peer.prefetch();
        }
        if let Some(qp) = qp(buffers) {
            qp.prefetch_buffers();
        }
    }

    /// Runs until `messages` more messages are complete at their senders.
    pub fn run(&mut self, messages: u64) {
        let goal = self.completed + messages;
        while self.completed < goal {
            self.now += 10_000;
            while let Some(end) = self.timers.pop(self.now) {
                match self.qps[end as usize].next_deadline() {
                    Some(due) if due > self.now => self.timers.set(end, due),
                    Some(_) => drop(self.ready.push(0, end)),
                    None => {}
                }
            }
            for _ in 0..SLICE_STEPS {
                if !self.step() {
                    break;
                }
                self.poll_cq();
            }
        }
    }

    /// Returns the number of messages complete at their senders.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// Returns the highest number of turns of queue pairs between a post and its completion.
    pub fn longest_wait(&self) -> u64 {
        self.longest
    }

    /// Returns the number of packets that a queue pair has sent.
    pub fn packets_sent(&self, end: u32) -> u64 {
        self.qps
            .get(end as usize)
            .map_or(0, |qp| qp.counters().tx_packets)
    }

    /// Returns the number of receives completed.
    pub fn received(&self) -> u64 {
        self.nic.received
    }

    /// Copies the bytes of a message between the buffers that its messages use, `count` times. The
    /// time that this takes is the lower limit for the engine.
    pub fn memcpy(&mut self, count: u64) {
        let half = EngineNic::half(&self.nic.load);
        for _ in 0..count {
            // The copy goes from the first half of the first region to the second half of the
            // second region.
            copy_apart(
                &mut self.nic.arena.bytes,
                3 * half,
                0,
                self.nic.load.size as usize,
            );
            std::hint::black_box(&mut self.nic.arena.bytes);
        }
    }
}
