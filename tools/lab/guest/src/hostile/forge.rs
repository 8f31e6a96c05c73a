// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Forged work queue entries: valid entries in which one or two fields are invalid.
use crate::ffi::mr::Mr;
use crate::pattern::PatternRng;
use std::mem::offset_of;
use verbena_abi::wqe::{RecvWqe, SendWqe, Sge, WqeOpcode, DATA_OFFSET, DATA_OFFSET_ATOMIC};

/// The regions and addresses that a forged entry may refer to.
pub struct ForgeTargets<'a> {
    /// Valid local memory. `remote` is a valid address and key of the peer.
    pub mr: &'a Mr,
    pub remote: (u64, u32),
    /// Memory without the right of local write.
    pub read_only: &'a Mr,
    /// Memory of another PD.
    pub foreign: &'a Mr,
}

/// The bytes of an entry.
pub struct ForgedWqe(pub Vec<u8>);

impl ForgedWqe {
    fn put(&mut self, off: usize, bytes: &[u8]) {
        if let Some(to) = self.0.get_mut(off..off + bytes.len()) {
            to.copy_from_slice(bytes);
        }
    }

    fn sge(&mut self, off: usize, addr: u64, length: u32, lkey: u32) {
        self.put(off + offset_of!(Sge, addr), &addr.to_le_bytes());
        self.put(off + offset_of!(Sge, length), &length.to_le_bytes());
        self.put(off + offset_of!(Sge, lkey), &lkey.to_le_bytes());
    }
}

/// Returns an unusual value for a 32-bit field whose valid value is `good`.
fn unusual32(rng: &mut PatternRng, good: u32) -> u32 {
    match rng.below(8) {
        0 => 0,
        1 => u32::MAX,
        2 => good.wrapping_add(1),
        3 => good ^ (1 << rng.below(32)),
        4 => 0x8000_0000,
        5 => 0x7fff_ffff,
        6 => rng.below(4096) as u32,
        _ => rng.next_u64() as u32,
    }
}

fn unusual64(rng: &mut PatternRng, good: u64) -> u64 {
    match rng.below(7) {
        0 => 0,
        1 => u64::MAX,
        2 => u64::MAX - rng.below(64),
        3 => good.wrapping_add(rng.below(1 << 20)),
        4 => good.wrapping_sub(1 + rng.below(64)),
        5 => good ^ (1 << rng.below(64)),
        _ => rng.next_u64(),
    }
}

/// Returns address, length and key of an SGE that is invalid in one of several ways.
fn unusual_sge(rng: &mut PatternRng, targets: &ForgeTargets<'_>) -> (u64, u32, u32) {
    let good = targets.mr;
    match rng.below(6) {
        0 => (good.at(0), 64, unusual32(rng, good.lkey())),
        1 => (targets.foreign.at(0), 64, targets.foreign.lkey()),
        2 => (targets.read_only.at(0), 64, targets.read_only.lkey()),
        3 => (unusual64(rng, good.at(0)), 64, good.lkey()),
        4 => (good.at(0), unusual32(rng, 64), good.lkey()),
        _ => (good.at(good.buf.len() - 8), 64, good.lkey()),
    }
}

/// Returns a send entry of `stride` bytes.
pub fn send(
    rng: &mut PatternRng,
    stride: usize,
    targets: &ForgeTargets<'_>,
    wr_id: u64,
) -> ForgedWqe {
    let mut e = ForgedWqe(vec![0; stride]);
    let all = WqeOpcode::ALL;
    let opcode = all[rng.below(all.len() as u64) as usize].to_raw();
    let atomic =
        opcode == WqeOpcode::CompareSwap.to_raw() || opcode == WqeOpcode::FetchAdd.to_raw();
    let inline = !atomic && opcode < WqeOpcode::RdmaRead.to_raw() && rng.below(4) == 0;
    let length = if atomic { 8 } else { rng.below(3000) as u32 };
    e.put(offset_of!(SendWqe, opcode), &[opcode]);
    // The flags are FENCE 1, SIGNALED 2, SOLICITED 4, INLINE 8.
    let flags = 2 | (rng.below(2) as u8) | (rng.below(2) as u8) << 2 | u8::from(inline) << 3;
    e.put(offset_of!(SendWqe, flags), &[flags]);
    e.put(offset_of!(SendWqe, num_sge), &[u8::from(!inline)]);
    e.put(offset_of!(SendWqe, wr_id), &wr_id.to_le_bytes());
    e.put(
        offset_of!(SendWqe, remote_addr),
        &targets.remote.0.to_le_bytes(),
    );
    e.put(offset_of!(SendWqe, rkey), &targets.remote.1.to_le_bytes());
    let data = if atomic {
        DATA_OFFSET_ATOMIC
    } else {
        DATA_OFFSET
    };
    if inline {
        e.put(
            offset_of!(SendWqe, inline_length),
            &(rng.below(48) as u32).to_le_bytes(),
        );
    } else {
        e.sge(data, targets.mr.at(0), length, targets.mr.lkey());
    }
    for _ in 0..rng.below(3) {
        match rng.below(12) {
            0 => e.put(offset_of!(SendWqe, opcode), &[rng.next_u64() as u8]),
            1 => e.put(offset_of!(SendWqe, flags), &[rng.next_u64() as u8]),
            2 => e.put(offset_of!(SendWqe, num_sge), &[rng.next_u64() as u8]),
            3 => {
                let v = unusual32(rng, 16);
                e.put(offset_of!(SendWqe, inline_length), &v.to_le_bytes());
            }
            4 => {
                let v = unusual64(rng, targets.remote.0);
                e.put(offset_of!(SendWqe, remote_addr), &v.to_le_bytes());
            }
            5 => {
                let v = unusual32(rng, targets.remote.1);
                e.put(offset_of!(SendWqe, rkey), &v.to_le_bytes());
            }
            6 => {
                // The lengths of these two SGEs add up to more than any message.
                e.put(offset_of!(SendWqe, num_sge), &[2]);
                e.sge(data, targets.mr.at(0), 0x7fff_ffff, targets.mr.lkey());
                e.sge(data + 16, targets.mr.at(0), 0x7fff_ffff, targets.mr.lkey());
            }
            7 => {
                let (off, bit) = (rng.below(stride as u64) as usize, rng.below(8));
                e.0[off] ^= 1 << bit;
            }
            _ => {
                let (addr, length, lkey) = unusual_sge(rng, targets);
                e.sge(data, addr, length, lkey);
            }
        }
    }
    e
}

/// Returns a receive entry of `stride` bytes.
pub fn recv(
    rng: &mut PatternRng,
    stride: usize,
    targets: &ForgeTargets<'_>,
    wr_id: u64,
) -> ForgedWqe {
    let mut e = ForgedWqe(vec![0; stride]);
    let data = size_of::<RecvWqe>();
    e.put(offset_of!(RecvWqe, wr_id), &wr_id.to_le_bytes());
    e.put(offset_of!(RecvWqe, num_sge), &[1]);
    e.sge(data, targets.mr.at(0), 4096, targets.mr.lkey());
    match rng.below(6) {
        0 => e.put(offset_of!(RecvWqe, num_sge), &[rng.next_u64() as u8]),
        1 => e.sge(
            data,
            targets.mr.at(0),
            rng.below(16) as u32,
            targets.mr.lkey(),
        ),
        2 => {
            let off = rng.below(stride as u64) as usize;
            e.0[off] ^= 1 << rng.below(8);
        }
        3 | 4 => {
            let (addr, length, lkey) = unusual_sge(rng, targets);
            e.sge(data, addr, length, lkey);
        }
        _ => {}
    }
    e
}
