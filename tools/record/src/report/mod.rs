// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A page of its own that shows a recording: the ladder of packets, PSNs over time, the life of queue pairs and CQs, and each error with
//! its chain. It needs no network; what is in view is drawn on canvases, so that many packets take no longer than few.

mod json;

use crate::entry::{Packet, What, LAST, LOST, RECV, WRITTEN};
use crate::facts::{is_response, packet_name, state_name, work_name, Facts};
use crate::why::{syndrome_text, why};
use json::Json;
use std::collections::BTreeMap;
use verbena_abi::cqe::WcStatus;
use verbena_abi::ctx::QpState;
use verbena_abi::eqe::EventType;
use verbena_abi::syndrome::Syndrome;
use verbena_faults::{Direction, On};
use verbena_roce::psn;

/// Queue pairs whose errors are told with their chains.
const TOLD: usize = 64;

/// Requests that were sent so far by a queue pair: the PSN behind the last.
type Sent = BTreeMap<u32, u32>;

/// What a packet looks like in the ladder.
fn look(p: &Packet, sent: &mut Sent) -> &'static str {
    if is_response(p.opcode) {
        return match p.detail >> 29 {
            1 if p.detail != 0 => "rnr",
            3 => "nak",
            _ => "ack",
        };
    }
    let end = psn::add(p.psn, p.count.max(1));
    match sent.get_mut(&p.qpn) {
        Some(next) if psn::is_behind(p.psn, *next) => {
            if psn::is_behind(*next, end) {
                *next = end;
            }
            "again"
        }
        Some(next) => {
            *next = end;
            "new"
        }
        None => {
            sent.insert(p.qpn, end);
            "new"
        }
    }
}

/// One row: time in nanoseconds, queue pair, the other one or 0, kind, text, PSN, packets.
fn row(json: &mut Json, time: u64, qpn: u32, peer: u32, kind: &str, text: &str, psns: (u32, u32)) {
    json.begin('[');
    json.number(time);
    json.number(qpn.into());
    json.number(peer.into());
    json.string(kind);
    json.string(text);
    json.number(psns.0.into());
    json.number(psns.1.into());
    json.end(']');
}

fn packet_row(json: &mut Json, time: u64, p: &Packet, kind: &str) {
    let name = packet_name(p.opcode);
    let last = if p.count > 1 && p.flags & LAST != 0 {
        ", to the last"
    } else {
        ""
    };
    let count = if p.count > 1 {
        format!(" and {} more{last}", p.count - 1)
    } else {
        String::new()
    };
    let text = format!("{name}{count}, {} bytes", p.bytes);
    row(json, time, p.qpn, p.peer, kind, &text, (p.psn, p.count));
}

fn rows(facts: &Facts, json: &mut Json) {
    let mut sent = Sent::new();
    json.begin('[');
    for entry in facts.all() {
        let time = entry.time;
        let mut mark = |qpn: u32, kind: &str, text: &str, psn: u32| {
            row(json, time, qpn, 0, kind, text, (psn, 0));
        };
        match entry.what {
            What::Sent(p) => {
                let kind = look(&p, &mut sent);
                packet_row(json, time, &p, kind);
            }
            What::Received(p) => packet_row(json, time, &p, "in"),
            What::Passed {
                flags,
                opcode,
                qpn,
                psn,
                ..
            } if flags & LOST != 0 => {
                mark(
                    qpn,
                    "rule",
                    &format!("lost by --drop: {}", packet_name(opcode)),
                    psn,
                );
            }
            What::Fired {
                rule,
                on,
                way,
                opcode,
                qpn,
                psn,
                ..
            } => {
                let on = match on {
                    On::Packet if way == Direction::Out => {
                        format!("{} sent", packet_name(opcode as u8))
                    }
                    On::Packet => format!("{} received", packet_name(opcode as u8)),
                    On::Send => work_name(opcode as u8),
                    _ => String::from("a command, an event or a moment"),
                };
                mark(
                    qpn,
                    "rule",
                    &format!("{} fired on {on}", facts.rule(rule)),
                    psn,
                );
            }
            What::Completed {
                qpn,
                cqn,
                index,
                status,
                flags,
                wr_id,
                ..
            } => {
                let kind = if status == 0 { "done" } else { "failed" };
                let name = WcStatus::from_raw(status).map_or("?", WcStatus::name);
                let what = if flags & RECV != 0 { "receive" } else { "send" };
                let room = if flags & WRITTEN != 0 {
                    ""
                } else {
                    ", no room for it"
                };
                let text = format!("{what} {index} (wr_id {wr_id:#x}) {name} in CQ {cqn}{room}");
                mark(qpn, kind, &text, 0);
            }
            What::Work {
                qpn, index, opcode, ..
            } => mark(
                qpn,
                "work",
                &format!("{} {index} begun", work_name(opcode)),
                0,
            ),
            What::State {
                qpn,
                from,
                to,
                syndrome,
                ..
            } => {
                let why = Syndrome::from_raw(syndrome);
                let why = why.map_or_else(String::new, |s| format!(": {}", s.name()));
                let text = format!("{} to {}{why}", state_name(from), state_name(to));
                mark(qpn, "state", &text, 0);
            }
            What::Event {
                kind,
                number,
                syndrome,
            } => {
                let name = EventType::from_raw(kind).map_or("?", EventType::name);
                let why = Syndrome::from_raw(syndrome);
                let why = why.map_or_else(String::new, |s| format!(": {}", s.name()));
                // Which of them have a queue pair's number, the contract says.
                let is_qps = matches!(kind, 3..=8);
                let qpn = if is_qps { number } else { 0 };
                mark(qpn, "event", &format!("{name} of {number}{why}"), 0);
            }
            _ => {}
        }
    }
    json.end(']');
}

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

/// Each queue pair that came to ERR or SQE, with why.
fn errors(facts: &Facts, json: &mut Json) {
    let mut told: Vec<u32> = Vec::new();
    for entry in facts.all() {
        if let What::State { qpn, to, .. } = entry.what {
            let is_error = [QpState::Err, QpState::Sqe]
                .map(QpState::to_raw)
                .contains(&to);
            if is_error && !told.contains(&qpn) && told.len() < TOLD {
                told.push(qpn);
            }
        }
    }
    json.begin('[');
    for qpn in told {
        let lines = why(facts, qpn).unwrap_or_else(|e| vec![e]);
        json.begin('[');
        json.number(qpn.into());
        lines.iter().for_each(|line| json.string(line));
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
    rows(facts, &mut json);
    json.key("lives");
    lives(facts, &mut json);
    json.key("cqs");
    cqs(facts, &mut json);
    json.key("errors");
    errors(facts, &mut json);
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

    #[test]
    fn what_is_sent_again_is_marked() {
        let sent = |psn, count| Packet {
            qpn: 1,
            psn,
            count,
            ..Packet::default()
        };
        let mut so_far = Sent::new();
        let looks = [(5, 3), (8, 1), (6, 1), (6, 5), (11, 1)];
        let looks = looks.map(|(psn, count)| look(&sent(psn, count), &mut so_far));
        assert_eq!(looks, ["new", "new", "again", "again", "new"]);
    }
}
