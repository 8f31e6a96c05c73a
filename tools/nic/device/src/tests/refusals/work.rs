// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Commands of queue pairs and shared receive queues.

use super::*;

#[test]
fn shared_receive_queues() {
    let mut d = Driver::new();
    let caps = d.must(&QueryDevice::default());
    assert_eq!(caps.max_srq_wr.get(), 1 << 14);
    let old = d.create_srq();
    let last = end(&d);
    let ring = d.alloc(1 << 24);
    area(&mut d, 3);
    let good = CreateSrq {
        srqn: 300.into(),
        pdn: 7.into(),
        uar: 3.into(),
        slot: 127.into(),
        log_size: 14,
        log_stride: 10,
        ring: flat(ring),
        limit: (1 << 14).into(),
        ..Default::default()
    };
    tries! { d, good,
        |r| r.srqn = caps.max_srq => NUMBER;
        |r| r.srqn = (caps.max_srq.get() - 1).into() => TABLE_SLOT;
        |r| r.srqn = old.srqn.into() => IN_USE;
        |r| r.srq_type = 2 => UNSUPPORTED;
        |r| r.srq_type = 1 => ATTRIBUTE;
        |r| r.cqn = 1.into() => ATTRIBUTE;
        |r| r.xrcdn = 1.into() => ATTRIBUTE;
        |r| r.log_size = 15 => SIZE;
        |r| r.log_size = 255 => SIZE;
        |r| r.log_stride = 11 => SIZE;
        |r| (r.log_stride, r.limit) = (4, 0.into()) => SIZE;
        |r| r.limit = ((1 << 14) + 1).into() => SIZE;
        |r| r.uar = 4.into() => NO_OBJECT;
        |r| r.slot = 128.into() => IN_USE;
        |r| (r.uar, r.slot) = (0.into(), old.slot.into()) => IN_USE;
        |r| r.ring.addr = last.into() => UNREACHABLE;
    }
    assert_eq!(destroy_uar(&mut d, 3), OK);
    area(&mut d, 3);
    tries! { d, good, |_r| {} => OK; }
    assert_eq!(destroy_uar(&mut d, 3), BUSY);
    let modify = ModifySrq {
        srqn: 300.into(),
        limit: (1 << 14).into(),
        ..Default::default()
    };
    tries! { d, modify,
        |r| r.limit = ((1 << 14) + 1).into() => SIZE;
        |r| r.srqn = 301.into() => NO_OBJECT;
        |_r| {} => OK;
    }
    assert_eq!(
        id(
            &mut d,
            QuerySrq {
                id: 301.into(),
                ..Default::default()
            }
        ),
        NO_OBJECT
    );
    assert_eq!(destroy_srq(&mut d, 301), NO_OBJECT);
    assert_eq!(destroy_srq(&mut d, 300), OK);
    assert_eq!(destroy_uar(&mut d, 3), OK);
    area(&mut d, 3);
    tries! { d, good, |r| r.log_stride = 5 => OK; }
}

#[test]
fn queue_pairs() {
    let mut d = Driver::new();
    let caps = d.must(&QueryDevice::default());
    assert_eq!(
        (caps.max_qp_wr.get(), caps.max_send_sge.get()),
        (1 << 14, 32)
    );
    assert_eq!(
        (caps.max_recv_sge.get(), caps.max_inline_data.get()),
        (32, 512)
    );
    let cq = d.create_cq(4);
    let other = d.create_cq(4);
    let old = d.create_qp(&cq, &cq);
    let srq = d.create_srq();
    let last = end(&d);
    let ring = d.alloc(1 << 20);
    area(&mut d, 3);
    let mut good = d.qp_request(&cq, &other);
    good.uar = 3.into();
    good.slot = 127.into();
    good.qpn = 60.into();
    (good.log_sq_size, good.log_rq_size) = (14, 14);
    (good.log_sq_stride, good.log_rq_stride) = (6, 5);
    (good.sq, good.rq) = (flat(ring), flat(ring));
    (good.max_send_sge, good.max_recv_sge, good.max_inline) = (32, 32, 512.into());
    tries! { d, good,
        |r| r.qpn = caps.max_qp => NUMBER;
        |r| r.qpn = (caps.max_qp.get() - 1).into() => TABLE_SLOT;
        |r| r.qpn = 7.into() => NUMBER;
        |r| r.qpn = old.qpn.into() => IN_USE;
        |r| r.qp_type = 5 => UNSUPPORTED;
        |r| r.create_flags = 1.into() => UNSUPPORTED;
        |r| r.xrcdn = 1.into() => ATTRIBUTE;
        |r| r.port = 1 => NUMBER;
        |r| r.flags = 8 => ATTRIBUTE;
        |r| r.flags = 0x80 => ATTRIBUTE;
        |r| r.log_sq_size = 15 => SIZE;
        |r| r.log_sq_size = 255 => SIZE;
        |r| r.log_sq_stride = 5 => SIZE;
        |r| r.log_sq_stride = 11 => SIZE;
        |r| r.log_rq_size = 15 => SIZE;
        |r| r.log_rq_stride = 4 => SIZE;
        |r| r.log_rq_stride = 11 => SIZE;
        |r| r.max_send_sge = 33 => SIZE;
        |r| r.max_recv_sge = 33 => SIZE;
        |r| r.max_inline = 513.into() => SIZE;
        |r| r.send_cqn = 999.into() => NO_OBJECT;
        |r| r.recv_cqn = 999.into() => NO_OBJECT;
        |r| (r.flags, r.srqn) = (QP_HAS_SRQ, 999.into()) => NO_OBJECT;
        |r| r.uar = 4.into() => NO_OBJECT;
        |r| r.slot = 128.into() => IN_USE;
        |r| (r.uar, r.slot) = (0.into(), old.slot.into()) => IN_USE;
        |r| (r.uar, r.slot) = (0.into(), srq.slot.into()) => IN_USE;
        |r| r.sq.addr = last.into() => UNREACHABLE;
        |r| r.rq.addr = last.into() => UNREACHABLE;
        |r| r.rq.addr = (ring + 4).into() => TRANSLATION;
    }
    // The failed commands have taken neither the slot nor a CQ nor the SRQ.
    assert_eq!(destroy_cq(&mut d, other.cqn), OK);
    tries! { d, good, |_r| {} => NO_OBJECT; }
    good.recv_cqn = cq.cqn.into();
    assert_eq!(destroy_uar(&mut d, 3), OK);
    area(&mut d, 3);
    // With an SRQ the fields of the receive ring are ignored.
    tries! { d, good,
        |r| (r.flags, r.srqn, r.log_rq_size, r.log_rq_stride, r.rq)
            = (QP_HAS_SRQ, srq.srqn.into(), 99, 99, Translation::default()) => OK;
    }
    assert_eq!(destroy_uar(&mut d, 3), BUSY);
    assert_eq!(destroy_srq(&mut d, srq.srqn), BUSY);
    assert_eq!(destroy_qp(&mut d, 61), NO_OBJECT);
    assert_eq!(destroy_qp(&mut d, 60), OK);
    assert_eq!(destroy_srq(&mut d, srq.srqn), OK);
    tries! { d, good, |_r| {} => OK; }
    assert_eq!(destroy_cq(&mut d, cq.cqn), BUSY);
    assert_eq!(destroy_qp(&mut d, old.qpn), OK);
    assert_eq!(destroy_cq(&mut d, cq.cqn), BUSY);
    assert_eq!(destroy_qp(&mut d, 60), OK);
    assert_eq!(destroy_cq(&mut d, cq.cqn), OK);
    assert_eq!(
        id(
            &mut d,
            QueryQp {
                id: 60.into(),
                ..Default::default()
            }
        ),
        NO_OBJECT
    );
    assert_eq!(
        told(d.move_to(60, verbena_abi::ctx::QpState::Reset)),
        NO_OBJECT
    );
}

#[test]
fn a_queue_pair_without_an_srq_uses_none() {
    let mut d = Driver::new();
    let ring = d.alloc(4096);
    // A request without an SRQ has SRQN 0, which may be the number of an SRQ.
    d.must(&CreateSrq {
        slot: 100.into(),
        log_size: 4,
        log_stride: 6,
        ring: flat(ring),
        ..Default::default()
    });
    let cq = d.create_cq(4);
    let qp = d.create_qp(&cq, &cq);
    assert_eq!(destroy_srq(&mut d, 0), OK);
    assert_eq!(destroy_qp(&mut d, qp.qpn), OK);
}
