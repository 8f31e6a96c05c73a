// SPDX-License-Identifier: GPL-2.0

//! Asynchronous events of an InfiniBand port. Events that the device reports before the RDMA device
//! is registered are kept until then: the core has read the port's tables by that time, and does not
//! read them again without an event.

use crate::abi::eqe::EventType;
use kernel::{
    new_mutex,
    prelude::*,
    sync::Mutex, //
};
use rdma::{
    device::DeviceRef,
    enums::PortEvent, //
};

/// The only port of the device.
const PORT: u32 = 1;

/// Events of a port, in the order in which events that were kept are reported.
const EVENTS: [(EventType, PortEvent); 7] = [
    (EventType::PortErr, PortEvent::Err),
    (EventType::LidChange, PortEvent::LidChange),
    (EventType::PkeyChange, PortEvent::PkeyChange),
    (EventType::GidChange, PortEvent::GidChange),
    (EventType::SmChange, PortEvent::SmChange),
    (EventType::PortActive, PortEvent::Active),
    (EventType::ClientReregister, PortEvent::ClientReregister),
];

struct State {
    /// The registered RDMA device.
    device: Option<DeviceRef>,
    /// Events that are kept.
    kept: [bool; EVENTS.len()],
}

/// Receiver of the events of the port.
#[pin_data]
pub(crate) struct PortEvents {
    #[pin]
    state: Mutex<State>,
}

impl PortEvents {
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            state <- new_mutex!(State {
                device: None,
                kept: [false; EVENTS.len()],
            }),
        })
    }

    /// Reports an event of the port to consumers, or keeps it.
    pub(super) fn report(&self, reported: EventType) {
        let mut guard = self.state.lock();
        let State { device, kept } = &mut *guard;
        for ((number, event), kept) in EVENTS.iter().zip(kept) {
            if *number != reported {
                continue;
            }
            match device {
                Some(device) => device.report_port_event(*event, PORT),
                None => *kept = true,
            }
        }
    }

    /// Reports the events that were kept, and from now on all events at once. Called after `device`
    /// was registered.
    pub(crate) fn start(&self, device: DeviceRef) {
        let mut state = self.state.lock();
        for ((_, event), kept) in EVENTS.iter().zip(state.kept) {
            if kept {
                device.report_port_event(*event, PORT);
            }
        }
        state.device = Some(device);
    }
}
