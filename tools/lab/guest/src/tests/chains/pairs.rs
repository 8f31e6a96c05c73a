// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Steps of chains that modify QPs.
use super::{ChainFixture, EVERYTHING};
use crate::ffi::mr::access;
use crate::ffi::qp::{mask, state};
use crate::ffi::sys::Errno;
use crate::ffi::QpAttr;
use crate::outcome::ErrorContext as _;
use crate::rig::*;
use crate::TestResult;

impl ChainFixture<'_> {
    pub(super) fn draw_conn(&mut self, which: usize) -> Conn {
        let before = self.conns[which].clone();
        Conn {
            access: *self.one_of(&[
                EVERYTHING,
                EVERYTHING,
                access::ALL,
                access::LOCAL_WRITE,
                access::LOCAL_WRITE | access::REMOTE_READ,
                access::LOCAL_WRITE | access::REMOTE_WRITE,
            ]),
            timeout: 14 + self.rng.below(4) as u8,
            retry_cnt: 6 + self.rng.below(2) as u8,
            rnr_retry: self.rng.below(8) as u8,
            min_rnr_timer: 1 + self.rng.below(31) as u8,
            rd_atomic: 1 + self.rng.below(16) as u8,
            dest_rd_atomic: Some(1 + self.rng.below(16) as u8),
            ..before
        }
    }

    pub(super) fn end(&self, which: usize) -> &QpEndpoint {
        [&self.a, &self.b][which]
    }

    pub(super) fn attr(&self, which: usize, conn: &Conn, to: u32) -> QpAttr {
        let peer = self.end(1 - which).qp.qpn();
        QpAttr {
            qp_state: to,
            ..attrs(self.rig.gid, peer, conn)
        }
    }

    pub(super) fn modify_in_rts(&mut self) -> TestResult {
        let which = self.rng.below(2) as usize;
        let drawn = self.draw_conn(which);
        let attr = self.attr(which, &drawn, state::RTS);
        let surplus = *self.one_of(&[
            0,
            0,
            mask::PATH_MTU,
            mask::TIMEOUT,
            mask::RQ_PSN,
            mask::MAX_QP_RD_ATOMIC,
        ]);
        let (rights, timer) = (self.chance(), self.chance());
        let mut mask_bits = mask::STATE | surplus;
        mask_bits |= if rights { mask::ACCESS_FLAGS } else { 0 };
        mask_bits |= if timer { mask::MIN_RNR_TIMER } else { 0 };
        let result = self.end(which).qp.modify(&attr, mask_bits);
        let want = if surplus == 0 {
            Ok(())
        } else {
            Err(Errno::EINVAL)
        };
        ensure_eq!(result, want, "mask {mask_bits:#x}");
        let conn = &mut self.conns[which];
        if rights && surplus == 0 {
            conn.access = drawn.access;
        }
        if timer && surplus == 0 {
            conn.min_rnr_timer = drawn.min_rnr_timer;
        }
        Ok(())
    }

    /// Modifies attributes in SQD that cannot be modified in RTS; nothing is outstanding.
    pub(super) fn modify_in_sqd(&mut self) -> TestResult {
        let which = self.rng.below(2) as usize;
        let drawn = self.draw_conn(which);
        let sqd = self.attr(which, &drawn, state::SQD);
        self.end(which).qp.modify(&sqd, mask::STATE).at("SQD")?;
        let mut mask_bits = mask::STATE | mask::AV;
        let rest = [
            mask::TIMEOUT,
            mask::RETRY_CNT,
            mask::RNR_RETRY,
            mask::ACCESS_FLAGS,
            mask::MIN_RNR_TIMER,
            mask::MAX_QP_RD_ATOMIC,
            mask::MAX_DEST_RD_ATOMIC,
        ];
        for one in rest {
            mask_bits |= if self.chance() { one } else { 0 };
        }
        if self.chance() {
            let refused = self.end(which).qp.modify(&sqd, mask_bits | mask::SQ_PSN);
            ensure_eq!(refused, Err(Errno::EINVAL), "a PSN in SQD");
        } else {
            self.end(which).qp.modify(&sqd, mask_bits).at("in SQD")?;
            let set = |one| mask_bits & one == one;
            let conn = &mut self.conns[which];
            for (one, to, from) in [
                (mask::TIMEOUT, &mut conn.timeout, drawn.timeout),
                (mask::RETRY_CNT, &mut conn.retry_cnt, drawn.retry_cnt),
                (mask::RNR_RETRY, &mut conn.rnr_retry, drawn.rnr_retry),
                (
                    mask::MIN_RNR_TIMER,
                    &mut conn.min_rnr_timer,
                    drawn.min_rnr_timer,
                ),
                (mask::MAX_QP_RD_ATOMIC, &mut conn.rd_atomic, drawn.rd_atomic),
            ] {
                if set(one) {
                    *to = from;
                }
            }
            if set(mask::MAX_DEST_RD_ATOMIC) {
                conn.dest_rd_atomic = drawn.dest_rd_atomic;
            }
            if set(mask::ACCESS_FLAGS) {
                conn.access = drawn.access;
            }
        }
        let rts = self.attr(which, &drawn, state::RTS);
        self.end(which).qp.modify(&rts, mask::STATE).at("RTS")
    }

    pub(super) fn reconnect(&mut self) -> TestResult {
        let (mut a, mut b) = (self.draw_conn(0), self.draw_conn(1));
        a.mtu = 1 + self.rng.below(3) as u32;
        b.mtu = a.mtu;
        (a.sq_psn, b.sq_psn) = (
            self.rng.below(1 << 24) as u32,
            self.rng.below(1 << 24) as u32,
        );
        (a.rq_psn, b.rq_psn) = (b.sq_psn, a.sq_psn);
        self.conns = [a, b];
        self.connect()
    }
}
