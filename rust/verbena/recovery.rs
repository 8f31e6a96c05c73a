// SPDX-License-Identifier: GPL-2.0

//! Lives of the device, one after the other.
//!
//! A life is a device that was brought up ([`crate::hw`]) and its registration with the RDMA core.
//! When the device dies, the undertaker queues the [`Recovery`], which ends the life and starts the
//! next one, unless lives end too soon one after the other.
//!
//! The order in which a life ends: the device is reset, so that it does nothing any more; its heir,
//! the driver, writes 0 to the *alive* words; the core then disassociates processes (each is told of
//! the fatal error once) and destroys all objects; at last the memory goes.

use crate::{
    hw::{
        Hw,
        Lease,
        Parts, //
    },
    port::{
        Port,
        PortNotifier,
        SetPortWork, //
    },
    verbs::Verbena,
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
    time::{
        Instant,
        Monotonic, //
    },
};
use rdma::{
    device::{
        Registration,
        Settings, //
    },
    netdev::{
        Netdev,
        Notifier, //
    },
    work::{
        Handler,
        Work, //
    },
};

/// A life that lasts less long counts as a failure.
const SHORT_LIFE_MS: i64 = 10_000;
/// After so many short lives in a row the device is given up.
const SHORT_LIVES: u32 = 8;

/// One life. The fields are dropped in this order.
struct Life {
    _notifier: Notifier<PortNotifier>,
    registration: Option<Registration<Verbena>>,
    _set_port: Arc<Work<SetPortWork>>,
    lease: Lease,
    born: Instant<Monotonic>,
}

impl Life {
    fn start(parts: &Parts, recovery: Arc<Work<Recovery>>) -> Result<Self> {
        let lease = Hw::bring_up(parts, recovery)?;
        let hw = &lease.hw;
        let caps = hw.caps()?;

        let [mac @ .., _, _] = caps.mac;
        let netdev = Netdev::by_mac(&mac).ok_or_else(|| {
            dev_info!(hw.pdev, "waits for the net device with the port's MAC\n");
            EPROBE_DEFER
        })?;
        let port = Port::new(hw.clone())?;
        let set_port = Arc::new(
            Work::new(Arc::new(SetPortWork(port.clone()), GFP_KERNEL)?)?,
            GFP_KERNEL,
        )?;
        let settings = Settings {
            node_guid: caps.node_guid,
            num_comp_vectors: u32::try_from(hw.comp_eqs().len())?,
            netdev: Some(&netdev),
            local_dma_lkey: caps.local_dma_lkey.get(),
        };
        let registration = Registration::new(
            &crate::THIS_MODULE,
            &parts.dma,
            c"verbena%d",
            &settings,
            None,
            {
                port.set_netdev(Netdev::by_mac(&mac));
                port.update()?;
                Verbena::new(hw.clone(), port.clone())
            },
        )?;
        let notifier = Notifier::new(
            &netdev,
            Arc::new(
                PortNotifier {
                    port: port.clone(),
                    work: set_port.clone(),
                },
                GFP_KERNEL,
            )?,
        )?;
        // What changed before the notifier was there.
        set_port.queue();
        Ok(Self {
            _notifier: notifier,
            registration: Some(registration),
            _set_port: set_port,
            lease,
            born: Instant::now(),
        })
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.lease.kill();
        self.registration = None;
    }
}

struct Present {
    life: Option<Life>,
    /// The work that runs this; `None` from unbind on.
    work: Option<Arc<Work<Recovery>>>,
    short_lives: u32,
}

/// Starts and ends lives.
#[pin_data]
pub(crate) struct Recovery {
    parts: Parts,
    #[pin]
    present: Mutex<Present>,
}

impl Recovery {
    /// Starts the first life.
    pub(crate) fn start(parts: Parts) -> Result<Arc<Self>> {
        let this = Arc::pin_init(
            try_pin_init!(Self {
                parts,
                present <- new_mutex!(Present { life: None, work: None, short_lives: 0 }),
            }? Error),
            GFP_KERNEL,
        )?;
        let work = Arc::new(Work::new(this.clone())?, GFP_KERNEL)?;
        let started = {
            let mut present = this.present.lock();
            present.work = Some(work.clone());
            Life::start(&this.parts, work).map(|life| present.life = Some(life))
        };
        if let Err(e) = started {
            this.end();
            return Err(e);
        }
        Ok(this)
    }

    /// Ends the present life for good: the driver is being unbound.
    pub(crate) fn end(&self) {
        let (life, work) = {
            let mut present = self.present.lock();
            (present.life.take(), present.work.take())
        };
        drop(life);
        // Waits until the work does not run.
        drop(work);
    }
}

impl Handler for Recovery {
    fn run(&self) {
        let mut present = self.present.lock();
        let Some(work) = present.work.clone() else {
            return;
        };
        let Some(life) = present.life.take() else {
            return;
        };
        if life.born.elapsed().as_millis() < SHORT_LIFE_MS {
            present.short_lives += 1;
        } else {
            present.short_lives = 0;
        }
        drop(life);
        let pdev = &self.parts.pdev;
        if present.short_lives >= SHORT_LIVES {
            dev_err!(pdev, "the device keeps dying; it is given up until it is bound again\n");
            return;
        }
        match Life::start(&self.parts, work) {
            Ok(life) => {
                dev_info!(pdev, "the device was reset and works again\n");
                present.life = Some(life);
            }
            Err(e) => dev_err!(pdev, "the device does not recover: {e:?}\n"),
        }
    }
}
