// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The flows, by name. Each does its work on a device of its own and says whether all of it is done; told not to recover, it goes on
//! as if there were nothing to do.
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
