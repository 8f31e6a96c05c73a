// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Setup before the first write: commands that create and connect all objects.

use super::{
    scattered, unreachable, Backend, Driver, Port, Queue, Shape, CQN, LKEY, LOG_STRIDE, OWN_SIZE,
    PAGE, PATIENCE, PD, QUEUE_SIZE, RKEY, SOURCE, TARGET, UAR,
};
use std::io;
use std::time::Instant;
use verbena_abi::cmd::*;
use verbena_abi::cqe::CQE_SIZE;
use verbena_abi::ctx::{access, qp_mask, AddressVector, QpAttr, QpContext, QpState, Translation};
use verbena_abi::eqe::LOG_EQE_SIZE;
use verbena_abi::wqe;
use verbena_abi::{doorbell, regs};
use verbena_device::memory::GuestMemory;

impl<B: Backend> Driver<B> {
    pub(super) fn set_up(&mut self, [own, peer]: [Port; 2]) -> io::Result<()> {
        let Shape { size, scatter, .. } = self.shape;
        for &table in Table::ALL {
            let last = match table {
                Table::Qpc => (FIRST_QPN + self.shape.queues) as usize * size_of::<QpContext>(),
                _ => 0,
            };
            for chunk in 0..=(last / TABLE_CHUNK_SIZE) as u32 {
                let addr = self.alloc(TABLE_CHUNK_SIZE as u64)?.into();
                self.command(SetTableChunk {
                    table: table.to_raw(),
                    chunk: chunk.into(),
                    addr,
                    ..Default::default()
                })?;
            }
        }
        let ring = self.ring(4096)?;
        let ci_addr = self.alloc(4096)?.into();
        self.command(CreateEq {
            log_size: 8,
            log_entry_size: LOG_EQE_SIZE,
            ring,
            ci_addr,
            ..Default::default()
        })?;
        let gid = SetGid {
            valid: 1,
            vlan: NO_VLAN.into(),
            gid: own.gid,
            mac: own.mac,
            port: 1,
            gid_type: GID_TYPE_ROCE_V2,
            ..Default::default()
        };
        self.command(gid)?;
        self.command(SetPort {
            up: 1,
            mtu: 5,
            port: 1,
            ..Default::default()
        })?;
        for (key, addr) in [(LKEY, SOURCE), (RKEY, TARGET)] {
            let pages = self.pages(addr, size, scatter)?;
            self.command(CreateMr {
                key: key.into(),
                pdn: PD.into(),
                access: (access::LOCAL_WRITE | access::REMOTE_WRITE).into(),
                iova: addr.into(),
                length: size.into(),
                pages,
                ..Default::default()
            })?;
        }
        let log_cq = self.shape.log_cq();
        self.cq = self.alloc((CQE_SIZE as u64) << log_cq)?;
        let rq = self.ring(4096)?;
        let mut area = 0;
        for number in 0..self.shape.queues {
            let slot = number as usize % doorbell::AREA_SLOTS;
            let uar = UAR + number / doorbell::AREA_SLOTS as u32;
            if slot == 0 {
                area = self.alloc(doorbell::AREA_SIZE as u64)?;
                self.command(CreateUar {
                    uar: uar.into(),
                    addr: area.into(),
                    ..Default::default()
                })?;
            }
            if number == 0 {
                self.command(CreateCq {
                    cqn: CQN.into(),
                    uar: UAR.into(),
                    log_size: log_cq,
                    ring: contiguous(self.cq),
                    ..Default::default()
                })?;
            }
            let sq = self.alloc(1 << (self.shape.log_depth + LOG_STRIDE))?;
            self.queues.push(Queue {
                sq,
                producer: 0,
                uar,
                area,
                slot,
            });
            self.create_qp(number, rq)?;
        }
        for number in 0..self.shape.queues {
            // The queue pairs of a single device are connected in pairs.
            let other = number ^ u32::from(own.mac == peer.mac);
            self.connect(FIRST_QPN + number, FIRST_QPN + other, peer)?;
        }
        Ok(())
    }

    /// Creates a queue pair. No receive is ever posted, so all queue pairs share one receive ring.
    fn create_qp(&mut self, number: u32, rq: Translation) -> io::Result<()> {
        let queue = &self.queues[number as usize];
        let request = CreateQp {
            qpn: (FIRST_QPN + number).into(),
            pdn: PD.into(),
            send_cqn: CQN.into(),
            recv_cqn: CQN.into(),
            uar: queue.uar.into(),
            slot: (queue.slot as u16).into(),
            qp_type: QpType::Rc.to_raw(),
            log_sq_size: self.shape.log_depth,
            log_sq_stride: LOG_STRIDE,
            log_rq_size: 4,
            log_rq_stride: wqe::log_rq_stride(1),
            sq: contiguous(queue.sq),
            rq,
            max_send_sge: 1,
            max_recv_sge: 1,
            ..Default::default()
        };
        self.command(request)?;
        Ok(())
    }

    fn connect(&mut self, qpn: u32, other: u32, peer: Port) -> io::Result<()> {
        use qp_mask::*;
        let attr = QpAttr {
            path_mtu: self.shape.mtu,
            dest_qpn: other.into(),
            qp_access_flags: access::REMOTE_WRITE.into(),
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            port_num: 1,
            ..Default::default()
        };
        let rtr = AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER;
        let rts = SQ_PSN | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC;
        for (state, mask) in [
            (QpState::Init, PKEY_INDEX | PORT | ACCESS_FLAGS),
            (QpState::Rtr, rtr),
            (QpState::Rts, rts),
        ] {
            let av = AddressVector {
                dgid: peer.gid,
                dmac: peer.mac,
                hop_limit: 64,
                port_num: 1,
                ..Default::default()
            };
            self.command(ModifyQp {
                qpn: qpn.into(),
                mask: (mask | STATE).into(),
                attr: QpAttr {
                    qp_state: state.to_raw(),
                    ..attr
                },
                av,
                ..Default::default()
            })?;
        }
        Ok(())
    }

    /// Allocates memory of the driver, which is zeroed and aligned to pages. Returns its address.
    pub(super) fn alloc(&mut self, size: u64) -> io::Result<u64> {
        let at = self.free;
        self.free += size.next_multiple_of(4096);
        if self.free > OWN_SIZE + u64::from(self.shape.queues) * QUEUE_SIZE {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.ram
            .write(at, &vec![0; size as usize])
            .map_err(unreachable)?;
        Ok(at)
    }

    fn ring(&mut self, size: u64) -> io::Result<Translation> {
        Ok(contiguous(self.alloc(size)?))
    }

    fn pages(&mut self, addr: u64, size: u64, scatter: bool) -> io::Result<Translation> {
        if !scatter {
            return Ok(contiguous(addr));
        }
        let count = size / PAGE;
        let table = self.alloc(count * 8)?;
        for i in 0..count {
            let page = addr + scattered(i * PAGE);
            self.ram
                .write(table + i * 8, &page.to_le_bytes())
                .map_err(unreachable)?;
        }
        Ok(Translation {
            addr: table.into(),
            num_pages: (count as u32).into(),
            log_page_size: PAGE.ilog2() as u8,
            levels: 1,
            ..Default::default()
        })
    }

    pub(super) fn command<C: Command>(&mut self, request: C) -> io::Result<()> {
        self.token += 1;
        let header = RequestHeader {
            opcode: C::OPCODE.to_raw().into(),
            token: self.token.into(),
            ..Default::default()
        };
        let reply = self.slots + REQUEST_SIZE as u64;
        let at = self.slots;
        self.ram.write_struct(at, &header).map_err(unreachable)?;
        self.ram
            .write_struct(at + HEADER_SIZE as u64, &request)
            .map_err(unreachable)?;
        self.backend.write(&self.ram, regs::CMDQ_DOORBELL, 0);
        let start = Instant::now();
        let token = reply + std::mem::offset_of!(ReplyHeader, token) as u64;
        while self.ram.load32(token).map_err(unreachable)? != self.token {
            self.backend.work(&self.ram);
            if start.elapsed() > PATIENCE {
                let name = C::OPCODE.name();
                return Err(io::Error::other(format!(
                    "{name}: no reply within {PATIENCE:?}"
                )));
            }
        }
        let done: ReplyHeader = self.ram.read_struct(reply).map_err(unreachable)?;
        if done.status.get() != CmdStatus::Ok.to_raw() {
            return Err(io::Error::other(format!(
                "{}: status {}, syndrome {:#x}",
                C::OPCODE.name(),
                done.status.get(),
                done.syndrome.get()
            )));
        }
        Ok(())
    }
}

fn contiguous(addr: u64) -> Translation {
    Translation {
        addr: addr.into(),
        num_pages: 1.into(),
        ..Default::default()
    }
}
