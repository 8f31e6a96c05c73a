// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Files that users pass to the NIC's programs: rules of fault injection, and recordings.

use std::collections::BTreeSet;
use verbena_faults::{RuleSet, RuleTable};
use verbena_protocol::{read_json, read_rules};
use verbena_recorder::full::{FullRecordingReader, Item};
use verbena_recorder::{
    diagnose_qp, export_rules, report, DeviceHistory, EntryKind, FlightEntry, FlightRecording,
    ENTRY_WORDS,
};

/// Fuzz target whose input is a file of rules. The rules are accepted, or an error names the line
/// and the cause.
pub fn rule_file(bytes: &[u8]) {
    match read_rules(bytes) {
        Ok(set) => is_good(&set),
        Err(error) => is_clear(&error, bytes),
    }
}

/// Fuzz target whose input is a recording of either kind, or its contents: entries or items. All
/// that can be read can also be reported.
pub fn recording(bytes: &[u8]) {
    if let Ok(recording) = FlightRecording::from_bytes(bytes) {
        told(recording);
    }
    let words = bytes.chunks_exact(8).map(|eight| {
        let eight = eight.try_into().unwrap_or_default();
        u64::from_le_bytes(eight)
    });
    let words: Vec<u64> = words.collect();
    let whole = words.chunks_exact(ENTRY_WORDS);
    let unpacked = whole.filter_map(|words| FlightEntry::unpack(words.try_into().ok()?));
    // A device has no times above this limit.
    let entries = unpacked.filter(|entry| entry.time_ns <= u64::MAX >> 8);
    told(FlightRecording {
        entries: entries.collect(),
        rules: vec![String::from("{}")],
        ..FlightRecording::default()
    });
    let _ = FullRecordingReader::new(bytes).map(Iterator::count);
    let mut rest = bytes;
    while Item::take(&mut rest).is_some() && !rest.is_empty() {}
}

fn told(recording: FlightRecording) {
    assert_eq!(
        FlightRecording::from_bytes(&recording.to_bytes()).as_ref(),
        Ok(&recording)
    );
    let rules = vec![None; recording.rules.len()];
    let exported = export_rules(&recording, &rules);
    if !exported.set.rule.is_empty() {
        assert_eq!(exported.set.check(), Ok(()));
    }
    let mut qpns = BTreeSet::new();
    for entry in &recording.entries {
        if let EntryKind::State { qpn, .. } | EntryKind::Created { qpn, .. } = entry.kind {
            qpns.insert(qpn);
        }
    }
    let history = DeviceHistory::new(recording, rules);
    assert!(report(&history, "files").ends_with("</html>\n"));
    for qpn in qpns {
        if let Ok(lines) = diagnose_qp(&history, qpn) {
            assert!(!lines.is_empty());
        }
    }
}

/// Checks an error message: it has to name a line of the file and the cause. Panics if it does not.
pub fn is_clear(error: &str, file: &[u8]) {
    let lines = 1 + file.iter().filter(|byte| **byte == b'\n').count();
    let told = error
        .strip_prefix("line ")
        .and_then(|rest| rest.split_once(": "));
    let (line, why) = told.unwrap_or_else(|| panic!("no line: {error}"));
    let line: usize = line.parse().unwrap_or_else(|_| panic!("no line: {error}"));
    assert!((1..=lines).contains(&line), "{error}: of {lines} lines");
    assert!(!why.is_empty() && error.chars().count() < 600, "{error}");
}

/// Checks rules that were accepted: they can be added to a device, and written and read again.
/// Panics if that fails.
pub fn is_good(set: &RuleSet) {
    assert_eq!(set.check(), Ok(()));
    let mut table = RuleTable::default();
    if let Err(why) = table.add(set, Some(1), 0, 0) {
        // The device may have a rule with that name, so the check of the file does not report it.
        assert!(why.contains("no other rule is called"), "{why}: {set:?}");
        assert!(table.is_empty());
    }
    let text = serde_json::to_string(set).unwrap();
    assert_eq!(read_json(&text).as_ref(), Ok(set));
}
