// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The errors of a recording: each change of a QP to ERR or SQE, and each fatal error of the
//! device, a CQ or an SRQ, with the chain as it was then. Errors that a program repaired afterwards
//! are included. Each sentence appears once: errors that are alike share their text, and so do
//! errors with the same advice.

use super::json_writer::JsonWriter;
use crate::device_history::{is_error, DeviceHistory, QpName};
use crate::diagnosis::{diagnose_event, diagnose_qp};
use crate::entry::EntryKind;
use crate::flight_recording::FlightRecording;
use std::collections::BTreeSet;

/// Most errors that are listed with their chains.
const MAX_LISTED: usize = 64;

/// Returns the history as it was when a QP entered an error state at index `at`: all entries
/// before the next entry of this QP, before a later entry of another QP, and before a reset of the
/// device.
pub(crate) fn history_at_error(history: &DeviceHistory, at: usize, qpn: u32) -> DeviceHistory {
    let all = history.entries();
    let time = all.get(at).map_or(0, |entry| entry.time_ns);
    let later = all.get(at + 1..).unwrap_or_default();
    let next_change = later.iter().position(|entry| match entry.kind {
        EntryKind::State { qpn: n, .. }
        | EntryKind::Created { qpn: n, .. }
        | EntryKind::Destroyed { qpn: n, .. } => n == qpn || entry.time_ns > time,
        EntryKind::Reset => true,
        _ => false,
    });
    let end = next_change.map_or(all.len(), |n| at + 1 + n);
    let recording = FlightRecording {
        first: history.recording.first,
        entries: all.get(..end).unwrap_or(all).to_vec(),
        ..FlightRecording::default()
    };
    DeviceHistory::new(recording, history.rules.clone())
}

/// Returns the failed object and the chain of each error.
fn error_chains(history: &DeviceHistory) -> Vec<(String, Vec<String>)> {
    let places = 0..history.entries().len();
    let each = places.filter_map(|at| match history.entries().get(at)?.kind {
        EntryKind::State { qpn, from, to, .. } if is_error(to) && from != to => {
            let lines =
                diagnose_qp(&history_at_error(history, at, qpn), qpn).unwrap_or_else(|e| vec![e]);
            Some((QpName(qpn).to_string(), lines))
        }
        EntryKind::Event { .. } => diagnose_event(history, at),
        _ => None,
    });
    each.take(MAX_LISTED).collect()
}

/// Words that introduce the advice about an error.
const ADVICE: &str = "What to do: ";

/// An error, and the errors that are like it.
struct ErrorGroup {
    object: String,
    /// First sentence. The other sentences (`chain`) leave out those of earlier groups.
    summary: String,
    chain: Vec<String>,
    /// All sentences without their moments, to find errors that are alike.
    timeless_text: String,
    /// Moments of the other errors.
    repetitions: Vec<String>,
}

/// Groups of errors, and the advice to programs, each with the objects to which it applies.
#[derive(Default)]
struct GroupedErrors {
    groups: Vec<ErrorGroup>,
    advice: Vec<(String, Vec<String>)>,
}

/// Finds a moment in a sentence, such as "at 0.011646 s (entry 204)", and returns its range.
fn moment_in(text: &str) -> Option<(usize, usize)> {
    let entry = text.find(" s (entry ")?;
    let begin = text.get(..entry)?.rfind("at ")?;
    let end = entry + 1 + text.get(entry..)?.find(')')?;
    Some((begin, end))
}

/// Returns a sentence without its moments.
fn timeless(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((begin, end)) = moment_in(rest) {
        out.push_str(rest.get(..begin).unwrap_or_default());
        rest = rest.get(end..).unwrap_or_default();
    }
    out + rest
}

/// Leaves out the explanation of a syndrome that an earlier sentence explained: "CqOverflow
/// (0x3001): The CQ was full." becomes "CqOverflow (0x3001).".
fn explained_once(line: String, explained: &mut BTreeSet<String>) -> String {
    let ends = line.match_indices("): ").find_map(|(end, _)| {
        let number = line.get(end.checked_sub(8)?..end)?;
        let hex = number.strip_prefix(" (0x")?;
        let is_number = hex.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_number.then_some((end - 8, end + 1))
    });
    let Some((name, end)) = ends else { return line };
    let begin = line.get(..name).and_then(|before| before.rfind(' '));
    let text = line.get(begin.map_or(0, |n| n + 1)..).unwrap_or_default();
    if explained.insert(text.into()) {
        return line;
    }
    format!("{}.", line.get(..end).unwrap_or_default())
}

/// Groups the errors by their text.
fn group_errors(errors: Vec<(String, Vec<String>)>) -> GroupedErrors {
    let mut grouped = GroupedErrors::default();
    // `explained` has the explanations so far, `shown` the whole sentences.
    let (mut explained, mut shown) = (BTreeSet::new(), BTreeSet::new());
    for (object, lines) in errors {
        let (advice, lines): (Vec<String>, Vec<String>) =
            lines.into_iter().partition(|line| line.starts_with(ADVICE));
        for text in advice.iter().filter_map(|line| line.strip_prefix(ADVICE)) {
            add_advice(&mut grouped.advice, text, &object);
        }
        let timeless_text = timeless(&format!("{object}\n{}", lines.join("\n")));
        let mut lines = lines.into_iter();
        let summary = lines.next().unwrap_or_default();
        if let Some(group) = grouped
            .groups
            .iter_mut()
            .find(|group| group.timeless_text == timeless_text)
        {
            let moment = moment_in(&summary).and_then(|(begin, end)| summary.get(begin..end));
            group.repetitions.push(moment.unwrap_or_default().into());
            continue;
        }
        shown.insert(summary.clone());
        let summary = explained_once(summary, &mut explained);
        grouped.groups.push(ErrorGroup {
            object,
            summary,
            chain: lines
                .filter(|line| shown.insert(line.clone()))
                .map(|line| explained_once(line, &mut explained))
                .collect(),
            timeless_text,
            repetitions: Vec::new(),
        });
    }
    grouped
}

fn add_advice(advice: &mut Vec<(String, Vec<String>)>, text: &str, object: &str) {
    match advice.iter_mut().find(|(known, _)| known == text) {
        Some((_, all)) if all.iter().any(|one| one == object) => {}
        Some((_, all)) => all.push(object.into()),
        None => advice.push((text.into(), vec![object.into()])),
    }
}

/// Writes `errors`, for each group the object, the error, the moments of similar errors and the
/// chain, and `advice`, each with the objects to which it applies.
pub(super) fn write(history: &DeviceHistory, json: &mut JsonWriter) {
    let grouped = group_errors(error_chains(history));
    let strings = |json: &mut JsonWriter, all: &[String]| {
        json.begin('[');
        all.iter().for_each(|text| json.string(text));
        json.end(']');
    };
    json.key("errors");
    json.begin('[');
    for group in &grouped.groups {
        json.begin('[');
        json.string(&group.object);
        json.string(&group.summary);
        strings(json, &group.repetitions);
        strings(json, &group.chain);
        json.end(']');
    }
    json.end(']');
    json.key("advice");
    json.begin('[');
    for (text, objects) in &grouped.advice {
        json.begin('[');
        json.string(text);
        strings(json, objects);
        json.end(']');
    }
    json.end(']');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::tests::{created, rule, state};
    use crate::entry::{FlightEntry, PacketEntry};
    use verbena_abi::ctx::QpState;
    use verbena_abi::eqe::EventType;
    use verbena_abi::syndrome::Syndrome;
    use verbena_faults::{Direction, RuleHook};

    fn of(kinds: Vec<EntryKind>) -> Vec<String> {
        let entries = (0..).zip(kinds);
        let recording = FlightRecording {
            first: 100,
            entries: entries
                .map(|(time_ns, kind)| FlightEntry { time_ns, kind })
                .collect(),
            ..FlightRecording::default()
        };
        let errors = error_chains(&DeviceHistory::new(recording, vec![Some(rule("x"))]));
        let each = errors.into_iter();
        each.map(|(object, lines)| format!("{object}\n{}", lines.join("\n")))
            .collect()
    }

    #[test]
    fn a_repaired_error_is_shown_each_time() {
        let error = |cause| state(1, 2, QpState::Err, Some(cause));
        let sent = EntryKind::Sent(PacketEntry {
            qpn: 1,
            opcode: 10,
            psn: 7,
            count: 1,
            ..PacketEntry::default()
        });
        let errors = of(vec![
            created(1),
            sent,
            sent,
            error(Syndrome::RetryExceeded),
            state(1, 0, QpState::Reset, None),
            state(1, 2, QpState::Rts, None),
            sent,
            error(Syndrome::RetryExceeded),
            EntryKind::Destroyed { qpn: 1, owner: 1 },
        ]);
        let [first, second] = errors.as_slice() else {
            panic!("{errors:?}");
        };
        assert!(
            first.starts_with("QP 0x1\nQP 0x1 is in ERR, at 0.000000 s (entry 103): RetryExceeded"),
            "{first}"
        );
        assert!(
            second
                .starts_with("QP 0x1\nQP 0x1 is in ERR, at 0.000000 s (entry 107): RetryExceeded"),
            "{second}"
        );
        assert!(first.contains("was sent 2 times"), "{first}");
        // Packets of the earlier connection do not count.
        assert!(second.contains("was sent once"), "{second}");
        assert!(
            !first.contains("no error") && !second.contains("destroyed"),
            "{errors:?}"
        );
    }

    #[test]
    fn a_sentence_is_shown_once() {
        let error = |object: &str, time: u32, cause: &str| {
            let lines = [
                format!("{object} is in ERR, at 0.00000{time} s (entry {time}): {cause}"),
                String::from("QP 0x9 is in RTS, at 0.000001 s (entry 1): that is no error."),
                String::from("What to do: poll."),
            ];
            (String::from(object), lines.to_vec())
        };
        let grouped = group_errors(vec![
            error("QP 0x1", 2, "a"),
            error("QP 0x1", 3, "a"),
            error("QP 0x2", 4, "a"),
            error("QP 0x1", 5, "b"),
        ]);
        let summaries: Vec<&str> = grouped.groups.iter().map(|g| g.summary.as_str()).collect();
        assert_eq!(
            summaries,
            [
                "QP 0x1 is in ERR, at 0.000002 s (entry 2): a",
                "QP 0x2 is in ERR, at 0.000004 s (entry 4): a",
                "QP 0x1 is in ERR, at 0.000005 s (entry 5): b",
            ]
        );
        let repetitions = grouped.groups.first().map(|g| g.repetitions.clone());
        assert_eq!(
            repetitions,
            Some(vec![String::from("at 0.000003 s (entry 3)")])
        );
        let lengths = grouped.groups.iter().map(|g| g.chain.len());
        assert_eq!(lengths.collect::<Vec<_>>(), [1, 0, 0]);
        let object = ["QP 0x1", "QP 0x2"].map(String::from).to_vec();
        assert_eq!(grouped.advice, [(String::from("poll."), object)]);
    }

    #[test]
    fn a_syndrome_is_explained_once() {
        let error = |object: &str, cause: &str, why: &str| {
            let summary = format!("{object} died, at 0.000002 s (entry 2): {cause}");
            (String::from(object), vec![summary, String::from(why)])
        };
        let full = "CqOverflow (0x3001): The CQ was full.";
        let grouped = group_errors(vec![
            error("CQ 3", full, "It received a NAK (AETH syndrome 0x63): no."),
            error("QP 0x1", "CqDied (0x3003): A CQ is in error.", full),
            error(
                "QP 0x2",
                "CqDied (0x3003): A CQ is in error.",
                "Other (0x3001): The CQ was full.",
            ),
        ]);
        let lines = |g: &ErrorGroup| [vec![g.summary.clone()], g.chain.clone()].concat();
        let all: Vec<String> = grouped.groups.iter().flat_map(lines).collect();
        assert_eq!(
            all,
            [
                "CQ 3 died, at 0.000002 s (entry 2): CqOverflow (0x3001): The CQ was full.",
                "It received a NAK (AETH syndrome 0x63): no.",
                "QP 0x1 died, at 0.000002 s (entry 2): CqDied (0x3003): A CQ is in error.",
                "CqOverflow (0x3001).",
                "QP 0x2 died, at 0.000002 s (entry 2): CqDied (0x3003).",
                "Other (0x3001): The CQ was full.",
            ]
        );
    }

    #[test]
    fn a_fatal_error_is_shown_with_its_rule() {
        let fired = EntryKind::Fired {
            rule: 0,
            on: RuleHook::Packet,
            direction: Direction::Out,
            opcode: 7,
            qpn: 1,
            owner: 1,
            base: 0,
            psn: 0,
            nth: 1,
        };
        let event = |kind: EventType, number| EntryKind::Event {
            event_type: kind.to_raw(),
            number,
            syndrome: Syndrome::Injected.to_raw(),
        };
        let errors = of(vec![
            fired,
            event(EventType::DeviceFatal, 0),
            event(EventType::SrqErr, 7),
            event(EventType::QpLastWqeReached, 1),
        ]);
        let [device, srq] = errors.as_slice() else {
            panic!("{errors:?}");
        };
        for part in [
            "The device died",
            "(entry 101)",
            "Rule \"x\" fired last before it",
            "(entry 100)",
            "open it again",
        ] {
            assert!(device.contains(part), "{part}: {device}");
        }
        assert!(srq.starts_with("SRQ 7\nSRQ 7 died"), "{srq}");
    }
}
