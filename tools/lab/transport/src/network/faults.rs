// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The faults of a work request: deliberate ones, and operations that the connection does not
//! allow.

use super::actor::pieces;
use super::memory::{RegionOwner, LONGEST};
use super::work::{PlannedFault, SendModel};
use super::SimNetwork;
use verbena_abi::ctx::access;
use verbena_transport::host::{Sge, Syndrome, WcStatus, WqeError, WqeOpcode};
use verbena_transport::QpType;

/// A key that no region has.
pub(super) const BAD_KEY: u32 = 0x00ff_ff77;

impl SimNetwork {
    /// Gives a work request a deliberate fault (`wrong`), or the fault of an operation that the
    /// connection does not allow.
    pub(super) fn plan_fault(&mut self, me: usize, op: &mut SendModel, wrong: bool) {
        let end = &self.model.qps[me];
        let (qp_type, reads) = (end.qp_type, end.attr.max_rd_atomic);
        let flags = self.model.qps[end.peer].attr.access_flags;
        if wrong {
            self.draw_fault(me, op);
        }
        if op.is_rejected_locally() {
            return;
        }
        if op.awaits_response() && reads == 0 {
            op.fault = PlannedFault::NoReads;
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
                op.fault = PlannedFault::Disabled;
            }
        }
    }

    /// Draws a fault, and applies it if it fits the work request.
    fn draw_fault(&mut self, me: usize, op: &mut SendModel) {
        let end = &self.model.qps[me];
        let (qp_type, peer_pd) = (end.qp_type, 100 + end.peer as u32);
        let has_sge = op.sges.iter().any(|sge| sge.length > 0);
        let remote = op.wqe.rkey != 0 && op.length > 0;
        let drawn = match self.rng.below(15) {
            _ if qp_type == QpType::Ud && self.rng.chance(30) => PlannedFault::Qkey,
            0 | 1 => PlannedFault::RkeyUnknown,
            2 => PlannedFault::RkeyBounds,
            3 => PlannedFault::RkeyAccess,
            4 => PlannedFault::RkeyPd,
            5 => PlannedFault::Misaligned,
            6 => PlannedFault::LkeyUnknown,
            7 => PlannedFault::LkeyBounds,
            8 => PlannedFault::TooLong,
            9 => PlannedFault::AtomicLength,
            10 => PlannedFault::Malformed,
            11 => match op.wqe.opcode {
                WqeOpcode::LocalInv => PlannedFault::LocalInvalidate,
                WqeOpcode::SendInv => PlannedFault::RemoteInvalidate,
                _ => PlannedFault::Malformed,
            },
            12 => PlannedFault::Opcode,
            14 => PlannedFault::LkeyAccess,
            _ if qp_type == QpType::Ud => PlannedFault::OverMtu,
            _ => PlannedFault::Malformed,
        };
        let writes_word = op.wqe.opcode == WqeOpcode::AtomicWrite;
        let fits = match drawn {
            PlannedFault::RkeyUnknown | PlannedFault::RkeyBounds | PlannedFault::RkeyPd => remote,
            PlannedFault::RkeyAccess => remote && !op.is_atomic(),
            PlannedFault::Misaligned => op.is_atomic() || writes_word,
            PlannedFault::AtomicLength => op.is_atomic() || writes_word && op.inline.is_empty(),
            PlannedFault::LkeyUnknown | PlannedFault::LkeyBounds => has_sge,
            PlannedFault::LkeyAccess => has_sge && op.awaits_response() && !op.is_placed(),
            PlannedFault::TooLong => {
                !op.is_silent() && !op.is_atomic() && !op.is_placed() && op.inline.is_empty()
            }
            PlannedFault::Opcode => qp_type != QpType::Rc && op.inline.is_empty(),
            _ => true,
        };
        if !fits {
            return;
        }
        op.fault = drawn;
        let memory = &mut self.model.memory;
        match drawn {
            PlannedFault::RkeyUnknown => op.wqe.rkey = BAD_KEY,
            PlannedFault::RkeyBounds if op.is_atomic() || writes_word || self.rng.chance(40) => {
                op.wqe.remote_addr += 0x1_0000;
            }
            // The range begins within the region, so the first packets alone would be good.
            PlannedFault::RkeyBounds => {
                let ahead = 8 + self.rng.below(u64::from(op.length));
                op.wqe.remote_addr += ahead;
                if op.awaits_response() {
                    // The first parts of the READ are good, and return the bytes that are there.
                    op.base += ahead as u32;
                }
            }
            PlannedFault::RkeyPd => {
                let (pd, all) = (peer_pd + 1000, access::ALL);
                let region = memory.register(pd, all, op.length, RegionOwner::Remote);
                (op.wqe.remote_addr, op.wqe.rkey) = (region.addr, region.key);
            }
            PlannedFault::RkeyAccess => {
                let region = memory.register(peer_pd, 0, op.length, RegionOwner::Remote);
                (op.wqe.remote_addr, op.wqe.rkey) = (region.addr, region.key);
            }
            PlannedFault::Misaligned => op.wqe.remote_addr += 4,
            PlannedFault::LkeyUnknown => op.sges.iter_mut().for_each(|sge| sge.lkey = BAD_KEY),
            PlannedFault::LkeyBounds => op.sges.iter_mut().for_each(|sge| sge.addr += 0x1_0000),
            PlannedFault::LkeyAccess => {
                for sge in &op.sges {
                    if let Some(region) = memory.arena.regions.get_mut(sge.lkey) {
                        region.access = 0;
                    }
                }
            }
            PlannedFault::TooLong => {
                op.length = LONGEST + 1;
                op.sges.push(Sge {
                    length: LONGEST + 1,
                    ..Sge::default()
                });
            }
            PlannedFault::AtomicLength => op.sges.push(Sge {
                length: 1,
                ..Sge::default()
            }),
            PlannedFault::Malformed => {
                op.malformed = Some(WqeError::new(WcStatus::LocQpOpErr, Syndrome::WqeFlags));
            }
            PlannedFault::LocalInvalidate | PlannedFault::RemoteInvalidate => {
                op.wqe.imm = BAD_KEY.to_le_bytes();
            }
            PlannedFault::Opcode => op.wqe.opcode = WqeOpcode::RdmaRead,
            PlannedFault::Qkey => {
                if let Some(dest) = op.wqe.datagram.as_mut() {
                    dest.qkey = dest.qkey & !(1 << 31) ^ 0x55;
                }
            }
            PlannedFault::OverMtu => {
                let length = self.model.qps[me].attr.path_mtu + 1;
                op.length = length;
                op.inline.clear();
                let pd = self.model.qps[me].pd;
                let number = self.model.ops.len() as u32;
                let rng = &mut self.rng;
                op.sges = pieces(&mut self.model, rng, RegionOwner::Op(number), pd, 0, length);
            }
            _ => {}
        }
    }
}
