// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks and execution of requests that are in sequence.

use super::{
    remote_key_use, ExecutedOp, ExecutedRequest, MessageInProgress, NotExecuted, PendingResponse,
    RequestRefusal, Responder, MAX_LENGTH,
};
use crate::host::{
    AtomicOp, CopyFault, CopyTarget, EventType, Host, KeyAccess, Syndrome, WcOpcode, WcStatus,
    WorkCompletion,
};
use crate::packet::{NakCode, Packet, PacketKind, Payload, Reth, SendTail};
use crate::psn;
use crate::qp::Core;
use verbena_abi::ctx::access;

impl Responder {
    /// True if the payload has the size that its place in the message demands (C9-92).
    pub(in crate::qp) fn has_valid_length(core: &Core, packet: &Packet) -> bool {
        let full = packet.psns.saturating_mul(core.attr.path_mtu);
        let length = packet.payload.len();
        if packet.last {
            let least = full.saturating_sub(core.attr.path_mtu);
            length <= full && (length > least || (packet.first && packet.psns == 1))
        } else {
            length == full
        }
    }

    /// Counts a packet as executed.
    pub(in crate::qp) fn on_executed(&mut self, packet: &Packet) {
        self.expected_psn = psn::add(packet.psn, packet.psns);
        self.offset = if packet.last {
            0
        } else {
            self.offset.saturating_add(packet.payload.len())
        };
        if packet.last {
            self.message = None;
            self.msn = psn::add(self.msn, 1);
        }
    }

    pub(super) fn send<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: &Packet,
        tail: SendTail,
    ) -> Result<(), NotExecuted> {
        let in_order = match self.message {
            None => packet.first,
            Some(MessageInProgress::Send) => !packet.first,
            Some(MessageInProgress::Write { .. }) => false,
        };
        if !in_order {
            return Err(self.refuse_request(core, host, packet.psn, Syndrome::RequestOpcode));
        }
        if packet.first {
            self.require_recv(core, host, packet)?;
        }
        let left = MAX_LENGTH.saturating_sub(self.offset);
        if !Self::has_valid_length(core, packet) || packet.payload.len() > left {
            return Err(self.refuse_request(core, host, packet.psn, Syndrome::RequestLength));
        }
        let mtu = core.attr.path_mtu;
        let room = self.recv_capacity.saturating_sub(u64::from(self.offset));
        if u64::from(packet.payload.len()) > room {
            // The packets before the first one that does not fit are executed.
            let good = room.checked_div(u64::from(mtu)).unwrap_or(0) as u32;
            if good > 0 {
                let front = packet.clone().split_front(good, mtu);
                self.scatter(core, host, &front, &front.payload)?;
                self.message = Some(MessageInProgress::Send);
                self.on_executed(&front);
            }
            return Err(self.refuse(
                core,
                host,
                RequestRefusal {
                    psn: psn::add(packet.psn, good),
                    nak: Some(NakCode::InvalidRequest),
                    status: WcStatus::LocLenErr,
                    event: EventType::QpReqErr,
                    cause: Syndrome::RecvTooSmall,
                },
            ));
        }
        self.scatter(core, host, packet, &packet.payload)?;
        let length = self.offset.saturating_add(packet.payload.len());
        self.message = Some(MessageInProgress::Send);
        self.on_executed(packet);
        if !packet.last {
            return Ok(());
        }
        let (mut imm, mut invalidated) = (None, None);
        match tail {
            SendTail::None => {}
            SendTail::Imm(data) => imm = Some(data),
            SendTail::Invalidate(key) => {
                if let Err(cause) = host.invalidate(key, true) {
                    // The peer's SEND was valid, so it gets no NAK.
                    return Err(self.refuse(
                        core,
                        host,
                        RequestRefusal {
                            psn: psn::add(packet.psn, packet.psns.saturating_sub(1)),
                            nak: None,
                            status: WcStatus::MwBindErr,
                            event: EventType::QpAccessErr,
                            cause,
                        },
                    ));
                }
                invalidated = Some(key);
            }
        }
        self.complete_recv(
            core,
            host,
            WcOpcode::Recv,
            length,
            imm,
            invalidated,
            packet.solicited,
        );
        Ok(())
    }

    /// Copies a payload into the buffers of the receive.
    fn scatter<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: &Packet,
        payload: &Payload,
    ) -> Result<(), NotExecuted> {
        if payload.is_empty() {
            return Ok(());
        }
        let target = CopyTarget::Scatter {
            pd: self.recv.pd,
            privileged: self.recv.privileged,
            sges: &self.recv.sges,
            offset: self.offset,
        };
        match host.copy(target, payload.source()) {
            Ok(()) => Ok(()),
            Err(CopyFault::Source(cause)) => Err(self.on_sender_fault(core, host, packet, cause)),
            Err(CopyFault::Target(cause)) => {
                Err(self.refuse_operation(core, host, packet.psn, WcStatus::LocProtErr, cause))
            }
        }
    }

    /// Executes a WRITE. The immediate belongs to the last packet alone, so that packet is executed
    /// by itself.
    pub(super) fn write_parts<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        mut packet: Packet,
        reth: Option<Reth>,
        imm: Option<[u8; 4]>,
    ) -> Result<(), NotExecuted> {
        if imm.is_some() && packet.psns > 1 {
            let front = packet.split_front(packet.psns.saturating_sub(1), core.attr.path_mtu);
            self.write(core, host, &front, reth, None)?;
            return self.write(core, host, &packet, None, imm);
        }
        self.write(core, host, &packet, reth, imm)
    }

    fn write<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: &Packet,
        reth: Option<Reth>,
        imm: Option<[u8; 4]>,
    ) -> Result<(), NotExecuted> {
        let psn = packet.psn;
        let reth = match (self.message, reth) {
            (None, Some(reth)) if packet.first => reth,
            (Some(MessageInProgress::Write { reth }), None) if !packet.first => reth,
            _ => return Err(self.refuse_request(core, host, psn, Syndrome::RequestOpcode)),
        };
        if packet.first && core.attr.access_flags & access::REMOTE_WRITE == 0 {
            return Err(self.refuse_request(core, host, psn, Syndrome::OperationDisabled));
        }
        let length = packet.payload.len();
        let rest = reth.length.saturating_sub(self.offset);
        let whole = if packet.last {
            length == rest
        } else {
            length < rest
        };
        if imm.is_some() {
            self.require_recv(core, host, packet)?;
        }
        let wrong = !whole || !Self::has_valid_length(core, packet);
        if reth.length > MAX_LENGTH {
            return Err(self.refuse_request(core, host, psn, Syndrome::RequestLength));
        }
        // If a valid message has only one part, the copy checks the key.
        if packet.first && reth.length > 0 && (wrong || !packet.last) {
            let key = remote_key_use(core, self.pd(core), &reth, KeyAccess::RemoteWrite);
            if let Err(cause) = host.check(&key) {
                return Err(self.refuse_access(core, host, psn, cause));
            }
        }
        if wrong {
            return Err(self.refuse_request(core, host, psn, Syndrome::RequestLength));
        }
        if length > 0 {
            let target = CopyTarget::Region {
                pd: self.pd(core),
                owner: core.config.owner,
                key: reth.rkey,
                addr: reth.addr.wrapping_add(u64::from(self.offset)),
            };
            match host.copy(target, packet.payload.source()) {
                Ok(()) => {}
                Err(CopyFault::Source(cause)) => {
                    return Err(self.on_sender_fault(core, host, packet, cause))
                }
                Err(CopyFault::Target(cause)) => {
                    return Err(self.refuse_access(core, host, psn, cause))
                }
            }
        }
        self.message = Some(MessageInProgress::Write { reth });
        self.on_executed(packet);
        if imm.is_some() {
            self.complete_recv(
                core,
                host,
                WcOpcode::RecvRdmaWithImm,
                reth.length,
                imm,
                None,
                packet.solicited,
            );
        }
        Ok(())
    }

    pub(super) fn read<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: &Packet,
        reth: Reth,
    ) -> Result<(), NotExecuted> {
        self.check_response_request(core, host, packet, access::REMOTE_READ)?;
        if reth.length > MAX_LENGTH {
            return Err(self.refuse_request(core, host, packet.psn, Syndrome::RequestLength));
        }
        if reth.length > 0 {
            let key = remote_key_use(core, self.pd(core), &reth, KeyAccess::RemoteRead);
            if let Err(cause) = host.check(&key) {
                return Err(self.refuse_access(core, host, packet.psn, cause));
            }
        }
        let psns = reth.length.div_ceil(core.attr.path_mtu.max(1)).max(1);
        // The MSN counts a READ when its request is taken (C9-148).
        self.respond_first(
            core,
            ExecutedRequest {
                psn: packet.psn,
                psns,
                pd: self.pd(core),
                op: ExecutedOp::Read(reth),
            },
        );
        Ok(())
    }

    /// Counts a READ or atomic as executed, and adds its response to the pending ones.
    pub(super) fn respond_first(&mut self, core: &Core, to: ExecutedRequest) {
        self.remember(core, to);
        self.pending_responses.push_back(PendingResponse {
            request: to,
            sent_packets: 0,
            is_repeat: false,
        });
        self.expected_psn = psn::add(to.psn, to.psns);
        self.msn = psn::add(self.msn, 1);
    }

    pub(super) fn atomic<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: &Packet,
        addr: u64,
        rkey: u32,
        op: AtomicOp,
    ) -> Result<(), NotExecuted> {
        self.check_response_request(core, host, packet, access::REMOTE_ATOMIC)?;
        if addr % 8 != 0 {
            return Err(self.refuse_request(core, host, packet.psn, Syndrome::AtomicMisaligned));
        }
        let key = remote_key_use(
            core,
            self.pd(core),
            &Reth {
                addr,
                rkey,
                length: 8,
            },
            KeyAccess::RemoteAtomic,
        );
        let value = match host.atomic(&key, op) {
            Ok(value) => value,
            Err(cause) => return Err(self.refuse_access(core, host, packet.psn, cause)),
        };
        let body = ExecutedOp::Atomic {
            addr,
            rkey,
            op,
            value,
        };
        self.respond_first(
            core,
            ExecutedRequest {
                psn: packet.psn,
                psns: 1,
                pd: self.pd(core),
                op: body,
            },
        );
        Ok(())
    }

    /// Makes the checks that all requests with a response have in common.
    pub(super) fn check_response_request<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: &Packet,
        access: u32,
    ) -> Result<(), NotExecuted> {
        if self.message.is_some() {
            return Err(self.refuse_request(core, host, packet.psn, Syndrome::RequestOpcode));
        }
        if core.attr.access_flags & access != access {
            return Err(self.refuse_request(core, host, packet.psn, Syndrome::OperationDisabled));
        }
        // A request beyond the agreed number ends the connection: "too many RDMA READ or ATOMIC
        // requests" is an invalid request of class C (IBTA 9.7.4.1, 9.9.3), and the "insufficient
        // buffering" of 11.6.2 at the requester. A requester that observes its own limit never
        // sends such a request, because for it a request is outstanding until the last response has
        // arrived, which the responder sent earlier. Answers to duplicates do not count: their
        // request was counted when it first arrived.
        let waiting = self
            .pending_responses
            .iter()
            .filter(|answer| !answer.is_repeat)
            .count();
        if waiting >= usize::from(core.attr.max_dest_rd_atomic) {
            return Err(self.refuse_request(core, host, packet.psn, Syndrome::TooManyReads));
        }
        if !packet.payload.is_empty() && !matches!(packet.kind, PacketKind::AtomicWrite(_)) {
            return Err(self.refuse_request(core, host, packet.psn, Syndrome::RequestLength));
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    pub(in crate::qp) fn complete_recv<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        opcode: WcOpcode,
        byte_len: u32,
        imm: Option<[u8; 4]>,
        invalidated: Option<u32>,
        solicited: bool,
    ) {
        let Some(owed) = self.pending_completion.take() else {
            return;
        };
        let completion = WorkCompletion {
            opcode,
            byte_len,
            imm,
            invalidated,
            solicited,
            ..owed.success()
        };
        core.complete(host, &completion);
    }
}
