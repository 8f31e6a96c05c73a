// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Commands of completion queues and event queues.

use super::*;

#[test]
fn completion_queues() {
    let mut d = Driver::new();
    let caps = d.must(&QueryDevice::default());
    let old = d.create_cq(4);
    let (first, last) = (BASE, end(&d));
    let ring = d.alloc(u64::from(caps.max_cqe.get()) * 64);
    area(&mut d, 3);
    let good = CreateCq {
        cqn: 500.into(),
        eqn: 1.into(),
        uar: 3.into(),
        slot: 127.into(),
        log_size: 18,
        ring: flat(ring),
        ..Default::default()
    };
    assert_eq!(caps.max_cqe.get(), 1 << 18);
    tries! { d, good,
        |r| r.cqn = caps.max_cq => NUMBER;
        |r| r.cqn = u32::MAX.into() => NUMBER;
        |r| r.cqn = (caps.max_cq.get() - 1).into() => TABLE_SLOT;
        |r| r.cqn = old.cqn.into() => IN_USE;
        |r| r.log_size = 19 => SIZE;
        |r| r.log_size = 255 => SIZE;
        |r| r.eqn = 2.into() => NO_OBJECT;
        |r| r.eqn = caps.max_eq => NO_OBJECT;
        |r| r.uar = 4.into() => NO_OBJECT;
        |r| r.slot = 128.into() => IN_USE;
        |r| (r.uar, r.slot) = (0.into(), old.slot.into()) => IN_USE;
        |r| r.ring.addr = (ring + 32).into() => TRANSLATION;
        |r| r.ring.addr = (first - 64).into() => UNREACHABLE;
        |r| r.ring.addr = (last - (64 << 18) + 64).into() => UNREACHABLE;
        |r| r.ring.num_pages = 2.into() => TRANSLATION;
    }
    // None of the failed commands has taken the slot, or made the area or the event queue busy.
    assert_eq!(destroy_uar(&mut d, 3), OK);
    area(&mut d, 3);
    tries! { d, good, |_r| {} => OK; }
    assert_eq!(destroy_uar(&mut d, 3), BUSY);
    assert_eq!(destroy_cq(&mut d, 501), NO_OBJECT);
    assert_eq!(destroy_cq(&mut d, old.cqn), OK);
    assert_eq!(destroy_eq(&mut d, 1), BUSY);
    assert_eq!(destroy_cq(&mut d, 500), OK);
    assert_eq!(destroy_uar(&mut d, 3), OK);
    assert_eq!(destroy_eq(&mut d, 1), OK);
    let resize = ResizeCq {
        cqn: 500.into(),
        log_size: 4,
        ring: flat(ring),
        ..Default::default()
    };
    d.create_eq(1).unwrap();
    tries! { d, resize, |_r| {} => NO_OBJECT; }
    assert_eq!(
        id(
            &mut d,
            QueryCq {
                id: 500.into(),
                ..Default::default()
            }
        ),
        NO_OBJECT
    );
    assert_eq!(
        id(
            &mut d,
            ModifyCq {
                cqn: 500.into(),
                ..Default::default()
            }
        ),
        NO_OBJECT
    );
    let cq = d.create_cq(4);
    let resize = ResizeCq {
        cqn: cq.cqn.into(),
        log_size: 17,
        ..resize
    };
    tries! { d, resize,
        |r| r.log_size = 19 => SIZE;
        |r| r.ring.addr = (ring + 8).into() => TRANSLATION;
        |r| r.ring.addr = last.into() => UNREACHABLE;
        |_r| {} => OK;
    }
}

#[test]
fn event_queues() {
    let mut d = Driver::new();
    let caps = d.must(&QueryDevice::default());
    assert_eq!(caps.max_eqe.get(), 1 << 17);
    let last = end(&d);
    let good = CreateEq {
        eqn: (caps.max_eq.get() - 1).into(),
        vector: (NUM_VECTORS as u16 - 1).into(),
        log_size: 17,
        log_entry_size: 4,
        ring: flat(d.alloc(16 << 17)),
        ci_addr: (last - 4).into(),
        ..Default::default()
    };
    tries! { d, good,
        |r| r.eqn = caps.max_eq => NUMBER;
        |r| r.vector = (NUM_VECTORS as u16).into() => NUMBER;
        |r| r.eqn = 1.into() => IN_USE;
        |r| r.eqn = 0.into() => IN_USE;
        |r| r.kind = 1 => UNSUPPORTED;
        |r| r.log_entry_size = 5 => SIZE;
        |r| r.log_size = 0 => SIZE;
        |r| r.log_size = 19 => SIZE;
        |r| r.log_size = 255 => SIZE;
        |r| r.ci_addr = (last - 6).into() => TRANSLATION;
        |r| r.ci_addr = last.into() => UNREACHABLE;
        |r| r.ring.addr = last.into() => UNREACHABLE;
        |_r| {} => OK;
        |_r| {} => IN_USE;
    }
    let most = caps.max_eq.get() - 1;
    assert_eq!(destroy_eq(&mut d, 5), NO_OBJECT);
    // EQ 0 is destroyed last, after all objects whose events it may have to report.
    assert_eq!(destroy_eq(&mut d, 0), BUSY);
    assert_eq!(destroy_eq(&mut d, most), OK);
    let srq = d.create_srq();
    assert_eq!(destroy_eq(&mut d, 1), OK);
    assert_eq!(destroy_eq(&mut d, 0), BUSY);
    assert_eq!(destroy_srq(&mut d, srq.srqn), OK);
    assert_eq!(destroy_eq(&mut d, 0), OK);
    tries! { d, good, |_r| {} => NO_OBJECT; }
    d.create_eq(0).unwrap();
    tries! { d, good, |_r| {} => OK; }
}

#[test]
fn an_event_queue_waits_for_its_completion_queues() {
    let mut d = Driver::new();
    d.create_eq(2).unwrap();
    let ring = d.alloc(4096);
    let request = CreateCq {
        cqn: 50.into(),
        eqn: 2.into(),
        slot: 9.into(),
        log_size: 4,
        ring: flat(ring),
        ..Default::default()
    };
    d.must(&request);
    assert_eq!(destroy_eq(&mut d, 2), BUSY);
    d.must(&CreateCq {
        cqn: 51.into(),
        slot: 10.into(),
        ..request
    });
    assert_eq!(destroy_cq(&mut d, 50), OK);
    assert_eq!(destroy_eq(&mut d, 2), BUSY);
    assert_eq!(destroy_cq(&mut d, 51), OK);
    assert_eq!(destroy_eq(&mut d, 2), OK);
    // If EQ 0 also has CQs, it is busy for both reasons.
    d.must(&CreateCq {
        eqn: 0.into(),
        ..request
    });
    assert_eq!(destroy_eq(&mut d, 1), OK);
    assert_eq!(destroy_eq(&mut d, 0), BUSY);
    assert_eq!(destroy_cq(&mut d, 50), OK);
    assert_eq!(destroy_eq(&mut d, 0), OK);
}
