// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What went wrong in a recording: each time that a queue pair came to ERR or SQE, and each death of the device, a CQ or an SRQ, with
//! the chain as it was then. What a program repaired afterwards is told too.

use super::json::Json;
use crate::entry::What;
use crate::facts::{Facts, Name};
use crate::file::Recording;
use crate::why::{why, why_event};
use verbena_abi::ctx::QpState;

/// Errors that are told with their chains.
const TOLD: usize = 64;

/// What is known of a queue pair that came to an error at a place: all until it, or later another one, goes on to another state or ends.
fn until(facts: &Facts, at: usize, qpn: u32) -> Facts {
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
    let errors = [QpState::Err, QpState::Sqe].map(QpState::to_raw);
    let places = 0..facts.all().len();
    let each = places.filter_map(|at| match facts.all().get(at)?.what {
        What::State { qpn, from, to, .. } if errors.contains(&to) && from != to => {
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
