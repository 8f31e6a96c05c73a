// SPDX-License-Identifier: GPL-2.0

//! The net device that the port is paired with, by MAC address.
//!
//! The core takes addresses and link state from it by itself. What the device must know (is the link
//! up, how long may packets be) is told to it by a work, because a notifier may not wait.

use crate::{
    abi::cmd::SetPort,
    hw::Hw, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
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
    enums::Mtu, //
};

/// The port's net device.
pub(crate) struct Port {
    hw: Arc<Hw>,
    netdev: Netdev,
}

impl Port {
    pub(crate) fn new(hw: Arc<Hw>, netdev: Netdev) -> Self {
        Self { hw, netdev }
    }

    pub(crate) fn netdev(&self) -> &Netdev {
        &self.netdev
    }

    /// Its state.
    pub(crate) fn info(&self) -> NetdevInfo {
        self.netdev.info()
    }

    /// Tells the device what the port is like now.
    pub(crate) fn tell(&self) -> Result {
        let info = self.info();
        self.hw.cmdq.exec(&SetPort {
            up: u8::from(info.running && info.carrier),
            // CAST: a small enumeration.
            mtu: Mtu::from_netdev(info.mtu).as_raw() as u8,
            port: 1,
            ..Default::default()
        })?;
        Ok(())
    }
}

impl work::Handler for Port {
    fn run(&self) {
        if self.tell().is_err() && !self.hw.health.is_dead() {
            self.hw.complain("it does not take the state of its port");
        }
    }
}

/// Follows the net device.
pub(crate) struct Follower {
    pub(crate) tell: Work<Port>,
    pub(crate) recovery: Arc<dyn Wake>,
    pub(crate) gone: Arc<Atomic<bool>>,
}

impl netdev::Handler for Follower {
    fn changed(&self, change: Change) {
        match change {
            Change::State | Change::Mtu | Change::Address => {
                self.tell.queue();
            }
            Change::Unregister => {
                self.gone.store(true, Relaxed);
                self.recovery.wake();
            }
        }
    }
}
