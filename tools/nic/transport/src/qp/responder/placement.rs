// SPDX-License-Identifier: GPL-2.0 OR MIT

//! ATOMIC WRITE and FLUSH (IBTA A19, memory placement extensions). Both count among
//! `max_dest_rd_atomic` and are answered by a READ response without bytes. A host that copies at
//! once has nothing to do for a FLUSH: all earlier writes are visible. Persistence is a property of
//! regions, and no region has it.

use super::{remote_key_use, ExecutedOp, ExecutedRequest, NotExecuted, Responder};
use crate::host::{CopyFault, CopyTarget, Host, KeyAccess, Syndrome};
use crate::packet::{Feth, Packet, Reth};
use crate::qp::Core;
use verbena_abi::ctx::access;

/// Size of an ATOMIC WRITE in bytes.
const SIZE: u32 = 8;

impl Responder {
    pub(super) fn atomic_write<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: &Packet,
        reth: Reth,
    ) -> Result<(), NotExecuted> {
        let psn = packet.psn;
        self.check_response_request(core, host, packet, access::REMOTE_WRITE)?;
        let key = remote_key_use(core, self.pd(core), &reth, KeyAccess::RemoteWrite);
        let is_sized = reth.length == SIZE && packet.payload.len() == SIZE;
        if !is_sized || reth.addr % u64::from(SIZE) != 0 {
            if reth.length > 0 {
                if let Err(cause) = host.check(&key) {
                    return Err(self.refuse_access(core, host, psn, cause));
                }
            }
            let cause = if is_sized {
                Syndrome::AtomicMisaligned
            } else {
                Syndrome::RequestLength
            };
            return Err(self.refuse_request(core, host, psn, cause));
        }
        let mut value = [0; SIZE as usize];
        match host.copy(CopyTarget::Buffer(&mut value), packet.payload.source()) {
            Ok(()) => {}
            Err(CopyFault::Source(cause) | CopyFault::Target(cause)) => {
                return Err(self.on_sender_fault(core, host, packet, cause));
            }
        }
        if let Err(cause) = host.atomic_write(&key, value) {
            return Err(self.refuse_access(core, host, psn, cause));
        }
        self.record_placement(core, packet, ExecutedOp::AtomicWrite(reth));
        Ok(())
    }

    pub(super) fn flush_memory<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: &Packet,
        feth: Feth,
        reth: Reth,
    ) -> Result<(), NotExecuted> {
        if !feth.is_known() {
            return Err(self.refuse_request(core, host, packet.psn, Syndrome::FlushType));
        }
        self.check_response_request(core, host, packet, feth.permission())?;
        // A range of zero bytes needs no key, as elsewhere (C9-88).
        if feth.is_whole() || reth.length > 0 {
            let mut key = remote_key_use(core, self.pd(core), &reth, KeyAccess::RemoteFlush(feth));
            key.length = key.length.max(1);
            if let Err(cause) = host.check(&key) {
                return Err(self.refuse_access(core, host, packet.psn, cause));
            }
        }
        self.record_placement(core, packet, ExecutedOp::Flush(feth, reth));
        Ok(())
    }

    fn record_placement(&mut self, core: &Core, packet: &Packet, body: ExecutedOp) {
        self.respond_first(
            core,
            ExecutedRequest {
                psn: packet.psn,
                psns: 1,
                pd: self.pd(core),
                op: body,
            },
        );
    }
}
