// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Rows of the ladder: packets, and other events of QPs between them. The text of each row also
//! says what its colour shows.

use super::json_writer::JsonWriter;
use crate::device_history::{
    is_error, is_response, packet_entry_name, packet_name, state_name, work_request_name,
    DeviceHistory,
};
use crate::entry::{EntryKind, PacketEntry};
use crate::flags::{LOST, RECV, WRITTEN};
use std::collections::BTreeMap;
use verbena_abi::cmd::{CmdStatus, Opcode};
use verbena_abi::cqe::WcStatus;
use verbena_abi::ctx::QpState;
use verbena_abi::eqe::EventType;
use verbena_abi::syndrome::Syndrome;
use verbena_faults::{Action, Direction, RuleHook};
use verbena_transport::psn;

/// The PSN after the last request that was sent, by QPN.
type NextPsns = BTreeMap<u32, u32>;

/// Returns the kind of row for a response.
fn response_row_kind(p: &PacketEntry) -> &'static str {
    match p.detail >> 29 {
        1 if p.detail != 0 => "rnr",
        3 => "nak",
        _ => "ack",
    }
}

/// Returns the kind of row for a sent packet.
fn sent_row_kind(p: &PacketEntry, next_psns: &mut NextPsns) -> &'static str {
    if is_response(p.opcode) {
        return response_row_kind(p);
    }
    let end = psn::add(p.psn, p.count.max(1));
    match next_psns.get_mut(&p.qpn) {
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
            next_psns.insert(p.qpn, end);
            "new"
        }
    }
}

/// Forgets the PSNs of a QP that begins anew.
fn forget_psns(kind: &EntryKind, next_psns: &mut NextPsns) {
    match *kind {
        EntryKind::Created { qpn, .. } | EntryKind::Destroyed { qpn, .. } => {
            next_psns.remove(&qpn);
        }
        EntryKind::State { qpn, to, .. } if to == QpState::Reset.to_raw() => {
            next_psns.remove(&qpn);
        }
        EntryKind::Reset => next_psns.clear(),
        _ => {}
    }
}

/// One row of the ladder.
#[derive(Default)]
struct LadderRow {
    qpn: u32,
    /// QPN of the other QP, or 0.
    peer: u32,
    kind: &'static str,
    text: String,
    psn: u32,
    /// Packets in a row, or 0 for a row that is not about a packet.
    count: u32,
    /// Direction of a packet that a rule or the random drop changed or dropped.
    direction: Option<Direction>,
    /// True if the PSN belongs to the requests of `peer`; otherwise to those of `qpn`.
    is_peers: bool,
    /// For a received packet: the kind of row at its sender, which is "new" for a request.
    as_sent: &'static str,
}

impl LadderRow {
    fn packet(p: &PacketEntry, kind: &'static str) -> Self {
        let mut text = packet_entry_name(p);
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
            direction: None,
            is_peers: is_answer != is_in,
            as_sent: match (is_in, is_answer) {
                (true, true) => response_row_kind(p),
                (true, false) => "new",
                _ => "",
            },
        }
    }

    /// Makes the row for a packet that a rule or the random drop affected. `text` describes the
    /// effect.
    fn affected_packet(
        direction: Direction,
        qpn: u32,
        opcode: u8,
        psn: u32,
        kind: &'static str,
        text: String,
    ) -> Self {
        Self {
            psn,
            direction: Some(direction),
            is_peers: is_response(opcode) == (direction == Direction::Out),
            ..Self::event(qpn, kind, text)
        }
    }

    fn event(qpn: u32, kind: &'static str, text: String) -> Self {
        Self {
            qpn,
            kind,
            text,
            ..Self::default()
        }
    }

    /// Writes the number of the entry, its time in nanoseconds, and the fields in order. In place
    /// of `is_peers` stands the QPN whose requests have that PSN, or 0.
    fn write(&self, json: &mut JsonWriter, number: u64, time: u64) {
        json.begin('[');
        json.number(number);
        json.number(time);
        json.number(self.qpn.into());
        json.number(self.peer.into());
        json.string(self.kind);
        json.string(&self.text);
        json.number(self.psn.into());
        json.number(self.count.into());
        json.string(match self.direction {
            Some(Direction::Out) => "out",
            Some(Direction::In) => "in",
            None => "",
        });
        let is_packet = self.count > 0 || self.direction.is_some();
        let whose = if self.is_peers { self.peer } else { self.qpn };
        json.number(if is_packet { whose.into() } else { 0 });
        json.string(self.as_sent);
        json.end(']');
    }
}

/// Returns the QPN that an event is about, or 0, and the object as the text names it.
fn event_subject(event: EventType, number: u32) -> (u32, String) {
    use EventType::*;
    match event {
        QpFatal | QpReqErr | QpAccessErr | CommEst | SqDrained | QpLastWqeReached => {
            (number, String::new())
        }
        Completion | CqErr => (0, format!(" of CQ {number}")),
        SrqLimitReached | SrqErr => (0, format!(" of SRQ {number}")),
        DeviceFatal => (0, String::from(" of the device")),
        PortActive | PortErr | LidChange | PkeyChange | SmChange | ClientReregister | GidChange => {
            (0, String::from(" of the port"))
        }
    }
}

/// Returns ": " and the name of a syndrome, if there is one.
fn cause_text(syndrome: u16) -> String {
    Syndrome::from_raw(syndrome).map_or_else(String::new, |s| format!(": {}", s.name()))
}

/// Makes the row for an entry. None if the ladder does not show the entry.
fn row(history: &DeviceHistory, kind: &EntryKind, next_psns: &mut NextPsns) -> Option<LadderRow> {
    Some(match *kind {
        EntryKind::Sent(p) => LadderRow::packet(&p, sent_row_kind(&p, next_psns)),
        EntryKind::Received(p) => LadderRow::packet(&p, "in"),
        EntryKind::Passed {
            direction,
            flags,
            opcode,
            qpn,
            psn,
            ..
        } if flags & LOST != 0 => {
            let text = format!("{} lost by --drop", packet_name(opcode));
            LadderRow::affected_packet(direction, qpn, opcode, psn, "lost", text)
        }
        EntryKind::Fired { .. } => fired_row(history, kind)?,
        EntryKind::Completed { .. } => completion_row(kind)?,
        EntryKind::Work {
            qpn, index, opcode, ..
        } => {
            let text = format!("{} {index} begun", work_request_name(opcode));
            LadderRow::event(qpn, "work", text)
        }
        EntryKind::State {
            qpn,
            from,
            to,
            syndrome,
            ..
        } => {
            let cause = cause_text(syndrome);
            let kind = if is_error(to) { "error" } else { "state" };
            let text = format!("{} to {}{cause}", state_name(from), state_name(to));
            LadderRow::event(qpn, kind, text)
        }
        EntryKind::Event {
            event_type,
            number,
            syndrome,
        } => event_row(event_type, number, syndrome),
        EntryKind::Command {
            port_up: Some(up),
            status: 0,
            ..
        } => {
            let text = if up { "up, or has another MTU" } else { "down" };
            LadderRow::event(0, "event", format!("the net device is {text}"))
        }
        EntryKind::Command {
            opcode,
            status,
            syndrome,
            ..
        } => command_row(opcode, status, syndrome)?,
        _ => return None,
    })
}

/// Makes the row for a rule that fired.
fn fired_row(history: &DeviceHistory, kind: &EntryKind) -> Option<LadderRow> {
    let EntryKind::Fired {
        rule,
        on,
        direction,
        opcode,
        qpn,
        psn,
        ..
    } = *kind
    else {
        return None;
    };
    let action = history.action(rule);
    let action_text = action.map_or_else(String::new, |a| format!(": {}", a.name()));
    let on_text = match on {
        RuleHook::Packet => format!(", {}", packet_name(opcode as u8)),
        RuleHook::Send => format!(", {}", work_request_name(opcode as u8)),
        _ => String::from(", a command, an event or a moment"),
    };
    let row_kind = match action {
        Some(Action::Drop) => "lost",
        _ => "rule",
    };
    let text = format!("{}{action_text}{on_text}", history.rule_text(rule));
    Some(if on == RuleHook::Packet {
        LadderRow::affected_packet(direction, qpn, opcode as u8, psn, row_kind, text)
    } else {
        LadderRow::event(qpn, row_kind, text)
    })
}

/// Makes the row for a completion.
fn completion_row(kind: &EntryKind) -> Option<LadderRow> {
    let EntryKind::Completed {
        qpn,
        cqn,
        index,
        status,
        flags,
        wr_id,
        ..
    } = *kind
    else {
        return None;
    };
    let status = WcStatus::from_raw(status);
    let row_kind = match status {
        Some(WcStatus::Success) => "done",
        Some(WcStatus::WrFlushErr) => "flushed",
        _ => "failed",
    };
    let name = status.map_or("?", WcStatus::verbs_name);
    let queue = if flags & RECV != 0 { "receive" } else { "send" };
    let room = if flags & WRITTEN != 0 {
        ""
    } else {
        ", no room for it"
    };
    let text = format!("{name}: {queue} {index} (wr_id {wr_id:#x}) in CQ {cqn}{room}");
    Some(LadderRow::event(qpn, row_kind, text))
}

/// Makes the row for an asynchronous event.
fn event_row(event_type: u8, number: u32, syndrome: u16) -> LadderRow {
    let event = EventType::from_raw(event_type);
    let name = event.map_or("?", EventType::verbs_name);
    let (qpn, object) = event.map_or((0, String::new()), |event| event_subject(event, number));
    let text = format!("event {name}{object}{}", cause_text(syndrome));
    LadderRow::event(qpn, "event", text)
}

/// Makes the row for a command. None for a command that succeeded, except for SET_GID.
fn command_row(opcode: u16, status: u8, syndrome: u16) -> Option<LadderRow> {
    let name = verbena_faults::command_name(opcode);
    let name = name.unwrap_or_else(|| format!("{opcode:#04x}"));
    if status == 0 {
        let text = format!("command {name}: another address");
        let is_set_gid = opcode == Opcode::SetGid.to_raw();
        return is_set_gid.then(|| LadderRow::event(0, "event", text));
    }
    let status = CmdStatus::from_raw(status.into()).map_or("?", CmdStatus::name);
    let cause = cause_text(syndrome);
    let text = format!("command {name} refused, {status}{cause}");
    Some(LadderRow::event(0, "failed", text))
}

/// Writes all rows.
pub(super) fn write(history: &DeviceHistory, json: &mut JsonWriter) {
    let mut next_psns = NextPsns::new();
    // Peers of the QPs. The entry of a firing does not name the peer.
    let mut peers: BTreeMap<u32, u32> = BTreeMap::new();
    json.begin('[');
    for (number, entry) in (history.recording.first..).zip(history.entries()) {
        forget_psns(&entry.kind, &mut next_psns);
        let Some(mut row) = row(history, &entry.kind, &mut next_psns) else {
            continue;
        };
        if row.count > 0 {
            peers.insert(row.qpn, row.peer);
        } else if row.direction.is_some() {
            row.peer = peers.get(&row.qpn).copied().unwrap_or(0);
        }
        row.write(json, number, entry.time_ns);
    }
    json.end(']');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_a_text_and_the_owner_of_its_psn() {
        let ack = |detail| PacketEntry {
            qpn: 1,
            peer: 2,
            opcode: 0x11,
            detail,
            ..PacketEntry::default()
        };
        let request = PacketEntry {
            opcode: 4,
            ..ack(0)
        };
        let rows = [
            (LadderRow::packet(&request, "new"), "SEND Only", 1, ""),
            (
                LadderRow::packet(&request, "again"),
                "SEND Only, sent again",
                1,
                "",
            ),
            (
                LadderRow::packet(&request, "in"),
                "SEND Only, received",
                2,
                "new",
            ),
            (LadderRow::packet(&ack(0x2c << 24), "rnr"), "RNR NAK", 2, ""),
            (
                LadderRow::packet(&ack(0x2c << 24), "in"),
                "RNR NAK, received",
                1,
                "rnr",
            ),
        ];
        for (row, text, whose, as_sent) in rows {
            let mut json = JsonWriter::default();
            row.write(&mut json, 5, 6);
            let kind = row.kind;
            let expected =
                format!("[5,6,1,2,\"{kind}\",\"{text}\",0,1,\"\",{whose},\"{as_sent}\"]");
            assert_eq!(json.text(), expected);
        }
        let row = LadderRow::affected_packet(Direction::In, 1, 0x11, 0, "rule", String::new());
        assert!(
            !row.is_peers,
            "a received response has the PSN of a request of the receiver"
        );
        assert_eq!(
            event_subject(EventType::CqErr, 9),
            (0, String::from(" of CQ 9"))
        );
        assert_eq!(event_subject(EventType::QpFatal, 9), (9, String::new()));
    }

    #[test]
    fn retransmissions_are_marked() {
        let sent = |psn, count| PacketEntry {
            qpn: 1,
            psn,
            count,
            ..PacketEntry::default()
        };
        let mut next_psns = NextPsns::new();
        let kinds = [(5, 3), (8, 1), (6, 1), (6, 5), (11, 1)];
        let kinds = kinds.map(|(psn, count)| sent_row_kind(&sent(psn, count), &mut next_psns));
        assert_eq!(kinds, ["new", "new", "again", "again", "new"]);
        for (qpn, expected) in [(2, "again"), (1, "new")] {
            forget_psns(&EntryKind::Destroyed { qpn, owner: 3 }, &mut next_psns);
            assert_eq!(sent_row_kind(&sent(5, 1), &mut next_psns), expected);
        }
        forget_psns(&EntryKind::Reset, &mut next_psns);
        assert_eq!(sent_row_kind(&sent(5, 1), &mut next_psns), "new");
    }
}
