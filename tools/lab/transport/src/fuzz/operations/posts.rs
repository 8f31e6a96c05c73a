// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Posts of work requests and receives of any kind, most of them such that they can succeed.

use super::{path, FuzzRun, QKEY};
use crate::arena::ArenaRegion;
use crate::fuzz::adapter::{FuzzAdapter, FuzzSend, REGIONS};
use crate::fuzz::FuzzInput;
use crate::mock_adapter::RecvPost;
use verbena_transport::host::{
    DatagramDest, DecodedSendWqe, Sge, Syndrome, WcStatus, WqeError, WqeOpcode,
};
use verbena_transport::packet::Feth;
use verbena_transport::QpType;

/// Highest number of posts on a ring between two resets.
const MAX_POSTS: usize = 64;
const OPCODES: [WqeOpcode; 12] = [
    WqeOpcode::RdmaWrite,
    WqeOpcode::RdmaWriteImm,
    WqeOpcode::Send,
    WqeOpcode::SendImm,
    WqeOpcode::RdmaRead,
    WqeOpcode::CompareSwap,
    WqeOpcode::FetchAdd,
    WqeOpcode::LocalInv,
    WqeOpcode::SendInv,
    WqeOpcode::FastReg,
    WqeOpcode::AtomicWrite,
    WqeOpcode::Flush,
];

/// Returns lengths near critical values: single bytes, MTUs, a whole region.
pub(super) fn length(input: &mut FuzzInput<'_>) -> u32 {
    match input.u8() {
        small @ 0..=63 => u32::from(small),
        mtu @ 64..=191 => (u32::from((mtu - 64) / 8) * 128 + u32::from(mtu % 8)).saturating_sub(3),
        big @ 192..=253 => u32::from(big - 191) * 33,
        254 => 8,
        255 => input.u32(),
    }
}

/// Returns an address and a key at the other end, which are mostly valid.
pub(super) fn remote(input: &mut FuzzInput<'_>, peer: usize) -> (u64, u32) {
    let kind = input.u8();
    let index = match kind & 0x1f {
        0 => usize::from(kind >> 5),
        _ => peer * (REGIONS / 2) + usize::from(kind >> 5) % (REGIONS / 2),
    };
    let offset = match kind & 0x1f {
        1..=8 => u64::from(input.u8()) * 8,
        9 => u64::from(input.u16()),
        10 => 0u64.wrapping_sub(u64::from(input.u8())),
        _ => 0,
    };
    let key = if kind & 0x1f == 11 {
        input.u32()
    } else {
        ArenaRegion::key(index)
    };
    (ArenaRegion::addr(index).wrapping_add(offset), key)
}

fn sges(input: &mut FuzzInput<'_>, own: usize, count: u8) -> Vec<Sge> {
    (0..count % 4)
        .map(|_| {
            let (kind, offset) = (input.u8(), u64::from(input.u8()) * 8);
            // Most SGEs name a region of the queue pair itself.
            let index = match kind & 0x1f {
                0 => usize::from(kind >> 5),
                _ => own * (REGIONS / 2) + usize::from(kind >> 5) % (REGIONS / 2),
            };
            Sge {
                addr: ArenaRegion::addr(index).wrapping_add(if kind & 0x1e == 2 {
                    offset
                } else {
                    0
                }),
                length: length(input),
                lkey: ArenaRegion::key(index),
            }
        })
        .collect()
}

impl FuzzRun {
    /// Posts a work request, and rings the doorbell if `tell` is set.
    pub(super) fn post_send(&mut self, node: usize, tell: bool, input: &mut FuzzInput<'_>) {
        let (opcode, flags) = (input.u8(), input.u8());
        let opcode = OPCODES[usize::from(opcode) % OPCODES.len()];
        let has = |bit: u8| flags & bit != 0;
        let mut wqe = DecodedSendWqe {
            wr_id: self.wr_id,
            opcode,
            signaled: has(1),
            solicited: has(2),
            fence: has(4),
            imm: [1, 2, 3, 4],
            compare_add: u64::from(has(8)),
            swap: 7,
            ..DecodedSendWqe::default()
        };
        match opcode {
            WqeOpcode::LocalInv | WqeOpcode::SendInv => {
                wqe.imm = remote(input, node & 1 ^ 1).1.to_le_bytes();
            }
            WqeOpcode::FastReg => wqe.rkey = u32::from(has(8)),
            WqeOpcode::Send | WqeOpcode::SendImm => {}
            WqeOpcode::Flush => {
                (wqe.remote_addr, wqe.rkey) = remote(input, node & 1 ^ 1);
                let bits = input.u8();
                let (placement, level) = (bits & 3, bits >> 4 & 3);
                wqe.flush = (Feth { placement, level }, length(input));
            }
            _ => (wqe.remote_addr, wqe.rkey) = remote(input, node & 1 ^ 1),
        }
        if matches!(self.qps[node].config().qp_type, QpType::Ud | QpType::Gsi) && !has(8) {
            wqe.set_datagram(DatagramDest {
                pkey: None,
                path: path(node),
                qpn: 0x10 + (node ^ 1) as u32,
                qkey: match flags >> 6 {
                    0 | 1 => self.gsi_or(node, QKEY),
                    2 => 1 << 31,
                    _ => input.u32(),
                },
            });
        }
        // Mostly, the two queues at the peer are used in turn; a few numbers have no queue.
        wqe.srqn = match flags >> 6 {
            3 if has(16) => 250,
            queue => u32::from(queue & 1),
        };
        let mut send = FuzzSend {
            wqe,
            sges: Vec::new(),
            inline: Vec::new(),
            malformed: None,
        };
        if has(0x10)
            && !matches!(
                opcode,
                WqeOpcode::RdmaRead | WqeOpcode::CompareSwap | WqeOpcode::FetchAdd
            )
        {
            send.inline = vec![3; usize::from(input.u8()) * 2];
        } else if matches!(opcode, WqeOpcode::CompareSwap | WqeOpcode::FetchAdd) && !has(0x20) {
            let index = (node & 1) * (REGIONS / 2);
            let (addr, lkey) = (ArenaRegion::addr(index), ArenaRegion::key(index));
            send.sges.push(Sge {
                addr,
                length: 8,
                lkey,
            });
        } else {
            send.sges = sges(input, node & 1, flags >> 5);
        }
        if flags == 0xff {
            send.malformed = Some(WqeError::new(WcStatus::LocQpOpErr, Syndrome::WqeFlags));
        }
        let has_sends = self.qps[node].config().qp_type != QpType::XrcTgt;
        let ring = &mut self.adapter.nodes[node];
        if !has_sends || ring.idle || ring.sends.len() >= MAX_POSTS {
            return;
        }
        ring.sends.push(send);
        self.wr_id += 1;
        if tell {
            self.notify_posts(node);
        }
    }

    /// Posts a receive.
    pub(super) fn post_recv(&mut self, at: usize, input: &mut FuzzInput<'_>) {
        let flags = input.u8();
        let recv = RecvPost {
            wr_id: self.wr_id,
            sges: sges(input, at & 1, flags),
            malformed: (flags >> 3 == 0x1f).then_some(Syndrome::RecvWqeMalformed),
        };
        let FuzzAdapter { nodes, srq, .. } = &mut self.adapter;
        let node = &mut nodes[at];
        let ring = if node.has_srq { srq } else { &mut node.recvs };
        if node.idle || ring.posts.len() >= MAX_POSTS {
            return;
        }
        ring.posts.push(recv);
        self.wr_id += 1;
        if flags & 4 == 0 {
            self.notify_receives_posted(at);
        }
    }

    /// Rings the doorbell.
    pub(super) fn notify_posts(&mut self, node: usize) {
        let ring = &mut self.adapter.nodes[node];
        ring.producer = ring.sends.len();
        self.qps[node].handle_posts(self.now, ring.producer as u32);
    }

    /// Informs a queue pair that receives were posted.
    pub(super) fn notify_receives_posted(&mut self, node: usize) {
        self.qps[node].handle_receives_posted(&mut self.adapter.host(node), self.now);
        self.carry(node);
    }

    /// Returns the Q_Key of a queue pair: that of the GSI, or `qkey`.
    pub(super) fn gsi_or(&self, node: usize, qkey: u32) -> u32 {
        match self.qps[node].config().qp_type {
            QpType::Gsi => 0x8001_0000,
            _ => qkey,
        }
    }
}
