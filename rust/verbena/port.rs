// SPDX-License-Identifier: GPL-2.0

//! The port and its net device.
//!
//! The net device with the port's MAC has the addresses; its state is the port's. The device is told
//! by SET_PORT whenever it changes.

use crate::{
    abi::cmd::SetPort,
    hw::Hw, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};
use rdma::{
    enums::Mtu,
    netdev::{
        self,
        Change,
        Netdev, //
    },
    work::{
        self,
        Work, //
    },
};

/// What the net device is like, as far as the port is concerned.
#[derive(Clone, Copy)]
pub(crate) struct PortState {
    pub(crate) up: bool,
    pub(crate) mtu: Mtu,
    pub(crate) netdev_mtu: u32,
}

/// The port.
#[pin_data]
pub(crate) struct Port {
    hw: Arc<Hw>,
    /// `None` when the net device has gone.
    #[pin]
    netdev: Mutex<Option<Netdev>>,
}

impl Port {
    pub(crate) fn new(hw: Arc<Hw>) -> Result<Arc<Self>> {
        Arc::pin_init(
            try_pin_init!(Self {
                hw,
                netdev <- new_mutex!(None),
            }? Error),
            GFP_KERNEL,
        )
    }

    pub(crate) fn set_netdev(&self, netdev: Option<Netdev>) {
        let old = core::mem::replace(&mut *self.netdev.lock(), netdev);
        drop(old);
    }

    /// The port's state now.
    pub(crate) fn state(&self) -> PortState {
        let info = self.netdev.lock().as_ref().map(Netdev::info);
        PortState {
            up: info.is_some_and(|info| info.running && info.carrier),
            mtu: Mtu::from_netdev(info.map_or(0, |info| info.mtu)),
            netdev_mtu: info.map_or(0, |info| info.mtu),
        }
    }

    /// Tells the device the port's state.
    pub(crate) fn update(&self) -> Result {
        let state = self.state();
        self.hw.cmdq.exec(&SetPort {
            up: u8::from(state.up),
            // CAST: 1 to 5.
            mtu: state.mtu.as_raw() as u8,
            ..Default::default()
        })?;
        Ok(())
    }
}

/// Tells the device what has changed.
pub(crate) struct SetPortWork(pub(crate) Arc<Port>);

impl work::Handler for SetPortWork {
    fn run(&self) {
        if self.0.update().is_err() && !self.0.hw.health.is_dead() {
            self.0.hw.complain("it refused the port's state");
        }
    }
}

/// Is told of changes of the net device.
pub(crate) struct PortNotifier {
    pub(crate) port: Arc<Port>,
    pub(crate) work: Arc<Work<SetPortWork>>,
}

impl netdev::Handler for PortNotifier {
    fn changed(&self, change: Change) {
        if change == Change::Unregister {
            // It waits until nobody holds it.
            self.port.set_netdev(None);
        }
        self.work.queue();
    }
}
