// SPDX-License-Identifier: GPL-2.0 OR MIT
//! All tests, grouped by rule.
use crate::peer::PeerRole;
use crate::GuestTest;

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
mod failed_verbs;
mod faults;
mod immediate;
mod library;
mod limits;
mod live_link;
mod multicast;
mod non_error_events;
mod objects;
mod operations;
mod performance;
mod placement;
mod port;
mod processes;
mod recovery;
mod regions;
mod second_fault;
mod shares;
mod srq;
mod states;
mod statuses;
mod stress;
mod trace;
mod unreliable;
mod windows;
mod xrc;

pub use events::checked_exchange;

static GROUPS: &[&[GuestTest]] = &[
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
    failed_verbs::TESTS,
    second_fault::TESTS,
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
    non_error_events::TESTS,
    atomics::TESTS,
    regions::TESTS,
    stress::TESTS,
];

/// The roles of this program as the second process of a test.
pub static ROLES: &[&[PeerRole]] = &[processes::ROLES, limits::ROLES, shares::ROLES];

pub fn all() -> impl Iterator<Item = &'static GuestTest> {
    GROUPS.iter().flat_map(|g| g.iter())
}
