// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Random entries that no device writes: all functions that read recordings must process them
//! without a panic.

use verbena_faults::{Action, Match, Rule};
use verbena_recorder::{errors, export, frames, report, why, Entry, Facts, Recording, What, WORDS};

/// A source of random numbers (splitmix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns mostly small numbers, so that entries refer to each other.
    fn number(&mut self) -> u64 {
        match self.roll() % 4 {
            0 => self.roll(),
            1 => self.roll() & 0x7_0000_0007,
            _ => self.roll() & 0x3_0000_0003,
        }
    }

    fn entry(&mut self) -> Option<Entry> {
        let mut words = [0; WORDS];
        words.iter_mut().for_each(|word| *word = self.number());
        words[1] = self.roll() % 14 | (self.roll() & 0x3_ffff_ff00);
        // A device has no times above this limit.
        words[0] &= u64::MAX >> 8;
        Entry::unpack(&words)
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
    let mut dice = Dice(1);
    let mut explained = 0;
    for _ in 0..300 {
        let entries: Vec<Entry> = (0..200).filter_map(|_| dice.entry()).collect();
        let recording = Recording {
            first: dice.roll() >> 2,
            entries,
            rules: vec![String::from("\"action\":"), String::new()],
            ..Recording::default()
        };
        assert_eq!(
            Recording::from_bytes(&recording.to_bytes()).as_ref(),
            Ok(&recording)
        );
        let exported = export(&recording, &[Some(rule.clone()), None]);
        assert!(exported.set.rule.iter().all(|rule| rule.name.len() <= 64));
        let qpns: Vec<u32> = recording
            .entries
            .iter()
            .filter_map(|entry| match entry.what {
                What::State { qpn, .. } => Some(qpn),
                _ => None,
            })
            .collect();
        let facts = Facts::of(recording, vec![Some(rule.clone()), None]);
        for qpn in qpns {
            explained += usize::from(why(&facts, qpn).is_ok());
        }
        errors(&facts).lines();
        assert!(frames(&facts).len() <= 1 << 16);
        assert!(report(&facts, "drawn").ends_with("</html>\n"));
    }
    assert!(explained > 1000, "{explained}");
}
