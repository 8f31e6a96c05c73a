// SPDX-License-Identifier: GPL-2.0

//! Safe abstractions over the kernel's RDMA core, for drivers of RDMA devices.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)
//!
//! This crate and the crate [`base`] contain all `unsafe` code of the module, and no code for a
//! particular device. This crate is laid out like a future `rust/kernel/rdma/`, with one file for
//! each verbs object. [`base`] contains what is not about RDMA: DMA memory, interrupts, locks,
//! tables.
//!
//! # How a driver uses it
//!
//! A driver has one type `D` that implements [`Operations`](device::Operations) and names one data
//! type for each object: `D::Cq`, `D::Qp`, ... Each of those implements the trait of its object
//! ([`CompletionQueue`](cq::CompletionQueue), [`QueuePair`](qp::QueuePair), ...). The core
//! allocates the object, which begins with the C struct, and this crate initializes the driver's
//! data after that: `Cq<D>` is the `ib_cq` and a `D::Cq`.
//!
//! Every object goes through the same steps, in process context unless stated otherwise:
//!
//! 1. `create(...)` returns an initializer of the data. No other code can see the object yet.
//! 2. `start(&object, ...)` makes the object known to the device (its CREATE command), to the
//!    interrupt handlers ([`Table::insert`](base::table::Table::insert)), and to user space (the
//!    response). If this fails, the data is dropped at once, so `start` must first undo its steps.
//! 3. The verbs get a shared reference, and run concurrently, so data that changes needs a lock.
//! 4. `destroy(&object)` destroys the object. On success the object is fenced (there are no
//!    [`Ref`](base::table::Ref)s to it any more) and the data is dropped. On failure the object
//!    lives on. Objects of kernel users are the exception: they are fenced, and their data is
//!    leaked.
//!
//! `poll_cq`, `req_notify_cq`, `post_send`, `post_recv`, `post_srq_recv` and the verbs of address
//! handles are called in any context: they must use [`IrqLock`](base::sync::IrqLock) and must not
//! sleep. For objects of user space this crate refuses the first five, because a process accesses
//! its rings without the kernel.
//!
//! # Examples
//!
//! This example has the protection domains of a driver whose device identifies them by a number:
//!
//! ```
//! use base::errno::eopnotsupp;
//! use kernel::sync::Arc;
//! use rdma::{
//!     device::{
//!         Device,
//!         Operations, //
//!     },
//!     pd::{
//!         Pd,
//!         ProtectionDomain, //
//!     },
//!     udata::Caller, //
//! };
//!
//! # struct Hw;
//! # impl Hw {
//! #     fn alloc_pdn(&self) -> Result<u32> {
//! #         Err(eopnotsupp())
//! #     }
//! #     fn free_pdn(&self, _pdn: u32) {}
//! # }
//! /// A driver whose data of the device refers to the hardware.
//! trait HasHw {
//!     fn hw(&self) -> &Arc<Hw>;
//! }
//!
//! # #[derive(zerocopy_derive::IntoBytes, zerocopy_derive::Immutable)]
//! #[repr(C)]
//! struct AllocPdResp {
//!     pdn: u32,
//! }
//!
//! struct PdData {
//!     hw: Arc<Hw>,
//!     pdn: u32,
//! }
//!
//! impl<D: Operations + HasHw> ProtectionDomain<D> for PdData {
//!     fn create(dev: &Device<D>, caller: &Caller<'_, D>) -> impl PinInit<Self, Error> {
//!         let create = || {
//!             let hw = dev.hw().clone();
//!             let pdn = hw.alloc_pdn()?;
//!             let this = Self { hw, pdn };
//!             if let Some(user) = caller.user() {
//!                 user.udata().respond(&AllocPdResp { pdn })?;
//!             }
//!             Ok(this)
//!         };
//!         create()
//!     }
//!
//!     fn destroy(_pd: &Pd<D>) -> Result {
//!         Ok(())
//!     }
//! }
//!
//! impl Drop for PdData {
//!     fn drop(&mut self) {
//!         self.hw.free_pdn(self.pdn);
//!     }
//! }
//! ```
//!
//! # Guarantees
//!
//! - Data shared with a device or a process is accessed only through typed accessors
//!   ([`base::dma::Chunk`]). There is never a reference to it.
//! - User memory is copied once ([`udata::Udata`]). Mapped memory outlives every mapping of it
//!   ([`mmap::Entry`]).
//! - An event or completion handler never gets a destroyed object ([`base::table::Table`]), and
//!   neither does the work that it queues ([`cq`]). The owner of an object gets no event before it
//!   gets the object ([`object::Managed::is_known`]).
//! - Leaked objects are counted ([`base::count`]).

#![warn(clippy::multiple_unsafe_ops_per_block)]

pub mod ah;
pub mod attr;
mod bindings;
mod compat;
pub mod cq;
pub mod device;
pub mod enums;
mod field;
pub mod gid;
pub mod infiniband;
pub mod mad;
pub mod mmap;
pub mod mr;
pub mod mw;
mod object;
mod ops;
pub mod pd;
pub mod qp;
pub mod qp_attr;
pub mod restrack;
pub mod srq;
pub mod stats;
pub mod trace;
pub mod ucontext;
pub mod udata;
pub mod umem;
pub mod wc;
pub mod wr;
pub mod xrcd;

/// Prefix of the messages that this crate prints.
const __LOG_PREFIX: &[u8] = b"rdma\0";

/// Stands for an object that a driver does not support, whose ops are `NULL`.
pub struct Unsupported;
