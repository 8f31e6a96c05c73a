// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the others leave for the engine: three inboxes, each with what it may hold and what happens when it is full.
//!
//! | inbox | from | when it is full |
//! | --- | --- | --- |
//! | [`Commands`] | the front: what the guest's registers ask for | never: each thing has one place, and is asked for once |
//! | [`Frames`] | the guest's Ethernet, uplinks | the frame is dropped, as by any port; each source address has its share ([`Shares`]) |
//! | [`Questions`] | the control socket | the question is refused |
//!
//! They lie under one lock ([`Shared`](crate::shared::Shared)), because a reset makes void what is in two of them.

use crate::shares::{Shares, LEAST};
use std::collections::hash_map::RandomState;
use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::mpsc;
use verbena_abi::stats::NUM_COUNTERS;
use verbena_device::tap::Tap;
use verbena_device::{Action, Cursor, Fully, PortFigures, Portion, QpFigures, Recorded, Wish};
use verbena_faults::{RuleSet, Told};

/// The most frames of one sender that wait for the engine, of at most 4 KiB each; fewer while others have some there.
pub(crate) const FRAMES_MAX: usize = 4096;
/// The most questions that wait for the engine.
pub(crate) const QUESTIONS_MAX: usize = 64;

/// What the control socket asks.
pub enum Question {
    /// The counters, by `stats::Counter`.
    Stats(mpsc::Sender<[u64; NUM_COUNTERS]>),
    /// Some contexts, from this place on.
    Contexts(Cursor, mpsc::Sender<Portion>),
    /// The port.
    Port(mpsc::Sender<PortFigures>),
    /// Some queue pairs, from this number on.
    Qps(u32, mpsc::Sender<(Vec<QpFigures>, Option<u32>)>),
    /// Has the port watched, if nobody does yet.
    Watch(Tap, mpsc::Sender<bool>),
    /// A queue pair, by number.
    Qp(u32, mpsc::Sender<Option<Box<QpFigures>>>),
    /// The rules of what is to go wrong, after a change of them.
    Rules(Change, mpsc::Sender<Result<Vec<Told>, String>>),
    /// The flight recorder without its entries, after it was switched.
    Recorder(Switch, mpsc::Sender<Option<Recorded>>),
    /// The full recording, after it was begun or ended.
    Full(Full, mpsc::Sender<Result<Fully, String>>),
    /// So many of its entries at most, from a number on.
    Recorded(u64, usize, mpsc::Sender<Option<Recorded>>),
}

/// What is to become of the flight recorder.
pub enum Switch {
    /// It stays as it is.
    Stay,
    /// It keeps so many entries, from now on.
    On(usize),
    /// It keeps none.
    Off,
}

/// What is to become of a full recording.
pub enum Full {
    /// It stays as it is.
    Stay,
    /// It begins.
    Begin(Wish),
    /// The one of this number ends, for this reason. Another stays as it is.
    End(u64, String),
}

/// What is to become of the rules.
pub enum Change {
    /// They stay.
    None,
    /// More of them, which go with this owner if there is one.
    Add(RuleSet, Option<u64>),
    /// The one of this name goes.
    Remove(String),
    /// Those of this owner go.
    RemoveOf(u64),
    /// All go.
    Clear,
}

/// Register writes that need the engine, in order. What is there twice is done once: so there is an action for each
/// command slot at most, and a few others.
#[derive(Default)]
pub(crate) struct Commands {
    actions: Vec<Action>,
    /// The command slots that are among the actions, a bit each.
    slots: u64,
}

impl Commands {
    /// Leaves an action. A reset makes void what was left before.
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

    /// Takes all.
    pub(crate) fn take(&mut self) -> Vec<Action> {
        self.slots = 0;
        std::mem::take(&mut self.actions)
    }

    /// Whether a reset is asked for.
    pub(crate) fn has_reset(&self) -> bool {
        self.actions.contains(&Action::Reset)
    }
}

/// Senders that are told apart, by their source MAC addresses. A few share a number by chance, and nobody can choose with whom.
const SENDERS: usize = 256;

/// RoCE frames, in order.
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

/// The number of a frame's sender.
fn sender(chance: &RandomState, frame: &[u8]) -> usize {
    chance.hash_one(frame.get(6..12)) as usize
}

impl Frames {
    /// Leaves a frame. False: there is no room for it.
    pub(crate) fn leave(&mut self, frame: Vec<u8>) -> bool {
        let room = self.shares.take(sender(&self.chance, &frame), frame.len());
        if room {
            self.queue.push_back(frame);
        }
        room
    }

    /// Takes at most so many.
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

/// Who wants to know something, in order.
#[derive(Default)]
pub(crate) struct Questions(VecDeque<Question>);

impl Questions {
    /// Leaves a question. False: too many ask.
    pub(crate) fn leave(&mut self, question: Question) -> bool {
        let room = self.0.len() < QUESTIONS_MAX;
        if room {
            self.0.push_back(question);
        }
        room
    }

    /// Takes the next.
    pub(crate) fn take(&mut self) -> Option<Question> {
        self.0.pop_front()
    }
}

/// The three of them.
#[derive(Default)]
pub(crate) struct Inboxes {
    pub(crate) commands: Commands,
    pub(crate) frames: Frames,
    pub(crate) questions: Questions,
}

impl Inboxes {
    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.commands.actions.is_empty()
            && self.frames.queue.is_empty()
            && self.questions.0.is_empty()
    }

    /// Leaves what a register asks for. A reset makes void the frames that came before it, too.
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
    fn a_command_slot_is_there_once_until_it_is_taken() {
        let mut commands = Commands::default();
        for slot in [3, 64, 3, u32::MAX, 5, 3] {
            commands.leave(Action::Command(slot));
        }
        assert_eq!(commands.take(), [Action::Command(3), Action::Command(5)]);
        commands.leave(Action::Command(3));
        assert_eq!(commands.take(), [Action::Command(3)]);
    }

    #[test]
    fn a_reset_makes_void_what_came_before_but_for_questions() {
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
    fn a_flood_displaces_only_its_own() {
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
            // Another's burst of some hundred is there in full.
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
