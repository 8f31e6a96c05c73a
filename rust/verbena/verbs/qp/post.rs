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
            SendWqe,
            Sge,
            WqeOpcode, //
        },
        Le32,
        Le64, //
    }, //
};
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
        let mut flags = wr.flags();
        let mut header = SendWqe {
            wr_id: Le64::new(place.into()),
            ..Default::default()
        };
        let mut remote = None;
        let mut atomic = None;
        let mut fast_reg = None;
        let mut has_data = true;
        let opcode = match wr.op()? {
            SendOp::Send => WqeOpcode::Send,
            SendOp::SendWithImm(imm) => {
                header.imm = imm;
                WqeOpcode::SendImm
            }
            SendOp::SendWithInv(key) => {
                header.imm = key.to_le_bytes();
                WqeOpcode::SendInv
            }
            SendOp::RdmaWrite(to) => {
                remote = Some(to);
                WqeOpcode::RdmaWrite
            }
            SendOp::RdmaWriteWithImm(to, imm) => {
                remote = Some(to);
                header.imm = imm;
                WqeOpcode::RdmaWriteImm
            }
            SendOp::RdmaRead {
                from,
                invalidate: false,
            } => {
                remote = Some(from);
                WqeOpcode::RdmaRead
            }
            SendOp::RdmaRead { .. } => return Err(EINVAL),
            SendOp::AtomicCmpAndSwp { at, compare, swap } => {
                remote = Some(at);
                atomic = Some(AtomicSegment {
                    compare_add: Le64::new(compare),
                    swap: Le64::new(swap),
                    ..Default::default()
                });
                WqeOpcode::CompareSwap
            }
            SendOp::AtomicFetchAndAdd { at, add } => {
                remote = Some(at);
                atomic = Some(AtomicSegment {
                    compare_add: Le64::new(add),
                    ..Default::default()
                });
                WqeOpcode::FetchAdd
            }
            SendOp::LocalInv(key) => {
                header.imm = key.to_le_bytes();
                has_data = false;
                WqeOpcode::LocalInv
            }
            SendOp::RegMr { mr, key, access } => {
                fast_reg = Some(MrData::segment(mr, key, access)?);
                has_data = false;
                WqeOpcode::FastReg
            }
        };
        if let Some(Remote { addr, rkey }) = remote {
            header.remote_addr = Le64::new(addr);
            header.rkey = Le32::new(rkey);
        }
        if !has_data {
            flags = flags.without(SendFlags::INLINE);
        }
        header.opcode = opcode.to_raw();
        // CAST: Only the bits that the device knows remain.
        header.flags = flags.as_raw() as u8 & wqe::send_flags::ALL;

        let data_offset = wqe::data_offset(self.datagram, atomic.is_some());
        let data = at + data_offset;
        // The segment of an atomic operation leaves less room for data.
        let data_room = (1usize << self.request.log_sq_stride).saturating_sub(data_offset);
        if let Some(atomic) = &atomic {
            chunk.write(at + wqe::DATA_OFFSET, atomic)?;
        }
        if let Some(segment) = &fast_reg {
            chunk.write(at + wqe::FAST_REG_OFFSET, segment)?;
        }
        if self.datagram {
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
        }
        if has_data && flags.contains(SendFlags::INLINE) {
            let mut bytes = [0u8; wqe::MAX_INLINE as usize];
            let room = bytes
                .get_mut(..data_room.min(self.cap.max_inline_data as usize))
                .ok_or(EINVAL)?;
            let len = wr.copy_inline(room)?;
            header.inline_length = Le32::new(u32::try_from(len)?);
            chunk.write_bytes(data, bytes.get(..len).ok_or(EINVAL)?)?;
        } else if has_data {
            let sges = wr.sges();
            let max_sge = data_room / size_of::<Sge>();
            if sges.len() > max_sge.min(self.cap.max_send_sge as usize) {
                return Err(EINVAL);
            }
            // CAST: The number is at most `max_send_sge`.
            header.num_sge = sges.len() as u8;
            wq::write_sges(sq, offset + (data - at), sges)?;
        }
        chunk.write(at, &header)?;
        Ok(completes_as(opcode))
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
