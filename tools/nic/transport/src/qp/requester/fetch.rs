// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decoding of a WQE into a work request, once, and its checks.

use super::Requester;
use crate::host::{
    DecodedSendWqe, Gather, Host, KeyAccess, KeyUse, Syndrome, WcStatus, WqeError, WqeOpcode,
};
use crate::packet::Transport;
use crate::qp::Core;
use alloc::rc::Rc;

/// Length of the longest message (IBTA 9.7.3): its packets have less than half of all PSNs, or
/// exactly half.
const MAX_LENGTH: u32 = 1 << 31;

impl Requester {
    /// Decodes and checks the next work request. False if there is none, or no room.
    pub(super) fn fetch<H: Host>(&mut self, core: &Core, host: &mut H) -> bool {
        if self.slots.next() == self.producer || self.slots.len() >= core.config.max_outstanding {
            return false;
        }
        let Some((index, slot)) = self.slots.push() else {
            return false;
        };
        slot.started = false;
        slot.psns = 0;
        slot.progress = 0;
        slot.fault = None;
        // A packet of the last work request in this slot may still be in flight; it keeps that
        // gather, which is dead.
        if Rc::get_mut(&mut slot.gather).is_none() {
            slot.gather = Rc::default();
        }
        if let Some(gather) = Rc::get_mut(&mut slot.gather) {
            gather.recycle();
            (slot.wqe.wr_id, slot.wqe.opcode) = (0, WqeOpcode::Send);
            slot.fault = match host.fetch_send(index, &mut slot.wqe, gather) {
                Ok(()) => check(core, host, &slot.wqe, gather).err(),
                Err(fault) => Some(fault),
            };
            gather.alive.set(true);
        }
        true
    }
}

/// True if an operation concerns only keys and sends nothing.
fn is_local(opcode: WqeOpcode) -> bool {
    matches!(
        opcode,
        WqeOpcode::LocalInv | WqeOpcode::FastReg | WqeOpcode::BindMw
    )
}

/// Checks a decoded work request against the transport service, the longest message and its local
/// keys, and notes its length.
fn check<H: Host>(
    core: &Core,
    host: &mut H,
    wqe: &DecodedSendWqe,
    gather: &mut Gather,
) -> Result<(), WqeError> {
    let transport = core.transport();
    let supported = match wqe.opcode {
        WqeOpcode::Send | WqeOpcode::SendImm => true,
        WqeOpcode::RdmaWrite | WqeOpcode::RdmaWriteImm => transport != Transport::Ud,
        WqeOpcode::SendInv
        | WqeOpcode::RdmaRead
        | WqeOpcode::CompareSwap
        | WqeOpcode::FetchAdd
        | WqeOpcode::AtomicWrite
        | WqeOpcode::Flush => transport.is_reliable(),
        _ if is_local(wqe.opcode) => transport != Transport::Ud,
        _ => false,
    };
    if !supported {
        return Err(WqeError::new(
            WcStatus::LocQpOpErr,
            Syndrome::WqeOpcodeTransport,
        ));
    }
    if is_local(wqe.opcode) {
        return Ok(());
    }
    let length = if gather.inline.is_empty() {
        gather.sges.iter().map(|sge| u64::from(sge.length)).sum()
    } else {
        gather.inline.len() as u64
    };
    if length > u64::from(core.config.max_msg_size.min(MAX_LENGTH)) {
        return Err(WqeError::new(WcStatus::LocLenErr, Syndrome::MessageTooLong));
    }
    gather.length = length as u32;
    let is_atomic = matches!(
        wqe.opcode,
        WqeOpcode::CompareSwap | WqeOpcode::FetchAdd | WqeOpcode::AtomicWrite
    );
    if is_atomic && length != 8 {
        return Err(WqeError::new(WcStatus::LocLenErr, Syndrome::AtomicLength));
    }
    // The destination of a response is checked when the response arrives, as adapters do: an error
    // that the peer reports comes first.
    if matches!(
        wqe.opcode,
        WqeOpcode::RdmaRead | WqeOpcode::CompareSwap | WqeOpcode::FetchAdd
    ) {
        return Ok(());
    }
    for sge in gather.sges.iter().filter(|sge| sge.length > 0) {
        let key = KeyUse {
            pd: gather.pd,
            owner: core.config.owner,
            privileged: gather.privileged,
            key: sge.lkey,
            addr: sge.addr,
            length: u64::from(sge.length),
            access: KeyAccess::LocalRead,
        };
        host.check(&key)
            .map_err(|cause| WqeError::new(WcStatus::LocProtErr, cause))?;
    }
    Ok(())
}
