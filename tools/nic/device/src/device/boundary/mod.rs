// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The boundary of the device model: a full recording (`verbena_recorder::full`) of all calls, inputs
//! and outputs of the model from a reset on, and a replay of the recording without a guest.
//!
//! * This file records calls and their results. Without a recording, each public call that changes
//!   the model costs a look at one pointer.
//! * `taped.rs` records accesses to guest memory. It is a memory of its own, for which the whole
//!   model is compiled once more, so the memory used without a recording has no code for it.
//! * `replay.rs` replays a recording, with the memory of `replayed.rs`.
//!
//! Guests and threads may change memory during a recording, because it contains the values that the
//! model read.

mod replay;
mod replayed;
mod taped;

pub use replay::{replay, Replayed};
pub use replayed::Stopped;

use crate::device::{Device, Next};
use crate::memory::GuestMemory;
use crate::Config;
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use taped::Taped;
use verbena_abi::cmd::CmdStatus;
use verbena_abi::syndrome::Syndrome;
use verbena_faults::{Action, HeaderField, RuleSet};
use verbena_recorder::full::{Bytes, FullRecordingWriter, Item, PieceSink};

/// Bits of the flags in [`Item::Begin`].
const WIRE_LOCAL: u32 = 1;
const CREDITS: u32 = 2;
const CONGESTION_CONTROL: u32 = 4;
const ASYMMETRIC_ROUTES: u32 = 8;
const ASKS_FOR_GIDS: u32 = 16;

/// State of a full recording while it is on.
#[derive(Debug)]
struct Full {
    tape: FullRecordingWriter,
    json: fn(&RuleSet) -> String,
    /// True while a call of the model has not returned.
    open: bool,
}

impl Full {
    /// Records the beginning of a call. If the call before has not returned, the model panicked in
    /// it.
    fn call(&mut self, item: &Item<'_>) {
        if std::mem::replace(&mut self.open, true) {
            self.tape.put(&Item::Panicked {});
        }
        self.tape.put(item);
    }

    /// Records the end of a call, with its result if it has one.
    fn answer(&mut self, item: Option<Item<'_>>) {
        self.open = false;
        item.iter().for_each(|item| self.tape.put(item));
        self.tape.end_call();
    }

    /// Records a call that does not access guest memory.
    fn note(&mut self, item: &Item<'_>) {
        self.call(item);
        self.answer(None);
    }
}

/// Request for a full recording.
pub struct Wish {
    /// Number that identifies the recording, so that a client ends only its own recording.
    pub number: u64,
    /// Destination of the recorded data.
    pub sink: PieceSink,
    /// Function that writes rules as JSON.
    pub json: fn(&RuleSet) -> String,
    /// Time of day, in nanoseconds since 1970, at which the device clock was 0.
    pub power_on: u64,
}

impl fmt::Debug for Wish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wish").finish_non_exhaustive()
    }
}

/// State of a full recording, as reported to clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Fully {
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
pub(crate) struct Boundary {
    full: Option<Rc<RefCell<Full>>>,
    wish: Option<Box<Wish>>,
    ended: Option<String>,
    /// Number of the recording that the other fields are about.
    number: u64,
}

impl Boundary {
    #[inline]
    pub(super) fn is_taped(&self) -> bool {
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
            how.field == Some(HeaderField::Opcode) || how.payload.is_some() && how.value.is_some()
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
    pub fn record_fully(&mut self, wish: Wish) -> Result<Fully, String> {
        if self.boundary.full.is_some() || self.boundary.wish.is_some() {
            return Err("a full recording is on or requested already: end it first".into());
        }
        self.boundary.ended = None;
        if let Some(reason) = self.cannot_be_recorded() {
            return Err(reason.into());
        }
        self.boundary.number = wish.number;
        self.boundary.wish = Some(Box::new(wish));
        let is_new = !self.commands.is_enabled() && !self.commands.are_pending();
        if is_new && !self.shared.regs().is_fatal() {
            self.begin_anew();
            self.begin_taping();
        }
        Ok(self.fully())
    }

    fn cannot_be_recorded(&self) -> Option<&'static str> {
        let config = self.shared.config();
        if config.neighbours {
            return Some("packets go by reference between the guests of this NIC: start it with --wire-local, or start one NIC for each guest");
        }
        if config.hostile.is_some() {
            return Some("a NIC with --hostile cannot be recorded");
        }
        if self.shared.tap.is_watched() {
            return Some("a capture is on, and reads guest memory too: end it first");
        }
        if self.has_added_rules() {
            return Some("the device has rules already: clear them, and add them after the recording has begun");
        }
        None
    }

    /// Begins the requested recording after a reset, or notes why it cannot begin.
    pub(super) fn begin_taping(&mut self) {
        let Some(wish) = self.boundary.wish.take() else {
            return;
        };
        if let Some(reason) = self.cannot_be_recorded() {
            self.boundary.ended = Some(reason.into());
            return;
        }
        let Wish {
            sink,
            json,
            power_on,
            ..
        } = *wish;
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
        self.boundary.full = Some(Rc::new(RefCell::new(Full {
            tape: FullRecordingWriter::new(sink, &begin),
            json,
            open: false,
        })));
    }

    /// Ends the full recording of this number, or the request for it. A recording with another
    /// number goes on.
    pub fn record_fully_no_more(&mut self, number: u64, reason: &str) {
        if self.boundary.number != number {
            return;
        }
        let full = std::mem::take(&mut self.boundary).full;
        let full = full.and_then(Rc::into_inner).map(RefCell::into_inner);
        if let Some(mut full) = full {
            if full.open {
                full.tape.put(&Item::Panicked {});
            }
            full.tape.finish(reason);
        }
    }

    /// Returns the state of the full recording.
    pub fn fully(&self) -> Fully {
        let boundary = &self.boundary;
        match (&boundary.full, &boundary.wish, &boundary.ended) {
            (Some(full), ..) => full
                .try_borrow()
                .map_or(Fully::On(0), |full| Fully::On(full.tape.count())),
            (None, Some(_), _) => Fully::Waiting,
            (None, None, Some(reason)) => Fully::Ended(reason.clone()),
            (None, None, None) => Fully::Off,
        }
    }

    /// Drops a recording whose sink has failed.
    fn drop_failed_tape(&mut self) {
        let failed = self.boundary.full.as_ref().and_then(|full| {
            let full = full.try_borrow().ok()?;
            full.tape.failure().map(String::from)
        });
        if failed.is_some() {
            self.boundary.full = None;
            self.boundary.ended = failed;
        }
    }

    /// Makes a call with a memory that records each access. None if no recording is on.
    fn taped<M: GuestMemory, R>(
        &mut self,
        mem: &M,
        begin: impl FnOnce(&mut Full),
        call: impl FnOnce(&mut Self, &Taped<'_, M>) -> R,
        answer: impl FnOnce(&R) -> Option<Item<'static>>,
    ) -> Option<R> {
        let full = self.boundary.full.clone()?;
        begin(&mut full.borrow_mut());
        let result = call(self, &Taped::new(mem, &full));
        full.borrow_mut().answer(answer(&result));
        drop(full);
        self.drop_failed_tape();
        Some(result)
    }

    #[cold]
    pub(super) fn taped_slice<M: GuestMemory>(&mut self, mem: &M, now: u64) -> Next {
        let answer = |next: &Next| Item::Next {
            busy: next.busy,
            deadline: next.deadline,
            untaken: next.untaken,
        };
        self.taped(
            mem,
            |full| full.call(&Item::Slice { now }),
            |device, mem| device.work_for_a_slice(mem, now),
            |next| Some(answer(next)),
        )
        .unwrap_or_default()
    }

    #[cold]
    pub(super) fn taped_sleep<M: GuestMemory>(&mut self, mem: &M) -> bool {
        let asleep = self.taped(
            mem,
            |full| full.call(&Item::Sleep {}),
            |device, mem| device.try_to_sleep(mem),
            |yes| Some(Item::Told { yes: *yes }),
        );
        // The device is idle now, so the tape can write out the entries that it holds.
        if let Some(full) = self.boundary.full.as_ref() {
            full.borrow_mut().tape.flush();
        }
        self.drop_failed_tape();
        asleep.unwrap_or_default()
    }

    #[cold]
    pub(super) fn taped_frames<'a, M: GuestMemory>(
        &mut self,
        mem: &M,
        frames: impl Iterator<Item = &'a [u8]>,
        now: u64,
    ) {
        let frames: Vec<&[u8]> = frames.collect();
        let begin = |full: &mut Full| {
            let count = frames.len() as u32;
            full.call(&Item::Frames { now, count });
            frames
                .iter()
                .for_each(|frame| full.tape.received_frame(frame));
        };
        self.taped(
            mem,
            begin,
            |device, mem| device.take_frames(mem, frames.iter().copied(), now),
            |()| None,
        );
    }

    #[cold]
    pub(super) fn taped_enable<M: GuestMemory>(
        &mut self,
        mem: &M,
        (spoken, base, slots): (bool, u64, u32),
    ) {
        let item = Item::Enable {
            spoken,
            base,
            slots,
        };
        self.taped(
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
        let done = self.taped(
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
        let done = self.taped(
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
    pub(super) fn tape_rules(&mut self, set: &RuleSet, owner: Option<u64>, now: u64) {
        if let Some(full) = &self.boundary.full {
            let mut full = full.borrow_mut();
            let json = (full.json)(set);
            if value_matters(set) {
                full.tape.record_payload_verbatim();
            }
            full.call(&Item::AddRules {
                now,
                owner,
                json: &json,
            });
        }
    }

    /// Records whether the rules were added.
    pub(super) fn tape_told(&mut self, yes: bool) {
        if let Some(full) = &self.boundary.full {
            full.borrow_mut().answer(Some(Item::Told { yes }));
        }
    }

    pub(super) fn tape_removal(&mut self, name: &str) {
        if let Some(full) = &self.boundary.full {
            full.borrow_mut().note(&Item::RemoveRule { name });
        }
    }

    #[cold]
    pub(super) fn tape_sent(&mut self, frame: &[u8]) {
        if let Some(full) = &self.boundary.full {
            full.borrow_mut().tape.sent_frame(frame);
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
