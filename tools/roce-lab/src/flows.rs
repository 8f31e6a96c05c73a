// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Senders that share one link: what loss, delay, rate and window cost, and how a link is shared. The clock is virtual, so the
//! figures are those of the transport alone, and the same for the same seed.
//!
//! Each sender is connected with a receiver of its own at the far end. What senders send waits in one queue for the link,
//! what receivers send in another for the way back, which is alike. There is no memory behind it: what arrives is counted.

use super::pair::Setup;
use super::rng::Rng;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;
use verbena_roce::host::*;
use verbena_roce::packet::{Packet, Payload};
use verbena_roce::sched;
use verbena_roce::{Attr, Config, CongestionCounters, Counters, Pool, Qp, QpState, QpType};

/// Preamble, gap, Ethernet, IPv4, UDP, BTH, ICRC and FCS, about.
pub const HEADERS: u64 = 82;

/// What is run.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Senders.
    pub senders: usize,
    /// WRITE, SEND or READ. The data of a READ is the receivers' to send.
    pub opcode: WqeOpcode,
    /// Bytes of a message.
    pub message: u32,
    /// Path MTU.
    pub mtu: u32,
    /// Packets that may be unacknowledged.
    pub window: u32,
    /// Bits of a microsecond.
    pub rate: u64,
    /// Nanoseconds from end to end.
    pub delay: u64,
    /// Packets lost in each direction, of 1000.
    pub loss: u32,
    /// Packets are marked (CE) that find so many bytes in the queue before the link; 0: none are.
    pub mark: u64,
    /// Code of the local ACK timeout.
    pub timeout: u8,
    /// Draws what is lost.
    pub seed: u64,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            senders: 1,
            opcode: WqeOpcode::RdmaWrite,
            message: 64 << 10,
            mtu: 1024,
            window: 128,
            rate: 10_000,
            delay: 5_000,
            loss: 0,
            mark: 0,
            timeout: 14,
            seed: 1,
        }
    }
}

/// The surroundings of one queue pair.
#[derive(Debug, Default)]
struct End {
    opcode: Option<WqeOpcode>,
    message: u32,
    posted: u32,
    done: u32,
    /// Work requests that it keeps posted from now on; 0: what it was told.
    keeps: u32,
    failed: Option<WcStatus>,
    /// Payload bytes that have come to where they belong.
    arrived: u64,
    out: Vec<Packet>,
    pool: Pool,
    timer: Option<u64>,
}

impl Host for End {
    fn fetch_send(
        &mut self,
        index: u32,
        wqe: &mut SendWqe,
        gather: &mut Gather,
    ) -> Result<(), WqeError> {
        wqe.wr_id = index.into();
        wqe.opcode = self.opcode.unwrap_or(WqeOpcode::Send);
        wqe.signaled = true;
        gather.sges.push(Sge {
            addr: 0,
            length: self.message,
            lkey: 1,
        });
        Ok(())
    }

    fn send_wr_id(&mut self, index: u32) -> (u64, WcOpcode) {
        (index.into(), WcOpcode::Send)
    }

    fn take_recv(&mut self, wqe: &mut RecvWqe) -> Take {
        wqe.sges.push(Sge {
            addr: 0,
            length: self.message,
            lkey: 1,
        });
        Take::Taken
    }

    fn recv_credits(&mut self) -> Option<u32> {
        Some(1 << 15)
    }

    fn check(&mut self, _key: &KeyUse) -> Result<(), Syndrome> {
        Ok(())
    }

    fn copy(&mut self, target: Target<'_>, source: Source<'_>) -> Result<(), CopyFault> {
        let length = match source {
            Source::Bytes(bytes) => bytes.len() as u32,
            Source::Gather { length, .. } | Source::Region { length, .. } => length,
        };
        if !matches!(target, Target::Buffer(_)) {
            self.arrived += u64::from(length);
        }
        Ok(())
    }

    fn atomic(&mut self, _key: &KeyUse, _op: AtomicOp) -> Result<u64, Syndrome> {
        Ok(0)
    }

    fn invalidate(&mut self, _key: u32, _remote: bool) -> Result<(), Syndrome> {
        Ok(())
    }

    fn fast_register(&mut self, _index: u32) -> Result<(), Syndrome> {
        Ok(())
    }

    fn complete(&mut self, completion: &Completion) -> bool {
        if completion.status != WcStatus::Success {
            self.failed.get_or_insert(completion.status);
        } else if !completion.is_recv() {
            self.done += 1;
        }
        true
    }

    fn event(&mut self, _event: EventType, _syndrome: Option<Syndrome>) {}

    fn transmit(&mut self, packet: Packet) {
        self.out.push(packet);
    }

    fn pool(&mut self) -> Option<&mut Pool> {
        Some(&mut self.pool)
    }
}

#[derive(Debug)]
enum What {
    Arrival(usize, Packet),
    Timer(usize),
}

/// One direction of the link.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    /// When the last bit of what waits has left.
    busy_until: u64,
    /// Since when the queue is measured.
    since: u64,
    /// What the queue has held, in byte-nanoseconds.
    area: u128,
    longest: u64,
    bytes: u64,
}

/// Senders, receivers and the link between them. Queue pair 2n sends to 2n + 1.
#[derive(Debug)]
pub struct Flows {
    shape: Shape,
    qps: Vec<Qp>,
    ends: Vec<End>,
    ways: [Way; 2],
    rng: Rng,
    heap: BinaryHeap<Reverse<(u64, u64, usize)>>,
    slots: Vec<Option<What>>,
    free: Vec<usize>,
    number: u64,
    /// The payload of every frame.
    bytes: Rc<Vec<u8>>,
    /// Virtual time in nanoseconds.
    pub now: u64,
}

impl Flows {
    /// Connected queue pairs; `config` may change what each is made of, by its number.
    pub fn new(shape: Shape, config: impl Fn(usize, &mut Config)) -> Self {
        let mut flows = Self {
            qps: Vec::new(),
            ends: Vec::new(),
            ways: [Way::default(); 2],
            rng: Rng::new(shape.seed),
            heap: BinaryHeap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            number: 0,
            bytes: Rc::new(vec![0; shape.mtu as usize]),
            now: 0,
            shape,
        };
        let shape = &flows.shape;
        for me in 0..2 * shape.senders {
            let attr = Attr {
                path_mtu: shape.mtu,
                dest_qpn: me as u32 ^ 1,
                timeout: shape.timeout,
                max_rd_atomic: 16,
                max_dest_rd_atomic: 16,
                ..Setup::default().attr
            };
            let mut mine = Config::new(me as u32, QpType::Rc, 1);
            mine.wire_window = shape.window;
            config(me, &mut mine);
            let mut qp = Qp::new(mine);
            let mut end = End {
                opcode: Some(shape.opcode),
                message: shape.message,
                ..End::default()
            };
            for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
                assert_eq!(qp.handle_modify(&mut end, 0, to, &attr), Ok(()));
            }
            flows.qps.push(qp);
            flows.ends.push(end);
        }
        flows
    }

    /// A sender posts so many messages more.
    pub fn post(&mut self, sender: usize, messages: u32) {
        let end = &mut self.ends[2 * sender];
        end.posted = end.posted.wrapping_add(messages);
        self.qps[2 * sender].handle_posts(self.now, end.posted);
        self.run(2 * sender);
    }

    /// A sender posts a message for each that is done, from now on, so that as many as now are always posted.
    pub fn keep_posting(&mut self, sender: usize) {
        let end = &mut self.ends[2 * sender];
        end.keeps = end.posted.wrapping_sub(end.done);
    }

    /// Whether a sender has nothing more to do; or the status that it has failed with.
    pub fn is_done(&self, sender: usize) -> Result<bool, WcStatus> {
        let end = &self.ends[2 * sender];
        end.failed.map_or(Ok(end.done == end.posted), Err)
    }

    /// Bytes of a sender that have arrived, those of a READ at the sender itself.
    pub fn arrived(&self, sender: usize) -> u64 {
        self.ends[2 * sender].arrived + self.ends[2 * sender + 1].arrived
    }

    /// Counters of a sender's queue pair and of its receiver's.
    pub fn counters(&self, sender: usize) -> [&Counters; 2] {
        [
            self.qps[2 * sender].counters(),
            self.qps[2 * sender + 1].counters(),
        ]
    }

    /// What a sender's queue pair and its receiver's have met of congestion.
    pub fn congestion(&self, sender: usize) -> [CongestionCounters; 2] {
        [
            self.qps[2 * sender].congestion(),
            self.qps[2 * sender + 1].congestion(),
        ]
    }

    /// Packets that carry data, of all senders: for READs, the responses.
    pub fn sent(&self) -> u64 {
        let data = usize::from(self.shape.opcode == WqeOpcode::RdmaRead);
        let each = self.qps.iter().skip(data).step_by(2);
        each.map(|qp| qp.counters().tx_packets - qp.counters().acks_sent)
            .sum()
    }

    /// The queue of data before the link since the beginning: bytes on the average, and at the most.
    pub fn queue(&self) -> (u64, u64) {
        let way = self.way();
        let time = (self.now - way.since).max(1);
        ((way.area / u128::from(time)) as u64, way.longest)
    }

    /// Measures the queue from now on.
    pub fn forget_queue(&mut self) {
        for way in &mut self.ways {
            (way.since, way.area, way.longest, way.bytes) = (self.now, 0, 0, 0);
        }
    }

    /// Bytes that the link has carried, headers included.
    pub fn carried(&self) -> u64 {
        self.way().bytes
    }

    /// The way that data take.
    fn way(&self) -> &Way {
        &self.ways[usize::from(self.shape.opcode == WqeOpcode::RdmaRead)]
    }

    /// Runs until a time, or until nothing happens any more: then false.
    pub fn run_until(&mut self, end: u64) -> bool {
        while let Some(Reverse((at, _, slot))) = self.heap.peek().copied() {
            if at > end {
                self.now = end;
                return true;
            }
            self.heap.pop();
            self.now = at;
            self.free.push(slot);
            match self.slots[slot].take() {
                Some(What::Arrival(to, packet)) => {
                    self.qps[to].handle_packet(&mut self.ends[to], at, packet);
                    self.run(to);
                }
                Some(What::Timer(me)) if self.ends[me].timer.is_some_and(|timer| timer <= at) => {
                    self.ends[me].timer = None;
                    self.run(me);
                }
                _ => {}
            }
        }
        false
    }

    fn at(&mut self, at: u64, what: What) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(what);
        self.number += 1;
        self.heap.push(Reverse((at, self.number, slot)));
    }

    /// Lets a queue pair do what it can.
    fn run(&mut self, me: usize) {
        let end = &mut self.ends[me];
        if end.keeps > 0 {
            end.posted = end.done.wrapping_add(end.keeps);
            self.qps[me].handle_posts(self.now, end.posted);
        }
        loop {
            let more = self.qps[me].poll(&mut self.ends[me], self.now, &mut sched::turn());
            let mut out = std::mem::take(&mut self.ends[me].out);
            for packet in out.drain(..) {
                self.carry(me, packet);
            }
            self.ends[me].out = out;
            if !more {
                break;
            }
        }
        let Some(at) = self.qps[me].next_deadline() else {
            return;
        };
        if self.ends[me].timer.is_none_or(|timer| timer > at) {
            self.ends[me].timer = Some(at);
            self.at(at, What::Timer(me));
        }
    }

    /// Puts a packet on the link, as a frame with bytes of its own.
    fn carry(&mut self, from: usize, mut packet: Packet) {
        if self.rng.below(1000) < u64::from(self.shape.loss) {
            return;
        }
        let way = &mut self.ways[from % 2];
        let bytes = u64::from(packet.payload.len()) + HEADERS;
        let begin = way.busy_until.max(self.now);
        let waits = begin - self.now;
        let mark = self.shape.mark;
        packet.marked = mark > 0 && waits * self.shape.rate / 8_000 >= mark;
        way.busy_until = begin + bytes * 8_000 / self.shape.rate;
        way.area += u128::from(waits) * u128::from(bytes);
        way.longest = way.longest.max(waits * self.shape.rate / 8_000);
        way.bytes += bytes;
        let at = way.busy_until + self.shape.delay;
        let length = packet.payload.len();
        if length > 0 {
            packet.payload = Payload::Bytes {
                bytes: Rc::clone(&self.bytes),
                offset: 0,
                length,
            };
        }
        self.at(at, What::Arrival(from ^ 1, packet));
    }
}
