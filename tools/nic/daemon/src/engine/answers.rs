// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The engine's answers to the control socket: plain data, in bounded portions.

use super::vm::Vm;
use crate::shared::{Change, Full, Question, Switch};
use crate::slice::Slice;
use std::sync::mpsc;
use verbena_device::Device;

/// Largest number of contexts that the engine returns before a slice.
const CONTEXTS: u32 = 256;
/// Largest number of queue pairs, with all their counters, that the engine returns before a slice.
const QPS: usize = 64;

impl Vm {
    /// Answers a question, or continues the answer to the last one. Each call takes a bounded time
    /// of the device; the client's thread makes text of the answer. If that thread has gone, the
    /// answer is dropped. Returns true if there was any work.
    pub(super) fn answer(&mut self, question: Option<Question>) -> bool {
        if question.is_none() && self.asker.is_none() {
            return false;
        }
        if let Some(Question::FlightRecording(from, most, to)) = question {
            // A device that has failed still has its recording.
            let _ = to.send(self.model.flight_recording(from, most));
            return true;
        }
        let mut slice = self.model.slice();
        match question {
            Some(Question::Stats(to)) => self.asker = Some(to),
            Some(Question::Contexts(from, to)) => {
                tell(&mut slice, &to, |device| device.contexts(from, CONTEXTS));
                return true;
            }
            Some(Question::Port(to)) => {
                tell(&mut slice, &to, |device| device.port_figures());
                return true;
            }
            Some(Question::Qps(from, to)) => {
                tell(&mut slice, &to, |device| device.all_qp_figures(from, QPS));
                return true;
            }
            Some(Question::Watch(tap, to)) => {
                tell(&mut slice, &to, |device| device.attach_capture(tap));
                return true;
            }
            Some(Question::Rules(change, to)) => {
                let now = self.shared.now();
                tell(&mut slice, &to, |device| {
                    match change {
                        Change::None => {}
                        Change::Add(set, owner) => device.add_rules(&set, owner, now)?,
                        Change::Remove(name) => {
                            if !device.remove_rule(&name) {
                                return Err(format!(
                                    "there is no rule {name:?} (verbenactl fault list shows all)"
                                ));
                            }
                        }
                        Change::RemoveOf(owner) => device.remove_rules_of(owner),
                        Change::Clear => device.clear_rules(),
                    }
                    Ok(device.rules())
                });
                return true;
            }
            Some(Question::Recorder(switch, to)) => {
                let now = self.shared.now();
                tell(&mut slice, &to, |device| {
                    match switch {
                        Switch::Stay => {}
                        Switch::On(entries) => device.begin_flight_recording(entries, now),
                        Switch::Off => device.end_flight_recording(),
                    }
                    device.flight_recording(u64::MAX, 0)
                });
                return true;
            }
            Some(Question::Full(full, to)) => {
                tell(&mut slice, &to, |device| match full {
                    Full::Stay => Ok(device.full_recording_status()),
                    Full::Begin(wish) => device.begin_full_recording(wish),
                    Full::End(number, reason) => {
                        device.end_full_recording(number, &reason);
                        Ok(device.full_recording_status())
                    }
                });
                return true;
            }
            Some(Question::Qp(number, to)) => {
                tell(&mut slice, &to, |device| {
                    device.qp_figures(number).map(Box::new)
                });
                return true;
            }
            Some(Question::FlightRecording(..)) | None => {}
        }
        let Some(asker) = self.asker.take() else {
            return false;
        };
        let figures = |device: &mut Device, _: &_| device.survey();
        match slice.call(figures) {
            Some(Some(figures)) => {
                let _ = asker.send(figures);
            }
            Some(None) => self.asker = Some(asker),
            None => {}
        }
        true
    }
}

/// Sends the device's answer to the client's thread. Sends nothing if the device has failed and
/// cannot be called any more.
fn tell<T>(slice: &mut Slice<'_>, to: &mpsc::Sender<T>, ask: impl FnOnce(&mut Device) -> T) {
    if let Some(answer) = slice.call(|device, _| ask(device)) {
        let _ = to.send(answer);
    }
}
