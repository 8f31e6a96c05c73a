// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Lists every error of a recording in order, each as it was at its time. This includes errors of
//! QPs that no longer exist.

use super::cause::times_text;
use super::observations::peer_observations;
use super::{diagnose_event, diagnose_qp, peer, rules, syndrome_text};
use crate::device_history::{is_error, DeviceHistory, QpName};
use crate::entry::EntryKind;
use crate::report::history_at_error;
use std::collections::HashSet;
use verbena_abi::cmd::CmdStatus;
use verbena_abi::cqe::WcStatus;
use verbena_abi::syndrome::Syndrome;

/// Most errors that are listed with their chains.
const MAX_LISTED: usize = 64;

/// One error of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedError {
    /// The QP, the CQ, the SRQ, the device or the command that failed.
    pub object: String,
    /// Number of the entry. None if the moment of the error was not recorded.
    pub entry: Option<u64>,
    /// True if a later ibv_modify_qp took the QP out of its error state, or if the error changed no
    /// state.
    pub is_repaired: bool,
    /// The error, then the chain back to the cause, then the advice for the program.
    pub lines: Vec<String>,
}

/// All errors of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorList {
    /// The first 64 errors, in order; those whose moment was not recorded are last.
    pub errors: Vec<RecordedError>,
    /// Number of errors that are not in the list.
    pub left_out: usize,
    /// The queue pairs that programs moved to ERR themselves, which is no error.
    pub moved_by_program: Vec<String>,
    /// Without an error: observations that may explain an error of a peer.
    pub notes: Vec<String>,
    /// Number of the first entry, and number of entries.
    pub recorded: (u64, usize),
}

impl ErrorList {
    /// Returns the errors as lines of text.
    pub fn lines(&self) -> Vec<String> {
        let mut out = Vec::new();
        let count = self.errors.len() + self.left_out;
        match count {
            0 => {
                out.push(String::from("No error."));
                out.extend(self.notes.iter().map(|note| format!("{note}.")));
            }
            1 => {}
            n => out.push(format!("{n} errors, in order:\n")),
        }
        for (n, error) in (1..).zip(&self.errors) {
            let number = if count > 1 {
                format!("{n}. ")
            } else {
                String::new()
            };
            out.push(format!("{number}{}", error.lines.join("\n   ")));
        }
        if self.left_out > 0 {
            out.push(format!("{} more are not told here.", self.left_out));
        }
        if !self.moved_by_program.is_empty() {
            let who = self.moved_by_program.join(", ");
            out.push(format!(
                "Programs moved queue pairs to ERR themselves (ibv_modify_qp, rdma_disconnect, or \
                 a process that ended), which is no error: {who}."
            ));
        }
        match self.recorded {
            (_, 0) => out.push(String::from(
                "Nothing was recorded, so this is how the objects are now: verbenactl record on, \
                 and the next time there is more.",
            )),
            (0, _) => {}
            (first, _) => out.push(format!(
                "The recording begins with entry {first}; what was before it is overwritten \
                 (verbenactl record on ENTRIES keeps more)."
            )),
        }
        out
    }

    /// Returns the first error that was not repaired.
    pub fn first_unrepaired(&self) -> Option<&RecordedError> {
        self.errors.iter().find(|error| !error.is_repaired)
    }

    /// Returns a line about one error: the event, the status that the program got, and a reason
    /// outside of the QP. The line ends with the next error and the number of further errors.
    pub fn summary(&self, error: &RecordedError) -> String {
        let lines = &error.lines;
        let mut text = lines.first().cloned().unwrap_or_default();
        if let Some(status) = error.status() {
            // For a QP that goes on, the first line has the status already.
            if !text.contains(status) {
                text += &format!(" {status}.");
            }
        }
        // Users rarely expect a rule as the cause, so a rule takes precedence over the peer.
        let rule = lines
            .iter()
            .find(|line| line.contains("ule \"") || line.starts_with("Rules at "));
        if let Some(reason) = rule.or_else(|| peer::external_reason(lines)) {
            text += &format!(" {reason}");
        }
        // If a responder found the error, the next error is often that of the requester, whose
        // program gets the status.
        let next = self
            .errors
            .iter()
            .skip_while(|other| *other != error)
            .nth(1)
            .map_or_else(String::new, RecordedError::short_text);
        match (self.errors.len() + self.left_out).saturating_sub(1) {
            0 => text,
            1 if !next.is_empty() => format!("{text} There is one more error: {next}."),
            1 => text + " There is one more error.",
            n if !next.is_empty() => format!("{text} There are {n} more errors, next {next}."),
            n => format!("{text} There are {n} more errors."),
        }
    }
}

impl RecordedError {
    /// Returns the part of a line that names the completion in error and its status, if there is
    /// one.
    fn status(&self) -> Option<&str> {
        let is_completion = |line: &&String| line.contains(" completed with IBV_WC_");
        let line = self.lines.iter().find(is_completion)?;
        Some(line.split_once(" in CQ")?.0)
    }

    /// Returns the failed object, and the name of its status.
    fn short_text(&self) -> String {
        let name = self.status().and_then(|status| status.rsplit(' ').next());
        name.map_or_else(
            || self.object.clone(),
            |name| format!("{}, {name}", self.object),
        )
    }

    /// True if the device of the peer found the error and reported it with a NAK.
    pub fn is_reported_by_remote_device(&self) -> bool {
        let has = |part: &str| self.lines.iter().any(|line| line.contains(part));
        has("It received a NAK") && has(" is of another device")
    }
}

/// Returns a command that the device refused. A command that only had to be repeated is not an
/// error.
fn refused_command(history: &DeviceHistory, at: usize) -> Option<RecordedError> {
    let EntryKind::Command {
        opcode,
        status,
        syndrome,
        ..
    } = history.entries().get(at)?.kind
    else {
        return None;
    };
    let status = CmdStatus::from_raw(status.into())?;
    if matches!(status, CmdStatus::Ok | CmdStatus::Busy) {
        return None;
    }
    let name = verbena_faults::command_name(opcode);
    let name = name.unwrap_or_else(|| format!("{opcode:#04x}"));
    let cause = Syndrome::from_raw(syndrome).map_or_else(String::new, syndrome_text);
    let lines = vec![format!(
        "The device refused the command {name} ({}), {}: {cause}",
        status.name(),
        history.time_text(at)
    )];
    let error = recorded_error(history, at, format!("command {name}"), lines);
    Some(RecordedError {
        is_repaired: true,
        ..error
    })
}

fn recorded_error(
    history: &DeviceHistory,
    at: usize,
    object: String,
    lines: Vec<String>,
) -> RecordedError {
    RecordedError {
        object,
        entry: Some(history.recording.first + at as u64),
        is_repaired: false,
        lines,
    }
}

/// True if the QP went on to a state other than an error state.
fn is_repaired(history: &DeviceHistory, at: usize, qpn: u32) -> bool {
    let later = history.entries().get(at + 1..).unwrap_or_default();
    let next = later.iter().find_map(|entry| match entry.kind {
        EntryKind::State { qpn: n, to, .. } if n == qpn => Some(!is_error(to)),
        EntryKind::Created { qpn: n, .. } | EntryKind::Destroyed { qpn: n, .. } if n == qpn => {
            Some(false)
        }
        EntryKind::Reset => Some(false),
        _ => None,
    });
    next.unwrap_or(false)
}

/// Returns a completion in error of a QP that went on nevertheless. Only an abandoned message or a
/// datagram ends in this way.
fn failed_completion(history: &DeviceHistory, at: usize) -> Option<RecordedError> {
    let all = history.entries();
    let EntryKind::Completed {
        qpn,
        cqn,
        status,
        syndrome,
        wr_id,
        ..
    } = all.get(at)?.kind
    else {
        return None;
    };
    let status = WcStatus::from_raw(status)?;
    if matches!(status, WcStatus::Success | WcStatus::WrFlushErr) {
        return None;
    }
    let state = |kind: &EntryKind| match *kind {
        EntryKind::State { qpn: n, to, .. } if n == qpn => Some(is_error(to)),
        EntryKind::Created { qpn: n, .. } | EntryKind::Destroyed { qpn: n, .. } if n == qpn => {
            Some(false)
        }
        _ => None,
    };
    // The entry of the change of state is next to that of the completion, before or after it.
    let before = all[..at].iter().rev().find_map(|entry| state(&entry.kind));
    let after = all[at..].iter().find_map(|entry| state(&entry.kind));
    if before == Some(true) || after == Some(true) {
        return None;
    }
    let cause = Syndrome::from_raw(syndrome).map_or_else(String::new, syndrome_text);
    let name = status.verbs_name();
    let mut lines = vec![format!(
        "A work request of {} (wr_id {wr_id:#x}) completed with {name} in CQ {cqn}, {}: {cause} \
         The queue pair goes on.",
        QpName(qpn),
        history.time_text(at)
    )];
    // An unreliable message loses its packets on the way from the peer, so rules at the peer count
    // too.
    let peer = history.qp(qpn).and_then(|qp| history.local_peer(&qp));
    for qpn in [Some(qpn), peer.map(|peer| peer.qpn)].into_iter().flatten() {
        rules::append_rules(history, qpn, at, &mut lines);
    }
    let error = recorded_error(history, at, QpName(qpn).to_string(), lines);
    Some(RecordedError {
        is_repaired: true,
        ..error
    })
}

/// The error at an index. `Error(None)` is an error whose chain is not wanted, since a chain takes
/// a while to make.
enum EntryOutcome {
    NoError,
    MovedByProgram(u32),
    Error(Option<RecordedError>),
}

fn classify(history: &DeviceHistory, at: usize, with_chain: bool) -> EntryOutcome {
    let Some(entry) = history.entries().get(at) else {
        return EntryOutcome::NoError;
    };
    let error = match entry.kind {
        EntryKind::State {
            qpn,
            from,
            to,
            syndrome,
            ..
        } if is_error(to) && from != to => {
            if syndrome == Syndrome::ModifiedToErr.to_raw() {
                return EntryOutcome::MovedByProgram(qpn);
            }
            if !with_chain {
                return EntryOutcome::Error(None);
            }
            let lines =
                diagnose_qp(&history_at_error(history, at, qpn), qpn).unwrap_or_else(|e| vec![e]);
            Some(RecordedError {
                is_repaired: is_repaired(history, at, qpn),
                ..recorded_error(history, at, QpName(qpn).to_string(), lines)
            })
        }
        EntryKind::Event { .. } => diagnose_event(history, at)
            .map(|(object, lines)| recorded_error(history, at, object, lines)),
        EntryKind::Command { .. } => refused_command(history, at),
        EntryKind::Completed { .. } => failed_completion(history, at),
        _ => None,
    };
    error.map_or(EntryOutcome::NoError, |error| {
        EntryOutcome::Error(Some(error))
    })
}

/// Returns every error in order.
pub fn list_errors(history: &DeviceHistory) -> ErrorList {
    let mut out = ErrorList {
        recorded: (history.recording.first, history.entries().len()),
        ..ErrorList::default()
    };
    let mut moved: Vec<(u32, usize)> = Vec::new();
    let mut listed_qpns: HashSet<u32> = HashSet::new();
    for at in 0..history.entries().len() {
        match classify(history, at, out.errors.len() < MAX_LISTED) {
            EntryOutcome::NoError => {}
            EntryOutcome::MovedByProgram(qpn) => {
                match moved.iter_mut().find(|(known, _)| *known == qpn) {
                    Some((_, count)) => *count += 1,
                    None => moved.push((qpn, 1)),
                }
            }
            EntryOutcome::Error(Some(error)) if out.errors.len() < MAX_LISTED => {
                out.errors.push(error)
            }
            EntryOutcome::Error(_) => out.left_out += 1,
        }
        if let Some(EntryKind::State { qpn, to, .. }) =
            history.entries().get(at).map(|entry| entry.kind)
        {
            if is_error(to) {
                listed_qpns.insert(qpn);
            } else {
                listed_qpns.remove(&qpn);
            }
        }
    }
    let qps = moved.iter().map(|(qpn, count)| match count {
        1 => QpName(*qpn).to_string(),
        n => format!("{} ({})", QpName(*qpn), times_text(*n)),
    });
    out.moved_by_program = qps.collect();
    // The entries of these errors were overwritten, or there is no recording.
    for qp in &history.qps {
        let is_moved = qp.syndrome == Some(Syndrome::ModifiedToErr);
        if !is_error(qp.state.to_raw()) || is_moved || listed_qpns.contains(&qp.qpn) {
            continue;
        }
        if out.errors.len() == MAX_LISTED {
            out.left_out += 1;
            continue;
        }
        out.errors.push(RecordedError {
            object: QpName(qp.qpn).to_string(),
            entry: None,
            is_repaired: false,
            lines: diagnose_qp(history, qp.qpn).unwrap_or_else(|e| vec![e]),
        });
    }
    if out.errors.is_empty() {
        out.notes = peer_observations(history);
    }
    out
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::device_history::QpSnapshot;
    use crate::diagnosis::tests::{created, lost, state};
    use crate::entry::FlightEntry;
    use crate::flight_recording::FlightRecording;
    use verbena_abi::cmd::Opcode;
    use verbena_abi::ctx::QpState;
    use verbena_abi::eqe::EventType;

    pub(crate) fn history(kinds: Vec<EntryKind>) -> DeviceHistory {
        let entries = (0..).zip(kinds);
        let recording = FlightRecording {
            entries: entries
                .map(|(time_ns, kind)| FlightEntry { time_ns, kind })
                .collect(),
            ..FlightRecording::default()
        };
        DeviceHistory::new(recording, Vec::new())
    }

    pub(crate) fn completed(qpn: u32, status: WcStatus, cause: Syndrome) -> EntryKind {
        EntryKind::Completed {
            qpn,
            cqn: 5,
            index: 0,
            bytes: 0,
            status: status.to_raw(),
            flags: 2,
            syndrome: cause.to_raw(),
            wr_id: 7,
        }
    }

    #[test]
    fn all_errors_are_listed_in_order_with_those_of_destroyed_queue_pairs() {
        let command = EntryKind::Command {
            opcode: Opcode::CreateQp.to_raw(),
            status: CmdStatus::Invalid.to_raw() as u8,
            syndrome: Syndrome::CmdSize.to_raw(),
            port_up: None,
        };
        let died = EntryKind::Event {
            event_type: EventType::CqErr.to_raw(),
            number: 9,
            syndrome: Syndrome::CqOverflow.to_raw(),
        };
        let list = list_errors(&history(vec![
            command,
            created(1),
            completed(1, WcStatus::RetryExcErr, Syndrome::RetryExceeded),
            state(1, 2, QpState::Err, Some(Syndrome::RetryExceeded)),
            EntryKind::Destroyed { qpn: 1, owner: 1 },
            created(3),
            completed(3, WcStatus::RemAbortErr, Syndrome::Aborted),
            state(3, 4, QpState::Err, Some(Syndrome::ModifiedToErr)),
            EntryKind::Destroyed { qpn: 3, owner: 3 },
            died,
        ]));
        let objects: Vec<&str> = list.errors.iter().map(|f| f.object.as_str()).collect();
        assert_eq!(objects, ["command CREATE_QP", "QP 0x1", "CQ 9"]);
        let text = list.lines().join("\n");
        for part in [
            "3 errors, in order:",
            "1. The device refused the command CREATE_QP (Invalid), at 0.000000 s (entry 0): CmdSize",
            "2. QP 0x1 is in ERR, at 0.000000 s (entry 3): RetryExceeded",
            "completed with IBV_WC_RETRY_EXC_ERR",
            "3. CQ 9 died",
            "which is no error: QP 0x3.",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        // A refused command is not a lasting error.
        let line = list.summary(list.first_unrepaired().unwrap());
        assert!(line.starts_with("QP 0x1 is in ERR"), "{line}");
        assert!(line.contains("completed with IBV_WC_RETRY_EXC_ERR. Its peer QP 0x2"));
        assert!(
            line.ends_with("There are 2 more errors, next CQ 9."),
            "{line}"
        );
        assert!(list.summary(&list.errors[0]).contains("CREATE_QP"));
    }

    #[test]
    fn an_error_of_a_responder_is_followed_by_the_status_of_the_requester() {
        let list = list_errors(&history(vec![
            created(1),
            created(2),
            state(2, 1, QpState::Err, Some(Syndrome::RkeyUnknown)),
            completed(1, WcStatus::RemAccessErr, Syndrome::NakRemoteAccess),
            state(1, 2, QpState::Err, Some(Syndrome::NakRemoteAccess)),
        ]));
        let line = list.summary(list.first_unrepaired().unwrap());
        assert!(line.starts_with("QP 0x2 is in ERR, "), "{line}");
        let end = "There is one more error: QP 0x1, IBV_WC_REM_ACCESS_ERR.";
        assert!(line.ends_with(end), "{line}");
    }

    #[test]
    fn an_error_without_a_change_of_state_is_listed_by_its_completion() {
        let list = list_errors(&history(vec![
            created(3),
            created(4),
            state(4, 3, QpState::Rts, None),
            state(3, 4, QpState::Rtr, None),
            lost(4),
            completed(3, WcStatus::RemAbortErr, Syndrome::Aborted),
            completed(3, WcStatus::Success, Syndrome::Flushed),
        ]));
        let [only] = list.errors.as_slice() else {
            panic!("{list:?}");
        };
        assert_eq!(list.first_unrepaired(), None);
        assert!(only.lines[0].contains("IBV_WC_REM_ABORT_ERR"), "{only:?}");
        assert!(
            list.summary(only).contains("Rules at QP 0x4: a rule"),
            "{only:?}"
        );
        assert!(!list.lines()[0].starts_with("1."));
    }

    #[test]
    fn a_line_says_that_there_is_no_error_and_unrecorded_errors_are_added() {
        let none = list_errors(&history(vec![created(1)]));
        assert_eq!(none.lines(), ["No error."]);
        assert_eq!(none.first_unrepaired(), None);
        let mut later = history(vec![created(1)]);
        later.qps.push(QpSnapshot {
            qpn: 6,
            state: QpState::Err,
            syndrome: Some(Syndrome::CqDied),
            peer: 0,
            is_local: None,
            cqns: [0; 2],
            psns: [0; 3],
        });
        later.recording.first = 100;
        let list = list_errors(&later);
        let text = list.lines().join("\n");
        assert!(text.contains("QP 0x6 is in ERR: CqDied"), "{text}");
        assert!(text.contains("begins with entry 100"), "{text}");
        later.recording = FlightRecording::default();
        let text = list_errors(&later).lines().join("\n");
        assert!(text.contains("Nothing was recorded"), "{text}");
    }

    #[test]
    fn only_the_first_errors_are_listed() {
        let each = (0..100).flat_map(|qpn| {
            let error = state(qpn, 0, QpState::Err, Some(Syndrome::RetryExceeded));
            [
                created(qpn),
                error,
                EntryKind::Destroyed { qpn, owner: qpn },
            ]
        });
        let list = list_errors(&history(each.collect()));
        assert_eq!(
            (list.errors.len(), list.left_out),
            (MAX_LISTED, 100 - MAX_LISTED)
        );
        assert!(list.lines().concat().contains("36 more are not told here"));
    }
}
