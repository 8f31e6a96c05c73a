// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The transport's laboratory: a virtual clock, links that misbehave as configured, and hosts over
//! plain memory that check every rule.
//!
//! The crate uses only the public interface of `verbena_transport`, as a NIC does. There are five ways
//! to run queue pairs, each with a host of its own:
//!
//! | queue pairs | where | used by |
//! | --- | --- | --- |
//! | two: [`QpPair`] with its [`MockAdapter`] and its [`LinkModel`] | `pair.rs` | `tools/nic/transport/tests`, captures |
//! | many, by seed, compared with a model: [`SimNetwork`] | `network/` | `tools/lab/sim` |
//! | many, as in a NIC: [`BenchEngine`](engine::BenchEngine) | `engine/` | benches, allocations, memory |
//! | pairs that share a link of some rate: [`flows`] | `flows.rs` | `scripts/sim --goodput` |
//! | two or four, by a fuzzer: [`fuzz`] | `fuzz/` | `scripts/fuzz`, replayed by the tests here |
//!
//! The engine and the flows exist to be measured. All the others check two rules in every run,
//! whatever is tested: each work request completes at most once and in order, and no buffer is read
//! or written for a work request that is not outstanding. They have in common the [`arena`], which
//! is memory with its regions; [`keys`], a second implementation of the checks of a key; [`tap`],
//! an observer of a link; and [`rng`], which makes each run repeatable.
//!
//! A broken rule is a panic, because this crate is for tests only and is no part of the NIC.

#![forbid(unsafe_code)]

pub mod arena;
pub mod engine;
pub mod fairness;
pub mod flows;
pub mod fuzz;
pub mod keys;
pub mod link_model;
pub mod mock_adapter;
pub mod network;
pub mod pair;
pub mod reference;
pub mod rng;
pub mod tap;

pub use arena::ArenaBuffer;
pub use link_model::{LinkMode, LinkModel};
pub use mock_adapter::{MockAdapter, PairSide, SendPost};
pub use network::SimNetwork;
pub use pair::{PairSetup, QpPair};
pub use rng::Rng;
pub use tap::FrameTap;
