// SPDX-License-Identifier: GPL-2.0

//! Driver of the Verbena NIC, an RDMA network adapter for virtual machines.
//!
//! `Documentation/device.md` specifies the device, and `include/abi` defines everything that both
//! sides use. This crate has no `unsafe` code. The crates `base` and `rdma` contain the code that
//! calls the kernel's C interfaces.
//!
//! # Path of a message
//!
//! A kernel user calls `ib_post_send()`. [`verbs::qp`] writes a WQE into the send ring ([`ring`]),
//! stores the `wr_id` ([`verbs::wq`]) and publishes the producer index in a doorbell area
//! ([`doorbell`]). The device sends, and writes a CQE. If the CQ is armed, the device also writes
//! an event into the event queue of the CQ's vector ([`eq`]), whose interrupt handler calls the
//! CQ's handler. The user polls: [`verbs::cq`] checks the CQE and returns the `wr_id` once. A
//! process does the same without the driver, in its own mappings of the same memory. The driver
//! executes only creation, modification and destruction, as commands to the device ([`cmdq`]).
//!
//! # Modules
//!
//! | module | purpose |
//! | --- | --- |
//! | [`pci`] | probe, unbind, recovery |
//! | [`device_life`] | one life of the device, from reset to reset |
//! | [`hw`] | registers, commands, context tables, numbers: the base of all other modules |
//! | [`health`], [`death_work`], [`heartbeat`] | alive, dead, silent, lost: detection, cleanup |
//! | [`cmdq::lent`] | memory whose address the device has, and when it may be freed |
//! | [`refusals`] | limits for log messages about refused requests |
//! | [`cmdq`], [`eq`], [`ctx`] | commands, events, context tables |
//! | [`doorbell`], [`served_areas`], [`ring`], [`bars`] | shared memory and registers |
//! | [`ids`] | numbers of objects |
//! | [`netdev`] | the port's net device |
//! | [`verbs`] | the objects of the verbs |
//! | [`debugfs`] | files for administrators of the device |

#[allow(dead_code, unreachable_pub, clippy::all)]
#[path = "../../include/abi/mod.rs"]
mod abi;
#[forbid(unsafe_code)]
mod bars;
#[forbid(unsafe_code)]
mod cmdq;
#[forbid(unsafe_code)]
mod ctx;
#[forbid(unsafe_code)]
mod death_work;
#[forbid(unsafe_code)]
mod debugfs;
#[forbid(unsafe_code)]
mod device_life;
#[forbid(unsafe_code)]
mod doorbell;
#[forbid(unsafe_code)]
mod eq;
#[forbid(unsafe_code)]
mod health;
#[forbid(unsafe_code)]
mod heartbeat;
#[forbid(unsafe_code)]
mod hw;
#[forbid(unsafe_code)]
mod ids;
#[forbid(unsafe_code)]
mod netdev;
#[forbid(unsafe_code)]
mod pci;
#[forbid(unsafe_code)]
mod ratelimit;
#[forbid(unsafe_code)]
mod ring;
#[forbid(unsafe_code)]
mod served_areas;
#[forbid(unsafe_code)]
mod verbs;

use kernel::prelude::*;

/// The module: its PCI driver, and last the check that nothing is left when the module is removed.
struct Module {
    _driver: Pin<
        KBox<kernel::driver::Registration<kernel::pci::Adapter<base::bind::Adapter<pci::Driver>>>>,
    >,
    _no_hibernation: base::hibernation::Refusal,
    _check: base::count::CheckAtExit,
}

impl kernel::Module for Module {
    fn init(module: &'static ThisModule) -> Result<Self> {
        let check = base::count::CheckAtExit::new();
        let no_hibernation = base::hibernation::Refusal::new()?;
        Ok(Self {
            _driver: KBox::pin_init(
                kernel::driver::Registration::new(<Self as kernel::ModuleMetadata>::NAME, module),
                GFP_KERNEL,
            )?,
            _no_hibernation: no_hibernation,
            _check: check,
        })
    }
}

module! {
    type: Module,
    name: "verbena",
    authors: ["The Verbena authors"],
    description: "Verbena RDMA NIC for virtual machines",
    license: "GPL",
}
