// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The device: life cycle, and what the daemon around it calls.

use crate::cmd::CommandQueue;
use crate::mem::{Area, GuestMemory};
use crate::qp::Qp;
use crate::shared::Shared;
use crate::slots::Slots;
use crate::{config, Config, Registers};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use verbena_abi::doorbell::{self, Words};
use verbena_abi::stats::Counter;
use verbena_abi::syndrome::Syndrome;
use verbena_roce::sched::{Ready, Wheel};

/// What is to be done after a slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Next {
    /// There is more to do, or there was: call again at once.
    pub busy: bool,
    /// Call again at this time at the latest.
    pub deadline: Option<u64>,
}

/// A context, for people.
#[derive(Clone, Debug)]
pub struct ContextInfo {
    /// Kind of object: "qp", "cq", ...
    pub kind: &'static str,
    /// Its number.
    pub number: u32,
    /// Fields by name.
    pub fields: Vec<(&'static str, String)>,
}

/// The device.
#[derive(Debug)]
pub struct Device {
    pub(crate) shared: Shared,
    pub(crate) qps: Slots<Qp>,
    pub(crate) cmdq: Option<CommandQueue>,
    /// Command slots that were rung, in order.
    pub(crate) commands: VecDeque<u32>,
    /// Commands that are executed late, and when; there are some only where the device misbehaves.
    pub(crate) late: VecDeque<(u64, u32)>,
    /// Areas that are scanned.
    pub(crate) awake: Vec<u32>,
    /// When the silent ones among them are looked for next.
    pub(crate) next_sweep: u64,
    /// Areas that were rung since the last slice.
    pub(crate) rung: Vec<u32>,
    /// Queue pairs with work, in turn: by QPN, grouped by their areas.
    pub(crate) ready: Ready,
    /// Deadlines of queue pairs, by QPN: not later than what the transport says.
    pub(crate) timers: Wheel,
    /// Frames for the uplink.
    pub(crate) frames: VecDeque<Rc<Vec<u8>>>,
}

/// Frames that wait for the uplink; more are dropped, as a full port queue would.
pub(crate) const MAX_FRAMES: usize = 4096;

impl Device {
    /// A device as after power-on.
    pub fn new(config: Config, regs: Arc<Registers>) -> Self {
        Self {
            shared: Shared::new(config, regs),
            qps: Slots::new(config::MAX_QP),
            cmdq: None,
            commands: VecDeque::new(),
            late: VecDeque::new(),
            awake: Vec::new(),
            next_sweep: 0,
            rung: Vec::new(),
            ready: Ready::new(),
            timers: Wheel::new(),
            frames: VecDeque::new(),
        }
    }

    /// Drops everything; the state after power-on. Guest memory is not touched: its owner may have reused it.
    pub fn reset(&mut self) {
        let regs = self.shared.regs.clone();
        // A new life is lied to otherwise than the last, or a driver that a seed stops early never gets further.
        #[cfg(feature = "hostile")]
        let hostile = self.shared.hostile.next_life();
        *self = Self::new(self.shared.config.clone(), regs.clone());
        #[cfg(feature = "hostile")]
        {
            self.shared.hostile = hostile;
        }
        regs.reset();
    }

    /// A command slot was rung.
    pub fn command(&mut self, slot: u32) {
        // One entry for each slot is enough: a driver that rings a slot twice has it executed once or twice.
        if slot < verbena_abi::regs::CMDQ_MAX_SLOTS && self.commands.len() < 256 {
            self.commands.push_back(slot);
        }
    }

    /// The page of an area in the doorbell BAR was written.
    pub fn ring(&mut self, uar: u32) {
        self.shared.counters.add(Counter::Doorbells, 1);
        if let Some(area) = self.shared.uars.get_mut(uar) {
            if !area.rung {
                area.rung = true;
                self.rung.push(uar);
            }
        }
    }

    /// Counts writes to the doorbell BAR that were collapsed into one call of [`Device::ring`].
    pub fn count_doorbells(&mut self, more: u64) {
        self.shared.counters.add(Counter::Doorbells, more);
    }

    /// The vectors to raise since the last call, a bit each.
    pub fn take_interrupts(&mut self) -> u32 {
        std::mem::take(&mut self.shared.interrupts)
    }

    /// The next frame for the uplink.
    pub fn next_frame(&mut self) -> Option<Rc<Vec<u8>>> {
        self.frames.pop_front()
    }

    /// The engine failed: dead until reset. The driver is told if anything of it still works.
    pub fn fail<M: GuestMemory>(&mut self, mem: &M, cause: Syndrome) {
        for (_, uar) in self.shared.uars.iter() {
            Area::new(mem, uar.base).store_release(doorbell::ALIVE, 0);
        }
        self.shared.fatal(mem, cause);
    }

    /// Counters by `stats::Counter`.
    pub fn stats(&self) -> [u64; 30] {
        let mut counters = self.shared.counters.clone();
        for (_, qp) in self.qps.iter() {
            counters.add_transport(qp.transport.counters());
        }
        counters.all()
    }

    /// All contexts, without a look at guest memory.
    pub fn contexts(&self) -> Vec<ContextInfo> {
        let mut all = Vec::new();
        for (number, qp) in self.qps.iter() {
            let c = qp.context(qp.env.rq_ci);
            let live = qp.transport.snapshot();
            all.push(ContextInfo {
                kind: "qp",
                number,
                fields: vec![
                    ("state", live.state.name().into()),
                    ("type", qp.env.qp_type.name().into()),
                    ("dest_qpn", c.attr.dest_qpn.get().to_string()),
                    ("syndrome", format!("{:#x}", c.syndrome.get())),
                    ("pdn", c.pdn.get().to_string()),
                    ("send_cqn", c.send_cqn.get().to_string()),
                    ("recv_cqn", c.recv_cqn.get().to_string()),
                    ("sq_pi", c.sq_pi.get().to_string()),
                    ("sq_next", c.sq_next.get().to_string()),
                    ("sq_ci", c.sq_ci.get().to_string()),
                    ("rq_ci", c.rq_ci.get().to_string()),
                    ("next_psn", c.next_psn.get().to_string()),
                    ("una_psn", c.una_psn.get().to_string()),
                    ("expected_psn", c.expected_psn.get().to_string()),
                ],
            });
        }
        for (number, cq) in self.shared.cqs.iter() {
            let c = cq.context();
            all.push(ContextInfo {
                kind: "cq",
                number,
                fields: vec![
                    ("state", c.state.to_string()),
                    ("entries", cq.ring.size().to_string()),
                    ("producer_index", c.producer_index.get().to_string()),
                    ("consumer_index", c.consumer_index.get().to_string()),
                    ("syndrome", format!("{:#x}", c.syndrome.get())),
                    ("eqn", c.eqn.get().to_string()),
                    ("users", c.users.get().to_string()),
                ],
            });
        }
        for (number, srq) in self.shared.srqs.iter() {
            let c = srq.context(srq.ci);
            all.push(ContextInfo {
                kind: "srq",
                number,
                fields: vec![
                    ("state", c.state.to_string()),
                    ("consumer_index", c.consumer_index.get().to_string()),
                    ("limit", c.limit.get().to_string()),
                ],
            });
        }
        for (number, mr) in self.shared.mrs.iter() {
            all.push(ContextInfo {
                kind: "mr",
                number,
                fields: vec![
                    ("key", format!("{:#x}", mr.key)),
                    ("state", mr.state.name().into()),
                    ("pdn", mr.pdn.to_string()),
                    ("access", format!("{:#x}", mr.access)),
                    ("iova", format!("{:#x}", mr.iova)),
                    ("length", mr.length.to_string()),
                ],
            });
        }
        for (number, eq) in self.shared.eqs.iter() {
            let c = eq.context();
            all.push(ContextInfo {
                kind: "eq",
                number,
                fields: vec![
                    ("vector", eq.vector.to_string()),
                    ("producer_index", c.producer_index.get().to_string()),
                    ("consumer_index", c.consumer_index.get().to_string()),
                    ("waiting", c.waiting.get().to_string()),
                ],
            });
        }
        all
    }
}
