// SPDX-License-Identifier: GPL-2.0 OR MIT

//! End-to-end credits: the number of posted receives that the device reports to the transport.

use super::Pair;
use crate::mock::{Driver, SendWr};
use crate::Config;
use verbena_abi::ctx::QpState;
use verbena_abi::doorbell::{self, Words};
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
