// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The engine's three inboxes, in which the other threads leave messages, each with its bound and
//! its rule for overflow.
//!
//! | inbox | sender | if it is full |
//! | --- | --- | --- |
//! | [`Commands`] | the front: writes of the guest's registers | cannot be full: each action is there at most once |
//! | [`Frames`] | the guest's Ethernet, uplinks | the frame is dropped, as by any port; each source address has its share ([`Shares`]) |
//! | [`Questions`] | the control socket | the question is refused |
//!
//! One lock protects all three ([`Shared`](crate::shared::Shared)), because a reset voids the
//! contents of two of them.

use crate::shares::{Shares, LEAST};
use std::collections::hash_map::RandomState;
use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::mpsc;
use verbena_abi::stats::NUM_COUNTERS;
use verbena_device::capture::CaptureTap;
use verbena_device::{
    Action, Cursor, FlightRecordingPart, FullRecordingRequest, FullRecordingStatus, PortFigures,
    Portion, QpFigures,
};
use verbena_faults::{RuleSet, Told};

/// Largest number of frames of one sender that wait for the engine, of at most 4 KiB each, and
/// fewer while frames of others wait.
pub(crate) const FRAMES_MAX: usize = 4096;
/// Largest number of questions that wait for the engine.
pub(crate) const QUESTIONS_MAX: usize = 64;

/// A query or a command of the control socket, with the sender for its answer.
pub enum Question {
    /// Asks for the counters, by `stats::Counter`.
    Stats(mpsc::Sender<[u64; NUM_COUNTERS]>),
    /// Asks for a portion of the contexts, from this place on.
    Contexts(Cursor, mpsc::Sender<Portion>),
    /// Asks for the state of the port.
    Port(mpsc::Sender<PortFigures>),
    /// Asks for a portion of the queue pairs, from this number on.
    Qps(u32, mpsc::Sender<(Vec<QpFigures>, Option<u32>)>),
    /// Attaches a tap to the port. The answer is false if there is one.
    Watch(CaptureTap, mpsc::Sender<bool>),
    /// Asks for a queue pair by its number.
    Qp(u32, mpsc::Sender<Option<Box<QpFigures>>>),
    /// Changes the fault rules, and asks for the rules after that.
    Rules(Change, mpsc::Sender<Result<Vec<Told>, String>>),
    /// Switches the flight recorder, and asks for its state without its entries.
    Recorder(Switch, mpsc::Sender<Option<FlightRecordingPart>>),
    /// Begins or ends a full recording, and asks for its state.
    Full(Full, mpsc::Sender<Result<FullRecordingStatus, String>>),
    /// Asks for entries of the flight recorder: the number of the first, and the largest number of
    /// entries.
    FlightRecording(u64, usize, mpsc::Sender<Option<FlightRecordingPart>>),
}

/// A change of the flight recorder.
pub enum Switch {
    /// The recorder stays as it is.
    Stay,
    /// The recorder keeps this number of entries from now on.
    On(usize),
    /// The recorder keeps no entries.
    Off,
}

/// A change of the full recording.
pub enum Full {
    /// The full recording stays as it is.
    Stay,
    /// A full recording begins.
    Begin(FullRecordingRequest),
    /// The recording of this number ends, for this reason. Any other stays as it is.
    End(u64, String),
}

/// A change of the fault rules.
pub enum Change {
    /// All rules stay as they are.
    None,
    /// These rules are added. If there is an owner, they are removed with it.
    Add(RuleSet, Option<u64>),
    /// The rule of this name is removed.
    Remove(String),
    /// All rules of this owner are removed.
    RemoveOf(u64),
    /// All rules are removed.
    Clear,
}

/// Register writes that need the engine, in order. An action that is left twice is done once: so
/// there is at most one action for each command slot, and a few others.
#[derive(Default)]
pub(crate) struct Commands {
    actions: Vec<Action>,
    /// Command slots that are among the actions, as bits.
    slots: u64,
}

impl Commands {
    /// Leaves an action. A reset voids the actions before it.
    fn leave(&mut self, action: Action) {
        match action {
            Action::None => {}
            Action::Reset => {
                self.take();
                self.actions.push(action);
            }
            Action::Command(slot) => {
                let bit = 1u64.checked_shl(slot).unwrap_or(0);
                if bit & !self.slots != 0 {
                    self.slots |= bit;
                    self.actions.push(action);
                }
            }
            Action::EnableCmdq => {
                if !self.actions.contains(&action) {
                    self.actions.push(action);
                }
            }
        }
    }

    /// Takes all actions in order.
    pub(crate) fn take(&mut self) -> Vec<Action> {
        self.slots = 0;
        std::mem::take(&mut self.actions)
    }

    /// True if a reset is among the actions.
    pub(crate) fn has_reset(&self) -> bool {
        self.actions.contains(&Action::Reset)
    }
}

/// Number of senders that are distinguished by their source MAC addresses. A few share a number by
/// chance, but no sender can choose with which.
const SENDERS: usize = 256;

/// RoCE frames for the device, in order.
pub(crate) struct Frames {
    queue: VecDeque<Vec<u8>>,
    shares: Shares<SENDERS>,
    chance: RandomState,
}

impl Default for Frames {
    fn default() -> Self {
        Self {
            queue: VecDeque::new(),
            shares: Shares::new(FRAMES_MAX * LEAST),
            chance: RandomState::new(),
        }
    }
}

/// Returns the number of a frame's sender.
fn sender(chance: &RandomState, frame: &[u8]) -> usize {
    chance.hash_one(frame.get(6..12)) as usize
}

impl Frames {
    /// Leaves a frame. Returns false if there is no room for it.
    pub(crate) fn leave(&mut self, frame: Vec<u8>) -> bool {
        let room = self.shares.take(sender(&self.chance, &frame), frame.len());
        if room {
            self.queue.push_back(frame);
        }
        room
    }

    /// Takes at most `most` frames.
    pub(crate) fn take(&mut self, most: usize) -> Vec<Vec<u8>> {
        let count = most.min(self.queue.len());
        let taken: Vec<_> = self.queue.drain(..count).collect();
        for frame in &taken {
            let sender = sender(&self.chance, frame);
            self.shares.give_back(sender, frame.len());
        }
        taken
    }
}

/// Questions of the control socket, in order.
#[derive(Default)]
pub(crate) struct Questions(VecDeque<Question>);

impl Questions {
    /// Leaves a question. Returns false if too many wait.
    pub(crate) fn leave(&mut self, question: Question) -> bool {
        let room = self.0.len() < QUESTIONS_MAX;
        if room {
            self.0.push_back(question);
        }
        room
    }

    /// Takes the oldest question.
    pub(crate) fn take(&mut self) -> Option<Question> {
        self.0.pop_front()
    }
}

/// The three inboxes of one VM.
#[derive(Default)]
pub(crate) struct Inboxes {
    pub(crate) commands: Commands,
    pub(crate) frames: Frames,
    pub(crate) questions: Questions,
}

impl Inboxes {
    /// True if all inboxes are empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.commands.actions.is_empty()
            && self.frames.queue.is_empty()
            && self.questions.0.is_empty()
    }

    /// Leaves the action of a register write. A reset also voids the frames that came before it.
    pub(crate) fn act(&mut self, action: Action) {
        if action == Action::Reset {
            self.frames = Frames::default();
        }
        self.commands.leave(action);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_slot_waits_at_most_once() {
        let mut commands = Commands::default();
        for slot in [3, 64, 3, u32::MAX, 5, 3] {
            commands.leave(Action::Command(slot));
        }
        assert_eq!(commands.take(), [Action::Command(3), Action::Command(5)]);
        commands.leave(Action::Command(3));
        assert_eq!(commands.take(), [Action::Command(3)]);
    }

    #[test]
    fn a_reset_voids_earlier_commands_and_frames_but_no_questions() {
        let mut inboxes = Inboxes::default();
        inboxes.act(Action::Command(1));
        inboxes.frames.leave(vec![1]);
        inboxes.questions.leave(Question::Stats(mpsc::channel().0));
        inboxes.act(Action::Reset);
        inboxes.act(Action::Command(1));
        inboxes.frames.leave(vec![2]);
        assert!(inboxes.commands.has_reset());
        assert_eq!(inboxes.commands.take(), [Action::Reset, Action::Command(1)]);
        assert_eq!(inboxes.frames.take(9), [[2]]);
        assert!(inboxes.questions.take().is_some() && inboxes.is_empty());
    }

    #[test]
    fn frames_are_taken_in_order_and_in_portions() {
        let mut frames = Frames::default();
        for n in 0..5 {
            assert!(frames.leave(vec![n]));
        }
        assert_eq!(frames.take(2), [[0], [1]]);
        assert_eq!(frames.take(9), [[2], [3], [4]]);
        assert!(frames.take(1).is_empty());
    }

    #[test]
    fn a_flood_takes_no_room_from_other_senders() {
        let frame = |from: u8, length: usize| {
            let mut frame = vec![0; length];
            frame[6..12].fill(from);
            frame
        };
        for length in [60, 4000, 60_000] {
            let mut frames = Frames::default();
            let flooded = (0..100_000)
                .take_while(|_| frames.leave(frame(1, length)))
                .count();
            assert!(flooded <= FRAMES_MAX && !frames.leave(frame(1, length)));
            // A burst of 200 frames of another sender finds room.
            let other = (2..).find(|&n| {
                let number = |n| sender(&frames.chance, &frame(n, 60)) % SENDERS;
                number(n) != number(1)
            });
            assert!((0..200).all(|_| frames.leave(frame(other.unwrap(), 4000))));
            let taken = frames.take(usize::MAX);
            let bytes: usize = taken.iter().map(Vec::len).sum();
            assert!(bytes <= 2 * FRAMES_MAX * LEAST && taken.len() == flooded + 200);
        }
    }
}
