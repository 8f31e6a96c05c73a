// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Attaches a file to a TAP device of the kernel. This call has no safe interface, so this file has
//! nothing else.
#![allow(unsafe_code)]

use rustix::fd::AsFd;
use rustix::io::Result;
use rustix::ioctl::{ioctl, opcode, Opcode, Setter};

/// Length of the longest name of an interface with its terminating zero.
pub const IFNAMSIZ: usize = 16;

/// `struct ifreq`, as far as TUNSETIFF uses it.
#[repr(C)]
struct IfReq {
    name: [u8; IFNAMSIZ],
    flags: u16,
    rest: [u8; 22],
}

const _: () = assert!(size_of::<IfReq>() == 40);

/// TUNSETIFF, whose number claims that its argument is an `int`.
const SET: Opcode = opcode::write::<i32>(b'T', 202);
/// Flags for Ethernet frames without a prefix: IFF_TAP and IFF_NO_PI.
const FLAGS: u16 = 0x1002;

/// Attaches a file of /dev/net/tun to a network interface, which is created if there is none of
/// that name.
///
/// # Errors
///
/// The kernel refuses: the process lacks the right, or another program has the interface.
pub fn attach(file: impl AsFd, name: [u8; IFNAMSIZ]) -> Result<()> {
    let ifreq = IfReq {
        name,
        flags: FLAGS,
        rest: [0; 22],
    };
    // SAFETY: TUNSETIFF moves data in the direction of the opcode; that the data is an `IfReq` is
    // a condition of the next call.
    let ifreq = unsafe { Setter::<SET, IfReq>::new(ifreq) };
    // SAFETY: TUNSETIFF reads a `struct ifreq`, 40 bytes on 64-bit machines, and writes the name
    // and the flags back into it. `IfReq` has this layout, all of its bit patterns are valid, and
    // it lives for the time of the call.
    unsafe { ioctl(file, ifreq) }
}
