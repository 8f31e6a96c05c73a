// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The chain back from an error of a QP: the packet or work request that failed, the rules that
//! took part, and the peer.

use super::rules::append_rules;
use super::syndrome_text;
use crate::device_history::{
    covers_psn, is_acknowledge, is_response, packet_entry_name, work_request_name, DeviceHistory,
    QpName, QpSnapshot,
};
use crate::entry::{EntryKind, FlightEntry, PacketEntry};
use crate::flags::RECV;
use crate::psn_text;
use verbena_abi::cqe::WcStatus;
use verbena_abi::ctx::QpState;
use verbena_abi::eqe::EventType;
use verbena_abi::syndrome::Syndrome;
use verbena_faults::{Action, Direction, Rule, RuleHook};
use verbena_transport::psn;
use verbena_transport::wire::opcode;

/// The context in which a chain is made.
pub(super) struct CauseChain<'a> {
    pub(super) history: &'a DeviceHistory,
    pub(super) qp: &'a QpSnapshot,
    /// Index of the entry where the QP began anew.
    pub(super) start: usize,
    /// Index of the entry where the QP got its error.
    pub(super) at: usize,
    pub(super) depth: u32,
}

/// Appends the chain of an error.
pub(super) fn append_chain(
    history: &DeviceHistory,
    qp: &QpSnapshot,
    cause: Syndrome,
    at: usize,
    depth: u32,
    out: &mut Vec<String>,
) {
    let start = history.last_reset(qp.qpn, at);
    let chain = CauseChain {
        history,
        qp,
        start,
        at,
        depth,
    };
    use Syndrome::*;
    chain.explain_work_request(cause, out);
    match cause {
        Injected => chain.explain_injected(out),
        NakInvalidRequest | NakRemoteAccess | NakRemoteOperational => chain.explain_nak(out),
        RetryExceeded | SequenceRetryExceeded => chain.explain_unacknowledged(out),
        RnrRetryExceeded => chain.explain_rnr(out),
        CqDied => chain.explain_cq_error(out),
        SrqDied => chain.explain_event(EventType::SrqErr, "SRQ", out),
        ModifiedToErr => out.push(String::from(
            "The driver moved it there by MODIFY_QP: a program's ibv_modify_qp, or the end of a connection (rdma_disconnect, a process that went).",
        )),
        DeviceFatal => chain.explain_event(EventType::DeviceFatal, "device", out),
        ResponseOpcode | ResponseLength => drop(chain.append_rules(qp.qpn, out)),
        _ if is_responder_error(cause) => chain.explain_request(out),
        _ => {}
    }
}

/// True if a responder found the error in a request.
fn is_responder_error(cause: Syndrome) -> bool {
    matches!(cause.to_raw(), 0x2000..=0x22ff)
        || matches!(
            cause,
            Syndrome::RecvTooSmall
                | Syndrome::WriteImmAccess
                | Syndrome::RemoteInvalidate
                | Syndrome::MessageTooLong
        )
}

/// Returns how often a packet was sent between two indexes.
pub(super) fn times_sent(
    history: &DeviceHistory,
    qpn: u32,
    wanted: u32,
    from: usize,
    to: usize,
) -> usize {
    let sent = |entry: &&FlightEntry| match entry.kind {
        EntryKind::Sent(packet) => {
            packet.qpn == qpn && is_request(&packet) && covers_psn(&packet, wanted)
        }
        _ => false,
    };
    let all = history.entries();
    let part = all.get(from..to.min(all.len())).unwrap_or_default();
    part.iter().filter(sent).count()
}

fn is_request(packet: &PacketEntry) -> bool {
    !is_response(packet.opcode) && packet.opcode != opcode::CNP
}

impl CauseChain<'_> {
    pub(super) fn find_last(
        &self,
        mut is_match: impl FnMut(&EntryKind) -> bool,
    ) -> Option<(usize, &FlightEntry)> {
        let mut back = self.history.entries_before(self.at);
        back.find(|(n, entry)| *n >= self.start && is_match(&entry.kind))
    }

    /// Appends the work request that failed.
    fn explain_work_request(&self, cause: Syndrome, out: &mut Vec<String>) {
        let me = self.qp.qpn;
        // Only a completion that is recorded before the change of state is found here.
        let failed = |kind: &EntryKind| match *kind {
            EntryKind::Completed {
                qpn,
                status,
                syndrome,
                ..
            } => {
                let flush = WcStatus::WrFlushErr.to_raw();
                qpn == me && syndrome == cause.to_raw() && status != 0 && status != flush
            }
            _ => false,
        };
        let Some((n, entry)) = self.find_last(failed) else {
            return;
        };
        let EntryKind::Completed {
            index,
            status,
            wr_id,
            flags,
            cqn,
            ..
        } = entry.kind
        else {
            return;
        };
        let status = WcStatus::from_raw(status).map_or("?", WcStatus::verbs_name);
        let which = if flags & RECV != 0 {
            String::from("receive")
        } else {
            let begun = self.find_last(
                |kind| matches!(*kind, EntryKind::Work { qpn, index: i, .. } if qpn == me && i == index),
            );
            match begun.map(|(_, entry)| entry.kind) {
                Some(EntryKind::Work { opcode, .. }) => work_request_name(opcode),
                _ => String::from("work request"),
            }
        };
        out.push(format!(
            "The {which} with wr_id {wr_id:#x} (index {index}) completed with {status} in CQ {cqn}, {}; all behind it flushes.",
            self.history.time_text(n)
        ));
    }

    fn append_rules(&self, qpn: u32, out: &mut Vec<String>) -> bool {
        append_rules(self.history, qpn, self.at, out)
    }

    fn explain_injected(&self, out: &mut Vec<String>) {
        let me = self.qp.qpn;
        let is_match = |kind: &EntryKind| match *kind {
            EntryKind::Fired { qpn, on, .. } => qpn == me || on == RuleHook::Time,
            _ => false,
        };
        match self.find_last(is_match) {
            Some((n, entry)) => {
                if let EntryKind::Fired { rule, .. } = entry.kind {
                    out.push(format!(
                        "{} asked for it, {}.",
                        capitalized(&self.history.rule_text(rule)),
                        self.history.time_text(n)
                    ));
                }
            }
            None => out.push(String::from(
                "A rule (verbenactl fault list), or INJECT_FAULT of the driver, asked for it.",
            )),
        }
    }

    /// Appends the NAK that the requester received.
    fn explain_nak(&self, out: &mut Vec<String>) {
        let me = self.qp.qpn;
        let is_nak = |kind: &EntryKind| match *kind {
            EntryKind::Received(p) => {
                p.qpn == me
                    && is_acknowledge(p.opcode)
                    && p.detail >> 29 == 3
                    && p.detail >> 24 != 0x60
            }
            _ => false,
        };
        let mut by_rule = false;
        if let Some((n, entry)) = self.find_last(is_nak) {
            if let EntryKind::Received(p) = entry.kind {
                out.push(format!(
                    "It received a NAK (AETH syndrome {:#04x}) for {} from {}, {}.",
                    p.detail >> 24,
                    psn_text(p.psn),
                    QpName(p.peer),
                    self.history.time_text(n)
                ));
                // The rule fired on the request at the responder, or on the acknowledgement that it
                // replaced.
                let fired = self.find_last(|kind| match *kind {
                    EntryKind::Fired {
                        qpn,
                        psn,
                        direction,
                        on: RuleHook::Packet,
                        opcode,
                        ..
                    } => {
                        let request = qpn == p.peer && direction == Direction::In && psn == p.psn;
                        let answer = is_acknowledge(opcode as u8) && psn == p.psn;
                        (request || answer && (qpn == me || qpn == p.peer)) && self.makes_nak(kind)
                    }
                    _ => false,
                });
                if let Some((n, entry)) = fired {
                    if let EntryKind::Fired { rule, .. } = entry.kind {
                        by_rule = true;
                        out.push(format!(
                            "{} made that NAK, {}: the peer knows nothing of it.",
                            capitalized(&self.history.rule_text(rule)),
                            self.history.time_text(n)
                        ));
                    }
                }
            }
        }
        if !by_rule {
            self.append_rules(me, out);
            self.explain_peer(out);
        }
    }

    /// True if the entry is the firing of a rule that answers with a NAK.
    fn makes_nak(&self, kind: &EntryKind) -> bool {
        let EntryKind::Fired { rule, .. } = *kind else {
            return false;
        };
        let rule = self.history.rules.get(usize::from(rule));
        let is_nak = |rule: &Rule| matches!(rule.action, Action::Nak(_) | Action::Rnr(_));
        rule.and_then(Option::as_ref).is_some_and(is_nak)
    }

    /// Appends the request that was never acknowledged.
    fn explain_unacknowledged(&self, out: &mut Vec<String>) {
        let me = self.qp.qpn;
        let state = self.history.entries().get(self.at).map(|entry| entry.kind);
        let una = match state {
            Some(EntryKind::State { una_psn, .. }) => una_psn,
            _ => self.qp.psns[1],
        };
        // The transport may have cleared its state. Then the last sent request shows the PSN.
        let last = self
            .find_last(|kind| matches!(kind, EntryKind::Sent(p) if p.qpn == me && is_request(p)));
        let una = match last.map(|(_, entry)| entry.kind) {
            Some(EntryKind::Sent(p))
                if times_sent(self.history, me, una, self.start, self.at) == 0 =>
            {
                p.psn
            }
            _ => una,
        };
        let sent = times_sent(self.history, me, una, self.start, self.at);
        if sent > 0 {
            out.push(format!(
                "{} was sent {} and not acknowledged.",
                capitalized(&psn_text(una)),
                times_text(sent)
            ));
        }
        let arrived = |kind: &EntryKind| match *kind {
            EntryKind::Received(p) => p.qpn == self.qp.peer && covers_psn(&p, una),
            _ => false,
        };
        let peer = self.history.local_peer(self.qp);
        self.explain_port_changes(out);
        self.compare_first_psns(out);
        let at_me = self.append_rules(me, out);
        let at_peer = peer.is_some_and(|peer| self.append_rules(peer.qpn, out));
        match peer {
            Some(peer) => {
                if sent > 0 && self.find_last(arrived).is_none() {
                    out.push(format!("{} never received it.", QpName(peer.qpn)));
                }
                if !(at_me || at_peer) || peer.state != QpState::Rts {
                    self.explain_peer(out);
                }
            }
            None if !at_me => self.explain_peer(out),
            None => {}
        }
    }

    /// Appends the RNR NAKs of a peer that had no receive.
    fn explain_rnr(&self, out: &mut Vec<String>) {
        let me = self.qp.qpn;
        let is_rnr = |kind: &EntryKind| matches!(kind, EntryKind::Received(p) if p.qpn == me && is_acknowledge(p.opcode) && p.detail >> 29 == 1);
        let last = self.find_last(is_rnr);
        let part = self.history.entries();
        let part = part
            .get(self.start..self.at.min(part.len()))
            .unwrap_or_default();
        let count = part.iter().filter(|entry| is_rnr(&entry.kind)).count();
        if let Some((n, entry)) = last {
            if let EntryKind::Received(p) = entry.kind {
                out.push(format!(
                    "It received {count} RNR NAKs, the last for {} from {}, {}: there was no receive for it.",
                    psn_text(p.psn),
                    QpName(p.peer),
                    self.history.time_text(n)
                ));
            }
        }
        let peer = self.history.local_peer(self.qp);
        if self.append_rules(me, out) | peer.is_some_and(|peer| self.append_rules(peer.qpn, out)) {
            return;
        }
        if peer.is_some() {
            self.explain_peer(out);
        }
        out.push(String::from(
            "The receiving program posts receives too late or too few; rnr_retry 7 waits for ever.",
        ));
    }

    fn explain_cq_error(&self, out: &mut Vec<String>) {
        let cqns = self.qp.cqns;
        let died = self.find_last(|kind| matches!(*kind, EntryKind::Event { event_type, number, .. } if event_type == EventType::CqErr.to_raw() && cqns.contains(&number)));
        let (cqn, cause, when) = match died.map(|(n, entry)| (n, entry.kind)) {
            Some((
                n,
                EntryKind::Event {
                    number, syndrome, ..
                },
            )) => (
                number,
                Syndrome::from_raw(syndrome),
                self.history.time_text(n),
            ),
            _ => match self.history.cqs.iter().find(|(cqn, _)| cqns.contains(cqn)) {
                Some((cqn, cause)) => (*cqn, *cause, String::from("before")),
                None => return,
            },
        };
        let text = cause.map_or_else(String::new, syndrome_text);
        out.push(format!("CQ {cqn}, where it completes, died {when}: {text}"));
        let full = self
            .history
            .entries()
            .iter()
            .filter(|entry| matches!(entry.kind, EntryKind::Completed { cqn: n, .. } if n == cqn))
            .count();
        if full > 0 && cause == Some(Syndrome::CqOverflow) {
            out.push(format!(
                "{full} completions for it were recorded: the program took too few of them in time, or made the CQ too small."
            ));
        }
    }

    fn explain_event(&self, wanted: EventType, name: &str, out: &mut Vec<String>) {
        let event =
            self.find_last(|kind| matches!(*kind, EntryKind::Event { event_type, .. } if event_type == wanted.to_raw()));
        if let Some((n, entry)) = event {
            if let EntryKind::Event {
                number, syndrome, ..
            } = entry.kind
            {
                let text = Syndrome::from_raw(syndrome).map_or_else(String::new, syndrome_text);
                let number = if wanted == EventType::DeviceFatal {
                    String::new()
                } else {
                    format!(" {number}")
                };
                out.push(format!(
                    "The {name}{number} died {}: {text}",
                    self.history.time_text(n)
                ));
            }
        }
    }

    /// Appends the request in which the responder found the error.
    fn explain_request(&self, out: &mut Vec<String>) {
        let me = self.qp.qpn;
        let found = self.find_last(
            |kind| matches!(kind, EntryKind::Received(p) if p.qpn == me && is_request(p)),
        );
        let Some((n, entry)) = found else {
            self.append_rules(me, out);
            return;
        };
        let EntryKind::Received(p) = entry.kind else {
            return;
        };
        let mut detail = String::new();
        if p.address != 0 || p.detail != 0 {
            detail = format!(", R_Key {:#x}, address {:#x}", p.detail, p.address);
        }
        out.push(format!(
            "The request was {}, {}, {} bytes{detail}, from {}, {}.",
            packet_entry_name(&p),
            psn_text(p.psn),
            p.bytes,
            QpName(p.peer),
            self.history.time_text(n)
        ));
        let sent = self.last_transmission(&p).map(|(n, _)| n);
        let altered = self.find_last(|kind| match *kind {
            EntryKind::Fired {
                qpn,
                psn: at,
                on: RuleHook::Packet,
                direction,
                rule,
                ..
            } => {
                let is_here = self.may_alter(rule) && psn::ahead(at, p.psn) < p.count.max(1);
                let is_match = qpn == me && direction == Direction::In
                    || qpn == p.peer && direction == Direction::Out;
                is_here && is_match
            }
            _ => false,
        });
        // A rule that altered an earlier transmission of the packet does not count.
        match altered.filter(|(n, _)| sent.is_none_or(|sent| sent < *n)) {
            Some((n, entry)) => {
                if let EntryKind::Fired { rule, .. } = entry.kind {
                    out.push(format!(
                        "{} had its hand in that packet, {}: the peer did not send it so.",
                        capitalized(&self.history.rule_text(rule)),
                        self.history.time_text(n)
                    ));
                }
            }
            None => self.explain_requester(&p, out),
        }
    }

    /// True if a rule alters packets, or if its action is not known.
    fn may_alter(&self, rule: u16) -> bool {
        let rule = self.history.rules.get(usize::from(rule));
        let alters = |rule: &Rule| matches!(rule.action, Action::Corrupt(_));
        rule.and_then(Option::as_ref).is_none_or(alters)
    }

    /// Returns the index of the send that failed at the peer after the error.
    fn failed_send_at(&self, peer: u32) -> Option<u32> {
        let flush = WcStatus::WrFlushErr.to_raw();
        let later = self.history.entries().iter().skip(self.at);
        let mut later = later
            .map(|entry| entry.kind)
            .take_while(|kind| !matches!(kind, EntryKind::Created { qpn, .. } if *qpn == peer));
        later.find_map(|kind| match kind {
            EntryKind::Completed {
                qpn,
                index,
                status,
                flags,
                ..
            } if qpn == peer && flags & RECV == 0 && status != 0 && status != flush => Some(index),
            _ => None,
        })
    }

    /// Returns the last entry with which the peer sent the request.
    fn last_transmission(&self, request: &PacketEntry) -> Option<(usize, &FlightEntry)> {
        self.find_last(|kind| matches!(kind, EntryKind::Sent(p) if p.qpn == request.peer && covers_psn(p, request.psn) && is_request(p)))
    }

    /// Appends the work request of the peer from which the request came.
    fn explain_requester(&self, request: &PacketEntry, out: &mut Vec<String>) {
        let Some((sent, _)) = self.last_transmission(request) else {
            return;
        };
        // Later work requests may have begun before the request was sent, so the work request that
        // failed counts, once there is one.
        let refused = self.failed_send_at(request.peer);
        let mut back = self.history.entries_before(sent);
        let work = back.find(|(_, entry)| match entry.kind {
            EntryKind::Work { qpn, index, .. } => {
                qpn == request.peer && refused.is_none_or(|refused| refused == index)
            }
            _ => false,
        });
        if let Some((
            n,
            FlightEntry {
                kind:
                    EntryKind::Work {
                        opcode,
                        wr_id,
                        index,
                        ..
                    },
                ..
            },
        )) = work
        {
            out.push(format!(
                "{} sent it for its work request {} with wr_id {wr_id:#x} (index {index}), begun {}.",
                QpName(request.peer),
                work_request_name(*opcode),
                self.history.time_text(n)
            ));
        }
    }
}

/// Returns `once` or the number of times.
pub(super) fn times_text(count: usize) -> String {
    match count {
        1 => String::from("once"),
        n => format!("{n} times"),
    }
}

pub(super) fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|c| c.to_uppercase().collect::<String>());
    first.unwrap_or_default() + chars.as_str()
}
