// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The place where a reader sees the frames of the port, and the notes about them.

use crate::capture::{CaptureTap, CapturedFrame};
use crate::observation::event::{DeviceEvent, FiredOn, QpEvent};
use crate::observation::EventContext;
use verbena_faults::RuleHook;

/// Approximate length limit of the note of a frame, in bytes: a longer note gets no further text.
const MAX_REMARK: usize = 256;

/// The tap of the port, if there is one, the frame that it was shown last, and a pending note.
///
/// Frames reach the tap in the order in which they were shown. A tap that nobody watches any more
/// is dropped with the next frame.
#[derive(Debug, Default)]
pub struct CapturePoint {
    tap: Option<Box<CaptureTap>>,
    /// The frame that the tap is shown next, kept back while a note may be added to it.
    last: Option<CapturedFrame>,
    /// Text for the note of the next frame.
    remark: Option<String>,
}

impl CapturePoint {
    /// True if there is a tap.
    #[inline]
    pub fn has_tap(&self) -> bool {
        self.tap.is_some()
    }

    /// True if there is a tap and its reader.
    pub fn is_watched(&self) -> bool {
        self.tap.as_ref().is_some_and(|tap| tap.is_watched())
    }

    /// Attaches a tap.
    pub fn attach(&mut self, tap: Box<CaptureTap>) {
        self.tap = Some(tap);
    }

    /// Adds a note about a rule that has just fired. The note belongs to the frame that the rule
    /// fired on, or otherwise to the next frame.
    #[cold]
    pub(super) fn on_event(&mut self, event: &DeviceEvent<'_>, context: &EventContext<'_>) {
        let on = match *event {
            DeviceEvent::PacketJudged { fired: true, .. } => RuleHook::Packet,
            DeviceEvent::RuleFired(FiredOn { on, .. }) => on,
            DeviceEvent::Qp(_, QpEvent::WorkBegun { by_rule: true, .. }) => RuleHook::Send,
            _ => return,
        };
        let Some((rule, _)) = context.last_fired() else {
            return;
        };
        let (name, action) = (&rule.name, rule.action.name());
        self.remark(&match on {
            RuleHook::Packet => format!("rule {name:?}: {action}"),
            _ => format!("before this frame, rule {name:?}: {action}"),
        });
    }

    /// Adds a text about a rule to the note of the next frame that the tap is shown.
    fn remark(&mut self, text: &str) {
        match &mut self.remark {
            Some(note) if note.len() > MAX_REMARK => {}
            Some(note) => {
                note.push_str("; ");
                note.push_str(text);
            }
            None => self.remark = Some(text.into()),
        }
    }

    /// Takes the pending note, for a frame that is shown later.
    pub fn take_remark(&mut self) -> Option<String> {
        self.remark.take()
    }

    /// Makes a note the pending one, if there is a note.
    pub fn put_remark(&mut self, note: Option<String>) {
        if note.is_some() {
            self.remark = note;
        }
    }

    /// Makes the pending note that of the frame that was shown last, unless that frame has a note.
    pub fn remark_on_last(&mut self) {
        if let Some(last) = &mut self.last {
            if last.note.is_none() {
                last.note = self.remark.take();
            }
        }
    }

    /// Gives the frame that was shown last to the tap. No further note can be added to the frame.
    #[inline]
    pub fn show_last(&mut self) {
        if let Some(last) = self.last.take() {
            if let Some(tap) = &self.tap {
                tap.show(last);
            }
        }
    }

    /// Begins to show the frames of a packet: returns the tap and the pending note. The caller
    /// returns both with [`CapturePoint::end`].
    pub fn begin(&mut self) -> Option<(Box<CaptureTap>, Option<String>)> {
        self.show_last();
        let tap = self.tap.take()?;
        Some((tap, self.remark.take()))
    }

    /// Ends the showing of frames. `note` is left for the next frame.
    pub fn end(&mut self, tap: Box<CaptureTap>, note: Option<String>) {
        self.put_remark(note);
        self.tap = tap.is_watched().then_some(tap);
    }

    /// Keeps a frame back as the last one until the next frame is shown.
    pub fn keep_back(&mut self, seen: CapturedFrame) {
        self.last = Some(seen);
    }
}
