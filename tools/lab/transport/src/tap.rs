// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A tap on a simulated link. The tap is shown each frame that is sent, with the information that
//! the simulation has about it.

use std::cell::RefCell;
use std::fmt::Debug;
use std::rc::Rc;
use verbena_transport::host::WqeOpcode;
use verbena_transport::packet::Packet;

/// The fate of a frame that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameFate {
    /// The frame travels to its destination.
    Delivered,
    /// The frame is lost.
    Lost,
    /// Bits of the frame are flipped.
    Corrupted,
}

/// The work request that a packet belongs to. A response belongs to the work request that it
/// answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkRequestInfo {
    /// Identifier of the work request.
    pub wr_id: u64,
    /// Operation of the work request.
    pub opcode: WqeOpcode,
    /// First PSN of the work request.
    pub first_psn: u32,
    /// Number of PSNs: packets, or the responses of a READ.
    pub psns: u32,
    /// Path MTU in bytes.
    pub path_mtu: u32,
}

/// A frame that was sent.
#[derive(Clone, Copy, Debug)]
pub struct TappedFrame<'a> {
    /// Virtual time in nanoseconds.
    pub now_ns: u64,
    /// Bytes of the frame, as the sender made them.
    pub frame: &'a [u8],
    /// Packet that the frame was made of.
    pub packet: &'a Packet,
    /// Work request of the packet, where the simulation knows it.
    pub work: Option<WorkRequestInfo>,
    /// Fate of the frame.
    pub fate: FrameFate,
    /// True if the payload is zeros because the simulation did not read it: the packet travels by
    /// reference, or is lost.
    pub is_hollow: bool,
}

/// An observer of a link. Its actions do not change the simulation.
pub trait FrameTap: Debug {
    /// Shows a frame that was sent.
    fn on_frame(&mut self, sight: &TappedFrame<'_>);

    /// Reports that a queue pair begins anew, with other PSNs.
    fn on_connect(&mut self, qpn: u32) {
        let _ = qpn;
    }
}

/// A tap to which its owner keeps a reference.
impl<T: FrameTap> FrameTap for Rc<RefCell<T>> {
    fn on_frame(&mut self, sight: &TappedFrame<'_>) {
        self.borrow_mut().on_frame(sight);
    }

    fn on_connect(&mut self, qpn: u32) {
        self.borrow_mut().on_connect(qpn);
    }
}
