// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The errors of a recording: each change of a QP to ERR or SQE, and each fatal error of the
//! device, a CQ or an SRQ, with the chain as it was then. Errors that a program repaired afterwards
//! are included. Each sentence appears once: errors that are alike share their text, and so do
//! errors with the same advice.

use super::json::Json;
use crate::entry::What;
use crate::facts::{is_error, Facts, Name};
use crate::file::Recording;
use crate::why::{why, why_event};
use std::collections::BTreeSet;

/// Most errors that are listed with their chains.
const TOLD: usize = 64;

/// Returns the facts as they were when a QP entered an error state at index `at`: all entries
/// before the next entry of this QP, before a later entry of another QP, and before a reset of the
/// device.
pub(crate) fn until(facts: &Facts, at: usize, qpn: u32) -> Facts {
    let all = facts.all();
    let time = all.get(at).map_or(0, |entry| entry.time);
    let later = all.get(at + 1..).unwrap_or_default();
    let goes_on = later.iter().position(|entry| match entry.what {
        What::State { qpn: n, .. }
        | What::Created { qpn: n, .. }
        | What::Destroyed { qpn: n, .. } => n == qpn || entry.time > time,
        What::Reset => true,
        _ => false,
    });
    let end = goes_on.map_or(all.len(), |n| at + 1 + n);
    let recording = Recording {
        first: facts.recording.first,
        entries: all.get(..end).unwrap_or(all).to_vec(),
        ..Recording::default()
    };
    Facts::of(recording, facts.rules.clone())
}

/// Returns the failed object and the chain of each error.
fn told(facts: &Facts) -> Vec<(String, Vec<String>)> {
    let places = 0..facts.all().len();
    let each = places.filter_map(|at| match facts.all().get(at)?.what {
        What::State { qpn, from, to, .. } if is_error(to) && from != to => {
            let lines = why(&until(facts, at, qpn), qpn).unwrap_or_else(|e| vec![e]);
            Some((Name(qpn).to_string(), lines))
        }
        What::Event { .. } => why_event(facts, at),
        _ => None,
    });
    each.take(TOLD).collect()
}

/// Words that introduce the advice about an error.
const ADVICE: &str = "What to do: ";

/// An error, and the errors that are like it.
struct Group {
    who: String,
    /// First sentence. The other sentences (`why`) leave out those of earlier groups.
    what: String,
    why: Vec<String>,
    /// All sentences without their moments, to find errors that are alike.
    alike: String,
    /// Moments of the other errors.
    again: Vec<String>,
}

/// Groups of errors, and the advice to programs, each with the objects to which it applies.
#[derive(Default)]
struct Told {
    groups: Vec<Group>,
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
fn explained_once(line: String, said: &mut BTreeSet<String>) -> String {
    let ends = line.match_indices("): ").find_map(|(end, _)| {
        let number = line.get(end.checked_sub(8)?..end)?;
        let hex = number.strip_prefix(" (0x")?;
        let is_number = hex.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_number.then_some((end - 8, end + 1))
    });
    let Some((name, end)) = ends else { return line };
    let begin = line.get(..name).and_then(|before| before.rfind(' '));
    let text = line.get(begin.map_or(0, |n| n + 1)..).unwrap_or_default();
    if said.insert(text.into()) {
        return line;
    }
    format!("{}.", line.get(..end).unwrap_or_default())
}

/// Groups the errors by their text.
fn grouped(errors: Vec<(String, Vec<String>)>) -> Told {
    let mut told = Told::default();
    // `said` has the explanations so far, `whole` the whole sentences.
    let (mut said, mut whole) = (BTreeSet::new(), BTreeSet::new());
    for (who, lines) in errors {
        let (advice, lines): (Vec<String>, Vec<String>) =
            lines.into_iter().partition(|line| line.starts_with(ADVICE));
        for text in advice.iter().filter_map(|line| line.strip_prefix(ADVICE)) {
            advise(&mut told.advice, text, &who);
        }
        let alike = timeless(&format!("{who}\n{}", lines.join("\n")));
        let mut lines = lines.into_iter();
        let what = lines.next().unwrap_or_default();
        if let Some(group) = told.groups.iter_mut().find(|group| group.alike == alike) {
            let moment = moment_in(&what).and_then(|(begin, end)| what.get(begin..end));
            group.again.push(moment.unwrap_or_default().into());
            continue;
        }
        whole.insert(what.clone());
        let what = explained_once(what, &mut said);
        told.groups.push(Group {
            who,
            what,
            why: lines
                .filter(|line| whole.insert(line.clone()))
                .map(|line| explained_once(line, &mut said))
                .collect(),
            alike,
            again: Vec::new(),
        });
    }
    told
}

fn advise(advice: &mut Vec<(String, Vec<String>)>, text: &str, who: &str) {
    match advice.iter_mut().find(|(known, _)| known == text) {
        Some((_, all)) if all.iter().any(|one| one == who) => {}
        Some((_, all)) => all.push(who.into()),
        None => advice.push((text.into(), vec![who.into()])),
    }
}

/// Writes `errors`, for each group the object, the error, the moments of similar errors and the
/// chain, and `advice`, each with the objects to which it applies.
pub(super) fn write(facts: &Facts, json: &mut Json) {
    let told = grouped(told(facts));
    let strings = |json: &mut Json, all: &[String]| {
        json.begin('[');
        all.iter().for_each(|text| json.string(text));
        json.end(']');
    };
    json.key("errors");
    json.begin('[');
    for group in &told.groups {
        json.begin('[');
        json.string(&group.who);
        json.string(&group.what);
        strings(json, &group.again);
        strings(json, &group.why);
        json.end(']');
    }
    json.end(']');
    json.key("advice");
    json.begin('[');
    for (text, who) in &told.advice {
        json.begin('[');
        json.string(text);
        strings(json, who);
        json.end(']');
    }
    json.end(']');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Entry, Packet};
    use crate::why::tests::{created, rule, state};
    use verbena_abi::ctx::QpState;
    use verbena_abi::eqe::EventType;
    use verbena_abi::syndrome::Syndrome;
    use verbena_faults::{Direction, On};

    fn of(whats: Vec<What>) -> Vec<String> {
        let entries = (0..).zip(whats);
        let recording = Recording {
            first: 100,
            entries: entries.map(|(time, what)| Entry { time, what }).collect(),
            ..Recording::default()
        };
        let told = told(&Facts::of(recording, vec![Some(rule("x"))]));
        let each = told.into_iter();
        each.map(|(who, lines)| format!("{who}\n{}", lines.join("\n")))
            .collect()
    }

    #[test]
    fn a_repaired_error_is_shown_each_time() {
        let error = |cause| state(1, 2, QpState::Err, Some(cause));
        let sent = What::Sent(Packet {
            qpn: 1,
            opcode: 10,
            psn: 7,
            count: 1,
            ..Packet::default()
        });
        let told = of(vec![
            created(1),
            sent,
            sent,
            error(Syndrome::RetryExceeded),
            state(1, 0, QpState::Reset, None),
            state(1, 2, QpState::Rts, None),
            sent,
            error(Syndrome::RetryExceeded),
            What::Destroyed { qpn: 1, owner: 1 },
        ]);
        let [first, second] = told.as_slice() else {
            panic!("{told:?}");
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
            "{told:?}"
        );
    }

    #[test]
    fn a_sentence_is_shown_once() {
        let error = |who: &str, time: u32, cause: &str| {
            let lines = [
                format!("{who} is in ERR, at 0.00000{time} s (entry {time}): {cause}"),
                String::from("QP 0x9 is in RTS, at 0.000001 s (entry 1): that is no error."),
                String::from("What to do: poll."),
            ];
            (String::from(who), lines.to_vec())
        };
        let told = grouped(vec![
            error("QP 0x1", 2, "a"),
            error("QP 0x1", 3, "a"),
            error("QP 0x2", 4, "a"),
            error("QP 0x1", 5, "b"),
        ]);
        let whats: Vec<&str> = told.groups.iter().map(|g| g.what.as_str()).collect();
        assert_eq!(
            whats,
            [
                "QP 0x1 is in ERR, at 0.000002 s (entry 2): a",
                "QP 0x2 is in ERR, at 0.000004 s (entry 4): a",
                "QP 0x1 is in ERR, at 0.000005 s (entry 5): b",
            ]
        );
        let again = told.groups.first().map(|g| g.again.clone());
        assert_eq!(again, Some(vec![String::from("at 0.000003 s (entry 3)")]));
        let whys = told.groups.iter().map(|g| g.why.len());
        assert_eq!(whys.collect::<Vec<_>>(), [1, 0, 0]);
        let who = ["QP 0x1", "QP 0x2"].map(String::from).to_vec();
        assert_eq!(told.advice, [(String::from("poll."), who)]);
    }

    #[test]
    fn a_syndrome_is_explained_once() {
        let error = |who: &str, cause: &str, why: &str| {
            let what = format!("{who} died, at 0.000002 s (entry 2): {cause}");
            (String::from(who), vec![what, String::from(why)])
        };
        let full = "CqOverflow (0x3001): The CQ was full.";
        let told = grouped(vec![
            error("CQ 3", full, "It received a NAK (AETH syndrome 0x63): no."),
            error("QP 0x1", "CqDied (0x3003): A CQ is in error.", full),
            error(
                "QP 0x2",
                "CqDied (0x3003): A CQ is in error.",
                "Other (0x3001): The CQ was full.",
            ),
        ]);
        let lines = |g: &Group| [vec![g.what.clone()], g.why.clone()].concat();
        let all: Vec<String> = told.groups.iter().flat_map(lines).collect();
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
        let fired = What::Fired {
            rule: 0,
            on: On::Packet,
            way: Direction::Out,
            opcode: 7,
            qpn: 1,
            owner: 1,
            base: 0,
            psn: 0,
            nth: 1,
        };
        let event = |kind: EventType, number| What::Event {
            kind: kind.to_raw(),
            number,
            syndrome: Syndrome::Injected.to_raw(),
        };
        let told = of(vec![
            fired,
            event(EventType::DeviceFatal, 0),
            event(EventType::SrqErr, 7),
            event(EventType::QpLastWqeReached, 1),
        ]);
        let [device, srq] = told.as_slice() else {
            panic!("{told:?}");
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
