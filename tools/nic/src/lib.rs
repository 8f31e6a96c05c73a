// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The NIC's process: what the device model (`verbena-device`) does not know of.
//!
//! The model takes guest memory, time and frames, and gives completions, interrupts and frames. Here it meets the real
//! world: QEMU, which hands over guest RAM and asks for the PCI function; the guest's Ethernet; a person who asks what
//! the NIC is doing; and other machines, behind an uplink. `verbena-nic` serves one guest or several, and ends with the last of them.
//!
//! | thread | file | what it does |
//! | --- | --- | --- |
//! | main | [`attend`] | waits until the last QEMU has gone |
//! | signals | [`places`] | removes the sockets when the process is told to end |
//! | engine | [`engine`] | owns the devices and gives them time, takes what the [`uplink`] brings; sleeps when all are silent |
//! | vm, for each VM | [`vfio_user`], [`front`], [`pci`] | answers QEMU: configuration space, registers, doorbells, maps, resets |
//! | netdev, for each VM | [`netdev`], [`network`], [`switch`] | takes the guest's Ethernet frames, and sends them where they go |
//! | full recording, for each VM that has one | [`full`] | writes it |
//! | outlet, for each VM | [`outlet`] | gives the guest the frames for which QEMU had no room at once |
//! | control, for each VM | [`control`], [`impair`] | answers `verbenactl`; what is to go wrong on uplinks |
//!
//! What threads share for one VM is [`shared`], what all VMs have in common is [`common`].
//!
//! The path of one RDMA WRITE: the guest stores a WQE and an index in its own memory, and nothing else happens in this
//! process than that the engine, awake or woken by a write to the doorbell BAR ([`front`], [`shared`]), runs a slice: the
//! device reads the WQE and copies the payload from one guest buffer to another through [`guest_ram`], the only file with
//! `unsafe` but for one ioctl ([`uplink::tun`]); writes the CQE; and asks for an interrupt if the CQ was armed, which the engine
//! raises through an eventfd that QEMU gave to the front.
//!
//! Start with [`shared`] for who tells whom what, and [`engine`] for when.

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
