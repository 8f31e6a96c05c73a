// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reports the state of the other end of a QP in error, and of the port between the two ends.

use super::cause::CauseChain;
use super::describe_qp;
use crate::device_history::{state_name, QpName};
use crate::entry::EntryKind;
use verbena_abi::cmd::Opcode;
use verbena_abi::ctx::QpState;

/// End of the line after which the lines about the peer begin.
const PEER_IS_LOCAL: &str = " is of this device too.";

impl CauseChain<'_> {
    /// Reports how a peer of this device got into its state, or that the peer belongs to another
    /// device.
    pub(super) fn explain_peer(&self, out: &mut Vec<String>) {
        let name = QpName(self.qp.peer);
        match self.history.local_peer(self.qp) {
            Some(peer) if self.depth > 1 => {
                out.push(format!("Its peer {name}{PEER_IS_LOCAL}"));
                // The lines about a QP that is its own peer are complete already.
                if peer.qpn != self.qp.qpn {
                    describe_qp(self.history, &peer, self.depth - 1, out);
                }
            }
            Some(_) => {}
            None if self.qp.peer == 0 => {}
            None if self.qp.is_local == Some(true) => out.push(self.unconnected_peer_text()),
            None => out.push(format!(
                "Its peer {name} is of another device (or not there any more): ask that one why."
            )),
        }
    }

    /// Describes the QP of this device that is named as the peer, but is not connected back.
    fn unconnected_peer_text(&self) -> String {
        let name = QpName(self.qp.peer);
        let Some(other) = self.history.qp(self.qp.peer) else {
            // Older entries are overwritten.
            return match self.history.recording.first {
                0 => format!("Its peer {name} of this device does not exist."),
                _ => format!("Of its peer {name} of this device nothing is recorded any more."),
            };
        };
        let state = state_name(other.state.to_raw());
        let connection = match other.peer {
            0 => String::from("not connected"),
            peer => format!("connected to {}", QpName(peer)),
        };
        format!("Its peer {name} of this device is in {state} and {connection}.")
    }

    /// Reports that the two ends were connected with first PSNs that differ, if the peer belongs to
    /// this device.
    pub(super) fn compare_first_psns(&self, out: &mut Vec<String>) {
        let me = self.qp.qpn;
        let (rtr, rts) = (QpState::Rtr.to_raw(), QpState::Rts.to_raw());
        let sends = self.find_last(|kind| matches!(*kind, EntryKind::State { qpn, from, to, .. } if qpn == me && from == rtr && to == rts));
        let expects = self.find_last(|kind| matches!(*kind, EntryKind::State { qpn, peer, to, .. } if qpn == self.qp.peer && peer == me && to == rtr));
        let (Some((_, sends)), Some((_, expects))) = (sends, expects) else {
            return;
        };
        let (
            EntryKind::State {
                next_psn: sq_psn, ..
            },
            EntryKind::State {
                expected_psn: rq_psn,
                ..
            },
        ) = (sends.kind, expects.kind)
        else {
            return;
        };
        if self.history.local_peer(self.qp).is_some() && sq_psn != rq_psn {
            out.push(format!(
                "Its peer {} was connected with rq_psn {rq_psn:#x}, and {} with sq_psn {sq_psn:#x}: the two have to be the same.",
                QpName(self.qp.peer),
                QpName(me)
            ));
        }
    }

    /// Reports changes of the port since the QP was connected.
    pub(super) fn explain_port_changes(&self, out: &mut Vec<String>) {
        let me = self.qp.qpn;
        let ready = QpState::Rts.to_raw();
        let connected = self.find_last(
            |kind| matches!(*kind, EntryKind::State { qpn, to, .. } if qpn == me && to == ready),
        );
        // If that entry was overwritten, all entries that are left are later.
        let connected = connected.map_or(0, |(n, _)| n);
        for wanted in [Opcode::SetPort, Opcode::SetGid] {
            let found = self.find_last(|kind| matches!(*kind, EntryKind::Command { opcode, status: 0, .. } if opcode == wanted.to_raw()));
            if let Some((n, entry)) = found.filter(|(n, _)| *n >= connected) {
                let EntryKind::Command { port_up, .. } = entry.kind else {
                    continue;
                };
                let change = match (wanted, port_up) {
                    (Opcode::SetGid, _) => "An address of the port came or went",
                    (_, Some(false)) => "Its net device went down",
                    (_, Some(true)) => "Its net device came up or got another MTU",
                    (_, None) => "Its net device went down, came up or got another MTU",
                };
                let command = verbena_faults::command_name(wanted.to_raw()).unwrap_or_default();
                let moment = self.history.time_text(n);
                out.push(format!("{change} (command {command}), {moment}."));
            }
        }
    }
}

/// Returns the first of the lines about an error that names a reason outside of the QP.
pub(super) fn external_reason(lines: &[String]) -> Option<&String> {
    let is_port = |line: &&String| line.contains(" (command SET_");
    if let Some(port) = lines.iter().skip(1).find(is_port) {
        return Some(port);
    }
    let at = lines
        .iter()
        .position(|line| line.starts_with("Its peer "))?;
    let line = lines.get(at)?;
    if !line.ends_with(PEER_IS_LOCAL) {
        return Some(line);
    }
    // A peer in a state that answers requests does not explain the error.
    let peer = lines.get(at + 1)?;
    let is_answering = [" is in RTR", " is in RTS", " is in SQD"];
    let is_answering = is_answering.iter().any(|state| peer.contains(state));
    (!is_answering).then_some(peer)
}

#[cfg(test)]
mod tests {
    use crate::diagnosis::errors::tests::history;
    use crate::diagnosis::list_errors;
    use crate::diagnosis::tests::{created, has, state};
    use crate::entry::EntryKind;
    use verbena_abi::cmd::Opcode;
    use verbena_abi::ctx::QpState;
    use verbena_abi::syndrome::Syndrome;

    /// Returns the line about a queue pair whose retries ran out after the entries `before`.
    fn summary(before: &[EntryKind]) -> String {
        let mut kinds = vec![created(1), state(1, 2, QpState::Rts, None)];
        kinds.extend_from_slice(before);
        let mut error = state(1, 2, QpState::Err, Some(Syndrome::RetryExceeded));
        if let EntryKind::State { is_local, .. } = &mut error {
            *is_local = Some(true);
        }
        kinds.push(error);
        let list = list_errors(&history(kinds));
        list.summary(list.first_unrepaired().unwrap())
    }

    #[test]
    fn exceeded_retries_are_explained_with_the_state_of_the_peer() {
        let peer = [created(2), state(2, 1, QpState::Rts, None)];
        let answering = summary(&peer);
        assert!(answering.starts_with("QP 0x1 is in ERR"), "{answering}");
        assert!(!answering.contains("QP 0x2"), "{answering}");
        let destroyed = EntryKind::Destroyed { qpn: 2, owner: 2 };
        let text = summary(&[peer[0], peer[1], destroyed]);
        let end = "QP 0x2 was destroyed, at 0.000000 s (entry 4); it was in RTS last, at 0.000000 s (entry 3).";
        assert!(text.ends_with(end), "{text}");
        let own = Some(Syndrome::ModifiedToErr);
        let text = summary(&[peer[0], peer[1], state(2, 1, QpState::Err, own)]);
        has(
            &text,
            &["QP 0x2 is in ERR, at 0.000000 s (entry 4): ModifiedToErr"],
        );
        let text = summary(&[]);
        has(&text, &["Its peer QP 0x2 of this device does not exist."]);
        let text = summary(&[peer[0]]);
        has(
            &text,
            &["Its peer QP 0x2 of this device is in RESET and not connected."],
        );
        let text = summary(&[peer[0], state(2, 3, QpState::Rts, None)]);
        has(&text, &["is in RTS and connected to QP 0x3."]);
    }

    #[test]
    fn first_psns_that_differ_are_named() {
        let connected = |qpn, peer, to: QpState, psn| EntryKind::State {
            qpn,
            owner: qpn,
            peer,
            is_local: Some(true),
            from: to.to_raw() - 1,
            to: to.to_raw(),
            syndrome: 0,
            next_psn: psn,
            una_psn: psn,
            expected_psn: psn,
        };
        for (rq_psn, end) in [
            (7, "Its peer QP 0x2 was connected with rq_psn 0x7, and QP 0x1 with sq_psn 0x2328: the two have to be the same."),
            (0x2328, "within retry_cnt retries. [IBTA 9.7.6.1.3]"),
        ] {
            let text = summary(&[
                created(2),
                connected(2, 1, QpState::Rtr, rq_psn),
                connected(2, 1, QpState::Rts, 0),
                connected(1, 2, QpState::Rtr, 0),
                connected(1, 2, QpState::Rts, 0x2328),
            ]);
            assert!(text.ends_with(end), "{text}");
        }
    }

    #[test]
    fn exceeded_retries_are_explained_with_the_state_of_the_port() {
        let peer = [created(2), state(2, 1, QpState::Rts, None)];
        for (opcode, port_up, expected) in [
            (
                Opcode::SetPort,
                None,
                "Its net device went down, came up or got another MTU (command SET_PORT)",
            ),
            (
                Opcode::SetPort,
                Some(false),
                "Its net device went down (command SET_PORT)",
            ),
            (
                Opcode::SetPort,
                Some(true),
                "Its net device came up or got another MTU (command SET_PORT)",
            ),
            (
                Opcode::SetGid,
                None,
                "An address of the port came or went (command SET_GID)",
            ),
        ] {
            let command = EntryKind::Command {
                opcode: opcode.to_raw(),
                status: 0,
                syndrome: 0,
                port_up,
            };
            let text = summary(&[peer[0], peer[1], command]);
            assert!(
                text.ends_with(&format!("{expected}, at 0.000000 s (entry 4).")),
                "{text}"
            );
            // The entries of the connection were overwritten.
            let error = state(1, 2, QpState::Err, Some(Syndrome::RetryExceeded));
            let mut later = history(vec![command, error]);
            later.recording.first = 100;
            let list = list_errors(&later);
            has(&list.summary(&list.errors[0]), &["(command SET_"]);
        }
    }
}
