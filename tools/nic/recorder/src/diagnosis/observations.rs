// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Observations about a run that failed, or that had to be ended, without an error.

use crate::device_history::{is_acknowledge, state_name, DeviceHistory, QpName};
use crate::entry::{EntryKind, FlightEntry, PacketEntry};
use crate::psn_text;
use std::collections::{BTreeMap, BTreeSet};
use verbena_abi::cmd::Opcode;
use verbena_abi::cqe::WcStatus;
use verbena_abi::ctx::QpState;
use verbena_abi::eqe::EventType;
use verbena_abi::syndrome::Syndrome;

/// Shortest silence at the end of a recording that is reported, in nanoseconds.
const MIN_SILENCE_NS: u64 = 5_000_000_000;
/// Maximum number of destroyed queue pairs that are listed.
const MAX_DESTROYED_QPS: usize = 16;

/// Returns observations that may explain the failure, the likeliest first. The list is empty if
/// everything recorded is ordinary.
pub fn observations(history: &DeviceHistory) -> Vec<String> {
    let mut out = waiting_for_receive(history);
    out.extend(left_in_sqd(history));
    out.extend(flushed_by_program(history));
    out.extend(first_events(history));
    out.extend(silence_at_end(history));
    out
}

/// Reports the QPs that wait for a receive of their peer, and would wait for ever.
fn waiting_for_receive(history: &DeviceHistory) -> Vec<String> {
    let mut waiting: BTreeMap<u32, (usize, usize, PacketEntry)> = BTreeMap::new();
    for (n, entry) in history.entries().iter().enumerate() {
        match entry.kind {
            EntryKind::Received(p) if is_acknowledge(p.opcode) && p.detail >> 29 == 1 => {
                let known = waiting.entry(p.qpn).or_insert((0, n, p));
                *known = (known.0 + 1, n, p);
            }
            // Any other packet from the peer is progress.
            EntryKind::Received(p) => drop(waiting.remove(&p.qpn)),
            EntryKind::State { qpn, .. } | EntryKind::Destroyed { qpn, .. } => {
                waiting.remove(&qpn);
            }
            _ => {}
        }
    }
    let each = waiting.into_iter().map(|(qpn, (count, at, nak))| {
        format!(
            "{} got {count} RNR NAKs from {} without an answer between, the last for {}, {}: there is no receive for it, and rnr_retry 7 \
             waits for ever",
            QpName(qpn),
            QpName(nak.peer),
            psn_text(nak.psn),
            history.time_text(at)
        )
    });
    each.collect()
}

/// Reports the QPs that are in SQD at the end or were destroyed in SQD, where a QP begins no work
/// request.
fn left_in_sqd(history: &DeviceHistory) -> Vec<String> {
    let mut paused: BTreeMap<u32, (usize, &str)> = BTreeMap::new();
    for (n, entry) in history.entries().iter().enumerate() {
        match entry.kind {
            EntryKind::State { qpn, to, .. } if to == QpState::Sqd.to_raw() => {
                paused.insert(qpn, (n, "is still there"));
            }
            EntryKind::State { qpn, .. } | EntryKind::Created { qpn, .. } => {
                paused.remove(&qpn);
            }
            EntryKind::Destroyed { qpn, .. } => {
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
            QpName(qpn),
            history.time_text(at)
        )
    });
    each.collect()
}

/// Reports the QPs whose work requests were flushed because a program, or the end of a connection,
/// moved them to ERR.
fn flushed_by_program(history: &DeviceHistory) -> Vec<String> {
    let mut out = Vec::new();
    for (n, entry) in history.entries().iter().enumerate() {
        let EntryKind::State { qpn, syndrome, .. } = entry.kind else {
            continue;
        };
        if syndrome != Syndrome::ModifiedToErr.to_raw() {
            continue;
        }
        let rest = history.entries().get(n + 1..).unwrap_or_default();
        let life = rest.iter().take_while(|entry| {
            !matches!(entry.kind, EntryKind::State { qpn: q, .. } | EntryKind::Created { qpn: q, .. } if q == qpn)
        });
        let flush = WcStatus::WrFlushErr;
        let is_flushed = |entry: &&FlightEntry| matches!(entry.kind, EntryKind::Completed { qpn: q, status, .. } if q == qpn && status == flush.to_raw());
        let count = life.filter(is_flushed).count();
        if count > 0 {
            out.push(format!(
                "{} was moved to ERR (ibv_modify_qp, rdma_disconnect, or a process that ended), {}, and {count} of its work requests \
                 completed with {}",
                QpName(qpn),
                history.time_text(n),
                flush.verbs_name()
            ));
        }
    }
    out
}

/// Reports the first event of each type.
fn first_events(history: &DeviceHistory) -> Vec<String> {
    let mut known = BTreeSet::new();
    let mut out = Vec::new();
    for (n, entry) in history.entries().iter().enumerate() {
        let EntryKind::Event {
            event_type, number, ..
        } = entry.kind
        else {
            continue;
        };
        let Some(event) = EventType::from_raw(event_type).filter(|e| *e != EventType::Completion)
        else {
            continue;
        };
        if known.insert(event_type) {
            let name = event.verbs_name();
            let of = match event {
                EventType::SrqLimitReached => format!("SRQ {number}"),
                _ => QpName(number).to_string(),
            };
            out.push(format!("event {name} of {of}, {}", history.time_text(n)));
        }
    }
    out
}

/// Reports the length of the silence at the end of the recording, if it is above
/// [`MIN_SILENCE_NS`].
fn silence_at_end(history: &DeviceHistory) -> Option<String> {
    let last = history
        .entries()
        .iter()
        .rev()
        .find(|entry| match entry.kind {
            // A guest that ends resets the device.
            EntryKind::Reset => false,
            // The driver asks for the device's limits every second, to see that the device answers.
            EntryKind::Command { opcode, .. } => opcode != Opcode::QueryDevice.to_raw(),
            _ => true,
        })?;
    let since = history.recording.taken_ns.saturating_sub(last.time_ns);
    (since > MIN_SILENCE_NS)
        .then(|| format!("in the last {:.1} s nothing happened", since as f64 / 1e9))
}

/// Returns observations of a device without an error that may explain an error of a peer on another
/// device: queue pairs that stopped answering, and a port that went down.
pub(super) fn peer_observations(history: &DeviceHistory) -> Vec<String> {
    let mut out = waiting_for_receive(history);
    out.extend(left_in_sqd(history));
    out.extend(destroyed_while_answering(history));
    out.extend(port_down(history));
    out
}

/// Returns the connected queue pairs that were destroyed in a state in which they answer requests.
fn destroyed_while_answering(history: &DeviceHistory) -> Vec<String> {
    let mut alive: BTreeMap<u32, (u8, u32)> = BTreeMap::new();
    let mut out = Vec::new();
    for (n, entry) in history.entries().iter().enumerate() {
        match entry.kind {
            EntryKind::State { qpn, to, peer, .. } => {
                alive.insert(qpn, (to, peer));
            }
            EntryKind::Destroyed { qpn, .. } => {
                let Some((state, peer)) = alive.remove(&qpn) else {
                    continue;
                };
                let answers = [QpState::Rtr, QpState::Rts, QpState::Sqd];
                if peer != 0 && answers.iter().any(|s| s.to_raw() == state) {
                    out.push(format!(
                        "{} was destroyed, {}, in {}: its peer {} got no answer after that",
                        QpName(qpn),
                        history.time_text(n),
                        state_name(state),
                        QpName(peer)
                    ));
                }
            }
            _ => {}
        }
    }
    out.truncate(MAX_DESTROYED_QPS);
    out
}

/// Returns the moment at which the port last went down.
fn port_down(history: &DeviceHistory) -> Option<String> {
    let is_down = |entry: &FlightEntry| {
        matches!(
            entry.kind,
            EntryKind::Command {
                status: 0,
                port_up: Some(false),
                ..
            }
        )
    };
    let last = history.entries().iter().rposition(is_down)?;
    Some(format!(
        "The net device went down (command SET_PORT), {}",
        history.time_text(last)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::errors::tests::{completed, history};
    use crate::diagnosis::tests::{created, has, packet, state};

    const RNR: u32 = 0x2c << 24;
    const ACK: u32 = 0x0f << 24;

    #[test]
    fn a_queue_pair_that_waits_for_a_receive_for_ever_is_reported() {
        let nak = EntryKind::Received(packet(1, 2, 0x11, 7, RNR));
        let mut kinds = vec![created(1), state(1, 2, QpState::Rts, None), nak, nak];
        let text = observations(&history(kinds.clone()));
        let [text] = text.as_slice() else {
            panic!("{text:?}");
        };
        assert!(
            text.starts_with("QP 0x1 got 2 RNR NAKs from QP 0x2"),
            "{text}"
        );
        has(text, &["PSN 0x000007, at 0.000000 s (entry 3)"]);
        kinds.push(EntryKind::Received(packet(1, 2, 0x11, 7, ACK)));
        assert!(observations(&history(kinds)).is_empty());
    }

    #[test]
    fn a_queue_pair_that_stays_in_sqd_is_reported() {
        let paused = state(3, 4, QpState::Sqd, None);
        let kinds = vec![created(3), state(3, 4, QpState::Rts, None), paused];
        let text = observations(&history(kinds.clone())).join("; ");
        assert!(
            text.starts_with(
                "QP 0x3 was moved to SQD, at 0.000000 s (entry 2), and is still there"
            ),
            "{text}"
        );
        let then = |kind| [kinds.as_slice(), &[kind]].concat();
        let text =
            observations(&history(then(EntryKind::Destroyed { qpn: 3, owner: 0 }))).join("; ");
        assert!(
            text.contains("and was until it was destroyed: a queue pair begins no"),
            "{text}"
        );
        for end in [state(3, 4, QpState::Rts, None), created(3)] {
            assert!(observations(&history(then(end))).is_empty());
        }
    }

    #[test]
    fn flushes_by_the_program_itself_are_reported() {
        let moved = state(3, 4, QpState::Err, Some(Syndrome::ModifiedToErr));
        let mut kinds = vec![created(3), moved];
        assert!(observations(&history(kinds.clone())).is_empty());
        let flushed = completed(3, WcStatus::WrFlushErr, Syndrome::Flushed);
        kinds.extend([flushed, flushed]);
        let text = observations(&history(kinds)).join("; ");
        assert!(
            text.starts_with("QP 0x3 was moved to ERR (ibv_modify_qp,"),
            "{text}"
        );
        assert!(
            text.ends_with("2 of its work requests completed with IBV_WC_WR_FLUSH_ERR"),
            "{text}"
        );
    }

    #[test]
    fn observations_of_a_peer_name_why_it_stopped_answering() {
        let down = EntryKind::Command {
            opcode: Opcode::SetPort.to_raw(),
            status: 0,
            syndrome: 0,
            port_up: Some(false),
        };
        let destroyed = EntryKind::Destroyed { qpn: 3, owner: 0 };
        let kinds = vec![created(3), state(3, 4, QpState::Rts, None), down, destroyed];
        let text = crate::diagnosis::list_errors(&history(kinds)).lines();
        assert_eq!(
            text,
            [
                "No error.",
                "QP 0x3 was destroyed, at 0.000000 s (entry 3), in RTS: its peer QP 0x4 got no answer after that.",
                "The net device went down (command SET_PORT), at 0.000000 s (entry 2)."
            ]
        );
    }

    #[test]
    fn events_and_silence_at_the_end_are_reported() {
        let event = |kind: EventType, number| EntryKind::Event {
            event_type: kind.to_raw(),
            number,
            syndrome: 0,
        };
        let limit = event(EventType::SrqLimitReached, 4);
        let mut history = history(vec![
            event(EventType::Completion, 1),
            limit,
            event(EventType::CommEst, 5),
            limit,
        ]);
        history.recording.taken_ns = 7_500_000_003;
        let query = EntryKind::Command {
            opcode: Opcode::QueryDevice.to_raw(),
            status: 0,
            syndrome: 0,
            port_up: None,
        };
        let late = [(7_400_000_000, query), (7_500_000_000, EntryKind::Reset)];
        let late = late.map(|(time_ns, kind)| FlightEntry { time_ns, kind });
        history.recording.entries.extend(late);
        assert_eq!(
            observations(&history),
            [
                "event IBV_EVENT_SRQ_LIMIT_REACHED of SRQ 4, at 0.000000 s (entry 1)",
                "event IBV_EVENT_COMM_EST of QP 0x5, at 0.000000 s (entry 2)",
                "in the last 7.5 s nothing happened"
            ]
        );
    }
}
