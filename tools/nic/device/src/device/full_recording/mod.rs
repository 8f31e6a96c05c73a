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
use crate::observation::full_recording::{
    ActiveRecording, FullRecordingRequest, FullRecordingState, FullRecordingStatus,
};
use crate::Config;
use recording_memory::RecordingMemory;
use verbena_abi::cmd::{CmdStatus, LinkLayer};
use verbena_abi::syndrome::Syndrome;
use verbena_faults::RuleSet;
use verbena_recorder::full::{Bytes, Item};

/// Bits of the flags in [`Item::Begin`].
const WIRE_LOCAL: u32 = 1;
const CREDITS: u32 = 2;
const CONGESTION_CONTROL: u32 = 4;
const ASYMMETRIC_ROUTES: u32 = 8;
const ASKS_FOR_GIDS: u32 = 16;

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
        if !self.recording_mut().prepare() {
            return Err("a full recording is on or requested already: end it first".into());
        }
        if let Some(reason) = self.cannot_be_recorded() {
            return Err(reason.into());
        }
        self.recording_mut().set_request(request);
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
        if config.link_layer == LinkLayer::InfiniBand {
            return Some(
                "the device has an InfiniBand port: a full recording has no management datagrams",
            );
        }
        if config.hostile.is_some() {
            return Some("a NIC with --hostile cannot be recorded");
        }
        if self.shared.observers.capture().is_watched() {
            return Some("a capture is on, and reads guest memory too: end it first");
        }
        if self.has_added_rules() {
            return Some("the device has rules already: clear them, and add them after the recording has begun");
        }
        None
    }

    /// Begins the requested recording after a reset, or notes why it cannot begin.
    pub(super) fn begin_requested_recording(&mut self) {
        let Some(request) = self.recording_mut().take_request() else {
            return;
        };
        if let Some(reason) = self.cannot_be_recorded() {
            self.recording_mut().fail(reason.into());
            return;
        }
        let FullRecordingRequest {
            sink,
            json,
            power_on,
            ..
        } = request;
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
        let recording = ActiveRecording::new(sink, json, &begin);
        self.recording_mut().begin(recording);
    }

    /// Ends the full recording of this number, or the request for it. A recording with another
    /// number goes on.
    pub fn end_full_recording(&mut self, number: u64, reason: &str) {
        self.recording_mut().end(number, reason);
    }

    /// Returns the state of the full recording.
    pub fn full_recording_status(&self) -> FullRecordingStatus {
        self.recording().status()
    }

    /// True if a full recording is on.
    #[inline]
    pub(super) fn is_recorded(&self) -> bool {
        self.recording().is_on()
    }

    #[inline]
    fn recording(&self) -> &FullRecordingState {
        self.shared.observers.full_recording()
    }

    fn recording_mut(&mut self) -> &mut FullRecordingState {
        self.shared.observers.full_recording_mut()
    }

    /// Makes a call with a memory that records each access. None if no recording is on.
    fn record_call<M: GuestMemory, R>(
        &mut self,
        mem: &M,
        begin: impl FnOnce(&mut ActiveRecording),
        call: impl FnOnce(&mut Self, &RecordingMemory<'_, M>) -> R,
        answer: impl FnOnce(&R) -> Option<Item<'static>>,
    ) -> Option<R> {
        let full = self.recording().active().cloned()?;
        begin(&mut full.borrow_mut());
        let result = call(self, &RecordingMemory::new(mem, &full));
        full.borrow_mut().answer(answer(&result));
        drop(full);
        self.recording_mut().drop_failed();
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
        if let Some(full) = self.recording().active() {
            full.borrow_mut().writer().flush();
        }
        self.recording_mut().drop_failed();
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
                .for_each(|frame| full.writer().received_frame(frame));
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
        if let Some(full) = self.recording().active() {
            full.borrow_mut().call_add_rules(set, owner, now);
        }
    }

    /// Records whether the rules were added.
    pub(super) fn record_rules_added(&mut self, yes: bool) {
        if let Some(full) = self.recording().active() {
            full.borrow_mut().answer(Some(Item::Told { yes }));
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
