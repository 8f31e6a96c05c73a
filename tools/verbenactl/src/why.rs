// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `verbenactl why`: every error in order, or the reason for the state of one QP, and other results
//! that are made from recordings.

use crate::{client, record, toml};
use serde_json::json;
use std::path::Path;
use verbena_abi::ctx::QpState;
use verbena_abi::syndrome::Syndrome;
use verbena_faults::Rule;
use verbena_protocol::{ContextFields, ContextsReply, ControlRequest};
use verbena_recorder::{DeviceHistory, FlightRecording, QpSnapshot};

/// Parses the rules of a recording; None for a rule that cannot be parsed.
fn rules(recording: &FlightRecording) -> Vec<Option<Rule>> {
    let read = |text: &String| serde_json::from_str(text).ok();
    recording.rules.iter().map(read).collect()
}

fn history_of(recording: FlightRecording) -> DeviceHistory {
    let rules = rules(&recording);
    DeviceHistory::new(recording, rules)
}

fn syndrome(raw: u32) -> Option<Syndrome> {
    Syndrome::from_raw(u16::try_from(raw).ok()?)
}

/// Adds the present state of the objects.
fn add_contexts(history: &mut DeviceHistory, contexts: &ContextsReply) {
    for context in &contexts.contexts {
        match &context.fields {
            ContextFields::Qp(qp) => {
                let state = QpState::ALL.iter().find(|state| state.name() == qp.state);
                history.qps.extend(state.map(|&state| QpSnapshot {
                    qpn: context.number,
                    state,
                    syndrome: syndrome(qp.syndrome),
                    peer: qp.dest_qpn,
                    is_local: None,
                    cqns: [qp.send_cqn, qp.recv_cqn],
                    psns: [qp.next_psn, qp.una_psn, qp.expected_psn],
                }));
            }
            ContextFields::Cq(cq) if cq.syndrome != 0 => {
                history.cqs.push((context.number, syndrome(cq.syndrome)));
            }
            _ => {}
        }
    }
}

/// Returns the history from a file, or the recording and the present objects of the NIC.
///
/// # Errors
///
/// There is no NIC or no recording.
pub fn load_history(socket: Option<&Path>, file: Option<&Path>) -> Result<DeviceHistory, String> {
    if let Some(file) = file {
        return Ok(history_of(record::read(file)?));
    }
    let socket = socket
        .ok_or("no control socket: name that of the NIC by --socket PATH or VERBENA_CONTROL")?;
    // If the recorder is off, the state of the QPs is all that is known.
    let recorder = client::request(socket, ControlRequest::Recorder)?;
    let is_recorder_on = matches!(
        recorder,
        verbena_protocol::RecorderReply { entries: 1.., .. }
    );
    let recording = match is_recorder_on {
        true => record::fetch(socket)?,
        false => FlightRecording::default(),
    };
    let mut history = history_of(recording);
    add_contexts(&mut history, &client::query(socket)?);
    Ok(history)
}

/// Returns the reason for the state of one QP.
///
/// # Errors
///
/// There is no QP with this number.
pub fn explain_qp(history: &DeviceHistory, qpn: u32, json: bool) -> Result<String, String> {
    let lines = verbena_recorder::diagnose_qp(history, qpn)?;
    if json {
        return Ok(format!("{:#}\n", json!({ "number": qpn, "why": lines })));
    }
    Ok(lines.join("\n") + "\n")
}

/// Returns every error in order.
pub fn explain_errors(history: &DeviceHistory, json: bool) -> String {
    let list = verbena_recorder::list_errors(history);
    if !json {
        return list.lines().join("\n") + "\n";
    }
    let each = |error: &verbena_recorder::RecordedError| json!({ "who": error.object, "entry": error.entry, "repaired": error.is_repaired, "why": error.lines });
    let errors: Vec<_> = list.errors.iter().map(each).collect();
    let all =
        json!({ "errors": errors, "left_out": list.left_out, "moved": list.moved_by_program });
    format!("{all:#}\n")
}

/// Exports the faults of a recording as a file of rules that reproduces them.
///
/// # Errors
///
/// The file is not a recording, or none of its faults can be reproduced.
pub fn export(file: &Path) -> Result<String, String> {
    let recording = record::read(file)?;
    let exported = verbena_recorder::export_rules(&recording, &rules(&recording));
    for missing in &exported.missing {
        eprintln!("verbenactl: not exported: {missing}");
    }
    if exported.set.rule.is_empty() {
        return Err(format!(
            "{}: no fault of this recording can be reproduced by a rule",
            file.display()
        ));
    }
    toml::rules(&exported.set)
}

/// Writes the page of a recording.
///
/// # Errors
///
/// The file is not a recording, or the page cannot be written.
pub fn report(file: &Path, output: &Path) -> Result<String, String> {
    let name = file.file_stem().unwrap_or_default().to_string_lossy();
    let page = verbena_recorder::report(&history_of(record::read(file)?), &name);
    let named = |e| format!("{}: {e}", output.display());
    std::fs::write(output, page).map_err(named)?;
    Ok(format!("{}\n", output.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbena_protocol::{Cq, ObjectContext, Qp};

    #[test]
    fn contexts_name_the_cause_without_a_recording() {
        let qp = ObjectContext {
            number: 17,
            fields: ContextFields::Qp(Qp {
                state: String::from("Err"),
                syndrome: Syndrome::CqDied.to_raw().into(),
                send_cqn: 3,
                recv_cqn: 3,
                ..Qp::default()
            }),
        };
        let cq = ObjectContext {
            number: 3,
            fields: ContextFields::Cq(Cq {
                syndrome: Syndrome::CqOverflow.to_raw().into(),
                ..Cq::default()
            }),
        };
        let contexts = vec![qp, cq];
        let mut history = history_of(FlightRecording::default());
        add_contexts(&mut history, &ContextsReply { contexts });
        let text = verbena_recorder::diagnose_qp(&history, 17)
            .unwrap()
            .join("\n");
        assert!(text.contains("CQ 3, where it completes, died"), "{text}");
        assert!(text.contains("Nothing was recorded"), "{text}");
    }
}
