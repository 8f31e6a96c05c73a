// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The device: life cycle, and what the daemon around it calls.

mod areas;
pub mod boundary;
pub(crate) mod cmd;
pub mod crossing;
mod doors;
pub mod figures;
mod laboratory;
mod misbehaviour;
mod net;
pub mod recording;
pub(crate) mod sched;
pub mod snapshot;

use crate::device::boundary::Boundary;
use crate::device::cmd::{CommandQueue, Running};
use crate::device::snapshot::Survey;
use crate::execution::shared::Shared;
use crate::memory::GuestMemory;
use crate::objects::mcast::Groups;
use crate::objects::port::{Gid, Outgoing};
use crate::objects::qp::Qp;
use crate::slots::Slots;
use crate::tap::Tap;
use crate::{config, Config, Registers};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use verbena_abi::stats::Counter;
use verbena_abi::syndrome::Syndrome;
use verbena_record::full::Item;
use verbena_roce::sched::{Ready, Wheel};

/// What is to be done after a slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Next {
    /// There is more to do, or there was: call again at once.
    pub busy: bool,
    /// Call again at this time at the latest.
    pub deadline: Option<u64>,
    /// Once all is done that was posted: the most entries that the program has yet to take from one of the CQs which this slice
    /// wrote to.
    pub untaken: u32,
}

/// The device.
#[derive(Debug)]
pub struct Device {
    pub(crate) shared: Shared,
    pub(crate) qps: Slots<Qp>,
    /// Who is in which multicast group.
    pub(crate) groups: Groups,
    /// Copies that were made for their members.
    pub(crate) group_copies: u32,
    /// Frames for the uplink that found no room since they were asked for.
    pub(crate) frames_lost: u64,
    pub(crate) cmdq: Option<CommandQueue>,
    /// Command slots that were rung, in order ...
    pub(crate) commands: VecDeque<u32>,
    /// ... and as bits: each is there once.
    pub(crate) rung_slots: u64,
    /// A command that takes several slices. Those behind it wait.
    pub(crate) running: Option<Running>,
    /// Commands that are executed late, and when; there are some only where the device misbehaves.
    pub(crate) late: VecDeque<(u64, u32)>,
    /// Counters that are being added up for the daemon.
    pub(crate) survey: Option<Survey>,
    /// Areas that are scanned.
    pub(crate) awake: Vec<u32>,
    /// Where among them the next slice's scan begins.
    pub(crate) first_awake: usize,
    /// When the silent ones among them are looked for next.
    pub(crate) next_sweep: u64,
    /// Areas that were rung since the last slice.
    pub(crate) rung: Vec<u32>,
    /// Queue pairs with work, in turn: by QPN, grouped by their areas.
    pub(crate) ready: Ready,
    /// Deadlines of queue pairs, by QPN: not later than what the transport says.
    pub(crate) timers: Wheel,
    /// So many numbers of queue pairs are yet to be asked whether their CQ or SRQ has died ...
    pub(crate) may_follow: u32,
    /// ... from this one on ...
    pub(crate) follow_next: u32,
    /// ... and so much of the present slice is left for that.
    pub(crate) follow_budget: u32,
    /// Packets for elsewhere that may be for another device of the process.
    pub(crate) crossing: VecDeque<Outgoing>,
    /// Frames for the uplink.
    pub(crate) frames: VecDeque<Rc<Vec<u8>>>,
    /// Its addresses have changed since they were asked for.
    pub(crate) readdressed: bool,
    /// What is recorded of all that it is told, reads and does.
    pub(crate) boundary: Boundary,
}

/// What the device answers to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// The entries of the GID table that are set.
    pub gids: Vec<Gid>,
    /// The multicast groups that have members.
    pub groups: Vec<[u8; 16]>,
}

/// Frames that wait for the uplink; more are dropped, as a full port queue would.
pub(crate) const MAX_FRAMES: usize = 4096;

impl Device {
    /// A device as after power-on.
    pub fn new(config: Config, regs: Arc<Registers>) -> Self {
        Self {
            shared: Shared::new(config, regs),
            qps: Slots::new(config::MAX_QP),
            groups: Groups::default(),
            group_copies: 0,
            frames_lost: 0,
            cmdq: None,
            commands: VecDeque::new(),
            rung_slots: 0,
            running: None,
            late: VecDeque::new(),
            survey: None,
            awake: Vec::new(),
            first_awake: 0,
            next_sweep: 0,
            rung: Vec::new(),
            ready: Ready::new(),
            timers: Wheel::new(),
            may_follow: 0,
            follow_next: 0,
            follow_budget: 0,
            crossing: VecDeque::new(),
            frames: VecDeque::new(),
            readdressed: true,
            boundary: Boundary::default(),
        }
    }

    /// Drops everything; the state after power-on. Guest memory is not touched: its owner may have reused it.
    pub fn reset(&mut self) {
        self.boundary.note(|| Item::Reset {});
        let regs = self.begin_anew();
        self.begin_taping();
        regs.reset();
    }

    /// As after power-on, but for the registers, which come back.
    fn begin_anew(&mut self) -> Arc<Registers> {
        let regs = self.shared.regs.clone();
        // Each reset draws other lies. With the same ones a driver would stop at the same place for ever.
        #[cfg(feature = "hostile")]
        let hostile = self.shared.hostile.next_life();
        let tap = self.shared.tap.take();
        let mut lab = self.shared.lab.take();
        let mut recorder = self.shared.recorder.take();
        let boundary = std::mem::take(&mut self.boundary);
        let now = self.shared.now;
        recorder.iter_mut().for_each(|recorder| recorder.reset(now));
        *self = Self::new(self.shared.config.clone(), regs.clone());
        self.shared.tap = tap;
        lab.iter_mut().for_each(|lab| lab.reset());
        self.shared.lab = lab;
        self.shared.recorder = recorder;
        self.boundary = boundary;
        #[cfg(feature = "hostile")]
        {
            self.shared.hostile = hostile;
        }
        regs
    }

    /// Has the port watched by a tap, over resets too. False: somebody watches it already.
    pub fn set_tap(&mut self, tap: Tap) -> bool {
        let free = self.shared.tap.as_ref().is_none_or(|tap| !tap.is_watched());
        // What a tap reads would be in a recording, and not in its replay.
        let free = free && !self.boundary.is_taped();
        if free {
            self.shared.tap = Some(Box::new(tap));
        }
        free
    }

    /// Hands the tap, the rules and the recording over to the device that takes this one's place.
    pub fn pass_tap(&mut self, to: &mut Self) {
        to.shared.tap = self.shared.tap.take();
        to.shared.lab = self.shared.lab.take();
        to.shared.recorder = self.shared.recorder.take();
        to.boundary = std::mem::take(&mut self.boundary);
    }

    /// A command slot was rung.
    pub fn command(&mut self, slot: u32) {
        self.boundary.note(|| Item::Command { slot });
        let bit = 1u64.checked_shl(slot).unwrap_or(0);
        if bit & !self.rung_slots != 0 {
            self.rung_slots |= bit;
            self.commands.push_back(slot);
        }
    }

    /// The page of an area in the doorbell BAR was written.
    pub fn ring(&mut self, uar: u32) {
        self.boundary.note(|| Item::Ring { uar });
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
        self.boundary.note(|| Item::Doorbells { more });
        self.shared.counters.add(Counter::Doorbells, more);
    }

    /// The vectors to raise since the last call, a bit each.
    pub fn take_interrupts(&mut self) -> u32 {
        let vectors = std::mem::take(&mut self.shared.interrupts);
        if vectors != 0 {
            self.boundary.note(|| Item::Raised { vectors });
        }
        vectors
    }

    /// The next frame for the uplink.
    pub fn next_frame(&mut self) -> Option<Rc<Vec<u8>>> {
        let frame = self.frames.pop_front();
        if let (Some(frame), true) = (&frame, self.boundary.is_taped()) {
            self.tape_sent(frame);
        }
        frame
    }

    /// How many frames for the uplink were dropped since the last call, because too many waited.
    pub fn take_frames_lost(&mut self) -> u64 {
        std::mem::take(&mut self.frames_lost)
    }

    /// What the device answers to, if that has changed since the last call. A device after power-on answers to nothing, and
    /// says so.
    pub fn take_addresses(&mut self) -> Option<Addresses> {
        std::mem::take(&mut self.readdressed).then(|| Addresses {
            gids: self.shared.port.own(),
            groups: self.groups.all().copied().collect(),
        })
    }

    /// The engine failed: dead until reset. The driver is told if anything of it still works.
    pub fn fail<M: GuestMemory>(&mut self, mem: &M, cause: Syndrome) {
        self.shared.fatal(mem, cause);
    }
}
