// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Rows of the ladder: packets, and other events of QPs between them. The text of each row also
//! says what its colour shows.

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
use verbena_transport::psn;

/// The PSN after the last request that was sent, by QPN.
type Sent = BTreeMap<u32, u32>;

/// Returns the kind of row for a response.
fn response_look(p: &Packet) -> &'static str {
    match p.detail >> 29 {
        1 if p.detail != 0 => "rnr",
        3 => "nak",
        _ => "ack",
    }
}

/// Returns the kind of row for a sent packet.
fn look(p: &Packet, sent: &mut Sent) -> &'static str {
    if is_response(p.opcode) {
        return response_look(p);
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

/// Forgets the PSNs of a QP that begins anew.
fn begin_anew(what: &What, sent: &mut Sent) {
    match *what {
        What::Created { qpn, .. } | What::Destroyed { qpn, .. } => drop(sent.remove(&qpn)),
        What::State { qpn, to, .. } if to == QpState::Reset.to_raw() => drop(sent.remove(&qpn)),
        What::Reset => sent.clear(),
        _ => {}
    }
}

/// One row of the ladder.
#[derive(Default)]
struct Row {
    qpn: u32,
    /// QPN of the other QP, or 0.
    peer: u32,
    kind: &'static str,
    text: String,
    psn: u32,
    /// Packets in a row, or 0 for a row that is not about a packet.
    count: u32,
    /// Direction of a packet that a rule or the random drop changed or dropped.
    way: Option<Direction>,
    /// True if the PSN belongs to the requests of `peer`; otherwise to those of `qpn`.
    is_peers: bool,
    /// For a received packet: the kind of row at its sender, which is "new" for a request.
    as_sent: &'static str,
}

impl Row {
    fn packet(p: &Packet, kind: &'static str) -> Self {
        let mut text = packets_name(p);
        if p.bytes > 0 {
            text = format!("{text}, {} bytes", p.bytes);
        }
        let is_in = kind == "in";
        match kind {
            "again" => text.push_str(", sent again"),
            "in" => text.push_str(", received"),
            _ => {}
        }
        let is_answer = is_response(p.opcode);
        Self {
            qpn: p.qpn,
            peer: p.peer,
            kind,
            text,
            psn: p.psn,
            count: p.count.max(1),
            way: None,
            is_peers: is_answer != is_in,
            as_sent: match (is_in, is_answer) {
                (true, true) => response_look(p),
                (true, false) => "new",
                _ => "",
            },
        }
    }

    /// Makes the row for a packet that a rule or the random drop affected. `text` describes the
    /// effect.
    fn touched(
        way: Direction,
        qpn: u32,
        opcode: u8,
        psn: u32,
        kind: &'static str,
        text: String,
    ) -> Self {
        Self {
            psn,
            way: Some(way),
            is_peers: is_response(opcode) == (way == Direction::Out),
            ..Self::mark(qpn, kind, text)
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

    /// Writes the number of the entry, its time in nanoseconds, and the fields in order. In place
    /// of `is_peers` stands the QPN whose requests have that PSN, or 0.
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
        json.string(match self.way {
            Some(Direction::Out) => "out",
            Some(Direction::In) => "in",
            None => "",
        });
        let is_packet = self.count > 0 || self.way.is_some();
        let whose = if self.is_peers { self.peer } else { self.qpn };
        json.number(if is_packet { whose.into() } else { 0 });
        json.string(self.as_sent);
        json.end(']');
    }
}

/// Returns the QPN that an event is about, or 0, and the object as the text names it.
fn subject(event: EventType, number: u32) -> (u32, String) {
    use EventType::*;
    match event {
        QpFatal | QpReqErr | QpAccessErr | CommEst | SqDrained | QpLastWqeReached => {
            (number, String::new())
        }
        Completion | CqErr => (0, format!(" of CQ {number}")),
        SrqLimitReached | SrqErr => (0, format!(" of SRQ {number}")),
        DeviceFatal => (0, String::from(" of the device")),
    }
}

/// Returns ": " and the name of a syndrome, if there is one.
fn cause(syndrome: u16) -> String {
    Syndrome::from_raw(syndrome).map_or_else(String::new, |s| format!(": {}", s.name()))
}

/// Makes the row for an entry. None if the ladder does not show the entry.
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
        } if flags & LOST != 0 => {
            let text = format!("{} lost by --drop", packet_name(opcode));
            Row::touched(way, qpn, opcode, psn, "lost", text)
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
            let text = format!("{}{does}{on_what}", facts.rule(rule));
            if on == On::Packet {
                Row::touched(way, qpn, opcode as u8, psn, kind, text)
            } else {
                Row::mark(qpn, kind, text)
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
            let event = EventType::from_raw(kind);
            let name = event.map_or("?", EventType::verbs_name);
            let (qpn, of) = event.map_or((0, String::new()), |event| subject(event, number));
            Row::mark(qpn, "event", format!("event {name}{of}{}", cause(syndrome)))
        }
        What::Command {
            port_up: Some(up),
            status: 0,
            ..
        } => {
            let text = if up { "up, or has another MTU" } else { "down" };
            Row::mark(0, "event", format!("the net device is {text}"))
        }
        What::Command {
            opcode,
            status,
            syndrome,
            ..
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

/// Writes all rows.
pub(super) fn write(facts: &Facts, json: &mut Json) {
    let mut sent = Sent::new();
    // Peers of the QPs. The entry of a firing does not name the peer.
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
    fn a_row_has_a_text_and_the_owner_of_its_psn() {
        let ack = |detail| Packet {
            qpn: 1,
            peer: 2,
            opcode: 0x11,
            detail,
            ..Packet::default()
        };
        let request = Packet {
            opcode: 4,
            ..ack(0)
        };
        let rows = [
            (Row::packet(&request, "new"), "SEND Only", 1, ""),
            (
                Row::packet(&request, "again"),
                "SEND Only, sent again",
                1,
                "",
            ),
            (Row::packet(&request, "in"), "SEND Only, received", 2, "new"),
            (Row::packet(&ack(0x2c << 24), "rnr"), "RNR NAK", 2, ""),
            (
                Row::packet(&ack(0x2c << 24), "in"),
                "RNR NAK, received",
                1,
                "rnr",
            ),
        ];
        for (row, text, whose, as_sent) in rows {
            let mut json = Json::default();
            row.write(&mut json, 5, 6);
            let kind = row.kind;
            let expected =
                format!("[5,6,1,2,\"{kind}\",\"{text}\",0,1,\"\",{whose},\"{as_sent}\"]");
            assert_eq!(json.text(), expected);
        }
        let row = Row::touched(Direction::In, 1, 0x11, 0, "rule", String::new());
        assert!(
            !row.is_peers,
            "a received response has the PSN of a request of the receiver"
        );
        assert_eq!(subject(EventType::CqErr, 9), (0, String::from(" of CQ 9")));
        assert_eq!(subject(EventType::QpFatal, 9), (9, String::new()));
    }

    #[test]
    fn retransmissions_are_marked() {
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
