// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Explains in sentences why a QP is in its state: the event, the check that found the error, the
//! cause, and what a program does next.

mod advice;
mod cause;
mod errors;
mod peer;
mod quiet;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use advice::clause;
pub use errors::{errors, Errors, Failure};
pub use quiet::quiet;

use crate::entry::{Entry, What};
use crate::facts::{state_name, Facts, Name, QpNow};
use crate::psn_text;
use verbena_abi::ctx::QpState;
use verbena_abi::eqe::EventType;
use verbena_abi::syndrome::Syndrome;
use verbena_faults::Action;

/// Most QPs in a chain: the QP and its peer.
const DEPTH: u32 = 2;

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
pub fn why(facts: &Facts, qpn: u32) -> Result<Vec<String>, String> {
    let Some(qp) = facts.qp(qpn) else {
        let last = match (facts.all().is_empty(), facts.recording.first) {
            (true, _) => String::new(),
            (_, 0) => String::from(", and nothing of it was recorded"),
            (_, first) => format!(
                ", and nothing of it is recorded since entry {first}; older entries are overwritten"
            ),
        };
        return Err(format!("there is no queue pair {qpn:#x}{last}"));
    };
    let mut out = Vec::new();
    tell(facts, &qp, DEPTH, &mut out);
    let dead = facts
        .all()
        .iter()
        .rev()
        .take_while(|entry| entry.what != What::Reset)
        .find_map(|entry| match entry.what {
            What::Event { kind, syndrome, .. } if kind == EventType::DeviceFatal.to_raw() => {
                Some(syndrome)
            }
            _ => None,
        });
    if let Some(cause) = dead {
        let text = Syndrome::from_raw(cause).map_or_else(String::new, syndrome_text);
        out.push(format!("The device itself is dead: {text}"));
        out.push(advice::of_a_dead_device().into());
    } else if let Some(advice) = advice::advice(qp.state, qp.syndrome) {
        out.push(format!("What to do: {advice}"));
    }
    if facts.all().is_empty() {
        out.push(String::from(
            "Nothing was recorded, so this is all that the queue pair itself knows; verbenactl record on, and the next time there is more.",
        ));
    }
    Ok(out)
}

/// Returns the object that the event at index `at` put into error, and the lines about the cause.
/// None for an entry that is not a fatal event of the device, a CQ or an SRQ.
pub(crate) fn why_event(facts: &Facts, at: usize) -> Option<(String, Vec<String>)> {
    let What::Event {
        kind,
        number,
        syndrome,
    } = facts.all().get(at)?.what
    else {
        return None;
    };
    let died = match EventType::from_raw(kind)? {
        EventType::DeviceFatal => String::from("the device"),
        EventType::CqErr => format!("CQ {number}"),
        EventType::SrqErr => format!("SRQ {number}"),
        _ => return None,
    };
    let cause = Syndrome::from_raw(syndrome);
    let text = cause.map_or_else(String::new, syndrome_text);
    let died = cause::capital(&died);
    let mut out = vec![format!("{died} died, {}: {text}", facts.moment(at))];
    if matches!(cause, Some(Syndrome::Injected | Syndrome::CqOverflow)) {
        // A CQ may overflow without a rule, so another rule is not the cause of that.
        let is_it = |rule| {
            cause == Some(Syndrome::Injected)
                || matches!(facts.action(rule), Some(Action::CqOverflow(_)))
        };
        let fired = facts.before(at).find_map(|(n, entry)| match entry.what {
            What::Fired { rule, .. } if is_it(rule) => Some((n, rule)),
            _ => None,
        });
        if let Some((n, rule)) = fired {
            let rule = cause::capital(&facts.rule(rule));
            out.push(format!("{rule} fired last before it, {}.", facts.moment(n)));
        }
    }
    if kind == EventType::DeviceFatal.to_raw() {
        out.push(advice::of_a_dead_device().into());
    }
    Some((died, out))
}

/// Appends the state of a QP, and its chain if the QP is in error.
fn tell(facts: &Facts, qp: &QpNow, depth: u32, out: &mut Vec<String>) {
    let name = Name(qp.qpn);
    let life = facts.life(qp.qpn);
    let is_its = |entry: &Entry| match entry.what {
        What::State { qpn, to, .. } => qpn == qp.qpn && to == qp.state.to_raw(),
        _ => false,
    };
    let since = facts
        .all()
        .iter()
        .rposition(is_its)
        .filter(|at| *at >= life);
    let when = since.map_or_else(String::new, |at| format!(", {}", facts.moment(at)));
    let state = state_name(qp.state.to_raw());
    match end(facts, qp.qpn, life) {
        Some((at, What::Destroyed { .. })) => {
            let moment = facts.moment(at);
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
            cause::chain(facts, qp, syndrome, since.unwrap_or(usize::MAX), depth, out);
        }
        (QpState::Err | QpState::Sqe, None) => {
            out.push(format!("{name} is in {state}{when}, and says of no cause."));
        }
        _ => healthy(facts, qp, life, &state, &when, out),
    }
}

/// Returns the entry that ended the life of a QP that does not exist any more, and its index.
fn end(facts: &Facts, qpn: u32, life: usize) -> Option<(usize, What)> {
    if facts.qps.iter().any(|qp| qp.qpn == qpn) {
        return None;
    }
    let rest = facts.all().get(life + 1..).unwrap_or_default();
    let mut ends = (life + 1..).zip(rest.iter().map(|entry| entry.what));
    ends.find(|(_, what)| match *what {
        What::Destroyed { qpn: n, .. } => n == qpn,
        What::Reset => true,
        _ => false,
    })
}

/// Reports a QP without an error, and its oldest unacknowledged request if there is one.
fn healthy(facts: &Facts, qp: &QpNow, life: usize, state: &str, when: &str, out: &mut Vec<String>) {
    let name = Name(qp.qpn);
    out.push(format!("{name} is in {state}{when}: that is no error."));
    let [next, una, _] = qp.psns;
    let is_live = facts.qps.iter().any(|now| now.qpn == qp.qpn);
    if is_live && next != una && qp.state == QpState::Rts {
        let sent = cause::times_sent(facts, qp.qpn, una, life, usize::MAX);
        let sent = match sent {
            0 => String::new(),
            n => format!(" It was sent {}.", cause::times(n)),
        };
        out.push(format!(
            "It waits for the acknowledgement of {}; what it sends next has {}.{sent}",
            psn_text(una),
            psn_text(next)
        ));
    }
    let fired = cause::firings(facts, qp.qpn, life, usize::MAX);
    if !fired.is_empty() {
        out.push(format!(
            "What rules did to it was repaired: {}.",
            fired.join("; ")
        ));
    }
}
