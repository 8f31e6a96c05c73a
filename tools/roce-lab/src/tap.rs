// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A tap on a simulated link: it is shown each frame that is sent, with what the simulation knows of it.

use std::cell::RefCell;
use std::fmt::Debug;
use std::rc::Rc;
use verbena_roce::host::WqeOpcode;
use verbena_roce::packet::Packet;

/// What becomes of a frame that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It goes its way.
    Passes,
    /// It is lost.
    Lost,
    /// Bits of it are flipped.
    Corrupted,
}

/// The work request that a packet belongs to: its own, or for a response the one that it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// `wr_id`.
    pub wr_id: u64,
    /// Operation.
    pub opcode: WqeOpcode,
    /// First PSN.
    pub first_psn: u32,
    /// Number of PSNs: its packets, or the responses of a READ.
    pub psns: u32,
    /// Path MTU in bytes.
    pub path_mtu: u32,
}

/// A frame that was sent.
#[derive(Clone, Copy, Debug)]
pub struct Sight<'a> {
    /// Virtual time in nanoseconds.
    pub now: u64,
    /// The bytes, as the sender made them.
    pub frame: &'a [u8],
    /// What they were made of.
    pub packet: &'a Packet,
    /// The work request, where the simulation knows it.
    pub work: Option<Work>,
    /// What becomes of it.
    pub fate: Fate,
    /// Its payload is zeros, as the simulation did not read it: the packet goes by reference, or is lost.
    pub is_hollow: bool,
}

/// Whoever watches a link. What it does changes nothing in the simulation.
pub trait Tap: Debug {
    /// A frame was sent.
    fn see(&mut self, sight: &Sight<'_>);

    /// A queue pair begins anew, with other PSNs.
    fn begins(&mut self, qpn: u32) {
        let _ = qpn;
    }
}

/// A tap that its owner keeps hold of.
impl<T: Tap> Tap for Rc<RefCell<T>> {
    fn see(&mut self, sight: &Sight<'_>) {
        self.borrow_mut().see(sight);
    }

    fn begins(&mut self, qpn: u32) {
        self.borrow_mut().begins(qpn);
    }
}
