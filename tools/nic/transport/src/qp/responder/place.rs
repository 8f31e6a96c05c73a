// SPDX-License-Identifier: GPL-2.0 OR MIT

//! ATOMIC WRITE and FLUSH (IBTA A19, memory placement extensions). Both count among
//! `max_dest_rd_atomic` and are answered by a READ response without bytes. A host that copies at
//! once has nothing to do for a FLUSH: all earlier writes are visible. Persistence is a property of
//! regions, and no region has it.

use super::{remote_use, Body, Executed, Responder, Stop};
use crate::host::{Access, CopyFault, Host, Syndrome, Target};
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
    ) -> Result<(), Stop> {
        let psn = packet.psn;
        self.check_response_request(core, host, packet, access::REMOTE_WRITE)?;
        let key = remote_use(core, self.pd(core), &reth, Access::RemoteWrite);
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
        match host.copy(Target::Buffer(&mut value), packet.payload.source()) {
            Ok(()) => {}
            Err(CopyFault::Source(cause) | CopyFault::Target(cause)) => {
                return Err(self.sender_fault(core, host, packet, cause));
            }
        }
        if let Err(cause) = host.atomic_write(&key, value) {
            return Err(self.refuse_access(core, host, psn, cause));
        }
        self.placed(core, packet, Body::AtomicWrite(reth));
        Ok(())
    }

    pub(super) fn flush_memory<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: &Packet,
        feth: Feth,
        reth: Reth,
    ) -> Result<(), Stop> {
        if !feth.is_known() {
            return Err(self.refuse_request(core, host, packet.psn, Syndrome::FlushType));
        }
        self.check_response_request(core, host, packet, feth.permission())?;
        // A range of zero bytes needs no key, as elsewhere (C9-88).
        if feth.is_whole() || reth.length > 0 {
            let mut key = remote_use(core, self.pd(core), &reth, Access::RemoteFlush(feth));
            key.length = key.length.max(1);
            if let Err(cause) = host.check(&key) {
                return Err(self.refuse_access(core, host, packet.psn, cause));
            }
        }
        self.placed(core, packet, Body::Flush(feth, reth));
        Ok(())
    }

    fn placed(&mut self, core: &Core, packet: &Packet, body: Body) {
        self.answer_first(
            core,
            Executed {
                psn: packet.psn,
                psns: 1,
                pd: self.pd(core),
                body,
            },
        );
    }
}
