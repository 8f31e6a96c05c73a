// SPDX-License-Identifier: GPL-2.0

//! The net device that the port is paired with, by its permanent MAC address. If the MAC address
//! changes at run time, the pairing stays as it is.
//!
//! The core follows the addresses and the link state of the net device by itself. The device must
//! know whether the link is up, and the MTU. A work item informs it, because a notifier may not
//! wait. Before a queue pair changes, the verb also informs it, because programs see the net
//! device's new state at once. Consumers are informed of an active port after the device is.

use crate::{
    abi::cmd::SetPort,
    hw::Hw, //
};
use base::{
    netdev::{
        self,
        Change,
        Netdev,
        NetdevInfo, //
    },
    work::{
        self,
        Wake,
        Work, //
    }, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
};
use rdma::{
    device::DeviceRef,
    enums::Mtu, //
};

/// The port, and its net device.
#[pin_data]
pub(crate) struct NetdevPort {
    hw: Arc<Hw>,
    netdev: Netdev,
    /// State that the device was informed of last: true if the port is up, and the MTU.
    #[pin]
    reported: Mutex<Option<(bool, u8)>>,
    /// True if consumers are to be informed of the port's state once the device knows it.
    event_requested: Atomic<bool>,
}

impl NetdevPort {
    pub(crate) fn new(hw: Arc<Hw>, netdev: Netdev) -> impl PinInit<Self> {
        pin_init!(Self {
            hw,
            netdev,
            reported <- new_mutex!(None),
            event_requested: Atomic::new(false),
        })
    }

    pub(crate) fn netdev(&self) -> &Netdev {
        &self.netdev
    }

    /// Returns the state of the net device.
    pub(crate) fn info(&self) -> NetdevInfo {
        self.netdev.info()
    }

    /// Informs the device of the present state of the port, if the device does not know it. A
    /// caller that has seen a change of the net device, which programs see at once, calls this
    /// before it relies on the change.
    pub(crate) fn report_state(&self) -> Result {
        // The lock is held during the command, so that the last command carries the newest state.
        let mut reported = self.reported.lock();
        let info = self.info();
        // CAST: The enumeration is small.
        let now = (info.is_up(), Mtu::from_netdev(info.mtu).as_raw() as u8);
        if *reported == Some(now) {
            return Ok(());
        }
        let (up, mtu) = now;
        self.hw.cmdq.exec(&SetPort {
            up: u8::from(up),
            mtu,
            port: 1,
            ..Default::default()
        })?;
        *reported = Some(now);
        Ok(())
    }

    /// Has consumers informed of the port's state, after the device is.
    pub(crate) fn request_event(&self) {
        self.event_requested.store(true, Relaxed);
    }
}

/// Work that informs the device, and then consumers, of the port's state.
pub(crate) struct PortStateWork {
    pub(crate) port: Arc<NetdevPort>,
    pub(crate) device: DeviceRef,
}

impl work::Handler for PortStateWork {
    fn run(&self) {
        // A port that becomes active later is reported by the next run.
        let event_requested = self.port.event_requested.xchg(false, Relaxed);
        let hw = &self.port.hw;
        if self.port.report_state().is_err() && !hw.health.is_dead() {
            hw.complain("it refused the state of its port");
        }
        if event_requested {
            self.device.report_port_state(&self.port.netdev);
        }
    }
}

/// Handler that monitors the net device, also from one network namespace to another.
pub(crate) struct NetdevMonitor {
    report: Work<PortStateWork>,
    recovery: Arc<dyn Wake>,
    /// True if the net device is being unregistered.
    unregistered: Atomic<bool>,
}

impl NetdevMonitor {
    pub(crate) fn new(report: Work<PortStateWork>, recovery: Arc<dyn Wake>) -> Self {
        Self {
            report,
            recovery,
            unregistered: Atomic::new(false),
        }
    }

    /// Informs the device of the port's state. If the net device began to leave before there was a
    /// notifier, which does not report that, this lets the net device go.
    pub(crate) fn catch_up(&self, netdev: &Netdev) {
        self.report.queue();
        if netdev.is_leaving() {
            self.on_unregister();
        }
    }

    /// True if the net device is being unregistered, so that the RDMA device has to go, too.
    pub(crate) fn is_unregistered(&self) -> bool {
        self.unregistered.load(Relaxed)
    }

    fn on_unregister(&self) {
        self.unregistered.store(true, Relaxed);
        self.recovery.wake();
    }
}

impl netdev::Handler for NetdevMonitor {
    fn changed(&self, change: Change) {
        match change {
            Change::State | Change::Mtu => {
                self.report.queue();
            }
            // The core deletes all GIDs of the net device and adds them with the new address. Queue
            // pairs that use an old GID fail as with other adapters, which no longer have that GID
            // either.
            Change::Address | Change::There => {}
            Change::Unregister => self.on_unregister(),
        }
    }
}

/// Handler that waits for the net device, and has a life begun when it is there.
pub(crate) struct NetdevWaiter(pub(crate) Arc<dyn Wake>);

impl netdev::Handler for NetdevWaiter {
    fn changed(&self, _change: Change) {
        self.0.wake();
    }
}
