// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Lists every error of a recording in order, each as it was at its time. This includes errors of
//! QPs that no longer exist.

use super::cause::{self, times};
use super::quiet::notes;
use super::{peer, syndrome_text, why, why_event};
use crate::entry::What;
use crate::facts::{is_error, Facts, Name};
use crate::report::until;
use std::collections::HashSet;
use verbena_abi::cmd::CmdStatus;
use verbena_abi::cqe::WcStatus;
use verbena_abi::syndrome::Syndrome;

/// Most errors that are listed with their chains.
const TOLD: usize = 64;

/// One error of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The QP, the CQ, the SRQ, the device or the command that failed.
    pub who: String,
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
pub struct Errors {
    /// The first 64 errors, in order; those whose moment was not recorded are last.
    pub told: Vec<Failure>,
    /// Number of errors that are not in the list.
    pub left_out: usize,
    /// The queue pairs that programs moved to ERR themselves, which is no error.
    pub moved: Vec<String>,
    /// Without an error: observations that may explain a failure of a peer.
    pub notes: Vec<String>,
    /// Number of the first entry, and number of entries.
    pub recorded: (u64, usize),
}

impl Errors {
    /// Returns the errors as lines of text.
    pub fn lines(&self) -> Vec<String> {
        let mut out = Vec::new();
        let count = self.told.len() + self.left_out;
        match count {
            0 => {
                out.push(String::from("No error."));
                out.extend(self.notes.iter().map(|note| format!("{note}.")));
            }
            1 => {}
            n => out.push(format!("{n} errors, in order:\n")),
        }
        for (n, failure) in (1..).zip(&self.told) {
            let number = if count > 1 {
                format!("{n}. ")
            } else {
                String::new()
            };
            out.push(format!("{number}{}", failure.lines.join("\n   ")));
        }
        if self.left_out > 0 {
            out.push(format!("{} more are not told here.", self.left_out));
        }
        if !self.moved.is_empty() {
            let who = self.moved.join(", ");
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
    pub fn lasting(&self) -> Option<&Failure> {
        self.told.iter().find(|failure| !failure.is_repaired)
    }

    /// Returns a line about one error: the event, the status that the program got, and a reason
    /// outside of the QP. The line ends with the next error and the number of further errors.
    pub fn line(&self, failure: &Failure) -> String {
        let lines = &failure.lines;
        let mut told = lines.first().cloned().unwrap_or_default();
        if let Some(status) = failure.status() {
            // For a QP that goes on, the first line has the status already.
            if !told.contains(status) {
                told += &format!(" {status}.");
            }
        }
        // Users rarely expect a rule as the cause, so a rule takes precedence over the peer.
        let rule = lines
            .iter()
            .find(|line| line.contains("ule \"") || line.starts_with("Rules at "));
        if let Some(reason) = rule.or_else(|| peer::outer(lines)) {
            told += &format!(" {reason}");
        }
        // If a responder found the error, the next error is often that of the requester, whose
        // program gets the status.
        let next = self
            .told
            .iter()
            .skip_while(|other| *other != failure)
            .nth(1)
            .map_or_else(String::new, Failure::short);
        match (self.told.len() + self.left_out).saturating_sub(1) {
            0 => told,
            1 if !next.is_empty() => format!("{told} There is one more error: {next}."),
            1 => told + " There is one more error.",
            n if !next.is_empty() => format!("{told} There are {n} more errors, next {next}."),
            n => format!("{told} There are {n} more errors."),
        }
    }
}

impl Failure {
    /// Returns the part of a line that names the completion in error and its status, if there is
    /// one.
    fn status(&self) -> Option<&str> {
        let told = |line: &&String| line.contains(" completed with IBV_WC_");
        let line = self.lines.iter().find(told)?;
        Some(line.split_once(" in CQ")?.0)
    }

    /// Returns the failed object, and the name of its status.
    fn short(&self) -> String {
        let name = self.status().and_then(|status| status.rsplit(' ').next());
        name.map_or_else(|| self.who.clone(), |name| format!("{}, {name}", self.who))
    }

    /// True if the device of the peer found the error and reported it with a NAK.
    pub fn is_told_by_another(&self) -> bool {
        let has = |part: &str| self.lines.iter().any(|line| line.contains(part));
        has("It received a NAK") && has(" is of another device")
    }
}

/// Returns a command that the device refused. A command that only had to be repeated is not an
/// error.
fn refused(facts: &Facts, at: usize) -> Option<Failure> {
    let What::Command {
        opcode,
        status,
        syndrome,
        ..
    } = facts.all().get(at)?.what
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
        facts.moment(at)
    )];
    let failure = failure(facts, at, format!("command {name}"), lines);
    Some(Failure {
        is_repaired: true,
        ..failure
    })
}

fn failure(facts: &Facts, at: usize, who: String, lines: Vec<String>) -> Failure {
    Failure {
        who,
        entry: Some(facts.recording.first + at as u64),
        is_repaired: false,
        lines,
    }
}

/// True if the QP went on to a state other than an error state.
fn is_repaired(facts: &Facts, at: usize, qpn: u32) -> bool {
    let later = facts.all().get(at + 1..).unwrap_or_default();
    let next = later.iter().find_map(|entry| match entry.what {
        What::State { qpn: n, to, .. } if n == qpn => Some(!is_error(to)),
        What::Created { qpn: n, .. } | What::Destroyed { qpn: n, .. } if n == qpn => Some(false),
        What::Reset => Some(false),
        _ => None,
    });
    next.unwrap_or(false)
}

/// Returns a completion in error of a QP that went on nevertheless. Only an abandoned message or a
/// datagram ends in this way.
fn completed(facts: &Facts, at: usize) -> Option<Failure> {
    let all = facts.all();
    let What::Completed {
        qpn,
        cqn,
        status,
        syndrome,
        wr_id,
        ..
    } = all.get(at)?.what
    else {
        return None;
    };
    let status = WcStatus::from_raw(status)?;
    if matches!(status, WcStatus::Success | WcStatus::WrFlushErr) {
        return None;
    }
    let state = |what: &What| match *what {
        What::State { qpn: n, to, .. } if n == qpn => Some(is_error(to)),
        What::Created { qpn: n, .. } | What::Destroyed { qpn: n, .. } if n == qpn => Some(false),
        _ => None,
    };
    // The entry of the change of state is next to that of the completion, before or after it.
    let before = all[..at].iter().rev().find_map(|entry| state(&entry.what));
    let after = all[at..].iter().find_map(|entry| state(&entry.what));
    if before == Some(true) || after == Some(true) {
        return None;
    }
    let cause = Syndrome::from_raw(syndrome).map_or_else(String::new, syndrome_text);
    let name = status.verbs_name();
    let mut lines = vec![format!(
        "A work request of {} (wr_id {wr_id:#x}) completed with {name} in CQ {cqn}, {}: {cause} \
         The queue pair goes on.",
        Name(qpn),
        facts.moment(at)
    )];
    // An unreliable message loses its packets on the way from the peer, so rules at the peer count
    // too.
    let peer = facts.qp(qpn).and_then(|qp| facts.local_peer(&qp));
    for qpn in [Some(qpn), peer.map(|peer| peer.qpn)].into_iter().flatten() {
        cause::rules(facts, qpn, at, &mut lines);
    }
    let failure = failure(facts, at, Name(qpn).to_string(), lines);
    Some(Failure {
        is_repaired: true,
        ..failure
    })
}

/// The error at an index. `Error(None)` is an error whose chain is not wanted, since a chain takes
/// a while to make.
enum Found {
    Nothing,
    Moved(u32),
    Error(Option<Failure>),
}

fn look(facts: &Facts, at: usize, is_wanted: bool) -> Found {
    let Some(entry) = facts.all().get(at) else {
        return Found::Nothing;
    };
    let told = match entry.what {
        What::State {
            qpn,
            from,
            to,
            syndrome,
            ..
        } if is_error(to) && from != to => {
            if syndrome == Syndrome::ModifiedToErr.to_raw() {
                return Found::Moved(qpn);
            }
            if !is_wanted {
                return Found::Error(None);
            }
            let lines = why(&until(facts, at, qpn), qpn).unwrap_or_else(|e| vec![e]);
            Some(Failure {
                is_repaired: is_repaired(facts, at, qpn),
                ..failure(facts, at, Name(qpn).to_string(), lines)
            })
        }
        What::Event { .. } => {
            why_event(facts, at).map(|(who, lines)| failure(facts, at, who, lines))
        }
        What::Command { .. } => refused(facts, at),
        What::Completed { .. } => completed(facts, at),
        _ => None,
    };
    told.map_or(Found::Nothing, |failure| Found::Error(Some(failure)))
}

/// Returns every error in order.
pub fn errors(facts: &Facts) -> Errors {
    let mut out = Errors {
        recorded: (facts.recording.first, facts.all().len()),
        ..Errors::default()
    };
    let mut moved: Vec<(u32, usize)> = Vec::new();
    let mut told: HashSet<u32> = HashSet::new();
    for at in 0..facts.all().len() {
        match look(facts, at, out.told.len() < TOLD) {
            Found::Nothing => {}
            Found::Moved(qpn) => match moved.iter_mut().find(|(known, _)| *known == qpn) {
                Some((_, count)) => *count += 1,
                None => moved.push((qpn, 1)),
            },
            Found::Error(Some(failure)) if out.told.len() < TOLD => out.told.push(failure),
            Found::Error(_) => out.left_out += 1,
        }
        if let Some(What::State { qpn, to, .. }) = facts.all().get(at).map(|entry| entry.what) {
            if is_error(to) {
                told.insert(qpn);
            } else {
                told.remove(&qpn);
            }
        }
    }
    let who = moved.iter().map(|(qpn, count)| match count {
        1 => Name(*qpn).to_string(),
        n => format!("{} ({})", Name(*qpn), times(*n)),
    });
    out.moved = who.collect();
    // The entries of these errors were overwritten, or there is no recording.
    for qp in &facts.qps {
        let is_moved = qp.syndrome == Some(Syndrome::ModifiedToErr);
        if !is_error(qp.state.to_raw()) || is_moved || told.contains(&qp.qpn) {
            continue;
        }
        if out.told.len() == TOLD {
            out.left_out += 1;
            continue;
        }
        out.told.push(Failure {
            who: Name(qp.qpn).to_string(),
            entry: None,
            is_repaired: false,
            lines: why(facts, qp.qpn).unwrap_or_else(|e| vec![e]),
        });
    }
    if out.told.is_empty() {
        out.notes = notes(facts);
    }
    out
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::entry::Entry;
    use crate::facts::QpNow;
    use crate::file::Recording;
    use crate::why::tests::{created, lost, state};
    use verbena_abi::cmd::Opcode;
    use verbena_abi::ctx::QpState;
    use verbena_abi::eqe::EventType;

    pub(crate) fn facts(whats: Vec<What>) -> Facts {
        let entries = (0..).zip(whats);
        let recording = Recording {
            entries: entries.map(|(time, what)| Entry { time, what }).collect(),
            ..Recording::default()
        };
        Facts::of(recording, Vec::new())
    }

    pub(crate) fn completed(qpn: u32, status: WcStatus, cause: Syndrome) -> What {
        What::Completed {
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
        let command = What::Command {
            opcode: Opcode::CreateQp.to_raw(),
            status: CmdStatus::Invalid.to_raw() as u8,
            syndrome: Syndrome::CmdSize.to_raw(),
            port_up: None,
        };
        let died = What::Event {
            kind: EventType::CqErr.to_raw(),
            number: 9,
            syndrome: Syndrome::CqOverflow.to_raw(),
        };
        let told = errors(&facts(vec![
            command,
            created(1),
            completed(1, WcStatus::RetryExcErr, Syndrome::RetryExceeded),
            state(1, 2, QpState::Err, Some(Syndrome::RetryExceeded)),
            What::Destroyed { qpn: 1, owner: 1 },
            created(3),
            completed(3, WcStatus::RemAbortErr, Syndrome::Aborted),
            state(3, 4, QpState::Err, Some(Syndrome::ModifiedToErr)),
            What::Destroyed { qpn: 3, owner: 3 },
            died,
        ]));
        let who: Vec<&str> = told.told.iter().map(|f| f.who.as_str()).collect();
        assert_eq!(who, ["command CREATE_QP", "QP 0x1", "CQ 9"]);
        let text = told.lines().join("\n");
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
        let line = told.line(told.lasting().unwrap());
        assert!(line.starts_with("QP 0x1 is in ERR"), "{line}");
        assert!(line.contains("completed with IBV_WC_RETRY_EXC_ERR. Its peer QP 0x2"));
        assert!(
            line.ends_with("There are 2 more errors, next CQ 9."),
            "{line}"
        );
        assert!(told.line(&told.told[0]).contains("CREATE_QP"));
    }

    #[test]
    fn an_error_of_a_responder_is_followed_by_the_status_of_the_requester() {
        let told = errors(&facts(vec![
            created(1),
            created(2),
            state(2, 1, QpState::Err, Some(Syndrome::RkeyUnknown)),
            completed(1, WcStatus::RemAccessErr, Syndrome::NakRemoteAccess),
            state(1, 2, QpState::Err, Some(Syndrome::NakRemoteAccess)),
        ]));
        let line = told.line(told.lasting().unwrap());
        assert!(line.starts_with("QP 0x2 is in ERR, "), "{line}");
        let end = "There is one more error: QP 0x1, IBV_WC_REM_ACCESS_ERR.";
        assert!(line.ends_with(end), "{line}");
    }

    #[test]
    fn an_error_without_a_change_of_state_is_listed_by_its_completion() {
        let told = errors(&facts(vec![
            created(3),
            created(4),
            state(4, 3, QpState::Rts, None),
            state(3, 4, QpState::Rtr, None),
            lost(4),
            completed(3, WcStatus::RemAbortErr, Syndrome::Aborted),
            completed(3, WcStatus::Success, Syndrome::Flushed),
        ]));
        let [only] = told.told.as_slice() else {
            panic!("{told:?}");
        };
        assert_eq!(told.lasting(), None);
        assert!(only.lines[0].contains("IBV_WC_REM_ABORT_ERR"), "{only:?}");
        assert!(
            told.line(only).contains("Rules at QP 0x4: a rule"),
            "{only:?}"
        );
        assert!(!told.lines()[0].starts_with("1."));
    }

    #[test]
    fn a_line_says_that_there_is_no_error_and_unrecorded_errors_are_added() {
        let quiet = errors(&facts(vec![created(1)]));
        assert_eq!(quiet.lines(), ["No error."]);
        assert_eq!(quiet.lasting(), None);
        let mut later = facts(vec![created(1)]);
        later.qps.push(QpNow {
            qpn: 6,
            state: QpState::Err,
            syndrome: Some(Syndrome::CqDied),
            peer: 0,
            is_local: None,
            cqns: [0; 2],
            psns: [0; 3],
        });
        later.recording.first = 100;
        let told = errors(&later);
        let text = told.lines().join("\n");
        assert!(text.contains("QP 0x6 is in ERR: CqDied"), "{text}");
        assert!(text.contains("begins with entry 100"), "{text}");
        later.recording = Recording::default();
        let text = errors(&later).lines().join("\n");
        assert!(text.contains("Nothing was recorded"), "{text}");
    }

    #[test]
    fn only_the_first_errors_are_listed() {
        let each = (0..100).flat_map(|qpn| {
            let error = state(qpn, 0, QpState::Err, Some(Syndrome::RetryExceeded));
            [created(qpn), error, What::Destroyed { qpn, owner: qpn }]
        });
        let told = errors(&facts(each.collect()));
        assert_eq!((told.told.len(), told.left_out), (TOLD, 100 - TOLD));
        assert!(told.lines().concat().contains("36 more are not told here"));
    }
}
