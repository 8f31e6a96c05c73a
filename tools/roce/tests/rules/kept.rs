// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a responder keeps behind a gap, with peers that send all again from the gap on, and with odd ones.

use super::answered::{ack, numbers, requester};
use verbena_roce_lab::{Post, Setup, Side::*};

#[test]
fn the_second_acknowledgement_of_the_end_of_a_message_is_no_answer_to_the_first_copy() {
    let mut p = requester(Setup::default());
    let (src, dst) = (p.zeros(A, 8), p.zeros(B, 8));
    for n in 0..8 {
        p.post(A, Post::write(n, &[src.sge()], dst));
    }
    assert_eq!(numbers(&mut p).len(), 8);
    p.run_until(100_000);
    assert_eq!(numbers(&mut p), [0], "a probe");
    // All was lost but the first, of which the acknowledgement was lost.
    ack(&mut p, 0);
    ack(&mut p, 0);
    assert_eq!(numbers(&mut p), [1, 2]);
}
