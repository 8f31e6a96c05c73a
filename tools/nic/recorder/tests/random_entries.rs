// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Random entries that no device writes: all functions that read recordings must process them
//! without a panic.

use verbena_faults::{Action, Match, Rule};
use verbena_recorder::{
    diagnose_qp, export_rules, list_errors, report, synthesize_frames, DeviceHistory, EntryKind,
    FlightEntry, FlightRecording, ENTRY_WORDS,
};

/// A source of random numbers (splitmix64).
struct RandomEntries(u64);

impl RandomEntries {
    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns mostly small numbers, so that entries refer to each other.
    fn small_number(&mut self) -> u64 {
        match self.next_u64() % 4 {
            0 => self.next_u64(),
            1 => self.next_u64() & 0x7_0000_0007,
            _ => self.next_u64() & 0x3_0000_0003,
        }
    }

    fn entry(&mut self) -> Option<FlightEntry> {
        let mut words = [0; ENTRY_WORDS];
        words
            .iter_mut()
            .for_each(|word| *word = self.small_number());
        words[1] = self.next_u64() % 14 | (self.next_u64() & 0x3_ffff_ff00);
        // A device has no times above this limit.
        words[0] &= u64::MAX >> 8;
        FlightEntry::unpack(&words)
    }
}

#[test]
fn random_recordings_are_processed_without_a_panic() {
    let rule = Rule {
        name: "é".repeat(30),
        optional: false,
        matches: Match::default(),
        action: Action::Drop,
    };
    let mut random = RandomEntries(1);
    let mut explained = 0;
    for _ in 0..300 {
        let entries: Vec<FlightEntry> = (0..200).filter_map(|_| random.entry()).collect();
        let recording = FlightRecording {
            first: random.next_u64() >> 2,
            entries,
            rules: vec![String::from("\"action\":"), String::new()],
            ..FlightRecording::default()
        };
        assert_eq!(
            FlightRecording::from_bytes(&recording.to_bytes()).as_ref(),
            Ok(&recording)
        );
        let exported = export_rules(&recording, &[Some(rule.clone()), None]);
        assert!(exported.set.rule.iter().all(|rule| rule.name.len() <= 64));
        let qpns: Vec<u32> = recording
            .entries
            .iter()
            .filter_map(|entry| match entry.kind {
                EntryKind::State { qpn, .. } => Some(qpn),
                _ => None,
            })
            .collect();
        let history = DeviceHistory::new(recording, vec![Some(rule.clone()), None]);
        for qpn in qpns {
            explained += usize::from(diagnose_qp(&history, qpn).is_ok());
        }
        list_errors(&history).lines();
        assert!(synthesize_frames(&history).len() <= 1 << 16);
        assert!(report(&history, "drawn").ends_with("</html>\n"));
    }
    assert!(explained > 1000, "{explained}");
}
