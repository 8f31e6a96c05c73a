// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The oracle: what becomes of a work request, by the rules alone. It knows queues of requests, keys, PDs, states; it
//! knows no packets, no slices, no scheduling.

use crate::lab::Lab;
use crate::memory::{Domain, Piece, Want};
use crate::things::{Element, Recv, Send};
use verbena_abi::cmd::QpType;
use verbena_abi::cqe::WcStatus;
use verbena_abi::ctx::QpState;
use verbena_abi::eqe::EventType;
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::WqeOpcode;

/// What a receive that carries an error completes with: status and possible causes.
pub type BadRecv = (WcStatus, Vec<Syndrome>);

/// What may become of a work request.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// It succeeds.
    Fine,
    /// It is refused by its own side.
    Local(WcStatus, Vec<Syndrome>),
    /// The responder has executed it, and its own side has no place for what comes back.
    Unstored(Vec<Syndrome>),
    /// It is refused by the responder: what the requester is told, and what the responder's side is.
    Refused(WcStatus, Option<BadRecv>, Option<EventType>),
    /// There is no receive.
    NotReady,
    /// Nobody answers.
    Gone,
    /// The peer repeats what it refused before.
    Echo(WcStatus),
}

impl Verdict {
    /// The status that the requester sees; `None`: its request stays where it is.
    pub fn status(&self, rnr_retry: u8) -> Option<WcStatus> {
        match self {
            Self::Fine => Some(WcStatus::Success),
            Self::Local(status, _) | Self::Refused(status, ..) | Self::Echo(status) => {
                Some(*status)
            }
            Self::Unstored(_) => Some(WcStatus::LocProtErr),
            Self::NotReady if rnr_retry == 7 => None,
            Self::NotReady => Some(WcStatus::RnrRetryExcErr),
            Self::Gone => Some(WcStatus::RetryExcErr),
        }
    }

    /// What `vendor_err` may say.
    pub fn causes(&self) -> Vec<Syndrome> {
        match self {
            Self::Fine => Vec::new(),
            Self::Local(_, causes) | Self::Unstored(causes) => causes.clone(),
            Self::Refused(status, ..) | Self::Echo(status) => vec![match status {
                WcStatus::RemInvReqErr => Syndrome::NakInvalidRequest,
                WcStatus::RemAccessErr => Syndrome::NakRemoteAccess,
                _ => Syndrome::NakRemoteOperational,
            }],
            Self::NotReady => vec![Syndrome::RnrRetryExceeded],
            Self::Gone => vec![Syndrome::RetryExceeded],
        }
    }
}

/// The part of a list that a message of some length uses.
fn used(sges: &[Element], length: u32) -> Vec<Element> {
    let mut left = length;
    let mut out = Vec::new();
    for &(addr, len, key) in sges {
        let part = len.min(left);
        left -= part;
        out.push((addr, part, key));
    }
    out
}

impl Lab {
    /// The receive that the next message to a queue pair takes. Of an SRQ, its completion tells which.
    pub fn next_recv(&self, at: usize) -> Option<Recv> {
        let qp = &self.qps[at];
        let Some(srq) = qp.srq else {
            return qp.recvs.front().cloned();
        };
        let said = qp.got[1].front()?;
        if said.status == WcStatus::WrFlushErr as u8 {
            return None;
        }
        let index = said.cqe.wqe_index.get();
        self.srqs[srq]
            .posted
            .iter()
            .find(|r| r.index == index)
            .cloned()
    }

    /// PD by which the receives of a queue pair are checked.
    pub fn recv_pd(&self, at: usize) -> Domain {
        let qp = &self.qps[at];
        qp.srq
            .map_or(qp.pd, |srq| self.srqs[srq].domain(qp.pd.privileged))
    }

    /// Where a message goes that a receive takes.
    pub fn recv_pieces(&self, at: usize, recv: &Recv, length: u32) -> Vec<Piece> {
        let pd = self.recv_pd(at);
        let list = used(&recv.sges, length);
        self.keys
            .look_up_all(&list, pd, Want::Write)
            .unwrap_or_default()
    }

    /// All that a receive may touch.
    pub fn all_pieces(&self, at: usize, recv: &Recv) -> Vec<Piece> {
        let pd = self.recv_pd(at);
        let pieces = |sge: &Element| self.keys.reach(*sge, pd, Want::Write);
        recv.sges.iter().flat_map(pieces).collect()
    }

    /// What is wrong with a send on its own side.
    pub fn local_fault(&self, at: usize, wr: &Send) -> Option<Verdict> {
        if let Some(why) = wr.malformed {
            return Some(Verdict::Local(WcStatus::LocQpOpErr, vec![why]));
        }
        if wr.is_local() {
            return self.key_fault(at, wr);
        }
        if wr.fetches() {
            return None;
        }
        let wrong = self
            .keys
            .look_up_all(&wr.sges, self.qps[at].pd, Want::Read)
            .err()?;
        Some(Verdict::Local(WcStatus::LocProtErr, wrong))
    }

    /// Where what a send fetches goes, or what is wrong there.
    pub fn own_pieces(&self, at: usize, wr: &Send) -> Result<Vec<Piece>, Vec<Syndrome>> {
        self.keys
            .look_up_all(&wr.sges, self.qps[at].pd, Want::Write)
    }

    /// What a send that its responder executes ends with.
    fn executed(&self, at: usize, wr: &Send) -> Verdict {
        match self.own_pieces(at, wr) {
            Err(wrong) if wr.fetches() => Verdict::Unstored(wrong),
            _ => Verdict::Fine,
        }
    }

    /// What may become of a send. More than one where the rules leave it open, or where another's fate has a part in it.
    pub fn verdicts(&self, at: usize, wr: &Send) -> Vec<Verdict> {
        let qp = &self.qps[at];
        let peer = &self.qps[qp.peer];
        if let Some(fault) = self.local_fault(at, wr) {
            let mut out = vec![fault];
            // The local check comes before the first packet; what had begun is checked again with each copy.
            if qp.kind == QpType::Rc && !peer.received() && !wr.is_local() {
                out.push(Verdict::Gone);
            }
            return out;
        }
        if qp.kind != QpType::Rc || wr.done || wr.is_local() {
            return vec![self.executed(at, wr)];
        }
        let mut out = Vec::new();
        if peer.received() {
            out = self.answers(qp.peer, wr);
        }
        if !peer.received() || peer.real == QpState::Err || !peer.connected {
            out.push(Verdict::Gone);
            if wr.maybe {
                out.push(self.executed(at, wr));
            }
            if peer.refused {
                use WcStatus::*;
                out.extend([RemInvReqErr, RemAccessErr, RemOpErr].map(Verdict::Echo));
            }
        }
        out
    }

    /// What a responder that takes requests may do with one.
    fn answers(&self, at: usize, wr: &Send) -> Vec<Verdict> {
        use WcStatus::*;
        let qp = &self.qps[at];
        let fine = || self.executed(qp.peer, wr);
        let length = wr.length();
        let atomic = matches!(wr.opcode, WqeOpcode::CompareSwap | WqeOpcode::FetchAdd);
        let want = Want::of(wr.opcode);
        if want.is_some_and(|want| want.qp_right() & !qp.rights != 0) {
            return vec![Verdict::Refused(
                RemInvReqErr,
                None,
                Some(EventType::QpReqErr),
            )];
        }
        let refused = want.is_some_and(|want| {
            self.keys
                .look_up((wr.remote.0, length, wr.remote.1), qp.pd, want)
                .is_err()
        });
        let access = Verdict::Refused(RemAccessErr, None, Some(EventType::QpAccessErr));
        if atomic && wr.remote.0 % 8 != 0 {
            return vec![Verdict::Refused(
                RemInvReqErr,
                None,
                Some(EventType::QpReqErr),
            )];
        }
        if !wr.takes_receive() {
            return vec![if refused { access } else { fine() }];
        }
        let imm_write = wr.opcode == WqeOpcode::RdmaWriteImm;
        // The immediate is in the last packet; the key is checked with the first.
        if refused && length > 1 << qp.log_mtu {
            return vec![access];
        }
        let Some(recv) = self.next_recv(at) else {
            if qp.srq.is_some() && qp.real == QpState::Err && self.cqs[qp.cqs[1]].dead {
                // Which receive it took can no longer be told.
                let bad = |status| Verdict::Refused(status, None, None);
                if refused {
                    return vec![Verdict::NotReady, bad(RemAccessErr)];
                }
                return vec![
                    Verdict::Fine,
                    Verdict::NotReady,
                    bad(RemInvReqErr),
                    bad(RemOpErr),
                ];
            }
            return vec![Verdict::NotReady];
        };
        if recv.malformed {
            let told = (LocQpOpErr, vec![Syndrome::RecvWqeMalformed]);
            return vec![Verdict::Refused(RemOpErr, Some(told), None)];
        }
        if refused {
            let told = (LocAccessErr, vec![Syndrome::WriteImmAccess]);
            return vec![Verdict::Refused(RemAccessErr, Some(told), None)];
        }
        if imm_write {
            return vec![Verdict::Fine];
        }
        let pd = self.recv_pd(at);
        let mut out = Vec::new();
        // Whether what the message does not need is looked at is left open.
        let needed = self
            .keys
            .look_up_all(&used(&recv.sges, length), pd, Want::Write);
        let small = recv.room() < length;
        if let Err(wrong) = self.keys.look_up_all(&recv.sges, pd, Want::Write) {
            out.push(Verdict::Refused(RemOpErr, Some((LocProtErr, wrong)), None));
        }
        if small {
            let told = (LocLenErr, vec![Syndrome::RecvTooSmall]);
            out.push(Verdict::Refused(RemInvReqErr, Some(told), None));
        }
        if needed.is_ok() && !small {
            out.push(Verdict::Fine);
        }
        out
    }
}
