// SPDX-License-Identifier: GPL-2.0 OR MIT

//! MODIFY_QP, attribute by attribute: each transition of each type is tried with each required
//! attribute left out and with each other attribute added. The table follows IBTA 11.2.5.2 (tables
//! 91 to 96) and has no code in common with the device.

use super::*;
use crate::error::CmdError;
use verbena_abi::cmd::*;
use verbena_abi::ctx::{qp_mask::*, QpAttr, QpState};
use verbena_abi::doorbell::{self, Words};
use verbena_abi::syndrome::Syndrome;

mod current;
mod table;

use table::row;

type Told = Result<(), (CmdStatus, Syndrome)>;

const ATTRIBUTE: Told = Err((CmdStatus::Invalid, Syndrome::CmdAttribute));
const TRANSITION: Told = Err((CmdStatus::Invalid, Syndrome::CmdTransition));
const UNSUPPORTED: Told = Err((CmdStatus::Unsupported, Syndrome::CmdAttribute));

/// All types of queue pairs except those of XRC.
const KINDS: [QpType; 4] = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::Gsi];

/// A queue pair of a type, which is created again for each attempt.
struct Bench {
    d: Driver,
    cq: CqHandle,
    kind: QpType,
    request: CreateQp,
    lives: bool,
}

impl Bench {
    fn new(kind: QpType) -> Self {
        let mut d = Driver::new();
        let cq = d.create_cq(6);
        let mut request = d.qp_request(&cq, &cq);
        request.qp_type = kind.to_raw();
        if kind == QpType::Gsi {
            (request.qpn, request.port) = (1.into(), 1);
        }
        Self {
            d,
            cq,
            kind,
            request,
            lives: false,
        }
    }

    fn attr(to: QpState) -> QpAttr {
        QpAttr {
            qp_state: to.to_raw(),
            port_num: 1,
            path_mtu: 3,
            dest_qpn: 77.into(),
            rq_psn: 1.into(),
            sq_psn: 2.into(),
            qkey: 3.into(),
            max_rd_atomic: 4,
            max_dest_rd_atomic: 5,
            min_rnr_timer: 6,
            timeout: 7,
            retry_cnt: 6,
            rnr_retry: 5,
            ..Default::default()
        }
    }

    fn modify(&mut self, mask: u32, attr: QpAttr) -> Told {
        let av = Driver::path(0, 1);
        let result: Result<_, CmdError> = self.d.modify_av(self.request.qpn.get(), mask, attr, av);
        result.map(|_| ()).map_err(|e| (e.status, e.syndrome))
    }

    fn must(&mut self, to: QpState) {
        let from = self.state();
        let needed = row(self.kind, from, to).expect("a transition").0;
        assert_eq!(
            self.modify(STATE | needed, Self::attr(to)),
            Ok(()),
            "{:?} {from:?} to {to:?}",
            self.kind
        );
    }

    fn state(&mut self) -> QpState {
        let context = self.d.query_qp(self.request.qpn.get());
        QpState::from_raw(context.attr.qp_state).expect("a state")
    }

    /// Creates the queue pair again and brings it to a state. Returns false if its type does not
    /// have that state.
    fn bring(&mut self, state: QpState) -> bool {
        use QpState::*;
        if state == Sqe && self.kind == QpType::Rc {
            return false;
        }
        if std::mem::replace(&mut self.lives, true) {
            self.d.must(&DestroyQp {
                id: self.request.qpn,
                ..Default::default()
            });
        }
        let slot = self.request.slot.get().into();
        self.d.words().store(doorbell::sq_producer(slot), 0);
        let mut qp = self.d.create_qp_by(&self.request).expect("a queue pair");
        let path: &[QpState] = match state {
            Reset => &[],
            Init => &[Init],
            Rtr => &[Init, Rtr],
            Rts | Sqe => &[Init, Rtr, Rts],
            Sqd => &[Init, Rtr, Rts, Sqd],
            Err => &[Init],
        };
        path.iter().for_each(|to| self.must(*to));
        if state == Sqe {
            // The opcode does not exist.
            self.d.post_raw(&mut qp, &[0xff; 256]);
            assert_eq!(self.d.drain(&mut self.cq).len(), 1);
        }
        if state == Err {
            assert_eq!(self.modify(STATE, Self::attr(Err)), Ok(()));
        }
        assert_eq!(self.state(), state, "{:?}", self.kind);
        true
    }

    /// Returns the result of a MODIFY_QP in a state. Checks that a refused one changes nothing.
    fn attempt(&mut self, from: QpState, mask: u32, attr: QpAttr) -> Told {
        self.bring(from);
        let before = self.d.query_qp(self.request.qpn.get());
        let told = self.modify(mask, attr);
        let after = self.d.query_qp(self.request.qpn.get());
        if told.is_err() {
            assert_eq!(
                (after.attr, after.av),
                (before.attr, before.av),
                "a refused change"
            );
        } else {
            let to = if mask & STATE != 0 {
                attr.qp_state
            } else {
                from.to_raw()
            };
            assert_eq!(after.attr.qp_state, to);
        }
        told
    }
}

fn bits() -> impl Iterator<Item = u32> {
    (1..32).map(|bit| 1 << bit)
}

#[test]
fn each_transition_takes_only_its_required_and_optional_attributes() {
    use QpState::*;
    for kind in KINDS {
        let mut b = Bench::new(kind);
        for (&from, &to) in QpState::ALL
            .iter()
            .flat_map(|f| QpState::ALL.iter().map(move |t| (f, t)))
        {
            if !b.bring(from) {
                continue;
            }
            let mut attr = Bench::attr(to);
            attr.cur_qp_state = from.to_raw();
            let what = |mask: u32| format!("{kind:?} {from:?} to {to:?}, mask {mask:#x}");
            if matches!(to, Reset | Err) {
                for mask in [STATE].into_iter().chain(bits().map(|b| STATE | b)) {
                    // There is no transition from RESET to ERR.
                    let expected = match (from, to) {
                        _ if mask != STATE => ATTRIBUTE,
                        (Reset, Err) => TRANSITION,
                        _ => Ok(()),
                    };
                    assert_eq!(b.attempt(from, mask, attr), expected, "{}", what(mask));
                }
                continue;
            }
            let Some((must, may)) = row(kind, from, to) else {
                for mask in [
                    STATE,
                    STATE | PKEY_INDEX | PORT | ACCESS_FLAGS,
                    STATE | SQ_PSN,
                ] {
                    assert_eq!(b.attempt(from, mask, attr), TRANSITION, "{}", what(mask));
                }
                continue;
            };
            assert_eq!(
                b.attempt(from, STATE | must, attr),
                Ok(()),
                "{}",
                what(STATE | must)
            );
            for bit in bits() {
                let mask = STATE | must ^ bit;
                let expected = match bit {
                    _ if must & bit != 0 => ATTRIBUTE,
                    ALT_PATH => UNSUPPORTED,
                    _ if (may | RATE_LIMIT) & bit != 0 => Ok(()),
                    _ => ATTRIBUTE,
                };
                assert_eq!(b.attempt(from, mask, attr), expected, "{}", what(mask));
            }
            if may & CUR_STATE != 0 {
                attr.cur_qp_state = Init.to_raw();
                assert_eq!(b.attempt(from, STATE | CUR_STATE | must, attr), TRANSITION);
            }
        }
    }
}

#[test]
fn attributes_alone_change_in_init_rts_and_sqd() {
    use QpState::*;
    for kind in KINDS {
        let mut b = Bench::new(kind);
        let key = if matches!(kind, QpType::Rc | QpType::Uc) {
            ACCESS_FLAGS
        } else {
            QKEY
        };
        for &from in QpState::ALL {
            if !b.bring(from) {
                continue;
            }
            let expected = if matches!(from, Init | Rts | Sqd) {
                Ok(())
            } else {
                TRANSITION
            };
            let told = b.attempt(from, key, Bench::attr(Reset));
            assert_eq!(told, expected, "{kind:?} {from:?}");
        }
    }
}

#[test]
fn attributes_have_ranges() {
    use QpState::*;
    // For each attribute: a transition that requires it, its mask bit, its setter, valid values,
    // and invalid values.
    type Set = fn(&mut QpAttr, u32);
    type Range<'a> = (QpState, QpState, u32, Set, &'a [u32], &'a [u32]);
    let ranges: &[Range<'_>] = &[
        (
            Reset,
            Init,
            PKEY_INDEX,
            |a, n| a.pkey_index = (n as u16).into(),
            &[0],
            &[1, 0xffff],
        ),
        (
            Reset,
            Init,
            PORT,
            |a, n| a.port_num = n as u8,
            &[1],
            &[0, 2],
        ),
        (
            Reset,
            Init,
            ACCESS_FLAGS,
            |a, n| a.qp_access_flags = n.into(),
            &[0, 0x3f],
            &[0x40, 1 << 31],
        ),
        (
            Init,
            Rtr,
            PATH_MTU,
            |a, n| a.path_mtu = n as u8,
            &[1, 3],
            &[0, 4, 5, 6],
        ),
        (
            Init,
            Rtr,
            DEST_QPN,
            |a, n| a.dest_qpn = n.into(),
            &[0, 0xff_ffff],
            &[1 << 24],
        ),
        (
            Init,
            Rtr,
            RQ_PSN,
            |a, n| a.rq_psn = n.into(),
            &[0, 0xff_ffff],
            &[1 << 24],
        ),
        (
            Init,
            Rtr,
            MAX_DEST_RD_ATOMIC,
            |a, n| a.max_dest_rd_atomic = n as u8,
            &[0, 16],
            &[17, 255],
        ),
        (
            Init,
            Rtr,
            MIN_RNR_TIMER,
            |a, n| a.min_rnr_timer = n as u8,
            &[0, 31],
            &[32, 255],
        ),
        (
            Rtr,
            Rts,
            SQ_PSN,
            |a, n| a.sq_psn = n.into(),
            &[0, 0xff_ffff],
            &[1 << 24],
        ),
        (
            Rtr,
            Rts,
            MAX_QP_RD_ATOMIC,
            |a, n| a.max_rd_atomic = n as u8,
            &[0, 16],
            &[17, 255],
        ),
        (
            Rtr,
            Rts,
            TIMEOUT,
            |a, n| a.timeout = n as u8,
            &[0, 31],
            &[32, 255],
        ),
        (
            Rtr,
            Rts,
            RETRY_CNT,
            |a, n| a.retry_cnt = n as u8,
            &[0, 7],
            &[8, 255],
        ),
        (
            Rtr,
            Rts,
            RNR_RETRY,
            |a, n| a.rnr_retry = n as u8,
            &[0, 7],
            &[8, 255],
        ),
    ];
    let mut b = Bench::new(QpType::Rc);
    for &(from, to, bit, set, good, bad) in ranges {
        let must = row(QpType::Rc, from, to).expect("a transition").0;
        assert_ne!(must & bit, 0);
        for (values, expected) in [(good, Ok(())), (bad, ATTRIBUTE)] {
            for &value in values {
                let mut attr = Bench::attr(to);
                set(&mut attr, value);
                let told = b.attempt(from, STATE | must, attr);
                assert_eq!(told, expected, "{from:?} to {to:?}: {bit:#x} = {value}");
            }
        }
    }
}

#[test]
fn only_attributes_in_the_mask_change() {
    let mut b = Bench::new(QpType::Rc);
    let new = QpAttr {
        qp_state: QpState::Sqd.to_raw(),
        port_num: 1,
        path_mtu: 2,
        dest_qpn: 177.into(),
        rq_psn: 11.into(),
        sq_psn: 12.into(),
        qkey: 13.into(),
        qp_access_flags: 0xe.into(),
        max_rd_atomic: 14,
        max_dest_rd_atomic: 15,
        min_rnr_timer: 16,
        timeout: 17,
        retry_cnt: 2,
        rnr_retry: 1,
        rate_limit: 18.into(),
        ..Default::default()
    };
    type Get = fn(&QpAttr) -> u32;
    let fields: &[(u32, Get)] = &[
        (ACCESS_FLAGS, |a| a.qp_access_flags.get()),
        (TIMEOUT, |a| a.timeout.into()),
        (RETRY_CNT, |a| a.retry_cnt.into()),
        (RNR_RETRY, |a| a.rnr_retry.into()),
        (MAX_QP_RD_ATOMIC, |a| a.max_rd_atomic.into()),
        (MAX_DEST_RD_ATOMIC, |a| a.max_dest_rd_atomic.into()),
        (MIN_RNR_TIMER, |a| a.min_rnr_timer.into()),
        (RATE_LIMIT, |a| a.rate_limit.get()),
        (SQ_PSN, |a| a.sq_psn.get()),
        (RQ_PSN, |a| a.rq_psn.get()),
        (DEST_QPN, |a| a.dest_qpn.get()),
        (PATH_MTU, |a| a.path_mtu.into()),
        (QKEY, |a| a.qkey.get()),
    ];
    // SQD does not take the last five attributes, so they are only checked to stay the same.
    for &(bit, _) in &fields[..8] {
        b.bring(QpState::Sqd);
        let qpn = b.request.qpn.get();
        let before = b.d.query_qp(qpn).attr;
        assert_eq!(b.modify(STATE | bit, new), Ok(()));
        let after = b.d.query_qp(qpn).attr;
        for &(other, get) in fields {
            let expected = if other == bit {
                get(&new)
            } else {
                get(&before)
            };
            assert_eq!(get(&after), expected, "{other:#x} after {bit:#x}");
        }
        assert_ne!(before, after);
    }
}

#[test]
fn the_context_shows_the_attributes_of_the_transitions() {
    let mut b = Bench::new(QpType::Rc);
    b.bring(QpState::Rts);
    let attr = b.d.query_qp(b.request.qpn.get()).attr;
    let expected = QpAttr {
        cur_qp_state: QpState::Rts.to_raw(),
        // No transition of an RC queue pair takes a Q_Key.
        qkey: 0.into(),
        ..Bench::attr(QpState::Rts)
    };
    assert_eq!(attr, expected);
    let av = b.d.query_qp(b.request.qpn.get()).av;
    assert_eq!(av, Driver::path(0, 1));
    // A path whose source GID is not set is refused.
    let mut no_gid = Driver::path(0, 1);
    no_gid.sgid_index = 9.into();
    b.bring(QpState::Sqd);
    let told =
        b.d.modify_av(b.request.qpn.get(), AV, QpAttr::default(), no_gid);
    let told = told.map(|_| ()).map_err(|e| (e.status, e.syndrome));
    assert_eq!(told, ATTRIBUTE);
}

#[test]
fn the_transport_gets_each_attribute() {
    let mut b = Bench::new(QpType::Rc);
    b.bring(QpState::Init);
    let qpn = b.request.qpn.get();
    let rtr = QpAttr {
        qp_state: QpState::Rtr.to_raw(),
        path_mtu: 2,
        dest_qpn: 77.into(),
        rq_psn: 11.into(),
        max_dest_rd_atomic: 12,
        min_rnr_timer: 13,
        qp_access_flags: 6.into(),
        ..Default::default()
    };
    let needed = row(QpType::Rc, QpState::Init, QpState::Rtr)
        .expect("a transition")
        .0;
    assert_eq!(b.modify(STATE | ACCESS_FLAGS | needed, rtr), Ok(()));
    let mut expected = verbena_transport::Attr {
        path_mtu: 512,
        dest_qpn: 77,
        rq_psn: 11,
        access_flags: 6,
        pkey: 0xffff,
        max_dest_rd_atomic: 12,
        min_rnr_timer: 13,
        // The peer has GID 1, which is a GID of this port.
        local_peer: true,
        ..Default::default()
    };
    let told = |b: &Bench| {
        format!(
            "{:?}",
            b.d.device
                .qps
                .get(qpn)
                .expect("it is there")
                .transport
                .attr()
        )
    };
    assert_eq!(told(&b), format!("{expected:?}"));
    let rts = QpAttr {
        qp_state: QpState::Rts.to_raw(),
        sq_psn: 21.into(),
        timeout: 22,
        retry_cnt: 3,
        rnr_retry: 4,
        max_rd_atomic: 5,
        ..Default::default()
    };
    let needed = row(QpType::Rc, QpState::Rtr, QpState::Rts)
        .expect("a transition")
        .0;
    assert_eq!(b.modify(STATE | needed, rts), Ok(()));
    (expected.sq_psn, expected.timeout, expected.retry_cnt) = (21, 22, 3);
    (expected.rnr_retry, expected.max_rd_atomic) = (4, 5);
    assert_eq!(told(&b), format!("{expected:?}"));
    let sqd = QpAttr {
        qp_state: QpState::Sqd.to_raw(),
        en_sqd_async_notify: 1,
        ..Default::default()
    };
    assert_eq!(b.modify(STATE | EN_SQD_ASYNC_NOTIFY, sqd), Ok(()));
    expected.sqd_notify = true;
    assert_eq!(told(&b), format!("{expected:?}"));
    // A datagram queue pair uses the port's MTU, 1024 bytes, and has a Q_Key.
    let mut b = Bench::new(QpType::Ud);
    b.bring(QpState::Rts);
    let qpn = b.request.qpn.get();
    let attr =
        b.d.device
            .qps
            .get(qpn)
            .expect("it is there")
            .transport
            .attr();
    assert_eq!(
        (attr.path_mtu, attr.qkey, attr.sq_psn, attr.local_peer),
        (1024, 3, 2, false)
    );
}
