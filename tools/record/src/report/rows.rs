// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Rows of the ladder: packets, and what happened to queue pairs between them.

use super::json::Json;
use crate::entry::{Packet, What};
use crate::facts::{
    is_error, is_response, packet_name, packets_name, state_name, work_name, Facts,
};
use crate::flags::{LOST, RECV, WRITTEN};
use std::collections::BTreeMap;
use verbena_abi::cmd::{CmdStatus, Opcode};
use verbena_abi::cqe::WcStatus;
use verbena_abi::ctx::QpState;
use verbena_abi::eqe::EventType;
use verbena_abi::syndrome::Syndrome;
use verbena_faults::{Action, Direction, On};
use verbena_roce::psn;

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

/// Where a queue pair begins anew, its PSNs do.
fn begin_anew(what: &What, sent: &mut Sent) {
    match *what {
        What::Created { qpn, .. } | What::Destroyed { qpn, .. } => drop(sent.remove(&qpn)),
        What::State { qpn, to, .. } if to == QpState::Reset.to_raw() => drop(sent.remove(&qpn)),
        What::Reset => sent.clear(),
        _ => {}
    }
}

/// One row.
#[derive(Default)]
struct Row {
    qpn: u32,
    /// The other one, or 0.
    peer: u32,
    kind: &'static str,
    text: String,
    psn: u32,
    /// Packets in a row; 0: it is none.
    count: u32,
    /// Of a packet that rules had their hands in: which way it went.
    way: Option<Direction>,
}

impl Row {
    fn packet(p: &Packet, kind: &'static str) -> Self {
        let name = packets_name(p);
        let text = match p.bytes {
            0 => name,
            bytes => format!("{name}, {bytes} bytes"),
        };
        Self {
            qpn: p.qpn,
            peer: p.peer,
            kind,
            text,
            psn: p.psn,
            count: p.count.max(1),
            way: None,
        }
    }

    fn mark(qpn: u32, kind: &'static str, text: String) -> Self {
        Self {
            qpn,
            kind,
            text,
            ..Self::default()
        }
    }

    /// Number of the entry, time in nanoseconds, and the rest in order.
    fn write(&self, json: &mut Json, number: u64, time: u64) {
        json.begin('[');
        json.number(number);
        json.number(time);
        json.number(self.qpn.into());
        json.number(self.peer.into());
        json.string(self.kind);
        json.string(&self.text);
        json.number(self.psn.into());
        json.number(self.count.into());
        if let Some(way) = self.way {
            json.string(if way == Direction::Out { "out" } else { "in" });
        }
        json.end(']');
    }
}

/// ": " and the name of a syndrome, if there is one.
fn cause(syndrome: u16) -> String {
    Syndrome::from_raw(syndrome).map_or_else(String::new, |s| format!(": {}", s.name()))
}

/// What the ladder has of an entry.
fn row(facts: &Facts, what: &What, sent: &mut Sent) -> Option<Row> {
    Some(match *what {
        What::Sent(p) => Row::packet(&p, look(&p, sent)),
        What::Received(p) => Row::packet(&p, "in"),
        What::Passed {
            way,
            flags,
            opcode,
            qpn,
            psn,
            ..
        } if flags & LOST != 0 => Row {
            psn,
            way: Some(way),
            ..Row::mark(
                qpn,
                "lost",
                format!("{} lost by --drop", packet_name(opcode)),
            )
        },
        What::Fired {
            rule,
            on,
            way,
            opcode,
            qpn,
            psn,
            ..
        } => {
            let action = facts.action(rule);
            let does = action.map_or_else(String::new, |a| format!(": {}", a.name()));
            let on_what = match on {
                On::Packet => format!(", {}", packet_name(opcode as u8)),
                On::Send => format!(", {}", work_name(opcode as u8)),
                _ => String::from(", a command, an event or a moment"),
            };
            let kind = match action {
                Some(Action::Drop) => "lost",
                _ => "rule",
            };
            Row {
                psn,
                way: (on == On::Packet).then_some(way),
                ..Row::mark(qpn, kind, format!("{}{does}{on_what}", facts.rule(rule)))
            }
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
            let status = WcStatus::from_raw(status);
            let kind = match status {
                Some(WcStatus::Success) => "done",
                Some(WcStatus::WrFlushErr) => "flushed",
                _ => "failed",
            };
            let name = status.map_or("?", WcStatus::verbs_name);
            let what = if flags & RECV != 0 { "receive" } else { "send" };
            let room = if flags & WRITTEN != 0 {
                ""
            } else {
                ", no room for it"
            };
            let text = format!("{name}: {what} {index} (wr_id {wr_id:#x}) in CQ {cqn}{room}");
            Row::mark(qpn, kind, text)
        }
        What::Work {
            qpn, index, opcode, ..
        } => Row::mark(qpn, "work", format!("{} {index} begun", work_name(opcode))),
        What::State {
            qpn,
            from,
            to,
            syndrome,
            ..
        } => {
            let why = cause(syndrome);
            let kind = if is_error(to) { "error" } else { "state" };
            let text = format!("{} to {}{why}", state_name(from), state_name(to));
            Row::mark(qpn, kind, text)
        }
        What::Event {
            kind,
            number,
            syndrome,
        } => {
            let name = EventType::from_raw(kind).map_or("?", EventType::verbs_name);
            // Which of them have a queue pair's number, the contract says.
            let qpn = if matches!(kind, 3..=8) { number } else { 0 };
            let text = format!("event {name} of {number}{}", cause(syndrome));
            Row::mark(qpn, "event", text)
        }
        What::Command {
            opcode,
            status,
            syndrome,
        } if status != 0 || opcode == Opcode::SetGid.to_raw() => {
            let name = verbena_faults::command_name(opcode);
            let name = name.unwrap_or_else(|| format!("{opcode:#04x}"));
            if status == 0 {
                return Some(Row::mark(
                    0,
                    "event",
                    format!("command {name}: another address"),
                ));
            }
            let refused = CmdStatus::from_raw(status.into()).map_or("?", CmdStatus::name);
            let why = cause(syndrome);
            Row::mark(
                0,
                "failed",
                format!("command {name} refused, {refused}{why}"),
            )
        }
        _ => return None,
    })
}

/// All rows.
pub(super) fn write(facts: &Facts, json: &mut Json) {
    let mut sent = Sent::new();
    // Where the packets of a queue pair go and come from.
    let mut peers: BTreeMap<u32, u32> = BTreeMap::new();
    json.begin('[');
    for (number, entry) in (facts.recording.first..).zip(facts.all()) {
        begin_anew(&entry.what, &mut sent);
        let Some(mut row) = row(facts, &entry.what, &mut sent) else {
            continue;
        };
        if row.count > 0 {
            peers.insert(row.qpn, row.peer);
        } else if row.way.is_some() {
            row.peer = peers.get(&row.qpn).copied().unwrap_or(0);
        }
        row.write(json, number, entry.time);
    }
    json.end(']');
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for (qpn, expected) in [(2, "again"), (1, "new")] {
            begin_anew(&What::Destroyed { qpn, owner: 3 }, &mut so_far);
            assert_eq!(look(&sent(5, 1), &mut so_far), expected);
        }
        begin_anew(&What::Reset, &mut so_far);
        assert_eq!(look(&sent(5, 1), &mut so_far), "new");
    }
}
