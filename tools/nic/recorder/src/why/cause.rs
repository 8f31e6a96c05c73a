// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The chain back from an error of a QP: the packet or work request that failed, the rules that
//! took part, and the peer.

use super::syndrome_text;
use crate::entry::{Entry, Packet, What};
use crate::facts::{
    covers, is_acknowledge, is_response, packet_name, packets_name, work_name, Facts, Name, QpNow,
};
use crate::flags::{LOST, RECV};
use crate::psn_text;
use verbena_abi::cqe::WcStatus;
use verbena_abi::ctx::QpState;
use verbena_abi::eqe::EventType;
use verbena_abi::syndrome::Syndrome;
use verbena_faults::{Action, Direction, On, Rule};
use verbena_transport::psn;
use verbena_transport::wire::opcode;

/// The context in which a chain is made.
pub(super) struct Chain<'a> {
    pub(super) facts: &'a Facts,
    pub(super) qp: &'a QpNow,
    /// Index of the entry where the QP began anew.
    pub(super) life: usize,
    /// Index of the entry where the QP got its error.
    pub(super) at: usize,
    pub(super) depth: u32,
}

/// Appends the chain of an error.
pub(super) fn chain(
    facts: &Facts,
    qp: &QpNow,
    cause: Syndrome,
    at: usize,
    depth: u32,
    out: &mut Vec<String>,
) {
    let life = facts.anew(qp.qpn, at);
    let chain = Chain {
        facts,
        qp,
        life,
        at,
        depth,
    };
    use Syndrome::*;
    chain.work(cause, out);
    match cause {
        Injected => chain.injected(out),
        NakInvalidRequest | NakRemoteAccess | NakRemoteOperational => chain.refused(out),
        RetryExceeded | SequenceRetryExceeded => chain.unanswered(out),
        RnrRetryExceeded => chain.not_ready(out),
        CqDied => chain.cq_died(out),
        SrqDied => chain.event(EventType::SrqErr, "SRQ", out),
        ModifiedToErr => out.push(String::from(
            "The driver moved it there by MODIFY_QP: a program's ibv_modify_qp, or the end of a connection (rdma_disconnect, a process that went).",
        )),
        DeviceFatal => chain.event(EventType::DeviceFatal, "device", out),
        ResponseOpcode | ResponseLength => drop(chain.rules(qp.qpn, out)),
        _ if is_responders(cause) => chain.request(out),
        _ => {}
    }
}

/// True if a responder found the error in a request.
fn is_responders(cause: Syndrome) -> bool {
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
pub(super) fn times_sent(facts: &Facts, qpn: u32, wanted: u32, from: usize, to: usize) -> usize {
    let sent = |entry: &&Entry| match entry.what {
        What::Sent(packet) => packet.qpn == qpn && is_request(&packet) && covers(&packet, wanted),
        _ => false,
    };
    let all = facts.all();
    let part = all.get(from..to.min(all.len())).unwrap_or_default();
    part.iter().filter(sent).count()
}

fn is_request(packet: &Packet) -> bool {
    !is_response(packet.opcode) && packet.opcode != opcode::CNP
}

/// Returns the rules that fired on a QP between two indexes, each with its count and the first
/// event.
pub(super) fn firings(facts: &Facts, qpn: u32, from: usize, to: usize) -> Vec<String> {
    let all = facts.all();
    let part = all.get(from..to.min(all.len())).unwrap_or_default();
    let mut found: Vec<(u16, usize, String)> = Vec::new();
    let mut lost = 0usize;
    for (n, entry) in part.iter().enumerate() {
        match entry.what {
            What::Fired {
                rule,
                qpn: n_qpn,
                on,
                way,
                opcode,
                psn,
                ..
            } if n_qpn == qpn => {
                if let Some((_, count, _)) = found.iter_mut().find(|(known, ..)| *known == rule) {
                    *count += 1;
                    continue;
                }
                let first = match on {
                    On::Packet => {
                        let way = if way == Direction::Out {
                            "sent"
                        } else {
                            "received"
                        };
                        format!("{} {way}, {}", packet_name(opcode as u8), psn_text(psn))
                    }
                    On::Send => format!("the work request {}", work_name(opcode as u8)),
                    _ => String::from("its command, event or moment"),
                };
                let moment = facts.moment(from + n);
                found.push((rule, 1, format!("on {first} {moment}")));
            }
            What::Passed {
                qpn: n_qpn, flags, ..
            } if n_qpn == qpn && flags & LOST != 0 => lost += 1,
            _ => {}
        }
    }
    let told = found.into_iter().map(|(rule, count, first)| {
        let times = match (count, facts.recording.first) {
            (1, 0) => String::from("once,"),
            (_, 0) => format!("{count} times, first"),
            // Older entries are overwritten.
            _ => format!("{count} times in what is recorded, first there"),
        };
        format!("{} fired {times} {first}", facts.rule(rule))
    });
    let mut told: Vec<String> = told.collect();
    if lost > 0 {
        told.push(format!("verbena-nic --drop lost {lost} of its packets"));
    }
    told
}

/// Appends the rules that fired on a QP before index `at`, since it began anew. Returns true if one
/// did.
pub(super) fn rules(facts: &Facts, qpn: u32, at: usize, out: &mut Vec<String>) -> bool {
    let fired = firings(facts, qpn, facts.anew(qpn, at), at);
    let any = !fired.is_empty();
    if any {
        out.push(format!("Rules at {}: {}.", Name(qpn), fired.join("; ")));
    }
    any
}

impl Chain<'_> {
    pub(super) fn says(&self, mut is_it: impl FnMut(&What) -> bool) -> Option<(usize, &Entry)> {
        let mut back = self.facts.before(self.at);
        back.find(|(n, entry)| *n >= self.life && is_it(&entry.what))
    }

    /// Appends the work request that failed.
    fn work(&self, cause: Syndrome, out: &mut Vec<String>) {
        let me = self.qp.qpn;
        // Only a completion that is recorded before the change of state is found here.
        let failed = |what: &What| match *what {
            What::Completed {
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
        let Some((n, entry)) = self.says(failed) else {
            return;
        };
        let What::Completed {
            index,
            status,
            wr_id,
            flags,
            cqn,
            ..
        } = entry.what
        else {
            return;
        };
        let status = WcStatus::from_raw(status).map_or("?", WcStatus::verbs_name);
        let which = if flags & RECV != 0 {
            String::from("receive")
        } else {
            let begun = self.says(
                |what| matches!(*what, What::Work { qpn, index: i, .. } if qpn == me && i == index),
            );
            match begun.map(|(_, entry)| entry.what) {
                Some(What::Work { opcode, .. }) => work_name(opcode),
                _ => String::from("work request"),
            }
        };
        out.push(format!(
            "The {which} with wr_id {wr_id:#x} (index {index}) completed with {status} in CQ {cqn}, {}; all behind it flushes.",
            self.facts.moment(n)
        ));
    }

    fn rules(&self, qpn: u32, out: &mut Vec<String>) -> bool {
        rules(self.facts, qpn, self.at, out)
    }

    fn injected(&self, out: &mut Vec<String>) {
        let me = self.qp.qpn;
        let is_it = |what: &What| match *what {
            What::Fired { qpn, on, .. } => qpn == me || on == On::Time,
            _ => false,
        };
        match self.says(is_it) {
            Some((n, entry)) => {
                if let What::Fired { rule, .. } = entry.what {
                    out.push(format!(
                        "{} asked for it, {}.",
                        capital(&self.facts.rule(rule)),
                        self.facts.moment(n)
                    ));
                }
            }
            None => out.push(String::from(
                "A rule (verbenactl fault list), or INJECT_FAULT of the driver, asked for it.",
            )),
        }
    }

    /// Appends the NAK that the requester received.
    fn refused(&self, out: &mut Vec<String>) {
        let me = self.qp.qpn;
        let is_nak = |what: &What| match *what {
            What::Received(p) => {
                p.qpn == me
                    && is_acknowledge(p.opcode)
                    && p.detail >> 29 == 3
                    && p.detail >> 24 != 0x60
            }
            _ => false,
        };
        let mut by_rule = false;
        if let Some((n, entry)) = self.says(is_nak) {
            if let What::Received(p) = entry.what {
                out.push(format!(
                    "It received a NAK (AETH syndrome {:#04x}) for {} from {}, {}.",
                    p.detail >> 24,
                    psn_text(p.psn),
                    Name(p.peer),
                    self.facts.moment(n)
                ));
                // The rule fired on the request at the responder, or on the acknowledgement that it
                // replaced.
                let fired = self.says(|what| match *what {
                    What::Fired {
                        qpn,
                        psn,
                        way,
                        on: On::Packet,
                        opcode,
                        ..
                    } => {
                        let request = qpn == p.peer && way == Direction::In && psn == p.psn;
                        let answer = is_acknowledge(opcode as u8) && psn == p.psn;
                        (request || answer && (qpn == me || qpn == p.peer)) && self.makes_naks(what)
                    }
                    _ => false,
                });
                if let Some((n, entry)) = fired {
                    if let What::Fired { rule, .. } = entry.what {
                        by_rule = true;
                        out.push(format!(
                            "{} made that NAK, {}: the peer knows nothing of it.",
                            capital(&self.facts.rule(rule)),
                            self.facts.moment(n)
                        ));
                    }
                }
            }
        }
        if !by_rule {
            self.rules(me, out);
            self.peer(out);
        }
    }

    /// True if the entry is the firing of a rule that answers with a NAK.
    fn makes_naks(&self, what: &What) -> bool {
        let What::Fired { rule, .. } = *what else {
            return false;
        };
        let rule = self.facts.rules.get(usize::from(rule));
        let is_nak = |rule: &Rule| matches!(rule.action, Action::Nak(_) | Action::Rnr(_));
        rule.and_then(Option::as_ref).is_some_and(is_nak)
    }

    /// Appends the request that was never acknowledged.
    fn unanswered(&self, out: &mut Vec<String>) {
        let me = self.qp.qpn;
        let state = self.facts.all().get(self.at).map(|entry| entry.what);
        let una = match state {
            Some(What::State { una_psn, .. }) => una_psn,
            _ => self.qp.psns[1],
        };
        // The transport may have cleared its state. Then the last sent request shows the PSN.
        let last = self.says(|what| matches!(what, What::Sent(p) if p.qpn == me && is_request(p)));
        let una = match last.map(|(_, entry)| entry.what) {
            Some(What::Sent(p)) if times_sent(self.facts, me, una, self.life, self.at) == 0 => {
                p.psn
            }
            _ => una,
        };
        let sent = times_sent(self.facts, me, una, self.life, self.at);
        if sent > 0 {
            out.push(format!(
                "{} was sent {} and not acknowledged.",
                capital(&psn_text(una)),
                times(sent)
            ));
        }
        let arrived = |what: &What| match *what {
            What::Received(p) => p.qpn == self.qp.peer && covers(&p, una),
            _ => false,
        };
        let peer = self.facts.local_peer(self.qp);
        self.port(out);
        self.first_psns(out);
        let at_me = self.rules(me, out);
        let at_peer = peer.is_some_and(|peer| self.rules(peer.qpn, out));
        match peer {
            Some(peer) => {
                if sent > 0 && self.says(arrived).is_none() {
                    out.push(format!("{} never received it.", Name(peer.qpn)));
                }
                if !(at_me || at_peer) || peer.state != QpState::Rts {
                    self.peer(out);
                }
            }
            None if !at_me => self.peer(out),
            None => {}
        }
    }

    /// Appends the RNR NAKs of a peer that had no receive.
    fn not_ready(&self, out: &mut Vec<String>) {
        let me = self.qp.qpn;
        let is_rnr = |what: &What| matches!(what, What::Received(p) if p.qpn == me && is_acknowledge(p.opcode) && p.detail >> 29 == 1);
        let last = self.says(is_rnr);
        let part = self.facts.all();
        let part = part
            .get(self.life..self.at.min(part.len()))
            .unwrap_or_default();
        let count = part.iter().filter(|entry| is_rnr(&entry.what)).count();
        if let Some((n, entry)) = last {
            if let What::Received(p) = entry.what {
                out.push(format!(
                    "It received {count} RNR NAKs, the last for {} from {}, {}: there was no receive for it.",
                    psn_text(p.psn),
                    Name(p.peer),
                    self.facts.moment(n)
                ));
            }
        }
        let peer = self.facts.local_peer(self.qp);
        if self.rules(me, out) | peer.is_some_and(|peer| self.rules(peer.qpn, out)) {
            return;
        }
        if peer.is_some() {
            self.peer(out);
        }
        out.push(String::from(
            "The receiving program posts receives too late or too few; rnr_retry 7 waits for ever.",
        ));
    }

    fn cq_died(&self, out: &mut Vec<String>) {
        let cqns = self.qp.cqns;
        let died = self.says(|what| matches!(*what, What::Event { kind, number, .. } if kind == EventType::CqErr.to_raw() && cqns.contains(&number)));
        let (cqn, cause, when) = match died.map(|(n, entry)| (n, entry.what)) {
            Some((
                n,
                What::Event {
                    number, syndrome, ..
                },
            )) => (number, Syndrome::from_raw(syndrome), self.facts.moment(n)),
            _ => match self.facts.cqs.iter().find(|(cqn, _)| cqns.contains(cqn)) {
                Some((cqn, cause)) => (*cqn, *cause, String::from("before")),
                None => return,
            },
        };
        let text = cause.map_or_else(String::new, syndrome_text);
        out.push(format!("CQ {cqn}, where it completes, died {when}: {text}"));
        let full = self
            .facts
            .all()
            .iter()
            .filter(|entry| matches!(entry.what, What::Completed { cqn: n, .. } if n == cqn))
            .count();
        if full > 0 && cause == Some(Syndrome::CqOverflow) {
            out.push(format!(
                "{full} completions for it were recorded: the program took too few of them in time, or made the CQ too small."
            ));
        }
    }

    fn event(&self, wanted: EventType, name: &str, out: &mut Vec<String>) {
        let event =
            self.says(|what| matches!(*what, What::Event { kind, .. } if kind == wanted.to_raw()));
        if let Some((n, entry)) = event {
            if let What::Event {
                number, syndrome, ..
            } = entry.what
            {
                let text = Syndrome::from_raw(syndrome).map_or_else(String::new, syndrome_text);
                let number = if wanted == EventType::DeviceFatal {
                    String::new()
                } else {
                    format!(" {number}")
                };
                out.push(format!(
                    "The {name}{number} died {}: {text}",
                    self.facts.moment(n)
                ));
            }
        }
    }

    /// Appends the request in which the responder found the error.
    fn request(&self, out: &mut Vec<String>) {
        let me = self.qp.qpn;
        let found =
            self.says(|what| matches!(what, What::Received(p) if p.qpn == me && is_request(p)));
        let Some((n, entry)) = found else {
            self.rules(me, out);
            return;
        };
        let What::Received(p) = entry.what else {
            return;
        };
        let mut detail = String::new();
        if p.address != 0 || p.detail != 0 {
            detail = format!(", R_Key {:#x}, address {:#x}", p.detail, p.address);
        }
        out.push(format!(
            "The request was {}, {}, {} bytes{detail}, from {}, {}.",
            packets_name(&p),
            psn_text(p.psn),
            p.bytes,
            Name(p.peer),
            self.facts.moment(n)
        ));
        let sent = self.sent(&p).map(|(n, _)| n);
        let altered = self.says(|what| match *what {
            What::Fired {
                qpn,
                psn: at,
                on: On::Packet,
                way,
                rule,
                ..
            } => {
                let is_here = self.alters(rule) && psn::ahead(at, p.psn) < p.count.max(1);
                let is_it =
                    qpn == me && way == Direction::In || qpn == p.peer && way == Direction::Out;
                is_here && is_it
            }
            _ => false,
        });
        // A rule that altered an earlier transmission of the packet does not count.
        match altered.filter(|(n, _)| sent.is_none_or(|sent| sent < *n)) {
            Some((n, entry)) => {
                if let What::Fired { rule, .. } = entry.what {
                    out.push(format!(
                        "{} had its hand in that packet, {}: the peer did not send it so.",
                        capital(&self.facts.rule(rule)),
                        self.facts.moment(n)
                    ));
                }
            }
            None => self.asker(&p, out),
        }
    }

    /// True if a rule alters packets, or if its action is not known.
    fn alters(&self, rule: u16) -> bool {
        let rule = self.facts.rules.get(usize::from(rule));
        let alters = |rule: &Rule| matches!(rule.action, Action::Corrupt(_));
        rule.and_then(Option::as_ref).is_none_or(alters)
    }

    /// Returns the index of the send that failed at the peer after the error.
    fn failed_at(&self, peer: u32) -> Option<u32> {
        let flush = WcStatus::WrFlushErr.to_raw();
        let life = self.facts.all().iter().skip(self.at);
        let mut life = life
            .map(|entry| entry.what)
            .take_while(|what| !matches!(what, What::Created { qpn, .. } if *qpn == peer));
        life.find_map(|what| match what {
            What::Completed {
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
    fn sent(&self, request: &Packet) -> Option<(usize, &Entry)> {
        self.says(|what| matches!(what, What::Sent(p) if p.qpn == request.peer && covers(p, request.psn) && is_request(p)))
    }

    /// Appends the work request of the peer from which the request came.
    fn asker(&self, request: &Packet, out: &mut Vec<String>) {
        let Some((sent, _)) = self.sent(request) else {
            return;
        };
        // Later work requests may have begun before the request was sent, so the work request that
        // failed counts, once there is one.
        let refused = self.failed_at(request.peer);
        let mut back = self.facts.before(sent);
        let work = back.find(|(_, entry)| match entry.what {
            What::Work { qpn, index, .. } => {
                qpn == request.peer && refused.is_none_or(|refused| refused == index)
            }
            _ => false,
        });
        if let Some((
            n,
            Entry {
                what:
                    What::Work {
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
                Name(request.peer),
                work_name(*opcode),
                self.facts.moment(n)
            ));
        }
    }
}

/// Returns `once` or the number of times.
pub(super) fn times(count: usize) -> String {
    match count {
        1 => String::from("once"),
        n => format!("{n} times"),
    }
}

pub(super) fn capital(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|c| c.to_uppercase().collect::<String>());
    first.unwrap_or_default() + chars.as_str()
}
