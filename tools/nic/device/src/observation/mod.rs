// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Observation of the device: its events, and the sinks that the events go to.
//!
//! The code of the device reports an event once, with [`Resources::report`] or, if the event belongs
//! to a queue pair, with [`Resources::report_of_qp`]. Each sink takes what it is about:
//!
//! | sink | file | events |
//! | --- | --- | --- |
//! | counters of the device and of each queue pair | `counters.rs` | all that a counter counts |
//! | flight recorder | `entries.rs`, `flight_recorder.rs` | packets, work, completions, states, rules |
//! | notes of a capture | `capture_point.rs` | rules that fired |
//! | full recording | `full_recording.rs` | calls of the daemon without access to guest memory |
//! | key violations of an InfiniBand port | `key_violations.rs` | packets dropped for a P_Key or Q_Key |
//!
//! An event holds references, and a sink copies what it keeps. Code that reports an event costs the
//! counter, if there is one, and the check of a pointer for each sink that is off.
//!
//! Two kinds of recording are more than a sink. The frames of a capture are made from guest memory
//! (`execution/frames.rs`). A full recording also has the calls with access to guest memory and each
//! such access (`device/full_recording/`).
//!
//! [`Resources::report`]: crate::execution::resources::Resources::report
//! [`Resources::report_of_qp`]: crate::execution::resources::Resources::report_of_qp

pub(crate) mod capture_point;
pub mod counters;
mod entries;
pub mod event;
pub mod flight_recorder;
pub(crate) mod full_recording;
pub mod key_violations;

use crate::objects::fault_injector::FaultInjector;
use crate::objects::port::Port;
use capture_point::CapturePoint;
use counters::Counters;
use event::DeviceEvent;
use flight_recorder::FlightRecorder;
use full_recording::FullRecordingState;
use key_violations::{KeyViolations, ViolationLog};
use verbena_faults::Rule;

/// State of the device that sinks use beside the event itself.
#[derive(Debug)]
pub struct EventContext<'a> {
    /// Device clock at the beginning of the slice, in nanoseconds.
    pub now: u64,
    /// The port of the device.
    pub port: &'a Port,
    /// The fault injector, if the device has rules.
    pub faults: Option<&'a FaultInjector>,
}

impl EventContext<'_> {
    /// Returns the rule that fired last, with the number of packets before its first match.
    fn last_fired(&self) -> Option<(&Rule, u64)> {
        self.faults?.table.last_fired()
    }
}

/// The sinks of the events.
#[derive(Debug, Default)]
pub(crate) struct Observers {
    /// Counters of the device itself, and the sum of the counters of destroyed queue pairs.
    counters: Counters,
    /// The flight recorder, if the device records.
    recorder: Option<Box<FlightRecorder>>,
    /// The capture of the port.
    capture: CapturePoint,
    /// The full recording.
    full_recording: FullRecordingState,
    /// Violations of keys that the daemon has not taken.
    key_violations: ViolationLog,
}

/// The sinks that stay over a reset of the device.
#[derive(Debug, Default)]
pub(crate) struct LastingObservers {
    recorder: Option<Box<FlightRecorder>>,
    capture: CapturePoint,
    full_recording: FullRecordingState,
}

impl Observers {
    /// Creates the sinks of a new device. Its flight recorder has room for `entries` entries; 0 is
    /// no flight recorder.
    pub(crate) fn new(entries: usize) -> Self {
        Self {
            recorder: (entries > 0).then(|| Box::new(FlightRecorder::new(entries))),
            ..Self::default()
        }
    }

    /// Reports an event to all sinks.
    #[inline(always)]
    pub(crate) fn on_event(&mut self, event: &DeviceEvent<'_>, context: &EventContext<'_>) {
        self.counters.on_event(event);
        if let Some(recorder) = &mut self.recorder {
            recorder.on_event(event, context);
        }
        if self.capture.has_tap() {
            self.capture.on_event(event, context);
        }
        if self.full_recording.is_on() {
            self.full_recording.on_event(event);
        }
        self.key_violations.on_event(event, context);
    }

    /// Takes the sinks that stay over a reset.
    pub(crate) fn take_lasting(&mut self) -> LastingObservers {
        LastingObservers {
            recorder: self.recorder.take(),
            capture: std::mem::take(&mut self.capture),
            full_recording: std::mem::take(&mut self.full_recording),
        }
    }

    /// Puts the sinks back that stay over a reset.
    pub(crate) fn put_lasting(&mut self, sinks: LastingObservers) {
        self.recorder = sinks.recorder;
        self.capture = sinks.capture;
        self.full_recording = sinks.full_recording;
    }

    /// Returns the counters of the device itself, with those of destroyed queue pairs.
    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Takes the violations of keys since the last call.
    pub(crate) fn take_key_violations(&mut self) -> impl Iterator<Item = KeyViolations> {
        self.key_violations.take()
    }

    /// Returns the flight recorder, if the device records.
    pub(crate) fn recorder(&self) -> Option<&FlightRecorder> {
        self.recorder.as_deref()
    }

    /// Sets the flight recorder, or the absence of one.
    pub(crate) fn set_recorder(&mut self, recorder: Option<Box<FlightRecorder>>) {
        self.recorder = recorder;
    }

    /// Returns the capture of the port.
    #[inline]
    pub(crate) fn capture(&self) -> &CapturePoint {
        &self.capture
    }

    /// Returns the capture of the port, to show frames.
    #[inline]
    pub(crate) fn capture_mut(&mut self) -> &mut CapturePoint {
        &mut self.capture
    }

    /// Returns the full recording.
    #[inline]
    pub(crate) fn full_recording(&self) -> &FullRecordingState {
        &self.full_recording
    }

    /// Returns the full recording, to begin and to end it.
    pub(crate) fn full_recording_mut(&mut self) -> &mut FullRecordingState {
        &mut self.full_recording
    }
}
