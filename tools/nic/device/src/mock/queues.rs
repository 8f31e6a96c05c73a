// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Queues and memory regions of the fake driver: creation, connection, posting and polling.

use super::driver::{flat, gid, Driver, MAC};
use crate::error::CmdError;
use crate::memory::GuestMemory;
use verbena_abi::cmd::*;
use verbena_abi::cqe::{Cqe, Tail, WcStatus, CQE_SIZE};
use verbena_abi::ctx::{access, qp_mask as m, AddressVector, QpAttr, QpContext, QpState};
use verbena_abi::doorbell::{self, Arm, ArmMode, Words};
use verbena_abi::wqe::{self, send_flags, RecvWqe, SendWqe, Sge, WqeOpcode};
use zerocopy::IntoBytes;

/// All access rights that the tests give a region.
pub const ALL_ACCESS: u32 = access::LOCAL_WRITE
    | access::REMOTE_WRITE
    | access::REMOTE_READ
    | access::REMOTE_ATOMIC
    | access::FLUSH_GLOBAL;

/// A CQ as the program sees it.
#[derive(Clone, Debug)]
pub struct CqHandle {
    /// Number of the CQ.
    pub cqn: u32,
    /// Slot of the CQ in doorbell area 0.
    pub slot: u16,
    /// DMA address of the ring.
    pub ring: u64,
    /// Logarithm of the number of entries.
    pub log_size: u8,
    /// Consumer index of the program.
    pub ci: u32,
    /// Index of the ring's first entry, which is not 0 after the CQ was resized.
    pub base: u32,
    /// Arm that was issued last.
    pub arm: Arm,
}

/// A queue pair as the program sees it.
#[derive(Clone, Debug)]
pub struct QpHandle {
    /// Number of the queue pair.
    pub qpn: u32,
    /// Slot of the queue pair in doorbell area 0.
    pub slot: u16,
    /// DMA address of the send ring.
    pub sq: u64,
    /// DMA address of the receive ring.
    pub rq: u64,
    /// Producer index of the send ring.
    pub sq_pi: u32,
    /// Producer index of the receive ring.
    pub rq_pi: u32,
}

/// A shared receive queue as the program sees it.
#[derive(Clone, Debug)]
pub struct SrqHandle {
    /// Number of the SRQ.
    pub srqn: u32,
    /// Slot of the SRQ in doorbell area 0.
    pub slot: u16,
    /// DMA address of the ring.
    pub ring: u64,
    /// Producer index of the ring.
    pub pi: u32,
}

/// A completion that was polled.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// CQ entry of the completion.
    pub cqe: Cqe,
    /// Last word of the entry, decoded.
    pub tail: Tail,
}

impl Done {
    /// Returns the status of the completion.
    pub fn status(&self) -> WcStatus {
        WcStatus::from_raw(self.tail.status).unwrap()
    }
}

/// The bytes of a send WQE.
pub type WqeBytes = [u8; 1 << LOG_SQ_STRIDE];

/// Logarithm of the number of entries of send and receive rings.
pub const LOG_WQ: u8 = 4;
/// Logarithm of the stride of send rings.
pub const LOG_SQ_STRIDE: u8 = 8;
/// Logarithm of the stride of receive rings.
pub const LOG_RQ_STRIDE: u8 = 6;

/// A send work request.
#[derive(Clone, Debug)]
pub struct SendWr {
    /// Operation of the request.
    pub opcode: WqeOpcode,
    /// Value that its completion returns.
    pub wr_id: u64,
    /// Flags of the request (`send_flags`).
    pub flags: u8,
    /// SGEs of the data: address, length and key.
    pub sges: Vec<(u64, u32, u32)>,
    /// Inline data, used in place of SGEs.
    pub inline: Vec<u8>,
    /// Address and key at the peer.
    pub remote: (u64, u32),
    /// Immediate data, or the key to invalidate.
    pub imm: [u8; 4],
}

impl SendWr {
    /// Creates a signaled request without a remote address.
    pub fn new(opcode: WqeOpcode, wr_id: u64, sges: &[(u64, u32, u32)]) -> Self {
        Self {
            opcode,
            wr_id,
            flags: send_flags::SIGNALED,
            sges: sges.to_vec(),
            inline: Vec::new(),
            remote: (0, 0),
            imm: [0; 4],
        }
    }

    /// Sets the address and the key at the peer.
    pub fn to(mut self, addr: u64, rkey: u32) -> Self {
        self.remote = (addr, rkey);
        self
    }

    /// Encodes the WQE for a connected queue pair.
    pub fn encode(&self) -> WqeBytes {
        let mut out = [0; 1 << LOG_SQ_STRIDE];
        let inline = if self.inline.is_empty() {
            0
        } else {
            send_flags::INLINE
        };
        let header = SendWqe {
            opcode: self.opcode.to_raw(),
            flags: self.flags | inline,
            num_sge: self.sges.len() as u8,
            inline_length: (self.inline.len() as u32).into(),
            wr_id: self.wr_id.into(),
            imm: self.imm,
            remote_addr: self.remote.0.into(),
            rkey: self.remote.1.into(),
            ..Default::default()
        };
        out[..wqe::DATA_OFFSET].copy_from_slice(header.as_bytes());
        let mut at = wqe::DATA_OFFSET;
        for sge in &self.sges {
            out[at..at + 16].copy_from_slice(encode_sge(sge).as_bytes());
            at += 16;
        }
        out[at..at + self.inline.len()].copy_from_slice(&self.inline);
        out
    }
}

fn encode_sge(&(addr, length, lkey): &(u64, u32, u32)) -> Sge {
    Sge {
        addr: addr.into(),
        length: length.into(),
        lkey: lkey.into(),
    }
}

impl Driver {
    /// Creates a CQ on event queue 1.
    pub fn create_cq(&mut self, log_size: u8) -> CqHandle {
        self.create_cq_with(log_size, 0)
    }

    /// Creates a CQ on event queue 1 with these `cq_flags`.
    pub fn create_cq_with(&mut self, log_size: u8, flags: u32) -> CqHandle {
        let (cqn, slot) = (self.number(), self.slot());
        let ring = self.alloc((CQE_SIZE as u64) << log_size);
        self.must(&CreateCq {
            cqn: cqn.into(),
            eqn: 1.into(),
            slot: slot.into(),
            log_size,
            ring: flat(ring),
            flags: flags.into(),
            ..Default::default()
        });
        CqHandle {
            cqn,
            slot,
            ring,
            log_size,
            ci: 0,
            base: 0,
            arm: Arm {
                index: 0,
                seq: 0,
                mode: ArmMode::None,
            },
        }
    }

    /// Moves a CQ to another ring of 2^`log_size` entries.
    pub fn resize_cq(&mut self, cq: &mut CqHandle, log_size: u8) -> Result<(), CmdError> {
        let ring = self.alloc((CQE_SIZE as u64) << log_size);
        self.cmd(&ResizeCq {
            cqn: cq.cqn.into(),
            log_size,
            ring: flat(ring),
            ..Default::default()
        })?;
        (cq.ring, cq.log_size, cq.base) = (ring, log_size, cq.ci);
        Ok(())
    }

    /// Returns the CREATE_QP request for an RC queue pair with these CQs.
    pub fn qp_request(&mut self, send: &CqHandle, recv: &CqHandle) -> CreateQp {
        let sq = self.alloc(1 << (LOG_WQ + LOG_SQ_STRIDE));
        let rq = self.alloc(1 << (LOG_WQ + LOG_RQ_STRIDE));
        CreateQp {
            qpn: self.number().into(),
            pdn: 7.into(),
            send_cqn: send.cqn.into(),
            recv_cqn: recv.cqn.into(),
            slot: self.slot().into(),
            qp_type: QpType::Rc.to_raw(),
            log_sq_size: LOG_WQ,
            log_sq_stride: LOG_SQ_STRIDE,
            log_rq_size: LOG_WQ,
            log_rq_stride: LOG_RQ_STRIDE,
            sq: flat(sq),
            rq: flat(rq),
            max_send_sge: 4,
            max_recv_sge: 3,
            max_inline: 128.into(),
            ..Default::default()
        }
    }

    /// Creates a queue pair from this request.
    pub fn create_qp_by(&mut self, request: &CreateQp) -> Result<QpHandle, CmdError> {
        self.cmd(request)?;
        Ok(QpHandle {
            qpn: request.qpn.get(),
            slot: request.slot.get(),
            sq: request.sq.addr.get(),
            rq: request.rq.addr.get(),
            sq_pi: 0,
            rq_pi: 0,
        })
    }

    /// Creates an RC queue pair in RESET.
    pub fn create_qp(&mut self, send: &CqHandle, recv: &CqHandle) -> QpHandle {
        let request = self.qp_request(send, recv);
        self.create_qp_by(&request).unwrap()
    }

    /// Creates a shared receive queue.
    pub fn create_srq(&mut self) -> SrqHandle {
        let ring = self.alloc(1 << (LOG_WQ + LOG_RQ_STRIDE));
        let (srqn, slot) = (self.number(), self.slot());
        self.must(&CreateSrq {
            srqn: srqn.into(),
            pdn: 7.into(),
            slot: slot.into(),
            log_size: LOG_WQ,
            log_stride: LOG_RQ_STRIDE,
            ring: flat(ring),
            ..Default::default()
        });
        SrqHandle {
            srqn,
            slot,
            ring,
            pi: 0,
        }
    }

    /// Modifies a queue pair with this mask and these attributes.
    pub fn modify(&mut self, qpn: u32, mask: u32, attr: QpAttr) -> Result<Quiesced, CmdError> {
        self.modify_av(qpn, mask, attr, AddressVector::default())
    }

    /// Modifies a queue pair, including its path.
    pub fn modify_av(
        &mut self,
        qpn: u32,
        mask: u32,
        attr: QpAttr,
        av: AddressVector,
    ) -> Result<Quiesced, CmdError> {
        self.cmd(&ModifyQp {
            qpn: qpn.into(),
            mask: mask.into(),
            attr,
            av,
            ..Default::default()
        })
    }

    /// Moves a queue pair to a state without other attributes.
    pub fn move_to(&mut self, qpn: u32, state: QpState) -> Result<Quiesced, CmdError> {
        self.cmd(&Self::move_request(qpn, state))
    }

    /// Returns the MODIFY_QP request that changes only the state.
    pub fn move_request(qpn: u32, state: QpState) -> ModifyQp {
        ModifyQp {
            qpn: qpn.into(),
            mask: m::STATE.into(),
            attr: QpAttr {
                qp_state: state.to_raw(),
                ..Default::default()
            },
            ..Default::default()
        }
    }

    /// Moves a queue pair from RESET to INIT.
    pub fn to_init(&mut self, qpn: u32) -> Result<Quiesced, CmdError> {
        let attr = QpAttr {
            qp_state: QpState::Init.to_raw(),
            port_num: 1,
            qp_access_flags: ALL_ACCESS.into(),
            ..Default::default()
        };
        let mask = m::STATE | m::PKEY_INDEX | m::PORT | m::ACCESS_FLAGS;
        self.modify(qpn, mask, attr)
    }

    /// Returns the path from a queue pair of GID `from` to GID `to`.
    pub fn path(from: u16, to: u16) -> AddressVector {
        AddressVector {
            dgid: gid([10, 0, 0, 1 + to as u8]),
            dmac: MAC,
            sgid_index: from.into(),
            hop_limit: 64,
            port_num: 1,
            ..Default::default()
        }
    }

    /// Moves a queue pair from INIT to RTR.
    pub fn to_rtr(&mut self, qpn: u32, peer: u32, av: AddressVector) -> Result<Quiesced, CmdError> {
        let attr = QpAttr {
            qp_state: QpState::Rtr.to_raw(),
            path_mtu: 3,
            dest_qpn: peer.into(),
            rq_psn: 0xff_fffe.into(),
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            ..Default::default()
        };
        let mask = m::STATE
            | m::AV
            | m::PATH_MTU
            | m::DEST_QPN
            | m::RQ_PSN
            | m::MAX_DEST_RD_ATOMIC
            | m::MIN_RNR_TIMER;
        self.modify_av(qpn, mask, attr, av)
    }

    /// Moves a queue pair from RTR to RTS.
    pub fn to_rts(&mut self, qpn: u32) -> Result<Quiesced, CmdError> {
        self.to_rts_with(qpn, 2)
    }

    /// Moves a queue pair from RTR to RTS, with this number of RNR retries.
    pub fn to_rts_with(&mut self, qpn: u32, rnr_retry: u8) -> Result<Quiesced, CmdError> {
        let attr = QpAttr {
            qp_state: QpState::Rts.to_raw(),
            sq_psn: 0xff_fffe.into(),
            timeout: 10,
            retry_cnt: 7,
            rnr_retry,
            max_rd_atomic: 4,
            ..Default::default()
        };
        let mask =
            m::STATE | m::SQ_PSN | m::TIMEOUT | m::RETRY_CNT | m::RNR_RETRY | m::MAX_QP_RD_ATOMIC;
        self.modify(qpn, mask, attr)
    }

    /// Connects two queue pairs, `a` at GID 0 and `b` at GID 1.
    pub fn connect(&mut self, a: &QpHandle, b: &QpHandle) {
        for (me, peer, from, to) in [(a, b, 0, 1), (b, a, 1, 0)] {
            self.to_init(me.qpn).unwrap();
            self.to_rtr(me.qpn, peer.qpn, Self::path(from, to)).unwrap();
            self.to_rts(me.qpn).unwrap();
        }
    }

    /// Allocates memory with a pattern and a region with all rights over it. Returns its address
    /// and key.
    pub fn region(&mut self, bytes: u32, seed: u8) -> (u64, u32) {
        let addr = self.alloc(bytes.into());
        let pattern: Vec<u8> = (0..bytes)
            .map(|i| (i as u8).wrapping_mul(31) ^ seed)
            .collect();
        self.ram.write(addr, &pattern).unwrap();
        let key = self.number() << 8 | 0x11;
        self.create_mr(key, addr, bytes.into(), ALL_ACCESS).unwrap();
        (addr, key)
    }

    /// Creates a region over contiguous memory, whose addresses are the DMA addresses.
    pub fn create_mr(
        &mut self,
        key: u32,
        addr: u64,
        length: u64,
        rights: u32,
    ) -> Result<(), CmdError> {
        self.cmd(&CreateMr {
            key: key.into(),
            pdn: 7.into(),
            access: rights.into(),
            iova: addr.into(),
            length: length.into(),
            pages: flat(addr),
            ..Default::default()
        })
        .map(|_| ())
    }

    /// Returns a copy of bytes in memory.
    pub fn bytes(&self, addr: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.ram.read(addr, &mut out).unwrap();
        out
    }

    fn ring_bell(&self) {
        self.rings.set(self.rings.get() + 1);
    }

    /// Posts a send work request.
    pub fn post_send(&mut self, qp: &mut QpHandle, wr: &SendWr) {
        self.post_raw(qp, &wr.encode());
    }

    /// Posts any bytes as a send WQE.
    pub fn post_raw(&mut self, qp: &mut QpHandle, wqe: &WqeBytes) {
        let at = qp.sq + (u64::from(qp.sq_pi % (1 << LOG_WQ)) << LOG_SQ_STRIDE);
        self.ram.write(at, wqe).unwrap();
        qp.sq_pi = qp.sq_pi.wrapping_add(1);
        doorbell::post_send(&self.words(), qp.slot.into(), qp.sq_pi, || self.ring_bell());
    }

    fn write_recv(&self, at: u64, wr_id: u64, sges: &[(u64, u32, u32)]) {
        let header = RecvWqe {
            wr_id: wr_id.into(),
            num_sge: sges.len() as u8,
            ..Default::default()
        };
        self.ram.write_struct(at, &header).unwrap();
        for (i, sge) in sges.iter().enumerate() {
            let to = at + 16 + i as u64 * 16;
            self.ram.write_struct(to, &encode_sge(sge)).unwrap();
        }
    }

    /// Posts a receive to the receive ring.
    pub fn post_recv(&mut self, qp: &mut QpHandle, wr_id: u64, sges: &[(u64, u32, u32)]) {
        let at = qp.rq + (u64::from(qp.rq_pi % (1 << LOG_WQ)) << LOG_RQ_STRIDE);
        self.write_recv(at, wr_id, sges);
        qp.rq_pi = qp.rq_pi.wrapping_add(1);
        doorbell::post_recv(&self.words(), qp.slot.into(), qp.rq_pi, || self.ring_bell());
    }

    /// Posts a receive to a shared receive queue.
    pub fn post_srq(&mut self, srq: &mut SrqHandle, wr_id: u64, sges: &[(u64, u32, u32)]) {
        let at = srq.ring + (u64::from(srq.pi % (1 << LOG_WQ)) << LOG_RQ_STRIDE);
        self.write_recv(at, wr_id, sges);
        srq.pi = srq.pi.wrapping_add(1);
        doorbell::post_recv(&self.words(), srq.slot.into(), srq.pi, || self.ring_bell());
    }

    /// Polls one completion of a CQ.
    pub fn poll(&mut self, cq: &mut CqHandle) -> Option<Done> {
        let index = cq.ci.wrapping_sub(cq.base);
        let at = cq.ring + u64::from(index % (1 << cq.log_size)) * CQE_SIZE as u64;
        let cqe: Cqe = self.ram.read_struct(at).unwrap();
        let tail = Tail::unpack(cqe.tail.get(), index, cq.log_size)?;
        cq.ci = cq.ci.wrapping_add(1);
        self.words()
            .store_release(doorbell::cq_consumer(cq.slot.into()), cq.ci);
        Some(Done { cqe, tail })
    }

    /// Runs the device and polls all completions. Returns `wr_id` and status of each.
    pub fn drain(&mut self, cq: &mut CqHandle) -> Vec<(u64, WcStatus)> {
        self.run();
        std::iter::from_fn(|| self.poll(cq))
            .map(|d| (d.cqe.wr_id.get(), d.status()))
            .collect()
    }

    /// Arms a CQ for its next event.
    pub fn arm(&mut self, cq: &mut CqHandle, mode: ArmMode) {
        let (slot, index) = (cq.slot.into(), cq.ci);
        let mut arm = cq.arm;
        doorbell::arm_cq(&self.words(), slot, &mut arm, index, mode, || {
            self.ring_bell();
        });
        cq.arm = arm;
    }

    /// Queries a queue pair and returns the context that the device has published.
    pub fn query_qp(&mut self, qpn: u32) -> QpContext {
        let queried = self.must(&QueryQp {
            id: qpn.into(),
            ..Default::default()
        });
        let at = self.table(Table::Qpc) + u64::from(qpn) * size_of::<QpContext>() as u64;
        let context: QpContext = self.ram.read_struct(at).unwrap();
        assert_eq!(queried.qp_state, context.attr.qp_state);
        context
    }
}
