// SPDX-License-Identifier: GPL-2.0

//! The hardware in one of its lives: registers, commands, context tables, numbers.
//!
//! [`Hw::new`] resets the device and negotiates the version. [`Hw::start`] starts the command queue
//! and queries the capabilities. When the device dies or is unbound, [`Hw::silence`] resets it once
//! more and clears bus mastering, so that no DMA of this life can reach memory that is freed.

use crate::{
    abi::{
        cmd::{
            Command,
            DeviceCaps,
            LinkLayer,
            QueryDevice, //
            FIRST_QPN,
        },
        regs,
        ABI_VERSION,
        ABI_VERSION_MIN, //
    },
    bars::{
        Bars,
        PCI_ERROR_RESPONSE, //
    },
    cmdq::{
        CommandError,
        CommandQueue, //
    },
    ctx::ContextTables,
    health::{
        DeathCause,
        FinalStage,
        Health, //
    },
    ids::{
        self,
        IdAllocator,
        KeyAllocator, //
    },
    served_areas::ServedAreas, //
};
use base::{
    config::Config,
    dma::Binding,
    irq::{
        Irq,
        Vectors, //
    },
    share::Supply,
    sync::msleep,
    work::Queue, //
};
use kernel::{
    new_mutex,
    pci,
    prelude::*,
    str::CString,
    sync::{
        aref::ARef,
        Arc,
        Mutex,
        SetOnce, //
    },
    time::{
        Delta,
        Instant,
        Monotonic, //
    }, //
};

/// Time limit of a reset, and of enabling the command queue.
const RESET_TIMEOUT: Delta = Delta::from_millis(5_000);
const POLL_MS: u32 = 2;

/// Vector of commands and asynchronous events. The vectors of completions follow it.
const ASYNC_VECTOR: u32 = 0;

/// First version in which a device announces the link layer of its ports.
const LINK_LAYER_VERSION: u16 = 13;

/// The hardware, for one life. See the [module](self).
#[pin_data]
pub(crate) struct Hw {
    pub(crate) pdev: ARef<pci::Device>,
    pub(crate) dma: Binding,
    pub(crate) bars: Arc<Bars>,
    config: Arc<Config>,
    pub(crate) health: Arc<Health>,
    /// Version of the contract on which driver and device have agreed. It is the newest version
    /// that a provider can use.
    pub(crate) abi_version: u16,
    #[pin]
    pub(crate) cmdq: CommandQueue,
    #[pin]
    pub(crate) tables: ContextTables,
    /// All doorbell areas that the device serves.
    #[pin]
    pub(crate) served: ServedAreas,
    info: SetOnce<DeviceInfo>,
    #[pin]
    irqs: Mutex<KVec<Irq>>,
    #[pin]
    silenced: Mutex<bool>,
}

/// Data that is known after the device has reported its capabilities.
pub(crate) struct DeviceInfo {
    pub(crate) caps: DeviceCaps,
    pub(crate) ids: Pin<KBox<DeviceIds>>,
}

/// Numbers of objects, free and in use.
#[pin_data]
pub(crate) struct DeviceIds {
    /// Doorbell areas, of which there are as many as the device supports and its BAR has pages for.
    #[pin]
    pub(crate) uars: IdAllocator,
    #[pin]
    pub(crate) qpns: IdAllocator,
    #[pin]
    pub(crate) cqns: IdAllocator,
    #[pin]
    pub(crate) srqns: IdAllocator,
    #[pin]
    pub(crate) pdns: IdAllocator,
    #[pin]
    pub(crate) xrcdns: IdAllocator,
    /// XRC targets, whose slots are in the kernel's doorbell areas.
    pub(crate) targets: Arc<Supply>,
    #[pin]
    pub(crate) keys: KeyAllocator,
}

/// Resources of a life that the PCI driver keeps from one life to the next.
pub(crate) struct DeviceResources {
    pub(crate) pdev: ARef<pci::Device>,
    pub(crate) dma: Binding,
    pub(crate) bars: Arc<Bars>,
    pub(crate) config: Arc<Config>,
    pub(crate) vectors: Vectors,
    /// Queue for the works that handle events.
    pub(crate) events: Arc<Queue>,
    /// Queue for the death work, which no other work may delay.
    pub(crate) death: Arc<Queue>,
    /// Queue for works that use the device on their own. They do not run while the machine is
    /// suspended.
    pub(crate) freezable: Arc<Queue>,
}

impl Hw {
    /// Resets the device, and negotiates the version with it.
    pub(crate) fn new(resources: &DeviceResources) -> Result<Arc<Self>> {
        let health = Arc::pin_init(Health::new(resources.pdev.clone()), GFP_KERNEL)?;
        reset(&resources.pdev, &resources.bars, &resources.config)?;
        // After the reset the device does no DMA that an earlier life has requested.
        resources.dma.set_master()?;
        let abi_version = negotiate(&resources.pdev, &resources.bars)?;

        let hw_health = health.clone();
        let for_cmdq = health.clone();
        Arc::pin_init(
            try_pin_init!(Self {
                pdev: resources.pdev.clone(),
                dma: resources.dma.clone(),
                bars: resources.bars.clone(),
                config: resources.config.clone(),
                health: hw_health,
                abi_version,
                cmdq <- CommandQueue::new(&resources.dma, resources.bars.clone(), for_cmdq),
                tables <- ContextTables::new(&resources.dma, health),
                served <- ServedAreas::new(resources.bars.num_uars()),
                info: SetOnce::new(),
                irqs <- new_mutex!(KVec::new()),
                silenced <- new_mutex!(false),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Starts the command queue, whose interrupt has been requested, and queries the capabilities.
    pub(crate) fn start(&self) -> Result {
        self.enable_cmdq()?;
        let caps = self.cmdq.exec(&QueryDevice::default())?;
        self.check(&caps)?;
        let ids = KBox::pin_init(DeviceIds::new(&caps, self.bars.num_uars()), GFP_KERNEL)?;
        self.info.populate(DeviceInfo { caps, ids });
        Ok(())
    }

    /// Requests a vector, which is released when the device is silenced.
    pub(crate) fn add_irq<H: base::irq::Handler>(
        &self,
        resources: &DeviceResources,
        vector: u32,
        handler: Arc<H>,
    ) -> Result {
        // The name follows the convention of other drivers: /proc/interrupts shows the purpose of
        // the vector, and the device.
        let device = self.health.name();
        let name = match vector {
            ASYNC_VECTOR => CString::try_from_fmt(fmt!("verbena_async@pci:{device}"))?,
            vector => CString::try_from_fmt(fmt!(
                "verbena_comp{}@pci:{device}",
                vector - ASYNC_VECTOR - 1
            ))?,
        };
        let irq = resources.vectors.request(vector, &name, handler)?;
        self.irqs.lock().push(irq, GFP_KERNEL)?;
        Ok(())
    }

    fn enable_cmdq(&self) -> Result {
        let (addr, slots) = self.cmdq.slot_memory();
        // CAST: These are the two halves of the address.
        self.bars.write(regs::CMDQ_BASE_LO, addr as u32);
        self.bars.write(regs::CMDQ_BASE_HI, (addr >> 32) as u32);
        self.bars.write(regs::CMDQ_SLOTS, slots);
        self.bars.write(regs::CMDQ_ENABLE, 1);
        wait_status(&self.bars, |status| {
            status & (regs::STATUS_READY | regs::STATUS_FATAL) != 0
        })?;
        if self.bars.read(regs::STATUS) & regs::STATUS_FATAL != 0 {
            dev_err!(
                self.pdev,
                "the device refuses the command queue, syndrome {:#06x}\n",
                self.bars.read(regs::FATAL_SYNDROME)
            );
            return Err(EIO);
        }
        Ok(())
    }

    /// Returns `ENODEV` for capabilities that the driver cannot work with.
    fn check(&self, caps: &DeviceCaps) -> Result {
        let sane = caps.max_qp.get() > FIRST_QPN
            && caps.max_cq.get() > 0
            && caps.max_mr.get() > 1
            && caps.max_pd.get() > 0
            && caps.max_gid.get() > 0
            && caps.max_uar.get() > 0
            && caps.max_qp_wr.get().is_power_of_two()
            && caps.max_cqe.get().is_power_of_two()
            && caps.max_send_sge.get() > 0
            && caps.max_recv_sge.get() > 0
            && caps.page_size_cap.get() & kernel::page::PAGE_SIZE as u64 != 0;
        if !sane {
            dev_err!(
                self.pdev,
                "the device announces invalid capabilities: a limit is too low or no power of two, or pages of {} bytes are not supported\n",
                kernel::page::PAGE_SIZE
            );
            return Err(ENODEV);
        }
        if self.abi_version >= LINK_LAYER_VERSION && LinkLayer::from_raw(caps.link_layer).is_none()
        {
            dev_err!(
                self.pdev,
                "the device announces link layer {}, and the driver supports only Ethernet (0) and InfiniBand (1)\n",
                caps.link_layer
            );
            return Err(ENODEV);
        }
        Ok(())
    }

    /// Returns capabilities and numbers. They are known before any RDMA device is registered.
    pub(crate) fn info(&self) -> Result<&DeviceInfo> {
        self.info.as_ref().ok_or(ENODEV)
    }

    /// Returns the capabilities of the device.
    pub(crate) fn caps(&self) -> Result<&DeviceCaps> {
        Ok(&self.info()?.caps)
    }

    /// True if the link layer of the ports is InfiniBand, which a device of an older version does
    /// not offer.
    pub(crate) fn is_infiniband(&self) -> bool {
        self.abi_version >= LINK_LAYER_VERSION
            && self
                .caps()
                .is_ok_and(|caps| caps.link_layer == LinkLayer::InfiniBand.to_raw())
    }

    /// True if the device supports all of `features`.
    pub(crate) fn has(&self, features: u64) -> bool {
        self.caps()
            .is_ok_and(|caps| caps.features.get() & features == features)
    }

    /// Executes a command that is unnecessary for a dead device. If the device is dead, waits until
    /// it is silent or lost, and then returns a default reply.
    pub(crate) fn exec_unless_dead<C: Command>(&self, request: &C) -> Result<C::Reply> {
        match self.cmdq.exec(request) {
            Ok(reply) => Ok(reply),
            Err(CommandError::Refused(e, ..)) if !self.health.is_dead() => Err(e),
            Err(_) => {
                self.health.wait_end();
                Ok(C::Reply::default())
            }
        }
    }

    /// Executes [`take_back`](CommandQueue::take_back) for an object without memory.
    pub(crate) fn exec_destroy<C: Command>(&self, request: &C) -> Option<C::Reply> {
        self.cmdq.take_back(request, &[])
    }

    /// Logs a complaint about the device, unless the limit of complaints is reached.
    pub(crate) fn complain(&self, what: &str) {
        if self.health.may_log() {
            dev_warn!(self.pdev, "device: {what}\n");
        }
    }

    /// Declares the device dead because of a wrong completion, and has all requests flushed. The
    /// request that should have completed may never do so, and a kernel user may wait for it
    /// without a timeout.
    pub(crate) fn distrust(&self, what: &'static str) {
        self.health.declare_dead(DeathCause::Protocol(what));
    }

    /// Ends the life of a dead device, which is silent or lost afterwards. Only the first call
    /// does, and later calls wait for it.
    pub(crate) fn silence(&self) {
        let mut silenced = self.silenced.lock();
        if *silenced {
            // A bring-up that was still running may have requested more vectors since.
            let late = core::mem::take(&mut *self.irqs.lock());
            drop(late);
            return;
        }
        // Even if the reset fails, there is no DMA without bus mastering.
        let reset = reset(&self.pdev, &self.bars, &self.config).is_ok();
        let forbidden = self.dma.clear_master();
        self.health.end(if reset || forbidden {
            FinalStage::Silent
        } else {
            FinalStage::Lost
        });
        self.served.declare_dead();
        let irqs = core::mem::take(&mut *self.irqs.lock());
        // Dropping waits for handlers that run.
        drop(irqs);
        *silenced = true;
    }
}

impl DeviceIds {
    fn new(caps: &DeviceCaps, pages: u32) -> impl PinInit<Self, Error> {
        let (qp, cq, srq, pd, mr) = (
            caps.max_qp.get(),
            caps.max_cq.get(),
            caps.max_srq.get(),
            caps.max_pd.get(),
            caps.max_mr.get(),
        );
        let uar = caps.max_uar.get().min(pages);
        try_pin_init!(Self {
            uars <- IdAllocator::for_areas(uar),
            qpns <- IdAllocator::new(c"queue pairs", FIRST_QPN, qp),
            cqns <- IdAllocator::new(c"completion queues", 0, cq),
            pdns <- IdAllocator::new(c"protection domains", 0, pd),
            // 0 stands for no SRQ: a completion that names it is that of a queue pair's own
            // receive.
            srqns <- IdAllocator::new(c"shared receive queues", 1, srq),
            // 0 stands for no domain here, too.
            xrcdns <- IdAllocator::new(c"XRC domains", 1, pd),
            targets: Supply::new(c"XRC targets", ids::MAX_XRC_TARGETS, 0)?,
            keys <- KeyAllocator::new(mr),
        }? Error)
    }
}

/// Resets the device, which is then as after power-on and does no DMA. If the device has lost its
/// configuration space, the space is restored first.
fn reset(pdev: &pci::Device, bars: &Bars, config: &Config) -> Result {
    if config.restore() {
        dev_warn!(
            pdev,
            "configuration space was lost, as after loading a VM snapshot: restored\n"
        );
    }
    let magic = bars.read(regs::MAGIC);
    if magic != regs::MAGIC_VALUE {
        dev_err!(
            pdev,
            "register MAGIC is {magic:#010x}, not {:#010x}: the device is gone, or is not supported\n",
            regs::MAGIC_VALUE
        );
        return Err(ENODEV);
    }
    bars.write(regs::CONTROL, regs::CONTROL_RESET);
    wait_status(bars, |status| {
        status & (regs::STATUS_RESETTING | regs::STATUS_READY) == 0
    })
    .inspect_err(|e| dev_err!(pdev, "the device did not complete its reset: {e:?}\n"))
}

fn wait_status(bars: &Bars, done: impl Fn(u32) -> bool) -> Result {
    // A sleep may take many times as long as requested, so the clock determines the timeout.
    let begin = Instant::<Monotonic>::now();
    loop {
        let late = begin.elapsed() >= RESET_TIMEOUT;
        let status = bars.read(regs::STATUS);
        if status == PCI_ERROR_RESPONSE {
            return Err(ENODEV);
        }
        if done(status) {
            return Ok(());
        }
        if late {
            return Err(ETIMEDOUT);
        }
        msleep(POLL_MS);
    }
}

/// Chooses the newest version of the contract that both sides support, and writes it to the device.
fn negotiate(pdev: &pci::Device, bars: &Bars) -> Result<u16> {
    let version = bars.read(regs::VERSION);
    let (oldest, newest) = (version >> 16, version & 0xffff);
    let choice = newest.min(u32::from(ABI_VERSION));
    if choice < oldest || choice < u32::from(ABI_VERSION_MIN) {
        dev_err!(
            pdev,
            "no common ABI version: the device supports {oldest} to {newest}, the driver {ABI_VERSION_MIN} to {ABI_VERSION}: update the older one\n"
        );
        return Err(ENODEV);
    }
    bars.write(regs::VERSION_SELECT, choice);
    Ok(choice.try_into()?)
}
