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
//! | main | [`vm_server`] | waits until the last QEMU has disconnected |
//! | signals | [`bound_sockets`] | removes the sockets when a signal ends the process |
//! | engine | [`engine`] | owns the devices and gives them time, receives from each [`uplink`]; sleeps when all VMs are idle |
//! | vm, for each VM | [`vfio_user`], [`pci_function`], [`pci`] | answers QEMU: configuration space, registers, doorbells, maps, resets |
//! | netdev, for each VM | [`netdev`], [`network`], [`switch`] | takes the guest's Ethernet frames, and forwards them |
//! | full recording, for each VM that has one | [`full_recording`] | writes the recording |
//! | outlet, for each VM | [`netdev_queue`] | gives the guest the frames for which QEMU had no room at once |
//! | control, for each VM | [`control`], [`impairments`] | answers `verbenactl`; holds the impairments of uplinks |
//!
//! [`vm_state`] is the state that the threads share for one VM, [`process_state`] the state that
//! all VMs share.
//!
//! The path of one RDMA WRITE: the guest stores a WQE and an index in its own memory. In this
//! process, only the engine acts on them: awake, or woken by a write to the doorbell BAR
//! ([`pci_function`], [`vm_state`]), it runs a slice. In the slice the device reads the WQE and
//! copies the payload from one guest buffer to another through [`guest_ram`], the only module with
//! `unsafe` but for one ioctl ([`uplink::tun`]); writes the CQE; and asks for an interrupt if the
//! CQ was armed. The engine raises the interrupt through an eventfd that QEMU gave to the PCI
//! function.
//!
//! Start with [`vm_state`] for what the threads exchange, and [`engine`] for when.

pub mod args;
pub mod bound_sockets;
pub mod control;
pub mod engine;
pub mod flight_recording;
mod frame_address;
pub mod full_recording;
pub mod guest_ram;
pub mod impairments;
pub mod inbox;
pub mod netdev;
pub mod netdev_queue;
pub mod network;
pub mod pci;
pub mod pci_function;
pub mod peer_process;
pub mod policy;
pub mod process_state;
pub mod refusals;
mod sender_budgets;
pub mod subnet;
pub mod switch;
pub mod uplink;
pub mod uplink_queues;
pub mod vfio_user;
mod vm_device;
pub mod vm_server;
pub mod vm_state;
pub mod waker;
