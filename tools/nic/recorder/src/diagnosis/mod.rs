// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Explains in sentences why a QP is in its state: the event, the check that found the error, the
//! cause, and what a program does next.

mod advice;
mod cause;
mod errors;
mod observations;
mod peer;
mod rules;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use advice::clause;
pub use errors::{list_errors, ErrorList, RecordedError};
pub use observations::observations;

use crate::device_history::{state_name, DeviceHistory, QpName, QpSnapshot};
use crate::entry::{EntryKind, FlightEntry};
use crate::psn_text;
use verbena_abi::ctx::QpState;
use verbena_abi::eqe::EventType;
use verbena_abi::syndrome::Syndrome;
use verbena_faults::Action;

/// Most QPs in a chain: the QP and its peer.
const MAX_CHAIN_QPS: u32 = 2;

/// Returns a syndrome with its text from the contract, and the clause of the specification if there
/// is one.
pub fn syndrome_text(cause: Syndrome) -> String {
    let clause = advice::clause(cause).map_or_else(String::new, |c| format!(" [IBTA {c}]"));
    format!(
        "{} ({:#06x}): {}{clause}",
        cause.name(),
        cause.to_raw(),
        cause.explain().trim()
    )
}

/// Explains the state of a QP, with one or two sentences in each line.
///
/// # Errors
///
/// Nothing is known about a QP with this number.
pub fn diagnose_qp(history: &DeviceHistory, qpn: u32) -> Result<Vec<String>, String> {
    let Some(qp) = history.qp(qpn) else {
        let last = match (history.entries().is_empty(), history.recording.first) {
            (true, _) => String::new(),
            (_, 0) => String::from(", and nothing of it was recorded"),
            (_, first) => format!(
                ", and nothing of it is recorded since entry {first}; older entries are overwritten"
            ),
        };
        return Err(format!("there is no queue pair {qpn:#x}{last}"));
    };
    let mut out = Vec::new();
    describe_qp(history, &qp, MAX_CHAIN_QPS, &mut out);
    let fatal = history
        .entries()
        .iter()
        .rev()
        .take_while(|entry| entry.kind != EntryKind::Reset)
        .find_map(|entry| match entry.kind {
            EntryKind::Event {
                event_type,
                syndrome,
                ..
            } if event_type == EventType::DeviceFatal.to_raw() => Some(syndrome),
            _ => None,
        });
    if let Some(cause) = fatal {
        let text = Syndrome::from_raw(cause).map_or_else(String::new, syndrome_text);
        out.push(format!("The device itself is dead: {text}"));
        out.push(advice::dead_device_advice().into());
    } else if let Some(advice) = advice::qp_advice(qp.state, qp.syndrome) {
        out.push(format!("What to do: {advice}"));
    }
    if history.entries().is_empty() {
        out.push(String::from(
            "Nothing was recorded, so this is all that the queue pair itself knows; verbenactl record on, and the next time there is more.",
        ));
    }
    Ok(out)
}

/// Returns the object that the event at index `at` put into error, and the lines about the cause.
/// None for an entry that is not a fatal event of the device, a CQ or an SRQ.
pub(crate) fn diagnose_event(history: &DeviceHistory, at: usize) -> Option<(String, Vec<String>)> {
    let EntryKind::Event {
        event_type,
        number,
        syndrome,
    } = history.entries().get(at)?.kind
    else {
        return None;
    };
    let object = match EventType::from_raw(event_type)? {
        EventType::DeviceFatal => String::from("the device"),
        EventType::CqErr => format!("CQ {number}"),
        EventType::SrqErr => format!("SRQ {number}"),
        _ => return None,
    };
    let cause = Syndrome::from_raw(syndrome);
    let text = cause.map_or_else(String::new, syndrome_text);
    let object = cause::capitalized(&object);
    let mut out = vec![format!("{object} died, {}: {text}", history.time_text(at))];
    if matches!(cause, Some(Syndrome::Injected | Syndrome::CqOverflow)) {
        // A CQ may overflow without a rule, so another rule is not the cause of that.
        let can_be_cause = |rule| {
            cause == Some(Syndrome::Injected)
                || matches!(history.action(rule), Some(Action::CqOverflow(_)))
        };
        let fired = history
            .entries_before(at)
            .find_map(|(n, entry)| match entry.kind {
                EntryKind::Fired { rule, .. } if can_be_cause(rule) => Some((n, rule)),
                _ => None,
            });
        if let Some((n, rule)) = fired {
            let rule = cause::capitalized(&history.rule_text(rule));
            out.push(format!(
                "{rule} fired last before it, {}.",
                history.time_text(n)
            ));
        }
    }
    if event_type == EventType::DeviceFatal.to_raw() {
        out.push(advice::dead_device_advice().into());
    }
    Some((object, out))
}

/// Appends the state of a QP, and its chain if the QP is in error.
fn describe_qp(history: &DeviceHistory, qp: &QpSnapshot, depth: u32, out: &mut Vec<String>) {
    let name = QpName(qp.qpn);
    let start = history.lifetime_start(qp.qpn);
    let is_its = |entry: &FlightEntry| match entry.kind {
        EntryKind::State { qpn, to, .. } => qpn == qp.qpn && to == qp.state.to_raw(),
        _ => false,
    };
    let since = history
        .entries()
        .iter()
        .rposition(is_its)
        .filter(|at| *at >= start);
    let when = since.map_or_else(String::new, |at| format!(", {}", history.time_text(at)));
    let state = state_name(qp.state.to_raw());
    match end_of_life(history, qp.qpn, start) {
        Some((at, EntryKind::Destroyed { .. })) => {
            let moment = history.time_text(at);
            out.push(format!(
                "{name} was destroyed, {moment}; it was in {state} last{when}."
            ));
        }
        Some(_) => out.push(format!("{name} went with a reset of the device.")),
        None => {}
    }
    match (qp.state, qp.syndrome) {
        (QpState::Err | QpState::Sqe, Some(syndrome)) => {
            out.push(format!(
                "{name} is in {state}{when}: {}",
                syndrome_text(syndrome)
            ));
            cause::append_chain(
                history,
                qp,
                syndrome,
                since.unwrap_or(usize::MAX),
                depth,
                out,
            );
        }
        (QpState::Err | QpState::Sqe, None) => {
            out.push(format!("{name} is in {state}{when}, and says of no cause."));
        }
        _ => describe_healthy_qp(history, qp, start, &state, &when, out),
    }
}

/// Returns the entry that ended the life of a QP that does not exist any more, and its index.
fn end_of_life(history: &DeviceHistory, qpn: u32, start: usize) -> Option<(usize, EntryKind)> {
    if history.qps.iter().any(|qp| qp.qpn == qpn) {
        return None;
    }
    let rest = history.entries().get(start + 1..).unwrap_or_default();
    let mut ends = (start + 1..).zip(rest.iter().map(|entry| entry.kind));
    ends.find(|(_, kind)| match *kind {
        EntryKind::Destroyed { qpn: n, .. } => n == qpn,
        EntryKind::Reset => true,
        _ => false,
    })
}

/// Reports a QP without an error, and its oldest unacknowledged request if there is one.
fn describe_healthy_qp(
    history: &DeviceHistory,
    qp: &QpSnapshot,
    start: usize,
    state: &str,
    when: &str,
    out: &mut Vec<String>,
) {
    let name = QpName(qp.qpn);
    out.push(format!("{name} is in {state}{when}: that is no error."));
    let [next, una, _] = qp.psns;
    let is_live = history.qps.iter().any(|now| now.qpn == qp.qpn);
    if is_live && next != una && qp.state == QpState::Rts {
        let sent = cause::times_sent(history, qp.qpn, una, start, usize::MAX);
        let sent = match sent {
            0 => String::new(),
            n => format!(" It was sent {}.", cause::times_text(n)),
        };
        out.push(format!(
            "It waits for the acknowledgement of {}; what it sends next has {}.{sent}",
            psn_text(una),
            psn_text(next)
        ));
    }
    let fired = rules::firings(history, qp.qpn, start, usize::MAX);
    if !fired.is_empty() {
        out.push(format!(
            "What rules did to it was repaired: {}.",
            fired.join("; ")
        ));
    }
}
