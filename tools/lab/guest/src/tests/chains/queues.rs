// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Steps of chains that modify and use CQs and SRQs.
use super::{ChainFixture, DEPTH, EVERYTHING, MARK, MESSAGES};
use crate::ffi::context::EventType;
use crate::ffi::mr::access;
use crate::ffi::qp::{op, RecvWr, SendWr};
use crate::ffi::sys::Errno;
use crate::outcome::ErrorContext as _;
use crate::rig::*;
use crate::{Fail, TestResult};

impl ChainFixture<'_> {
    pub(super) fn resize(&mut self) -> TestResult {
        let least = self.completed.len() as i32;
        let most = self.rig.ctx.query_device()?.max_cqe;
        let drawn = 1 + self.rng.below(300) as i32;
        let wanted = *self.one_of(&[
            0,
            -1,
            least,
            least - 1,
            least + 1,
            1,
            drawn,
            drawn,
            most + 1,
        ]);
        let before = self.cqe;
        match self.cq.resize(wanted) {
            Ok(()) => {
                ensure!((1..=most).contains(&wanted), "to {wanted} was accepted");
                self.cqe = self.cq.cqe();
                ensure!(
                    self.cqe >= wanted.max(least) as usize,
                    "to {wanted} with {least} entries in the CQ: {}",
                    self.cqe
                );
            }
            Err(errno) => {
                ensure_eq!(errno, Errno::EINVAL, "to {wanted}");
                let never = wanted < 1 || wanted > most || wanted < least;
                ensure!(
                    never,
                    "to {wanted} was refused with {least} entries in the CQ"
                );
                ensure_eq!(self.cq.cqe(), before, "entries after a refusal");
            }
        }
        Ok(())
    }

    pub(super) fn moderate(&mut self) -> TestResult {
        let count = self.rng.below(4) as u16;
        // With a minimum count and no period, an event could be delayed for ever.
        let period = self.rng.below(5000) as u16 + u16::from(count > 1);
        self.cq.moderate(count, period).at("modify_cq")
    }

    /// Checks that an armed CQ has one event for the next completion.
    pub(super) fn notified(&mut self) -> TestResult {
        self.poll_all()?;
        self.cq.arm(false)?;
        if !self.write_some(1)? {
            return self.unarm();
        }
        let event_timeout = event_timeout().as_millis() as i32;
        let event = self.channel.event(event_timeout);
        ensure!(event == Some(self.cq.element()), "no completion event");
        ensure!(self.channel.event(0).is_none(), "two completion events");
        self.poll_all()
    }

    /// Raises the event of an arm for which no WRITE was possible, so that the arm does not apply
    /// to a later completion.
    pub(super) fn unarm(&mut self) -> TestResult {
        self.conns[1].access = EVERYTHING;
        self.connect()?;
        ensure!(self.write_some(1)?, "B grants all");
        let event_timeout = event_timeout().as_millis() as i32;
        ensure!(self.channel.event(event_timeout).is_some(), "no event");
        self.poll_all()
    }

    /// Executes `count` WRITEs whose completions stay in the CQ. Returns false, and does nothing,
    /// if B does not grant WRITE and READ.
    pub(super) fn write_some(&mut self, count: usize) -> Result<bool, Fail> {
        let needed = access::REMOTE_WRITE | access::REMOTE_READ;
        if self.conns[1].access & needed != needed {
            return Ok(false);
        }
        self.fresh = false;
        let remote = (self.b.mr.at(0), self.b.mr.rkey());
        for _ in 0..count {
            let id = self.id();
            let wr = SendWr::new(op::WRITE, id, &[self.a.mr.sge(0, 8)]);
            self.a.qp.post_send(&[wr.remote(remote.0, remote.1)])?;
            self.completed.push_back(id);
        }
        // The response to a READ after the WRITEs shows that all of them have completed.
        let mark = self.id();
        self.b.mr.buf.write(MARK, &mark.to_le_bytes());
        let wr = SendWr::new(op::READ, mark, &[self.a.mr.sge(MARK, 8)]).flags(0);
        self.a
            .qp
            .post_send(&[wr.remote(self.b.mr.at(MARK), remote.1)])?;
        wait_for("the data of the READ", || {
            Ok(self.a.mr.buf.read(MARK, 8) == mark.to_le_bytes())
        })?;
        // A device that answers a query has processed everything before it.
        self.a.qp.query()?;
        Ok(true)
    }

    pub(super) fn writes(&mut self) -> TestResult {
        let room = self.cqe.min(DEPTH as usize / 2) - self.completed.len().min(self.cqe);
        let room = room.min((DEPTH as usize / 2).saturating_sub(self.completed.len()));
        // Half of the calls fill the CQ, because a CQ that is full is not in error.
        let count = if self.chance() {
            room
        } else {
            self.rng.below(room as u64 + 1) as usize
        };
        self.write_some(count.min(30)).map(drop)
    }

    pub(super) fn polls(&mut self) -> TestResult {
        let count = self.rng.below(self.completed.len() as u64 + 1) as usize;
        self.poll(count)
    }

    pub(super) fn modify_srq(&mut self) -> TestResult {
        let posted = self.waiting.len() as u32;
        let most = self.rig.ctx.query_device()?.max_srq_wr as u32;
        let sizes = [
            posted.wrapping_sub(1),
            posted,
            posted + 1,
            1 + self.rng.below(200) as u32,
            0,
            most + 1,
        ];
        let size = self.chance().then(|| *self.one_of(&sizes));
        let holds = size.unwrap_or(self.max_wr);
        let limits = [
            0,
            1,
            posted.wrapping_sub(1),
            posted,
            posted + 1,
            holds,
            holds.wrapping_add(1),
            self.max_wr,
            u32::MAX,
        ];
        let limit = (size.is_none() || self.chance()).then(|| *self.one_of(&limits));
        let is_size = size.is_none_or(|size| size != 0 && size <= most);
        let is_limit = limit.is_none_or(|limit| limit <= holds);
        let fits = holds >= posted && (size.is_none() || holds >= self.srq_limit);
        let result = self.srq.modify(size, limit);
        match result {
            Ok(()) => {
                ensure!(is_size, "{size:?} and {limit:?} were accepted");
                if size.is_some() {
                    self.max_wr = self.srq.query()?.max_wr;
                    ensure!(
                        self.max_wr >= holds.max(posted),
                        "{size:?} promised {}",
                        self.max_wr
                    );
                }
                ensure!(
                    limit.unwrap_or(0) <= self.max_wr,
                    "{size:?} and {limit:?} were accepted"
                );
                if let Some(limit) = limit {
                    self.srq_limit = limit;
                    self.look_at_limit();
                }
            }
            Err(errno) => {
                ensure_eq!(errno, Errno::EINVAL, "{size:?} and {limit:?}");
                let right = is_size && is_limit && fits;
                ensure!(
                    !right,
                    "{size:?} and {limit:?} were refused with {posted} receives"
                );
            }
        }
        Ok(())
    }

    /// Expects an event if fewer receives are left than the limit, which is disarmed by the event.
    pub(super) fn look_at_limit(&mut self) {
        if self.waiting.len() < self.srq_limit as usize {
            self.srq_limit = 0;
            let event = (EventType::SRQ_LIMIT_REACHED, self.srq.element());
            self.events.push(event);
        }
    }

    pub(super) fn receive(&mut self) -> Result<RecvWr, Fail> {
        let id = self.id();
        let at = MESSAGES + 8 * (id as usize % 1024);
        Ok(RecvWr::new(id, &[self.b.mr.sge(at, 8)]))
    }

    pub(super) fn receives(&mut self) -> TestResult {
        let room = self.max_wr - self.waiting.len() as u32;
        let full = self.chance();
        let count = if full {
            room
        } else {
            self.rng.below(u64::from(room) + 1) as u32
        };
        for _ in 0..count {
            let receive = self.receive()?;
            self.waiting.push_back(receive.wr_id);
            self.srq.post(&[receive]).at("a receive")?;
        }
        if full {
            let more = self.receive()?;
            let refused = self.srq.post(&[more]).map_err(|e| e.errno);
            ensure_eq!(refused, Err(Errno::ENOMEM), "one more than {}", self.max_wr);
        }
        Ok(())
    }

    pub(super) fn messages(&mut self) -> TestResult {
        let count = self.rng.below(self.waiting.len().min(20) as u64 + 1);
        for _ in 0..count {
            let id = self.id();
            self.a.mr.buf.write(0, &id.to_le_bytes());
            let wr = SendWr::new(op::SEND, id, &[self.a.mr.sge(0, 8)]);
            let sent = self.alone(wr)?;
            ensure_eq!(status::name(sent), "IBV_WC_SUCCESS", "a SEND");
            let receive = self.waiting.pop_front().ok_or("the model is empty")?;
            let one = wait_one(&self.b.rcq, "a receive")?;
            expect_success(&one, receive, wc::RECV)?;
            let at = MESSAGES + 8 * (receive as usize % 1024);
            ensure_eq!(
                self.b.mr.buf.read(at, 8),
                id.to_le_bytes(),
                "the received bytes"
            );
            self.look_at_limit();
        }
        Ok(())
    }
}
