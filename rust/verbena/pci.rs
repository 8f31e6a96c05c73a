// SPDX-License-Identifier: GPL-2.0

//! The PCI driver: from probe to unbind, including recovery from deaths of the device.
//!
//! [`Running`] is one life and everything that depends on it, in the order in which it is taken
//! down: the files of debugfs, the monitor of the net device, the registration (which waits for
//! users, disassociates processes and destroys all objects), the life itself. The device stays
//! alive until its users are gone, and is silenced only then. [`Recovery`] replaces a dead life by
//! a new one. A device with an Ethernet port has no life without its net device, and the driver
//! waits until the net device is there. A device with an InfiniBand port has no net device.

use crate::{
    abi::{
        doorbell,
        regs, //
    },
    bars::Bars,
    debugfs::DebugFiles,
    device_life::DeviceLife,
    hw::DeviceResources,
    netdev::{
        NetdevMonitor,
        NetdevPort,
        NetdevWaiter,
        PortStateWork, //
    },
    verbs::{
        infiniband::InfinibandPort,
        port::Port,
        Verbena,
        VerbsDevice, //
    }, //
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
use rdma::{
    device::{
        Registration,
        Settings, //
    },
    infiniband::NODE_DESCRIPTION_SIZE, //
};

/// One life of the device, and its registration.
struct RunningDevice {
    _files: DebugFiles,
    /// Monitor of the net device of an Ethernet port.
    monitor: Option<RunningMonitor>,
    registration: Registration<Verbena>,
    life: DeviceLife,
    since: Instant<Monotonic>,
}

/// The monitor of the net device, and the notifier that calls it.
struct RunningMonitor {
    _notifier: Notifier<NetdevMonitor>,
    monitor: Arc<NetdevMonitor>,
}

impl RunningDevice {
    /// True if the RDMA device has to go because its net device is being unregistered.
    fn is_netdev_unregistered(&self) -> bool {
        self.monitor
            .as_ref()
            .is_some_and(|running| running.monitor.is_unregistered())
    }
}

/// State of the RDMA device: none, registered, or waiting for the net device.
enum RdmaState {
    Nothing,
    Running(RunningDevice),
    /// The driver waits until the net device is there.
    Waiting(#[allow(dead_code)] Notifier<NetdevWaiter>),
}

/// Settings of the RDMA device that died, which the next one takes over.
#[derive(Default)]
struct SavedSettings {
    name: Option<CString>,
    netns: Option<NetnsId>,
    /// Description of the node, of a device with InfiniBand ports.
    node_description: Option<[u8; NODE_DESCRIPTION_SIZE]>,
}

/// The only page size with which processes can map the parts of doorbell areas, which have this
/// size.
const SERVED_PAGE_SIZE: usize = doorbell::PART_SIZE;

/// Number of successive failed tries after which the pauses no longer grow, but are
/// [`SLOW_PAUSE_MS`].
const FAST_TRIES: u32 = 6;

/// A life shorter than this counts as a failed try.
const SHORT_LIFE: Delta = Delta::from_millis(500);

/// Half of the pause after the first failed try, in milliseconds. Each further pause is twice as
/// long.
const PAUSE_MS: u32 = 250;

/// Pause after each of the later failed tries, in milliseconds.
const SLOW_PAUSE_MS: u32 = 15_000;

/// Work that replaces a dead life of the device by a new one.
#[pin_data]
pub(crate) struct Recovery {
    resources: DeviceResources,
    /// The work item that runs this. Each life needs it.
    #[pin]
    work: Mutex<Option<Arc<Work<Recovery>>>>,
    #[pin]
    state: Mutex<RdmaState>,
    stopped: Atomic<bool>,
    /// Number of tries since the device last worked.
    tries: Atomic<u32>,
    #[pin]
    saved: Mutex<SavedSettings>,
}

impl Recovery {
    /// Begins a life and registers the RDMA device, or begins to wait for the net device.
    fn start(&self) -> Result<RdmaState> {
        let work = self.work.lock().clone().ok_or(ENODEV)?;
        let life = DeviceLife::begin(&self.resources, work.clone())?;
        if life.vdev.is_infiniband() {
            self.start_infiniband(life)
        } else {
            self.start_ethernet(life, work)
        }
    }

    /// Registers the RDMA device of a device with Ethernet ports, or begins to wait for the net
    /// device.
    fn start_ethernet(&self, life: DeviceLife, work: Arc<Work<Recovery>>) -> Result<RdmaState> {
        let vdev = &life.vdev;
        let [a, b, c, d, e, f, _, _] = vdev.caps()?.mac;
        let mac = [a, b, c, d, e, f];
        let Some(netdev) = Netdev::by_mac(&mac) else {
            dev_info!(
                self.resources.pdev,
                "no net device has the MAC address {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}: the RDMA device is registered when there is one\n"
            );
            return Ok(RdmaState::Waiting(Notifier::of_mac(
                mac,
                Arc::new(NetdevWaiter(work), GFP_KERNEL)?,
            )?));
        };
        let port = Arc::pin_init(NetdevPort::new(vdev.hw.clone(), netdev), GFP_KERNEL)?;
        port.report_state()?;
        let registration = self.register(
            vdev,
            Some(port.netdev()),
            [0; NODE_DESCRIPTION_SIZE],
            Port::Ethernet(port.clone()),
        )?;
        let report = PortStateWork {
            port: port.clone(),
            device: registration.device_ref(),
        };
        let report = new_work!(Arc::new(report, GFP_KERNEL)?, &self.resources.freezable)?;
        let monitor = Arc::new(NetdevMonitor::new(report, work), GFP_KERNEL)?;
        let notifier = Notifier::new(port.netdev(), monitor.clone())?;
        monitor.catch_up(port.netdev());
        let monitor = RunningMonitor {
            _notifier: notifier,
            monitor,
        };
        self.run(life, registration, Some(monitor))
    }

    /// Registers the RDMA device of a device with InfiniBand ports, which have no net device.
    fn start_infiniband(&self, life: DeviceLife) -> Result<RdmaState> {
        let vdev = &life.vdev;
        let description = self.saved.lock().node_description;
        let port = InfinibandPort::new(vdev, description)?;
        let description = port.description();
        let registration = self.register(vdev, None, description, Port::Infiniband(port))?;
        vdev.port_events.start(registration.device_ref());
        self.run(life, registration, None)
    }

    /// Registers the RDMA device with the settings of the one that died.
    fn register(
        &self,
        vdev: &Arc<VerbsDevice>,
        netdev: Option<&Netdev>,
        node_description: [u8; NODE_DESCRIPTION_SIZE],
        port: Port,
    ) -> Result<Registration<Verbena>> {
        let caps = vdev.caps()?;
        let mut saved = self.saved.lock();
        let settings = Settings {
            netns: saved.netns,
            node_guid: caps.node_guid,
            node_description,
            num_comp_vectors: u32::try_from(vdev.events.comp_eqs().len())?,
            link_layer: port.link_layer(),
            ports: &[netdev],
            local_dma_lkey: caps.local_dma_lkey.get(),
        };
        let registration = Registration::new(
            base::this_module!(crate),
            &self.resources.dma,
            saved.name.as_ref().map_or(c"verbena%d", |name| name),
            &settings,
            Verbena::new(vdev.clone(), port),
        );
        if registration.as_ref().is_err_and(|e| *e == ENFILE) {
            // Another device has this name by now, so the next try takes a free name.
            saved.name = None;
        }
        registration
    }

    /// Returns the state with a registered RDMA device.
    fn run(
        &self,
        life: DeviceLife,
        registration: Registration<Verbena>,
        monitor: Option<RunningMonitor>,
    ) -> Result<RdmaState> {
        Ok(RdmaState::Running(RunningDevice {
            _files: DebugFiles::new(&self.resources, &life.vdev)?,
            monitor,
            registration,
            life,
            since: Instant::now(),
        }))
    }

    /// Ends the dead life, or the wait for the net device. Returns true if the life was too short
    /// to count as one, and `None` if the device is alive.
    fn end_life(&self) -> Option<bool> {
        let mut state = self.state.lock();
        let mut is_short_life = false;
        if let RdmaState::Running(old) = &*state {
            let unregistered = old.is_netdev_unregistered();
            if !old.life.vdev.health.is_dead() && !unregistered {
                return None;
            }
            let died = old.life.vdev.health.died().unwrap_or_else(Instant::now);
            if unregistered || died - old.since >= SHORT_LIFE {
                self.tries.store(0, Relaxed);
            }
            is_short_life = self.tries.load(Relaxed) != 0;
            let device = old.registration.device();
            let mut saved = self.saved.lock();
            saved.netns = Some(device.netns());
            if let Ok(port) = device.infiniband() {
                saved.node_description = Some(port.description());
            }
            // At registration a name with `%` would be a pattern.
            let name = device.name().ok();
            if let Some(name) = name.filter(|name| !name.to_bytes().contains(&b'%')) {
                saved.name = Some(name);
            }
        }
        // The assignment unregisters the device, and nothing of the old life is left after it.
        *state = RdmaState::Nothing;
        Some(is_short_life)
    }

    /// Handles the failure of try number `tries`: logs it, and schedules the next one.
    fn on_failure(&self, tries: u32, why: fmt::Arguments<'_>) {
        let pause = if tries < FAST_TRIES {
            dev_info!(
                self.resources.pdev,
                "try {tries} to revive the device failed: {why}\n"
            );
            PAUSE_MS << tries
        } else {
            // This is logged once, because the reason of each further failure is in the log anyway.
            if tries == FAST_TRIES {
                dev_err!(
                    self.resources.pdev,
                    "the device cannot be revived ({why}): the driver tries again every {} s\n",
                    SLOW_PAUSE_MS / 1000
                );
            }
            SLOW_PAUSE_MS
        };
        if let Some(work) = &*self.work.lock() {
            // The death of the device may have queued the work already, so it is put off.
            work.put_off(pause);
        }
    }
}

impl work::Handler for Recovery {
    fn run(&self) {
        let Some(is_short_life) = self.end_life() else {
            return;
        };
        if self.stopped.load(Relaxed) {
            return;
        }
        let tries = self.tries.load(Relaxed);
        if is_short_life {
            return self.on_failure(tries, fmt!("the device failed again at once"));
        }
        let tries = tries.saturating_add(1);
        self.tries.store(tries, Relaxed);
        match self.start() {
            Ok(new) => {
                if matches!(new, RdmaState::Running(_)) {
                    dev_info!(self.resources.pdev, "the device lives again\n");
                } else {
                    self.tries.store(0, Relaxed);
                }
                *self.state.lock() = new;
            }
            Err(e) => self.on_failure(tries, fmt!("{e:?}")),
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
        *self.recovery.state.lock() = RdmaState::Nothing;
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
                    resources: DeviceResources {
                        pdev: pdev.into(),
                        dma,
                        bars,
                        config,
                        vectors,
                        events: Queue::new(c"verbena-events")?,
                        death: Queue::new(c"verbena-burials")?,
                        freezable: Queue::freezable(c"verbena-awake")?,
                    },
                    work <- new_mutex!(None),
                    state <- new_mutex!(RdmaState::Nothing),
                    stopped: Atomic::new(false),
                    tries: Atomic::new(0),
                    saved <- new_mutex!(SavedSettings::default()),
                }? Error),
                GFP_KERNEL,
            )?;
            // If the device dies while the machine is suspended, recovery runs after the machine is
            // resumed.
            let work = new_work!(recovery.clone(), &recovery.resources.freezable)?;
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
