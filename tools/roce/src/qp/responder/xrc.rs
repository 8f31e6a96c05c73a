// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The target of an extended connection (annex A14): each request names the shared receive queue that it takes a receive from,
//! and the protection domain of that queue decides what it may access.

use super::{Refusal, Responder, Stop};
use crate::host::{EventType, Host, Syndrome, WcStatus};
use crate::packet::{Kind, NakCode, Packet, Transport};
use crate::qp::Core;

impl Responder {
    /// Protection domain of what the present request may access.
    #[inline]
    pub(super) fn pd(&self, core: &Core) -> u32 {
        match core.transport() {
            Transport::Xrc => self.recv.xrc.pd,
            _ => core.config.pd,
        }
    }

    /// Finds the queue that a request names; of a service without, there is nothing to find.
    #[inline]
    pub(super) fn find_xrc_srq<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: &Packet,
    ) -> Result<(), Stop> {
        if core.transport() != Transport::Xrc || matches!(packet.kind, Kind::Unknown(_)) {
            return Ok(());
        }
        let found = host.xrc_srq(packet.srqn).and_then(|found| {
            // A message is of one queue, from its first packet on.
            let is_bound = self.message.is_some() || self.owed.is_some();
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
            Err(cause) => {
                let (nak, event) = match cause {
                    Syndrome::SrqDied | Syndrome::CqDied => {
                        (NakCode::RemoteOperational, EventType::QpFatal)
                    }
                    _ if self.owed.is_none() || self.is_heard_of(host) => {
                        return Err(self.refuse_request(core, host, packet.psn, cause));
                    }
                    _ => (NakCode::InvalidRequest, EventType::QpReqErr),
                };
                let refusal = Refusal {
                    psn: packet.psn,
                    nak: Some(nak),
                    // Nobody hears of a receive that was taken there.
                    status: WcStatus::WrFlushErr,
                    event,
                    cause,
                };
                Err(self.refuse(core, host, refusal))
            }
        }
    }

    /// Whether the queue of the present message is there to hear of its receive.
    fn is_heard_of<H: Host>(&self, host: &mut H) -> bool {
        let found = host.xrc_srq(self.recv.xrc.srqn);
        found.is_ok_and(|found| found.life == self.recv.xrc.life)
    }
}
