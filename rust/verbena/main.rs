// SPDX-License-Identifier: GPL-2.0

//! Driver of the Verbena NIC, an RDMA network adapter for virtual machines.
//!
//! The device is specified in `Documentation/device.md`; everything that both sides see is defined in
//! `include/abi`. This crate has no `unsafe` code: what talks to the kernel's C interfaces is in the
//! crate `rdma`.
//!
//! # The way of one message
//!
//! A kernel user calls `ib_post_send()`. [`verbs::qp`] writes a WQE into the send ring
//! ([`ring`]), remembers the `wr_id` ([`verbs::wq`]) and publishes the producer index in a doorbell
//! area ([`doorbell`]). The device sends, writes a CQE, and if the CQ is armed an event into the
//! event queue of the CQ's vector ([`eq`]), whose interrupt calls the CQ's handler. The user polls:
//! [`verbs::cq`] checks the CQE and hands out the `wr_id` once. A process does the same without us,
//! in its own mappings of the same memory; only creation, modification and destruction come here
//! and go to the device as commands ([`cmdq`]).
//!
//! # Where to look
//!
//! | module | what |
//! | --- | --- |
//! | [`pci`] | probe, unbind, recovery |
//! | [`life`] | one life of the device, from reset to reset |
//! | [`hw`] | registers, commands, context tables, numbers: what everything else talks through |
//! | [`health`], [`undertaker`], [`pulse`] | alive, dead, silent, lost: how a death is noticed, and what is done then |
//! | [`cmdq::lent`] | memory that the device was told of, and when it may be freed |
//! | [`refusals`] | who may fill the log, and how far |
//! | [`cmdq`], [`eq`], [`ctx`] | commands, events, context tables |
//! | [`doorbell`], [`served`], [`ring`], [`bars`] | shared memory and registers |
//! | [`ids`] | numbers of objects |
//! | [`netdev`] | the port's net device |
//! | [`verbs`] | the objects of the verbs |
//! | [`debugfs`] | what those see and may do who look after the device |

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
mod debugfs;
#[forbid(unsafe_code)]
mod doorbell;
#[forbid(unsafe_code)]
mod eq;
#[forbid(unsafe_code)]
mod health;
#[forbid(unsafe_code)]
mod hw;
#[forbid(unsafe_code)]
mod ids;
#[forbid(unsafe_code)]
mod life;
#[forbid(unsafe_code)]
mod netdev;
#[forbid(unsafe_code)]
mod pci;
#[forbid(unsafe_code)]
mod pulse;
#[forbid(unsafe_code)]
mod refusals;
#[forbid(unsafe_code)]
mod ring;
#[forbid(unsafe_code)]
mod served;
#[forbid(unsafe_code)]
mod undertaker;
#[forbid(unsafe_code)]
mod verbs;

use kernel::prelude::*;

/// The module: its PCI driver, and at the very end the check that nothing is left.
struct Module {
    _driver: Pin<
        KBox<
            kernel::driver::Registration<
                kernel::pci::Adapter<rdma::base::bind::Adapter<pci::Driver>>,
            >,
        >,
    >,
    _no_hibernation: rdma::base::hibernation::Refusal,
    _check: rdma::base::count::CheckAtExit,
}

impl kernel::Module for Module {
    fn init(module: &'static ThisModule) -> Result<Self> {
        let check = rdma::base::count::CheckAtExit::new();
        let no_hibernation = rdma::base::hibernation::Refusal::new()?;
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
