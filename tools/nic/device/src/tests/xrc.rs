// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Extended reliable connections (annex A14): targets, initiators, and the SRQs that requests name.

use crate::error::CmdError;
use crate::memory::GuestMemory;
use crate::mock::{flat, CqHandle, Driver, QpHandle, SendWr, SrqHandle, WqeBytes, ALL_ACCESS};
use crate::Config;
use verbena_abi::cmd::*;
use verbena_abi::cqe::{WcOpcode, WcStatus};
use verbena_abi::ctx::{qp_mask as m, QpAttr, QpState};
use verbena_abi::doorbell::{self, Words};
use verbena_abi::eqe::EventType;
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::{SendWqe, WqeOpcode};

/// Logarithm of the stride of SRQs, which is enough for three SGEs.
const LOG_STRIDE: u8 = 6;

/// PD of the receiver. The initiator has PD 7.
const THEIRS: u32 = 8;

/// An initiator connected to a target, and an SRQ of the target's XRC domain.
struct Xrc {
    d: Driver,
    cq: CqHandle,
    ini: QpHandle,
    tgt: QpHandle,
    /// CQ of the SRQ's receives.
    srq_cq: CqHandle,
    srq: SrqHandle,
}

fn srq_request(d: &mut Driver, cqn: u32, xrcdn: u32) -> CreateSrq {
    let ring = d.alloc(1 << (6 + LOG_STRIDE));
    CreateSrq {
        srqn: d.number().into(),
        pdn: THEIRS.into(),
        slot: d.slot().into(),
        log_size: 6,
        log_stride: LOG_STRIDE,
        ring: flat(ring),
        srq_type: 1,
        cqn: cqn.into(),
        xrcdn: xrcdn.into(),
        ..Default::default()
    }
}

fn create_srq(d: &mut Driver, cqn: u32, xrcdn: u32) -> SrqHandle {
    let request = srq_request(d, cqn, xrcdn);
    d.must(&request);
    SrqHandle {
        srqn: request.srqn.get(),
        slot: request.slot.get(),
        ring: request.ring.addr.get(),
        pi: 0,
    }
}

fn ini_request(d: &mut Driver, cq: &CqHandle) -> CreateQp {
    CreateQp {
        qp_type: QpType::XrcIni.to_raw(),
        recv_cqn: 0.into(),
        log_rq_size: 0,
        max_recv_sge: 0,
        ..d.qp_request(cq, cq)
    }
}

fn tgt_request(d: &mut Driver, xrcdn: u32) -> CreateQp {
    CreateQp {
        qpn: d.number().into(),
        slot: d.slot().into(),
        qp_type: QpType::XrcTgt.to_raw(),
        xrcdn: xrcdn.into(),
        ..Default::default()
    }
}

/// Moves a queue pair from RESET to RTS, with exactly the attributes that its side requires.
fn connect(
    d: &mut Driver,
    me: u32,
    peer: u32,
    ends: (u16, u16),
    is_target: bool,
) -> Result<(), CmdError> {
    d.to_init(me)?;
    let attr = QpAttr {
        path_mtu: 3,
        dest_qpn: peer.into(),
        rq_psn: 7.into(),
        sq_psn: 7.into(),
        max_dest_rd_atomic: 4,
        max_rd_atomic: 4,
        min_rnr_timer: 1,
        timeout: 10,
        retry_cnt: 7,
        rnr_retry: 2,
        ..Default::default()
    };
    let to = |state: QpState| QpAttr {
        qp_state: state.to_raw(),
        ..attr
    };
    let (rtr, rts) = if is_target {
        (m::MAX_DEST_RD_ATOMIC | m::MIN_RNR_TIMER, 0)
    } else {
        (0, m::RETRY_CNT | m::RNR_RETRY | m::MAX_QP_RD_ATOMIC)
    };
    let rtr = rtr | m::STATE | m::AV | m::PATH_MTU | m::DEST_QPN | m::RQ_PSN;
    d.modify_av(me, rtr, to(QpState::Rtr), Driver::path(ends.0, ends.1))?;
    let rts = rts | m::STATE | m::SQ_PSN | m::TIMEOUT;
    d.modify(me, rts, to(QpState::Rts)).map(|_| ())
}

/// Returns the WQE of a request to an SRQ.
fn to_srq(wr: &SendWr, srqn: u32) -> WqeBytes {
    let mut wqe = wr.encode();
    let at = std::mem::offset_of!(SendWqe, remote_srqn);
    wqe[at..at + 4].copy_from_slice(&srqn.to_le_bytes());
    wqe
}

impl Xrc {
    fn new() -> Self {
        Self::with(Config::default())
    }

    fn with(config: Config) -> Self {
        let mut d = Driver::with(config);
        let (cq, srq_cq) = (d.create_cq(6), d.create_cq(4));
        let request = ini_request(&mut d, &cq);
        let ini = d.create_qp_by(&request).unwrap();
        let request = tgt_request(&mut d, 3);
        let tgt = d.create_qp_by(&request).unwrap();
        let srq = create_srq(&mut d, srq_cq.cqn, 3);
        connect(&mut d, ini.qpn, tgt.qpn, (0, 1), false).unwrap();
        connect(&mut d, tgt.qpn, ini.qpn, (1, 0), true).unwrap();
        Self {
            d,
            cq,
            ini,
            tgt,
            srq_cq,
            srq,
        }
    }

    /// Posts a request to an SRQ.
    fn post(&mut self, wr: &SendWr, srqn: u32) {
        self.d.post_raw(&mut self.ini, &to_srq(wr, srqn));
    }

    /// Allocates memory of the receiver. Returns its address and key.
    fn theirs(&mut self, bytes: u32) -> (u64, u32) {
        let addr = self.d.alloc(bytes.into());
        let key = self.d.number() << 8 | 0x22;
        self.d.must(&CreateMr {
            key: key.into(),
            pdn: THEIRS.into(),
            access: ALL_ACCESS.into(),
            iova: addr.into(),
            length: u64::from(bytes).into(),
            pages: flat(addr),
            ..Default::default()
        });
        (addr, key)
    }

    fn state(&mut self, qpn: u32) -> u8 {
        self.d.query_qp(qpn).attr.qp_state
    }

    fn told(&mut self) -> Vec<(EventType, u32)> {
        let events = self.d.events(0);
        events.iter().map(|e| (e.kind, e.syndrome)).collect()
    }
}

#[test]
fn a_receive_completes_in_the_cq_of_its_srq() {
    for wire_local in [false, true] {
        let mut x = Xrc::with(Config {
            wire_local,
            ..Config::default()
        });
        let (src, key) = x.d.region(4096, 1);
        let (dst, there) = x.theirs(4096);
        x.d.post_srq(&mut x.srq, 9, &[(dst, 3000, there)]);
        let srqn = x.srq.srqn;
        x.post(&SendWr::new(WqeOpcode::Send, 1, &[(src, 3000, key)]), srqn);
        x.d.run();
        let done = x.d.poll(&mut x.srq_cq).unwrap();
        assert_eq!(done.status(), WcStatus::Success);
        assert_eq!(done.tail.opcode, WcOpcode::Recv.to_raw());
        assert_eq!((done.cqe.wr_id.get(), done.cqe.byte_len.get()), (9, 3000));
        assert_eq!((done.cqe.qpn.get(), done.cqe.srqn.get()), (x.tgt.qpn, srqn));
        assert_eq!(x.d.drain(&mut x.cq), [(1, WcStatus::Success)]);
        assert_eq!(x.d.bytes(dst, 3000), x.d.bytes(src, 3000));
        let taken =
            x.d.words()
                .load_acquire(doorbell::srq_consumer(x.srq.slot.into()));
        assert_eq!(taken, 1);
        // Memory of the SRQ's PD can be written and read. Memory of the initiator's PD cannot.
        let mut write = SendWr::new(WqeOpcode::RdmaWrite, 2, &[(src, 8, key)]);
        write.remote = (dst + 100, there);
        x.post(&write, srqn);
        let mut read = SendWr::new(WqeOpcode::RdmaRead, 3, &[(src + 8, 8, key)]);
        read.remote = (dst + 100, there);
        x.post(&read, srqn);
        let done = x.d.drain(&mut x.cq);
        assert_eq!(done, [(2, WcStatus::Success), (3, WcStatus::Success)]);
        assert_eq!(x.d.bytes(src, 8), x.d.bytes(src + 8, 8));
        (write.wr_id, write.remote) = (4, (src, key));
        x.post(&write, srqn);
        assert_eq!(x.d.drain(&mut x.cq), [(4, WcStatus::RemAccessErr)]);
    }
}

#[test]
fn requests_to_a_missing_basic_or_foreign_srq_are_refused() {
    type Queue = fn(&mut Xrc) -> u32;
    let tries: [(Queue, Syndrome); 3] = [
        (|_| 4000, Syndrome::XrcSrq),
        // An SRQ of the basic type.
        (|x| x.d.create_srq().srqn, Syndrome::XrcSrq),
        (
            |x| create_srq(&mut x.d, x.srq_cq.cqn, 4).srqn,
            Syndrome::XrcDomain,
        ),
    ];
    for (queue, cause) in tries {
        let mut x = Xrc::new();
        let srqn = queue(&mut x);
        x.post(&SendWr::new(WqeOpcode::Send, 1, &[]), srqn);
        assert_eq!(x.d.drain(&mut x.cq), [(1, WcStatus::RemInvReqErr)]);
        let told = x.told();
        assert!(
            told.contains(&(EventType::QpReqErr, cause.to_raw().into())),
            "{told:?}"
        );
        assert_eq!(x.state(x.tgt.qpn), QpState::Err.to_raw());
        assert_eq!(x.d.drain(&mut x.srq_cq), []);
    }
}

#[test]
fn an_srq_destroyed_during_a_message_gets_no_completion() {
    for again in [false, true] {
        let mut x = Xrc::new();
        let length: u32 = 4 << 20;
        let (src, key) = x.d.region(length, 1);
        let (dst, there) = x.theirs(length);
        x.d.post_srq(&mut x.srq, 9, &[(dst, length, there)]);
        let srqn = x.srq.srqn;
        x.post(
            &SendWr::new(WqeOpcode::Send, 1, &[(src, length, key)]),
            srqn,
        );
        for _ in 0..3 {
            x.d.device.run_slice(&x.d.ram, x.d.now);
        }
        x.d.must(&DestroySrq {
            id: srqn.into(),
            ..Default::default()
        });
        if again {
            let mut request = srq_request(&mut x.d, x.srq_cq.cqn, 3);
            request.srqn = srqn.into();
            x.d.must(&request);
        }
        assert_eq!(x.d.drain(&mut x.cq), [(1, WcStatus::RemInvReqErr)]);
        let event = (EventType::QpReqErr, Syndrome::XrcSrq.to_raw().into());
        let told = x.told();
        assert!(told.contains(&event), "{told:?}");
        assert_eq!(
            x.d.drain(&mut x.srq_cq),
            [],
            "the receive of the destroyed SRQ does not complete"
        );
        assert_eq!(x.state(x.tgt.qpn), QpState::Err.to_raw());
    }
}

#[test]
fn an_overflow_of_the_srqs_cq_moves_the_target_to_err() {
    let mut x = Xrc::new();
    let srqn = x.srq.srqn;
    // The CQ has 16 entries, of which none is polled.
    for id in 0..20 {
        x.d.post_srq(&mut x.srq, id, &[]);
    }
    for id in 0..17 {
        x.post(&SendWr::new(WqeOpcode::Send, id, &[]), srqn);
        x.d.run();
    }
    x.post(&SendWr::new(WqeOpcode::Send, 17, &[]), srqn);
    let done = x.d.drain(&mut x.cq);
    assert_eq!(done[17], (17, WcStatus::RemOpErr), "{done:?}");
    assert_eq!(x.state(x.tgt.qpn), QpState::Err.to_raw());
    let told: Vec<_> = x.told().iter().map(|(kind, _)| *kind).collect();
    assert!(
        told.contains(&EventType::CqErr) && told.contains(&EventType::QpFatal),
        "{told:?}"
    );
    // No further SRQ can use this CQ.
    let request = srq_request(&mut x.d, x.srq_cq.cqn, 3);
    assert_eq!(x.d.cmd(&request).unwrap_err().syndrome, Syndrome::CqDied);
}

#[test]
fn a_message_fails_if_the_srqs_cq_overflows_meanwhile() {
    let mut x = Xrc::new();
    let length: u32 = 4 << 20;
    let (src, key) = x.d.region(length, 1);
    let (dst, there) = x.theirs(length);
    x.d.post_srq(&mut x.srq, 9, &[(dst, length, there)]);
    let request = ini_request(&mut x.d, &x.srq_cq);
    let mut other = x.d.create_qp_by(&request).unwrap();
    x.d.to_init(other.qpn).unwrap();
    x.d.move_to(other.qpn, QpState::Err).unwrap();
    let flushed = SendWr::new(WqeOpcode::Send, 0, &[]);
    x.d.post_send(&mut other, &flushed);
    x.d.run();
    let srqn = x.srq.srqn;
    let send = SendWr::new(WqeOpcode::Send, 1, &[(src, length, key)]);
    x.post(&send, srqn);
    for _ in 0..3 {
        x.d.device.run_slice(&x.d.ram, x.d.now);
    }
    // During the message the CQ overflows, because another queue pair flushes requests into it.
    for _ in 0..16 {
        x.d.post_send(&mut other, &flushed);
    }
    assert_eq!(x.d.drain(&mut x.cq), [(1, WcStatus::RemOpErr)]);
    assert_eq!(x.state(x.tgt.qpn), QpState::Err.to_raw());
    let told = x.told();
    let fatal = (EventType::QpFatal, Syndrome::CqDied.to_raw().into());
    assert!(told.contains(&fatal), "{told:?}");
}

#[test]
fn a_cq_is_busy_while_an_srq_uses_it() {
    let mut x = Xrc::new();
    let cqn = x.srq_cq.cqn;
    let destroy = DestroyCq {
        id: cqn.into(),
        ..Default::default()
    };
    assert_eq!(x.d.cmd(&destroy).unwrap_err().status, CmdStatus::Busy);
    x.d.must(&DestroySrq {
        id: x.srq.srqn.into(),
        ..Default::default()
    });
    x.d.must(&destroy);
    // An initiator uses one CQ, and a target uses none.
    for qpn in [x.ini.qpn, x.tgt.qpn] {
        x.d.must(&DestroyQp {
            id: qpn.into(),
            ..Default::default()
        });
    }
    x.d.must(&DestroyCq {
        id: x.cq.cqn.into(),
        ..Default::default()
    });
}

#[test]
fn invalid_xrc_objects_are_refused() {
    let mut d = Driver::new();
    let cq = d.create_cq(6);
    let srq = d.create_srq();
    let attribute = (CmdStatus::Invalid, Syndrome::CmdAttribute);
    macro_rules! refused {
        ($type:ty, $good:expr, $($change:expr),* $(,)?) => {{
            let good = $good;
            $(
                let mut request = good;
                let change: fn(&mut $type, &CqHandle, &SrqHandle) = $change;
                change(&mut request, &cq, &srq);
                let e = d.cmd(&request).unwrap_err();
                assert_eq!((e.status, e.syndrome), attribute, "{request:?}");
            )*
            d.must(&good);
        }};
    }
    refused!(
        CreateQp,
        tgt_request(&mut d, 1),
        |r, _, _| r.xrcdn = 0.into(),
        |r, cq, _| r.send_cqn = cq.cqn.into(),
        |r, cq, _| r.recv_cqn = cq.cqn.into(),
        |r, _, srq| r.srqn = srq.srqn.into(),
        |r, _, _| r.pdn = 7.into(),
        |r, _, _| r.flags = QP_HAS_SRQ,
        |r, _, _| r.flags = QP_SIGNAL_ALL,
        |r, _, _| r.log_sq_size = 1,
        |r, _, _| r.max_send_sge = 1,
        |r, _, _| r.max_inline = 1.into(),
        |r, _, _| r.log_rq_size = 1,
        |r, _, _| r.max_recv_sge = 1,
    );
    refused!(
        CreateQp,
        ini_request(&mut d, &cq),
        |r, _, _| r.xrcdn = 1.into(),
        |r, cq, _| r.recv_cqn = cq.cqn.into(),
        |r, _, srq| r.srqn = srq.srqn.into(),
        |r, _, _| r.flags = QP_HAS_SRQ,
        |r, _, _| r.log_rq_size = 1,
        |r, _, _| r.max_recv_sge = 1,
    );
    refused!(
        CreateSrq,
        srq_request(&mut d, cq.cqn, 1),
        |r, _, _| r.xrcdn = 0.into(),
        |r, _, _| r.srq_type = 0,
    );
    let mut request = srq_request(&mut d, 9999, 1);
    assert_eq!(d.cmd(&request).unwrap_err().status, CmdStatus::NotFound);
    (request.cqn, request.srq_type) = (cq.cqn.into(), 2);
    assert_eq!(d.cmd(&request).unwrap_err().status, CmdStatus::Unsupported);
}

#[test]
fn each_side_takes_exactly_its_own_attributes() {
    let mut x = Xrc::new();
    let (ini, tgt) = (x.ini.qpn, x.tgt.qpn);
    for (me, peer, is_target) in [(ini, tgt, false), (tgt, ini, true)] {
        x.d.move_to(me, QpState::Reset).unwrap();
        let e = connect(&mut x.d, me, peer, (0, 1), !is_target).unwrap_err();
        assert_eq!(e.syndrome, Syndrome::CmdAttribute);
        x.d.move_to(me, QpState::Reset).unwrap();
        connect(&mut x.d, me, peer, (0, 1), is_target).unwrap();
        // The program can move neither side to SQE.
        let e = x.d.move_to(me, QpState::Sqe).unwrap_err();
        assert_eq!(e.syndrome, Syndrome::CmdTransition);
        x.d.move_to(me, QpState::Sqd).unwrap();
    }
}

#[test]
fn a_target_ignores_posts_because_it_has_no_send_queue() {
    let mut x = Xrc::new();
    doorbell::post_send(&x.d.words(), x.tgt.slot.into(), 1 << 20, || {});
    x.d.device.ring(0);
    x.d.run();
    assert_eq!(x.state(x.tgt.qpn), QpState::Rts.to_raw());
    x.d.move_to(x.tgt.qpn, QpState::Err).unwrap();
    x.d.run();
    assert_eq!(x.state(x.tgt.qpn), QpState::Err.to_raw());
    assert_eq!(x.d.drain(&mut x.cq), []);
}

/// Packets go by reference, through frames, and through frames of which 5% are lost. A
/// retransmitted request is executed once.
#[test]
fn requests_to_two_srqs_in_turn_arrive_once_and_in_order() {
    const LENGTH: u32 = 5000;
    for (wire_local, drop_percent) in [(false, 0), (true, 0), (true, 5)] {
        let mut x = Xrc::with(Config {
            wire_local,
            drop_percent,
            ..Config::default()
        });
        let cq = x.d.create_cq(4);
        let srq = create_srq(&mut x.d, cq.cqn, 3);
        let (src, key) = x.d.region(LENGTH, 1);
        let (dst, there) = x.theirs(LENGTH);
        let (word, word_key) = x.theirs(8);
        let (back, back_key) = x.d.region(8, 2);
        let mut queues = [(&mut x.srq_cq, &mut x.srq), (&mut { cq }, &mut { srq })];
        for round in 0..24u64 {
            let (cq, srq) = &mut queues[(round % 3 == 1) as usize];
            let length = round as u32 * 997 % LENGTH;
            let value = (round + 1).to_le_bytes();
            x.d.ram.write(dst, &[0; LENGTH as usize]).unwrap();
            x.d.post_srq(srq, round, &[(dst, LENGTH, there)]);
            let mut write = SendWr::new(WqeOpcode::AtomicWrite, 1, &[]).to(word, word_key);
            write.inline = value.to_vec();
            let send = SendWr::new(WqeOpcode::Send, 2, &[(src, length, key)]);
            let read = SendWr::new(WqeOpcode::RdmaRead, 3, &[(back, 8, back_key)]);
            for wr in [write, send, read.to(word, word_key)] {
                x.d.post_raw(&mut x.ini, &to_srq(&wr, srq.srqn));
            }
            x.d.pass(2_000_000_000);
            let done = x.d.drain(&mut x.cq);
            let expected = [1, 2, 3].map(|id| (id, WcStatus::Success));
            assert_eq!(done, expected, "{drop_percent} {round}");
            let done = x.d.poll(cq).unwrap().cqe;
            assert_eq!((done.wr_id.get(), done.srqn.get()), (round, srq.srqn));
            assert_eq!(done.byte_len.get(), length);
            let length = length as usize;
            assert_eq!(x.d.bytes(dst, length), x.d.bytes(src, length));
            assert_eq!(x.d.bytes(back, 8), value);
            for (cq, _) in &mut queues {
                assert_eq!(x.d.drain(cq), [], "{drop_percent} {round}");
            }
        }
    }
}
