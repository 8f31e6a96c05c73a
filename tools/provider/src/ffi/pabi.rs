// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The private ABI of libibverbs that this library is built for: 34, as in rdma-core v45 to v56
//! (Debian 13: 56.1).
//!
//! The number is that of the last release that broke the private ABI on purpose. Within a number
//! the table of operations grows, in alphabetical order, and `struct verbs_qp` grew twice. A
//! library therefore fits the releases that have the layouts from which it was generated:
//!
//! | private ABI | rdma-core | operations | offset of `comp_mask` in `struct verbs_qp` |
//! | --- | --- | --- | --- |
//! | 34 | v34, v35 | 73, 75 | 344 |
//! | 34 | v36 to v43 | 76 | 344 |
//! | 34 | v44 | 76 | 352 |
//! | **34** | **v45 to v56** | **76** | **360** |
//! | 57 | v57, v58 | 76 | 360 |
//! | 59 | v59 to v61 | 79 | 360 |
//! | 59 | v62, v63 | 81 | 360 |
//! | 64 | v64 | 83 | 360 |
//! | 65 | v65 | 93 | 360 |
//!
//! With the older layouts of 34 this library loads, but does not open a device: [`crate::release`]
//! describes the reason. libibverbs with another number does not load this library at all.
//!
//! Another private ABI needs another generated file (`scripts/provider-bindings`), named here, and
//! a library that is linked against that libibverbs: its symbols have the number of the private ABI
//! as their version. From 34 to 65 the calls of `ibv_cmd_get_context`, `ibv_cmd_create_cq_ex` and
//! `ibv_cmd_create_qp_ex2` get one more argument. All other items that are used here stay as they
//! are, though structures have other sizes.

#[cfg(not(test))]
pub use super::v34::verbs_register_driver_34 as verbs_register_driver;
pub use super::v34::*;

// A file that is generated from another layout of private ABI 34 fails here: see the table above.
const _: () = assert!(size_of::<verbs_context_ops>() == 76 * size_of::<usize>());
const _: () = assert!(core::mem::offset_of!(verbs_qp, comp_mask) == 360);
