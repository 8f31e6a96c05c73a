// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The flight recorder: begins and ends a recording, and returns its entries.

use crate::device::Device;
use crate::observation::event::DeviceEvent;
use crate::observation::flight_recorder::FlightRecorder;
use verbena_faults::Rule;
use verbena_recorder::ENTRY_WORDS;

/// Part of a recording of the flight recorder.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlightRecordingPart {
    /// Number of the first entry. Earlier entries were overwritten or not requested.
    pub first: u64,
    /// Entries in their packed form.
    pub entries: Vec<[u64; ENTRY_WORDS]>,
    /// Number of all entries that were ever recorded.
    pub total: u64,
    /// Number of entries for which the recorder has room.
    pub capacity: usize,
    /// Rules that the entries name.
    pub rules: Vec<Rule>,
    /// True if the link layer of the port is InfiniBand.
    pub is_infiniband: bool,
}

impl Device {
    /// Begins to record the last `entries` entries, also over resets. An earlier recording is
    /// dropped.
    pub fn begin_flight_recording(&mut self, entries: usize, now: u64) {
        let recorder = Box::new(FlightRecorder::new(entries));
        self.shared.observers.set_recorder(Some(recorder));
        self.shared.clock.begin(self.shared.clock.now().max(now));
        let rules: Vec<Rule> = self.rules().into_iter().map(|status| status.rule).collect();
        self.shared.report(DeviceEvent::RulesAdded {
            rules: &rules,
            late: true,
        });
    }

    /// Ends the recording and drops its entries.
    pub fn end_flight_recording(&mut self) {
        self.shared.observers.set_recorder(None);
    }

    /// Returns up to `most` entries, beginning with number `from`. None if the recorder is off.
    pub fn flight_recording(&self, from: u64, most: usize) -> Option<FlightRecordingPart> {
        let recorder = self.shared.observers.recorder()?;
        let (first, entries) = recorder.ring.portion(from, most);
        Some(FlightRecordingPart {
            first,
            entries,
            total: recorder.ring.total(),
            capacity: recorder.ring.capacity(),
            rules: recorder.rules.clone(),
            is_infiniband: self.shared.port.as_infiniband().is_some(),
        })
    }
}
