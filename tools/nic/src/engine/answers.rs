// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The engine's answers to the control socket: plain data, a bounded portion each.

use super::vm::Vm;
use crate::shared::{Change, Full, Question, Switch};
use crate::slice::Slice;
use std::sync::mpsc;
use verbena_device::Device;

/// Contexts that the engine hands out before a slice.
const CONTEXTS: u32 = 256;
/// The same of queue pairs with all their counters.
const QPS: usize = 64;

impl Vm {
    /// Answers a question, or goes on with the answer to the last one. What the device is asked for takes a bounded time;
    /// the one who asked makes text of it, and may have gone: then the answer is for nobody.
    pub(super) fn answer(&mut self, question: Option<Question>) -> bool {
        if question.is_none() && self.asker.is_none() {
            return false;
        }
        if let Some(Question::Recorded(from, most, to)) = question {
            // Of a device that is dead too.
            let _ = to.send(self.model.recorded(from, most));
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
                tell(&mut slice, &to, |device| device.set_tap(tap));
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
                                return Err(format!("no rule is called {name:?}"));
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
                        Switch::On(entries) => device.record(entries, now),
                        Switch::Off => device.record_no_more(),
                    }
                    device.recorded(u64::MAX, 0)
                });
                return true;
            }
            Some(Question::Full(full, to)) => {
                tell(&mut slice, &to, |device| match full {
                    Full::Stay => Ok(device.fully()),
                    Full::Begin(wish) => device.record_fully(wish),
                    Full::End(number, reason) => {
                        device.record_fully_no_more(number, &reason);
                        Ok(device.fully())
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
            Some(Question::Recorded(..)) | None => {}
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

/// Tells somebody what the device says of itself. Where it cannot be asked any more, nobody is told.
fn tell<T>(slice: &mut Slice<'_>, to: &mpsc::Sender<T>, ask: impl FnOnce(&mut Device) -> T) {
    if let Some(answer) = slice.call(|device, _| ask(device)) {
        let _ = to.send(answer);
    }
}
