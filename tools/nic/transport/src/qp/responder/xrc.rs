// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The target of an extended connection (annex A14): each request names the shared receive queue
//! that it takes a receive from, and the protection domain of that queue decides which memory the
//! request may access.

use super::{NotExecuted, RequestRefusal, Responder};
use crate::host::{EventType, Host, Syndrome, WcStatus};
use crate::packet::{NakCode, Packet, PacketKind, Transport};
use crate::qp::Core;

impl Responder {
    /// Returns the protection domain of the memory that the present request may access.
    #[inline]
    pub(super) fn pd(&self, core: &Core) -> u32 {
        match core.transport() {
            Transport::Xrc => self.recv.xrc.pd,
            _ => core.config.pd,
        }
    }

    /// Finds the queue that a request names. A service without such a queue has nothing to find.
    #[inline]
    pub(super) fn find_xrc_srq<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: &Packet,
    ) -> Result<(), NotExecuted> {
        if core.transport() != Transport::Xrc || matches!(packet.kind, PacketKind::Unknown(_)) {
            return Ok(());
        }
        let found = host.xrc_srq(packet.srqn).and_then(|found| {
            // A message belongs to one queue from its first packet on.
            let is_bound = self.message.is_some() || self.pending_completion.is_some();
            if is_bound && found.life != self.recv.xrc.life {
                return Err(Syndrome::XrcSrq);
            }
            Ok(found)
        });
        match found {
            Ok(found) => {
                self.recv.xrc = found;
                Ok(())
            }
            Err(cause @ (Syndrome::SrqDied | Syndrome::CqDied)) => {
                let refusal = RequestRefusal {
                    psn: packet.psn,
                    nak: Some(NakCode::RemoteOperational),
                    // A receive that was taken from that queue can no longer be reported.
                    status: WcStatus::WrFlushErr,
                    event: EventType::QpFatal,
                    cause,
                };
                Err(self.refuse(core, host, refusal))
            }
            Err(cause) => Err(self.refuse_request(core, host, packet.psn, cause)),
        }
    }

    /// True if the receive of the present message can be reported. The queue that it was taken from
    /// may be gone.
    pub(super) fn is_recv_reportable<H: Host>(&self, core: &Core, host: &mut H) -> bool {
        if core.transport() != Transport::Xrc {
            return true;
        }
        let found = host.xrc_srq(self.recv.xrc.srqn);
        found.is_ok_and(|found| found.life == self.recv.xrc.life)
    }
}
