// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What went wrong in a recording: each time that a queue pair came to ERR or SQE, and each death of the device, a CQ or an SRQ, with
//! the chain as it was then. What a program repaired afterwards is told too.

use super::json::Json;
use crate::entry::What;
use crate::facts::{is_error, Facts, Name};
use crate::file::Recording;
use crate::why::{why, why_event};

/// Errors that are told with their chains.
const TOLD: usize = 64;

/// What is known of a queue pair that came to an error at a place: all until it, or later another one, goes on to another state or ends.
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

/// Of each who, and its chain.
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

/// An array for each: who, then the chain.
pub(super) fn write(facts: &Facts, json: &mut Json) {
    json.begin('[');
    for (who, lines) in told(facts) {
        json.begin('[');
        json.string(&who);
        lines.iter().for_each(|line| json.string(line));
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
    fn what_was_repaired_is_told_as_it_was_each_time() {
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
        // Not what the connection before had sent.
        assert!(second.contains("was sent once"), "{second}");
        assert!(
            !first.contains("no error") && !second.contains("destroyed"),
            "{told:?}"
        );
    }

    #[test]
    fn a_device_that_dies_is_told_with_the_rule() {
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
