// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Observations about a run that failed, or that had to be ended, without an error.

use crate::entry::{Entry, Packet, What};
use crate::facts::{is_acknowledge, state_name, Facts, Name};
use crate::psn_text;
use std::collections::{BTreeMap, BTreeSet};
use verbena_abi::cmd::Opcode;
use verbena_abi::cqe::WcStatus;
use verbena_abi::ctx::QpState;
use verbena_abi::eqe::EventType;
use verbena_abi::syndrome::Syndrome;

/// Shortest silence at the end of a recording that is reported, in nanoseconds.
const QUIET: u64 = 5_000_000_000;
/// Maximum number of destroyed queue pairs that are listed.
const NOTES: usize = 16;

/// Returns observations that may explain the failure, the likeliest first. The list is empty if
/// everything recorded is ordinary.
pub fn quiet(facts: &Facts) -> Vec<String> {
    let mut out = not_ready(facts);
    out.extend(paused(facts));
    out.extend(moved(facts));
    out.extend(events(facts));
    out.extend(idle(facts));
    out
}

/// Reports the QPs that wait for a receive of their peer, and would wait for ever.
fn not_ready(facts: &Facts) -> Vec<String> {
    let mut waiting: BTreeMap<u32, (usize, usize, Packet)> = BTreeMap::new();
    for (n, entry) in facts.all().iter().enumerate() {
        match entry.what {
            What::Received(p) if is_acknowledge(p.opcode) && p.detail >> 29 == 1 => {
                let known = waiting.entry(p.qpn).or_insert((0, n, p));
                *known = (known.0 + 1, n, p);
            }
            // Any other packet from the peer is progress.
            What::Received(p) => drop(waiting.remove(&p.qpn)),
            What::State { qpn, .. } | What::Destroyed { qpn, .. } => drop(waiting.remove(&qpn)),
            _ => {}
        }
    }
    let each = waiting.into_iter().map(|(qpn, (count, at, nak))| {
        format!(
            "{} got {count} RNR NAKs from {} without an answer between, the last for {}, {}: there is no receive for it, and rnr_retry 7 \
             waits for ever",
            Name(qpn),
            Name(nak.peer),
            psn_text(nak.psn),
            facts.moment(at)
        )
    });
    each.collect()
}

/// Reports the QPs that are in SQD at the end or were destroyed in SQD, where a QP begins no work
/// request.
fn paused(facts: &Facts) -> Vec<String> {
    let mut paused: BTreeMap<u32, (usize, &str)> = BTreeMap::new();
    for (n, entry) in facts.all().iter().enumerate() {
        match entry.what {
            What::State { qpn, to, .. } if to == QpState::Sqd.to_raw() => {
                paused.insert(qpn, (n, "is still there"));
            }
            What::State { qpn, .. } | What::Created { qpn, .. } => {
                paused.remove(&qpn);
            }
            What::Destroyed { qpn, .. } => {
                if let Some((_, end)) = paused.get_mut(&qpn) {
                    *end = "was until it was destroyed";
                }
            }
            _ => {}
        }
    }
    let each = paused.into_iter().map(|(qpn, (at, end))| {
        format!(
            "{} was moved to SQD, {}, and {end}: a queue pair begins no work request there until ibv_modify_qp moves it to RTS",
            Name(qpn),
            facts.moment(at)
        )
    });
    each.collect()
}

/// Reports the QPs whose work requests were flushed because a program, or the end of a connection,
/// moved them to ERR.
fn moved(facts: &Facts) -> Vec<String> {
    let mut out = Vec::new();
    for (n, entry) in facts.all().iter().enumerate() {
        let What::State { qpn, syndrome, .. } = entry.what else {
            continue;
        };
        if syndrome != Syndrome::ModifiedToErr.to_raw() {
            continue;
        }
        let rest = facts.all().get(n + 1..).unwrap_or_default();
        let life = rest.iter().take_while(|entry| {
            !matches!(entry.what, What::State { qpn: q, .. } | What::Created { qpn: q, .. } if q == qpn)
        });
        let flush = WcStatus::WrFlushErr;
        let is_flushed = |entry: &&Entry| matches!(entry.what, What::Completed { qpn: q, status, .. } if q == qpn && status == flush.to_raw());
        let count = life.filter(is_flushed).count();
        if count > 0 {
            out.push(format!(
                "{} was moved to ERR (ibv_modify_qp, rdma_disconnect, or a process that ended), {}, and {count} of its work requests \
                 completed with {}",
                Name(qpn),
                facts.moment(n),
                flush.verbs_name()
            ));
        }
    }
    out
}

/// Reports the first event of each type.
fn events(facts: &Facts) -> Vec<String> {
    let mut known = BTreeSet::new();
    let mut out = Vec::new();
    for (n, entry) in facts.all().iter().enumerate() {
        let What::Event { kind, number, .. } = entry.what else {
            continue;
        };
        let Some(event) = EventType::from_raw(kind).filter(|e| *e != EventType::Completion) else {
            continue;
        };
        if known.insert(kind) {
            let name = event.verbs_name();
            let of = match event {
                EventType::SrqLimitReached => format!("SRQ {number}"),
                _ => Name(number).to_string(),
            };
            out.push(format!("event {name} of {of}, {}", facts.moment(n)));
        }
    }
    out
}

/// Reports the length of the silence at the end of the recording, if it is above [`QUIET`].
fn idle(facts: &Facts) -> Option<String> {
    let last = facts.all().iter().rev().find(|entry| match entry.what {
        // A guest that ends resets the device.
        What::Reset => false,
        // The driver asks for the device's limits every second, to see that the device answers.
        What::Command { opcode, .. } => opcode != Opcode::QueryDevice.to_raw(),
        _ => true,
    })?;
    let since = facts.recording.taken.saturating_sub(last.time);
    (since > QUIET).then(|| format!("in the last {:.1} s nothing happened", since as f64 / 1e9))
}

/// Returns observations of a device without an error that may explain an error of a peer on another
/// device: queue pairs that stopped answering, and a port that went down.
pub(super) fn notes(facts: &Facts) -> Vec<String> {
    let mut out = not_ready(facts);
    out.extend(paused(facts));
    out.extend(destroyed(facts));
    out.extend(port_down(facts));
    out
}

/// Returns the connected queue pairs that were destroyed in a state in which they answer requests.
fn destroyed(facts: &Facts) -> Vec<String> {
    let mut alive: BTreeMap<u32, (u8, u32)> = BTreeMap::new();
    let mut out = Vec::new();
    for (n, entry) in facts.all().iter().enumerate() {
        match entry.what {
            What::State { qpn, to, peer, .. } => {
                alive.insert(qpn, (to, peer));
            }
            What::Destroyed { qpn, .. } => {
                let Some((state, peer)) = alive.remove(&qpn) else {
                    continue;
                };
                let answers = [QpState::Rtr, QpState::Rts, QpState::Sqd];
                if peer != 0 && answers.iter().any(|s| s.to_raw() == state) {
                    out.push(format!(
                        "{} was destroyed, {}, in {}: its peer {} got no answer after that",
                        Name(qpn),
                        facts.moment(n),
                        state_name(state),
                        Name(peer)
                    ));
                }
            }
            _ => {}
        }
    }
    out.truncate(NOTES);
    out
}

/// Returns the moment at which the port last went down.
fn port_down(facts: &Facts) -> Option<String> {
    let is_down = |entry: &Entry| {
        matches!(
            entry.what,
            What::Command {
                status: 0,
                port_up: Some(false),
                ..
            }
        )
    };
    let last = facts.all().iter().rposition(is_down)?;
    Some(format!(
        "The net device went down (command SET_PORT), {}",
        facts.moment(last)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::why::errors::tests::{completed, facts};
    use crate::why::tests::{created, has, packet, state};

    const RNR: u32 = 0x2c << 24;
    const ACK: u32 = 0x0f << 24;

    #[test]
    fn a_queue_pair_that_waits_for_a_receive_for_ever_is_reported() {
        let nak = What::Received(packet(1, 2, 0x11, 7, RNR));
        let mut whats = vec![created(1), state(1, 2, QpState::Rts, None), nak, nak];
        let told = quiet(&facts(whats.clone()));
        let [told] = told.as_slice() else {
            panic!("{told:?}");
        };
        assert!(
            told.starts_with("QP 0x1 got 2 RNR NAKs from QP 0x2"),
            "{told}"
        );
        has(told, &["PSN 0x000007, at 0.000000 s (entry 3)"]);
        whats.push(What::Received(packet(1, 2, 0x11, 7, ACK)));
        assert!(quiet(&facts(whats)).is_empty());
    }

    #[test]
    fn a_queue_pair_that_stays_in_sqd_is_reported() {
        let paused = state(3, 4, QpState::Sqd, None);
        let whats = vec![created(3), state(3, 4, QpState::Rts, None), paused];
        let told = quiet(&facts(whats.clone())).join("; ");
        assert!(
            told.starts_with(
                "QP 0x3 was moved to SQD, at 0.000000 s (entry 2), and is still there"
            ),
            "{told}"
        );
        let then = |what| [whats.as_slice(), &[what]].concat();
        let told = quiet(&facts(then(What::Destroyed { qpn: 3, owner: 0 }))).join("; ");
        assert!(
            told.contains("and was until it was destroyed: a queue pair begins no"),
            "{told}"
        );
        for end in [state(3, 4, QpState::Rts, None), created(3)] {
            assert!(quiet(&facts(then(end))).is_empty());
        }
    }

    #[test]
    fn flushes_by_the_program_itself_are_reported() {
        let moved = state(3, 4, QpState::Err, Some(Syndrome::ModifiedToErr));
        let mut whats = vec![created(3), moved];
        assert!(quiet(&facts(whats.clone())).is_empty());
        let flushed = completed(3, WcStatus::WrFlushErr, Syndrome::Flushed);
        whats.extend([flushed, flushed]);
        let told = quiet(&facts(whats)).join("; ");
        assert!(
            told.starts_with("QP 0x3 was moved to ERR (ibv_modify_qp,"),
            "{told}"
        );
        assert!(
            told.ends_with("2 of its work requests completed with IBV_WC_WR_FLUSH_ERR"),
            "{told}"
        );
    }

    #[test]
    fn a_device_without_an_error_says_why_it_stopped_answering() {
        let down = What::Command {
            opcode: Opcode::SetPort.to_raw(),
            status: 0,
            syndrome: 0,
            port_up: Some(false),
        };
        let gone = What::Destroyed { qpn: 3, owner: 0 };
        let whats = vec![created(3), state(3, 4, QpState::Rts, None), down, gone];
        let told = crate::why::errors::errors(&facts(whats)).lines();
        assert_eq!(
            told,
            [
                "No error.",
                "QP 0x3 was destroyed, at 0.000000 s (entry 3), in RTS: its peer QP 0x4 got no answer after that.",
                "The net device went down (command SET_PORT), at 0.000000 s (entry 2)."
            ]
        );
    }

    #[test]
    fn events_and_a_silence_are_reported() {
        let event = |kind: EventType, number| What::Event {
            kind: kind.to_raw(),
            number,
            syndrome: 0,
        };
        let limit = event(EventType::SrqLimitReached, 4);
        let mut facts = facts(vec![
            event(EventType::Completion, 1),
            limit,
            event(EventType::CommEst, 5),
            limit,
        ]);
        facts.recording.taken = 7_500_000_003;
        let pulse = What::Command {
            opcode: Opcode::QueryDevice.to_raw(),
            status: 0,
            syndrome: 0,
            port_up: None,
        };
        let late = [(7_400_000_000, pulse), (7_500_000_000, What::Reset)];
        let late = late.map(|(time, what)| Entry { time, what });
        facts.recording.entries.extend(late);
        assert_eq!(
            quiet(&facts),
            [
                "event IBV_EVENT_SRQ_LIMIT_REACHED of SRQ 4, at 0.000000 s (entry 1)",
                "event IBV_EVENT_COMM_EST of QP 0x5, at 0.000000 s (entry 2)",
                "in the last 7.5 s nothing happened"
            ]
        );
    }
}
