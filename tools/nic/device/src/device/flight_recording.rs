// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The flight recorder: begins and ends a recording, and returns its entries.

use crate::device::Device;
use crate::objects::flight_recorder::FlightRecorder;
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
}

impl Device {
    /// Begins to record the last `entries` entries, also over resets. An earlier recording is
    /// dropped.
    pub fn begin_flight_recording(&mut self, entries: usize, now: u64) {
        self.shared.recorder = Some(Box::new(FlightRecorder::new(entries)));
        self.shared.clock.begin(self.shared.clock.now().max(now));
        let rules: Vec<Rule> = self.rules().into_iter().map(|status| status.rule).collect();
        self.note_rules(&rules, true);
    }

    /// Ends the recording and drops its entries.
    pub fn end_flight_recording(&mut self) {
        self.shared.recorder = None;
    }

    /// Returns up to `most` entries, beginning with number `from`. None if the recorder is off.
    pub fn flight_recording(&self, from: u64, most: usize) -> Option<FlightRecordingPart> {
        let recorder = self.shared.recorder.as_ref()?;
        let (first, entries) = recorder.ring.portion(from, most);
        Some(FlightRecordingPart {
            first,
            entries,
            total: recorder.ring.total(),
            capacity: recorder.ring.capacity(),
            rules: recorder.rules.clone(),
        })
    }

    /// Records that rules were added, or with `late` that they were there when the recording began.
    pub(super) fn note_rules(&mut self, rules: &[Rule], late: bool) {
        let now = self.shared.clock.now();
        if let Some(recorder) = &mut self.shared.recorder {
            rules.iter().for_each(|rule| recorder.add(now, rule, late));
        }
    }
}
