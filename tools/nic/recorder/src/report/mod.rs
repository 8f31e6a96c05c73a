// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A self-contained page that shows a recording: each error with its chain and advice, the ladder
//! of packets, PSNs over time, and the lives of QPs and CQs. The page needs no network. All of it
//! is text that a browser can search, select and link. The rows of the ladder that are out of view
//! are made after the page is shown, and cost no layout.

mod errors;
mod json_writer;
mod rows;

pub(crate) use errors::history_at_error;

use crate::device_history::{state_name, DeviceHistory};
use crate::entry::EntryKind;
use json_writer::JsonWriter;
use std::collections::BTreeMap;
use verbena_abi::cqe::WcStatus;
use verbena_abi::eqe::EventType;
use verbena_abi::syndrome::Syndrome;

/// The life of one QP.
struct QpLifetime {
    qpn: u32,
    owner: u32,
    /// Times at which the QP entered each state.
    states: Vec<(u64, String)>,
}

/// Writes the lives of QPs: the number, and the time of each change of state.
fn write_qp_lifetimes(history: &DeviceHistory, json: &mut JsonWriter) {
    let mut all: Vec<QpLifetime> = Vec::new();
    for entry in history.entries() {
        let (qpn, owner, state) = match entry.kind {
            EntryKind::Created { qpn, owner, .. } => (qpn, owner, String::from("RESET")),
            EntryKind::State { qpn, owner, to, .. } => (qpn, owner, state_name(to)),
            EntryKind::Destroyed { qpn, owner } => (qpn, owner, String::from("destroyed")),
            _ => continue,
        };
        let found = all
            .iter()
            .rposition(|life| (life.qpn, life.owner) == (qpn, owner));
        let state = (entry.time_ns, state);
        match found.and_then(|at| all.get_mut(at)) {
            Some(life) => life.states.push(state),
            None => all.push(QpLifetime {
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

/// Writes the CQs: number, counts of successful, failed and flushed completions, times of the first
/// and the last completion, and the error of the CQ.
fn write_cqs(history: &DeviceHistory, json: &mut JsonWriter) {
    #[derive(Default)]
    struct CqSummary {
        counts: [u64; 3],
        times: Option<(u64, u64)>,
        error: Option<String>,
    }
    let mut all: BTreeMap<u32, CqSummary> = BTreeMap::new();
    for entry in history.entries() {
        match entry.kind {
            EntryKind::Completed { cqn, status, .. } => {
                let cq = all.entry(cqn).or_default();
                let at = match WcStatus::from_raw(status) {
                    Some(WcStatus::Success) => 0,
                    Some(WcStatus::WrFlushErr) => 2,
                    _ => 1,
                };
                cq.counts[at] += 1;
                let first = cq.times.map_or(entry.time_ns, |(first, _)| first);
                cq.times = Some((first, entry.time_ns));
            }
            EntryKind::Event {
                event_type,
                number,
                syndrome,
            } if event_type == EventType::CqErr.to_raw() => {
                // The list of errors explains the syndrome.
                let text = Syndrome::from_raw(syndrome).map_or("", Syndrome::name);
                let seconds = entry.time_ns as f64 / 1e9;
                all.entry(number).or_default().error = Some(format!("at {seconds:.6} s: {text}"));
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
        json.string(&cq.error.unwrap_or_default());
        json.end(']');
    }
    json.end(']');
}

/// Writes the rules that fired, in the order of their first firing: the name, the action, the
/// count, and the entry of the first firing.
fn write_rules(history: &DeviceHistory, json: &mut JsonWriter) {
    let mut all: Vec<(u16, u64, u64)> = Vec::new();
    for (number, entry) in (history.recording.first..).zip(history.entries()) {
        let EntryKind::Fired { rule, .. } = entry.kind else {
            continue;
        };
        match all.iter_mut().find(|(number, ..)| *number == rule) {
            Some((_, count, _)) => *count += 1,
            None => all.push((rule, 1, number)),
        }
    }
    json.begin('[');
    for (rule, count, first) in all {
        json.begin('[');
        json.string(&history.rule_text(rule));
        json.string(history.action(rule).map_or("?", |action| action.name()));
        json.number(count);
        json.number(first);
        json.end(']');
    }
    json.end(']');
}

/// Returns the same history with the time of the first entry as 0, so that all times of a page have
/// one base, and that time.
fn rebased(history: &DeviceHistory) -> (DeviceHistory, u64) {
    let mut history = history.clone();
    let times = history.entries().iter().map(|entry| entry.time_ns);
    let base = times.min().unwrap_or(0);
    for entry in &mut history.recording.entries {
        entry.time_ns -= base;
    }
    (history, base)
}

/// Returns the page. `name` is the name of the file or of the scenario.
pub fn report(history: &DeviceHistory, name: &str) -> String {
    let (history, base) = rebased(history);
    let recording = &history.recording;
    let mut json = JsonWriter::default();
    json.begin('{');
    json.key("name");
    json.string(name);
    json.key("mac");
    json.string(&recording.mac.map(|byte| format!("{byte:02x}")).join(":"));
    json.key("reason");
    json.string(&recording.reason);
    json.key("first");
    json.number(recording.first);
    json.key("clock");
    json.number(base);
    json.key("began");
    // The unit is milliseconds because JavaScript has no integers beyond 53 bits. 0 means that the
    // time of day is not known.
    let began = match recording.power_on_ns {
        0 => 0,
        power_on_ns => power_on_ns.saturating_add(base) / 1_000_000,
    };
    json.number(began);
    json.key("rules");
    write_rules(&history, &mut json);
    json.key("rows");
    rows::write(&history, &mut json);
    json.key("lives");
    write_qp_lifetimes(&history, &mut json);
    json.key("cqs");
    write_cqs(&history, &mut json);
    errors::write(&history, &mut json);
    json.end('}');
    let scripts = [
        include_str!("data.js"),
        include_str!("summary.js"),
        include_str!("ladder.js"),
        include_str!("plot.js"),
        include_str!("objects.js"),
    ];
    let page = include_str!("page.html");
    page.replace("/*style*/", include_str!("page.css"))
        .replace("/*script*/", &scripts.concat())
        .replace("/*data*/", json.text())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::tests::rule;
    use crate::entry::{self, FlightEntry};
    use crate::flight_recording::FlightRecording;

    #[test]
    fn a_page_has_its_data_and_no_external_references() {
        let entries = (0..).zip(entry::tests::entries_of_each_kind());
        let recording = FlightRecording {
            reason: String::from("</script><b>"),
            entries: entries
                .map(|(time_ns, kind)| FlightEntry { time_ns, kind })
                .collect(),
            ..FlightRecording::default()
        };
        let page = report(
            &DeviceHistory::new(recording, vec![Some(rule("x</script>"))]),
            "</script><i>",
        );
        assert!(page.contains("\"rows\":[["));
        assert_eq!(
            page.matches("</script>").count(),
            2,
            "the data end the script"
        );
        // The times of a page begin at its first entry, even if the device started long before.
        let entries = [5_000_000_001, 5_000_002_001].map(|time_ns| FlightEntry {
            time_ns,
            kind: entry::tests::entries_of_each_kind()[0],
        });
        let late = FlightRecording {
            entries: entries.to_vec(),
            ..FlightRecording::default()
        };
        let (late, base) = rebased(&DeviceHistory::new(late, Vec::new()));
        let times: Vec<u64> = late.entries().iter().map(|entry| entry.time_ns).collect();
        assert_eq!((times, base), (vec![0, 2000], 5_000_000_001));
        // The namespace of SVG is not an external reference.
        let page = page.replace("http://www.w3.org/2000/svg", "");
        for far in ["http:", "https:", "src=", "@import", "url("] {
            assert!(!page.contains(far), "{far}");
        }
    }
}
