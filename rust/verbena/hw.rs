// SPDX-License-Identifier: GPL-2.0

//! One life of the device: from reset to reset.
//!
//! [`Hw::bring_up`] resets the device, negotiates the version, starts the command queue, asks for
//! capabilities and creates the event queues. Everything that the verbs need hangs on [`Hw`]; when
//! the device dies or is unbound, [`Hw::silence`] resets it once more and takes bus mastering from it,
//! so that no DMA of this life can reach memory that is given back.

use crate::{
    abi::{
        cmd::{
            Command,
            DeviceCaps,
            QueryDevice,
            Quiesced,
            ASYNC_EQN, //
        },
        regs,
        ABI_VERSION,
        ABI_VERSION_MIN, //
    },
    bars::{
        Bars,
        GONE, //
    },
    cmdq::{
        CommandQueue,
        Failure, //
    },
    ctx::Tables,
    doorbell::{
        Areas,
        Served, //
    },
    eq::{
        self,
        AsyncEq,
        AsyncWork,
        CompEq,
        CompVector,
        Vector0,
        Works, //
    },
    health::{
        Cause,
        End,
        Health, //
    },
    ids::{
        Ids,
        Keys, //
    },
    pci::Recovery,
    pulse::Pulse,
    undertaker::Undertaker,
    verbs::Verbena,
};
use kernel::{
    new_mutex,
    pci,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Atomic,
            Relaxed, //
        },
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
use rdma::{
    base::{
        dma::Binding,
        irq::{
            Irq,
            Vectors, //
        },
        sync::msleep,
        table::Table,
        work::{
            Queue,
            Work, //
        }, //
    },
    cq::Cq,
    new_work,
    qp::Qp,
    srq::Srq, //
};

/// How long a reset, or enabling the command queue, may take.
const RESET: Delta = Delta::from_millis(5_000);
const POLL_MS: u32 = 2;

/// Completion vectors that are used at most.
const MAX_COMP_VECTORS: u32 = 31;

/// A live device.
#[pin_data]
pub(crate) struct Hw {
    pub(crate) pdev: ARef<pci::Device>,
    pub(crate) dma: Binding,
    pub(crate) bars: Arc<Bars>,
    pub(crate) health: Arc<Health>,
    #[pin]
    pub(crate) cmdq: CommandQueue,
    #[pin]
    pub(crate) tables: Tables,
    pub(crate) qps: Table<Qp<Verbena>>,
    pub(crate) cqs: Table<Cq<Verbena>>,
    pub(crate) srqs: Table<Srq<Verbena>>,
    /// All doorbell areas that the device serves.
    #[pin]
    pub(crate) served: Served,
    /// The kernel's doorbell areas.
    #[pin]
    pub(crate) areas: Areas,
    #[pin]
    pub(crate) uars: Ids,
    /// A completion failed a check: see [`Hw::distrust`].
    distrusted: Atomic<bool>,
    known: SetOnce<Known>,
    async_eq: SetOnce<Arc<AsyncEq>>,
    comp_eqs: SetOnce<KVec<Arc<CompEq>>>,
    #[pin]
    irqs: Mutex<KVec<Irq>>,
    #[pin]
    works: Mutex<Option<Arc<Works>>>,
    #[pin]
    pub(crate) pulse: Mutex<Option<Arc<Work<Pulse>>>>,
    #[pin]
    silenced: Mutex<bool>,
}

/// What is known once the device has told its capabilities.
pub(crate) struct Known {
    pub(crate) caps: DeviceCaps,
    pub(crate) ids: Pin<KBox<Numbers>>,
}

/// The numbers of objects that are in use.
#[pin_data]
pub(crate) struct Numbers {
    #[pin]
    pub(crate) qpns: Ids,
    #[pin]
    pub(crate) cqns: Ids,
    #[pin]
    pub(crate) srqns: Ids,
    #[pin]
    pub(crate) pdns: Ids,
    #[pin]
    pub(crate) keys: Keys,
}

/// What a life is made of: kept by the PCI driver from one life to the next.
pub(crate) struct Parts {
    pub(crate) pdev: ARef<pci::Device>,
    pub(crate) dma: Binding,
    pub(crate) bars: Arc<Bars>,
    pub(crate) vectors: Vectors,
    /// Where events are handled.
    pub(crate) events: Arc<Queue>,
    /// Where the dead are buried: nothing else may keep this from running.
    pub(crate) burials: Arc<Queue>,
}

impl Hw {
    /// Brings the device up.
    pub(crate) fn bring_up(parts: &Parts, recovery: Arc<Work<Recovery>>) -> Result<Life> {
        let health = Arc::pin_init(Health::new(parts.pdev.clone()), GFP_KERNEL)?;
        reset(&parts.pdev, &parts.bars)?;
        // It has forgotten what it was asked in an earlier life.
        parts.dma.set_master()?;
        negotiate(&parts.pdev, &parts.bars)?;

        let kept = health.clone();
        let for_cmdq = health.clone();
        let hw = Arc::pin_init(
            try_pin_init!(Self {
                pdev: parts.pdev.clone(),
                dma: parts.dma.clone(),
                bars: parts.bars.clone(),
                health: kept,
                cmdq <- CommandQueue::new(&parts.dma, parts.bars.clone(), for_cmdq),
                tables <- Tables::new(&parts.dma, health),
                qps: Table::new()?,
                cqs: Table::new()?,
                srqs: Table::new()?,
                served <- Served::new(),
                areas <- Areas::new(),
                uars <- Ids::new(0, parts.bars.num_uars()),
                distrusted: Atomic::new(false),
                known: SetOnce::new(),
                async_eq: SetOnce::new(),
                comp_eqs: SetOnce::new(),
                irqs <- new_mutex!(KVec::new()),
                works <- new_mutex!(None),
                pulse <- new_mutex!(None),
                silenced <- new_mutex!(false),
            }? Error),
            GFP_KERNEL,
        )?;
        // From here on a failure shuts down again, by the drop of `life`.
        let life = Life { hw: hw.clone() };
        let undertaker = Arc::new(Undertaker::new(hw.clone(), recovery), GFP_KERNEL)?;
        health.set_undertaker(Some(Arc::new(
            new_work!(undertaker, &parts.burials)?,
            GFP_KERNEL,
        )?));
        hw.start(parts)?;
        Pulse::start(&hw)?;
        Ok(life)
    }

    fn start(self: &Arc<Self>, parts: &Parts) -> Result {
        let events = Arc::new(AsyncWork(self.clone()), GFP_KERNEL)?;
        let asynchronous = Arc::new(new_work!(events, &parts.events)?, GFP_KERNEL)?;
        self.add_irq(
            parts,
            0,
            Arc::new(Vector0(asynchronous.clone(), self.clone()), GFP_KERNEL)?,
        )?;
        self.enable_cmdq()?;
        let caps = self.cmdq.exec(&QueryDevice::default())?;
        self.check(&caps)?;
        let ids = KBox::pin_init(Numbers::new(&caps), GFP_KERNEL)?;
        self.known.populate(Known { caps, ids });

        self.async_eq.populate(AsyncEq::new(self)?);
        let count = caps
            .num_comp_vectors
            .get()
            .min(parts.vectors.count().saturating_sub(1))
            .min(caps.max_eq.get().saturating_sub(1))
            .min(MAX_COMP_VECTORS);
        let mut eqs = KVec::with_capacity(count as usize, GFP_KERNEL)?;
        let mut completions = KVec::with_capacity(count as usize, GFP_KERNEL)?;
        for vector in 1..=count {
            let eq = CompEq::new(self, ASYNC_EQN + vector, u16::try_from(vector)?)?;
            let handler = CompVector {
                hw: self.clone(),
                eq: eq.clone(),
            };
            let handler = Arc::new(handler, GFP_KERNEL)?;
            self.add_irq(parts, vector, handler.clone())?;
            let work = new_work!(handler, &parts.events)?;
            completions.push(Arc::new(work, GFP_KERNEL)?, GFP_KERNEL)?;
            eqs.push(eq, GFP_KERNEL)?;
        }
        if eqs.is_empty() {
            dev_err!(self.pdev, "no vector for completions\n");
            return Err(ENODEV);
        }
        self.comp_eqs.populate(eqs);
        let works = Works {
            asynchronous,
            completions,
        };
        *self.works.lock() = Some(Arc::new(works, GFP_KERNEL)?);
        Ok(())
    }

    fn add_irq<H: rdma::base::irq::Handler>(
        &self,
        parts: &Parts,
        vector: u32,
        handler: Arc<H>,
    ) -> Result {
        let irq = parts.vectors.request(vector, c"verbena", handler)?;
        self.irqs.lock().push(irq, GFP_KERNEL)?;
        Ok(())
    }

    fn enable_cmdq(&self) -> Result {
        let (addr, slots) = self.cmdq.place();
        // CAST: the two halves of the address.
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

    /// Refuses capabilities that the driver cannot live with.
    fn check(&self, caps: &DeviceCaps) -> Result {
        let sane = caps.max_qp.get() > 2
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
            dev_err!(self.pdev, "the device announces senseless capabilities\n");
            return Err(ENODEV);
        }
        Ok(())
    }

    /// Capabilities, numbers in use. Known before anything is registered.
    pub(crate) fn known(&self) -> Result<&Known> {
        self.known.as_ref().ok_or(ENODEV)
    }

    /// Capabilities.
    pub(crate) fn caps(&self) -> Result<&DeviceCaps> {
        Ok(&self.known()?.caps)
    }

    /// Whether the device announces all of `features`.
    pub(crate) fn has(&self, features: u64) -> bool {
        self.caps()
            .is_ok_and(|caps| caps.features.get() & features == features)
    }

    pub(crate) fn async_eq(&self) -> Option<&Arc<AsyncEq>> {
        self.async_eq.as_ref()
    }

    /// The completion event queues.
    pub(crate) fn comp_eqs(&self) -> &[Arc<CompEq>] {
        self.comp_eqs.as_ref().map_or(&[], |eqs| eqs)
    }

    /// Executes a command that a dead device need not execute any more: it succeeds when the device is
    /// silent or lost.
    pub(crate) fn exec_unless_dead<C: Command>(&self, request: &C) -> Result<C::Reply> {
        match self.cmdq.exec(request) {
            Ok(reply) => Ok(reply),
            Err(Failure::Refused(e, _)) if !self.health.is_dead() => Err(e),
            Err(_) => {
                self.health.wait_end();
                Ok(C::Reply::default())
            }
        }
    }

    /// [`take_back`](CommandQueue::take_back) of what has no memory.
    pub(crate) fn exec_destroy<C: Command>(&self, request: &C) -> Option<C::Reply> {
        self.cmdq.take_back(request, &[])
    }

    /// Logs a complaint about the device, unless it has had too many.
    pub(crate) fn complain(&self, what: &str) {
        if self.health.may_log() {
            dev_warn!(self.pdev, "device: {what}\n");
        }
    }

    /// A completion is wrong and skipped, so what it was for may never complete. From now on what a
    /// queue pair in ERR has outstanding is flushed in software too, so that no drain waits for ever.
    pub(crate) fn distrust(&self, what: &str) {
        self.complain(what);
        self.distrusted.store(true, Relaxed);
        self.health.flush();
    }

    /// Whether software may have something to flush.
    pub(crate) fn may_flush(&self) -> bool {
        self.health.has_ended() || self.distrusted.load(Relaxed)
    }

    /// The works that handle events, while there are any.
    pub(crate) fn works(&self) -> Option<Arc<Works>> {
        self.works.lock().clone()
    }

    /// Waits until the asynchronous events of an object that was quiesced have been handled.
    pub(crate) fn drain_events(&self, quiesced: &Quiesced) {
        if let Some(works) = self.works() {
            works.drain_async(self, quiesced.async_pi.get());
        }
    }

    /// Waits until the completion events of a CQ of `eq` that was quiesced have been handled.
    pub(crate) fn drain_completions(&self, eq: &CompEq, quiesced: &Quiesced) {
        if let Some(works) = self.works() {
            works.drain(self, eq, quiesced.comp_pi.get());
        }
    }

    /// Ends the life of a device that is dead: when this returns it is silent, or lost. Once; whoever
    /// comes later waits.
    pub(crate) fn silence(&self) {
        let mut silenced = self.silenced.lock();
        if *silenced {
            return;
        }
        // Whatever becomes of the reset, without bus mastering there is no DMA either.
        let reset = reset(&self.pdev, &self.bars).is_ok();
        let forbidden = self.dma.clear_master();
        self.health.end(if reset || forbidden {
            End::Silent
        } else {
            End::Lost
        });
        self.served.declare_dead();
        let irqs = core::mem::take(&mut *self.irqs.lock());
        // Waits for handlers that run.
        drop(irqs);
        *silenced = true;
    }
}

impl Numbers {
    fn new(caps: &DeviceCaps) -> impl PinInit<Self, Error> {
        let (qp, cq, srq, pd, mr) = (
            caps.max_qp.get(),
            caps.max_cq.get(),
            caps.max_srq.get(),
            caps.max_pd.get(),
            caps.max_mr.get(),
        );
        try_pin_init!(Self {
            // QPNs 0 and 1 are the special queue pairs.
            qpns <- Ids::new(2, qp),
            cqns <- Ids::new(0, cq),
            srqns <- Ids::new(0, srq),
            pdns <- Ids::new(0, pd),
            keys <- Keys::new(mr),
        }? Error)
    }
}

/// Ends a life when it is dropped.
pub(crate) struct Life {
    pub(crate) hw: Arc<Hw>,
}

impl Drop for Life {
    fn drop(&mut self) {
        let hw = &self.hw;
        // The areas are the last that need commands, but for the event queues.
        hw.areas.clear();
        if !hw.health.is_dead() {
            eq::end(hw);
        }
        hw.health.declare_dead(Cause::Unbind);
        hw.silence();
        // The works and the interrupt handlers hold the device, and the device them.
        hw.health.set_undertaker(None);
        let pulse = hw.pulse.lock().take();
        let works = hw.works.lock().take();
        drop((pulse, works));
        let abandoned = hw.health.total_abandoned();
        if abandoned != 0 {
            dev_err!(
                hw.pdev,
                "{abandoned} bytes are left to the device for ever\n"
            );
        }
    }
}

/// Resets the device; afterwards it is as after power-on and does no DMA.
fn reset(pdev: &pci::Device, bars: &Bars) -> Result {
    if bars.read(regs::MAGIC) != regs::MAGIC_VALUE {
        dev_err!(pdev, "the device is not there, or is none of ours\n");
        return Err(ENODEV);
    }
    bars.write(regs::CONTROL, regs::CONTROL_RESET);
    wait_status(bars, |status| {
        status & (regs::STATUS_RESETTING | regs::STATUS_READY) == 0
    })
    .inspect_err(|_| dev_err!(pdev, "the device does not come out of reset\n"))
}

fn wait_status(bars: &Bars, done: impl Fn(u32) -> bool) -> Result {
    // A sleep may take many times as long as it was asked for, so the clock counts.
    let begin = Instant::<Monotonic>::now();
    loop {
        let late = begin.elapsed() >= RESET;
        let status = bars.read(regs::STATUS);
        if status == GONE {
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

/// Chooses the newest version of the contract that both sides speak.
fn negotiate(pdev: &pci::Device, bars: &Bars) -> Result {
    let version = bars.read(regs::VERSION);
    let (oldest, newest) = (version >> 16, version & 0xffff);
    let choice = newest.min(u32::from(ABI_VERSION));
    if choice < oldest || choice < u32::from(ABI_VERSION_MIN) {
        dev_err!(
            pdev,
            "the device speaks versions {oldest} to {newest}, the driver {ABI_VERSION_MIN} to {ABI_VERSION}\n"
        );
        return Err(ENODEV);
    }
    bars.write(regs::VERSION_SELECT, choice);
    Ok(())
}
