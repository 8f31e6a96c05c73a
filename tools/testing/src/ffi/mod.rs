// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The wall between the tests and C: every `unsafe` of this crate is in this folder.
//!
//! | file | wraps |
//! | --- | --- |
//! | `bindings.rs` | the public ABI of libibverbs, by hand, with size assertions |
//! | `sys.rs` | memory that a device may write, `poll(2)`, `kill(2)`, mappings of the device file |
//! | `context.rs` | device, context, protection domain, asynchronous events, port and GID queries |
//! | `mr.rs` | memory regions |
//! | `cq.rs` | completion channels and queues |
//! | `qp.rs` | queue pairs, shared receive queues, address handles, work requests |
//! | `destroy.rs` | destroying any of them, with the result |
//!
//! Objects hold a reference to what they were made from, so they are destroyed in the only order
//! that verbs allow; a destroy that fails in `Drop` is counted ([`sys::drop_failures`]) and fails
//! the test that caused it.
mod bindings;
pub mod context;
pub mod cq;
pub mod destroy;
pub mod mr;
pub mod qp;
pub mod sys;

pub use bindings::{
    ibv_ah_attr as AhAttr, ibv_device_attr as DeviceAttr, ibv_gid as Gid,
    ibv_gid_entry as GidEntry, ibv_global_route as GlobalRoute, ibv_port_attr as PortAttr,
    ibv_qp_attr as QpAttr, ibv_qp_cap as QpCap, ibv_sge as Sge, ibv_srq_attr as SrqAttr,
    ibv_wc as Wc,
};
