// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The queue of future events, and the links with their effects on packets.

use super::calls::same_packet;
use super::coverage::Topic;
use super::{PayloadSample, SimNetwork};
use crate::link_model::LinkMode;
use crate::tap::FrameFate;
use crate::Rng;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;
use verbena_transport::frame;
use verbena_transport::host::CopyFault;
use verbena_transport::packet::{Packet, Payload};
use verbena_transport::wire::{ecn, Path};
use verbena_transport::{Host, QpType};

/// A packet on its way.
#[derive(Clone, Debug)]
pub struct PacketArrival {
    /// Index of the receiving end.
    pub to: usize,
    /// Index of the sending end.
    pub from: usize,
    /// Number of resets of the sender when it sent the packet.
    pub life: u32,
    /// The work request that the packet belongs to, where the model knows it.
    pub op: Option<u32>,
    /// The packet as it was sent.
    pub packet: Packet,
    /// Bytes of the frame, in mode [`LinkMode::Wire`].
    pub frame: Option<Rc<Vec<u8>>>,
    /// True if bits were flipped on the way.
    pub corrupt: bool,
}

/// An event that will happen.
#[derive(Clone, Debug)]
pub enum SimEvent {
    /// A packet arrives.
    Arrival(PacketArrival),
    /// A deadline passes.
    Timer(usize),
    /// The machine polls a queue pair.
    Poll(usize),
    /// A program acts.
    Act(usize),
    /// A QP leaves SQD.
    Resume(usize),
    /// A connection is made anew.
    Reconnect(usize),
    /// The second end becomes ready to send.
    Connected(usize, u32),
    /// A frozen machine goes on.
    Thaw(usize),
}

/// The behaviour of one direction of a link.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkConditions {
    /// Delay from end to end in nanoseconds.
    pub delay_ns: u64,
    /// Largest additional random delay in nanoseconds.
    pub jitter_ns: u64,
    /// Percentage of packets that are lost.
    pub loss: u32,
    /// Percentage of packets that are doubled.
    pub duplication: u32,
    /// Percentage of packets that come very late.
    pub straggling: u32,
    /// Percentage of packets that are marked (CE).
    pub marking: u32,
    /// Percentage of frames that are corrupted.
    pub corruption: u32,
    /// Percentage of packets that are forged.
    pub forgery: u32,
    /// Time in ns before which no packet passes.
    pub cut_until_ns: u64,
    /// Time in ns at which the last packet arrives.
    pub last_arrival_ns: u64,
    /// True if the link calms down before retries run out.
    pub bounded: bool,
}

/// The future events and the links.
#[derive(Debug)]
pub struct EventQueue {
    heap: BinaryHeap<Reverse<(u64, u64, u32)>>,
    slots: Vec<Option<SimEvent>>,
    free: Vec<u32>,
    number: u64,
    /// Conditions of the packets that each end sends.
    pub links: Vec<LinkConditions>,
    pub(super) rng: Rng,
}

impl EventQueue {
    pub fn new() -> Self {
        Self {
            heap: BinaryHeap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            number: 0,
            links: Vec::new(),
            rng: Rng::new(0),
        }
    }

    pub fn clear(&mut self, seed: u64) {
        self.heap.clear();
        self.slots.clear();
        self.free.clear();
        self.links.clear();
        self.number = 0;
        self.rng = Rng::new(seed ^ 0x5eed);
    }

    /// Schedules an event.
    pub fn schedule(&mut self, at: u64, what: SimEvent) {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(None);
                self.slots.len() as u32 - 1
            }
        };
        self.slots[slot as usize] = Some(what);
        self.number += 1;
        self.heap.push(Reverse((at, self.number, slot)));
    }

    /// Removes and returns the next event.
    pub fn pop(&mut self) -> Option<(u64, SimEvent)> {
        let Reverse((at, _, slot)) = self.heap.pop()?;
        self.free.push(slot);
        let what = self.slots[slot as usize].take();
        Some((at, what.expect("each event happens once")))
    }
}

impl SimNetwork {
    /// Puts the packets that an end has sent on its link.
    pub(super) fn carry(&mut self, me: usize) {
        loop {
            let mut out = std::mem::take(&mut self.model.qps[me].out);
            for packet in out.drain(..) {
                let op = self.model.observe(me, &packet);
                if self.model.qps[me].mode == LinkMode::Local {
                    self.carry_one(me, packet, op);
                } else {
                    let mtu = self.model.qps[me].attr.path_mtu;
                    packet
                        .split(mtu)
                        .for_each(|packet| self.carry_one(me, packet, op));
                }
            }
            // A frame whose memory was gone may have made the queue pair send more.
            if self.model.qps[me].out.is_empty() {
                self.model.qps[me].out = out;
                return;
            }
        }
    }

    /// True if the link of an end has to be fair now, so that retries do not run out.
    fn must_be_fair(&self, me: usize) -> bool {
        let end = &self.model.qps[me];
        let worn = |end: &super::qp_model::QpModel| {
            let most = u32::from(end.attr.retry_cnt).saturating_sub(3);
            end.go_backs >= most
        };
        self.events.links[me].bounded
            && end.qp_type == QpType::Rc
            && (worn(end) || worn(&self.model.qps[end.peer]))
    }

    /// True if neither end has gone back since it last made progress.
    fn is_fresh(&self, me: usize, to: usize) -> bool {
        self.model.qps[me].go_backs == 0 && self.model.qps[to].go_backs == 0
    }

    fn record_disturbance(&mut self, from: usize, to: usize, what: u8) {
        self.model.qps[from].disturbed = true;
        self.model.qps[to].disturbed = true;
        self.model.coverage.count(Topic::Link, what, 0);
    }

    fn carry_one(&mut self, me: usize, mut packet: Packet, op: Option<u32>) {
        let end = &self.model.qps[me];
        let to = match (end.qp_type, op) {
            (QpType::Ud, Some(op)) => self.model.ops[op as usize].destination,
            _ => end.peer,
        };
        let (mode, life) = (end.mode, end.life);
        let now = self.model.now_ns;
        let calm = self.must_be_fair(me);
        let conditions = self.events.links[me];
        if let Payload::Gather { gather, .. } = &packet.payload {
            if self.events.rng.chance(2) {
                let (op, gather) = (op.unwrap_or(u32::MAX), Rc::clone(gather));
                self.samples.push(PayloadSample { op, gather });
            }
        }
        if now < conditions.cut_until_ns {
            self.record_disturbance(me, to, 5);
            self.model.trace(me, || "  cut off".into());
            self.report_to_tap(me, &packet, op, None, FrameFate::Lost);
            return;
        }
        if !calm && self.events.rng.chance(conditions.loss) {
            self.record_disturbance(me, to, 1);
            self.model.trace(me, || "  lost".into());
            self.report_to_tap(me, &packet, op, None, FrameFate::Lost);
            return;
        }
        let markable = packet.datagram.is_none() && conditions.marking > 0;
        packet.marked = markable && self.events.rng.chance(conditions.marking);
        if packet.marked {
            self.model.coverage.count(Topic::Link, 8, 0);
        }
        let mut arrival = PacketArrival {
            to,
            from: me,
            life,
            op,
            packet,
            frame: None,
            corrupt: false,
        };
        if mode == LinkMode::Wire && !self.make_frame(me, &mut arrival) {
            return;
        }
        let corrupts =
            !calm && mode == LinkMode::Wire && self.events.rng.chance(conditions.corruption);
        if self.tap.is_some() {
            let fate = if corrupts {
                FrameFate::Corrupted
            } else {
                FrameFate::Delivered
            };
            let frame = arrival.frame.clone();
            let frame = frame.as_deref().map(Vec::as_slice);
            self.report_to_tap(me, &arrival.packet, op, frame, fate);
        }
        if corrupts {
            self.record_disturbance(me, to, 3);
            self.model.trace(me, || "  corrupted".into());
            self.corrupt(&mut arrival);
        }
        if conditions.forgery > 0 && self.events.rng.chance(conditions.forgery) {
            self.record_disturbance(me, to, 6);
            self.forge(&mut arrival);
        }
        let twice = !calm && self.events.rng.chance(conditions.duplication);
        if twice {
            self.record_disturbance(me, to, 2);
        }
        for _ in 0..1 + u32::from(twice) {
            let mut at = now + conditions.delay_ns;
            let last = self.events.links[me].last_arrival_ns;
            if calm || conditions.jitter_ns == 0 {
                at = at.max(last);
            } else {
                at += self.events.rng.below(conditions.jitter_ns + 1);
                if self.events.rng.chance(conditions.straggling) && self.is_fresh(me, to) {
                    at += self.events.rng.below(2_000_000);
                }
                if at < last {
                    self.model.qps[me].disturbed = true;
                    self.model.qps[to].disturbed = true;
                }
            }
            if at < now + 100_000 {
                self.events.links[me].last_arrival_ns = at.max(last);
            }
            self.events.schedule(at, SimEvent::Arrival(arrival.clone()));
        }
    }

    /// Makes a frame of a packet. Returns false if the packet's memory is gone.
    fn make_frame(&mut self, me: usize, arrival: &mut PacketArrival) -> bool {
        let packet = &arrival.packet;
        if !packet.payload.is_alive() {
            return false;
        }
        let path = match &packet.datagram {
            Some(datagram) => datagram.path,
            // The router's mark replaces the ECN bits that the path has.
            None => {
                let ecn = if packet.marked { ecn::CE } else { ecn::ECT0 };
                let path = self.model.qps[me].path;
                Path {
                    traffic_class: path.traffic_class & !ecn::MASK | ecn,
                    ..path
                }
            }
        };
        let mut buffer = self.model.pool.buffer(packet.payload.len() as usize);
        let mut host = self.model.host(me);
        let bytes = Rc::get_mut(&mut buffer).expect("the buffer has no other references");
        bytes.clear();
        let emitted = frame::emit(&path, packet, bytes, |place| {
            if place.is_empty() {
                return Ok(());
            }
            host.copy(
                verbena_transport::host::CopyTarget::Buffer(place),
                packet.payload.source(),
            )
        });
        match emitted {
            Ok(()) => {
                self.model.pool.keep_buffer(&buffer);
                arrival.frame = Some(buffer);
                true
            }
            Err(CopyFault::Source(cause) | CopyFault::Target(cause)) => {
                let packet = packet.clone();
                self.source_fault(me, &packet, cause);
                false
            }
        }
    }

    /// Flips one to three bits after the Ethernet header.
    fn corrupt(&mut self, arrival: &mut PacketArrival) {
        let Some(frame) = &arrival.frame else {
            return;
        };
        let mut bytes = frame.to_vec();
        for _ in 0..1 + self.events.rng.below(3) {
            let at = 14 + self.events.rng.below(bytes.len() as u64 - 14) as usize;
            bytes[at] ^= 1 << self.events.rng.below(8);
        }
        arrival.frame = Some(Rc::new(bytes));
        arrival.corrupt = true;
    }

    /// Handles the arrival of a packet.
    pub(super) fn arrive(&mut self, arrival: PacketArrival) {
        let to = arrival.to;
        if self.model.qps[to].frozen {
            return;
        }
        let (from, life) = (&self.model.qps[arrival.from], arrival.life);
        let strict = self.model.qps[to].strict;
        if from.qp_type != QpType::Ud
            && strict
            && (from.life != life || self.model.qps[to].life != life)
        {
            self.model.coverage.count(Topic::Turmoil, 11, 0);
            if !self.events.rng.chance(15) {
                return;
            }
            // After this, only the reference judges these ends, because it judges by packets.
            for end in [arrival.from, to] {
                self.model.qps[end].strict = false;
            }
        }
        let mut packet = arrival.packet;
        if let Some(bytes) = arrival.frame {
            match frame::parse_in(&bytes, &mut self.model.pool) {
                Ok(frame) if arrival.corrupt => {
                    assert!(
                        same_packet(&frame.packet, &packet),
                        "a corrupt frame is accepted: {:?} was {packet:?}",
                        frame.packet
                    );
                    self.model.coverage.count(Topic::Link, 4, 0);
                    // The corrupted fields are those that routers may change, so the GRH of a
                    // datagram differs.
                    if packet.datagram.is_some() {
                        return;
                    }
                    packet = frame.packet;
                }
                Ok(frame) => {
                    assert!(same_packet(&frame.packet, &packet), "{packet:?}: {frame:?}");
                    packet = frame.packet;
                }
                Err(cause) => {
                    assert!(arrival.corrupt, "{packet:?}: {cause:?}");
                    return;
                }
            }
        }
        self.model.coverage.count(Topic::Link, 0, 0);
        self.deliver(to, packet, arrival.op);
    }
}
