// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The private ABI of libibverbs that this library is built for: 34, which rdma-core v34 to v56 have (Debian 13: 56.1).
//!
//! Another private ABI is another generated file (`scripts/provider-bindings`), named here, and a library linked against
//! that libibverbs: its symbols have the private ABI's number as their version. From 34 to 65 the calls of
//! `ibv_cmd_get_context`, `ibv_cmd_create_cq_ex` and `ibv_cmd_create_qp_ex2` get one argument more; all else that is used
//! here stays as it is.

#[cfg(not(test))]
pub use super::v34::verbs_register_driver_34 as verbs_register_driver;
pub use super::v34::*;
