// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A page of its own that shows a recording: the ladder of packets, PSNs over time, the life of queue pairs and CQs, and each error with
//! its chain. It needs no network; what is in view is drawn on canvases, so that many packets take no longer than few.

mod errors;
mod json;
mod rows;

pub(crate) use errors::until;

use crate::entry::What;
use crate::facts::{state_name, Facts};
use crate::why::syndrome_text;
use json::Json;
use std::collections::BTreeMap;
use verbena_abi::cqe::WcStatus;
use verbena_abi::eqe::EventType;
use verbena_abi::syndrome::Syndrome;

/// The life of a queue pair.
struct Life {
    qpn: u32,
    owner: u32,
    /// When it came to each state.
    states: Vec<(u64, String)>,
}

/// The lives of queue pairs: the number, and when it came to each state.
fn lives(facts: &Facts, json: &mut Json) {
    let mut all: Vec<Life> = Vec::new();
    for entry in facts.all() {
        let (qpn, owner, state) = match entry.what {
            What::Created { qpn, owner, .. } => (qpn, owner, String::from("RESET")),
            What::State { qpn, owner, to, .. } => (qpn, owner, state_name(to)),
            What::Destroyed { qpn, owner } => (qpn, owner, String::from("destroyed")),
            _ => continue,
        };
        let known = all
            .iter()
            .rposition(|life| (life.qpn, life.owner) == (qpn, owner));
        let state = (entry.time, state);
        match known.and_then(|at| all.get_mut(at)) {
            Some(life) => life.states.push(state),
            None => all.push(Life {
                qpn,
                owner,
                states: vec![state],
            }),
        }
    }
    json.begin('[');
    for life in all {
        json.begin('[');
        json.number(life.qpn.into());
        for (time, state) in life.states {
            json.number(time);
            json.string(&state);
        }
        json.end(']');
    }
    json.end(']');
}

/// CQs: number, completions, failures among them, flushes, when it began and ended, what it died of.
fn cqs(facts: &Facts, json: &mut Json) {
    #[derive(Default)]
    struct Cq {
        counts: [u64; 3],
        times: Option<(u64, u64)>,
        death: Option<String>,
    }
    let mut all: BTreeMap<u32, Cq> = BTreeMap::new();
    for entry in facts.all() {
        match entry.what {
            What::Completed { cqn, status, .. } => {
                let cq = all.entry(cqn).or_default();
                let at = match WcStatus::from_raw(status) {
                    Some(WcStatus::Success) => 0,
                    Some(WcStatus::WrFlushErr) => 2,
                    _ => 1,
                };
                cq.counts[at] += 1;
                let first = cq.times.map_or(entry.time, |(first, _)| first);
                cq.times = Some((first, entry.time));
            }
            What::Event {
                kind,
                number,
                syndrome,
            } if kind == EventType::CqErr.to_raw() => {
                let text = Syndrome::from_raw(syndrome).map_or_else(String::new, syndrome_text);
                let seconds = entry.time as f64 / 1e9;
                all.entry(number).or_default().death = Some(format!("at {seconds:.6} s: {text}"));
            }
            _ => {}
        }
    }
    json.begin('[');
    for (cqn, cq) in all {
        let (first, last) = cq.times.unwrap_or_default();
        json.begin('[');
        json.number(cqn.into());
        cq.counts.into_iter().for_each(|n| json.number(n));
        json.number(first);
        json.number(last);
        json.string(&cq.death.unwrap_or_default());
        json.end(']');
    }
    json.end(']');
}

/// The page.
pub fn report(facts: &Facts) -> String {
    let recording = &facts.recording;
    let mut json = Json::default();
    json.begin('{');
    json.key("mac");
    json.string(&recording.mac.map(|byte| format!("{byte:02x}")).join(":"));
    json.key("reason");
    json.string(&recording.reason);
    json.key("first");
    json.number(recording.first);
    json.key("powerOn");
    // Milliseconds: JavaScript has no whole numbers beyond 53 bits.
    json.number(recording.power_on / 1_000_000);
    json.key("rows");
    rows::write(facts, &mut json);
    json.key("lives");
    lives(facts, &mut json);
    json.key("cqs");
    cqs(facts, &mut json);
    json.key("errors");
    errors::write(facts, &mut json);
    json.end('}');
    let page = include_str!("page.html");
    let script = include_str!("page.js");
    page.replace("/*script*/", script)
        .replace("/*data*/", json.text())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{self, Entry};
    use crate::file::Recording;
    use crate::why::tests::rule;

    #[test]
    fn a_page_has_its_data_and_nothing_of_another_place() {
        let entries = (0..).zip(entry::tests::all());
        let recording = Recording {
            reason: String::from("</script><b>"),
            entries: entries.map(|(time, what)| Entry { time, what }).collect(),
            ..Recording::default()
        };
        let page = report(&Facts::of(recording, vec![Some(rule("x</script>"))]));
        assert!(page.contains("\"rows\":[["));
        assert_eq!(
            page.matches("</script>").count(),
            2,
            "the data end no script"
        );
        for far in ["http:", "https:", "src=", "@import", "url("] {
            assert!(!page.contains(far), "{far}");
        }
    }
}
