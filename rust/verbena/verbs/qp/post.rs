// SPDX-License-Identifier: GPL-2.0

//! Work requests of kernel users, written into the rings of a queue pair.

use super::{
    super::{
        mr::MrData,
        wq::Request,
        Verbena, //
    },
    QpData, //
};
use crate::{
    abi::{
        wqe::{
            self,
            AtomicSegment,
            RecvWqe,
            SendWqe,
            Sge as DeviceSge,
            WqeOpcode, //
        },
        Le32,
        Le64, //
    },
    ring::Ring, //
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
        SendOp,
        SendWr,
        SendWrs,
        Sge, //
    }, //
};

impl QpData {
    /// Posts sends until one fails.
    pub(super) fn post_sends(&self, wrs: &mut SendWrs<'_, Verbena>) -> Result {
        let mut queue = self.send.lock();
        if [QpState::Reset, QpState::Init, QpState::Rtr]
            .iter()
            .any(|state| self.is_in(*state))
        {
            return Err(EINVAL);
        }
        let before = queue.producer();
        let mut post = || {
            for wr in wrs.by_ref() {
                let index = queue.next().ok_or(ENOMEM)?;
                let place = index & ((1 << self.request.log_sq_size) - 1);
                let offset = (place as usize) << self.request.log_sq_stride;
                // The core drains queue pairs of every type by an RDMA WRITE, in ERR.
                let opcode = if self.datagram && self.is_in(QpState::Err) && wr.op().is_err() {
                    self.write_flushed(offset, place)?
                } else {
                    self.write_send(offset, place, &wr)?
                };
                queue.push(Request {
                    wr_id: wr.wr_id(),
                    opcode,
                    length: 0,
                });
            }
            Ok(())
        };
        let result = post();
        if queue.producer() != before {
            self.slot.post_send(queue.producer());
        }
        drop(queue);
        if self.flushes() {
            self.live.health.flush();
        }
        result
    }

    /// Posts receives until one fails.
    pub(super) fn post_recvs(&self, wrs: &mut RecvWrs<'_>) -> Result {
        let ring = self.rq.as_ref().ok_or(EINVAL)?;
        let mut queue = self.recv.lock();
        if self.is_in(QpState::Reset) {
            return Err(EINVAL);
        }
        let before = queue.producer();
        let mut post = || {
            for wr in wrs.by_ref() {
                let index = queue.next().ok_or(ENOMEM)?;
                let place = index & ((1 << self.request.log_rq_size) - 1);
                let offset = (place as usize) << self.request.log_rq_stride;
                let length = self.write_recv(ring, offset, place, &wr)?;
                queue.push(Request {
                    wr_id: wr.wr_id(),
                    opcode: WcOpcode::Recv,
                    length,
                });
            }
            Ok(())
        };
        let result = post();
        if queue.producer() != before {
            self.slot.post_recv(queue.producer());
        }
        drop(queue);
        if self.flushes() {
            self.live.health.flush();
        }
        result
    }

    fn write_sges(ring: &Ring, mut offset: usize, sges: &[Sge]) -> Result {
        for sge in sges {
            let (chunk, at) = ring.at(offset)?;
            chunk.write(
                at,
                &DeviceSge {
                    addr: Le64::new(sge.addr()),
                    length: Le32::new(sge.length()),
                    lkey: Le32::new(sge.lkey()),
                },
            )?;
            offset += size_of::<DeviceSge>();
        }
        Ok(())
    }

    /// Writes the WQE of a send at `offset`; returns what it completes as. The device gets `place`
    /// for a `wr_id`: that of a kernel user is a pointer, which is nobody else's business.
    fn write_send(&self, offset: usize, place: u32, wr: &SendWr<'_, Verbena>) -> Result<WcOpcode> {
        let (chunk, at) = self.sq.at(offset)?;
        let mut flags = wr.flags();
        let mut header = SendWqe {
            wr_id: Le64::new(place.into()),
            ..Default::default()
        };
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
            SendOp::RdmaWrite { remote_addr, rkey } => {
                header.remote_addr = Le64::new(remote_addr);
                header.rkey = Le32::new(rkey);
                WqeOpcode::RdmaWrite
            }
            SendOp::RdmaWriteWithImm {
                remote_addr,
                rkey,
                imm,
            } => {
                header.remote_addr = Le64::new(remote_addr);
                header.rkey = Le32::new(rkey);
                header.imm = imm;
                WqeOpcode::RdmaWriteImm
            }
            SendOp::RdmaRead {
                remote_addr,
                rkey,
                invalidate: false,
            } => {
                header.remote_addr = Le64::new(remote_addr);
                header.rkey = Le32::new(rkey);
                WqeOpcode::RdmaRead
            }
            SendOp::RdmaRead { .. } => return Err(EINVAL),
            SendOp::AtomicCmpAndSwp {
                remote_addr,
                rkey,
                compare,
                swap,
            } => {
                header.remote_addr = Le64::new(remote_addr);
                header.rkey = Le32::new(rkey);
                atomic = Some(AtomicSegment {
                    compare_add: Le64::new(compare),
                    swap: Le64::new(swap),
                });
                WqeOpcode::CompareSwap
            }
            SendOp::AtomicFetchAndAdd {
                remote_addr,
                rkey,
                add,
            } => {
                header.remote_addr = Le64::new(remote_addr);
                header.rkey = Le32::new(rkey);
                atomic = Some(AtomicSegment {
                    compare_add: Le64::new(add),
                    swap: Le64::new(0),
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
        if !has_data {
            flags = flags.without(SendFlags::INLINE);
        }
        header.opcode = opcode.to_raw();
        // CAST: the bits that the device knows.
        header.flags = flags.as_raw() as u8 & wqe::send_flags::ALL;

        let data = at + wqe::data_offset(self.datagram, atomic.is_some());
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
            // A Q_Key with the top bit set stands for the queue pair's own (IBTA 10.2.5).
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
                .get_mut(..self.cap.max_inline_data as usize)
                .ok_or(EINVAL)?;
            let len = wr.copy_inline(room)?;
            header.inline_length = Le32::new(u32::try_from(len)?);
            chunk.write_bytes(data, bytes.get(..len).ok_or(EINVAL)?)?;
        } else if has_data {
            let sges = wr.sges();
            if sges.len() > self.cap.max_send_sge as usize {
                return Err(EINVAL);
            }
            // CAST: at most `max_send_sge`.
            header.num_sge = sges.len() as u8;
            Self::write_sges(&self.sq, offset + (data - at), sges)?;
        }
        chunk.write(at, &header)?;
        Ok(completes_as(opcode))
    }

    /// Writes at `offset` the WQE of a send that will be flushed, whatever it is.
    fn write_flushed(&self, offset: usize, place: u32) -> Result<WcOpcode> {
        let (chunk, at) = self.sq.at(offset)?;
        let header = SendWqe {
            opcode: WqeOpcode::Send.to_raw(),
            wr_id: Le64::new(place.into()),
            ..Default::default()
        };
        chunk.write(at, &header)?;
        Ok(WcOpcode::Send)
    }

    /// Writes the WQE of a receive at `offset`; returns the bytes that it has room for.
    fn write_recv(&self, ring: &Ring, offset: usize, place: u32, wr: &RecvWr<'_>) -> Result<u32> {
        let sges = wr.sges();
        let length = sges
            .iter()
            .fold(0u32, |sum, sge| sum.saturating_add(sge.length()));
        if sges.len() > self.cap.max_recv_sge as usize {
            return Err(EINVAL);
        }
        let (chunk, at) = ring.at(offset)?;
        Self::write_sges(ring, offset + size_of::<RecvWqe>(), sges)?;
        chunk.write(
            at,
            &RecvWqe {
                wr_id: Le64::new(place.into()),
                // CAST: at most `max_recv_sge`.
                num_sge: sges.len() as u8,
                ..Default::default()
            },
        )?;
        Ok(length)
    }
}

/// What a send of this kind completes as.
fn completes_as(opcode: WqeOpcode) -> WcOpcode {
    match opcode {
        WqeOpcode::Send | WqeOpcode::SendImm | WqeOpcode::SendInv => WcOpcode::Send,
        WqeOpcode::RdmaWrite | WqeOpcode::RdmaWriteImm => WcOpcode::RdmaWrite,
        WqeOpcode::RdmaRead => WcOpcode::RdmaRead,
        WqeOpcode::CompareSwap => WcOpcode::CompSwap,
        WqeOpcode::FetchAdd => WcOpcode::FetchAdd,
        WqeOpcode::LocalInv => WcOpcode::LocalInv,
        WqeOpcode::FastReg => WcOpcode::RegMr,
    }
}
