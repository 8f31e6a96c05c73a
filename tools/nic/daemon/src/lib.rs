// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The NIC's process: everything outside the device model (`verbena-device`).
//!
//! The model takes guest memory, time and frames, and gives completions, interrupts and frames.
//! This crate connects it to the outside: to QEMU, which hands over guest RAM and accesses the PCI
//! function; to the guest's Ethernet; to a person who queries the state of the NIC; and, through an
//! uplink, to other machines. `verbena-nic` serves one guest or several, and ends when the last of
//! them has disconnected.
//!
//! | thread | file | task |
//! | --- | --- | --- |
//! | main | [`attend`] | waits until the last QEMU has disconnected |
//! | signals | [`places`] | removes the sockets when a signal ends the process |
//! | engine | [`engine`] | owns the devices and gives them time, receives from each [`uplink`]; sleeps when all VMs are idle |
//! | vm, for each VM | [`vfio_user`], [`front`], [`pci`] | answers QEMU: configuration space, registers, doorbells, maps, resets |
//! | netdev, for each VM | [`netdev`], [`network`], [`switch`] | takes the guest's Ethernet frames, and forwards them |
//! | full recording, for each VM that has one | [`full`] | writes the recording |
//! | outlet, for each VM | [`outlet`] | gives the guest the frames for which QEMU had no room at once |
//! | control, for each VM | [`control`], [`impair`] | answers `verbenactl`; holds the impairments of uplinks |
//!
//! [`shared`] is the state that the threads share for one VM, [`common`] the state that all VMs
//! share.
//!
//! The path of one RDMA WRITE: the guest stores a WQE and an index in its own memory. In this
//! process, only the engine acts on them: awake, or woken by a write to the doorbell BAR
//! ([`front`], [`shared`]), it runs a slice. In the slice the device reads the WQE and copies the
//! payload from one guest buffer to another through [`guest_ram`], the only module with `unsafe`
//! but for one ioctl ([`uplink::tun`]); writes the CQE; and asks for an interrupt if the CQ was
//! armed. The engine raises the interrupt through an eventfd that QEMU gave to the front.
//!
//! Start with [`shared`] for what the threads exchange, and [`engine`] for when.

pub mod args;
pub mod attend;
pub mod common;
pub mod control;
pub mod departures;
pub mod engine;
pub mod front;
pub mod full;
pub mod guest_ram;
pub mod impair;
pub mod inbox;
pub mod netdev;
pub mod network;
pub mod outlet;
pub mod pci;
pub mod places;
pub mod policy;
pub mod recording;
pub mod refusals;
pub mod shared;
mod shares;
pub mod sharing;
mod slice;
pub mod switch;
pub mod uplink;
pub mod vfio_user;
pub mod waker;
