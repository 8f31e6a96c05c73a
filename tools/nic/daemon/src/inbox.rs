// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The engine's three inboxes, in which the other threads leave messages, each with its bound and
//! its rule for overflow.
//!
//! | inbox | sender | if it is full |
//! | --- | --- | --- |
//! | [`ActionInbox`] | the PCI function: writes of the guest's registers | cannot be full: each action is there at most once |
//! | [`FrameInbox`] | the guest's Ethernet, uplinks, the InfiniBand subnet | the frame is dropped, as by any port; each source address has its share ([`SenderBudgets`]) |
//! | [`RequestInbox`] | the control socket | the request is refused |
//!
//! One lock protects all three ([`VmState`](crate::vm_state::VmState)), because a reset voids the
//! contents of two of them.

use crate::frame_address::PortLink;
use crate::sender_budgets::{SenderBudgets, MIN_CHARGE_BYTES};
use std::collections::hash_map::RandomState;
use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::mpsc;
use verbena_abi::eqe::EventType;
use verbena_abi::stats::NUM_COUNTERS;
use verbena_device::capture::CaptureTap;
use verbena_device::{
    Action, Cursor, FlightRecordingPart, FullRecordingRequest, FullRecordingStatus, InfiniBandPort,
    PortFigures, Portion, QpFigures,
};
use verbena_faults::{RuleSet, RuleStatus};

/// Largest number of frames of one sender that wait for the engine, of at most 4 KiB each, and
/// fewer while frames of others wait.
pub(crate) const MAX_FRAMES: usize = 4096;
/// Largest number of requests that wait for the engine.
pub(crate) const MAX_REQUESTS: usize = 64;

/// A query or a command of the control socket, with the sender for its answer.
pub enum EngineRequest {
    /// Asks for the counters, by `stats::Counter`.
    Stats(mpsc::Sender<[u64; NUM_COUNTERS]>),
    /// Asks for a portion of the contexts, from this place on.
    ContextPortion(Cursor, mpsc::Sender<Portion>),
    /// Asks for the state of the port.
    Port(mpsc::Sender<PortFigures>),
    /// Asks for a portion of the queue pairs, from this number on.
    QpPortion(u32, mpsc::Sender<(Vec<QpFigures>, Option<u32>)>),
    /// Attaches a tap to the port. The answer is false if there is one.
    AttachTap(CaptureTap, mpsc::Sender<bool>),
    /// Asks for a queue pair by its number.
    Qp(u32, mpsc::Sender<Option<Box<QpFigures>>>),
    /// Changes the fault rules, and asks for the rules after that.
    ChangeRules(RuleChange, mpsc::Sender<Result<Vec<RuleStatus>, String>>),
    /// Switches the flight recorder, and asks for its state without its entries.
    Recorder(RecorderChange, mpsc::Sender<Option<FlightRecordingPart>>),
    /// Begins or ends a full recording, and asks for its state.
    FullRecording(
        FullRecordingChange,
        mpsc::Sender<Result<FullRecordingStatus, String>>,
    ),
    /// Asks for entries of the flight recorder: the number of the first, and the largest number of
    /// entries.
    FlightRecording(u64, usize, mpsc::Sender<Option<FlightRecordingPart>>),
}

/// A change of the flight recorder.
pub enum RecorderChange {
    /// The recorder stays as it is.
    Unchanged,
    /// The recorder keeps this number of entries from now on.
    On(usize),
    /// The recorder keeps no entries.
    Off,
}

/// A change of the full recording.
pub enum FullRecordingChange {
    /// The full recording stays as it is.
    Unchanged,
    /// A full recording begins.
    Begin(FullRecordingRequest),
    /// The recording of this number ends, for this reason. Any other stays as it is.
    End(u64, String),
}

/// A change of the fault rules.
pub enum RuleChange {
    /// All rules stay as they are.
    Unchanged,
    /// These rules are added. If there is an owner, they are removed with it.
    Add(RuleSet, Option<u64>),
    /// The rule of this name is removed.
    Remove(String),
    /// All rules of this owner are removed.
    RemoveOf(u64),
    /// All rules are removed.
    Clear,
}

/// Register writes that need the engine, in order. An action that is added twice is done once: so
/// there is at most one action for each command slot, and a few others.
#[derive(Default)]
pub(crate) struct ActionInbox {
    actions: Vec<Action>,
    /// Command slots that are among the actions, as bits.
    slots: u64,
}

impl ActionInbox {
    /// Adds an action. A reset voids the actions before it.
    fn push(&mut self, action: Action) {
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

/// Number of senders that are distinguished by their source addresses. A few share a number by chance,
/// but no sender can choose with which.
const SENDERS: usize = 256;

/// RoCE frames or InfiniBand packets for the device, in order.
pub(crate) struct FrameInbox {
    /// The frames, each with the number of its sender.
    queue: VecDeque<(usize, Vec<u8>)>,
    budgets: SenderBudgets<SENDERS>,
    hash_state: RandomState,
}

impl Default for FrameInbox {
    fn default() -> Self {
        Self {
            queue: VecDeque::new(),
            budgets: SenderBudgets::new(MAX_FRAMES * MIN_CHARGE_BYTES),
            hash_state: RandomState::new(),
        }
    }
}

/// Returns the number of a frame's sender.
fn sender(hash_state: &RandomState, link: PortLink, frame: &[u8]) -> usize {
    hash_state.hash_one(link.sender(frame)) as usize
}

impl FrameInbox {
    /// Adds a frame of a port with this link. Returns false if there is no room for it.
    pub(crate) fn push(&mut self, link: PortLink, frame: Vec<u8>) -> bool {
        let sender = sender(&self.hash_state, link, &frame);
        let room = self.budgets.reserve(sender, frame.len());
        if room {
            self.queue.push_back((sender, frame));
        }
        room
    }

    /// Takes at most `max` frames.
    pub(crate) fn take(&mut self, max: usize) -> Vec<Vec<u8>> {
        let count = max.min(self.queue.len());
        let budgets = &mut self.budgets;
        let taken = self.queue.drain(..count).map(|(sender, frame)| {
            budgets.release(sender, frame.len());
            frame
        });
        taken.collect()
    }
}

/// Requests of the control socket, in order.
#[derive(Default)]
pub(crate) struct RequestInbox(VecDeque<EngineRequest>);

impl RequestInbox {
    /// Adds a request. Returns false if too many wait.
    pub(crate) fn push(&mut self, request: EngineRequest) -> bool {
        let room = self.0.len() < MAX_REQUESTS;
        if room {
            self.0.push_back(request);
        }
        room
    }

    /// Takes the oldest request.
    pub(crate) fn take(&mut self) -> Option<EngineRequest> {
        self.0.pop_front()
    }
}

/// A change of an InfiniBand port by the subnet manager.
pub struct PortChange {
    /// Configuration of the port after the change.
    pub port: InfiniBandPort,
    /// Events for the driver, in order, each at most once.
    pub events: Vec<EventType>,
}

/// The inboxes of one VM.
#[derive(Default)]
pub(crate) struct Inboxes {
    pub(crate) actions: ActionInbox,
    pub(crate) frames: FrameInbox,
    pub(crate) requests: RequestInbox,
    /// The last change of the InfiniBand port, with the events of earlier changes.
    pub(crate) port_change: Option<PortChange>,
}

impl Inboxes {
    /// True if all inboxes are empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.actions.actions.is_empty()
            && self.frames.queue.is_empty()
            && self.requests.0.is_empty()
            && self.port_change.is_none()
    }

    /// Adds a change of the InfiniBand port to those that the engine has yet to take.
    pub(crate) fn push_port_change(&mut self, change: PortChange) {
        let mut events = self.port_change.take().map_or(vec![], |old| old.events);
        events.retain(|event| !change.events.contains(event));
        events.extend(change.events);
        let port = change.port;
        self.port_change = Some(PortChange { port, events });
    }

    /// Adds the action of a register write. A reset also voids the frames that came before it.
    pub(crate) fn push_action(&mut self, action: Action) {
        if action == Action::Reset {
            self.frames = FrameInbox::default();
        }
        self.actions.push(action);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_slot_waits_at_most_once() {
        let mut actions = ActionInbox::default();
        for slot in [3, 64, 3, u32::MAX, 5, 3] {
            actions.push(Action::Command(slot));
        }
        assert_eq!(actions.take(), [Action::Command(3), Action::Command(5)]);
        actions.push(Action::Command(3));
        assert_eq!(actions.take(), [Action::Command(3)]);
    }

    #[test]
    fn a_reset_voids_earlier_commands_and_frames_but_no_requests() {
        let mut inboxes = Inboxes::default();
        inboxes.push_action(Action::Command(1));
        inboxes.frames.push(PortLink::Ethernet, vec![1]);
        inboxes
            .requests
            .push(EngineRequest::Stats(mpsc::channel().0));
        inboxes.push_action(Action::Reset);
        inboxes.push_action(Action::Command(1));
        inboxes.frames.push(PortLink::Ethernet, vec![2]);
        assert!(inboxes.actions.has_reset());
        assert_eq!(inboxes.actions.take(), [Action::Reset, Action::Command(1)]);
        assert_eq!(inboxes.frames.take(9), [[2]]);
        assert!(inboxes.requests.take().is_some() && inboxes.is_empty());
    }

    #[test]
    fn frames_are_taken_in_order_and_in_portions() {
        let mut frames = FrameInbox::default();
        for n in 0..5 {
            assert!(frames.push(PortLink::Ethernet, vec![n]));
        }
        assert_eq!(frames.take(2), [[0], [1]]);
        assert_eq!(frames.take(9), [[2], [3], [4]]);
        assert!(frames.take(1).is_empty());
    }

    #[test]
    fn a_flood_takes_no_room_from_other_senders() {
        check_flood(PortLink::Ethernet, 6..12);
    }

    /// The senders differ in nothing but their SLIDs.
    #[test]
    fn a_flood_of_an_infiniband_port_takes_no_room_from_other_lids() {
        check_flood(PortLink::InfiniBand, 6..8);
    }

    /// Checks the shares of two senders, whose addresses have this place in their frames.
    fn check_flood(link: PortLink, place: std::ops::Range<usize>) {
        let frame = |from: u8, length: usize| {
            let mut frame = vec![0; length];
            frame[place.clone()].fill(from);
            frame
        };
        for length in [60, 4000, 60_000] {
            let mut frames = FrameInbox::default();
            let flooded = (0..100_000)
                .take_while(|_| frames.push(link, frame(1, length)))
                .count();
            assert!(flooded <= MAX_FRAMES && !frames.push(link, frame(1, length)));
            // A burst of 200 frames of another sender finds room.
            let other = (2..).find(|&n| {
                let number = |n| sender(&frames.hash_state, link, &frame(n, 60)) % SENDERS;
                number(n) != number(1)
            });
            assert!((0..200).all(|_| frames.push(link, frame(other.unwrap(), 4000))));
            let taken = frames.take(usize::MAX);
            let bytes: usize = taken.iter().map(Vec::len).sum();
            assert!(bytes <= 2 * MAX_FRAMES * MIN_CHARGE_BYTES && taken.len() == flooded + 200);
        }
    }
}
