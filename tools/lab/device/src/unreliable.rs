// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Messages without acknowledgements: those of UC and UD. A message may be lost, and its sender
//! gets no notice of it.

use crate::memory::MemoryAccess;
use crate::objects::PostedSend;
use crate::simulation::DeviceSimulation;
use verbena_abi::cmd::QpType;
use verbena_abi::cqe::WcStatus;
use verbena_abi::ctx::QpState;
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::WqeOpcode;
use verbena_device::memory::GuestMemory;

/// Bytes before the payload of a datagram.
const GRH: u32 = 40;
/// Longest payload of a datagram in bytes: the path MTU of the port.
pub const PORT_MTU: u32 = 1024;

impl DeviceSimulation {
    /// Delivers a message to its receiver, which accepts or drops it.
    pub fn deliver_unreliable(&mut self, at: usize, wr: &PostedSend) {
        let qp = &self.qps[at];
        let (peer, datagram, length) = (wr.to.0, qp.kind == QpType::Ud, wr.length());
        let to = &self.qps[peer];
        // If the highest bit of the Q_Key is set, the Q_Key of the sending QP replaces it (IBTA
        // 10.2.5).
        let qkey = match wr.to.1 >> 31 {
            0 => wr.to.1,
            _ => qp.qkey,
        };
        if !to.received() || (datagram && (length > PORT_MTU || qkey != to.qkey)) {
            return self.cover("lost");
        }
        let mut far = Vec::new();
        if let Some(want) = MemoryAccess::of(wr.opcode) {
            if want.qp_right() & !to.rights != 0 {
                return self.cover("lost");
            }
            match self
                .keys
                .resolve((wr.remote.0, length, wr.remote.1), to.pd, want)
            {
                Ok(pieces) => far = pieces,
                Err(_) => return self.cover("lost"),
            }
        }
        let payload = self.payload(at, wr);
        if to.device_state == QpState::Err {
            // The message may have arrived before the receiver went to ERR.
            self.data.may_write(&far, &payload);
        }
        if !wr.takes_receive() {
            if to.device_state != QpState::Err {
                self.data.scatter(&far, &payload);
            }
            return self.cover("arrives");
        }
        let said = to.completions[1]
            .front()
            .filter(|s| s.status != WcStatus::WrFlushErr as u8)
            .cloned();
        let Some(recv) = self.next_recv(peer) else {
            self.data.may_write(&far, &payload);
            if self.cqs[to.cqs[1]].dead {
                self.mark_srq_uncertain(peer);
            }
            self.mark_srq_empty(at);
            return self.cover("lost");
        };
        let grh = if datagram { GRH } else { 0 };
        let all = length + grh;
        let needs = if wr.opcode == WqeOpcode::RdmaWriteImm {
            0
        } else {
            all
        };
        let spoilt = said
            .as_ref()
            .is_some_and(|s| s.status != 0 && s.cqe.wqe_index.get() == recv.index);
        if recv.room() < needs && to.srq.is_none() && !spoilt {
            let pieces = self.all_pieces(peer, &recv);
            self.data.may_change(&pieces);
            return self.cover("lost");
        }
        let Some(said) = said else {
            // Without a completion, the message may have been the first one or one after others, so
            // any receive may have taken it.
            for recv in [recv].into_iter().chain(self.qps[peer].recvs.clone()) {
                let pieces = self.all_pieces(peer, &recv);
                self.data.may_change(&pieces);
            }
            self.data.may_write(&far, &payload);
            let dead = self.cqs[self.qps[peer].cqs[1]].dead;
            if self.qps[peer].device_state != QpState::Err && !dead {
                self.fail_rule(&format!("QP {}: {wr:x?} did not arrive", self.qps[at].qpn));
            }
            return self.cover("lost");
        };
        if said.status != 0 {
            return self.on_failed_receive(at, peer, wr, said.status, recv.room() < needs);
        }
        self.take_recv(peer);
        self.qps[peer].completions[1].pop_front();
        if wr.opcode == WqeOpcode::RdmaWriteImm {
            self.data.scatter(&far, &payload);
        } else {
            let pieces = self.recv_pieces(peer, &recv, all);
            let mut bytes = Vec::new();
            // The model does not predict the network header, so it copies the bytes from memory.
            for (offset, len) in &pieces {
                let mut part = vec![0; *len as usize];
                self.driver
                    .ram
                    .read(self.heap + offset, &mut part)
                    .expect("data memory");
                bytes.extend(part);
            }
            bytes.truncate(grh as usize);
            if datagram {
                self.check_source(at, wr, &said, &bytes);
            }
            bytes.extend(&payload);
            self.data.scatter(&pieces, &bytes);
        }
        self.check_recv(peer, wr, &recv, &said, all);
        self.cover("arrives");
    }

    /// Handles a receive that completes in error: the receive is invalid, or it belongs to an SRQ
    /// and is too short.
    fn on_failed_receive(
        &mut self,
        at: usize,
        peer: usize,
        wr: &PostedSend,
        status: u8,
        short: bool,
    ) {
        use WcStatus::*;
        let Some(recv) = self.next_recv(peer) else {
            return;
        };
        let wrong = self
            .keys
            .resolve_all(&recv.sges, self.recv_pd(peer), MemoryAccess::Write)
            .err();
        let told = match status {
            s if s == LocQpOpErr as u8 && recv.malformed => {
                (LocQpOpErr, vec![Syndrome::RecvWqeMalformed])
            }
            s if s == LocProtErr as u8 && wrong.is_some() => {
                (LocProtErr, wrong.unwrap_or_default())
            }
            s if s == LocLenErr as u8 && short => (LocLenErr, vec![Syndrome::RecvTooSmall]),
            _ => self.fail_rule(&format!(
                "QP {}: {recv:x?} ended with status {status} for {wr:x?}",
                self.qps[at].qpn
            )),
        };
        let fatal = told.0 != LocLenErr;
        self.refuse_recv(peer, wr, &told);
        if fatal && self.qps[peer].device_state == QpState::Err {
            self.enter_err(peer);
        }
    }
}
