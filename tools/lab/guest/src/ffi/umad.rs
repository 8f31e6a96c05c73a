// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Management datagrams (MADs), through the kernel's `/dev/infiniband/umadN`
//! (`<rdma/ib_user_mad.h>`).
#![allow(unsafe_code)]

use super::sys::{readable, Errno};
use super::Gid;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;

/// Length of a datagram in bytes.
pub const MAD: usize = 256;
/// Length of `struct ib_user_mad_hdr` in bytes.
const HEADER: usize = 64;
const GSI: u8 = 1;
const GSI_QKEY: u32 = 0x8001_0000;
/// Time after which the kernel retransmits a request that has no response.
const TIMEOUT_MS: u32 = 2000;
const RETRIES: u32 = 5;

/// `struct ib_user_mad_reg_req`.
#[repr(C)]
struct MadRegistration {
    id: u32,
    method_mask: [u32; 4],
    qpn: u8,
    mgmt_class: u8,
    mgmt_class_version: u8,
    oui: [u8; 3],
    rmpp_version: u8,
}

/// `IB_USER_MAD_REGISTER_AGENT` and `IB_USER_MAD_ENABLE_PKEY`.
const REGISTER: libc::c_ulong = 0xc01c_1b01;
const ENABLE_PKEY: libc::c_ulong = 0x1b03;
const _: () = assert!(size_of::<MadRegistration>() == 0x1c);

/// A client that sends requests of one management class.
pub struct Agent {
    file: File,
    id: u32,
}

impl Agent {
    /// Registers a client for requests of a management class.
    pub fn new(path: &str, mgmt_class: u8) -> io::Result<Agent> {
        let file = File::options().read(true).write(true).open(path)?;
        let mut registration = MadRegistration {
            id: 0,
            method_mask: [0; 4],
            qpn: GSI,
            mgmt_class,
            mgmt_class_version: 1,
            oui: [0; 3],
            rmpp_version: 0,
        };
        // SAFETY: the call has no pointers.
        if unsafe { libc::ioctl(file.as_raw_fd(), ENABLE_PKEY) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the structure has the size that the ioctl number contains, and the kernel fills
        // it.
        if unsafe { libc::ioctl(file.as_raw_fd(), REGISTER, &raw mut registration) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let id = registration.id;
        Ok(Agent { file, id })
    }

    /// Sends a request to QPN 1 of a port, and returns the response.
    pub fn request(&mut self, to: Gid, gid_index: u8, mad: &[u8; MAD]) -> io::Result<[u8; MAD]> {
        let mut message = [0; HEADER + MAD];
        message[..4].copy_from_slice(&self.id.to_ne_bytes());
        message[8..12].copy_from_slice(&TIMEOUT_MS.to_ne_bytes());
        message[12..16].copy_from_slice(&RETRIES.to_ne_bytes());
        message[20..24].copy_from_slice(&u32::from(GSI).to_be_bytes());
        message[24..28].copy_from_slice(&GSI_QKEY.to_be_bytes());
        // The datagram has a GRH, because RoCE does not route by LIDs.
        (message[32], message[33], message[34]) = (1, gid_index, 64);
        message[36..52].copy_from_slice(&to.raw);
        message[HEADER..].copy_from_slice(mad);
        self.file.write_all(&message)?;
        let limit = TIMEOUT_MS * (RETRIES + 2);
        if !readable(self.file.as_raw_fd(), limit as i32) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let length = self.file.read(&mut message)?;
        let mut status = [0; 4];
        status.copy_from_slice(&message[4..8]);
        match u32::from_ne_bytes(status) {
            0 if length == message.len() => {
                let mut answer = [0; MAD];
                answer.copy_from_slice(&message[HEADER..]);
                Ok(answer)
            }
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            errno => Err(io::Error::other(Errno(errno as i32).to_string())),
        }
    }
}
