// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Asks the kernel for a TAP device. No safe interface has this one call, so this file has nothing else.
#![allow(unsafe_code)]

use rustix::fd::AsFd;
use rustix::io::Result;
use rustix::ioctl::{ioctl, opcode, Opcode, Setter};

/// The longest name, and the zero behind it.
pub const NAME: usize = 16;

/// `struct ifreq`, as far as TUNSETIFF knows it.
#[repr(C)]
struct Request {
    name: [u8; NAME],
    flags: u16,
    rest: [u8; 22],
}

const _: () = assert!(size_of::<Request>() == 40);

/// TUNSETIFF, whose number says that it takes an `int`.
const SET: Opcode = opcode::write::<i32>(b'T', 202);
/// Ethernet frames with nothing before them: IFF_TAP and IFF_NO_PI.
const FLAGS: u16 = 0x1002;

/// Makes a file of /dev/net/tun the other end of a network interface, which is made if there is none of that name.
///
/// # Errors
///
/// The kernel refuses: no right to, or another program has it.
pub fn attach(file: impl AsFd, name: [u8; NAME]) -> Result<()> {
    let request = Request {
        name,
        flags: FLAGS,
        rest: [0; 22],
    };
    // SAFETY: the number says in which direction and how much TUNSETIFF moves; that it moves a `Request` is the next call's.
    let request = unsafe { Setter::<SET, Request>::new(request) };
    // SAFETY: TUNSETIFF reads a `struct ifreq`, 40 bytes on 64-bit machines, and writes the name and the flags back into it.
    // That is a `Request`, all of whose bit patterns are valid, and it lives as long as the call.
    unsafe { ioctl(file, request) }
}
