// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Commands that may take longer than a slice, or that wait for the work of a slice. They are
//! executed in steps, and later commands wait for them.

use super::infiniband::AgentCommand;
use super::*;
use crate::device::snapshot::Survey;
use crate::objects::cq::{Move, ResizeError};
use crate::objects::port::Gid;
use verbena_abi::ctx::qp_mask;
use verbena_transport::{Budget, QpState};

/// Entries of a CQ that one slice moves.
pub(crate) const MOVED_ENTRIES: u32 = 4096;
/// Work requests that one slice flushes.
pub(crate) const FLUSHED_REQUESTS: u32 = 1024;

/// Most slices in which the packets of a QP on its way to ERR may be delivered.
const DELIVERY_SLICES: u32 = 16;

/// State of a command that is not done.
#[derive(Debug)]
pub(crate) enum Long {
    /// QUERY_STATS: the survey that adds up the counters of the QPs.
    Stats(Box<(Survey, QueryStats)>),
    /// RESIZE_CQ: the number of the CQ, and the entries that are left to be moved.
    Resize(u32, Move),
    /// MODIFY_QP from SQE to RTS: requests that were posted before are flushed first.
    Resume(Box<ModifyQp>),
    /// MODIFY_QP from RTS to ERR: requests that were posted before have had a turn, and their
    /// packets are delivered first, in up to this number of further slices. In ERR their payload is
    /// gone.
    Stop(Box<ModifyQp>, u32),
    /// SET_GID: the host has to decide whether the guest may have the entry.
    Claim(Box<SetGid>),
    /// A command that the agents of the InfiniBand port answer.
    Agent(Box<AgentCommand>),
}

/// A command that was begun, with the place of its reply.
#[derive(Debug)]
pub(crate) struct Running {
    pub(super) origin: CommandOrigin,
    pub(super) long: Long,
}

impl Running {
    /// True if the command moves this QP from SQE to RTS.
    pub(crate) fn resumes(&self, qpn: u32) -> bool {
        matches!(&self.long, Long::Resume(request) if request.qpn.get() == qpn)
    }

    /// True if the command moves a QP to ERR after the packets of its last turn are delivered.
    pub(super) fn stops(&self) -> bool {
        matches!(self.long, Long::Stop(..))
    }

    /// Returns the entry of the GID table that waits for the decision of the host.
    fn claim(&self) -> Option<&SetGid> {
        match &self.long {
            Long::Claim(request) => Some(request),
            _ => None,
        }
    }
}

impl Device {
    /// Continues a command. Returns the reply when the command is done.
    pub(super) fn go_on<M: GuestMemory>(
        &mut self,
        mem: &M,
        long: &mut Long,
    ) -> Result<Option<Reply>, CmdError> {
        if self.shared.regs().is_fatal() {
            return Err(bad(CmdStatus::Fatal, Syndrome::DeviceFatal));
        }
        match long {
            Long::Stats(stats) => {
                let (survey, request) = &mut **stats;
                let counters = self.go_on_survey(survey);
                counters
                    .map(|all| misc::write_stats(mem, request, &all))
                    .transpose()
            }
            Long::Resize(cqn, entries) => {
                let cq = self.shared.cqs.get_mut(*cqn).ok_or(NO_OBJECT)?;
                if let Some(cause) = cq.error {
                    return Err(bad(CmdStatus::Invalid, cause));
                }
                let done = cq
                    .go_on_moving(mem, entries, MOVED_ENTRIES)
                    .map_err(|e| match e {
                        ResizeError::TooSmall => SIZE,
                        ResizeError::Unreachable => {
                            bad(CmdStatus::BadAddress, Syndrome::CmdTranslation)
                        }
                    })?;
                if !done {
                    return Ok(None);
                }
                cq.publish(mem);
                Ok(Some(reply_of(&Empty::default())))
            }
            Long::Resume(request) => {
                let now = self.shared.clock.now();
                let mut budget = Budget::new(FLUSHED_REQUESTS, u64::MAX);
                let more = self.with_qp(mem, request.qpn.get(), |transport, host| {
                    transport.state() == QpState::Sqe && transport.poll(host, now, &mut budget)
                });
                if more == Some(true) {
                    return Ok(None);
                }
                self.end_modify_qp(mem, request)
            }
            Long::Stop(request, slices) => {
                if *slices != 0 && self.has_requests_of(request.qpn.get()) {
                    *slices -= 1;
                    return Ok(None);
                }
                self.end_modify_qp(mem, request)
            }
            Long::Claim(_) | Long::Agent(_) => Ok(None),
        }
    }

    /// Executes SET_GID, or begins to: if the host wants to be asked, an entry that is to be set
    /// waits for its decision.
    pub(super) fn begin_set_gid(&mut self, request: &SetGid) -> Result<Step, CmdError> {
        self.check_gid(request)?;
        if request.valid != 0 && self.shared.config().asks_for_gids {
            return Ok(Step::Begun(Long::Claim(Box::new(*request))));
        }
        self.set_gid(request)?;
        Ok(Step::Done(reply_of(&Empty::default())))
    }

    /// Returns the entry of the GID table that the driver wants to set, and that waits for
    /// [`Device::decide_claim`]. Later commands wait too, so the caller has to decide at once.
    pub fn next_claim(&self) -> Option<Gid> {
        let request = self.commands.running()?.claim()?;
        Some(Gid::of(request))
    }

    /// Ends the SET_GID that waits for the decision of the host. Does nothing if there is none.
    pub(crate) fn end_claim<M: GuestMemory>(&mut self, mem: &M, outcome: Result<(), CmdError>) {
        let Some(Running { origin, long }) = self.commands.take_running() else {
            return;
        };
        let Long::Claim(request) = long else {
            self.commands.run(Running { origin, long });
            return;
        };
        let outcome = match self.shared.regs().is_fatal() {
            true => Err(bad(CmdStatus::Fatal, Syndrome::DeviceFatal)),
            false => outcome.and_then(|()| self.set_gid(&request)),
        };
        let outcome = outcome.map(|()| reply_of(&Empty::default()));
        self.reply(mem, origin, outcome);
    }

    /// Returns the error of a command that the host refuses. Drivers of versions before 12 do not
    /// know [`CmdStatus::Denied`].
    pub(crate) fn refusal(&self, cause: Syndrome) -> CmdError {
        let status = match self.shared.regs().knows_denied() {
            true => CmdStatus::Denied,
            false => CmdStatus::Invalid,
        };
        bad(status, cause)
    }

    /// Executes MODIFY_QP, or begins to.
    pub(super) fn begin_modify_qp<M: GuestMemory>(
        &mut self,
        mem: &M,
        request: &ModifyQp,
    ) -> Result<Step, CmdError> {
        let qpn = request.qpn.get();
        if self.has_to_flush(request) {
            // The command flushes the requests that were posted before it, and none that are posted
            // later.
            self.note_posts(mem, qpn);
            return Ok(Step::Begun(Long::Resume(Box::new(*request))));
        }
        if self.stops(request) {
            let has_posts = self.note_posts(mem, qpn) || self.turns.has(qpn);
            if has_posts {
                self.give_turn(mem, qpn);
            }
            if has_posts || self.has_requests_of(qpn) {
                return Ok(Step::Begun(Long::Stop(Box::new(*request), DELIVERY_SLICES)));
            }
        }
        let reply = self.modify_qp(mem, request)?;
        Ok(Step::Done(reply_of(&reply)))
    }

    fn end_modify_qp<M: GuestMemory>(
        &mut self,
        mem: &M,
        request: &ModifyQp,
    ) -> Result<Option<Reply>, CmdError> {
        let reply = self.modify_qp(mem, request)?;
        Ok(Some(reply_of(&reply)))
    }

    /// True if a request has to flush the send queue first.
    fn has_to_flush(&self, request: &ModifyQp) -> bool {
        self.moves(request, QpState::Sqe, QpState::Rts)
    }

    /// True if a request moves a QP from RTS to ERR, which takes no other attribute. A program that
    /// posts its last message and disconnects at once may expect that a NIC sends the message, so
    /// the command must not overtake doorbells that were rung before it.
    fn stops(&self, request: &ModifyQp) -> bool {
        request.mask.get() == qp_mask::STATE && self.moves(request, QpState::Rts, QpState::Err)
    }

    fn moves(&self, request: &ModifyQp, from: QpState, to: QpState) -> bool {
        let qp = self.qps.get(request.qpn.get());
        request.mask.get() & qp_mask::STATE != 0
            && QpState::from_raw(request.attr.qp_state) == Some(to)
            && qp.is_some_and(|qp| qp.transport.state() == from)
    }
}
