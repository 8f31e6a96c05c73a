// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The rules of the device, each a small test by the fake driver.

mod cqs;
mod data;
mod errors;

use crate::mock::{CqHandle, Driver, QpHandle};

/// Two connected queue pairs, each with a CQ for both its queues.
struct Pair {
    d: Driver,
    a: QpHandle,
    b: QpHandle,
    cq_a: CqHandle,
    cq_b: CqHandle,
}

impl Pair {
    fn new() -> Self {
        Self::on(Driver::new())
    }

    fn on(mut d: Driver) -> Self {
        let (cq_a, cq_b) = (d.create_cq(6), d.create_cq(6));
        let a = d.create_qp(&cq_a, &cq_a);
        let b = d.create_qp(&cq_b, &cq_b);
        d.connect(&a, &b);
        Self {
            d,
            a,
            b,
            cq_a,
            cq_b,
        }
    }
}
