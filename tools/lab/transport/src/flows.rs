// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Senders that share one link: the cost of loss, delay, rate and window, and the shares of the
//! link. The clock is virtual, so the figures are those of the transport alone, and the same for
//! the same seed.
//!
//! Each sender is connected with a receiver of its own at the far end. The packets of all senders
//! wait in one queue for the link. The packets of the receivers wait in another queue for the
//! opposite direction, which has the same properties. The ends have no memory; they only count the
//! bytes that arrive.

use super::pair::PairSetup;
use super::rng::Rng;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;
use verbena_transport::host::*;
use verbena_transport::packet::{Packet, Payload};
use verbena_transport::sched;
use verbena_transport::{Attr, CongestionCounters, Counters, Pool, Qp, QpConfig, QpState, QpType};

/// Approximate bytes of preamble, gap, Ethernet, IPv4, UDP, BTH, ICRC and FCS.
pub const HEADERS: u64 = 82;

/// The link and the load of a run.
#[derive(Clone, Debug)]
pub struct FlowLoad {
    /// Number of senders.
    pub senders: usize,
    /// WRITE, SEND or READ. The receivers send the data of a READ.
    pub opcode: WqeOpcode,
    /// Length of a message in bytes.
    pub message: u32,
    /// Path MTU in bytes.
    pub mtu: u32,
    /// Number of packets that may be unacknowledged.
    pub window: u32,
    /// Rate of the link in bits per microsecond.
    pub rate: u64,
    /// Delay from end to end in nanoseconds.
    pub delay_ns: u64,
    /// Packets lost in each direction, in thousandths.
    pub loss: u32,
    /// Bytes in the queue before the link from which on packets are marked (CE); 0 if no packets
    /// are marked.
    pub mark: u64,
    /// Code of the local ACK timeout.
    pub timeout: u8,
    /// Seed of the losses.
    pub seed: u64,
}

impl Default for FlowLoad {
    fn default() -> Self {
        Self {
            senders: 1,
            opcode: WqeOpcode::RdmaWrite,
            message: 64 << 10,
            mtu: 1024,
            window: 128,
            rate: 10_000,
            delay_ns: 5_000,
            loss: 0,
            mark: 0,
            timeout: 14,
            seed: 1,
        }
    }
}

/// The surroundings of one queue pair.
#[derive(Debug, Default)]
struct FlowHost {
    opcode: Option<WqeOpcode>,
    message: u32,
    posted: u32,
    done: u32,
    /// Number of work requests that the sender keeps posted from now on; 0 if it posts only on
    /// [`Flows::post`].
    keep_posted: u32,
    failed: Option<WcStatus>,
    /// Payload bytes that have reached their destination.
    arrived: u64,
    out: Vec<Packet>,
    pool: Pool,
    timer: Option<u64>,
}

impl Host for FlowHost {
    fn fetch_send(
        &mut self,
        index: u32,
        wqe: &mut DecodedSendWqe,
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

    fn take_recv(&mut self, wqe: &mut DecodedRecvWqe) -> RecvFetch {
        wqe.sges.push(Sge {
            addr: 0,
            length: self.message,
            lkey: 1,
        });
        RecvFetch::Taken
    }

    fn recv_credits(&mut self) -> Option<u32> {
        Some(1 << 15)
    }

    fn check(&mut self, _key: &KeyUse) -> Result<(), Syndrome> {
        Ok(())
    }

    fn copy(&mut self, target: CopyTarget<'_>, source: CopySource<'_>) -> Result<(), CopyFault> {
        let length = match source {
            CopySource::Bytes(bytes) => bytes.len() as u32,
            CopySource::Gather { length, .. } | CopySource::Region { length, .. } => length,
        };
        if !matches!(target, CopyTarget::Buffer(_)) {
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

    fn complete(&mut self, completion: &WorkCompletion) -> bool {
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
enum FlowEvent {
    Arrival(usize, Packet),
    Timer(usize),
}

/// One direction of the link.
#[derive(Clone, Copy, Debug, Default)]
struct LinkDirection {
    /// Time in ns at which the last bit of the queue has left.
    busy_until_ns: u64,
    /// Time in ns since which the queue is measured.
    since_ns: u64,
    /// Integral of the queue's length over time, in byte-nanoseconds.
    area: u128,
    longest: u64,
    bytes: u64,
}

/// Senders, receivers and the link between them. Queue pair 2n sends to 2n + 1.
#[derive(Debug)]
pub struct Flows {
    load: FlowLoad,
    qps: Vec<Qp>,
    hosts: Vec<FlowHost>,
    directions: [LinkDirection; 2],
    rng: Rng,
    events: BinaryHeap<Reverse<(u64, u64, usize)>>,
    slots: Vec<Option<FlowEvent>>,
    free: Vec<usize>,
    number: u64,
    /// Payload of every frame.
    bytes: Rc<Vec<u8>>,
    /// Virtual time in nanoseconds.
    pub now_ns: u64,
}

impl Flows {
    /// Returns connected queue pairs. `config` may change the configuration of each, by its number.
    pub fn new(shape: FlowLoad, config: impl Fn(usize, &mut QpConfig)) -> Self {
        let mut flows = Self {
            qps: Vec::new(),
            hosts: Vec::new(),
            directions: [LinkDirection::default(); 2],
            rng: Rng::new(shape.seed),
            events: BinaryHeap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            number: 0,
            bytes: Rc::new(vec![0; shape.mtu as usize]),
            now_ns: 0,
            load: shape,
        };
        let shape = &flows.load;
        for me in 0..2 * shape.senders {
            let attr = Attr {
                path_mtu: shape.mtu,
                dest_qpn: me as u32 ^ 1,
                timeout: shape.timeout,
                max_rd_atomic: 16,
                max_dest_rd_atomic: 16,
                ..PairSetup::default().attr
            };
            let mut mine = QpConfig::new(me as u32, QpType::Rc, 1);
            mine.wire_window = shape.window;
            config(me, &mut mine);
            let mut qp = Qp::new(mine);
            let mut end = FlowHost {
                opcode: Some(shape.opcode),
                message: shape.message,
                ..FlowHost::default()
            };
            for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
                assert_eq!(qp.handle_modify(&mut end, 0, to, &attr), Ok(()));
            }
            flows.qps.push(qp);
            flows.hosts.push(end);
        }
        flows
    }

    /// Posts `messages` more messages on a sender.
    pub fn post(&mut self, sender: usize, messages: u32) {
        let end = &mut self.hosts[2 * sender];
        end.posted = end.posted.wrapping_add(messages);
        self.qps[2 * sender].handle_posts(self.now_ns, end.posted);
        self.run(2 * sender);
    }

    /// Lets a sender post a message for each one that completes from now on, so that the present
    /// number stays posted.
    pub fn keep_posting(&mut self, sender: usize) {
        let end = &mut self.hosts[2 * sender];
        end.keep_posted = end.posted.wrapping_sub(end.done);
    }

    /// Returns true if a sender has nothing more to do. The error is the status with which it
    /// failed.
    pub fn is_done(&self, sender: usize) -> Result<bool, WcStatus> {
        let end = &self.hosts[2 * sender];
        end.failed.map_or(Ok(end.done == end.posted), Err)
    }

    /// Returns the bytes of a sender that have arrived; those of a READ arrive at the sender
    /// itself.
    pub fn arrived(&self, sender: usize) -> u64 {
        self.hosts[2 * sender].arrived + self.hosts[2 * sender + 1].arrived
    }

    /// Returns the counters of a sender's queue pair and of its receiver's.
    pub fn counters(&self, sender: usize) -> [&Counters; 2] {
        [
            self.qps[2 * sender].counters(),
            self.qps[2 * sender + 1].counters(),
        ]
    }

    /// Returns the congestion counters of a sender's queue pair and of its receiver's.
    pub fn congestion(&self, sender: usize) -> [CongestionCounters; 2] {
        [
            self.qps[2 * sender].congestion(),
            self.qps[2 * sender + 1].congestion(),
        ]
    }

    /// Returns the number of packets that carry data, of all senders: for READs, the responses.
    pub fn sent(&self) -> u64 {
        let data = usize::from(self.load.opcode == WqeOpcode::RdmaRead);
        let each = self.qps.iter().skip(data).step_by(2);
        each.map(|qp| qp.counters().tx_packets - qp.counters().acks_sent)
            .sum()
    }

    /// Returns the average and the highest number of bytes in the queue before the link, in the
    /// direction of the data, since [`Flows::restart_measurement`] or the start.
    pub fn queue(&self) -> (u64, u64) {
        let way = self.data_direction();
        let time = (self.now_ns - way.since_ns).max(1);
        ((way.area / u128::from(time)) as u64, way.longest)
    }

    /// Restarts the measurement of the queue.
    pub fn restart_measurement(&mut self) {
        for way in &mut self.directions {
            (way.since_ns, way.area, way.longest, way.bytes) = (self.now_ns, 0, 0, 0);
        }
    }

    /// Returns the bytes that the link has carried, headers included.
    pub fn carried(&self) -> u64 {
        self.data_direction().bytes
    }

    /// Returns the direction of the link that the data take.
    fn data_direction(&self) -> &LinkDirection {
        &self.directions[usize::from(self.load.opcode == WqeOpcode::RdmaRead)]
    }

    /// Runs until a time, or until no event is left. Returns false in the second case.
    pub fn run_until(&mut self, end: u64) -> bool {
        while let Some(Reverse((at, _, slot))) = self.events.peek().copied() {
            if at > end {
                self.now_ns = end;
                return true;
            }
            self.events.pop();
            self.now_ns = at;
            self.free.push(slot);
            match self.slots[slot].take() {
                Some(FlowEvent::Arrival(to, packet)) => {
                    self.qps[to].handle_packet(&mut self.hosts[to], at, packet);
                    self.run(to);
                }
                Some(FlowEvent::Timer(me))
                    if self.hosts[me].timer.is_some_and(|timer| timer <= at) =>
                {
                    self.hosts[me].timer = None;
                    self.run(me);
                }
                _ => {}
            }
        }
        false
    }

    fn schedule(&mut self, at: u64, what: FlowEvent) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(what);
        self.number += 1;
        self.events.push(Reverse((at, self.number, slot)));
    }

    /// Polls a queue pair until it has nothing more to do.
    fn run(&mut self, me: usize) {
        let end = &mut self.hosts[me];
        if end.keep_posted > 0 {
            end.posted = end.done.wrapping_add(end.keep_posted);
            self.qps[me].handle_posts(self.now_ns, end.posted);
        }
        loop {
            let more = self.qps[me].poll(&mut self.hosts[me], self.now_ns, &mut sched::turn());
            let mut out = std::mem::take(&mut self.hosts[me].out);
            for packet in out.drain(..) {
                self.carry(me, packet);
            }
            self.hosts[me].out = out;
            if !more {
                break;
            }
        }
        let Some(at) = self.qps[me].next_deadline() else {
            return;
        };
        if self.hosts[me].timer.is_none_or(|timer| timer > at) {
            self.hosts[me].timer = Some(at);
            self.schedule(at, FlowEvent::Timer(me));
        }
    }

    /// Puts a packet on the link, as a frame with bytes of its own.
    fn carry(&mut self, from: usize, mut packet: Packet) {
        if self.rng.below(1000) < u64::from(self.load.loss) {
            return;
        }
        let way = &mut self.directions[from % 2];
        let bytes = u64::from(packet.payload.len()) + HEADERS;
        let begin = way.busy_until_ns.max(self.now_ns);
        let waits = begin - self.now_ns;
        let mark = self.load.mark;
        packet.marked = mark > 0 && waits * self.load.rate / 8_000 >= mark;
        way.busy_until_ns = begin + bytes * 8_000 / self.load.rate;
        way.area += u128::from(waits) * u128::from(bytes);
        way.longest = way.longest.max(waits * self.load.rate / 8_000);
        way.bytes += bytes;
        let at = way.busy_until_ns + self.load.delay_ns;
        let length = packet.payload.len();
        if length > 0 {
            packet.payload = Payload::Bytes {
                bytes: Rc::clone(&self.bytes),
                offset: 0,
                length,
            };
        }
        self.schedule(at, FlowEvent::Arrival(from ^ 1, packet));
    }
}
