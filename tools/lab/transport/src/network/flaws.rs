// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The faults of a work request: deliberate ones, and operations that the connection does not
//! allow.

use super::actor::pieces;
use super::memory::{Owner, LONGEST};
use super::work::{Fault, Op};
use super::Network;
use verbena_abi::ctx::access;
use verbena_transport::host::{Sge, Syndrome, WcStatus, WqeError, WqeOpcode};
use verbena_transport::QpType;

/// A key that no region has.
pub(super) const BAD_KEY: u32 = 0x00ff_ff77;

impl Network {
    /// Gives a work request a deliberate fault (`wrong`), or the fault of an operation that the
    /// connection does not allow.
    pub(super) fn flaw(&mut self, me: usize, op: &mut Op, wrong: bool) {
        let end = &self.lab.ends[me];
        let (qp_type, reads) = (end.qp_type, end.attr.max_rd_atomic);
        let flags = self.lab.ends[end.peer].attr.access_flags;
        if wrong {
            self.spoil(me, op);
        }
        if op.stays() {
            return;
        }
        if op.responds() && reads == 0 {
            op.fault = Fault::NoReads;
        } else if qp_type != QpType::Ud {
            let needs = match op.wqe.opcode {
                WqeOpcode::RdmaWrite | WqeOpcode::RdmaWriteImm | WqeOpcode::AtomicWrite => {
                    access::REMOTE_WRITE
                }
                WqeOpcode::Flush => access::FLUSH_GLOBAL,
                WqeOpcode::RdmaRead => access::REMOTE_READ,
                WqeOpcode::CompareSwap | WqeOpcode::FetchAdd => access::REMOTE_ATOMIC,
                _ => 0,
            };
            if flags & needs != needs {
                op.fault = Fault::Disabled;
            }
        }
    }

    /// Draws a fault, and applies it if it fits the work request.
    fn spoil(&mut self, me: usize, op: &mut Op) {
        let end = &self.lab.ends[me];
        let (qp_type, peer_pd) = (end.qp_type, 100 + end.peer as u32);
        let has_sge = op.sges.iter().any(|sge| sge.length > 0);
        let remote = op.wqe.rkey != 0 && op.length > 0;
        let drawn = match self.rng.below(15) {
            _ if qp_type == QpType::Ud && self.rng.chance(30) => Fault::Qkey,
            0 | 1 => Fault::RkeyUnknown,
            2 => Fault::RkeyBounds,
            3 => Fault::RkeyAccess,
            4 => Fault::RkeyPd,
            5 => Fault::Misaligned,
            6 => Fault::LkeyUnknown,
            7 => Fault::LkeyBounds,
            8 => Fault::TooLong,
            9 => Fault::AtomicLength,
            10 => Fault::Malformed,
            11 => match op.wqe.opcode {
                WqeOpcode::LocalInv => Fault::LocalInvalidate,
                WqeOpcode::SendInv => Fault::RemoteInvalidate,
                _ => Fault::Malformed,
            },
            12 => Fault::Opcode,
            14 => Fault::LkeyAccess,
            _ if qp_type == QpType::Ud => Fault::OverMtu,
            _ => Fault::Malformed,
        };
        let writes_word = op.wqe.opcode == WqeOpcode::AtomicWrite;
        let fits = match drawn {
            Fault::RkeyUnknown | Fault::RkeyBounds | Fault::RkeyPd => remote,
            Fault::RkeyAccess => remote && !op.is_atomic(),
            Fault::Misaligned => op.is_atomic() || writes_word,
            Fault::AtomicLength => op.is_atomic() || writes_word && op.inline.is_empty(),
            Fault::LkeyUnknown | Fault::LkeyBounds => has_sge,
            Fault::LkeyAccess => has_sge && op.responds() && !op.is_placed(),
            Fault::TooLong => {
                !op.is_silent() && !op.is_atomic() && !op.is_placed() && op.inline.is_empty()
            }
            Fault::Opcode => qp_type != QpType::Rc && op.inline.is_empty(),
            _ => true,
        };
        if !fits {
            return;
        }
        op.fault = drawn;
        let memory = &mut self.lab.memory;
        match drawn {
            Fault::RkeyUnknown => op.wqe.rkey = BAD_KEY,
            Fault::RkeyBounds if op.is_atomic() || writes_word || self.rng.chance(40) => {
                op.wqe.remote_addr += 0x1_0000;
            }
            // The range begins within the region, so the first packets alone would be good.
            Fault::RkeyBounds => {
                let ahead = 8 + self.rng.below(u64::from(op.length));
                op.wqe.remote_addr += ahead;
                if op.responds() {
                    // The first parts of the READ are good, and return the bytes that are there.
                    op.base += ahead as u32;
                }
            }
            Fault::RkeyPd => {
                let (pd, all) = (peer_pd + 1000, access::ALL);
                let region = memory.register(pd, all, op.length, Owner::Remote);
                (op.wqe.remote_addr, op.wqe.rkey) = (region.addr, region.key);
            }
            Fault::RkeyAccess => {
                let region = memory.register(peer_pd, 0, op.length, Owner::Remote);
                (op.wqe.remote_addr, op.wqe.rkey) = (region.addr, region.key);
            }
            Fault::Misaligned => op.wqe.remote_addr += 4,
            Fault::LkeyUnknown => op.sges.iter_mut().for_each(|sge| sge.lkey = BAD_KEY),
            Fault::LkeyBounds => op.sges.iter_mut().for_each(|sge| sge.addr += 0x1_0000),
            Fault::LkeyAccess => {
                for sge in &op.sges {
                    if let Some(region) = memory.arena.regions.get_mut(sge.lkey) {
                        region.access = 0;
                    }
                }
            }
            Fault::TooLong => {
                op.length = LONGEST + 1;
                op.sges.push(Sge {
                    length: LONGEST + 1,
                    ..Sge::default()
                });
            }
            Fault::AtomicLength => op.sges.push(Sge {
                length: 1,
                ..Sge::default()
            }),
            Fault::Malformed => {
                op.malformed = Some(WqeError::new(WcStatus::LocQpOpErr, Syndrome::WqeFlags));
            }
            Fault::LocalInvalidate | Fault::RemoteInvalidate => {
                op.wqe.imm = BAD_KEY.to_le_bytes();
            }
            Fault::Opcode => op.wqe.opcode = WqeOpcode::RdmaRead,
            Fault::Qkey => {
                if let Some(dest) = op.wqe.datagram.as_mut() {
                    dest.qkey = dest.qkey & !(1 << 31) ^ 0x55;
                }
            }
            Fault::OverMtu => {
                let length = self.lab.ends[me].attr.path_mtu + 1;
                op.length = length;
                op.inline.clear();
                let pd = self.lab.ends[me].pd;
                let number = self.lab.ops.len() as u32;
                let rng = &mut self.rng;
                op.sges = pieces(&mut self.lab, rng, Owner::Op(number), pd, 0, length);
            }
            _ => {}
        }
    }
}
