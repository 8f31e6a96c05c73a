// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The flows, by name. Each flow does its work on a device of its own and returns true if all of
//! the work is done. A flow that is not allowed to recover continues without any recovery.
mod cq_overflow;
mod device_fatal;
mod peer_dies;
mod sqe;
mod srq_error;

use crate::verbs::Result;

type Flow = fn(bool) -> Result<bool>;

pub const ALL: [(&str, Flow); 5] = [
    ("peer-dies", peer_dies::run),
    ("sqe", sqe::run),
    ("cq-overflow", cq_overflow::run),
    ("srq-error", srq_error::run),
    ("device-fatal", device_fatal::run),
];
