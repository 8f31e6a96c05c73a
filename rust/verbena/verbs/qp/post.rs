// SPDX-License-Identifier: GPL-2.0

//! Work requests of kernel users, written into the rings of a queue pair.

use super::{
    super::{
        mr::MrData,
        wq::{
            self,
            PostedRequest, //
        },
        Verbena, //
    },
    QpData, //
};
use crate::{
    abi::{
        cmd::QP_SIGNAL_ALL,
        wqe::{
            self,
            AtomicSegment,
            FastRegSegment,
            SendWqe,
            Sge,
            WqeOpcode, //
        },
        Le16,
        Le32,
        Le64, //
    },
    ring::DmaRing, //
};
use base::dma::Chunk;
use kernel::{
    prelude::*,
    sync::atomic::Relaxed, //
};
use rdma::{
    enums::{
        QpState,
        SendFlags,
        WcOpcode, //
    },
    wr::{
        RecvWr,
        RecvWrs,
        Remote,
        SendOp,
        SendWr,
        SendWrs, //
    }, //
};

impl QpData {
    /// Posts sends until one fails. Returns `EINVAL` in RESET, INIT and RTR.
    pub(super) fn post_sends(&self, wrs: &mut SendWrs<'_, Verbena>) -> Result {
        let all_signaled = self.request.flags & QP_SIGNAL_ALL != 0;
        let write = |place: u32, _, wr: &SendWr<'_, Verbena>| {
            let offset = (place as usize) << self.request.log_sq_stride;
            // The core drains queue pairs of every type with an RDMA WRITE, in ERR.
            let opcode = if self.datagram && self.is_in(QpState::Err) && wr.op().is_err() {
                self.write_flushed(offset, place)?
            } else {
                self.write_send(offset, place, wr)?
            };
            Ok(PostedRequest {
                wr_id: wr.wr_id(),
                opcode,
                length: 0,
                signaled: all_signaled || wr.flags().contains(SendFlags::SIGNALED),
            })
        };
        let mut queue = self.send.lock();
        if [QpState::Reset, QpState::Init, QpState::Rtr]
            .iter()
            .any(|state| self.is_in(*state))
        {
            return Err(EINVAL);
        }
        let result = wq::post(&mut *queue, wrs, write, |producer| {
            self.slot.post_send(producer)
        });
        drop(queue);
        self.flush_posted();
        result
    }

    /// Posts receives until one fails. Returns `EINVAL` in RESET, and for a queue pair without a
    /// receive queue.
    pub(super) fn post_recvs(&self, wrs: &mut RecvWrs<'_>) -> Result {
        let ring = self.rq.as_ref().ok_or(EINVAL)?;
        let write = |place: u32, _, wr: &RecvWr<'_>| {
            let offset = (place as usize) << self.request.log_rq_stride;
            wq::write_recv(ring, offset, place.into(), self.cap.max_recv_sge, wr)
        };
        let mut queue = self.recv.lock();
        if self.is_in(QpState::Reset) {
            return Err(EINVAL);
        }
        let result = wq::post(&mut *queue, wrs, write, |producer| {
            self.slot.post_recv(producer)
        });
        drop(queue);
        self.flush_posted();
        result
    }

    /// Queues the death work if the driver flushes the posted requests.
    fn flush_posted(&self) {
        if self.is_flushing() {
            self.vdev.health.flush();
        }
    }

    /// Writes the WQE of a send at `offset`. Returns the opcode of its completion. The device gets
    /// `place` as the `wr_id`, because a kernel user's is a pointer and not for the device.
    fn write_send(&self, offset: usize, place: u32, wr: &SendWr<'_, Verbena>) -> Result<WcOpcode> {
        let sq = self.sq.as_ref().ok_or(EINVAL)?;
        let (chunk, at) = sq.at(offset)?;
        let operands = SendOperands::new(wr.op()?)?;
        let mut flags = wr.flags();
        if !operands.has_data {
            flags = flags.without(SendFlags::INLINE);
        }
        let mut header = SendWqe {
            wr_id: Le64::new(place.into()),
            imm: operands.imm,
            opcode: operands.opcode.to_raw(),
            // CAST: Only the bits that the device knows remain.
            flags: flags.as_raw() as u8 & wqe::send_flags::ALL,
            ..Default::default()
        };
        if let Some(Remote { addr, rkey }) = operands.remote {
            header.remote_addr = Le64::new(addr);
            header.rkey = Le32::new(rkey);
        }
        if let Some(atomic) = &operands.atomic {
            chunk.write(at + wqe::DATA_OFFSET, atomic)?;
        }
        if let Some(segment) = &operands.fast_reg {
            chunk.write(at + wqe::FAST_REG_OFFSET, segment)?;
        }
        if self.datagram {
            let pkey_index = self.write_address(chunk, at, wr)?;
            if self.sends_pkey_index {
                header.pkey_index = Le16::new(pkey_index);
            }
        }
        if operands.has_data {
            let data_offset = wqe::data_offset(self.datagram, operands.atomic.is_some());
            self.write_data(sq, (chunk, at), offset, data_offset, &mut header, wr)?;
        }
        chunk.write(at, &header)?;
        Ok(completes_as(operands.opcode))
    }

    /// Writes the address vector of a datagram into the WQE at `at`. Returns the index of the P_Key
    /// that the request names.
    #[inline(always)]
    fn write_address(&self, chunk: &Chunk, at: usize, wr: &SendWr<'_, Verbena>) -> Result<u16> {
        let to = wr.datagram().ok_or(EINVAL)?;
        let mut av = to.ah.av;
        av.dest_qpn = Le32::new(to.remote_qpn);
        // A Q_Key with the top bit set stands for the queue pair's own Q_Key (IBTA 10.2.5).
        av.qkey = Le32::new(if to.remote_qkey & 1 << 31 != 0 {
            self.qkey.load(Relaxed)
        } else {
            to.remote_qkey
        });
        chunk.write(at + wqe::DATA_OFFSET, &av)?;
        Ok(to.pkey_index)
    }

    /// Writes the inline data or the scatter/gather list of the WQE at `offset` of the ring, which is
    /// at `at` of its chunk, and the length of either into the header. The data begins `data_offset`
    /// bytes after the beginning of the WQE.
    #[inline(always)]
    fn write_data(
        &self,
        sq: &DmaRing,
        (chunk, at): (&Chunk, usize),
        offset: usize,
        data_offset: usize,
        header: &mut SendWqe,
        wr: &SendWr<'_, Verbena>,
    ) -> Result {
        // The segment of an atomic operation leaves less room for data.
        let data_room = (1usize << self.request.log_sq_stride).saturating_sub(data_offset);
        if wr.flags().contains(SendFlags::INLINE) {
            let mut bytes = [0u8; wqe::MAX_INLINE as usize];
            let room = bytes
                .get_mut(..data_room.min(self.cap.max_inline_data as usize))
                .ok_or(EINVAL)?;
            let len = wr.copy_inline(room)?;
            header.inline_length = Le32::new(u32::try_from(len)?);
            return chunk.write_bytes(at + data_offset, bytes.get(..len).ok_or(EINVAL)?);
        }
        let sges = wr.sges();
        let max_sge = data_room / size_of::<Sge>();
        if sges.len() > max_sge.min(self.cap.max_send_sge as usize) {
            return Err(EINVAL);
        }
        // CAST: The number is at most `max_send_sge`.
        header.num_sge = sges.len() as u8;
        wq::write_sges(sq, offset + data_offset, sges)
    }

    /// Writes at `offset` the WQE of a send that will be flushed, whatever its opcode is.
    fn write_flushed(&self, offset: usize, place: u32) -> Result<WcOpcode> {
        let sq = self.sq.as_ref().ok_or(EINVAL)?;
        let (chunk, at) = sq.at(offset)?;
        let header = SendWqe {
            opcode: WqeOpcode::Send.to_raw(),
            wr_id: Le64::new(place.into()),
            ..Default::default()
        };
        chunk.write(at, &header)?;
        Ok(WcOpcode::Send)
    }
}

/// Operands of a send, by its opcode.
struct SendOperands {
    opcode: WqeOpcode,
    /// Immediate data, or a key to invalidate.
    imm: [u8; 4],
    remote: Option<Remote>,
    atomic: Option<AtomicSegment>,
    fast_reg: Option<FastRegSegment>,
    /// True if the request has a scatter/gather list or inline data.
    has_data: bool,
}

impl SendOperands {
    #[inline(always)]
    fn new(op: SendOp<'_, Verbena>) -> Result<Self> {
        let mut operands = Self {
            opcode: WqeOpcode::Send,
            imm: [0; 4],
            remote: None,
            atomic: None,
            fast_reg: None,
            has_data: true,
        };
        operands.opcode = match op {
            SendOp::Send => WqeOpcode::Send,
            SendOp::SendWithImm(imm) => {
                operands.imm = imm;
                WqeOpcode::SendImm
            }
            SendOp::SendWithInv(key) => {
                operands.imm = key.to_le_bytes();
                WqeOpcode::SendInv
            }
            SendOp::RdmaWrite(to) => {
                operands.remote = Some(to);
                WqeOpcode::RdmaWrite
            }
            SendOp::RdmaWriteWithImm(to, imm) => {
                operands.remote = Some(to);
                operands.imm = imm;
                WqeOpcode::RdmaWriteImm
            }
            SendOp::RdmaRead {
                from,
                invalidate: false,
            } => {
                operands.remote = Some(from);
                WqeOpcode::RdmaRead
            }
            SendOp::RdmaRead { .. } => return Err(EINVAL),
            SendOp::AtomicCmpAndSwp { at, compare, swap } => {
                operands.remote = Some(at);
                operands.atomic = Some(AtomicSegment {
                    compare_add: Le64::new(compare),
                    swap: Le64::new(swap),
                    ..Default::default()
                });
                WqeOpcode::CompareSwap
            }
            SendOp::AtomicFetchAndAdd { at, add } => {
                operands.remote = Some(at);
                operands.atomic = Some(AtomicSegment {
                    compare_add: Le64::new(add),
                    ..Default::default()
                });
                WqeOpcode::FetchAdd
            }
            SendOp::LocalInv(key) => {
                operands.imm = key.to_le_bytes();
                operands.has_data = false;
                WqeOpcode::LocalInv
            }
            SendOp::RegMr { mr, key, access } => {
                operands.fast_reg = Some(MrData::segment(mr, key, access)?);
                operands.has_data = false;
                WqeOpcode::FastReg
            }
        };
        Ok(operands)
    }
}

/// Returns the opcode of the completion of such a send.
fn completes_as(opcode: WqeOpcode) -> WcOpcode {
    match opcode {
        WqeOpcode::Send | WqeOpcode::SendImm | WqeOpcode::SendInv => WcOpcode::Send,
        WqeOpcode::RdmaWrite | WqeOpcode::RdmaWriteImm => WcOpcode::RdmaWrite,
        WqeOpcode::RdmaRead => WcOpcode::RdmaRead,
        WqeOpcode::CompareSwap => WcOpcode::CompSwap,
        WqeOpcode::FetchAdd => WcOpcode::FetchAdd,
        WqeOpcode::LocalInv => WcOpcode::LocalInv,
        WqeOpcode::AtomicWrite => WcOpcode::AtomicWrite,
        WqeOpcode::Flush => WcOpcode::Flush,
        // The kernel binds no windows.
        WqeOpcode::FastReg | WqeOpcode::BindMw => WcOpcode::RegMr,
    }
}
