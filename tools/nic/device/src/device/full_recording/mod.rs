// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The boundary of the device model: a full recording (`verbena_recorder::full`) of all calls, inputs
//! and outputs of the model from a reset on, and a replay of the recording without a guest.
//!
//! * This file records calls and their results. Without a recording, each public call that changes
//!   the model costs a look at one pointer.
//! * `recording_memory.rs` records accesses to guest memory. It is a memory of its own, for which the whole
//!   model is compiled once more, so the memory used without a recording has no code for it.
//! * `replay.rs` replays a recording, with the memory of `replay_memory.rs`.
//!
//! Guests and threads may change memory during a recording, because it contains the values that the
//! model read.

mod recording_memory;
mod replay;
mod replay_memory;

pub use replay::{replay, ReplaySummary};
pub use replay_memory::ReplayError;

use crate::device::{Device, Next};
use crate::memory::GuestMemory;
use crate::Config;
use recording_memory::RecordingMemory;
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use verbena_abi::cmd::CmdStatus;
use verbena_abi::syndrome::Syndrome;
use verbena_faults::{Action, Field, RuleSet};
use verbena_recorder::full::{Bytes, FullRecordingWriter, Item, PieceSink};

/// Bits of the flags in [`Item::Begin`].
const WIRE_LOCAL: u32 = 1;
const CREDITS: u32 = 2;
const CONGESTION_CONTROL: u32 = 4;
const ASYMMETRIC_ROUTES: u32 = 8;
const ASKS_FOR_GIDS: u32 = 16;

/// State of a full recording while it is on.
#[derive(Debug)]
struct ActiveRecording {
    writer: FullRecordingWriter,
    json: fn(&RuleSet) -> String,
    /// True while a call of the model has not returned.
    open: bool,
}

impl ActiveRecording {
    /// Records the beginning of a call. If the call before has not returned, the model panicked in
    /// it.
    fn call(&mut self, item: &Item<'_>) {
        if std::mem::replace(&mut self.open, true) {
            self.writer.put(&Item::Panicked {});
        }
        self.writer.put(item);
    }

    /// Records the end of a call, with its result if it has one.
    fn answer(&mut self, item: Option<Item<'_>>) {
        self.open = false;
        item.iter().for_each(|item| self.writer.put(item));
        self.writer.end_call();
    }

    /// Records a call that does not access guest memory.
    fn note(&mut self, item: &Item<'_>) {
        self.call(item);
        self.answer(None);
    }
}

/// Request for a full recording.
pub struct FullRecordingRequest {
    /// Number that identifies the recording, so that a client ends only its own recording.
    pub number: u64,
    /// Destination of the recorded data.
    pub sink: PieceSink,
    /// Function that writes rules as JSON.
    pub json: fn(&RuleSet) -> String,
    /// Time of day, in nanoseconds since 1970, at which the device clock was 0.
    pub power_on: u64,
}

impl fmt::Debug for FullRecordingRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FullRecordingRequest")
            .finish_non_exhaustive()
    }
}

/// State of a full recording, as reported to clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FullRecordingStatus {
    /// No full recording is on.
    #[default]
    Off,
    /// The recording begins with the next reset of the device.
    Waiting,
    /// The recording is on and has this number of entries.
    On(u64),
    /// The recording has ended without a request, for this reason.
    Ended(String),
}

/// The recording of a device, or the request for one.
#[derive(Debug, Default)]
pub(crate) struct FullRecordingState {
    full: Option<Rc<RefCell<ActiveRecording>>>,
    request: Option<Box<FullRecordingRequest>>,
    ended: Option<String>,
    /// Number of the recording that the other fields are about.
    number: u64,
}

impl FullRecordingState {
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.full.is_some()
    }

    /// Records a call that does not access guest memory, if a recording is on.
    #[inline]
    pub(super) fn note(&self, item: impl FnOnce() -> Item<'static>) {
        if let Some(full) = &self.full {
            full.borrow_mut().note(&item());
        }
    }
}

/// True if the effect of a rule depends on the values of payload bytes.
fn value_matters(set: &RuleSet) -> bool {
    set.rule.iter().any(|rule| match &rule.action {
        // With another opcode other bytes of the packet are headers.
        Action::Corrupt(how) => {
            how.field == Some(Field::Opcode) || how.payload.is_some() && how.value.is_some()
        }
        _ => false,
    })
}

impl Device {
    /// Begins a full recording: at once if the device is in the state after power-on, otherwise
    /// with its next reset.
    ///
    /// # Errors
    ///
    /// A full recording is on or requested already, or the device cannot be recorded. The text says
    /// why.
    pub fn begin_full_recording(
        &mut self,
        request: FullRecordingRequest,
    ) -> Result<FullRecordingStatus, String> {
        if self.full_recording.full.is_some() || self.full_recording.request.is_some() {
            return Err("a full recording is on or requested already: end it first".into());
        }
        self.full_recording.ended = None;
        if let Some(reason) = self.cannot_be_recorded() {
            return Err(reason.into());
        }
        self.full_recording.number = request.number;
        self.full_recording.request = Some(Box::new(request));
        let is_new = !self.commands.is_enabled() && !self.commands.are_pending();
        if is_new && !self.shared.regs().is_fatal() {
            self.begin_anew();
            self.begin_requested_recording();
        }
        Ok(self.full_recording_status())
    }

    fn cannot_be_recorded(&self) -> Option<&'static str> {
        let config = self.shared.config();
        if config.neighbours {
            return Some("packets go by reference between the guests of this NIC: start it with --wire-local, or start one NIC for each guest");
        }
        if config.hostile.is_some() {
            return Some("a NIC with --hostile cannot be recorded");
        }
        if self.shared.capture.is_watched() {
            return Some("a capture is on, and reads guest memory too: end it first");
        }
        if self.has_added_rules() {
            return Some("the device has rules already: clear them, and add them after the recording has begun");
        }
        None
    }

    /// Begins the requested recording after a reset, or notes why it cannot begin.
    pub(super) fn begin_requested_recording(&mut self) {
        let Some(request) = self.full_recording.request.take() else {
            return;
        };
        if let Some(reason) = self.cannot_be_recorded() {
            self.full_recording.ended = Some(reason.into());
            return;
        }
        let FullRecordingRequest {
            sink,
            json,
            power_on,
            ..
        } = *request;
        let config = self.shared.config();
        let flag = |is_set: bool, flag| if is_set { flag } else { 0 };
        let begin = Item::Begin {
            version: env!("CARGO_PKG_VERSION"),
            mac: Bytes(&config.mac),
            flags: flag(config.wire_local, WIRE_LOCAL)
                | flag(config.credits, CREDITS)
                | flag(config.congestion_control, CONGESTION_CONTROL)
                | flag(config.asymmetric_routes, ASYMMETRIC_ROUTES)
                | flag(config.asks_for_gids, ASKS_FOR_GIDS),
            drop_percent: config.drop_percent,
            seed: config.seed,
            power_on,
        };
        self.full_recording.full = Some(Rc::new(RefCell::new(ActiveRecording {
            writer: FullRecordingWriter::new(sink, &begin),
            json,
            open: false,
        })));
    }

    /// Ends the full recording of this number, or the request for it. A recording with another
    /// number goes on.
    pub fn end_full_recording(&mut self, number: u64, reason: &str) {
        if self.full_recording.number != number {
            return;
        }
        let full = std::mem::take(&mut self.full_recording).full;
        let full = full.and_then(Rc::into_inner).map(RefCell::into_inner);
        if let Some(mut full) = full {
            if full.open {
                full.writer.put(&Item::Panicked {});
            }
            full.writer.finish(reason);
        }
    }

    /// Returns the state of the full recording.
    pub fn full_recording_status(&self) -> FullRecordingStatus {
        let full_recording = &self.full_recording;
        match (
            &full_recording.full,
            &full_recording.request,
            &full_recording.ended,
        ) {
            (Some(full), ..) => full
                .try_borrow()
                .map_or(FullRecordingStatus::On(0), |full| {
                    FullRecordingStatus::On(full.writer.count())
                }),
            (None, Some(_), _) => FullRecordingStatus::Waiting,
            (None, None, Some(reason)) => FullRecordingStatus::Ended(reason.clone()),
            (None, None, None) => FullRecordingStatus::Off,
        }
    }

    /// Drops a recording whose sink has failed.
    fn drop_failed_recording(&mut self) {
        let failed = self.full_recording.full.as_ref().and_then(|full| {
            let full = full.try_borrow().ok()?;
            full.writer.failure().map(String::from)
        });
        if failed.is_some() {
            self.full_recording.full = None;
            self.full_recording.ended = failed;
        }
    }

    /// Makes a call with a memory that records each access. None if no recording is on.
    fn record_call<M: GuestMemory, R>(
        &mut self,
        mem: &M,
        begin: impl FnOnce(&mut ActiveRecording),
        call: impl FnOnce(&mut Self, &RecordingMemory<'_, M>) -> R,
        answer: impl FnOnce(&R) -> Option<Item<'static>>,
    ) -> Option<R> {
        let full = self.full_recording.full.clone()?;
        begin(&mut full.borrow_mut());
        let result = call(self, &RecordingMemory::new(mem, &full));
        full.borrow_mut().answer(answer(&result));
        drop(full);
        self.drop_failed_recording();
        Some(result)
    }

    #[cold]
    pub(super) fn run_recorded_slice<M: GuestMemory>(&mut self, mem: &M, now: u64) -> Next {
        let answer = |next: &Next| Item::Next {
            busy: next.busy,
            deadline: next.deadline,
            untaken: next.untaken,
        };
        self.record_call(
            mem,
            |full| full.call(&Item::Slice { now }),
            |device, mem| device.work_for_a_slice(mem, now),
            |next| Some(answer(next)),
        )
        .unwrap_or_default()
    }

    #[cold]
    pub(super) fn fall_asleep_recorded<M: GuestMemory>(&mut self, mem: &M) -> bool {
        let asleep = self.record_call(
            mem,
            |full| full.call(&Item::Sleep {}),
            |device, mem| device.try_to_sleep(mem),
            |yes| Some(Item::Told { yes: *yes }),
        );
        // The device is idle now, so the writer can write out the entries that it holds.
        if let Some(full) = self.full_recording.full.as_ref() {
            full.borrow_mut().writer.flush();
        }
        self.drop_failed_recording();
        asleep.unwrap_or_default()
    }

    #[cold]
    pub(super) fn receive_recorded_frames<'a, M: GuestMemory>(
        &mut self,
        mem: &M,
        frames: impl Iterator<Item = &'a [u8]>,
        now: u64,
    ) {
        let frames: Vec<&[u8]> = frames.collect();
        let begin = |full: &mut ActiveRecording| {
            let count = frames.len() as u32;
            full.call(&Item::Frames { now, count });
            frames
                .iter()
                .for_each(|frame| full.writer.received_frame(frame));
        };
        self.record_call(
            mem,
            begin,
            |device, mem| device.take_frames(mem, frames.iter().copied(), now),
            |()| None,
        );
    }

    #[cold]
    pub(super) fn enable_cmdq_recorded<M: GuestMemory>(
        &mut self,
        mem: &M,
        (spoken, base, slots): (bool, u64, u32),
    ) {
        let item = Item::Enable {
            spoken,
            base,
            slots,
        };
        self.record_call(
            mem,
            |full| full.call(&item),
            |device, mem| device.enable_cmdq_as(mem, spoken, base, slots),
            |()| None,
        );
    }

    /// Ends the command that set the entry of [`Device::next_claim`] with the decision of the host.
    /// None accepts the entry; otherwise the syndrome names the rule that refuses it.
    pub fn decide_claim<M: GuestMemory>(&mut self, mem: &M, refused: Option<Syndrome>) {
        let outcome = match refused {
            None => Ok(()),
            Some(cause) => Err(self.refusal(cause)),
        };
        let (status, syndrome) = match outcome {
            Ok(()) => (CmdStatus::Ok, 0),
            Err(e) => (e.status, e.syndrome.to_raw()),
        };
        let item = Item::Decided {
            status: status.to_raw(),
            syndrome,
        };
        let done = self.record_call(
            mem,
            |full| full.call(&item),
            |device, mem| device.end_claim(mem, outcome),
            |()| None,
        );
        if done.is_none() {
            self.end_claim(mem, outcome);
        }
    }

    /// Does what [`Device::fail`] does, and records it if a recording is on.
    pub fn engine_failed<M: GuestMemory>(&mut self, mem: &M, cause: Syndrome) {
        let syndrome = cause.to_raw();
        let done = self.record_call(
            mem,
            |full| full.call(&Item::Fail { syndrome }),
            |device, mem| device.fail(mem, cause),
            |()| None,
        );
        if done.is_none() {
            self.fail(mem, cause);
        }
    }

    /// Records that rules are about to be added.
    pub(super) fn record_add_rules(&mut self, set: &RuleSet, owner: Option<u64>, now: u64) {
        if let Some(full) = &self.full_recording.full {
            let mut full = full.borrow_mut();
            let json = (full.json)(set);
            if value_matters(set) {
                full.writer.record_payload_verbatim();
            }
            full.call(&Item::AddRules {
                now,
                owner,
                json: &json,
            });
        }
    }

    /// Records whether the rules were added.
    pub(super) fn record_rules_added(&mut self, yes: bool) {
        if let Some(full) = &self.full_recording.full {
            full.borrow_mut().answer(Some(Item::Told { yes }));
        }
    }

    pub(super) fn record_remove_rule(&mut self, name: &str) {
        if let Some(full) = &self.full_recording.full {
            full.borrow_mut().note(&Item::RemoveRule { name });
        }
    }

    #[cold]
    pub(super) fn record_sent_frame(&mut self, frame: &[u8]) {
        if let Some(full) = &self.full_recording.full {
            full.borrow_mut().writer.sent_frame(frame);
        }
    }
}

/// Returns the configuration that the device of a recording was started with. None if the MAC
/// address has a wrong length.
fn config(mac: &[u8], flags: u32, drop_percent: u8, seed: u64) -> Option<Config> {
    Some(Config {
        mac: mac.try_into().ok()?,
        wire_local: flags & WIRE_LOCAL != 0,
        credits: flags & CREDITS != 0,
        congestion_control: flags & CONGESTION_CONTROL != 0,
        asymmetric_routes: flags & ASYMMETRIC_ROUTES != 0,
        asks_for_gids: flags & ASKS_FOR_GIDS != 0,
        drop_percent,
        seed,
        ..Config::default()
    })
}
