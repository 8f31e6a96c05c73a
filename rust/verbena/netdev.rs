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
pub(crate) struct Port {
    hw: Arc<Hw>,
    netdev: Netdev,
    /// State that the device was informed of last: true if the port is up, and the MTU.
    #[pin]
    told: Mutex<Option<(bool, u8)>>,
    /// True if consumers are to be informed of the port's state once the device knows it.
    is_event: Atomic<bool>,
}

impl Port {
    pub(crate) fn new(hw: Arc<Hw>, netdev: Netdev) -> impl PinInit<Self> {
        pin_init!(Self {
            hw,
            netdev,
            told <- new_mutex!(None),
            is_event: Atomic::new(false),
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
    pub(crate) fn tell(&self) -> Result {
        // The lock is held during the command, so that the last command carries the newest state.
        let mut told = self.told.lock();
        let info = self.info();
        // CAST: The enumeration is small.
        let now = (info.is_up(), Mtu::from_netdev(info.mtu).as_raw() as u8);
        if *told == Some(now) {
            return Ok(());
        }
        let (up, mtu) = now;
        self.hw.cmdq.exec(&SetPort {
            up: u8::from(up),
            mtu,
            port: 1,
            ..Default::default()
        })?;
        *told = Some(now);
        Ok(())
    }

    /// Has consumers informed of the port's state, after the device is.
    pub(crate) fn expect_event(&self) {
        self.is_event.store(true, Relaxed);
    }
}

/// Work that informs the device, and then consumers, of the port's state.
pub(crate) struct Teller {
    pub(crate) port: Arc<Port>,
    pub(crate) device: DeviceRef,
}

impl work::Handler for Teller {
    fn run(&self) {
        // A port that becomes active later is reported by the next run.
        let is_event = self.port.is_event.xchg(false, Relaxed);
        let hw = &self.port.hw;
        if self.port.tell().is_err() && !hw.health.is_dead() {
            hw.complain("it refused the state of its port");
        }
        if is_event {
            self.device.report_port_state(&self.port.netdev);
        }
    }
}

/// Handler that follows the net device, also from one network namespace to another.
pub(crate) struct Follower {
    tell: Work<Teller>,
    recovery: Arc<dyn Wake>,
    /// True if the net device is being unregistered.
    gone: Atomic<bool>,
}

impl Follower {
    pub(crate) fn new(tell: Work<Teller>, recovery: Arc<dyn Wake>) -> Self {
        Self {
            tell,
            recovery,
            gone: Atomic::new(false),
        }
    }

    /// Informs the device of the port's state. If the net device began to leave before there was a
    /// notifier, which does not report that, this lets the net device go.
    pub(crate) fn catch_up(&self, netdev: &Netdev) {
        self.tell.queue();
        if netdev.is_leaving() {
            self.let_go();
        }
    }

    /// True if the net device is being unregistered, so that the RDMA device has to go, too.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Relaxed)
    }

    fn let_go(&self) {
        self.gone.store(true, Relaxed);
        self.recovery.wake();
    }
}

impl netdev::Handler for Follower {
    fn changed(&self, change: Change) {
        match change {
            Change::State | Change::Mtu => {
                self.tell.queue();
            }
            // The core deletes all GIDs of the net device and adds them with the new address. Queue
            // pairs that use an old GID fail as with other adapters, which no longer have that GID
            // either.
            Change::Address | Change::There => {}
            Change::Unregister => self.let_go(),
        }
    }
}

/// Handler that waits for the net device, and has a life begun when it is there.
pub(crate) struct Awaiter(pub(crate) Arc<dyn Wake>);

impl netdev::Handler for Awaiter {
    fn changed(&self, _change: Change) {
        self.0.wake();
    }
}
