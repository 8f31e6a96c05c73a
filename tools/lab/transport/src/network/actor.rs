// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Programs: at their times they post receives and work requests of all kinds and sizes.

use super::event_queue::SimEvent;
use super::faults::BAD_KEY;
use super::memory::{pattern, RegionOwner, LONGEST};
use super::model::NetworkModel;
use super::work::{PlannedFault, RecvModel, SendModel};
use super::SimNetwork;
use crate::arena::parts;
use crate::Rng;
use verbena_abi::ctx::access;
use verbena_transport::host::{DatagramDest, DecodedSendWqe, Sge, Syndrome, WqeOpcode};
use verbena_transport::packet::Feth;
use verbena_transport::{QpState, QpType};

/// Largest number of bytes of a region after its message.
const BEHIND: u32 = 8;
/// Number of places where patterns begin, so that the longest message fits after each.
const BASES: u64 = (1 << 16) - (LONGEST + BEHIND) as u64;

impl SimNetwork {
    /// Lets an actor act.
    pub(super) fn run_program(&mut self, me: usize) {
        let actor = &mut self.model.qps[me].program;
        actor.left = actor.left.saturating_sub(1);
        let (left, pace, late, turmoil) = (actor.left, actor.pace_ns, actor.late, actor.turmoil);
        if left == 0 || !self.rng.chance(late) {
            let queue = self.model.qps[me].queue;
            self.post_receives(queue);
        }
        if self.rng.chance(turmoil) {
            self.disturb(me);
        }
        let end = &self.model.qps[me];
        let takes = matches!(
            end.state,
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err
        );
        if takes {
            for _ in 0..1 + self.rng.below(3) {
                self.post_send(me);
            }
            let count = self.model.qps[me].sq.len() as u32;
            self.qps[me].handle_posts(self.model.now_ns, count);
        }
        self.recover(me, left);
        self.poll(me);
        if left > 0 {
            let at = self.model.now_ns + 1 + self.rng.below(2 * pace);
            self.events.schedule(at, SimEvent::Act(me));
        }
    }

    /// Posts the receives that are owed to a queue.
    pub(super) fn post_receives(&mut self, queue: usize) {
        let owed = std::mem::take(&mut self.model.queues[queue].owed);
        let Some(owner) = self.model.qps.iter().position(|end| end.queue == queue) else {
            return;
        };
        for _ in 0..owed {
            let (faults, is_ud) = {
                let end = &self.model.qps[owner];
                (end.program.faults, end.qp_type == QpType::Ud)
            };
            let ends = &self.model.qps;
            let senders = ends.iter().filter(|end| ends[end.peer].queue == queue);
            let longest = senders.map(|end| end.program.longest).max().unwrap_or(0);
            let longest = if is_ud {
                ends[owner].attr.path_mtu
            } else {
                longest
            };
            let room = if is_ud { 40 } else { 0 };
            let number = self.model.recvs.len() as u32;
            let pd = 100 + owner as u32;
            let fault = match self.rng.below(3) {
                _ if !self.rng.chance(faults / 3) => PlannedFault::None,
                0 => PlannedFault::RecvShort,
                1 => PlannedFault::RecvKey,
                _ => PlannedFault::RecvMalformed,
            };
            let mut capacity = longest.max(1) + room;
            if fault == PlannedFault::RecvShort {
                capacity = self.rng.below(u64::from(capacity)) as u32;
            }
            let owner = RegionOwner::Recv(number);
            let rng = &mut self.rng;
            let mut sges = pieces(
                &mut self.model,
                rng,
                owner,
                pd,
                access::LOCAL_WRITE,
                capacity,
            );
            if fault == PlannedFault::RecvKey {
                sges.iter_mut().for_each(|sge| sge.lkey = BAD_KEY);
            }
            let queue = &mut self.model.queues[queue];
            self.model.recvs.push(RecvModel {
                wr_id: 1 << 32 | u64::from(number),
                index: queue.posts.len() as u32,
                sges,
                pd,
                capacity,
                fault,
                malformed: (fault == PlannedFault::RecvMalformed)
                    .then_some(Syndrome::RecvWqeMalformed),
                is_complete: false,
                vanishing: false,
            });
            queue.posts.push(number);
        }
        if owed > 0 && !self.model.queues[queue].shared {
            self.notify_receives_posted(owner);
        }
    }

    /// Posts a send.
    fn post_send(&mut self, me: usize) {
        let end = &self.model.qps[me];
        let (qp_type, mtu, longest) = (end.qp_type, end.attr.path_mtu, end.program.longest);
        let wrong = self.rng.chance(end.program.faults);
        let opcode = self.draw_opcode(qp_type);
        let length = self.draw_length(qp_type, mtu, longest);
        let number = self.model.ops.len() as u32;
        let mut op = SendModel {
            qp: me,
            length,
            base: self.rng.below(BASES) as u32,
            ..SendModel::default()
        };
        op.wqe = DecodedSendWqe {
            wr_id: u64::from(number) << 8 | 7,
            opcode,
            signaled: self.rng.chance(60),
            solicited: self.rng.chance(20),
            fence: self.rng.chance(10),
            imm: (number ^ 0x1234_5678).to_be_bytes(),
            ..DecodedSendWqe::default()
        };
        if op.is_atomic() || opcode == WqeOpcode::AtomicWrite {
            op.length = 8;
        } else if op.is_silent() || opcode == WqeOpcode::Flush {
            op.length = 0;
        }
        self.give_buffers(me, number, &mut op);
        self.draw_destination(me, &mut op);
        self.plan_fault(me, &mut op, wrong);
        let takes = op.takes_recv() && !op.fault.is_local();
        let to = op.destination;
        self.model.trace(me, || {
            format!(
                "posts {:?} of {} bytes, wr_id {:#x}, {:?}",
                op.wqe.opcode, op.length, op.wqe.wr_id, op.fault
            )
        });
        self.model.reference_post(me, &op);
        self.model.ops.push(op);
        self.model.qps[me].sq.push(number);
        if takes {
            let queue = self.model.qps[to].queue;
            self.model.queues[queue].owed += 1;
            let finite = self.model.qps[me].attr.rnr_retry < 7;
            let prompt = finite && self.rng.chance(40);
            let idle = self
                .model
                .qps
                .iter()
                .all(|end| end.queue != queue || end.program.left == 0);
            if idle || prompt {
                self.post_receives(queue);
            }
        }
    }

    fn draw_opcode(&mut self, qp_type: QpType) -> WqeOpcode {
        use WqeOpcode::*;
        let drawn = self.rng.below(100);
        match qp_type {
            QpType::Rc => match drawn {
                0..=15 => Send,
                16..=23 => SendImm,
                24..=28 => SendInv,
                29..=50 => RdmaWrite,
                51..=61 => RdmaWriteImm,
                62..=78 => RdmaRead,
                79..=85 => CompareSwap,
                86..=91 => FetchAdd,
                92..=93 => AtomicWrite,
                94 => Flush,
                95..=97 => LocalInv,
                _ => FastReg,
            },
            QpType::Uc => match drawn {
                0..=29 => Send,
                30..=49 => SendImm,
                50..=74 => RdmaWrite,
                75..=94 => RdmaWriteImm,
                95..=97 => LocalInv,
                _ => FastReg,
            },
            _ => {
                if drawn < 60 {
                    Send
                } else {
                    SendImm
                }
            }
        }
    }

    fn draw_length(&mut self, qp_type: QpType, mtu: u32, longest: u32) -> u32 {
        let rng = &mut self.rng;
        let longest = if qp_type == QpType::Ud { mtu } else { longest };
        let length = match rng.below(10) {
            0 => 0,
            1..=3 => 1 + rng.below(64) as u32,
            4..=5 => rng.below(u64::from(mtu) + 1) as u32,
            6 => mtu * (1 + rng.below(4) as u32) - 1 + rng.below(3) as u32,
            _ => rng.below(u64::from(longest) + 1) as u32,
        };
        length.min(longest)
    }

    /// Gives a work request local buffers or inline data.
    fn give_buffers(&mut self, me: usize, number: u32, op: &mut SendModel) {
        let pd = self.model.qps[me].pd;
        let reads = op.sends_payload();
        if reads && op.length > 0 && op.length <= 200 && self.rng.chance(30) {
            op.inline = pattern(op.base, 0, op.length).to_vec();
            return;
        }
        let access = if reads { 0 } else { access::LOCAL_WRITE };
        let owner = RegionOwner::Op(number);
        let rng = &mut self.rng;
        op.sges = pieces(&mut self.model, rng, owner, pd, access, op.length);
        if reads {
            let (memory, base) = (&mut self.model.memory, op.base);
            parts(&op.sges, 0, op.length, |sge, at| {
                memory.fill(sge.addr, pattern(base, at, sge.length));
            });
        }
    }

    /// Gives a work request its destination.
    fn draw_destination(&mut self, me: usize, op: &mut SendModel) {
        let end = &self.model.qps[me];
        op.destination = end.peer;
        let peer_pd = 100 + end.peer as u32;
        match op.wqe.opcode {
            _ if end.qp_type == QpType::Ud => {
                let others = &end.program.others;
                op.destination = others[self.rng.below(others.len() as u64) as usize];
                let far = &self.model.qps[op.destination];
                let mut path = end.path;
                path.dgid[15] = op.destination as u8;
                let own = far.attr.qkey == end.attr.qkey && self.rng.chance(30);
                let qkey = if own { 1 << 31 } else { far.attr.qkey };
                op.wqe.datagram = Some(Box::new(DatagramDest {
                    path,
                    qpn: far.qpn,
                    qkey,
                    pkey: None,
                }));
            }
            WqeOpcode::CompareSwap | WqeOpcode::FetchAdd => {
                (op.wqe.remote_addr, op.wqe.rkey) = (end.word.0, end.word.1);
                op.wqe.compare_add = self.rng.below(3);
                op.wqe.swap = self.rng.below(3);
            }
            WqeOpcode::RdmaRead | WqeOpcode::RdmaWrite | WqeOpcode::RdmaWriteImm => {
                let reads = op.wqe.opcode == WqeOpcode::RdmaRead;
                let right = if reads {
                    access::REMOTE_READ
                } else {
                    access::REMOTE_WRITE | access::LOCAL_WRITE
                };
                let before = self.rng.below(8) as u32;
                let behind = self.rng.below(u64::from(BEHIND)) as u32;
                let size = op.length + before + behind;
                let memory = &mut self.model.memory;
                let region = memory.register(peer_pd, right, size, RegionOwner::Remote);
                let (addr, key) = (region.addr + u64::from(before), region.key);
                if reads {
                    memory.fill(addr, pattern(op.base, 0, op.length + behind));
                }
                (op.wqe.remote_addr, op.wqe.rkey) = (addr, key);
            }
            WqeOpcode::AtomicWrite => {
                let before = 8 * self.rng.below(3);
                let right = access::REMOTE_WRITE | access::LOCAL_WRITE;
                let memory = &mut self.model.memory;
                let region = memory.register(peer_pd, right, 32, RegionOwner::Remote);
                (op.wqe.remote_addr, op.wqe.rkey) = (region.addr + before, region.key);
            }
            WqeOpcode::Flush => {
                let (size, level) = (self.rng.below(300) as u32, self.rng.below(2) as u8);
                let before = self.rng.below(u64::from(size) + 1);
                let memory = &mut self.model.memory;
                let region =
                    memory.register(peer_pd, access::FLUSH_GLOBAL, size, RegionOwner::Remote);
                (op.wqe.remote_addr, op.wqe.rkey) = (region.addr + before, region.key);
                let placement = 1;
                op.wqe.flush = (Feth { placement, level }, size - before as u32);
            }
            WqeOpcode::SendInv | WqeOpcode::LocalInv => {
                let pd = if op.is_silent() { end.pd } else { peer_pd };
                let memory = &mut self.model.memory;
                let key = memory.register(pd, 0, 8, RegionOwner::Remote).key;
                op.wqe.imm = key.to_le_bytes();
            }
            _ => {}
        }
    }
}

/// Registers buffers of `length` bytes altogether, in up to three pieces.
pub(super) fn pieces(
    lab: &mut NetworkModel,
    rng: &mut Rng,
    owner: RegionOwner,
    pd: u32,
    access: u32,
    length: u32,
) -> Vec<Sge> {
    let mut sges = Vec::new();
    if length == 0 {
        if rng.chance(50) {
            // An SGE of zero length needs no valid key.
            sges.push(Sge {
                addr: 1,
                length: 0,
                lkey: BAD_KEY,
            });
        }
        return sges;
    }
    let count = 1 + rng.below(3) as u32;
    let mut left = length;
    for piece in 0..count {
        let size = if piece + 1 == count {
            left
        } else {
            rng.below(u64::from(left) + 1) as u32
        };
        left -= size;
        let before = rng.below(6) as u32;
        let region = lab.memory.register(pd, access, size + before + 3, owner);
        sges.push(region.part(before, size));
    }
    sges
}
