// SPDX-License-Identifier: GPL-2.0

//! The PCI driver: from probe to unbind, and over the deaths of the device between.
//!
//! [`Running`] is one life with everything that was built on it, in the order in which it is taken
//! down: the files of debugfs, the follower of the net device, the registration (which waits for users, disassociates
//! processes and destroys all objects), the life itself. The device lives while its users say
//! goodbye; only then it is silenced. A [`Recovery`] replaces a dead life by a new one.

use crate::{
    abi::{
        doorbell,
        regs, //
    },
    bars::Bars,
    debugfs::Files,
    hw::Parts,
    life::Life,
    netdev::{
        Follower,
        Port,
        Teller, //
    },
    verbs::Verbena, //
};
use kernel::{
    device::Core,
    fmt, new_mutex,
    page::PAGE_SIZE,
    pci,
    prelude::*,
    str::CString,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
    time::{
        Delta,
        Instant,
        Monotonic, //
    },
};
use rdma::{
    base::{
        bind::{
            self,
            Binding, //
        },
        config::Config,
        irq::Vectors,
        netdev::{
            Netdev,
            Notifier, //
        },
        work::{
            self,
            Queue,
            Work, //
        }, //
    },
    device::{
        Registration,
        Settings, //
    },
    new_work, //
};

/// One life, registered.
struct Running {
    _files: Files,
    _notifier: Notifier<Follower>,
    registration: Registration<Verbena>,
    life: Life,
    since: Instant<Monotonic>,
}

/// The only size of pages that processes can map doorbell areas with: their parts are as large.
const SERVED_PAGE_SIZE: usize = doorbell::PART_SIZE;

/// How often in a row the driver tries to revive the device with pauses that grow, before it tries slowly.
const MOST_TRIES: u32 = 6;

/// A life shorter than this was a try that failed.
const SHORT_LIFE: Delta = Delta::from_millis(500);

/// How long to wait before the first try that follows a failed one; each further waits twice as long.
const PAUSE_MS: u32 = 250;

/// How long to wait between the tries that come after those.
const SLOW_MS: u32 = 15_000;

/// Gives a dead device a new life.
#[pin_data]
pub(crate) struct Recovery {
    parts: Parts,
    /// The work that runs this; needed by each life.
    #[pin]
    work: Mutex<Option<Arc<Work<Recovery>>>>,
    #[pin]
    running: Mutex<Option<Running>>,
    stopped: Atomic<bool>,
    netdev_gone: Arc<Atomic<bool>>,
    /// Tries since the device last worked.
    tries: Atomic<u32>,
    /// What the RDMA device was called when it died; the next is called the same.
    #[pin]
    name: Mutex<Option<CString>>,
}

impl Recovery {
    fn start(&self) -> Result<Running> {
        let work = self.work.lock().clone().ok_or(ENODEV)?;
        let life = Life::begin(&self.parts, work.clone())?;
        let live = &life.live;
        let caps = live.caps()?;
        let [a, b, c, d, e, f, _, _] = caps.mac;
        let find_netdev = || Netdev::by_mac(&[a, b, c, d, e, f]).ok_or(EPROBE_DEFER);
        let netdev = find_netdev()?;
        let port = Arc::pin_init(Port::new(live.hw.clone(), netdev), GFP_KERNEL)?;
        port.tell()?;
        let settings = Settings {
            node_guid: caps.node_guid,
            num_comp_vectors: u32::try_from(live.events.comp_eqs().len())?,
            ports: &[Some(port.netdev())],
            local_dma_lkey: caps.local_dma_lkey.get(),
        };
        let mut name = self.name.lock();
        let registration = Registration::new(
            rdma::this_module!(crate),
            &self.parts.dma,
            name.as_ref().map_or(c"verbena%d", |name| name),
            &settings,
            Verbena::new(live.clone(), port.clone()),
        );
        if registration.as_ref().is_err_and(|e| *e == ENFILE) {
            // Somebody else is called so by now: the next try takes a name that is free.
            *name = None;
        }
        drop(name);
        let registration = registration?;
        let teller = Teller {
            port: port.clone(),
            device: registration.device_ref(),
        };
        let follower = Follower {
            tell: new_work!(Arc::new(teller, GFP_KERNEL)?, &self.parts.awake)?,
            recovery: work.clone(),
            gone: self.netdev_gone.clone(),
        };
        let follower = Arc::new(follower, GFP_KERNEL)?;
        let notifier = Notifier::new(port.netdev(), follower.clone())?;
        // Of a net device that went away or down meanwhile the notifier says nothing.
        if find_netdev()? != *port.netdev() {
            return Err(EPROBE_DEFER);
        }
        follower.tell.queue();
        Ok(Running {
            _files: Files::new(&self.parts, live)?,
            _notifier: notifier,
            registration,
            life,
            since: Instant::now(),
        })
    }

    /// Ends the dead life, and says whether it was too short to count as one. `None`: none is dead.
    fn bury(&self, gone: bool) -> Option<bool> {
        let mut running = self.running.lock();
        let mut died_young = false;
        if let Some(old) = running.as_ref() {
            if !old.life.live.health.is_dead() && !gone {
                return None;
            }
            let died = old.life.live.health.died().unwrap_or_else(Instant::now);
            if died - old.since >= SHORT_LIFE {
                self.tries.store(0, Relaxed);
            }
            died_young = self.tries.load(Relaxed) != 0;
            // A name with `%` is a pattern where a device is registered.
            let name = old.registration.device().name().ok();
            if let Some(name) = name.filter(|name| !name.to_bytes().contains(&b'%')) {
                *self.name.lock() = Some(name);
            }
        }
        // Unregisters: nothing of the old life is left afterwards.
        *running = None;
        Some(died_young)
    }

    /// The last of so many tries came to nothing.
    fn failed(&self, tries: u32, why: fmt::Arguments<'_>) {
        let pause = if tries < MOST_TRIES {
            dev_info!(self.parts.pdev, "try {tries} to revive it failed: {why}\n");
            PAUSE_MS << tries
        } else {
            // Once: what each further try finds is in the log anyway.
            if tries == MOST_TRIES {
                dev_err!(
                    self.parts.pdev,
                    "the device cannot be revived ({why}): it is tried again every {} s\n",
                    SLOW_MS / 1000
                );
            }
            SLOW_MS
        };
        if let Some(work) = &*self.work.lock() {
            // Its death has the work wait to run already.
            work.put_off(pause);
        }
    }
}

impl work::Handler for Recovery {
    fn run(&self) {
        let gone = self.netdev_gone.load(Relaxed);
        let Some(died_young) = self.bury(gone) else {
            return;
        };
        if gone {
            dev_info!(
                self.parts.pdev,
                "the port's net device is gone: bind again when it is back\n"
            );
            return;
        }
        if self.stopped.load(Relaxed) {
            return;
        }
        let tries = self.tries.load(Relaxed);
        if died_young {
            return self.failed(tries, fmt!("it died again at once"));
        }
        let tries = tries.saturating_add(1);
        self.tries.store(tries, Relaxed);
        match self.start() {
            Ok(new) => {
                *self.running.lock() = Some(new);
                dev_info!(self.parts.pdev, "the device lives again\n");
            }
            Err(e) => self.failed(tries, fmt!("{e:?}")),
        }
    }
}

/// The driver's data of a bound PCI device.
pub(crate) struct Data {
    recovery: Arc<Recovery>,
    work: Arc<Work<Recovery>>,
}

impl Drop for Data {
    fn drop(&mut self) {
        self.recovery.stopped.store(true, Relaxed);
        self.work.cancel();
        // The device lives until its users are gone; see `Running`.
        let running = self.recovery.running.lock().take();
        drop(running);
        // The work holds the recovery, and the recovery the work.
        self.recovery.work.lock().take();
        self.work.cancel();
    }
}

/// The PCI driver.
pub(crate) struct Driver;

rdma::pci_device_table!(
    PCI_TABLE,
    MODULE_PCI_TABLE,
    <Driver as bind::Driver>::IdInfo,
    [(
        pci::DeviceId::from_id(pci::Vendor::REDHAT_QUMRANET, regs::PCI_DEVICE_ID as u32),
        ()
    )]
);

impl bind::Driver for Driver {
    type IdInfo = ();
    type Data<'bound> = Data;

    const ID_TABLE: pci::IdTable<Self::IdInfo> = &PCI_TABLE;

    fn probe<'bound>(
        pdev: &'bound pci::Device<Core<'_>>,
        dma: Binding,
        _info: &'bound Self::IdInfo,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        let probe = move || {
            if PAGE_SIZE != SERVED_PAGE_SIZE {
                dev_err!(
                    pdev,
                    "this kernel has pages of {PAGE_SIZE} bytes, and the device serves kernels with pages of {SERVED_PAGE_SIZE} bytes only\n"
                );
                return Err(ENODEV);
            }
            // No bus mastering before a reset is confirmed: see `Hw::new`.
            dma.enable()?;
            let bars = Arc::new(Bars::new(pdev)?, GFP_KERNEL)?;
            let config = Arc::new(Config::save(&dma)?, GFP_KERNEL)?;
            let vectors = Vectors::alloc(&dma, 2, 32)?;
            let recovery = Arc::pin_init(
                try_pin_init!(Recovery {
                    parts: Parts {
                        pdev: pdev.into(),
                        dma,
                        bars,
                        config,
                        vectors,
                        events: Queue::new(c"verbena-events")?,
                        burials: Queue::new(c"verbena-burials")?,
                        awake: Queue::freezable(c"verbena-awake")?,
                    },
                    work <- new_mutex!(None),
                    running <- new_mutex!(None),
                    stopped: Atomic::new(false),
                    netdev_gone: Arc::new(Atomic::new(false), GFP_KERNEL)?,
                    tries: Atomic::new(0),
                    name <- new_mutex!(None),
                }? Error),
                GFP_KERNEL,
            )?;
            // A device that dies while the machine is suspended lives again when the machine does.
            let work = new_work!(recovery.clone(), &recovery.parts.awake)?;
            let work = Arc::new(work, GFP_KERNEL)?;
            *recovery.work.lock() = Some(work.clone());
            let data = Data { recovery, work };
            // Whoever wakes the recovery meanwhile has it wait for what there is to bury.
            let mut running = data.recovery.running.lock();
            *running = Some(data.recovery.start()?);
            drop(running);
            Ok(data)
        };
        pin_init::pin_init_scope(move || Ok::<_, Error>(probe()))
    }
}
