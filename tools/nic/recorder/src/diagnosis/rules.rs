// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The rules that fired on a QP.

use crate::device_history::{packet_name, work_request_name, DeviceHistory, QpName};
use crate::entry::EntryKind;
use crate::flags::LOST;
use crate::psn_text;
use verbena_faults::{Direction, RuleHook};

/// Returns the rules that fired on a QP between two indexes, each with its count and the first
/// event.
pub(super) fn firings(history: &DeviceHistory, qpn: u32, from: usize, to: usize) -> Vec<String> {
    let all = history.entries();
    let part = all.get(from..to.min(all.len())).unwrap_or_default();
    let mut found: Vec<(u16, usize, String)> = Vec::new();
    let mut lost = 0usize;
    for (n, entry) in part.iter().enumerate() {
        match entry.kind {
            EntryKind::Fired {
                rule,
                qpn: fired_qpn,
                on,
                direction,
                opcode,
                psn,
                ..
            } if fired_qpn == qpn => {
                if let Some((_, count, _)) = found.iter_mut().find(|(found, ..)| *found == rule) {
                    *count += 1;
                    continue;
                }
                let first = match on {
                    RuleHook::Packet => {
                        let direction = if direction == Direction::Out {
                            "sent"
                        } else {
                            "received"
                        };
                        format!(
                            "{} {direction}, {}",
                            packet_name(opcode as u8),
                            psn_text(psn)
                        )
                    }
                    RuleHook::Send => {
                        format!("the work request {}", work_request_name(opcode as u8))
                    }
                    _ => String::from("its command, event or moment"),
                };
                let moment = history.time_text(from + n);
                found.push((rule, 1, format!("on {first} {moment}")));
            }
            EntryKind::Passed {
                qpn: fired_qpn,
                flags,
                ..
            } if fired_qpn == qpn && flags & LOST != 0 => lost += 1,
            _ => {}
        }
    }
    let texts = found.into_iter().map(|(rule, count, first)| {
        let times = match (count, history.recording.first) {
            (1, 0) => String::from("once,"),
            (_, 0) => format!("{count} times, first"),
            // Older entries are overwritten.
            _ => format!("{count} times in what is recorded, first there"),
        };
        format!("{} fired {times} {first}", history.rule_text(rule))
    });
    let mut texts: Vec<String> = texts.collect();
    if lost > 0 {
        texts.push(format!("verbena-nic --drop lost {lost} of its packets"));
    }
    texts
}

/// Appends the rules that fired on a QP before index `at`, since it began anew. Returns true if one
/// did.
pub(super) fn append_rules(
    history: &DeviceHistory,
    qpn: u32,
    at: usize,
    out: &mut Vec<String>,
) -> bool {
    let fired = firings(history, qpn, history.last_reset(qpn, at), at);
    let any = !fired.is_empty();
    if any {
        out.push(format!("Rules at {}: {}.", QpName(qpn), fired.join("; ")));
    }
    any
}
