// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The engine's answers to the control socket: plain data, in bounded portions.

use super::vm::Vm;
use crate::vm_device::Slice;
use crate::vm_state::{EngineRequest, FullRecordingChange, RecorderChange, RuleChange};
use std::sync::mpsc;
use verbena_device::Device;

/// Largest number of contexts that the engine returns before a slice.
const MAX_CONTEXTS: u32 = 256;
/// Largest number of queue pairs, with all their counters, that the engine returns before a slice.
const MAX_QPS: usize = 64;

impl Vm {
    /// Handles a request, or continues the answer to the last one. Each call takes a bounded time
    /// of the device; the client's thread makes text of the answer. If that thread has gone, the
    /// answer is dropped. Returns true if there was any work.
    pub(super) fn handle_request(&mut self, request: Option<EngineRequest>) -> bool {
        if request.is_none() && self.stats_requester.is_none() {
            return false;
        }
        if let Some(EngineRequest::FlightRecording(from, max, to)) = request {
            // A device that has failed still has its recording.
            let _ = to.send(self.device.flight_recording(from, max));
            return true;
        }
        let mut slice = self.device.slice();
        match request {
            Some(EngineRequest::Stats(to)) => self.stats_requester = Some(to),
            Some(EngineRequest::ContextPortion(from, to)) => {
                reply(&mut slice, &to, |device| {
                    device.contexts(from, MAX_CONTEXTS)
                });
                return true;
            }
            Some(EngineRequest::Port(to)) => {
                reply(&mut slice, &to, |device| device.port_figures());
                return true;
            }
            Some(EngineRequest::QpPortion(from, to)) => {
                reply(&mut slice, &to, |device| {
                    device.all_qp_figures(from, MAX_QPS)
                });
                return true;
            }
            Some(EngineRequest::AttachTap(tap, to)) => {
                reply(&mut slice, &to, |device| device.attach_capture(tap));
                return true;
            }
            Some(EngineRequest::ChangeRules(change, to)) => {
                let now = self.shared.now();
                reply(&mut slice, &to, |device| {
                    match change {
                        RuleChange::Unchanged => {}
                        RuleChange::Add(set, owner) => device.add_rules(&set, owner, now)?,
                        RuleChange::Remove(name) => {
                            if !device.remove_rule(&name) {
                                return Err(format!(
                                    "there is no rule {name:?} (verbenactl fault list shows all)"
                                ));
                            }
                        }
                        RuleChange::RemoveOf(owner) => device.remove_rules_of(owner),
                        RuleChange::Clear => device.clear_rules(),
                    }
                    Ok(device.rules())
                });
                return true;
            }
            Some(EngineRequest::Recorder(change, to)) => {
                let now = self.shared.now();
                reply(&mut slice, &to, |device| {
                    match change {
                        RecorderChange::Unchanged => {}
                        RecorderChange::On(entries) => device.begin_flight_recording(entries, now),
                        RecorderChange::Off => device.end_flight_recording(),
                    }
                    device.flight_recording(u64::MAX, 0)
                });
                return true;
            }
            Some(EngineRequest::FullRecording(change, to)) => {
                reply(&mut slice, &to, |device| match change {
                    FullRecordingChange::Unchanged => Ok(device.full_recording_status()),
                    FullRecordingChange::Begin(wish) => device.begin_full_recording(wish),
                    FullRecordingChange::End(number, reason) => {
                        device.end_full_recording(number, &reason);
                        Ok(device.full_recording_status())
                    }
                });
                return true;
            }
            Some(EngineRequest::Qp(number, to)) => {
                reply(&mut slice, &to, |device| {
                    device.qp_figures(number).map(Box::new)
                });
                return true;
            }
            Some(EngineRequest::FlightRecording(..)) | None => {}
        }
        let Some(stats_requester) = self.stats_requester.take() else {
            return false;
        };
        let figures = |device: &mut Device, _: &_| device.survey();
        match slice.call(figures) {
            Some(Some(figures)) => {
                let _ = stats_requester.send(figures);
            }
            Some(None) => self.stats_requester = Some(stats_requester),
            None => {}
        }
        true
    }
}

/// Sends the device's answer to the client's thread. Sends nothing if the device has failed and
/// cannot be called any more.
fn reply<T>(slice: &mut Slice<'_>, to: &mpsc::Sender<T>, query: impl FnOnce(&mut Device) -> T) {
    if let Some(answer) = slice.call(|device, _| query(device)) {
        let _ = to.send(answer);
    }
}
