// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The conversion of packets to bytes, for frames and for the tap.

use crate::execution::copy::{self, Lookups, Side};
use crate::execution::shared::Shared;
use crate::memory::GuestMemory;
use crate::objects::port::Outgoing;
use crate::tap::{Seen, Way};
use verbena_transport::host::{CopyFault, CopyTarget};
use verbena_transport::packet::PacketKind;
use verbena_transport::wire::{frame, Path};
use verbena_transport::Packet;

/// Approximate length limit of the note of a frame, in bytes: a longer note gets no further text.
const MAX_REMARK: usize = 256;

impl Shared {
    /// Appends the frame of a single packet to a buffer.
    ///
    /// # Errors
    ///
    /// Fails if the payload of the packet cannot be reached.
    pub fn emit<M: GuestMemory>(
        &mut self,
        mem: &M,
        path: &Path,
        packet: &Packet,
        room: &mut Vec<u8>,
    ) -> Result<(), CopyFault> {
        let own = Side {
            mem,
            regions: &self.mrs,
        };
        emit_from(own, &mut self.lookups, path, packet, room)
    }

    /// Appends the frame of a single packet, whose payload lies on another side, to a buffer.
    ///
    /// # Errors
    ///
    /// Fails if the payload of the packet cannot be reached.
    pub fn emit_of<M: GuestMemory>(
        &mut self,
        sender: Side<'_, M>,
        path: &Path,
        packet: &Packet,
        room: &mut Vec<u8>,
    ) -> Result<(), CopyFault> {
        emit_from(sender, &mut self.lookups, path, packet, room)
    }

    /// Shows the tap, if there is one, a packet that goes from one queue pair to another by
    /// reference, as the frames that the packet stands for. Returns the number of bytes of these
    /// frames.
    #[inline]
    pub fn show_local<M: GuestMemory>(&mut self, mem: &M, out: &Outgoing, lost: bool) -> u64 {
        self.show_crossing(mem, None, out, if lost { Way::Lost } else { Way::Local })
    }

    /// Does the same as [`Shared::show_local`] for a packet that goes from one device of the
    /// process to another. The payload lies on the side of `sender`; `None` stands for the guest of
    /// this device.
    #[inline]
    pub fn show_crossing<M: GuestMemory>(
        &mut self,
        mem: &M,
        sender: Option<Side<'_, M>>,
        out: &Outgoing,
        way: Way,
    ) -> u64 {
        if self.tap.is_some() {
            self.show_frames_of(mem, sender, out, way)
        } else {
            0
        }
    }

    /// Adds a text about a rule to the note of the next frame that the tap is shown.
    #[cold]
    pub fn remark(&mut self, what: &str) {
        if self.tap.is_none() {
            return;
        }
        match &mut self.remark {
            Some(text) if text.len() > MAX_REMARK => {}
            Some(text) => {
                text.push_str("; ");
                text.push_str(what);
            }
            None => self.remark = Some(what.into()),
        }
    }

    /// Makes the pending text about a rule the note of the frame that was shown last, unless that
    /// frame has a note.
    pub fn remark_on_last(&mut self) {
        if let Some(last) = &mut self.shown {
            if last.note.is_none() {
                last.note = self.remark.take();
            }
        }
    }

    /// Gives the frame that was shown last to the tap. No further note can be added to the frame.
    #[inline]
    pub fn show_last(&mut self) {
        if let Some(last) = self.shown.take() {
            if let Some(tap) = &self.tap {
                tap.show(last);
            }
        }
    }

    #[cold]
    fn show_frames_of<M: GuestMemory>(
        &mut self,
        mem: &M,
        sender: Option<Side<'_, M>>,
        out: &Outgoing,
        way: Way,
    ) -> u64 {
        let Some(path) = out.path().copied() else {
            return 0;
        };
        self.show_last();
        let Some(tap) = self.tap.take() else {
            return 0;
        };
        let mut note = self.remark.take();
        let mut bytes = 0;
        // A READ request has the PSNs of its responses.
        let mut left = match out.packet.kind {
            PacketKind::ReadRequest(_) => 1,
            _ => out.packet.psns,
        };
        for packet in out.packet.clone().split(out.mtu) {
            // Later frames would have no room either.
            if !tap.has_room() {
                break;
            }
            left = left.saturating_sub(1);
            let mut frame = Vec::new();
            let own = Side {
                mem,
                regions: &self.mrs,
            };
            let from = sender.unwrap_or(own);
            let is_whole = packet.payload.is_alive()
                && emit_from(from, &mut self.lookups, &path, &packet, &mut frame).is_ok();
            // A packet whose payload cannot be read is not delivered either.
            if is_whole {
                bytes += frame.len() as u64;
                tap.show(Seen {
                    time: self.now,
                    way,
                    src_qpn: Some(packet.src_qpn),
                    dst_qpn: Some(packet.dst_qpn),
                    frame,
                    note: note.take(),
                });
            }
        }
        tap.miss(left);
        if note.is_some() {
            self.remark = note;
        }
        self.tap = tap.is_watched().then_some(tap);
        bytes
    }

    /// Shows the tap a frame whose bytes exist already.
    #[cold]
    pub fn show_frame(&mut self, way: Way, qpns: [Option<u32>; 2], bytes: &[u8]) {
        self.show_last();
        let Some(tap) = self.tap.take() else {
            return;
        };
        let note = self.remark.take();
        if !tap.has_room() {
            tap.miss(1);
        } else {
            let [src_qpn, dst_qpn] = qpns;
            let seen = Seen {
                time: self.now,
                way,
                src_qpn,
                dst_qpn,
                frame: bytes.to_vec(),
                note,
            };
            // A rule at the receiver may add a note to the frame.
            match self.lab {
                Some(_) => self.shown = Some(seen),
                None => tap.show(seen),
            }
        }
        self.tap = tap.is_watched().then_some(tap);
    }
}

/// Appends the frame of a single packet to a buffer. The payload lies on the side of `sender`.
fn emit_from<M: GuestMemory>(
    sender: Side<'_, M>,
    lookups: &mut Lookups,
    path: &Path,
    packet: &Packet,
    room: &mut Vec<u8>,
) -> Result<(), CopyFault> {
    frame::emit(path, packet, room, |buffer| {
        let to = CopyTarget::Buffer(buffer);
        copy::copy(sender, sender, lookups, to, packet.payload.source())
    })
}
