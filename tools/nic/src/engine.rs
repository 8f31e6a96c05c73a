// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The engine's thread: it owns the device of each VM and gives them time, slice after slice, in turn.
//!
//! A slice is bounded, and between two slices the front may change the map of guest RAM or close the gate. Posts in guest
//! memory make no noise, so the engine polls; how eagerly, depends on how long nothing has happened:
//!
//! | silence | what the engine does | price of noticing a post |
//! | --- | --- | --- |
//! | up to [`SPIN`] or [`SPIN_CROWDED`] | looks again at once | none |
//! | none, but a program is behind with its CQ | sleeps for 1 us for each entry, up to [`PAUSE`] | none: it has not come to that yet |
//! | up to [`AWAKE`] | sleeps for [`NAP_MIN`] to [`NAP_MAX`] between looks; mail wakes it | a nap |
//! | longer | tells the guest that it is asleep, and blocks once all guests are told | one doorbell write of the guest |
//!
//! Each VM has a silence of its own: one that is silent is told so and gets no slices, while others go on. How the engine naps goes
//! by the one that was busy last.
//!
//! The machine often has fewer cores than busy threads (two virtual CPUs that poll, and this thread). A thread that
//! only spins is then taken off its core for milliseconds; one that naps wakes up ahead of those that never sleep. So
//! spinning is short, and with [`FEW_CORES`] the engine stays away while the one that takes the completions has [`BEHIND`] or
//! more to take: what is posted meanwhile is done at once then, and both virtual CPUs have a core. perftest's sends of 64 bytes
//! on two cores, medians of runs that took turns: 15 to 23 MB/s without, 33 to 55 with it.
//!
//! A panic of the device model ends at the [slice](crate::slice): QEMU and the driver get answers, and a reset begins again
//! with a new device. A panic of the engine's own code ends the turn of the VM (`engine/vm.rs`) that it was busy with, whose device is
//! then dead too, and which is told of it by vector 0; the others do not notice.

mod answers;
mod arrivals;
mod vm;

use crate::common::Common;
use crate::network::{Network, Trail};
use crate::shared::Shared;
use crate::switch::Ports;
use crate::uplink::Batch;
use rustix::event::{PollFd, PollFlags};
use std::num::NonZeroU64;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;
use verbena_device::Config;
use vm::Vm;

/// So long the engine looks again at once after something happened, where there are cores for it: about the time that a
/// guest needs to see a completion and post again.
const SPIN: u64 = 20_000;
/// The same with [`FEW_CORES`]: a spinning engine then keeps the core from the virtual CPU that is to answer. With 20 us
/// perftest's write latency was 25 us on two cores, with this 18 us; with 2 us it is 16 us or, when answers come a
/// little later, 32 us.
const SPIN_CROWDED: u64 = 5_000;
/// Cores that two busy virtual CPUs and the engine cannot share without getting in each other's way.
const FEW_CORES: usize = 2;
/// With so many completions to take, a program does not wait for the next.
const BEHIND: u32 = 32;
/// The longest time that it is left alone with them.
const PAUSE: u64 = 100_000;
/// Nobody takes a completion faster than this: a fast virtual CPU does in a tenth of it, but has posts to make too.
const TAKE: u64 = 1_000;
/// So long it stays awake, taking naps. Posts that come more often than this ring no doorbell.
const AWAKE: u64 = 1_000_000;
/// The first nap. The kernel adds about 15 us. With shorter naps two virtual CPUs that play ping-pong on two cores do it
/// in milliseconds, not in tens of microseconds: the one that this thread has preempted hardly gets to run before it is
/// preempted again.
const NAP_MIN: u64 = 15_000;
/// The longest nap: what a post may wait at most while the engine is awake.
const NAP_MAX: u64 = 30_000;
/// Naps are a sixteenth of the silence so far: a post after a long silence can wait a little longer.
const NAP_SHARE: u64 = 16;
/// Timers of this thread may be late by this much (Linux' default of 50 us would double each nap).
const TIMER_SLACK: u64 = 1_000;
/// How often HEARTBEAT counts at least, in nanoseconds: twice a second, so that it moves every second on a busy host too.
const BEAT: u64 = 500_000_000;
/// The priority that the engine asks for, as a real device has one: its naps end sooner. Without the right to ask it
/// goes without.
const NICE: i32 = -10;

/// An engine that is awake looks at the uplinks this often: each look is a system call, and slices can be shorter than one.
const LOOK: u64 = 2_000;
/// The longest wait for room in an uplink.
const CROWDED: Duration = Duration::from_micros(200);
/// How often a VM that does nothing on purpose is looked at, in nanoseconds.
const STALL_LOOK: u64 = 1_000_000;

/// What a turn has come to.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// Something was done.
    pub worked: bool,
    /// Nothing can be done before there is room in an uplink.
    is_stuck: bool,
    /// When it ended.
    now: u64,
}

/// The engine.
pub struct Engine {
    common: Arc<Common>,
    vms: Vec<Vm>,
    /// The VM that it is busy with.
    at: Option<usize>,
    network: Arc<Network>,
    /// Frames that an uplink has brought, and when the uplinks were looked at last.
    batch: Batch,
    last_look: u64,
    /// [`SPIN`], or less.
    spin: u64,
    /// Whether there are no more cores than [`FEW_CORES`].
    crowded: bool,
    /// When HEARTBEAT counted last.
    last_beat: u64,
}

impl Engine {
    /// An engine with a device as after power-on for each VM, in the order of their numbers in the network. To be made in the
    /// thread that will run it.
    pub fn new(vms: Vec<(Arc<Shared>, Config)>, network: Arc<Network>) -> Self {
        let cores = std::thread::available_parallelism().map_or(FEW_CORES, usize::from);
        let vms = (0..).zip(vms);
        let vms = vms.map(|(n, (shared, config))| Vm::new(n, shared, config, network.clone()));
        Self {
            common: network.common().clone(),
            vms: vms.collect(),
            at: None,
            network,
            batch: Batch::default(),
            last_look: 0,
            spin: if cores > FEW_CORES {
                SPIN
            } else {
                SPIN_CROWDED
            },
            crowded: cores <= FEW_CORES,
            last_beat: 0,
        }
    }

    /// Runs for ever. What it was busy with when it panics starts over, and the device of that VM is dead until reset.
    pub fn run(mut self) {
        let slack = rustix::thread::set_current_timer_slack(NonZeroU64::new(TIMER_SLACK));
        if let Err(e) = slack {
            log::debug!("the engine's timers stay coarse: {e}");
        }
        // On Linux this is the thread's own priority.
        if let Err(e) = rustix::process::setpriority_process(None, NICE) {
            log::debug!("the engine's priority stays normal: {e}");
        }
        loop {
            let ended = catch_unwind(AssertUnwindSafe(|| loop {
                self.round();
            }));
            if ended.is_err() {
                self.start_over();
            }
        }
    }

    #[cold]
    fn start_over(&mut self) {
        match self.at.take().and_then(|at| self.vms.get_mut(at)) {
            Some(vm) => vm.start_over(),
            None => self.vms.iter_mut().for_each(Vm::start_over),
        }
    }

    /// A turn of each VM, and a rest.
    fn round(&mut self) {
        let done = self.turn();
        if done.is_stuck {
            self.park(CROWDED, |_| false);
        } else if done.worked {
            self.leave_alone(done.now);
        } else {
            self.idle(done.now);
        }
    }

    /// A turn of each VM.
    pub fn turn(&mut self) -> Done {
        let mut worked = self.look_out();
        // Of a VM that does not have to wait for room in an uplink.
        let mut is_free = false;
        let mut is_waiting = false;
        let mut now = 0;
        for number in 0..self.vms.len() {
            self.at = Some(number);
            let heard = self.take_arrivals(number);
            let Some(vm) = self.vms.get_mut(number) else {
                break;
            };
            let did = vm.turn() | heard;
            now = self.common.now();
            vm.settle(did, now, AWAKE);
            worked |= did;
            is_free |= did && !vm.departures.is_waiting();
            is_waiting |= vm.departures.is_waiting();
            worked |= self.send_across(number);
        }
        self.at = None;
        self.network.release();
        if now.saturating_sub(self.last_beat) >= BEAT {
            self.beat(now);
        }
        Done {
            worked,
            is_stuck: is_waiting && !is_free,
            now,
        }
    }

    /// What is done twice a second, also while all is silent.
    fn beat(&mut self, now: u64) {
        self.last_beat = now;
        let alive = self.vms.iter().filter(|vm| !vm.is_stalled());
        alive.for_each(|vm| vm.shared.regs.beat());
        for wire in self.network.wires() {
            wire.tend();
        }
    }

    /// Sleeps until somebody wakes it, an uplink brings something or has the room that is waited for, or for so long. Not at all if
    /// `is_news` says so of the time when the next frame that was kept back goes on.
    fn park(&mut self, timeout: Duration, is_news: impl Fn(u64) -> bool) -> bool {
        let vms = &self.vms;
        let wires = self.network.wires().enumerate();
        let wires = wires.filter_map(|(n, wire)| {
            let mut wanted = PollFlags::IN;
            let is_awaited = vms.iter().any(|vm| vm.departures.waits_for(n));
            wanted.set(PollFlags::OUT, is_awaited);
            Some(PollFd::from_borrowed_fd(wire.descriptor()?, wanted))
        });
        let is_kept = || self.network.next_release().is_some_and(&is_news);
        let pending = || vms.iter().any(Vm::has_news) || is_kept();
        let woken = self.common.waker.park(timeout, pending, wires);
        if woken {
            self.last_look = 0;
        }
        woken
    }

    /// Takes what the uplinks have brought, a batch of each at most. Returns whether there was anything.
    fn look_out(&mut self) -> bool {
        let now = self.common.now();
        if now.saturating_sub(self.last_look) < LOOK {
            return false;
        }
        self.last_look = now;
        let network = self.network.clone();
        let mut batch = std::mem::take(&mut self.batch);
        let mut any = false;
        for (n, wire) in network.wires().enumerate() {
            wire.receive(&mut batch);
            let (mut trail, mut run, mut run_to) = (Trail::default(), vec![], Ports::default());
            // What is empty only asked whether somebody is here.
            for frame in batch.frames().filter(|frame| !frame.is_empty()) {
                any = true;
                let to = network.from_wire(n, frame, &mut trail);
                if to != run_to {
                    self.hear(run_to, &run, now);
                    run.clear();
                    run_to = to;
                }
                run.push(frame);
            }
            self.hear(run_to, &run, now);
        }
        if any {
            // There may be more.
            self.last_look = 0;
        }
        self.batch = batch;
        any
    }

    /// Gives devices what an uplink has brought for them.
    fn hear(&mut self, to: Ports, frames: &[&[u8]], now: u64) {
        for at in to.engines() {
            self.at = Some(at);
            if let Some(vm) = self.vms.get_mut(at) {
                vm.hear(frames.iter().copied(), now);
            }
        }
        self.at = None;
    }

    /// Leaves the cores to programs that are behind with taking what is done, if there are no others.
    fn leave_alone(&mut self, now: u64) {
        if !self.crowded {
            return;
        }
        let awake = self.vms.iter().filter(|vm| !vm.is_asleep);
        let untaken = awake.map(|vm| vm.untaken).min().unwrap_or(0);
        if untaken >= BEHIND {
            let pause = PAUSE.min(u64::from(untaken) * TAKE);
            let due = self.due(now).unwrap_or(PAUSE);
            self.park(Duration::from_nanos(pause.min(due)), |_| false);
        }
    }

    /// In how many nanoseconds a device wants its next slice.
    fn due(&self, now: u64) -> Option<u64> {
        let due = self.vms.iter().filter_map(|vm| {
            if vm.is_stalled() {
                return Some(STALL_LOOK);
            }
            Some(vm.deadline?.saturating_sub(now))
        });
        due.min()
    }

    /// Nothing happened: waits, for as long as the silence so far suggests.
    fn idle(&mut self, now: u64) {
        let release = self.network.next_release();
        let release = release.map(|due| due.saturating_sub(now));
        let due = [self.due(now), release].into_iter().flatten().min();
        if due == Some(0) {
            return;
        }
        let awake = self.vms.iter().filter(|vm| !vm.is_asleep);
        let Some(last_work) = awake.map(|vm| vm.last_work).max() else {
            self.sleep(due);
            return;
        };
        let silence = now.saturating_sub(last_work);
        if silence < self.spin {
            std::hint::spin_loop();
            return;
        }
        let nap = (silence / NAP_SHARE)
            .clamp(NAP_MIN, NAP_MAX)
            .min(due.unwrap_or(u64::MAX));
        self.park(Duration::from_nanos(nap), |_| false);
    }

    /// Sleeps until somebody wakes it, or for so many nanoseconds; the heart beats on.
    fn sleep(&mut self, due: Option<u64>) {
        let end = due.map(|due| self.common.now().saturating_add(due));
        // A frame may have been kept back since that was told, by a thread that found nobody asleep.
        let is_sooner = |at| end.is_none_or(|end| at < end);
        loop {
            let left = end.map_or(BEAT, |end| end.saturating_sub(self.common.now()));
            if left == 0 || self.park(Duration::from_nanos(left.min(BEAT)), is_sooner) {
                return;
            }
            self.beat(self.common.now());
        }
    }
}

#[cfg(test)]
mod tests;
