// SPDX-License-Identifier: GPL-2.0

//! Safe abstractions of the kernel that are not about RDMA.
//!
//! Drivers of any PCI device could use this crate. It contains what the `kernel` crate lacks, and
//! has the structure of a patch series to that crate: each module would be one patch, and would
//! disappear from here when the kernel has the same. The crate `rdma`, which knows the RDMA core,
//! uses this crate, and not the other way around.
//!
//! | module | what it adds to `kernel` |
//! | --- | --- |
//! | [`bind`] | a proof that a device is bound, for code that runs outside of `probe` |
//! | [`dma`] | coherent memory with bounds-checked volatile and atomic accesses |
//! | [`irq`] | all MSI-X vectors of a device, each with its own handler |
//! | [`config`] | restoring the configuration space of a device that has lost it |
//! | [`sync`] | locks that disable interrupts, completions with a timeout, barriers |
//! | [`table`] | tables from numbers to objects, with lookup in interrupt handlers |
//! | [`work`] | work items that cannot outlive their owner |
//! | [`netdev`], [`netns`] | net devices and their notifiers, network namespaces |
//! | [`share`] | limits of what each user may take of a resource |
//! | [`count`] | counts of live objects, checked when the module is unloaded |
//! | [`hibernation`], [`task`], [`errno`] | small functions of the kernel |
//! | [`compat`] | differences between kernel versions |
//!
//! # Use
//!
//! A driver implements [`bind::Driver`]. Its `probe` gets a [`bind::Binding`], from which it
//! allocates DMA memory ([`dma::Chunk::alloc`]) and interrupt vectors ([`irq::Vectors::alloc`]), at
//! any time until the device is unbound. The module's type ends with a [`count::CheckAtExit`],
//! without which there is no binding.
//!
//! # Guarantees
//!
//! - Memory that a device or a process shares is accessed only through typed accessors
//!   ([`dma::Chunk`]). There is never a reference to it.
//! - Nothing is mapped for DMA, and no vector is allocated, after the device was unbound
//!   ([`bind`]). What the driver still has then is leaked with a message.
//! - The drop of an interrupt, a work item or a notifier waits until its handler does not run
//!   ([`irq::Irq`], [`work::Work`], [`netdev::Notifier`]).
//! - A handler that finds an object in a table never gets a destroyed one ([`table::Table`]).
//! - Leaked objects are counted ([`count`]).

#![warn(clippy::multiple_unsafe_ops_per_block)]

pub mod bind;
mod bindings;
pub mod compat;
pub mod config;
pub mod count;
pub mod dma;
pub mod errno;
pub mod hibernation;
pub mod irq;
pub mod netdev;
pub mod netns;
pub mod share;
pub mod sync;
pub mod table;
pub mod task;
pub mod work;

/// Prefix of the messages that this crate prints: that of its user, the crate `rdma`.
const __LOG_PREFIX: &[u8] = b"rdma\0";
