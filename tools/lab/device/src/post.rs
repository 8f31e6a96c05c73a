// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Posting of work requests: ring entries and doorbells; arming and consumption of CQs.

use crate::objects::{DataSegment, PostedRecv, PostedSend, RingMemory};
use crate::simulation::{note, DeviceSimulation, LIMITS, LOG_RQ_STRIDE, LOG_SQ_STRIDE, WQ};
use verbena_abi::cmd::QpType;
use verbena_abi::cqe::CQE_SIZE;
use verbena_abi::doorbell::{self, ArmMode, Words, GROUP_SLOTS};
use verbena_abi::wqe::{self, send_flags, RecvWqe, SendWqe, Sge, WqeOpcode};
use verbena_device::memory::GuestMemory;
use zerocopy::IntoBytes;

fn encode(sges: &[DataSegment], out: &mut [u8]) {
    for (sge, room) in sges.iter().zip(out.chunks_exact_mut(size_of::<Sge>())) {
        let sge = Sge {
            addr: sge.0.into(),
            length: sge.1.into(),
            lkey: sge.2.into(),
        };
        room.copy_from_slice(sge.as_bytes());
    }
}

impl DeviceSimulation {
    /// Writes a send to its ring without publishing the producer index.
    pub fn write_send(&mut self, at: usize, wr: PostedSend) {
        let qp = &self.qps[at];
        let mut bytes = [0; 1 << LOG_SQ_STRIDE];
        let inline = !wr.inline.is_empty();
        let header = SendWqe {
            opcode: wr.opcode.to_raw(),
            flags: wr.flags | if inline { send_flags::INLINE } else { 0 },
            num_sge: wr.sges.len() as u8,
            inline_length: (wr.inline.len() as u32).into(),
            wr_id: wr.wr_id.into(),
            imm: wr.imm,
            remote_addr: wr.remote.0.into(),
            rkey: wr.remote.1.into(),
            ..Default::default()
        };
        bytes[..wqe::DATA_OFFSET].copy_from_slice(header.as_bytes());
        let datagram = qp.kind == QpType::Ud;
        let atomic = matches!(wr.opcode, WqeOpcode::CompareSwap | WqeOpcode::FetchAdd);
        if datagram {
            let mut av = wr.path;
            // A QPN has 24 bits, and the device ignores the bits above them.
            av.dest_qpn = (self.qps[wr.to.0].qpn | (wr.index & 1) << 30).into();
            av.qkey = wr.to.1.into();
            av.pdn = (qp.pd.pd ^ u32::from(wr.foreign)).into();
            bytes[wqe::DATA_OFFSET..wqe::DATA_OFFSET_UD].copy_from_slice(av.as_bytes());
        }
        if atomic {
            bytes[wqe::DATA_OFFSET..][..8].copy_from_slice(&wr.operands.0.to_le_bytes());
            bytes[wqe::DATA_OFFSET + 16..][..8].copy_from_slice(&wr.operands.1.to_le_bytes());
        }
        let data = wqe::data_offset(datagram, atomic);
        if inline {
            bytes[data..data + wr.inline.len()].copy_from_slice(&wr.inline);
        } else {
            encode(&wr.sges, &mut bytes[data..]);
        }
        if let Some(region) = &wr.registers {
            let segment = region.segment();
            bytes[wqe::FAST_REG_OFFSET..][..size_of_val(&segment)]
                .copy_from_slice(segment.as_bytes());
        }
        if let Some((offset, value)) = wr.patch {
            bytes[offset] = value;
        }
        let slot = qp.rings[0].at(u64::from(wr.index % WQ) << LOG_SQ_STRIDE);
        self.driver.ram.write(slot, &bytes).expect("a send ring");
        note!(self, "QP {} posts {wr:x?}", qp.qpn);
        let qp = &mut self.qps[at];
        qp.pi[0] = wr.index + 1;
        qp.sends.push_back(wr);
    }

    /// Publishes the sends that were written, in one of the ways in which a driver may do it.
    pub fn publish_sends(&mut self, at: usize) {
        let (uar, slot) = self.qps[at].place;
        let pi = self.qps[at].pi[0];
        let generation = doorbell::qp_generation(slot / GROUP_SLOTS);
        let way = self.rng.below(10);
        let words = self.words(uar);
        match way {
            // The producer index is visible for some slices before the doorbell.
            0 | 1 => {
                words.store_release(doorbell::sq_producer(slot), pi);
                self.slices(1 + way);
                let words = self.words(uar);
                doorbell::notify(&words, generation, || self.ring_doorbell(uar));
            }
            // The driver publishes twice, and rings although no doorbell is needed.
            2 => {
                doorbell::post_send(&words, slot, pi, || self.ring_doorbell(uar));
                doorbell::post_send(&words, slot, pi, || self.ring_doorbell(uar));
                self.ring_doorbell(uar);
            }
            // The driver rings before it publishes the producer index.
            3 => {
                doorbell::notify(&words, generation, || self.ring_doorbell(uar));
                self.ring_doorbell(uar);
                self.slices(1);
                let words = self.words(uar);
                doorbell::post_send(&words, slot, pi, || self.ring_doorbell(uar));
            }
            _ => doorbell::post_send(&words, slot, pi, || self.ring_doorbell(uar)),
        }
    }

    fn write_recv(&self, ring: &RingMemory, wr: &PostedRecv) {
        let mut bytes = [0; 1 << LOG_RQ_STRIDE];
        let header = RecvWqe {
            wr_id: wr.wr_id.into(),
            num_sge: if wr.malformed {
                // The count exceeds the limit of the QP by one or by nine.
                LIMITS.1 + [1, 9][wr.index as usize % 2]
            } else {
                wr.sges.len() as u8
            },
            ..Default::default()
        };
        bytes[..16].copy_from_slice(header.as_bytes());
        encode(&wr.sges, &mut bytes[16..]);
        let slot = ring.at(u64::from(wr.index % WQ) << LOG_RQ_STRIDE);
        self.driver.ram.write(slot, &bytes).expect("a receive ring");
    }

    /// Posts a receive to the ring of a QP.
    pub fn post_recv(&mut self, at: usize, wr: PostedRecv) {
        note!(self, "QP {} receives {wr:x?}", self.qps[at].qpn);
        self.write_recv(&self.qps[at].rings[1], &wr);
        let qp = &mut self.qps[at];
        qp.pi[1] = wr.index + 1;
        qp.recvs.push_back(wr);
        let (pi, (uar, slot)) = (qp.pi[1], qp.place);
        doorbell::post_recv(&self.words(uar), slot, pi, || self.ring_doorbell(uar));
    }

    /// Posts a receive to a shared receive queue.
    pub fn post_srq(&mut self, at: usize, wr: PostedRecv) {
        note!(self, "SRQ {} receives {wr:x?}", self.srqs[at].srqn);
        self.write_recv(&self.srqs[at].ring, &wr);
        let srq = &mut self.srqs[at];
        srq.pi = wr.index + 1;
        srq.posted.push_back(wr);
        let (pi, (uar, slot)) = (srq.pi, srq.place);
        doorbell::post_recv(&self.words(uar), slot, pi, || self.ring_doorbell(uar));
    }

    /// Arms a CQ at the consumer index of the program.
    pub fn arm(&mut self, at: usize, mode: ArmMode) {
        let cq = &self.cqs[at];
        let (mut arm, index, (uar, slot)) = (cq.arm, cq.ci, cq.place);
        doorbell::arm_cq(&self.words(uar), slot, &mut arm, index, mode, || {
            self.ring_doorbell(uar)
        });
        self.cqs[at].arm = arm;
        note!(self, "CQ {} armed {arm:?}", self.cqs[at].cqn);
    }

    /// Consumes up to `count` entries of a CQ, and checks that they were not overwritten before.
    pub fn consume(&mut self, at: usize, count: usize) {
        let cq = &self.cqs[at];
        let count = count.min(cq.waiting.len());
        for i in 0..count as u32 {
            let index = cq.ci.wrapping_add(i).wrapping_sub(cq.base);
            let place = cq
                .ring
                .at(u64::from(index % (1 << cq.log_size)) * CQE_SIZE as u64);
            if self.driver.bytes(place, CQE_SIZE) != cq.waiting[i as usize] {
                self.fail_rule(&format!(
                    "CQ {}: entry {index} was overwritten before it was consumed",
                    cq.cqn
                ));
            }
        }
        let cq = &mut self.cqs[at];
        cq.waiting.drain(..count);
        cq.ci = cq.ci.wrapping_add(count as u32);
        let (ci, (uar, slot)) = (cq.ci, cq.place);
        self.words(uar)
            .store_release(doorbell::cq_consumer(slot), ci);
        note!(self, "CQ {} consumed to {ci}", self.cqs[at].cqn);
    }
}
