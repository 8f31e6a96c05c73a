// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The flight recorder: on, off, and what it has.

use crate::device::Device;
use crate::objects::recorder::Recorder;
use verbena_faults::Rule;
use verbena_record::WORDS;
use verbena_roce::Packet;

/// A part of a recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recorded {
    /// Number of the first entry: those before it were overwritten, or not asked for.
    pub first: u64,
    /// The entries, packed.
    pub entries: Vec<[u64; WORDS]>,
    /// So many there were in all.
    pub total: u64,
    /// So many it has room for.
    pub capacity: usize,
    /// The rules that entries name.
    pub rules: Vec<Rule>,
}

impl Device {
    /// Begins to record the last so many entries, over resets too; what was recorded before is gone.
    pub fn record(&mut self, entries: usize, now: u64) {
        self.shared.recorder = Some(Box::new(Recorder::new(entries)));
        self.shared.now = self.shared.now.max(now);
        let rules: Vec<Rule> = self.rules().into_iter().map(|told| told.rule).collect();
        self.note_rules(&rules, true);
    }

    /// Records no more, and forgets.
    pub fn record_no_more(&mut self) {
        self.shared.recorder = None;
    }

    /// At most so many entries from a number on. None: nothing is recorded.
    pub fn recorded(&self, from: u64, most: usize) -> Option<Recorded> {
        let recorder = self.shared.recorder.as_ref()?;
        let (first, entries) = recorder.ring.portion(from, most);
        Some(Recorded {
            first,
            entries,
            total: recorder.ring.total(),
            capacity: recorder.ring.capacity(),
            rules: recorder.rules.clone(),
        })
    }

    /// Rules were added, or are there already.
    pub(super) fn note_rules(&mut self, rules: &[Rule], late: bool) {
        let now = self.shared.now;
        if let Some(recorder) = &mut self.shared.recorder {
            rules.iter().for_each(|rule| recorder.add(now, rule, late));
        }
    }

    /// A packet that chance may have lost.
    #[inline]
    pub(super) fn note_chance(&mut self, packet: &Packet, lost: bool) {
        if self.shared.recorder.is_some() && self.shared.config.drop_percent != 0 {
            let env = self.qps.get(packet.src_qpn).map(|qp| &qp.env);
            self.shared.note_lot(env, packet, lost);
        }
    }
}
