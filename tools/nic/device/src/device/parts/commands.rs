// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The commands that a driver has given: the slots in guest memory, the slots whose doorbells were
//! rung, the command that is being executed, and the postponed commands.

use crate::device::cmd::Running;
use std::collections::VecDeque;
use verbena_abi::cmd::SLOT_SIZE;
use verbena_abi::regs::CMDQ_MAX_SLOTS;

/// The slots of the command queue that the driver has enabled.
#[derive(Debug)]
struct CommandSlots {
    base: u64,
    count: u32,
    /// Token of the last command of each slot, so that no command is executed twice.
    tokens: [u32; CMDQ_MAX_SLOTS as usize],
}

/// The commands of a device.
///
/// * A slot waits at most once, however often its doorbell is rung, so at most 64 slots wait.
/// * At most one command is running. Later commands wait for it.
/// * A token is accepted once in a row for each slot.
#[derive(Debug, Default)]
pub(crate) struct Commands {
    slots: Option<CommandSlots>,
    /// Numbers of the slots that were rung, in order of the doorbells.
    rung: VecDeque<u32>,
    /// The same slots as bits, so that each slot is queued only once.
    rung_slots: u64,
    /// Command that takes several slices.
    running: Option<Running>,
    /// Commands that are executed late, each with its time; only a device that misbehaves has any.
    late: VecDeque<(u64, u32)>,
}

impl Commands {
    /// True if the driver has enabled a command queue.
    pub(crate) fn is_enabled(&self) -> bool {
        self.slots.is_some()
    }

    /// Enables the command queue of `count` slots at a DMA address. The caller has checked both.
    pub(crate) fn enable(&mut self, base: u64, count: u32) {
        self.slots = Some(CommandSlots {
            base,
            count,
            tokens: [0; CMDQ_MAX_SLOTS as usize],
        });
    }

    /// Returns the DMA address of a slot, if the enabled command queue has that slot.
    pub(crate) fn address(&self, slot: u32) -> Option<u64> {
        let slots = self.slots.as_ref().filter(|s| slot < s.count)?;
        Some(slots.base + u64::from(slot) * SLOT_SIZE as u64)
    }

    /// Accepts the token of the command in a slot. False if the slot has no command, or if its
    /// command was accepted after an earlier doorbell.
    pub(crate) fn accept(&mut self, slot: u32, token: u32) -> bool {
        let slots = self.slots.as_mut();
        let Some(last) = slots.and_then(|s| s.tokens.get_mut(slot as usize)) else {
            return false;
        };
        if token == 0 || token == *last {
            return false;
        }
        *last = token;
        true
    }

    /// Takes note that the doorbell of a slot was rung. Numbers from 64 on are ignored.
    pub(crate) fn ring(&mut self, slot: u32) {
        let bit = 1u64.checked_shl(slot).unwrap_or(0);
        if bit & !self.rung_slots != 0 {
            self.rung_slots |= bit;
            self.rung.push_back(slot);
        }
    }

    /// Takes the slot that was rung first. Its next doorbell is noted again.
    pub(crate) fn next_rung(&mut self) -> Option<u32> {
        let slot = self.rung.pop_front()?;
        self.rung_slots &= !(1 << slot);
        Some(slot)
    }

    /// True if a slot waits or a command is running.
    pub(crate) fn are_pending(&self) -> bool {
        !self.rung.is_empty() || self.running.is_some()
    }

    /// Returns the running command.
    pub(crate) fn running(&self) -> Option<&Running> {
        self.running.as_ref()
    }

    /// Takes the running command, to continue it. [`Commands::run`] puts it back.
    pub(crate) fn take_running(&mut self) -> Option<Running> {
        self.running.take()
    }

    /// Makes a command the running one.
    pub(crate) fn run(&mut self, command: Running) {
        self.running = Some(command);
    }

    /// Postpones the command in a slot until a time in nanoseconds.
    pub(crate) fn postpone(&mut self, until: u64, slot: u32) {
        self.late.push_back((until, slot));
    }

    /// Returns the first postponed command: its time, and its slot.
    pub(crate) fn postponed(&self) -> Option<(u64, u32)> {
        self.late.front().copied()
    }

    /// Drops the first postponed command, which the caller executes.
    pub(crate) fn drop_postponed(&mut self) {
        self.late.pop_front();
    }

    /// Returns the number of slots that wait.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        debug_assert_eq!(self.rung.len(), self.rung_slots.count_ones() as usize);
        self.rung.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_waits_once_until_it_is_taken() {
        let mut commands = Commands::default();
        for slot in [5, 63, 5, 64, u32::MAX, 0] {
            commands.ring(slot);
        }
        assert_eq!((commands.waiting(), commands.next_rung()), (3, Some(5)));
        commands.ring(5);
        let rest: Vec<u32> = std::iter::from_fn(|| commands.next_rung()).collect();
        assert_eq!(rest, [63, 0, 5]);
        assert!(!commands.are_pending());
    }

    #[test]
    fn a_token_is_accepted_once_in_a_row() {
        let mut commands = Commands::default();
        assert!(!commands.accept(0, 7), "no command queue is enabled");
        commands.enable(0x1000, 2);
        let taken = [(0, 0), (0, 7), (0, 7), (1, 7), (0, 8), (0, 7)];
        let taken = taken.map(|(slot, token)| commands.accept(slot, token));
        assert_eq!(taken, [false, true, false, true, true, true]);
        let addresses = [0, 1, 2].map(|slot| commands.address(slot));
        let size = SLOT_SIZE as u64;
        assert_eq!(addresses, [Some(0x1000), Some(0x1000 + size), None]);
    }
}
