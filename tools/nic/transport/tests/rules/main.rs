// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of the rules of queue pairs; each name states a rule. Most tests run in every mode of
//! transport.

mod answered;
mod by_hand;
mod chaos;
mod congestion;
mod counters;
mod credits;
mod duplicates;
mod errors;
mod flow;
mod forged;
mod infiniband;
mod ordering;
mod parts;
mod placement;
mod reassembly;
mod recovery;
mod remote_errors;
mod requester;
mod requester_credits;
mod responder;
mod responder_order;
mod responses;
mod retry;
mod simulation;
mod states;
mod super_packets;
mod timers;
mod unreliable;
mod unreliable_drops;
mod windows;
mod xrc;

use verbena_lab_transport::LinkMode;

const MODES: [LinkMode; 3] = [LinkMode::Local, LinkMode::Split, LinkMode::Wire];

/// Returns bytes that depend on the offset and the seed.
fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ seed)
        .collect()
}
