// SPDX-License-Identifier: GPL-2.0 OR MIT
//! All tests, grouped by rule.
use crate::peer::Role;
use crate::Test;

mod again;
mod announcements;
mod arm;
mod atomics;
mod bits;
mod chains;
mod changes;
mod clock;
mod completions;
mod counters;
mod domains;
mod events;
mod exact;
mod faults;
mod immediate;
mod library;
mod limits;
mod live_link;
mod multicast;
mod objects;
mod operations;
mod performance;
mod placement;
mod port;
mod processes;
mod recovery;
mod regions;
mod shares;
mod srq;
mod states;
mod statuses;
mod stress;
mod trace;
mod unchanged;
mod unreliable;
mod windows;
mod xrc;

pub use events::checked_exchange;

static GROUPS: &[&[Test]] = &[
    completions::TESTS,
    crate::order::TESTS,
    arm::TESTS,
    immediate::TESTS,
    statuses::TESTS,
    events::TESTS,
    recovery::TESTS,
    states::TESTS,
    operations::TESTS,
    placement::TESTS,
    processes::TESTS,
    objects::TESTS,
    limits::TESTS,
    shares::TESTS,
    changes::TESTS,
    chains::TESTS,
    bits::TESTS,
    exact::TESTS,
    unchanged::TESTS,
    again::TESTS,
    live_link::TESTS,
    srq::TESTS,
    windows::TESTS,
    xrc::TESTS,
    clock::TESTS,
    counters::TESTS,
    performance::TESTS,
    multicast::TESTS,
    domains::TESTS,
    trace::TESTS,
    library::TESTS,
    faults::TESTS,
    port::TESTS,
    unreliable::TESTS,
    announcements::TESTS,
    atomics::TESTS,
    regions::TESTS,
    stress::TESTS,
];

/// The roles of this program as the second process of a test.
pub static ROLES: &[&[Role]] = &[processes::ROLES, limits::ROLES, shares::ROLES];

pub fn all() -> impl Iterator<Item = &'static Test> {
    GROUPS.iter().flat_map(|g| g.iter())
}
