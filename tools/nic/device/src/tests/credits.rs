// SPDX-License-Identifier: GPL-2.0 OR MIT

//! End-to-end credits: the number of posted receives that the device reports to the transport.

use super::Pair;
use crate::mock::{Driver, SendWr};
use crate::Config;
use verbena_abi::cmd::{DestroyQp, QP_HAS_SRQ};
use verbena_abi::cqe::WcStatus;
use verbena_abi::ctx::{qp_mask, QpAttr, QpState};
use verbena_abi::doorbell::{self, Words};
use verbena_abi::stats::Counter;
use verbena_abi::wqe::WqeOpcode;

use verbena_transport::Host;

impl Pair {
    fn credits(&mut self) -> Option<u32> {
        let (device, ram) = (&mut self.d.device, &self.d.ram);
        let told = device.with_qp(ram, self.b.qpn, |_, host| host.recv_credits());
        told.flatten()
    }
}

#[test]
fn receives_posted_and_not_taken_are_credits() {
    let mut p = Pair::new();
    assert_eq!(p.credits(), Some(0));
    for i in 0..5 {
        p.d.post_recv(&mut p.b, i, &[]);
        assert_eq!(p.credits(), Some(1 + i as u32));
    }
    for left in (0..5).rev() {
        p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::Send, 1, &[]));
        p.d.pass(1_000_000_000);
        assert_eq!(p.credits(), Some(left));
    }
    assert_eq!(p.d.drain(&mut p.cq_b).len(), 5);
}

#[test]
fn a_producer_index_beyond_the_ring_gives_no_credits() {
    let mut p = Pair::new();
    let at = doorbell::rq_producer(p.b.slot.into());
    p.d.words().store_release(at, 17);
    assert_eq!(p.credits(), Some(0));
    p.d.words().store_release(at, 16);
    assert_eq!(p.credits(), Some(16));
}

#[test]
fn an_srq_gives_no_credits() {
    let mut p = Pair::new();
    p.share();
    assert_eq!(p.credits(), None);
}

#[test]
fn credits_can_be_switched_off() {
    for credits in [true, false] {
        let config = Config {
            credits,
            ..Config::default()
        };
        let mut p = Pair::on(Driver::with(config));
        let (device, ram) = (&mut p.d.device, &p.d.ram);
        let set = device.with_qp(ram, p.b.qpn, |transport, _| transport.config().credits);
        assert_eq!(set, Some(credits));
    }
}

#[test]
fn receives_from_before_a_reset_are_no_credits() {
    let mut p = Pair::new();
    let mut request = p.d.qp_request(&p.cq_b.clone(), &p.cq_b.clone());
    request.log_rq_size = 6;
    request.rq = crate::mock::flat(p.d.alloc(64 << 6));
    p.b = p.d.create_qp_by(&request).unwrap();
    let at = doorbell::rq_producer(p.b.slot.into());
    p.d.words().store_release(at, 50);
    assert_eq!(p.credits(), Some(50));
    p.d.move_to(p.b.qpn, QpState::Reset).unwrap();
    p.d.words().store_release(at, 0);
    assert_eq!(p.credits(), Some(0));
}

#[test]
fn with_enough_credits_the_producer_index_is_not_read_again() {
    let mut p = Pair::new();
    let mut request = p.d.qp_request(&p.cq_b.clone(), &p.cq_b.clone());
    request.log_rq_size = 6;
    request.rq = crate::mock::flat(p.d.alloc(64 << 6));
    p.b = p.d.create_qp_by(&request).unwrap();
    let at = doorbell::rq_producer(p.b.slot.into());
    for (posted, told) in [(31, 31), (32, 32), (40, 32), (64, 32)] {
        p.d.words().store_release(at, posted);
        assert_eq!(p.credits(), Some(told));
    }
}

/// Returns the number of RNR NAKs that B has sent.
fn rnr_naks(p: &mut Pair) -> u64 {
    p.counter(p.b.qpn, Counter::RnrNakSent)
}

/// Posts a send of no bytes.
fn send(p: &mut Pair, wr_id: u64) {
    p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::Send, wr_id, &[]));
    p.d.run();
}

#[test]
fn a_sender_without_credits_is_told_of_a_receive_at_once() {
    let mut p = Pair::new();
    // This sender retries for ever.
    let (a, b) = (p.a.qpn, p.b.qpn);
    p.d.move_to(a, QpState::Reset).unwrap();
    p.d.to_init(a).unwrap();
    p.d.to_rtr(a, b, Driver::path(0, 1)).unwrap();
    p.d.to_rts_with(a, 7).unwrap();
    p.d.post_recv(&mut p.b, 1, &[]);
    send(&mut p, 1);
    let watch = doorbell::recv_watch(p.b.slot.into());
    assert_eq!(p.d.words().load(watch), 1, "the peer was told 0 credits");
    let now = p.d.now;
    for wr_id in 2..50 {
        send(&mut p, wr_id);
        assert_eq!(p.d.drain(&mut p.cq_a).len(), 1, "{wr_id}");
        // The area is asleep, so that the post has to ring.
        assert!(p.d.device.fall_asleep(&p.d.ram));
        p.d.post_recv(&mut p.b, wr_id, &[]);
        p.d.run();
    }
    assert_eq!((p.d.now, rnr_naks(&mut p)), (now, 0));
    assert_eq!(p.d.drain(&mut p.cq_a), [(49, WcStatus::Success)]);
    for wr_id in 50..60 {
        p.d.post_recv(&mut p.b, wr_id, &[]);
    }
    p.d.run();
    assert_eq!(p.d.words().load(watch), 0, "the peer has credits");
}

#[test]
fn receives_end_the_wait_after_an_rnr_nak() {
    for shared in [false, true] {
        let mut p = Pair::new();
        let mut srq = p.share();
        if !shared {
            p.b = p.d.create_qp(&p.cq_b, &p.cq_b);
        }
        p.a = p.d.create_qp(&p.cq_a, &p.cq_a);
        p.d.connect(&p.a, &p.b);
        let slot = if shared { srq.slot } else { p.b.slot };
        let watch = doorbell::recv_watch(slot.into());
        assert_eq!(p.d.words().load(watch), 0);
        send(&mut p, 1);
        assert_eq!((rnr_naks(&mut p), p.d.words().load(watch)), (1, 1));
        let now = p.d.now;
        if shared {
            p.d.post_srq(&mut srq, 1, &[]);
        } else {
            p.d.post_recv(&mut p.b, 1, &[]);
        }
        p.d.run();
        assert_eq!(p.d.drain(&mut p.cq_a), [(1, WcStatus::Success)]);
        assert_eq!((rnr_naks(&mut p), p.d.now), (1, now), "{shared}");
        assert_eq!(p.d.words().load(watch), u32::from(!shared));
    }
}

#[test]
fn a_queue_without_receives_ends_the_sender_after_the_same_time() {
    // The requester retries twice, each time after 0.64 ms. The wheel of timers is a little late.
    let expected = 1_280_000..1_330_000;
    for told in [false, true] {
        let mut p = Pair::new();
        let attr = QpAttr {
            min_rnr_timer: 12,
            ..Default::default()
        };
        p.d.modify(p.b.qpn, qp_mask::MIN_RNR_TIMER, attr).unwrap();
        if told {
            p.d.post_recv(&mut p.b, 1, &[]);
            send(&mut p, 1);
            p.d.drain(&mut p.cq_a);
        }
        let began = p.d.now;
        send(&mut p, 2);
        assert_eq!(rnr_naks(&mut p), 1);
        while p.d.drain(&mut p.cq_a).is_empty() {
            p.d.pass(1_000);
        }
        assert_eq!(rnr_naks(&mut p), 3);
        let time = p.d.now - began;
        assert!(expected.contains(&time), "{told}: {time} ns");
    }
}

#[test]
fn each_receive_of_an_srq_ends_one_wait() {
    let mut p = Pair::new();
    let mut srq = p.share();
    let mut senders = Vec::new();
    for _ in 0..3 {
        let mut request = p.d.qp_request(&p.cq_b.clone(), &p.cq_b.clone());
        request.flags = QP_HAS_SRQ;
        request.srqn = srq.srqn.into();
        let receiver = p.d.create_qp_by(&request).unwrap();
        let sender = p.d.create_qp(&p.cq_a, &p.cq_a);
        p.d.connect(&sender, &receiver);
        senders.push(sender);
    }
    for (wr_id, sender) in (1..).zip(&mut senders) {
        p.d.post_send(sender, &SendWr::new(WqeOpcode::Send, wr_id, &[]));
    }
    p.d.run();
    let (now, watch) = (p.d.now, doorbell::recv_watch(srq.slot.into()));
    let mut done = Vec::new();
    for left in (0..3).rev() {
        p.d.post_srq(&mut srq, 1, &[]);
        p.d.run();
        let new = p.d.drain(&mut p.cq_a);
        assert!(new.iter().all(|(_, status)| *status == WcStatus::Success));
        done.extend(new);
        assert_eq!(done.len(), 3 - left);
        assert_eq!(p.d.words().load(watch), u32::from(left != 0));
    }
    assert_eq!(p.d.now, now);
    let mut done: Vec<_> = done.into_iter().map(|(wr_id, _)| wr_id).collect();
    done.sort();
    assert_eq!(done, [1, 2, 3]);
}

#[test]
fn a_queue_pair_that_goes_waits_no_more() {
    for destroy in [false, true] {
        let mut p = Pair::new();
        let mut srq = p.share();
        p.a = p.d.create_qp(&p.cq_a, &p.cq_a);
        p.d.connect(&p.a, &p.b);
        send(&mut p, 1);
        let watch = doorbell::recv_watch(srq.slot.into());
        assert_eq!(p.d.words().load(watch), 1);
        if destroy {
            p.d.must(&DestroyQp {
                id: p.b.qpn.into(),
                ..Default::default()
            });
        } else {
            p.d.move_to(p.b.qpn, QpState::Reset).unwrap();
        }
        assert_eq!(p.d.words().load(watch), 0);
        p.d.post_srq(&mut srq, 1, &[]);
        p.d.run();
    }
}
