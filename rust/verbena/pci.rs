// SPDX-License-Identifier: GPL-2.0

//! The PCI driver: from probe to unbind, including recovery from deaths of the device.
//!
//! [`Running`] is one life and everything that depends on it, in the order in which it is taken
//! down: the files of debugfs, the follower of the net device, the registration (which waits for
//! users, disassociates processes and destroys all objects), the life itself. The device stays
//! alive until its users are gone, and is silenced only then. [`Recovery`] replaces a dead life by
//! a new one. Without its net device there is no life, and the driver waits until the net device is
//! there.

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
        Awaiter,
        Follower,
        Port,
        Teller, //
    },
    verbs::Verbena, //
};
use base::{
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
    netns::NetnsId,
    new_work,
    work::{
        self,
        Queue,
        Work, //
    }, //
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
use rdma::device::{
    Registration,
    Settings, //
};

/// One life of the device, and its registration.
struct Running {
    _files: Files,
    _notifier: Notifier<Follower>,
    follower: Arc<Follower>,
    registration: Registration<Verbena>,
    life: Life,
    since: Instant<Monotonic>,
}

/// State of the RDMA device: none, registered, or waiting for the net device.
enum State {
    Nothing,
    Running(Running),
    /// The driver waits until the net device is there.
    Waiting(#[allow(dead_code)] Notifier<Awaiter>),
}

/// Settings of the RDMA device that died, which the next one takes over.
#[derive(Default)]
struct Former {
    name: Option<CString>,
    netns: Option<NetnsId>,
}

/// The only page size with which processes can map the parts of doorbell areas, which have this
/// size.
const SERVED_PAGE_SIZE: usize = doorbell::PART_SIZE;

/// Number of successive failed tries after which the pauses no longer grow, but are [`SLOW_MS`].
const MOST_TRIES: u32 = 6;

/// A life shorter than this counts as a failed try.
const SHORT_LIFE: Delta = Delta::from_millis(500);

/// Half of the pause after the first failed try, in milliseconds. Each further pause is twice as
/// long.
const PAUSE_MS: u32 = 250;

/// Pause after each of the later failed tries, in milliseconds.
const SLOW_MS: u32 = 15_000;

/// Work that replaces a dead life of the device by a new one.
#[pin_data]
pub(crate) struct Recovery {
    parts: Parts,
    /// The work item that runs this. Each life needs it.
    #[pin]
    work: Mutex<Option<Arc<Work<Recovery>>>>,
    #[pin]
    state: Mutex<State>,
    stopped: Atomic<bool>,
    /// Number of tries since the device last worked.
    tries: Atomic<u32>,
    #[pin]
    former: Mutex<Former>,
}

impl Recovery {
    /// Begins a life and registers the RDMA device, or begins to wait for the net device.
    fn start(&self) -> Result<State> {
        let work = self.work.lock().clone().ok_or(ENODEV)?;
        let life = Life::begin(&self.parts, work.clone())?;
        let live = &life.live;
        let caps = live.caps()?;
        let [a, b, c, d, e, f, _, _] = caps.mac;
        let mac = [a, b, c, d, e, f];
        let Some(netdev) = Netdev::by_mac(&mac) else {
            dev_info!(
                self.parts.pdev,
                "no net device has the MAC address {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}: the RDMA device is registered when there is one\n"
            );
            return Ok(State::Waiting(Notifier::of_mac(
                mac,
                Arc::new(Awaiter(work), GFP_KERNEL)?,
            )?));
        };
        let port = Arc::pin_init(Port::new(live.hw.clone(), netdev), GFP_KERNEL)?;
        port.tell()?;
        let mut former = self.former.lock();
        let settings = Settings {
            netns: former.netns,
            node_guid: caps.node_guid,
            num_comp_vectors: u32::try_from(live.events.comp_eqs().len())?,
            ports: &[Some(port.netdev())],
            local_dma_lkey: caps.local_dma_lkey.get(),
        };
        let registration = Registration::new(
            base::this_module!(crate),
            &self.parts.dma,
            former.name.as_ref().map_or(c"verbena%d", |name| name),
            &settings,
            Verbena::new(live.clone(), port.clone()),
        );
        if registration.as_ref().is_err_and(|e| *e == ENFILE) {
            // Another device has this name by now, so the next try takes a free name.
            former.name = None;
        }
        drop(former);
        let registration = registration?;
        let teller = Teller {
            port: port.clone(),
            device: registration.device_ref(),
        };
        let tell = new_work!(Arc::new(teller, GFP_KERNEL)?, &self.parts.awake)?;
        let follower = Arc::new(Follower::new(tell, work), GFP_KERNEL)?;
        let notifier = Notifier::new(port.netdev(), follower.clone())?;
        follower.catch_up(port.netdev());
        Ok(State::Running(Running {
            _files: Files::new(&self.parts, live)?,
            _notifier: notifier,
            follower,
            registration,
            life,
            since: Instant::now(),
        }))
    }

    /// Ends the dead life, or the wait for the net device. Returns true if the life was too short
    /// to count as one, and `None` if the device is alive.
    fn bury(&self) -> Option<bool> {
        let mut state = self.state.lock();
        let mut died_young = false;
        if let State::Running(old) = &*state {
            let gone = old.follower.is_gone();
            if !old.life.live.health.is_dead() && !gone {
                return None;
            }
            let died = old.life.live.health.died().unwrap_or_else(Instant::now);
            if gone || died - old.since >= SHORT_LIFE {
                self.tries.store(0, Relaxed);
            }
            died_young = self.tries.load(Relaxed) != 0;
            let device = old.registration.device();
            let mut former = self.former.lock();
            former.netns = Some(device.netns());
            // At registration a name with `%` would be a pattern.
            let name = device.name().ok();
            if let Some(name) = name.filter(|name| !name.to_bytes().contains(&b'%')) {
                former.name = Some(name);
            }
        }
        // The assignment unregisters the device, and nothing of the old life is left after it.
        *state = State::Nothing;
        Some(died_young)
    }

    /// Handles the failure of try number `tries`: logs it, and schedules the next one.
    fn failed(&self, tries: u32, why: fmt::Arguments<'_>) {
        let pause = if tries < MOST_TRIES {
            dev_info!(
                self.parts.pdev,
                "try {tries} to revive the device failed: {why}\n"
            );
            PAUSE_MS << tries
        } else {
            // This is logged once, because the reason of each further failure is in the log anyway.
            if tries == MOST_TRIES {
                dev_err!(
                    self.parts.pdev,
                    "the device cannot be revived ({why}): the driver tries again every {} s\n",
                    SLOW_MS / 1000
                );
            }
            SLOW_MS
        };
        if let Some(work) = &*self.work.lock() {
            // The death of the device may have queued the work already, so it is put off.
            work.put_off(pause);
        }
    }
}

impl work::Handler for Recovery {
    fn run(&self) {
        let Some(died_young) = self.bury() else {
            return;
        };
        if self.stopped.load(Relaxed) {
            return;
        }
        let tries = self.tries.load(Relaxed);
        if died_young {
            return self.failed(tries, fmt!("the device failed again at once"));
        }
        let tries = tries.saturating_add(1);
        self.tries.store(tries, Relaxed);
        match self.start() {
            Ok(new) => {
                if matches!(new, State::Running(_)) {
                    dev_info!(self.parts.pdev, "the device lives again\n");
                } else {
                    self.tries.store(0, Relaxed);
                }
                *self.state.lock() = new;
            }
            Err(e) => self.failed(tries, fmt!("{e:?}")),
        }
    }
}

/// Driver's data of a bound PCI device.
pub(crate) struct Data {
    recovery: Arc<Recovery>,
    work: Arc<Work<Recovery>>,
}

impl Drop for Data {
    fn drop(&mut self) {
        self.recovery.stopped.store(true, Relaxed);
        self.work.cancel();
        // The device stays alive until its users are gone, see [`Running`].
        *self.recovery.state.lock() = State::Nothing;
        // The work item holds a reference to the recovery, and the recovery to the work item.
        self.recovery.work.lock().take();
        self.work.cancel();
    }
}

/// The PCI driver of the device.
pub(crate) struct Driver;

base::pci_device_table!(
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
                    "this kernel has pages of {PAGE_SIZE} bytes, and the device supports only kernels with pages of {SERVED_PAGE_SIZE} bytes\n"
                );
                return Err(ENODEV);
            }
            // Bus mastering is set only after a reset has been confirmed, see `Hw::new`.
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
                    state <- new_mutex!(State::Nothing),
                    stopped: Atomic::new(false),
                    tries: Atomic::new(0),
                    former <- new_mutex!(Former::default()),
                }? Error),
                GFP_KERNEL,
            )?;
            // If the device dies while the machine is suspended, recovery runs after the machine is
            // resumed.
            let work = new_work!(recovery.clone(), &recovery.parts.awake)?;
            let work = Arc::new(work, GFP_KERNEL)?;
            *recovery.work.lock() = Some(work.clone());
            let data = Data { recovery, work };
            // The lock makes a recovery that is woken meanwhile wait until there is a life.
            let mut state = data.recovery.state.lock();
            *state = data.recovery.start()?;
            drop(state);
            Ok(data)
        };
        pin_init::pin_init_scope(move || Ok::<_, Error>(probe()))
    }
}
