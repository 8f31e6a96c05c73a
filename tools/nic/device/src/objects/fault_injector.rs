// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The fault injector of a device: its rules, and the frames that the rules keep back. A device
//! without rules has no injector.
//!
//! A rule decides which packets arrive; it never changes the state of a queue pair
//! (`device/fault_hooks.rs` has the hooks).

use crate::misbehave;
use crate::objects::qp::Env;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use verbena_abi::eqe::EventType;
use verbena_abi::syndrome::Syndrome;
use verbena_faults::{Direction, Effect, PacketAtHook, QpIdentity, RuleTable, Sequence};
use verbena_transport::host::WcStatus;
use verbena_transport::packet::PacketKind;
use verbena_transport::Packet;

/// Largest number of frames that are kept back. Further frames are lost.
const MAX_HELD: usize = 4096;
/// Time in nanoseconds after which a reordered frame is released if too few packets have passed.
const MAX_REORDER_NS: u64 = 10_000_000;

/// A frame that a rule has kept back to release it later.
#[derive(Clone, Debug)]
pub struct HeldFrame {
    /// Direction of the frame, as seen from the queue pair at which it was kept back.
    pub way: Direction,
    /// Number of the queue pair at which the frame was kept back.
    pub qpn: u32,
    /// True if the frame is for a queue pair of the same device.
    pub local: bool,
    /// Bytes of the frame.
    pub frame: Rc<Vec<u8>>,
    /// Text about the rule that kept the frame back, for the tap.
    pub note: Option<String>,
    /// Number of packets of the same queue pair and direction that have yet to pass before the
    /// frame is released; 0 if the frame only waits for its time.
    behind: u32,
}

impl HeldFrame {
    /// Creates a held frame without a note.
    pub fn new(way: Direction, qpn: u32, local: bool, frame: Rc<Vec<u8>>) -> Self {
        Self {
            way,
            qpn,
            local,
            frame,
            note: None,
            behind: 0,
        }
    }
}

/// The fault injector: see the module.
#[derive(Debug, Default)]
pub struct FaultInjector {
    /// Table of the rules.
    pub table: RuleTable,
    /// Frames that are kept back, by release time and then by sequence number.
    held: BTreeMap<(u64, u64), HeldFrame>,
    /// Sequence number of the next frame that is kept back.
    next: u64,
    /// True while the device releases the frames that are due.
    releasing: bool,
    /// PSNs of requests that rules have refused, by the queue pair that would have received them.
    /// The queue pair ignores later requests until the requester has retransmitted the refused
    /// request.
    refused: HashMap<u32, u32>,
    /// Set while a rule has the port down.
    port_cut: Option<Stall>,
    /// Set while a rule stalls the device.
    device_stall: Option<Stall>,
    /// Stalled queue pairs by number, each with the `owner` value that no other queue pair has or
    /// ever had.
    stalls: HashMap<u32, (u64, Stall)>,
    /// Misbehaviours that rules have switched on, each with the number of the rule.
    pub misbehaving: Vec<(misbehave::Kind, u64)>,
}

/// A stall of a queue pair, the device or the port, up to a time.
#[derive(Clone, Copy, Debug)]
struct Stall {
    until: u64,
    /// Number of the rule that caused the stall.
    rule: u64,
}

/// Returns the description of a queue pair that rules are matched with.
pub fn party(env: &Env) -> QpIdentity {
    QpIdentity {
        qpn: env.qpn(),
        created: env.owner,
        peer: env.attr.dest_qpn.get(),
    }
}

/// Returns the description of a packet at a queue pair that rules are matched with.
pub fn passing(env: &Env, way: Direction, packet: &Packet) -> PacketAtHook {
    // A response has the PSN of its request.
    let is_own = (way == Direction::Out) == packet.kind.is_request();
    let first_psn = if is_own {
        env.attr.sq_psn
    } else {
        env.attr.rq_psn
    };
    PacketAtHook {
        direction: way,
        qp: party(env),
        opcode: packet.opcode(),
        psn: packet.psn,
        first_psn: first_psn.get(),
        sequence: match packet.kind {
            PacketKind::Ack(_) | PacketKind::Cnp => None,
            _ if packet.kind.is_request() => Some(Sequence::Requests),
            _ => Some(Sequence::Responses),
        },
        first: packet.first,
        last: packet.last,
        psns: match &packet.kind {
            // A READ request has the PSNs of all its responses, but is one packet.
            PacketKind::ReadRequest(reth) => reth.length.div_ceil(env.path_mtu_bytes()).max(1),
            _ => packet.psns,
        },
        mtu: env.path_mtu_bytes(),
        bytes: packet.payload.len(),
    }
}

/// Returns the description of a packet whose sender does not exist any more.
pub fn passing_of_none(packet: &Packet) -> PacketAtHook {
    PacketAtHook {
        direction: Direction::Out,
        qp: QpIdentity {
            qpn: packet.src_qpn,
            created: 0,
            peer: packet.dst_qpn,
        },
        opcode: packet.opcode(),
        psn: packet.psn,
        first_psn: packet.psn,
        sequence: None,
        first: packet.first,
        last: packet.last,
        psns: packet.psns,
        mtu: packet.payload.len(),
        bytes: packet.payload.len(),
    }
}

impl FaultInjector {
    /// True if the injector has no rule, no frame and no stall left, so that it can be removed.
    pub fn is_idle(&self) -> bool {
        self.table.is_empty() && self.is_quiet()
    }

    /// True if the injector has only faults that the driver has injected.
    pub fn is_plain(&self) -> bool {
        self.table.added_count() == 0 && self.is_quiet()
    }

    /// True if no frame is kept back and nothing is stalled.
    pub fn is_quiet(&self) -> bool {
        self.held.is_empty() && self.device_stall.is_none() && self.stalls.is_empty()
    }

    /// Resets the injector with the device: resets the state of the rules, drops held frames and
    /// refused PSNs, and ends all stalls.
    pub fn reset(&mut self) {
        self.table.reset();
        self.held.clear();
        self.refused.clear();
        self.port_cut = None;
        self.device_stall = None;
        self.stalls.clear();
    }

    /// Forgets the PSNs of a queue pair that was reset or destroyed: the same PSNs now belong to
    /// other packets.
    pub fn forget_qp(&mut self, qpn: u32) {
        self.table.on_qp_reset(qpn);
        self.refused.remove(&qpn);
    }

    /// Applies the rules to a send with which a queue pair begins. Returns the status and the
    /// syndrome with which the send has to fail, if a rule asks for that.
    #[cold]
    pub fn send(&mut self, now: u64, env: &Env, opcode: u8) -> Option<(WcStatus, Syndrome)> {
        match self.table.on_send(now, &party(env), opcode)? {
            Effect::Complete(status, cause) => Some((status, cause)),
            Effect::Stall(ns, rule, _) => {
                self.stall(now, ns, rule, env);
                None
            }
            _ => None,
        }
    }

    /// Keeps a frame back for `ns` nanoseconds. The frame is lost if too many are kept back.
    pub fn delay(&mut self, now: u64, ns: u64, held: HeldFrame) {
        if self.held.len() < MAX_HELD {
            self.held.insert((now.saturating_add(ns), self.next), held);
            self.next += 1;
        }
    }

    /// Keeps a frame back until `packets` other packets of its queue pair and direction have
    /// passed.
    pub fn hold_behind(&mut self, now: u64, packets: u32, held: HeldFrame) {
        let behind = packets;
        self.delay(now, MAX_REORDER_NS, HeldFrame { behind, ..held });
    }

    /// Counts a packet that has passed. A frame that waited for this packet as the last one is due
    /// now.
    pub fn passed(&mut self, now: u64, way: Direction, qpn: u32) {
        let mut due = Vec::new();
        for (at, held) in &mut self.held {
            if held.behind > 0 && (held.way, held.qpn) == (way, qpn) {
                held.behind -= 1;
                if held.behind == 0 {
                    due.push(*at);
                }
            }
        }
        for at in due {
            if let Some(held) = self.held.remove(&at) {
                self.held.insert((now, at.1), held);
            }
        }
    }

    /// Marks that the device releases due frames. Returns false if it was doing so already.
    pub fn begin_releasing(&mut self) -> bool {
        !std::mem::replace(&mut self.releasing, true)
    }

    /// Marks that the device has released all due frames.
    pub fn end_releasing(&mut self) {
        self.releasing = false;
    }

    /// Takes the next frame that is due.
    pub fn due(&mut self, now: u64) -> Option<HeldFrame> {
        let first = self.held.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// Returns the time at which the injector has something to do next.
    pub fn next_due(&self) -> Option<u64> {
        let held = self.held.first_key_value().map(|((at, _), _)| *at);
        let rest = self.device_stall.map(|stall| stall.until);
        let stalls = self.stalls.values().map(|(_, stall)| stall.until).min();
        let cut = self.port_cut.map(|stall| stall.until);
        let cut = cut.filter(|until| *until < u64::MAX);
        let all = [held, self.table.next_due(), rest, stalls, cut];
        all.into_iter().flatten().min()
    }

    /// Takes the port down by a rule, for `ns` nanoseconds or without limit. Returns true if no
    /// rule had taken the port down before.
    pub fn cut_port(&mut self, now: u64, ns: Option<u64>, rule: u64) -> bool {
        let until = ns.map_or(u64::MAX, |ns| now.saturating_add(ns));
        self.port_cut.replace(Stall { until, rule }).is_none()
    }

    /// Ends the time in which a rule has the port down.
    pub fn end_port_cut(&mut self) {
        self.port_cut = None;
    }

    /// True if a rule has taken the port down.
    pub fn is_port_cut(&self) -> bool {
        self.port_cut.is_some()
    }

    /// Stalls a queue pair for `ns` nanoseconds.
    pub fn stall(&mut self, now: u64, ns: u64, rule: u64, env: &Env) {
        let until = now.saturating_add(ns);
        let stall = Stall { until, rule };
        self.stalls.insert(env.qpn(), (env.owner, stall));
    }

    /// Stalls the whole device for `ns` nanoseconds.
    pub fn stall_device(&mut self, now: u64, ns: u64, rule: u64) {
        let until = now.saturating_add(ns);
        self.device_stall = Some(Stall { until, rule });
    }

    /// Returns the time up to which a queue pair is stalled, by a stall of its own or of the
    /// device.
    pub fn stall_of(&self, env: &Env) -> Option<u64> {
        let own = self.stalls.get(&env.qpn());
        let own = own.filter(|(owner, _)| *owner == env.owner);
        [own.map(|(_, stall)| *stall), self.device_stall]
            .into_iter()
            .flatten()
            .map(|stall| stall.until)
            .max()
    }

    /// Returns the time up to which the device is stalled; none if it works. An expired stall is
    /// removed.
    pub fn stalled_until(&mut self, now: u64) -> Option<u64> {
        self.device_stall = self.device_stall.filter(|stall| now < stall.until);
        self.device_stall.map(|stall| stall.until)
    }

    /// Ends the stalls of queue pairs and the cut of the port that have expired. Returns the queue
    /// pairs that continue.
    pub fn end_expired_stalls(&mut self, now: u64) -> Vec<u32> {
        self.port_cut = self.port_cut.filter(|stall| stall.until > now);
        let over = self.stalls.iter();
        let over = over.filter(|(_, (_, stall))| stall.until <= now);
        let mut over: Vec<u32> = over.map(|(qpn, _)| *qpn).collect();
        // Sorted, so that each run has the same order.
        over.sort_unstable();
        self.stalls.retain(|_, (_, stall)| stall.until > now);
        over
    }

    /// Ends the stalls and the cut of rules that were removed.
    pub fn end_stalls_of_removed_rules(&mut self, now: u64) {
        let table = &self.table;
        self.port_cut = self.port_cut.filter(|stall| table.has(stall.rule));
        let stalls = self.stalls.values_mut().map(|(_, stall)| stall);
        for stall in stalls.chain(&mut self.device_stall) {
            if !table.has(stall.rule) {
                stall.until = stall.until.min(now);
            }
        }
    }

    /// Returns the misbehaviours of rules that were removed, unless another rule has the same one.
    pub fn take_ended_misbehaviours(&mut self) -> Vec<misbehave::Kind> {
        let table = &self.table;
        let (stay, gone): (Vec<_>, Vec<_>) = std::mem::take(&mut self.misbehaving)
            .into_iter()
            .partition(|(_, rule)| table.has(*rule));
        self.misbehaving = stay;
        let gone = gone.into_iter().map(|(kind, _)| kind);
        gone.filter(|kind| self.misbehaving.iter().all(|(other, _)| other != kind))
            .collect()
    }

    /// Returns the number of times that an event is reported to the driver: 0 if a rule withholds
    /// it, more than 1 if a rule repeats it.
    #[cold]
    pub fn events(&mut self, now: u64, kind: EventType) -> u32 {
        match self.table.on_event(now, kind.to_raw()) {
            Some(Effect::Withhold) => 0,
            Some(Effect::Repeat(more)) => more.saturating_add(1),
            _ => 1,
        }
    }

    /// True if a rule withholds the interrupt of this vector.
    #[cold]
    pub fn withholds(&mut self, now: u64, vector: u16) -> bool {
        self.table.on_interrupt(now, vector) == Some(Effect::Withhold)
    }

    /// Notes that a rule has refused a request in the name of a queue pair.
    pub fn refuse(&mut self, qpn: u32, psn: u32) {
        self.refused.insert(qpn, psn);
    }

    /// True if a request with this PSN comes after a refused one that the queue pair still expects
    /// (`expected` is its expected PSN), so that the queue pair has to ignore it.
    pub fn ignores(&mut self, qpn: u32, psn: u32, expected: u32) -> bool {
        let Some(refused) = self.refused.get(&qpn).copied() else {
            return false;
        };
        let is_behind = refused == expected && refused != psn;
        if !is_behind {
            self.refused.remove(&qpn);
        }
        is_behind
    }
}
