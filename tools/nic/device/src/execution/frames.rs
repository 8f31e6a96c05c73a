// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The conversion of packets to bytes, for frames and for the tap.

use crate::capture::{CaptureDirection, CapturedFrame};
use crate::execution::copy::{self, Lookups, Side};
use crate::execution::resources::Resources;
use crate::memory::GuestMemory;
use crate::objects::port::Outgoing;
use verbena_transport::frame;
use verbena_transport::host::{CopyFault, CopyTarget};
use verbena_transport::packet::PacketKind;
use verbena_transport::wire::Path;
use verbena_transport::Packet;

impl Resources {
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
        self.show_crossing(
            mem,
            None,
            out,
            if lost {
                CaptureDirection::Lost
            } else {
                CaptureDirection::Local
            },
        )
    }

    /// Does the same as [`Resources::show_local`] for a packet that goes from one device of the
    /// process to another. The payload lies on the side of `sender`; `None` stands for the guest of
    /// this device.
    #[inline]
    pub fn show_crossing<M: GuestMemory>(
        &mut self,
        mem: &M,
        sender: Option<Side<'_, M>>,
        out: &Outgoing,
        way: CaptureDirection,
    ) -> u64 {
        if self.observers.capture().has_tap() {
            self.show_frames_of(mem, sender, out, way)
        } else {
            0
        }
    }

    #[cold]
    fn show_frames_of<M: GuestMemory>(
        &mut self,
        mem: &M,
        sender: Option<Side<'_, M>>,
        out: &Outgoing,
        way: CaptureDirection,
    ) -> u64 {
        let Some(path) = out.path().copied() else {
            return 0;
        };
        let Some((tap, mut note)) = self.observers.capture_mut().begin() else {
            return 0;
        };
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
                tap.show(CapturedFrame {
                    time: self.clock.now(),
                    direction: way,
                    src_qpn: Some(packet.src_qpn),
                    dst_qpn: Some(packet.dst_qpn),
                    frame,
                    note: note.take(),
                });
            }
        }
        tap.miss(left);
        self.observers.capture_mut().end(tap, note);
        bytes
    }

    /// Shows the tap a frame whose bytes exist already.
    #[cold]
    pub fn show_frame(&mut self, way: CaptureDirection, qpns: [Option<u32>; 2], bytes: &[u8]) {
        let Some((tap, note)) = self.observers.capture_mut().begin() else {
            return;
        };
        if !tap.has_room() {
            tap.miss(1);
        } else {
            let [src_qpn, dst_qpn] = qpns;
            let seen = CapturedFrame {
                time: self.clock.now(),
                direction: way,
                src_qpn,
                dst_qpn,
                frame: bytes.to_vec(),
                note,
            };
            // A rule at the receiver may add a note to the frame.
            match self.faults {
                Some(_) => self.observers.capture_mut().keep_back(seen),
                None => tap.show(seen),
            }
        }
        self.observers.capture_mut().end(tap, None);
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
