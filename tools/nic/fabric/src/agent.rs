// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The management agents of a node: their answers to a datagram, without its forwarding in the
//! subnet. `smi.rs` has the rules of directed routes, `sma.rs` the subnet management agent, `pma.rs`
//! the performance management agent.

pub mod m_key;
pub mod pma;
pub mod sma;
pub mod smi;
