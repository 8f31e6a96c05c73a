// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The answers of a responder: acknowledgements with credits, NAKs and responses, in PSN order.

use super::{ExecutedOp, NakState, Responder};
use crate::host::{Host, Syndrome};
use crate::packet::{Aeth, AethSyndrome, NakCode, PacketKind, Payload};
use crate::psn;
use crate::qp::{credits, Budget, Core, Qp, QpState};
use alloc::rc::Rc;

impl Qp {
    /// True if the peer waits for receives of this queue pair or of its SRQ. The owner then calls
    /// [`Qp::handle_receives_posted`] after receives were posted.
    #[inline]
    pub fn is_short_of_receives(&self) -> bool {
        self.resp.is_short_of_receives(&self.core)
    }
}

impl Responder {
    /// Acknowledges everything that was executed, or lets that wait for the pending responses.
    pub(super) fn send_ack<H: Host>(&mut self, core: &mut Core, host: &mut H) {
        if self.pending_responses.is_empty() {
            self.ack_pending = false;
            core.counters.acks_sent += 1;
            let psn = psn::add(self.expected_psn, psn::PSN_MASK);
            let syndrome = self.ack_syndrome(core, host);
            self.send_aeth(core, host, psn, syndrome);
        } else {
            self.ack_pending = true;
        }
    }

    /// Sends a NAK for the PSN expected, or lets it wait for the pending responses.
    pub(super) fn send_nak<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        syndrome: AethSyndrome,
    ) {
        if !self.pending_responses.is_empty() {
            self.nak = NakState::Pending(syndrome);
            return;
        }
        self.nak = match syndrome {
            AethSyndrome::Nak(NakCode::SourceFault) => NakState::NotSent,
            AethSyndrome::Nak(NakCode::Sequence) => NakState::Sent { gap: true },
            _ => NakState::Sent { gap: false },
        };
        if !matches!(self.nak, NakState::Sent { gap: true }) {
            self.reassembly = None;
        }
        match syndrome {
            AethSyndrome::Rnr { .. } => core.counters.rnr_naks_sent += 1,
            AethSyndrome::Nak(NakCode::Sequence) => core.counters.sequence_naks_sent += 1,
            _ => core.counters.naks_sent += 1,
        }
        self.send_aeth(core, host, self.expected_psn, syndrome);
    }

    fn aeth<H: Host>(&mut self, core: &Core, host: &mut H) -> Aeth {
        Aeth {
            syndrome: self.ack_syndrome(core, host),
            msn: self.msn,
        }
    }

    pub(super) fn send_aeth<H: Host>(
        &self,
        core: &mut Core,
        host: &mut H,
        psn: u32,
        syndrome: AethSyndrome,
    ) {
        let kind = PacketKind::Ack(Aeth {
            syndrome,
            msn: self.msn,
        });
        let packet = core.packet(kind, psn, 1);
        core.transmit(host, packet);
    }

    /// Returns a positive syndrome with the present credits: the posted receives, and the one of
    /// the message in progress, which the MSN does not count yet (IBTA 9.7.7.2).
    pub(super) fn ack_syndrome<H: Host>(&mut self, core: &Core, host: &mut H) -> AethSyndrome {
        self.reported_credits = self.credit_code(core, host);
        AethSyndrome::Ack {
            credits: self.reported_credits,
        }
    }

    fn credit_code<H: Host>(&self, core: &Core, host: &mut H) -> u8 {
        if !core.config.credits || core.config.has_srq {
            return credits::INVALID;
        }
        host.recv_credits().map_or(credits::INVALID, |posted| {
            // The receive of a refused message is no credit, even if only a part of the message was
            // executed.
            let held = self.pending_completion.is_some()
                && self.message.is_some()
                && !self.is_refusal_pending();
            credits::encode(posted.saturating_add(held.into()))
        })
    }

    /// Handles posted receives. A requester whose last credit count was 0, and a local one that got
    /// an RNR NAK, get an acknowledgement unasked if there are receives now.
    pub(crate) fn on_receives_posted<H: Host>(&mut self, core: &mut Core, host: &mut H) {
        if !self.is_short_of_receives(core) || self.is_refusal_pending() {
            return;
        }
        let refused = self.has_refused_for_lack(core);
        let is_over = match refused {
            true => host.has_recv(),
            false => self.credit_code(core, host) != 0,
        };
        if is_over {
            if refused {
                self.nak = NakState::Withdrawn;
            }
            self.send_ack(core, host);
        }
    }

    /// True if the peer waits for receives: it was told that there are none, and not since then
    /// that there are some. The timer of a peer behind a wire runs to its end after an RNR NAK
    /// (IBTA 9.7.5.2.8), so such a peer only waits for credits.
    #[inline]
    pub(crate) fn is_short_of_receives(&self, core: &Core) -> bool {
        (self.reported_credits == 0 || self.has_refused_for_lack(core))
            && matches!(core.state, QpState::Rtr | QpState::Rts | QpState::Sqd)
    }

    /// True if a peer on the same NIC got an RNR NAK that still holds.
    fn has_refused_for_lack(&self, core: &Core) -> bool {
        core.attr.local_peer && matches!(self.nak, NakState::Sent { gap: false })
    }

    /// Sends the pending responses, then the answers that waited for them. Returns true if there is
    /// more to send at once.
    pub(crate) fn run<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        budget: &mut Budget,
    ) -> Result<bool, Syndrome> {
        while let Some(front) = self.pending_responses.front().copied() {
            if budget.is_spent() {
                return Ok(true);
            }
            let psn = psn::add(front.request.psn, front.sent_packets);
            let left = front.request.psns.saturating_sub(front.sent_packets);
            let packet = match front.request.op {
                ExecutedOp::Atomic { value, .. } => {
                    let aeth = self.aeth(core, host);
                    core.packet(PacketKind::AtomicResponse(aeth, value), psn, 1)
                }
                // The answer is a READ response without bytes (A19).
                ExecutedOp::AtomicWrite(_) | ExecutedOp::Flush(..) => {
                    let aeth = self.aeth(core, host);
                    core.packet(PacketKind::ReadResponse(Some(aeth)), psn, 1)
                }
                ExecutedOp::Read(reth) => {
                    let mtu = core.attr.path_mtu;
                    let count = left.min(core.super_packets());
                    let offset = front.sent_packets.saturating_mul(mtu);
                    let length = reth
                        .length
                        .saturating_sub(offset)
                        .min(count.saturating_mul(mtu));
                    let (first, last) = (front.sent_packets == 0, count == left);
                    let aeth = (first || last).then(|| self.aeth(core, host));
                    let mut packet = core.packet(PacketKind::ReadResponse(aeth), psn, count);
                    packet.first = first;
                    packet.last = last;
                    if length > 0 {
                        packet.payload = Payload::Region {
                            lease: Rc::clone(&self.lease),
                            pd: front.request.pd,
                            owner: core.config.owner,
                            key: reth.rkey,
                            addr: reth.addr.wrapping_add(u64::from(offset)),
                            length,
                        };
                    }
                    packet
                }
            };
            let sent = packet.psns;
            budget.spend(packet.payload.len());
            core.transmit(host, packet);
            if sent >= left {
                self.pending_responses.pop_front();
            } else if let Some(front) = self.pending_responses.front_mut() {
                front.sent_packets = front.sent_packets.saturating_add(sent);
            }
        }
        if self.ack_pending {
            self.send_ack(core, host);
        }
        if let NakState::Pending(syndrome) = self.nak {
            self.send_nak(core, host, syndrome);
        }
        match self.take_refusal() {
            Some(refusal) => Err(self.apply_refusal(core, host, refusal)),
            None => Ok(false),
        }
    }
}
