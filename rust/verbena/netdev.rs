// SPDX-License-Identifier: GPL-2.0

//! The net device that the port is paired with, by its permanent MAC address: one that is changed while it runs changes nothing
//! of that.
//!
//! The core takes addresses and link state from it by itself. What the device must know (is the link
//! up, how long may packets be) is told to it by a work, because a notifier may not wait; and before a queue pair changes, because
//! programs see the net device's new state at once. Consumers are told of a port that is active once the device knows it.

use crate::{
    abi::cmd::SetPort,
    hw::Hw, //
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
    base::{
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
    },
    device::DeviceRef,
    enums::Mtu, //
};

/// The port's net device.
#[pin_data]
pub(crate) struct Port {
    hw: Arc<Hw>,
    netdev: Netdev,
    /// What the device was told last: whether it is up, and its MTU.
    #[pin]
    told: Mutex<Option<(bool, u8)>>,
    /// Consumers are to be told of its state once the device knows it.
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

    /// Its state.
    pub(crate) fn info(&self) -> NetdevInfo {
        self.netdev.info()
    }

    /// Tells the device what the port is like now, if it does not know. Whoever has seen a change of the
    /// net device, which tells everybody else at once, calls this before it relies on that.
    pub(crate) fn tell(&self) -> Result {
        // Held meanwhile, so that what is told last is the newest.
        let mut told = self.told.lock();
        let info = self.info();
        // CAST: a small enumeration.
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

    /// Consumers are to be told of the port's state, but not before the device knows it.
    pub(crate) fn expect_event(&self) {
        self.is_event.store(true, Relaxed);
    }
}

/// Tells the device, then consumers, what the port is like.
pub(crate) struct Teller {
    pub(crate) port: Arc<Port>,
    pub(crate) device: DeviceRef,
}

impl work::Handler for Teller {
    fn run(&self) {
        // What comes up later is told later.
        let is_event = self.port.is_event.xchg(false, Relaxed);
        let hw = &self.port.hw;
        if self.port.tell().is_err() && !hw.health.is_dead() {
            hw.complain("it does not take the state of its port");
        }
        if is_event {
            self.device.report_port_state(&self.port.netdev);
        }
    }
}

/// Follows the net device, also from one network namespace to another.
pub(crate) struct Follower {
    tell: Work<Teller>,
    recovery: Arc<dyn Wake>,
    /// The net device wants to go.
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

    /// Tells the device what the port is like, and lets the net device go if it left before there was a
    /// notifier: of that the notifier says nothing.
    pub(crate) fn catch_up(&self, netdev: &Netdev) {
        self.tell.queue();
        if netdev.is_leaving() {
            self.let_go();
        }
    }

    /// The net device wants to go, so the RDMA device has to.
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
            // The core deletes all GIDs of the net device and adds them with the new address. Queue pairs
            // that were connected by the old ones end as on other adapters, which have no such GID either.
            Change::Address | Change::There => {}
            Change::Unregister => self.let_go(),
        }
    }
}

/// Waits for the net device, and begins a life when it is there.
pub(crate) struct Awaiter(pub(crate) Arc<dyn Wake>);

impl netdev::Handler for Awaiter {
    fn changed(&self, _change: Change) {
        self.0.wake();
    }
}
