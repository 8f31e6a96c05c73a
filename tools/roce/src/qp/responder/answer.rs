// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a responder sends: acknowledgements, NAKs and responses, in PSN order, and the NAK that ends the connection.

use super::{Body, Refusal, Responder, Stop};
use crate::host::{EventType, Host, Syndrome, WcOpcode, WcStatus};
use crate::packet::{Aeth, AethSyndrome, Kind, NakCode, Packet, Payload};
use crate::psn;
use crate::qp::{failed, Budget, Core, QpState};
use alloc::rc::Rc;

impl Responder {
    /// The peer's request is not a valid one.
    pub(super) fn refuse_request<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        psn: u32,
        cause: Syndrome,
    ) -> Stop {
        let refusal = Refusal {
            psn,
            nak: Some(NakCode::InvalidRequest),
            status: WcStatus::LocQpOpErr,
            event: EventType::QpReqErr,
            cause,
        };
        self.refuse(core, host, refusal)
    }

    /// The peer's request names memory that it may not access. A receive that was taken for its immediate tells so.
    pub(super) fn refuse_access<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        psn: u32,
        cause: Syndrome,
    ) -> Stop {
        let refusal = Refusal {
            psn,
            nak: Some(NakCode::RemoteAccess),
            status: WcStatus::LocAccessErr,
            event: EventType::QpAccessErr,
            cause: if self.recv_held {
                Syndrome::WriteImmAccess
            } else {
                cause
            },
        };
        self.refuse(core, host, refusal)
    }

    /// Ends the connection: at once, or after the READ responses that wait.
    pub(super) fn refuse<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        refusal: Refusal,
    ) -> Stop {
        if self.answers.is_empty() {
            Stop::Error(self.carry_out(core, host, refusal))
        } else {
            self.refusal = Some(refusal);
            Stop::Dropped
        }
    }

    fn carry_out<H: Host>(&mut self, core: &mut Core, host: &mut H, refusal: Refusal) -> Syndrome {
        if let Some(code) = refusal.nak {
            core.counters.naks_sent += 1;
            self.last_nak = Some((refusal.psn, code));
            self.answer_aeth(core, host, refusal.psn, AethSyndrome::Nak(code));
        } else {
            self.answer_aeth(core, host, refusal.psn, AethSyndrome::Ack { credits: 31 });
        }
        if self.recv_held {
            self.recv_held = false;
            let (wr_id, index) = (self.recv.wr_id, self.recv.index);
            core.complete(
                host,
                &failed(wr_id, index, WcOpcode::Recv, refusal.status, refusal.cause),
            );
        } else {
            host.event(refusal.event, Some(refusal.cause));
        }
        refusal.cause
    }

    /// The memory of a local sender went away: it is told, and the packet counts as lost.
    pub(super) fn sender_fault<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: &Packet,
        cause: Syndrome,
    ) -> Stop {
        if let Payload::Gather { gather, .. } = &packet.payload {
            gather.fault.set(Some(cause));
            self.nak(core, host, AethSyndrome::Nak(NakCode::SourceFault));
        }
        Stop::Dropped
    }

    /// Memory of a READ response could not be read when it was sent out.
    pub(crate) fn source_fault<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        psn: u32,
        cause: Syndrome,
    ) -> Option<Syndrome> {
        if !matches!(core.state, QpState::Rtr | QpState::Rts | QpState::Sqd)
            || self.refusal.is_some()
        {
            return None;
        }
        self.answers.clear();
        match self.refuse_access(core, host, psn, cause) {
            Stop::Error(cause) => Some(cause),
            Stop::Dropped => None,
        }
    }

    /// Acknowledges all that was executed, or lets that wait behind READ responses.
    pub(super) fn ack<H: Host>(&mut self, core: &mut Core, host: &mut H) {
        if self.answers.is_empty() {
            self.ack_due = false;
            core.counters.acks_sent += 1;
            let psn = psn::add(self.expected_psn, psn::PSN_MASK);
            self.answer_aeth(core, host, psn, AethSyndrome::Ack { credits: 31 });
        } else {
            self.ack_due = true;
        }
    }

    /// Sends a NAK for the PSN expected, or lets it wait likewise.
    pub(super) fn nak<H: Host>(&mut self, core: &mut Core, host: &mut H, syndrome: AethSyndrome) {
        if !self.answers.is_empty() {
            self.nak_due = Some(syndrome);
            return;
        }
        match syndrome {
            AethSyndrome::Rnr { .. } => core.counters.rnr_naks_sent += 1,
            AethSyndrome::Nak(NakCode::Sequence) => core.counters.sequence_naks_sent += 1,
            _ => core.counters.naks_sent += 1,
        }
        self.answer_aeth(core, host, self.expected_psn, syndrome);
    }

    pub(super) fn answer_aeth<H: Host>(
        &self,
        core: &mut Core,
        host: &mut H,
        psn: u32,
        syndrome: AethSyndrome,
    ) {
        let kind = Kind::Ack(Aeth {
            syndrome,
            msn: self.msn,
        });
        let packet = answer(core, kind, psn, 1);
        core.transmit(host, packet);
    }

    /// Sends READ and atomic responses, then what waited behind them. True: there is more to send at once.
    pub(crate) fn run<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        budget: &mut Budget,
    ) -> Result<bool, Syndrome> {
        while let Some(front) = self.answers.front_mut() {
            if budget.is_spent() {
                return Ok(true);
            }
            let aeth = Aeth {
                syndrome: AethSyndrome::Ack { credits: 31 },
                msn: self.msn,
            };
            let psn = psn::add(front.psn, front.done);
            let packet = match front.body {
                Body::Atomic(value) => answer(core, Kind::AtomicResponse(aeth, value), psn, 1),
                Body::Read(reth) => {
                    let count = (front.psns - front.done).min(core.super_packets());
                    let offset = front.done * core.attr.path_mtu;
                    let length =
                        (reth.length - offset).min(count.saturating_mul(core.attr.path_mtu));
                    let (first, last) = (front.done == 0, front.done + count == front.psns);
                    let kind = Kind::ReadResponse((first || last).then_some(aeth));
                    let mut packet = answer(core, kind, psn, count);
                    packet.first = first;
                    packet.last = last;
                    if length > 0 {
                        packet.payload = Payload::Region {
                            alive: Rc::clone(&self.alive),
                            pd: core.config.pd,
                            key: reth.rkey,
                            addr: reth.addr.wrapping_add(u64::from(offset)),
                            length,
                        };
                    }
                    packet
                }
            };
            front.done += packet.psns;
            let done = front.done == front.psns;
            budget.spend(packet.payload.len());
            core.transmit(host, packet);
            if done {
                self.answers.pop_front();
            }
        }
        if self.ack_due {
            self.ack(core, host);
        }
        if let Some(syndrome) = self.nak_due.take() {
            self.nak(core, host, syndrome);
        }
        match self.refusal.take() {
            Some(refusal) => Err(self.carry_out(core, host, refusal)),
            None => Ok(false),
        }
    }
}

/// A packet to the peer that carries no request.
fn answer(core: &Core, kind: Kind, psn: u32, psns: u32) -> Packet {
    Packet {
        transport: core.transport(),
        kind,
        first: true,
        last: true,
        solicited: false,
        ack_req: false,
        pkey: core.attr.pkey,
        dst_qpn: core.attr.dest_qpn,
        src_qpn: core.config.qpn,
        psn,
        psns,
        datagram: None,
        payload: Payload::None,
    }
}
