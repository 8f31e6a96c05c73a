// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Posts and polls on plain memory instead of mappings. The tests act as the device.

use crate::cq::{Cq, WorkCompletion, LOG_STRIDE};
use crate::errno::Errno;
use crate::ffi::lock::Sharing;
use crate::ffi::memory::{DoorbellMapping, MappedMemory, MappedRing};
use crate::ffi::mock;
use crate::ffi::pabi::*;
use crate::qp::{Qp, ReceiveSource, Srq};
use crate::recv::{RecvConfig, RecvQueue};
use crate::send::{SendConfig, SendQueue};
use std::sync::Arc;
use verbena_abi::cqe::{Cqe, Tail, WcOpcode, WcStatus, TAIL_OFFSET};
use verbena_abi::ctx::QpState;
use verbena_abi::doorbell::{self, Words};
use verbena_abi::{Le32, Le64};
use zerocopy::{FromBytes, IntoBytes};

mod death;
mod options;
mod poll;
mod recv;
mod send;
mod session;
mod threads;
mod xrc;

const LOG_SIZE: u8 = 2;
const SIZE: u32 = 1 << LOG_SIZE;
const SLOT: usize = 70;
const CQ_SLOT: usize = 3;

struct Fixture {
    log_size: u8,
    area: Arc<DoorbellMapping>,
    cq: Arc<Cq>,
    /// The device's index of the next CQE, and the index of the first CQE of the ring.
    cq_producer: u32,
    cq_base: u32,
    cq_memory: mock::MockMemory,
}

impl Fixture {
    fn new() -> Self {
        Self::sized(LOG_SIZE)
    }

    fn sized(log_size: u8) -> Self {
        let area = Arc::new(DoorbellMapping::mock());
        let cq_memory = mock::MockMemory::new(1 << (log_size + LOG_STRIDE));
        let ring = MappedRing::new(cq_memory.view(), log_size, LOG_STRIDE).unwrap();
        Self {
            log_size,
            cq: Arc::new(Cq::new(ring, log_size, area.clone(), CQ_SLOT)),
            area,
            cq_producer: 0,
            cq_base: 0,
            cq_memory,
        }
    }

    fn receive_queue(&self, slot: usize) -> RecvQueue {
        self.receives(slot, false)
    }

    fn receives(&self, slot: usize, shared: bool) -> RecvQueue {
        let ring =
            MappedRing::new(MappedMemory::heap(64 << self.log_size), self.log_size, 6).unwrap();
        let config = RecvConfig {
            max_wr: 1 << self.log_size,
            max_sge: 3,
            slot,
            shared,
            sharing: Sharing::THREADS,
        };
        RecvQueue::new(ring, self.area.clone(), config)
    }

    fn srq(&self) -> Arc<Srq> {
        Arc::new(Srq {
            srqn: 1,
            queue: self.receives(5, true),
            cq: None,
        })
    }

    fn qp(&self, qpn: u32, receives: ReceiveSource) -> Arc<Qp> {
        let ring =
            MappedRing::new(MappedMemory::heap(128 << self.log_size), self.log_size, 7).unwrap();
        let config = SendConfig {
            max_wr: 1 << self.log_size,
            max_sge: 2,
            max_inline: 40,
            datagram: false,
            xrc: false,
            signal_all: false,
            sharing: Sharing::THREADS,
            slot: SLOT,
        };
        let sends = SendQueue::new(ring, self.area.clone(), config);
        let qp = Qp::new(qpn, sends, receives, self.cq.clone(), self.cq.clone());
        let qp = Arc::new(qp);
        qp.attach();
        qp
    }

    fn rts(&self, qpn: u32) -> Arc<Qp> {
        let qp = self.qp(qpn, ReceiveSource::Own(self.receive_queue(SLOT)));
        qp.set_state(QpState::Rts);
        qp
    }

    fn qp_in_rts_without_receives(&self, qpn: u32) -> Arc<Qp> {
        let qp = self.qp(qpn, ReceiveSource::None);
        qp.set_state(QpState::Rts);
        qp
    }

    /// Writes a CQE, as the device does.
    fn complete(&mut self, qpn: u32, opcode: WcOpcode, wqe_index: u32, wr_id: u64) {
        self.complete_of(qpn, 0, opcode, wqe_index, wr_id);
    }

    /// Writes a CQE that names an SRQ, as the device does.
    fn complete_of(&mut self, qpn: u32, srqn: u32, opcode: WcOpcode, wqe_index: u32, wr_id: u64) {
        let cqe = Cqe {
            wr_id: Le64::new(wr_id),
            wqe_index: Le32::new(wqe_index),
            byte_len: Le32::new(77),
            qpn: Le32::new(qpn),
            srqn: Le32::new(srqn),
            ..Cqe::default()
        };
        self.write_cqe(opcode, 0, cqe);
    }

    /// Writes this CQE with a tail, as the device does.
    fn write_cqe(&mut self, opcode: WcOpcode, wc_flags: u8, mut cqe: Cqe) {
        let tail = Tail {
            status: WcStatus::Success.to_raw(),
            opcode: opcode.to_raw(),
            wc_flags,
        };
        let place = self.cq_producer.wrapping_sub(self.cq_base);
        cqe.tail = Le32::new(tail.pack(place, self.log_size));
        let at = self.at(place);
        // The device writes the tail last.
        self.cq_memory.write(at, &cqe.as_bytes()[..TAIL_OFFSET]);
        self.cq_memory.publish(at + TAIL_OFFSET, cqe.tail.to_raw());
        self.cq_producer = self.cq_producer.wrapping_add(1);
    }

    fn at(&self, place: u32) -> usize {
        ((place % (1 << self.log_size)) as usize) << LOG_STRIDE
    }

    /// Resizes the CQ, and moves the entries that were not polled, as the device does.
    fn resize(&mut self, log_size: u8) {
        let memory = mock::MockMemory::new(1 << (log_size + LOG_STRIDE));
        let base = self.consumer();
        let cq = self.cq.clone();
        let make = || {
            let ring = MappedRing::new(memory.view(), log_size, LOG_STRIDE).unwrap();
            Ok((ring, log_size))
        };
        let move_entries = || {
            for place in 0..self.cq_producer.wrapping_sub(base) {
                let from = base.wrapping_add(place).wrapping_sub(self.cq_base);
                let old = self.cq_memory.read(self.at(from), 1 << LOG_STRIDE);
                let (mut cqe, _) = Cqe::read_from_prefix(&old).unwrap();
                let tail = Tail::unpack(cqe.tail.get(), from, self.log_size).unwrap();
                cqe.tail = Le32::new(tail.pack(place, log_size));
                let at = ((place % (1 << log_size)) as usize) << LOG_STRIDE;
                memory.write(at, cqe.as_bytes());
            }
            Ok(())
        };
        cq.resize(make, move_entries).unwrap();
        (self.cq_memory, self.log_size, self.cq_base) = (memory, log_size, base);
    }

    fn poll(&self, most: usize) -> Vec<WorkCompletion> {
        let mut all = Vec::new();
        let count = self.cq.poll(most, |_, completion| all.push(*completion));
        assert_eq!(count, all.len());
        all
    }

    fn polled(&self, most: usize) -> Vec<u64> {
        self.poll(most).iter().map(|one| one.wr_id).collect()
    }

    fn consumer(&self) -> u32 {
        self.area.load_acquire(doorbell::cq_consumer(CQ_SLOT))
    }

    fn producer(&self) -> u32 {
        self.area.load(doorbell::sq_producer(SLOT))
    }

    fn generation(&self) -> u32 {
        self.area
            .load(doorbell::qp_generation(SLOT / doorbell::GROUP_SLOTS))
    }
}

fn sge(length: u32) -> ibv_sge {
    ibv_sge {
        addr: 0x1000,
        length,
        lkey: 0x55,
    }
}

fn send(wr_id: u64, sges: &mut [ibv_sge]) -> ibv_send_wr {
    let mut wr = mock::send_wr(sges);
    wr.wr_id = wr_id;
    wr.opcode = 2;
    wr
}

fn post(qp: &Qp, wrs: &mut [ibv_send_wr]) -> Result<(), (Errno, usize)> {
    mock::with_sends(wrs, |first| qp.post_send(first))
}

fn post_one(qp: &Qp, wr_id: u64) -> Result<(), (Errno, usize)> {
    let mut sges = [sge(8)];
    post(qp, &mut [send(wr_id, &mut sges)])
}

fn receive(qp: &Qp, wr_ids: &[u64]) -> Result<(), (Errno, usize)> {
    let mut sges = [sge(16)];
    let mut wrs: Vec<ibv_recv_wr> = wr_ids
        .iter()
        .map(|&wr_id| mock::recv_wr(wr_id, &mut sges))
        .collect();
    mock::with_recvs(&mut wrs, |first| qp.post_recv(first))
}
