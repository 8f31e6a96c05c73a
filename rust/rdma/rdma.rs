// SPDX-License-Identifier: GPL-2.0

//! Safe abstractions over the kernel's RDMA core, for drivers of RDMA devices.
//!
//! This crate holds all `unsafe` code of the module. It knows nothing of one particular device;
//! its shape is that of a future `rust/kernel/rdma/`: one file per object of the verbs.
//!
//! # How a driver uses it
//!
//! A driver has one type `D` that implements [`Operations`](device::Operations) and names one data
//! type for each object: `D::Cq`, `D::Qp`, ... Each of those implements the trait of its object
//! ([`CompletionQueue`](cq::CompletionQueue), [`QueuePair`](qp::QueuePair), ...). The core allocates
//! the object, C struct first, and this crate builds the driver's data behind it: `Cq<D>` is the
//! `ib_cq` and a `D::Cq`.
//!
//! Every object lives through the same steps, all called in process context unless said:
//!
//! 1. `create(...)` returns an initializer of the data. Nobody else can see the object yet.
//! 2. `start(&object, ...)` makes the object known: to the device (its CREATE command), to the
//!    interrupt handlers ([`Table::insert`](base::table::Table::insert)), to user space (the response).
//!    If it fails the data is dropped at once, so it must undo what it made known.
//! 3. The verbs, by shared reference and concurrently: what changes needs a lock.
//! 4. `destroy(&object)`. On success the object is fenced (nobody holds a
//!    [`Ref`](base::table::Ref) to it any more) and the data dropped; on failure it lives on, but for
//!    objects of the kernel's, which are fenced and leak what they have.
//!
//! `poll_cq`, `req_notify_cq`, `post_send`, `post_recv`, `post_srq_recv` and the address handle
//! verbs are called in any context: use [`IrqLock`](base::sync::IrqLock), never sleep. For objects of
//! user space the first five are refused here: a process reaches its rings by itself.
//!
//! # Examples
//!
//! The protection domains of a driver whose device knows them by a number:
//!
//! ```ignore
//! struct PdData {
//!     hw: Arc<Hw>,
//!     pdn: u32,
//! }
//!
//! impl ProtectionDomain<Driver> for PdData {
//!     fn create(dev: &Device<Driver>, caller: &Caller<'_, Driver>) -> impl PinInit<Self, Error> {
//!         let create = || {
//!             let hw = dev.hw.clone();
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
//!     fn destroy(_pd: &Pd<Driver>) -> Result {
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
//! # What it guarantees
//!
//! - Data shared with a device or a process is reached through typed accessors only
//!   ([`base::dma::Chunk`]); no reference to it ever exists.
//! - User memory is copied once ([`udata::Udata`]); mapped memory outlives every mapping of it
//!   ([`mmap::Entry`]).
//! - An event or completion handler never meets a destroyed object ([`base::table::Table`]), nor does the work
//!   that it queues ([`cq`]), nor the owner of one an event before it is there ([`object::Managed::is_known`]).
//! - What leaks is counted ([`base::count`]).

pub mod ah;
pub mod attr;
pub mod base;
mod bindings;
pub mod cq;
pub mod device;
pub mod enums;
pub mod gid;
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

/// Prefix of messages printed by this crate.
const __LOG_PREFIX: &[u8] = b"rdma\0";

/// Stands for an object that a driver does not support: its operations stay `NULL`.
pub struct Unsupported;
