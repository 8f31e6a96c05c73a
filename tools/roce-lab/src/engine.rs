// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Many queue pairs of one engine, run as a NIC runs them: rings of WQEs, keys that are checked, memory that is copied, a
//! completion queue, turns and timers. Nothing here allocates for a message, so what is measured or counted is the
//! transport's.
//!
//! Queue pair 2n is connected with 2n + 1. Each has a memory region of its own, whose first half is what it sends from and
//! whose second half is what it receives to.

use super::keys::{self, admit, Grant};
use super::pair::{path, Setup};
use super::{Rng, Side};
use std::collections::VecDeque;
use std::rc::Rc;
use verbena_abi::ctx::access;
use verbena_roce::host::*;
use verbena_roce::packet::Packet;
use verbena_roce::pool::Pool;
use verbena_roce::prefetch;
use verbena_roce::sched::{self, Ready, Wheel};
use verbena_roce::wire::frame;
use verbena_roce::{Attr, Config, Qp, QpState, QpType};

const PD: u32 = 7;
const QKEY: u32 = 0x1234;
/// Slots between two looks at the timers, as a NIC has its slices.
const SLICE_STEPS: u32 = 64;
/// Bytes of a buffer are rounded up to this.
const LINE: usize = 64;
/// Bytes of a giant message.
pub const GIANT: u32 = 1 << 30;
/// Memory that a giant message's buffers really have: it repeats itself.
const GIANT_MEMORY: usize = 256 << 10;

/// What is run.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Transport service.
    pub qp_type: QpType,
    /// What every work request is.
    pub opcode: WqeOpcode,
    /// Bytes of a message.
    pub size: u32,
    /// Payload is in the WQE.
    pub inline: bool,
    /// Connections.
    pub pairs: u32,
    /// Both ends send, not only the first.
    pub both: bool,
    /// Work requests that are outstanding on each queue pair that sends.
    pub depth: u32,
    /// One work request of so many is signaled; divides `depth`.
    pub signal_every: u32,
    /// Every packet goes through the bytes of a frame.
    pub wire: bool,
    /// Path MTU.
    pub path_mtu: u32,
    /// Queue pair 0 sends messages of [`GIANT`] bytes instead.
    pub giant: bool,
}

impl Shape {
    /// One connection, one work request outstanding, packets by reference.
    pub fn new(qp_type: QpType, opcode: WqeOpcode, size: u32) -> Self {
        Self {
            qp_type,
            opcode,
            size,
            inline: false,
            pairs: 1,
            both: false,
            depth: 1,
            signal_every: 1,
            wire: false,
            path_mtu: 4096,
            giant: false,
        }
    }

    /// With many work requests outstanding.
    pub fn pipelined(self) -> Self {
        Self {
            depth: 128,
            signal_every: 32,
            ..self
        }
    }
}

/// A send WQE as it lies in a ring.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
struct Wqe {
    wr_id: u64,
    remote_addr: u64,
    rkey: u32,
    signaled: bool,
    sge: Sge,
}

/// A completion as it lies in the completion queue.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(32))]
struct Cqe {
    wr_id: u64,
    qp: u32,
    byte_len: u32,
    status: u8,
    recv: bool,
}

/// A memory region.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Region {
    key: u32,
    pd: u32,
    access: u32,
    iova: u64,
    length: u64,
    /// Where it is in the memory, and how much of it there is before it repeats itself.
    at: usize,
    real: usize,
}

/// What a queue pair has outside of the transport.
#[derive(Clone, Copy, Debug, Default)]
struct End {
    posted: u32,
    recvs_taken: u32,
    /// Turns that there had been when it posted last.
    posted_at: u64,
}

/// Everything but the transports.
#[derive(Debug)]
struct Nic {
    shape: Shape,
    memory: Vec<u8>,
    regions: Vec<Region>,
    /// Send rings of all queue pairs, one after the other.
    sq: Vec<Wqe>,
    ends: Vec<End>,
    cq: Vec<Cqe>,
    cq_produced: u32,
    cq_consumed: u32,
    outgoing: VecDeque<Packet>,
    pool: Pool,
    received: u64,
    events: u64,
}

/// The engine.
#[derive(Debug)]
pub struct Engine {
    qps: Vec<Qp>,
    nic: Nic,
    ready: Ready,
    timers: Wheel,
    now: u64,
    /// Messages completed at their senders.
    completed: u64,
    /// Turns of queue pairs, and the most between a post and its completion.
    turns: u64,
    longest: u64,
}

/// The surroundings of one queue pair.
struct EndHost<'a> {
    nic: &'a mut Nic,
    end: u32,
}

impl Nic {
    /// Bytes of a half of a region: for datagrams there is room for the GRH.
    fn half(shape: &Shape) -> usize {
        (shape.size as usize + 40).next_multiple_of(LINE)
    }

    /// The WQE that is next, the key, the buffers of both ends.
    fn prefetch(&self, end: u32) {
        let shape = &self.shape;
        let half = Self::half(shape);
        let posted = self.ends.get(end as usize).map_or(0, |e| e.posted);
        let wqe = end * shape.depth + posted % shape.depth;
        prefetch::element(&self.sq, wqe as usize);
        prefetch::element(&self.regions, end as usize);
        prefetch::element(&self.regions, end as usize ^ 1);
        prefetch::element(&self.memory, 2 * end as usize * half);
        prefetch::element(&self.memory, (2 * (end as usize ^ 1) + 1) * half);
    }

    fn resolve(&self, key: &KeyUse) -> Result<usize, Syndrome> {
        let region = self.regions.get(key.key as usize >> 8);
        let region = region.filter(|r| r.key == key.key);
        let grant = region.map(|r| Grant {
            pd: r.pd,
            access: r.access,
            addr: r.iova,
            length: r.length,
        });
        let mut offset = admit(key, grant)? as usize;
        let (at, real) = region.map_or((0, 1), |r| (r.at, r.real));
        if offset >= real {
            offset %= real;
        }
        Ok(at + offset)
    }

    /// Where a part of one SGE is; all lists here have one.
    fn resolve_sge(
        &self,
        pd: u32,
        sges: &[Sge],
        offset: u32,
        length: u32,
        access: Access,
    ) -> Result<usize, Syndrome> {
        let sge = sges.first().copied().unwrap_or_default();
        if offset > sge.length || length > sge.length - offset {
            return Err(Syndrome::LkeyBounds);
        }
        self.resolve(&KeyUse {
            pd,
            privileged: false,
            key: sge.lkey,
            addr: sge.addr.wrapping_add(u64::from(offset)),
            length: length.into(),
            access,
        })
    }

    fn target(&self, target: &Target<'_>, length: u32) -> Result<usize, Syndrome> {
        match *target {
            Target::Scatter {
                pd, sges, offset, ..
            } => self.resolve_sge(pd, sges, offset, length, Access::LocalWrite),
            Target::Region { pd, key, addr } => self.resolve(&KeyUse {
                pd,
                privileged: false,
                key,
                addr,
                length: length.into(),
                access: Access::RemoteWrite,
            }),
            Target::Buffer(_) => Err(Syndrome::LkeyUnknown),
        }
    }

    fn copy(&mut self, target: Target<'_>, source: Source<'_>) -> Result<(), CopyFault> {
        let (from, length) = match source {
            Source::Bytes(bytes) => {
                if let Target::Buffer(buffer) = target {
                    buffer.copy_from_slice(bytes);
                    return Ok(());
                }
                let to = self
                    .target(&target, bytes.len() as u32)
                    .map_err(CopyFault::Target)?;
                self.memory[to..to + bytes.len()].copy_from_slice(bytes);
                return Ok(());
            }
            Source::Gather {
                pd,
                sges,
                offset,
                length,
                ..
            } => (
                self.resolve_sge(pd, sges, offset, length, Access::LocalRead),
                length,
            ),
            Source::Region {
                pd,
                key,
                addr,
                length,
            } => {
                let key = KeyUse {
                    pd,
                    privileged: false,
                    key,
                    addr,
                    length: length.into(),
                    access: Access::RemoteRead,
                };
                (self.resolve(&key), length)
            }
        };
        let (from, count) = (from.map_err(CopyFault::Source)?, length as usize);
        if let Target::Buffer(buffer) = target {
            buffer.copy_from_slice(&self.memory[from..from + count]);
            return Ok(());
        }
        let to = self.target(&target, length).map_err(CopyFault::Target)?;
        copy_apart(&mut self.memory, to, from, count);
        Ok(())
    }
}

/// Copies between two places of the memory that do not overlap.
fn copy_apart(memory: &mut [u8], to: usize, from: usize, count: usize) {
    if from < to {
        let (low, high) = memory.split_at_mut(to);
        high[..count].copy_from_slice(&low[from..from + count]);
    } else {
        let (low, high) = memory.split_at_mut(from);
        low[to..to + count].copy_from_slice(&high[..count]);
    }
}

impl Host for EndHost<'_> {
    fn fetch_send(
        &mut self,
        index: u32,
        out: &mut SendWqe,
        gather: &mut Gather,
    ) -> Result<(), WqeError> {
        let shape = &self.nic.shape;
        let at = self.end * shape.depth + index % shape.depth;
        let wqe = self.nic.sq[at as usize];
        out.wr_id = wqe.wr_id;
        out.opcode = shape.opcode;
        out.signaled = wqe.signaled;
        out.remote_addr = wqe.remote_addr;
        out.rkey = wqe.rkey;
        out.compare_add = 1;
        gather.pd = PD;
        if shape.inline {
            let from = (wqe.sge.addr & 0xffff_ffff) as usize;
            let bytes = &self.nic.memory[from..from + shape.size as usize];
            gather.inline.extend_from_slice(bytes);
        } else {
            gather.sges.push(wqe.sge);
        }
        if shape.qp_type == QpType::Ud {
            out.set_datagram(DatagramDest {
                path: path(Side::A),
                qpn: self.end ^ 1,
                qkey: QKEY,
            });
        }
        Ok(())
    }

    fn send_wr_id(&mut self, index: u32) -> (u64, WcOpcode) {
        (index.into(), WcOpcode::Send)
    }

    fn take_recv(&mut self, wqe: &mut RecvWqe) -> Take {
        // The program always has a receive posted.
        let end = &mut self.nic.ends[self.end as usize];
        wqe.index = end.recvs_taken;
        wqe.wr_id = end.recvs_taken.into();
        wqe.pd = PD;
        end.recvs_taken = end.recvs_taken.wrapping_add(1);
        let region = &self.nic.regions[self.end as usize];
        let half = region.length / 2;
        wqe.sges.push(Sge {
            addr: region.iova + half,
            length: half as u32,
            lkey: region.key,
        });
        Take::Taken
    }

    fn recv_credits(&mut self) -> Option<u32> {
        Some(1 << 15)
    }

    fn check(&mut self, key: &KeyUse) -> Result<(), Syndrome> {
        self.nic.resolve(key).map(|_| ())
    }

    fn copy(&mut self, target: Target<'_>, source: Source<'_>) -> Result<(), CopyFault> {
        self.nic.copy(target, source)
    }

    fn atomic(&mut self, key: &KeyUse, op: AtomicOp) -> Result<u64, Syndrome> {
        let at = self.nic.resolve(key)?;
        let place = &mut self.nic.memory[at..at + 8];
        let mut before = [0; 8];
        before.copy_from_slice(place);
        let before = u64::from_ne_bytes(before);
        let after = keys::atomic(op, before);
        place.copy_from_slice(&after.to_ne_bytes());
        Ok(before)
    }

    fn invalidate(&mut self, _key: u32, _remote: bool) -> Result<(), Syndrome> {
        Err(Syndrome::KeyManagement)
    }

    fn fast_register(&mut self, _index: u32) -> Result<(), Syndrome> {
        Err(Syndrome::KeyManagement)
    }

    fn complete(&mut self, completion: &Completion) {
        let nic = &mut *self.nic;
        let recv = completion.is_recv();
        let at = nic.cq_produced as usize & (nic.cq.len() - 1);
        nic.cq[at] = Cqe {
            wr_id: completion.wr_id,
            qp: self.end,
            byte_len: completion.byte_len,
            status: completion.status.to_raw(),
            recv,
        };
        nic.cq_produced = nic.cq_produced.wrapping_add(1);
        nic.received += u64::from(recv);
    }

    fn event(&mut self, _event: EventType, _syndrome: Option<Syndrome>) {
        self.nic.events += 1;
    }

    fn transmit(&mut self, packet: Packet) {
        self.nic.outgoing.push_back(packet);
    }

    fn pool(&mut self) -> Option<&mut Pool> {
        Some(&mut self.nic.pool)
    }
}

impl Engine {
    /// Connected queue pairs in RTS, each with its first work requests posted.
    pub fn new(shape: Shape) -> Self {
        let count = 2 * shape.pairs;
        let half = Nic::half(&shape);
        let all = access::LOCAL_WRITE
            | access::REMOTE_WRITE
            | access::REMOTE_READ
            | access::REMOTE_ATOMIC;
        let mut regions: Vec<Region> = (0..count)
            .map(|n| {
                let at = n as usize * 2 * half;
                Region {
                    key: n << 8 | 0x5a,
                    pd: PD,
                    access: all,
                    // So that the lower half of an address is its place in the memory.
                    iova: 1 << 32 | at as u64,
                    length: 2 * half as u64,
                    at,
                    real: 2 * half,
                }
            })
            .collect();
        let small = count as usize * 2 * half;
        if shape.giant {
            for (region, n) in regions.iter_mut().zip(0..2) {
                region.length = 2 * u64::from(GIANT);
                (region.at, region.real) = (small + n * GIANT_MEMORY, GIANT_MEMORY);
            }
        }
        let memory = small + if shape.giant { 2 * GIANT_MEMORY } else { 0 };
        let completions = (count * (shape.depth + 1)).next_power_of_two().max(1024);
        let mut engine = Self {
            qps: Vec::new(),
            nic: Nic {
                shape,
                memory: vec![1; memory],
                regions,
                sq: vec![Wqe::default(); (count * shape.depth) as usize],
                ends: vec![End::default(); count as usize],
                cq: vec![Cqe::default(); completions as usize],
                cq_produced: 0,
                cq_consumed: 0,
                outgoing: VecDeque::new(),
                pool: Pool::default(),
                received: 0,
                events: 0,
            },
            ready: Ready::new(),
            timers: Wheel::new(),
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
        let shape = self.nic.shape;
        let attr = Attr {
            path_mtu: shape.path_mtu,
            dest_qpn: end ^ 1,
            qkey: QKEY,
            local_peer: !shape.wire,
            timeout: 14,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            ..Setup::default().attr
        };
        let mut qp = Qp::new(Config::new(end, shape.qp_type, PD));
        let mut host = EndHost {
            nic: &mut self.nic,
            end,
        };
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            assert_eq!(qp.handle_modify(&mut host, 0, to, &attr), Ok(()));
        }
        self.qps.push(qp);
    }

    /// The program posts `count` work requests.
    fn post(&mut self, end: u32, count: u32) {
        let shape = self.nic.shape;
        let (own, peer) = (
            self.nic.regions[end as usize],
            self.nic.regions[end as usize ^ 1],
        );
        let half = own.length / 2;
        let reads = matches!(
            shape.opcode,
            WqeOpcode::RdmaRead | WqeOpcode::CompareSwap | WqeOpcode::FetchAdd
        );
        // What is read comes from the peer's first half to the own second half; what is written goes the other way round.
        let (local, remote) = if reads { (half, 0) } else { (0, half) };
        let place = &mut self.nic.ends[end as usize];
        let first = place.posted;
        place.posted = first.wrapping_add(count);
        place.posted_at = self.turns;
        let giant = shape.giant && end == 0;
        for index in first..first.wrapping_add(count) {
            let at = end * shape.depth + index % shape.depth;
            self.nic.sq[at as usize] = Wqe {
                wr_id: index.into(),
                remote_addr: peer.iova + remote,
                rkey: peer.key,
                signaled: index % shape.signal_every == shape.signal_every - 1,
                sge: Sge {
                    addr: own.iova + local,
                    length: if giant { GIANT } else { shape.size },
                    lkey: own.key,
                },
            };
        }
        self.qps[end as usize].handle_posts(self.now, first.wrapping_add(count));
        self.ready.push(0, end);
    }

    /// The program takes completions, and posts anew what is complete.
    fn poll_cq(&mut self) {
        while self.nic.cq_consumed != self.nic.cq_produced {
            let at = self.nic.cq_consumed as usize & (self.nic.cq.len() - 1);
            let cqe = self.nic.cq[at];
            self.nic.cq_consumed = self.nic.cq_consumed.wrapping_add(1);
            assert_eq!(cqe.status, WcStatus::Success.to_raw());
            if !cqe.recv {
                let count = self.nic.shape.signal_every;
                self.completed += u64::from(count);
                let posted_at = self.nic.ends[cqe.qp as usize].posted_at;
                self.longest = self.longest.max(self.turns - posted_at);
                self.post(cqe.qp, count);
            }
        }
    }

    /// Calls a queue pair.
    fn call<R>(&mut self, end: u32, call: impl FnOnce(&mut Qp, &mut EndHost<'_>) -> R) -> R {
        let mut host = EndHost {
            nic: &mut self.nic,
            end,
        };
        let qp = &mut self.qps[end as usize];
        let before = qp.next_deadline();
        let result = call(qp, &mut host);
        let deadline = qp.next_deadline();
        // One that is to come and has not changed is in the wheel already.
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
        if !self.nic.shape.wire {
            let to = packet.dst_qpn;
            self.call(to, |qp, host| qp.handle_packet(host, now, packet));
            self.ready.push(0, to);
            return;
        }
        let path = path(Side::A);
        for packet in packet.split(self.nic.shape.path_mtu) {
            if !packet.payload.is_alive() {
                return;
            }
            let mut bytes = self.nic.pool.buffer();
            let room = Rc::get_mut(&mut bytes).expect("the pool lends what nobody has");
            room.clear();
            let nic = &mut self.nic;
            frame::emit(&path, &packet, room, |place| {
                nic.copy(Target::Buffer(place), packet.payload.source())
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

    /// One step: a packet is delivered, or a queue pair has its turn. False: there is nothing to do.
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

    /// Has memory fetched that the next turns need, of both ends of a connection.
    fn prefetch(&self) {
        let [_, buffers, work, own, far] = self.ready.ahead();
        let qp = |end: Option<u32>| self.qps.get(end? as usize);
        if let Some(end) = far {
            prefetch::element(&self.nic.ends, end as usize);
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

    /// Runs until so many messages more are complete at their senders.
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

    /// Messages complete at their senders.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// The most turns of queue pairs that there were between a post and its completion.
    pub fn longest_wait(&self) -> u64 {
        self.longest
    }

    /// Packets that a queue pair has sent.
    pub fn packets_sent(&self, end: u32) -> u64 {
        self.qps
            .get(end as usize)
            .map_or(0, |qp| qp.counters().tx_packets)
    }

    /// Receives completed.
    pub fn received(&self) -> u64 {
        self.nic.received
    }

    /// Copies the bytes of a message between the buffers that its messages use, `count` times: what there is to be reached.
    pub fn memcpy(&mut self, count: u64) {
        let half = Nic::half(&self.nic.shape);
        for _ in 0..count {
            // From the first half of the first region to the second half of the other.
            copy_apart(
                &mut self.nic.memory,
                3 * half,
                0,
                self.nic.shape.size as usize,
            );
            std::hint::black_box(&mut self.nic.memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_complete() {
        for (qp_type, opcode) in [
            (QpType::Rc, WqeOpcode::RdmaWrite),
            (QpType::Rc, WqeOpcode::Send),
            (QpType::Rc, WqeOpcode::RdmaRead),
            (QpType::Rc, WqeOpcode::FetchAdd),
            (QpType::Uc, WqeOpcode::RdmaWrite),
            (QpType::Uc, WqeOpcode::Send),
            (QpType::Ud, WqeOpcode::Send),
        ] {
            let atomic = opcode == WqeOpcode::FetchAdd;
            for size in if atomic { [8, 8] } else { [8, 4096] } {
                for wire in [false, true] {
                    let shape = Shape {
                        wire,
                        pairs: 3,
                        both: true,
                        ..Shape::new(qp_type, opcode, size).pipelined()
                    };
                    let mut engine = Engine::new(shape);
                    engine.run(2000);
                    assert!(engine.completed() >= 2000);
                    let receives = opcode == WqeOpcode::Send;
                    assert_eq!(engine.received() >= 2000 - 6 * 128, receives);
                    assert_eq!(engine.nic.events, 0);
                }
            }
        }
    }

    #[test]
    fn a_giant_message_holds_up_no_small_one() {
        for (wire, turn) in [
            (false, sched::TURN_BYTES / 4096),
            (true, sched::TURN_PACKETS.into()),
        ] {
            let shape = Shape {
                wire,
                pairs: 8,
                giant: true,
                ..Shape::new(QpType::Rc, WqeOpcode::RdmaWrite, 8)
            };
            let mut engine = Engine::new(shape);
            engine.run(700);
            // In turn, each sends and is sent its acknowledgement: two turns of each of the 16 queue pairs at most.
            assert!(engine.longest_wait() <= 32, "{}", engine.longest_wait());
            // The giant went on meanwhile, by a turn's budget for each of the others' messages, and is far from its end.
            let sent = engine.packets_sent(0);
            assert!(sent >= 90 * turn, "{sent}");
            assert!(sent < u64::from(GIANT / 4096) / 2, "{sent}");
        }
    }

    #[test]
    fn bytes_are_copied() {
        let shape = Shape::new(QpType::Rc, WqeOpcode::RdmaWrite, 100_000);
        let mut engine = Engine::new(shape);
        let half = Nic::half(&shape);
        engine.nic.memory[..100_000].fill(0x77);
        engine.run(1);
        assert!(engine.nic.memory[3 * half..][..100_000]
            .iter()
            .all(|b| *b == 0x77));
        assert_eq!(engine.nic.memory[3 * half + 100_000], 1);
    }
}
