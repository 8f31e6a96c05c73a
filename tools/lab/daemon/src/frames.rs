// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Frames of an attacker who knows all addresses, QPNs and PSNs, and uses any of the addresses as
//! the source.

use crate::end::{FAR, GROUP, IPS, MACS, OTHER};
use verbena_device::mock::gid;
use verbena_device::objects::mcast;
use verbena_lab_transport::fuzz::frames::repair_frame;
use verbena_lab_transport::fuzz::FuzzInput;

/// Bits of the byte that selects the shape of a frame.
mod shape {
    /// Argument for `mend`: types, lengths, checksums, port, BTH and ICRC are made valid.
    pub const RIGHT: u8 = 0x3f;
    /// With both bits set, the frame consists of arbitrary bytes.
    pub const ANY: u8 = 3;
    pub const TAG: u8 = 1 << 2;
    pub const IPV6: u8 = 1 << 3;
    /// One byte of the frame is changed.
    pub const SPOIL: u8 = 1 << 4;
    /// The end of the frame is missing.
    pub const CUT: u8 = 1 << 5;
}

/// Returns the next frame of an input. `qpns` contains the numbers of existing QPs, whose PSNs
/// started at 0xfffffe.
pub fn next(input: &mut FuzzInput<'_>, qpns: &[u32]) -> Vec<u8> {
    let how = input.u8();
    if how & shape::ANY == shape::ANY {
        let length = usize::from(input.u8());
        return take(input, length);
    }
    let group = mcast::mac(&gid(GROUP));
    let stations = [
        MACS[2], MACS[0], MACS[1], FAR.0, [0xff; 6], group, [0; 6], OTHER,
    ];
    let ips = [IPS[2], IPS[0], IPS[1], FAR.1, GROUP, [10, 0, 0, 21]];
    let mut frame = Vec::with_capacity(200);
    frame.extend(input.pick(&stations));
    frame.extend(input.pick(&stations));
    let addresses = [input.pick(&ips), input.pick(&ips)];
    if how & shape::TAG != 0 {
        frame.extend([0x81, 0, 0, input.u8()]);
    }
    frame.extend([0; 2]);
    if how & shape::IPV6 != 0 {
        frame.extend([0, 0, 0, 0, 0, 0, 17, 64]);
        let mapped = input.u8() & 1 != 0;
        for ip in addresses {
            let mut gid = gid(ip);
            if !mapped {
                gid[..12].copy_from_slice(&[0xfd; 12]);
            }
            frame.extend(gid);
        }
    } else {
        frame.extend([0, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0]);
        frame.extend(addresses.concat());
    }
    // UDP header.
    frame.extend([0xc0, 1, 0, 0, 0, 0, 0, 0]);
    let (opcode, flags) = (input.u8(), input.u8());
    let qpn = input.pick(qpns);
    let psn = 0xff_fffe_u32.wrapping_add_signed(i32::from(input.u8() as i8));
    frame.extend([opcode, flags & 0x40, 0xff, 0xff]);
    frame.extend(qpn.to_be_bytes());
    frame.extend((u32::from(flags) << 24 & 0x8000_0000 | psn & 0xff_ffff).to_be_bytes());
    let length = usize::from(input.u8() & 0x7f);
    frame.extend(take(input, length));
    // Room for the ICRC.
    frame.extend([0; 4]);
    let tag = if how & shape::TAG != 0 { 0x40 } else { 0 };
    let ipv6 = if how & shape::IPV6 != 0 { 0x80 } else { 0 };
    repair_frame(shape::RIGHT | tag | ipv6, &mut frame);
    if how & shape::SPOIL != 0 {
        let at = usize::from(input.u8()) % frame.len();
        frame[at] ^= input.u8();
    }
    if how & shape::CUT != 0 {
        frame.truncate(usize::from(input.u8()));
    }
    frame
}

fn take(input: &mut FuzzInput<'_>, length: usize) -> Vec<u8> {
    let length = length.min(input.rest().len());
    (0..length).map(|_| input.u8()).collect()
}
