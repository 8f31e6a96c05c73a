// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The state of a full recording, which is also the sink of the calls without access to guest memory.

use crate::observation::event::{Call, DeviceEvent};
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use verbena_faults::{Action, HeaderField, RuleSet};
use verbena_recorder::full::{FullRecordingWriter, Item, PieceSink};

/// State of a full recording while it is on.
#[derive(Debug)]
pub(crate) struct ActiveRecording {
    writer: FullRecordingWriter,
    json: fn(&RuleSet) -> String,
    /// True while a call of the model has not returned.
    open: bool,
}

impl ActiveRecording {
    /// Begins a recording with its first entry.
    pub(crate) fn new(sink: PieceSink, json: fn(&RuleSet) -> String, begin: &Item<'_>) -> Self {
        Self {
            writer: FullRecordingWriter::new(sink, begin),
            json,
            open: false,
        }
    }

    /// Returns the writer, for entries within a call.
    pub(crate) fn writer(&mut self) -> &mut FullRecordingWriter {
        &mut self.writer
    }

    /// Records the beginning of a call. If the call before has not returned, the model panicked in
    /// it.
    pub(crate) fn call(&mut self, item: &Item<'_>) {
        if std::mem::replace(&mut self.open, true) {
            self.writer.put(&Item::Panicked {});
        }
        self.writer.put(item);
    }

    /// Records the end of a call, with its result if it has one.
    pub(crate) fn answer(&mut self, item: Option<Item<'_>>) {
        self.open = false;
        item.iter().for_each(|item| self.writer.put(item));
        self.writer.end_call();
    }

    /// Records the beginning of a call that adds rules.
    pub(crate) fn call_add_rules(&mut self, set: &RuleSet, owner: Option<u64>, now: u64) {
        let json = (self.json)(set);
        if value_matters(set) {
            self.writer.record_payload_verbatim();
        }
        self.call(&Item::AddRules {
            now,
            owner,
            json: &json,
        });
    }

    /// Ends the recording for a reason.
    pub(crate) fn finish(mut self, reason: &str) {
        if self.open {
            self.writer.put(&Item::Panicked {});
        }
        self.writer.finish(reason);
    }

    fn on_call(&mut self, call: &Call<'_>) {
        let item = match *call {
            // A frame that is taken is an output, not a call with an end.
            Call::TakeFrame(frame) => return self.writer.sent_frame(frame),
            Call::Reset => Item::Reset {},
            Call::RingCommand { slot } => Item::Command { slot },
            Call::RingArea { uar } => Item::Ring { uar },
            Call::CountDoorbells { more } => Item::Doorbells { more },
            Call::TakeInterrupts { vectors } => Item::Raised { vectors },
            Call::RemoveRule { name } => Item::RemoveRule { name },
            Call::RemoveRulesOf { owner } => Item::RemoveRulesOf { owner },
            Call::ClearRules => Item::ClearRules {},
        };
        self.call(&item);
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
    active: Option<Rc<RefCell<ActiveRecording>>>,
    request: Option<Box<FullRecordingRequest>>,
    ended: Option<String>,
    /// Number of the recording that the other fields are about.
    number: u64,
}

impl FullRecordingState {
    /// True if a recording is on.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.active.is_some()
    }

    /// Records a call that does not access guest memory, if a recording is on.
    #[cold]
    pub(super) fn on_event(&mut self, event: &DeviceEvent<'_>) {
        if let (DeviceEvent::Called(call), Some(active)) = (event, &self.active) {
            active.borrow_mut().on_call(call);
        }
    }

    /// Forgets why the last recording ended. False if a recording is on or requested.
    pub(crate) fn prepare(&mut self) -> bool {
        let free = self.active.is_none() && self.request.is_none();
        if free {
            self.ended = None;
        }
        free
    }

    /// Keeps the request for a recording.
    pub(crate) fn set_request(&mut self, request: FullRecordingRequest) {
        self.number = request.number;
        self.request = Some(Box::new(request));
    }

    /// Takes the request for a recording.
    pub(crate) fn take_request(&mut self) -> Option<FullRecordingRequest> {
        self.request.take().map(|request| *request)
    }

    /// Begins a recording.
    pub(crate) fn begin(&mut self, recording: ActiveRecording) {
        self.active = Some(Rc::new(RefCell::new(recording)));
    }

    /// Drops the recording, if there is one, for a reason that clients are given.
    pub(crate) fn fail(&mut self, reason: String) {
        self.active = None;
        self.ended = Some(reason);
    }

    /// Drops a recording whose sink has failed.
    pub(crate) fn drop_failed(&mut self) {
        let failed = self.active.as_ref().and_then(|active| {
            let active = active.try_borrow().ok()?;
            active.writer.failure().map(String::from)
        });
        if let Some(reason) = failed {
            self.fail(reason);
        }
    }

    /// Ends the recording of this number, or the request for it. A recording with another number
    /// goes on.
    pub(crate) fn end(&mut self, number: u64, reason: &str) {
        if self.number != number {
            return;
        }
        let active = std::mem::take(self).active.and_then(Rc::into_inner);
        if let Some(recording) = active.map(RefCell::into_inner) {
            recording.finish(reason);
        }
    }

    /// Returns the recording, if it is on.
    pub(crate) fn active(&self) -> Option<&Rc<RefCell<ActiveRecording>>> {
        self.active.as_ref()
    }

    /// Returns the state of the recording.
    pub(crate) fn status(&self) -> FullRecordingStatus {
        match (&self.active, &self.request, &self.ended) {
            (Some(active), ..) => FullRecordingStatus::On(
                active
                    .try_borrow()
                    .map_or(0, |active| active.writer.count()),
            ),
            (None, Some(_), _) => FullRecordingStatus::Waiting,
            (None, None, Some(reason)) => FullRecordingStatus::Ended(reason.clone()),
            (None, None, None) => FullRecordingStatus::Off,
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
