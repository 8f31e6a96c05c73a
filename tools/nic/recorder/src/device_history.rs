// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What is known about a device: the entries of its flight recorder, the rules that they name, and
//! the present state of its objects.

use crate::entry::{EntryKind, FlightEntry, PacketEntry};
use crate::flags::{FIRST, LAST};
use crate::flight_recording::FlightRecording;
use std::fmt;
use verbena_abi::ctx::QpState;
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::WqeOpcode;
use verbena_faults::{Action, Rule};
use verbena_transport::wire::opcode;
use verbena_transport::{psn, psn::PSN_MASK};

/// The present state of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpSnapshot {
    /// Number of this QP.
    pub qpn: u32,
    /// State of this QP.
    pub state: QpState,
    /// Cause of the state, if the QP is in ERR or SQE.
    pub syndrome: Option<Syndrome>,
    /// QPN of the peer.
    pub peer: u32,
    /// True if the peer belongs to the same device; None if that is not known.
    pub is_local: Option<bool>,
    /// The CQs of sends and of receives.
    pub cqns: [u32; 2],
    /// PSN to be sent next, oldest unacknowledged PSN, and expected PSN.
    pub psns: [u32; 3],
}

/// The recorded entries of a device, and the present state of its objects.
#[derive(Clone, Debug, Default)]
pub struct DeviceHistory {
    /// The recording, which is empty if there is none.
    pub recording: FlightRecording,
    /// The rules that entries name, by number; None for a rule that cannot be parsed.
    pub rules: Vec<Option<Rule>>,
    /// The QPs, if the device could be queried; otherwise their last recorded state is used.
    pub qps: Vec<QpSnapshot>,
    /// The CQs in error, each with its cause.
    pub cqs: Vec<(u32, Option<Syndrome>)>,
}

/// Formats a QPN for messages.
pub(crate) struct QpName(pub(crate) u32);

impl fmt::Display for QpName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QP {:#x}", self.0)
    }
}

/// True if a packet with this opcode answers a request.
pub(crate) fn is_response(code: u8) -> bool {
    opcode::lookup(code).is_some_and(|(_, row)| row.operation.is_response())
}

pub(crate) fn is_acknowledge(code: u8) -> bool {
    code & opcode::OPERATION == opcode::op::ACKNOWLEDGE
}

/// Returns the name of a BTH opcode as the specification spells it.
pub fn packet_name(code: u8) -> String {
    if code == opcode::CNP {
        return String::from("CNP");
    }
    opcode::lookup(code).map_or_else(|| format!("opcode {code:#04x}"), |(_, row)| row.name.into())
}

/// Returns the name of a packet or of several packets in a row, and for several packets which parts
/// of the message they are. An acknowledgement is named after the syndrome in its AETH.
pub(crate) fn packet_entry_name(p: &PacketEntry) -> String {
    let name = packet_name(p.opcode);
    if opcode::lookup(p.opcode).is_some() && is_acknowledge(p.opcode) {
        let code = (p.detail >> 24) as u8;
        return match code >> 5 {
            1 => String::from("RNR NAK"),
            3 => verbena_faults::nak_name(code & 0x1f)
                .map_or_else(|| format!("NAK {code:#04x}"), |nak| format!("NAK: {nak}")),
            _ => String::from("ACK"),
        };
    }
    let parts = [" First", " Middle", " Last", " Only"];
    match parts.iter().find(|part| name.contains(**part)) {
        _ if p.count < 2 => name,
        Some(part) => {
            let begin = if p.flags & FIRST != 0 {
                "First"
            } else {
                "Middle"
            };
            let end = if p.flags & LAST != 0 {
                "Last"
            } else {
                "Middle"
            };
            let whole = format!(" {begin} to {end}");
            format!("{} ({} packets)", name.replace(*part, &whole), p.count)
        }
        None => format!("{name} ({} PSNs)", p.count),
    }
}

/// Returns the name of the operation of a work request.
pub fn work_request_name(code: u8) -> String {
    let name = verbena_faults::send_name(code);
    let raw =
        || WqeOpcode::from_raw(code).map_or_else(|| format!("{code:#04x}"), |c| c.name().into());
    name.map_or_else(raw, String::from)
}

/// Returns the name of a state in capitals.
pub fn state_name(state: u8) -> String {
    QpState::from_raw(state).map_or_else(|| format!("state {state}"), |s| s.name().to_uppercase())
}

/// True if this state is an error state, ERR or SQE.
pub(crate) fn is_error(state: u8) -> bool {
    [QpState::Err, QpState::Sqe]
        .map(QpState::to_raw)
        .contains(&state)
}

/// True if one of the packets has the PSN `wanted`.
pub(crate) fn covers_psn(packet: &PacketEntry, wanted: u32) -> bool {
    psn::ahead(wanted, packet.psn & PSN_MASK) < packet.count.max(1)
}

impl DeviceHistory {
    /// Makes the history from a recording and its rules.
    pub fn new(recording: FlightRecording, rules: Vec<Option<Rule>>) -> Self {
        Self {
            recording,
            rules,
            ..Self::default()
        }
    }

    /// Returns all entries of the recording.
    pub(crate) fn entries(&self) -> &[FlightEntry] {
        &self.recording.entries
    }

    /// Iterates over the entries before index `at`, the latest first.
    pub(crate) fn entries_before(&self, at: usize) -> impl Iterator<Item = (usize, &FlightEntry)> {
        let entries = self.entries();
        let end = at.min(entries.len());
        (0..end)
            .rev()
            .filter_map(move |n| Some((n, entries.get(n)?)))
    }

    /// Returns the time of an entry as text: seconds of the device clock, and the number of the
    /// entry.
    pub(crate) fn time_text(&self, at: usize) -> String {
        let time = self.entries().get(at).map_or(0, |entry| entry.time_ns);
        let number = self.recording.first + at as u64;
        format!("at {:.6} s (entry {number})", time as f64 / 1e9)
    }

    /// Returns the name of a rule for messages.
    pub(crate) fn rule_text(&self, number: u16) -> String {
        match self.rules.get(usize::from(number)) {
            Some(Some(rule)) => format!("rule {:?}", rule.name),
            Some(None) => String::from("rule \"?\""),
            None => String::from("a rule of which no more is known"),
        }
    }

    /// Returns the action of a rule, if the rule is known.
    pub(crate) fn action(&self, number: u16) -> Option<&Action> {
        let rule = self.rules.get(usize::from(number))?.as_ref();
        rule.map(|rule| &rule.action)
    }

    /// Returns the index where the last QP with this number began: its creation, or the last device
    /// reset before its last entry. 0 if neither was recorded.
    pub(crate) fn lifetime_start(&self, qpn: u32) -> usize {
        let entries = self.entries();
        let is_its = |entry: &FlightEntry| match entry.kind {
            EntryKind::Created { qpn: n, .. }
            | EntryKind::State { qpn: n, .. }
            | EntryKind::Destroyed { qpn: n, .. } => n == qpn,
            _ => false,
        };
        let born = |entry: &FlightEntry| match entry.kind {
            EntryKind::Created { qpn: n, .. } => n == qpn,
            EntryKind::Reset => true,
            _ => false,
        };
        let last = entries.iter().rposition(is_its).unwrap_or(entries.len());
        let until = entries.get(..=last).unwrap_or(entries);
        until.iter().rposition(born).unwrap_or(0)
    }

    /// Returns the index where the QP began anew before index `at`: its last change to RESET after
    /// its creation, or else the result of [`Self::lifetime_start`].
    pub(crate) fn last_reset(&self, qpn: u32, at: usize) -> usize {
        let life = self.lifetime_start(qpn);
        let reset = QpState::Reset.to_raw();
        let is_reset = |entry: &FlightEntry| matches!(entry.kind, EntryKind::State { qpn: n, to, .. } if n == qpn && to == reset);
        let mut back = self.entries_before(at).take_while(|(n, _)| *n > life);
        let last = back.find(|(_, entry)| is_reset(entry));
        last.map_or(life, |(n, _)| n)
    }

    /// Returns the present state of a QP, or its last recorded state.
    pub fn qp(&self, qpn: u32) -> Option<QpSnapshot> {
        let written = self.recorded_qp(qpn);
        let Some(found) = self.qps.iter().find(|qp| qp.qpn == qpn) else {
            return written;
        };
        let is_local = written.and_then(|qp| qp.is_local);
        Some(QpSnapshot {
            is_local: found.is_local.or(is_local),
            ..*found
        })
    }

    /// Returns the last state of a QP according to the recording.
    fn recorded_qp(&self, qpn: u32) -> Option<QpSnapshot> {
        let mut now = None;
        for entry in self.entries().get(self.lifetime_start(qpn)..)? {
            match entry.kind {
                EntryKind::Created {
                    qpn: n,
                    send_cqn,
                    recv_cqn,
                    ..
                } if n == qpn => {
                    now = Some(QpSnapshot {
                        qpn,
                        state: QpState::Reset,
                        syndrome: None,
                        peer: 0,
                        is_local: None,
                        cqns: [send_cqn, recv_cqn],
                        psns: [0; 3],
                    });
                }
                EntryKind::State {
                    qpn: n,
                    to,
                    syndrome,
                    peer,
                    is_local,
                    next_psn,
                    una_psn,
                    expected_psn,
                    ..
                } if n == qpn => {
                    let cqns = now.map_or([0; 2], |qp: QpSnapshot| qp.cqns);
                    now = Some(QpSnapshot {
                        qpn,
                        state: QpState::from_raw(to)?,
                        syndrome: Syndrome::from_raw(syndrome),
                        peer,
                        is_local,
                        cqns,
                        psns: [next_psn, una_psn, expected_psn],
                    });
                }
                _ => {}
            }
        }
        now
    }

    /// Returns the peer of a QP, if the peer belongs to this device and is connected back to the
    /// QP. The number of the peer alone does not suffice where `is_local` is not known: two devices
    /// that were used alike have the same QPNs.
    pub(crate) fn local_peer(&self, qp: &QpSnapshot) -> Option<QpSnapshot> {
        if qp.is_local == Some(false) {
            return None;
        }
        self.qp(qp.peer).filter(|peer| peer.peer == qp.qpn)
    }
}
