// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Handling of commands by a device that misbehaves (only with the feature `misbehave`, see
//! `misbehave.rs`).

use super::Device;
use crate::memory::GuestMemory;
use crate::misbehave::{Kind, ALWAYS};
use crate::observation::event::{DeviceEvent, FiredOn};
use verbena_abi::cmd::{Command, CreateCq, ASYNC_EQN, HEADER_SIZE};
use verbena_abi::eqe::EventType;
use verbena_faults::{Effect, RuleHook};

impl Device {
    /// Executes postponed commands that are due. Returns the time at which the next one is due.
    pub(crate) fn run_late<M: GuestMemory>(&mut self, mem: &M) -> Option<u64> {
        while let Some((due, slot)) = self.commands.postponed() {
            if due > self.shared.clock.now() || self.commands.running().is_some() {
                return Some(due);
            }
            self.commands.drop_postponed();
            self.execute(mem, slot);
        }
        None
    }

    /// True if a command is lost or postponed.
    #[inline]
    pub(crate) fn withholds<M: GuestMemory>(&mut self, mem: &M, slot: u32) -> bool {
        if !cfg!(feature = "misbehave") {
            return false;
        }
        let m = self.shared.config().misbehave.clone();
        if !m.applies_to(self.opcode(mem, slot)) {
            return false;
        }
        if m.count(Kind::SwallowCommands) {
            return true;
        }
        let (late, stall) = (m.take(Kind::LateCommand), m.take(Kind::StallAtCommand));
        let late = late.max(self.send_events_ahead(mem, slot));
        if stall != 0 {
            // The engine reads this number before the next slice.
            m.set(Kind::Stall, stall);
        }
        let put_off = late != 0 || stall != 0;
        if put_off {
            let due = self.shared.clock.now() + u64::from(late) * 1_000_000;
            self.commands.postpone(due, slot);
        }
        put_off
    }

    /// Sends the events of a CQ ahead of the CREATE_CQ in a slot, if that misbehaviour is on.
    /// Returns the number of milliseconds by which the command is late.
    fn send_events_ahead<M: GuestMemory>(&mut self, mem: &M, slot: u32) -> u32 {
        let m = self.shared.config().misbehave.clone();
        if !m.is(Kind::EventsAhead) || self.opcode(mem, slot) != CreateCq::OPCODE.to_raw() {
            return 0;
        }
        if let Some(request) = self.in_slot::<CreateCq, M>(mem, slot, HEADER_SIZE) {
            let (cqn, eqn) = (request.cqn.get(), request.eqn.get());
            let shared = &mut self.shared;
            shared.push_event(mem, eqn, EventType::Completion, cqn, None);
            shared.push_event(mem, ASYNC_EQN, EventType::CqErr, cqn, None);
        }
        m.take(Kind::EventsAhead)
    }

    /// True if a command that was executed gets no reply.
    #[inline]
    pub(crate) fn mutes(&self, opcode: u16) -> bool {
        let m = &self.shared.config().misbehave;
        m.applies_to(opcode) && m.count(Kind::MuteCommands)
    }

    /// True if a command is refused regardless of its request.
    #[inline]
    pub(crate) fn refuses(&self, opcode: u16) -> bool {
        let m = &self.shared.config().misbehave;
        m.applies_to(opcode) && m.count(Kind::RefuseCommands)
    }

    /// Begins the misbehaviour of a rule.
    pub(crate) fn misbehave(&mut self, kind: &str, number: u32, rule: u64) {
        if let (Some(kind), Some(faults)) = (Kind::of(kind), &mut self.shared.faults) {
            if !faults.misbehaving.contains(&(kind, rule)) {
                faults.misbehaving.push((kind, rule));
            }
            self.shared.config().misbehave.set(kind, number);
        }
    }

    /// Begins the misbehaviours of rules on time that are due when they are added. A device without
    /// a driver has no slice in which they could begin.
    pub(crate) fn misbehave_at_once(&mut self, now: u64) {
        let at_once = |effect: &Effect| matches!(effect, Effect::Misbehave(..));
        while let Some(Effect::Misbehave(kind, number, rule)) = self
            .shared
            .faults
            .as_mut()
            .and_then(|faults| faults.table.take_due_of(now, at_once))
        {
            self.shared.report(DeviceEvent::RuleFired(FiredOn::other(
                RuleHook::Time,
                0,
                None,
            )));
            self.misbehave(kind, number, rule);
        }
    }

    /// Ends the misbehaviours of rules that are gone.
    pub(crate) fn end_misbehaviours(&mut self) {
        let ended = self
            .shared
            .faults
            .as_mut()
            .map(|faults| faults.take_ended_misbehaviours());
        for kind in ended.into_iter().flatten() {
            self.shared.config().misbehave.set(kind, 0);
        }
    }

    /// Panics on purpose if it is time for that, without the message of a panic by a defect.
    #[inline]
    pub(crate) fn may_panic(&self, step: bool) {
        let m = &self.shared.config().misbehave;
        match m.get(Kind::Panic) {
            0 => return,
            ALWAYS => {}
            1 => m.set(Kind::Panic, 0),
            n if step => return m.set(Kind::Panic, n - 1),
            _ => return,
        }
        std::panic::resume_unwind(Box::new("a panic on purpose"));
    }
}
