// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The hooks of the fault injector: where rules (`verbena_faults`) are asked, and their effects.
//!
//! | hook | where |
//! | --- | --- |
//! | a packet that a QP sends | [`Device::deliver`], before the packet goes anywhere |
//! | a packet between two QPs of the device | `device/loss.rs`, after the rules of both QPs |
//! | a packet that a QP receives | [`Device::deliver`] if by reference, else before the hand-over |
//! | a send that the device begins with | `execution/host.rs`, `fetch_send` |
//! | a command | `device/cmd/mod.rs`, before it is executed |
//! | an event, an interrupt | `execution/resources.rs`, `push_event` and `interrupt` |
//! | a point in time | at the beginning of a slice |
//!
//! Packets that a rule of packets concerns are split into single packets. A packet that a rule
//! alters becomes a frame, and goes the way of frames from there. So rules have the same effect on
//! packets by reference and on packets from a wire. All other packets stay as they are.

use crate::capture::CaptureDirection;
use crate::device::net::Delivered;
use crate::device::Device;
use crate::error::{bad, CmdError};
use crate::execution::copy::Side;
use crate::memory::GuestMemory;
use crate::objects::fault_injector::{party, passing, FaultInjector, HeldFrame};
use crate::objects::port::Outgoing;
use crate::observation::event::{Call, DeviceEvent, DropReason, FiredOn};
use std::rc::Rc;
use verbena_abi::cmd::CmdStatus;
use verbena_abi::syndrome::Syndrome;
use verbena_faults::{
    alter, Action, Direction, Effect, Rule, RuleHook, RuleSet, RuleStatus, LOSS_OPTION,
};
use verbena_transport::host::Host;
use verbena_transport::packet::{Aeth, AethSyndrome, NakCode, PacketKind};
use verbena_transport::wire::bth::MULTICAST_QPN;
use verbena_transport::wire::{ecn, Path};
use verbena_transport::Packet;

/// Most frames that one call of [`Device::release`] sends on.
const SLICE_HELD_FRAMES: u32 = 64;

/// Decodes the syndrome byte of an AETH.
fn syndrome(byte: u8) -> AethSyndrome {
    let value = byte & 0x1f;
    match byte & 0x60 {
        0x20 => AethSyndrome::Rnr { timer: value },
        _ => AethSyndrome::Nak(match value {
            0 => NakCode::Sequence,
            1 => NakCode::InvalidRequest,
            2 => NakCode::RemoteAccess,
            3 => NakCode::RemoteOperational,
            _ => NakCode::InvalidRd,
        }),
    }
}

/// Refuses rules by which the NIC misbehaves, unless the NIC was built for that.
fn can_misbehave(set: &RuleSet) -> Result<(), String> {
    let mut rules = set.rule.iter();
    let misbehaves = |rule: &&Rule| matches!(rule.action, Action::Misbehave(_));
    match rules.find(misbehaves) {
        Some(rule) if !cfg!(feature = "misbehave") => Err(format!(
            "rule {:?}: action.misbehave: this verbena-nic cannot misbehave: build it with the feature misbehave (scripts/build hostile-nic)",
            rule.name
        )),
        _ => Ok(()),
    }
}

impl Device {
    /// Adds all rules of a set or none. Rules with an owner are removed with
    /// [`Device::remove_rules_of`]. Rules stay over resets.
    ///
    /// # Errors
    ///
    /// A rule is invalid, or conflicts with the rules that are there.
    pub fn add_rules(&mut self, set: &RuleSet, owner: Option<u64>, now: u64) -> Result<(), String> {
        self.record_add_rules(set, owner, now);
        let created = self.shared.created.qps();
        let faults = self.shared.faults.get_or_insert_default();
        let added = can_misbehave(set).and_then(|()| faults.table.add(set, owner, now, created));
        if added.is_ok() {
            self.shared.report(DeviceEvent::RulesAdded {
                rules: &set.rule,
                late: false,
            });
            self.misbehave_at_once(now);
        }
        self.record_rules_added(added.is_ok());
        self.drop_idle_injector();
        added
    }

    /// Removes a rule. False if there is no rule of that name.
    pub fn remove_rule(&mut self, name: &str) -> bool {
        self.shared
            .report(DeviceEvent::Called(Call::RemoveRule { name }));
        let faults = self.shared.faults.as_mut();
        let removed = faults.is_some_and(|faults| faults.table.remove(name));
        self.drop_idle_injector();
        removed
    }

    /// Removes all rules of an owner.
    pub fn remove_rules_of(&mut self, owner: u64) {
        self.shared
            .report(DeviceEvent::Called(Call::RemoveRulesOf { owner }));
        let faults = self.shared.faults.iter_mut();
        faults.for_each(|faults| faults.table.remove_of_owner(owner));
        self.drop_idle_injector();
    }

    /// Removes all rules of this device.
    pub fn clear_rules(&mut self) {
        self.clear_added_rules();
        if self.has_loss() {
            self.remove_rule(LOSS_OPTION);
        }
        let injected = |device: &Self| {
            let faults = device.shared.faults.as_ref()?;
            faults.table.injected_name().map(String::from)
        };
        while let Some(name) = injected(self) {
            self.remove_rule(&name);
        }
    }

    /// Removes all rules but those of `verbena-nic --drop` and INJECT_FAULT. In a recording from
    /// before these were rules, a removal of all rules left them as they were.
    pub(super) fn clear_added_rules(&mut self) {
        self.shared.report(DeviceEvent::Called(Call::ClearRules));
        let faults = self.shared.faults.iter_mut();
        faults.for_each(|faults| faults.table.clear_all_but(LOSS_OPTION));
        self.drop_idle_injector();
    }

    /// Returns the rules, each with the number of times that it fired.
    pub fn rules(&self) -> Vec<RuleStatus> {
        let faults = self.shared.faults.as_ref();
        faults.map_or_else(Vec::new, |faults| faults.table.statuses())
    }

    /// Ends the effects of rules that are gone, and drops the injector when it is empty, so that
    /// a device without rules pays nothing for it.
    fn drop_idle_injector(&mut self) {
        let now = self.shared.clock.now();
        // A device that is reset or replaced does not begin with a rule that was removed.
        if !self.has_loss() {
            self.shared.set_drop_percent(0);
        }
        self.faults()
            .into_iter()
            .for_each(|faults| faults.end_stalls_of_removed_rules(now));
        self.end_misbehaviours();
        if self
            .shared
            .faults
            .as_ref()
            .is_some_and(|faults| faults.is_idle())
        {
            self.shared.faults = None;
        }
    }

    pub(super) fn faults(&mut self) -> Option<&mut FaultInjector> {
        self.shared.faults.as_deref_mut()
    }

    /// True if a rule may apply to packets of a QP.
    pub(super) fn is_concerned(&self, way: Direction, qpn: u32) -> bool {
        let (Some(faults), Some(qp)) = (&self.shared.faults, self.qps.get(qpn)) else {
            return false;
        };
        faults.is_port_cut()
            || faults.stall_of(&qp.env).is_some()
            || faults.table.has_packet_rules_for(way, &party(&qp.env))
    }

    /// Returns the effect of the rules on a packet at a QP, if there is one.
    fn effect_on_packet(&mut self, way: Direction, qpn: u32, packet: &Packet) -> Option<Effect> {
        let (Some(faults), Some(qp)) = (&mut self.shared.faults, self.qps.get(qpn)) else {
            return None;
        };
        if way == Direction::In && packet.kind.is_request() {
            let expected = qp.transport.snapshot().expected_psn;
            if faults.ignores(qpn, packet.psn, expected) {
                return Some(Effect::Drop);
            }
        }
        let now = self.shared.clock.now();
        let passing = passing(&qp.env, way, packet);
        let effect = faults.table.on_packet(now, &passing);
        let stalled = faults.stall_of(&qp.env);
        self.shared.report(DeviceEvent::PacketJudged {
            passing: &passing,
            fired: effect.is_some(),
        });
        effect.or_else(|| Some(Effect::Delay(stalled?.saturating_sub(now))))
    }

    /// Delivers a sent super-packet, packet by packet if a rule concerns it.
    #[cold]
    pub(super) fn deliver_by_rules<M: GuestMemory>(&mut self, mem: &M, out: Outgoing) -> Delivered {
        if self.is_port_cut() {
            let mut lost = Delivered::default();
            lost.count(&out);
            return lost;
        }
        let (from, to) = (out.packet.src_qpn, out.packet.dst_qpn);
        let by_reference = out.local && !self.shared.config().wire_local && to != MULTICAST_QPN;
        let leaves = self.is_concerned(Direction::Out, from);
        let arrives = by_reference && self.is_concerned(Direction::In, to);
        let may_be_lost =
            by_reference && self.faults().is_some_and(|faults| faults.table.has_local());
        if !self.shared.port.sends(from) || !(leaves || arrives || may_be_lost) {
            return self.deliver_freely(mem, out);
        }
        let Outgoing {
            packet,
            path,
            mtu,
            local,
        } = out;
        let mut all = Delivered::default();
        for packet in packet.split(mtu) {
            let out = Outgoing {
                packet,
                path: path.clone(),
                mtu,
                local,
            };
            let mut next = Some(out);
            for (way, qpn, asked) in [(Direction::Out, from, leaves), (Direction::In, to, arrives)]
            {
                if asked {
                    next = next.and_then(|out| self.apply_rules(mem, way, qpn, out));
                }
            }
            let delivered = next.map(|out| self.deliver_freely(mem, out));
            all.packets += delivered.as_ref().map_or(1, |one| one.packets);
            all.bytes += delivered.map_or(0, |one| one.bytes);
            for (way, qpn, asked) in [(Direction::Out, from, leaves), (Direction::In, to, arrives)]
            {
                if asked {
                    self.pass(mem, way, qpn);
                }
            }
            self.follow_deaths(mem);
        }
        all
    }

    /// Applies the rules of a QP to a packet. Returns the packet if it goes on as a packet. None if
    /// it was dropped or became a frame.
    fn apply_rules<M: GuestMemory>(
        &mut self,
        mem: &M,
        way: Direction,
        qpn: u32,
        mut out: Outgoing,
    ) -> Option<Outgoing> {
        let Some(effect) = self.effect_on_packet(way, qpn, &out.packet) else {
            return Some(out);
        };
        match effect {
            Effect::Drop => {
                self.shared.show_local(mem, &out, true);
                None
            }
            Effect::Nak(byte) => match &mut out.packet.kind {
                PacketKind::Ack(aeth) => {
                    aeth.syndrome = syndrome(byte);
                    Some(out)
                }
                _ if way == Direction::In && out.packet.transport.is_reliable() => {
                    self.refuse(mem, qpn, &out, syndrome(byte))
                }
                _ => Some(out),
            },
            // A received packet, or one that stays in the device, has no IP header to mark.
            Effect::MarkEcn if way == Direction::In || out.local => {
                out.packet.marked = true;
                Some(out)
            }
            Effect::QpError(_)
            | Effect::CqOverflow(..)
            | Effect::KillSrq(_)
            | Effect::Misbehave(..)
            | Effect::PortUp => {
                // The request is shown before the effect. If the effect ends the work requests of
                // the QP, the payload of the request is gone with them.
                if way == Direction::Out && out.packet.kind.is_request() {
                    self.shared.show_local(mem, &out, true);
                }
                self.apply_effect(mem, Some(qpn), &effect);
                Some(out)
            }
            // The effect stops all traffic of the device, this packet included.
            Effect::Fatal | Effect::PortDown(..) => {
                self.shared.show_local(mem, &out, true);
                self.apply_effect(mem, Some(qpn), &effect);
                None
            }
            Effect::Stall(ns, ..) | Effect::StallDevice(ns, _) => {
                self.apply_effect(mem, Some(qpn), &effect);
                self.replace(mem, way, qpn, &out, &Effect::Delay(ns));
                None
            }
            _ => {
                self.replace(mem, way, qpn, &out, &effect);
                None
            }
        }
    }

    /// Answers a request with a NAK in the name of the QP, which does not receive the request.
    /// Returns None, as `apply_rules` does for a packet that does not go on.
    fn refuse<M: GuestMemory>(
        &mut self,
        mem: &M,
        qpn: u32,
        out: &Outgoing,
        syndrome: AethSyndrome,
    ) -> Option<Outgoing> {
        self.shared.show_local(mem, out, true);
        let request = &out.packet;
        let refused = self.with_qp(mem, qpn, |transport, host| {
            let responder = transport.snapshot();
            // A request out of order or a duplicate gets no such answer: it is only lost.
            if responder.expected_psn != request.psn {
                return false;
            }
            let kind = PacketKind::Ack(Aeth {
                syndrome,
                msn: responder.msn,
            });
            host.transmit(Packet {
                kind,
                first: true,
                last: true,
                solicited: false,
                ack_req: false,
                dst_qpn: host.env.attr.dest_qpn.get(),
                src_qpn: qpn,
                psns: 1,
                srqn: 0,
                marked: false,
                datagram: None,
                payload: verbena_transport::Payload::None,
                ..request.clone()
            });
            true
        });
        let psn = request.psn;
        if let (Some(true), Some(faults)) = (refused, self.faults()) {
            faults.refuse(qpn, psn);
        }
        None
    }

    /// Makes a frame of a packet and applies the effect to the frame.
    fn replace<M: GuestMemory>(
        &mut self,
        mem: &M,
        way: Direction,
        qpn: u32,
        out: &Outgoing,
        effect: &Effect,
    ) {
        let Some(mut path) = out.path().copied() else {
            return;
        };
        if *effect == Effect::MarkEcn {
            path.traffic_class |= ecn::CE;
        }
        let Some(frame) = self.frame(mem, &path, &out.packet) else {
            return;
        };
        let (now, local) = (self.shared.clock.now(), out.local);
        let mut held = HeldFrame::new(way, qpn, local, frame);
        if way == Direction::Out {
            held.note = self.shared.observers.capture_mut().take_remark();
        } else if local {
            // A packet that came by reference was not shown yet.
            self.shared.show_local(mem, out, false);
        }
        match effect {
            Effect::Delay(ns) => self
                .faults()
                .into_iter()
                .for_each(|faults| faults.delay(now, *ns, held.clone())),
            Effect::Reorder(n) => {
                // `pass` counts the packet of this frame too.
                let behind = n.saturating_add(1);
                self.faults()
                    .into_iter()
                    .for_each(|faults| faults.hold_behind(now, behind, held.clone()));
            }
            Effect::Duplicate(copies) => {
                (0..*copies).for_each(|_| self.send_on(mem, held.clone()));
                self.send_on(mem, held);
            }
            Effect::Corrupt(how) => {
                let mut bytes = held.frame.to_vec();
                // A frame that has no such field stays as it is.
                alter::corrupt(&mut bytes, self.shared.config().link_layer, how);
                held.frame = Rc::new(bytes);
                self.send_on(mem, held);
            }
            _ => self.send_on(mem, held),
        }
    }

    /// Takes note that a packet of a QP has passed, and sends on the frames that are due now.
    fn pass<M: GuestMemory>(&mut self, mem: &M, way: Direction, qpn: u32) {
        let now = self.shared.clock.now();
        if let Some(faults) = self.faults() {
            faults.passed(now, way, qpn);
        }
        self.release(mem);
    }

    /// Sends on the frames that are due. Each of them is a packet that passes, after which further
    /// frames may be due. Only the outermost call sends those on, so that calls do not nest.
    fn release<M: GuestMemory>(&mut self, mem: &M) {
        let now = self.shared.clock.now();
        if !self.faults().is_some_and(FaultInjector::begin_releasing) {
            return;
        }
        for _ in 0..SLICE_HELD_FRAMES {
            let Some(held) = self.faults().and_then(|faults| faults.due(now)) else {
                break;
            };
            self.send_on(mem, held);
        }
        self.faults()
            .into_iter()
            .for_each(FaultInjector::end_releasing);
    }

    /// Sends a frame on from the hook at which it was made.
    fn send_on<M: GuestMemory>(&mut self, mem: &M, held: HeldFrame) {
        if !self.shared.port.up || self.is_port_cut() {
            return;
        }
        if held.way == Direction::In {
            match self.parse(&held.frame) {
                Ok(frame) => self.hand_over_freely(mem, &frame.path, frame.packet),
                Err(verbena_transport::wire::Malformed::Icrc) => {
                    self.shared.drop_packet(DropReason::Icrc);
                }
                Err(_) => self.shared.drop_packet(DropReason::Malformed),
            }
        } else if held.local {
            self.shared
                .observers
                .capture_mut()
                .put_remark(held.note.clone());
            self.show_frame(CaptureDirection::Local, &held);
            self.parse_frame(mem, held.frame);
        } else {
            if self.egress.has_room() {
                self.shared
                    .observers
                    .capture_mut()
                    .put_remark(held.note.clone());
                self.show_frame(CaptureDirection::Sent, &held);
            }
            self.egress.push(held.frame);
        }
    }

    fn show_frame(&mut self, way: CaptureDirection, held: &HeldFrame) {
        if self.shared.observers.capture().has_tap() {
            let frame = self.parse(&held.frame);
            let to = frame.ok().map(|frame| frame.packet.dst_qpn);
            self.shared
                .show_frame(way, [Some(held.qpn), to], &held.frame);
        }
    }

    /// Hands a packet that came as a frame to its QP, unless a rule prevents that.
    #[cold]
    pub(super) fn hand_over_by_rules<M: GuestMemory>(
        &mut self,
        mem: &M,
        path: &Path,
        packet: Packet,
    ) {
        let qpn = packet.dst_qpn;
        if self.is_port_cut() {
            return;
        }
        if !self.is_concerned(Direction::In, qpn) {
            return self.hand_over_freely(mem, path, packet);
        }
        let out = Outgoing {
            packet,
            path: Some(Rc::new(*path)),
            mtu: self.shared.port.mtu_bytes(),
            local: false,
        };
        let met = self.apply_rules(mem, Direction::In, qpn, out);
        // The frame was shown when it arrived, so the remark about the rule is added to it.
        self.shared.observers.capture_mut().remark_on_last();
        if let Some(out) = met {
            self.hand_over_freely(mem, path, out.packet);
        }
        self.pass(mem, Direction::In, qpn);
    }

    /// Receives a packet of another device of the process as the frames that it stands for.
    #[cold]
    pub(super) fn receive_by_rules<M: GuestMemory>(
        &mut self,
        mem: &M,
        sender: Side<'_, M>,
        path: &Path,
        out: Outgoing,
    ) {
        for packet in out.packet.split(out.mtu) {
            let mut bytes = Vec::new();
            let is_whole = packet.payload.is_alive()
                && self
                    .shared
                    .emit_of(sender, path, &packet, &mut bytes)
                    .is_ok();
            // A packet whose payload cannot be read any more is lost.
            if is_whole {
                self.parse_frame(mem, Rc::new(bytes));
            }
        }
        self.follow_deaths(mem);
    }

    /// Returns the error of a command that a rule makes fail.
    #[inline]
    pub(crate) fn fault_of_command<M: GuestMemory>(
        &mut self,
        mem: &M,
        opcode: u16,
    ) -> Option<CmdError> {
        let now = self.shared.clock.now();
        let effect = self.shared.faults.as_mut()?.table.on_command(now, opcode)?;
        let fired = FiredOn::other(RuleHook::Command, opcode, None);
        self.shared.report(DeviceEvent::RuleFired(fired));
        match effect {
            Effect::Fail(status) => Some(bad(status, Syndrome::Injected)),
            Effect::Fatal => {
                self.fail(mem, Syndrome::Injected);
                Some(bad(CmdStatus::Fatal, Syndrome::DeviceFatal))
            }
            effect => {
                self.apply_effect(mem, None, &effect);
                None
            }
        }
    }

    /// Applies rules and sends on frames that are due. Returns the time at which more is due.
    #[inline]
    pub(crate) fn run_rules<M: GuestMemory>(&mut self, mem: &M) -> Option<u64> {
        self.shared.faults.as_ref()?;
        self.run_due(mem)
    }

    #[cold]
    fn run_due<M: GuestMemory>(&mut self, mem: &M) -> Option<u64> {
        let now = self.shared.clock.now();
        // A panic may have ended the previous slice in the middle of a release.
        self.faults()?.end_releasing();
        while let Some(effect) = self.faults()?.table.take_due(now) {
            self.shared.report(DeviceEvent::RuleFired(FiredOn::other(
                RuleHook::Time,
                0,
                None,
            )));
            let qpn = self.qp_of_effect(&effect);
            self.apply_effect(mem, qpn, &effect);
        }
        for qpn in self.faults()?.end_expired_stalls(now) {
            self.make_ready(qpn);
        }
        if !self.shared.regs().is_fatal() {
            self.release(mem);
        }
        let next = self.faults()?.next_due();
        self.drop_idle_injector();
        next
    }
}
