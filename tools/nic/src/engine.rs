// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The engine's thread: it owns the device and gives it time, slice after slice.
//!
//! A slice is bounded, and between two slices the front may change the map of guest RAM or close the gate. Posts in guest
//! memory make no noise, so the engine polls; how eagerly, depends on how long nothing has happened:
//!
//! | silence | what the engine does | price of noticing a post |
//! | --- | --- | --- |
//! | up to [`SPIN`] or [`SPIN_CROWDED`] | looks again at once | none |
//! | none, but a program is behind with its CQ | sleeps for 1 us for each entry, up to [`PAUSE`] | none: it has not come to that yet |
//! | up to [`AWAKE`] | sleeps for [`NAP_MIN`] to [`NAP_MAX`] between looks; mail wakes it | a nap |
//! | longer | tells the guest that it is asleep and blocks | one doorbell write of the guest |
//!
//! The machine often has fewer cores than busy threads (two virtual CPUs that poll, and this thread). A thread that
//! only spins is then taken off its core for milliseconds; one that naps wakes up ahead of those that never sleep. So
//! spinning is short, and with [`FEW_CORES`] the engine stays away while the one that takes the completions has [`BEHIND`] or
//! more to take: what is posted meanwhile is done at once then, and both virtual CPUs have a core. perftest's sends of 64 bytes
//! on two cores, medians of runs that took turns: 15 to 23 MB/s without, 33 to 55 with it.
//!
//! A panic of the device model ends at the [slice](crate::slice): QEMU and the driver get answers, and a reset begins again
//! with a new device. A panic of the engine's own code ends this engine; another takes its place, with a dead device too,
//! and tells of it by vector 0.

mod answers;

use crate::departures::Departures;
use crate::network::Network;
use crate::shared::Shared;
use crate::slice::Model;
use crate::uplink::Batch;
use rustix::event::{PollFd, PollFlags};
use std::num::NonZeroU64;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::Ordering;
use std::sync::{mpsc, Arc};
use std::time::{Duration, Instant};
use verbena_abi::stats::NUM_COUNTERS;
use verbena_abi::syndrome::Syndrome;
use verbena_device::misbehave::Kind;
use verbena_device::{Action, Config};

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

/// Frames that are handled before a slice: each has guest RAM for itself, so that the map can change between two.
const FRAMES: usize = 64;
/// An engine that is awake looks at the uplinks this often: each look is a system call, and slices can be shorter than one.
const LOOK: u64 = 2_000;
/// The longest wait for room in an uplink.
const CROWDED: Duration = Duration::from_micros(200);

/// The engine.
pub struct Engine {
    shared: Arc<Shared>,
    model: Model,
    network: Arc<Network>,
    /// Frames that an uplink has brought, and when the uplinks were looked at last.
    batch: Batch,
    last_look: u64,
    departures: Departures,
    /// [`SPIN`], or less.
    spin: u64,
    /// Whether there are no more cores than [`FEW_CORES`].
    crowded: bool,
    /// When something happened last, and when the device wants its next slice.
    last_work: u64,
    deadline: Option<u64>,
    /// Completions that a program has yet to take, if all is done that was posted.
    untaken: u32,
    /// When HEARTBEAT counted last.
    last_beat: u64,
    /// Who waits for the counters, which are added up bit by bit.
    asker: Option<mpsc::Sender<[u64; NUM_COUNTERS]>>,
}

impl Engine {
    /// An engine with a device as after power-on. To be made in the thread that will run it.
    pub fn new(shared: Arc<Shared>, config: Config, network: Arc<Network>) -> Self {
        let cores = std::thread::available_parallelism().map_or(FEW_CORES, usize::from);
        Self {
            model: Model::new(shared.clone(), config),
            shared,
            network,
            batch: Batch::default(),
            last_look: 0,
            departures: Departures::default(),
            spin: if cores > FEW_CORES {
                SPIN
            } else {
                SPIN_CROWDED
            },
            crowded: cores <= FEW_CORES,
            last_work: 0,
            deadline: None,
            untaken: 0,
            last_beat: 0,
            asker: None,
        }
    }

    /// Runs for ever. An engine that ends by a panic of its own is followed by another, whose device is dead until reset.
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
            let ended = catch_unwind(AssertUnwindSafe(|| self.turns()));
            if ended.is_err() {
                self.start_over();
            }
        }
    }

    /// Turn after turn.
    fn turns(&mut self) {
        loop {
            let worked = self.misbehave() | self.take_mail() | self.look_out() | self.slice();
            self.network.release();
            let now = self.now();
            if now.saturating_sub(self.last_beat) >= BEAT {
                self.beat(now);
            }
            if self.departures.is_waiting() {
                self.park(CROWDED);
            } else if worked {
                self.last_work = now;
                self.leave_alone(now);
            } else {
                self.idle(now);
            }
        }
    }

    /// What is done twice a second, also while all is silent.
    fn beat(&mut self, now: u64) {
        self.last_beat = now;
        self.shared.regs.beat();
        for wire in self.network.wires() {
            wire.tend();
        }
    }

    /// Sleeps until somebody wakes it, an uplink brings something or has the room that is waited for, or for so long.
    fn park(&mut self, timeout: Duration) -> bool {
        let wires = self.network.wires().enumerate().map(|(n, wire)| {
            let mut wanted = PollFlags::IN;
            wanted.set(PollFlags::OUT, self.departures.waits_for(n));
            PollFd::from_borrowed_fd(wire.descriptor(), wanted)
        });
        let woken = self.shared.park_beside(timeout, wires);
        if woken {
            self.last_look = 0;
        }
        woken
    }

    /// Takes what the uplinks have brought, a batch of each at most. Returns whether there was anything.
    fn look_out(&mut self) -> bool {
        let now = self.now();
        if now.saturating_sub(self.last_look) < LOOK {
            return false;
        }
        self.last_look = now;
        let network = self.network.clone();
        let mut batch = std::mem::take(&mut self.batch);
        let mut any = false;
        for (n, wire) in network.wires().enumerate() {
            wire.receive(&mut batch);
            // What is empty only asked whether somebody is here.
            for frame in batch.frames().filter(|frame| !frame.is_empty()) {
                any = true;
                if network.from_wire(n, frame) {
                    self.receive(frame);
                }
            }
        }
        if any {
            // There may be more.
            self.last_look = 0;
        }
        self.batch = batch;
        any
    }

    /// Takes the place of the engine that has just ended: nobody knows what state it left its device in.
    #[cold]
    fn start_over(&mut self) {
        log::error!("the engine failed: the device is dead until it is reset");
        self.model.give_up();
        self.deadline = None;
        self.departures.clear();
        // A reset may have been in the engine's hands.
        let lost = self.shared.start_over();
        self.shared.regs.set_fatal(Syndrome::EngineFailure);
        if lost {
            self.reset();
        }
        self.model.slice().tell_of_failure();
    }

    /// Stalls or dies, if the NIC is to misbehave so. Returns whether it has stalled.
    #[inline]
    fn misbehave(&mut self) -> bool {
        if self.shared.misbehave.take(Kind::EngineDies) != 0 {
            std::panic::resume_unwind(Box::new("the engine ends on purpose"));
        }
        let stalled = self.shared.misbehave.is(Kind::Stall);
        if stalled {
            self.stall();
        }
        stalled
    }

    /// Does nothing, whatever comes, until the time is over or the stall is called off; then goes on with its DMA
    /// before it looks at what has come, unless the gate was closed.
    #[cold]
    fn stall(&mut self) {
        let start = Instant::now();
        loop {
            let time = Duration::from_millis(self.shared.misbehave.get(Kind::Stall).into());
            if start.elapsed() >= time {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.shared.misbehave.set(Kind::Stall, 0);
        self.slice();
    }

    fn now(&self) -> u64 {
        self.shared.now()
    }

    /// Handles what was left for the engine, a bounded part of it. Returns whether there was anything.
    fn take_mail(&mut self) -> bool {
        let mail = self.shared.mail(FRAMES, self.asker.is_none());
        let mut worked = !mail.actions.is_empty() || !mail.frames.is_empty();
        for action in mail.actions {
            if action == Action::Reset {
                self.reset();
                log::debug!("the device is reset");
                continue;
            }
            let mut slice = self.model.slice();
            match action {
                // What came before a reset is void.
                _ if self.shared.resetting() => {}
                Action::EnableCmdq => {
                    slice.call(|device, ram| device.enable_cmdq(ram));
                }
                Action::Command(slot) => {
                    slice.call(|device, _| device.command(slot));
                }
                Action::None | Action::Reset => {}
            }
        }
        for frame in mail.frames {
            self.receive(&frame);
        }
        worked |= self.answer(mail.question);
        let mut rung = Vec::new();
        let writes = self.shared.take_rings(|uar| rung.push(uar));
        if !rung.is_empty() {
            self.model.slice().call(|device, _| {
                rung.iter().for_each(|&uar| device.ring(uar));
                // `ring` has counted one for each area.
                device.count_doorbells(writes.saturating_sub(rung.len() as u64));
            });
            worked = true;
        }
        worked
    }

    fn reset(&mut self) {
        self.model.reset();
        self.deadline = None;
        self.departures.clear();
        self.tell_addresses();
        self.shared.reset_done();
    }

    /// Tells the switch what the device answers to, if that has changed.
    fn tell_addresses(&mut self) {
        let addresses = self.model.slice().call(|device, _| device.take_addresses());
        if let Some(Some(addresses)) = addresses {
            self.network.set_addresses(addresses);
        }
    }

    fn receive(&mut self, frame: &[u8]) {
        let now = self.now();
        let mut slice = self.model.slice();
        if !slice.is_open() {
            return;
        }
        // Its addresses may have changed since the switch looked.
        slice.call(|device, ram| {
            if device.wants_frame(frame) {
                device.receive_frame(ram, frame, now);
            }
        });
    }

    /// Gives the device one slice. Returns whether it did anything.
    fn slice(&mut self) -> bool {
        let now = self.now();
        self.departures.depart(&self.network, now);
        let mut slice = self.model.slice();
        if !slice.is_open() {
            (self.deadline, self.untaken) = (None, 0);
            return false;
        }
        let next = slice
            .call(|device, ram| device.run_slice(ram, now))
            .unwrap_or_default();
        let interrupts = slice.raise_wanted();
        let (network, departures) = (&self.network, &mut self.departures);
        slice.call(|device, _| {
            if let Some(addresses) = device.take_addresses() {
                network.set_addresses(addresses);
            }
            if !departures.is_waiting() {
                let frames = std::iter::from_fn(|| device.next_frame());
                frames.for_each(|frame| departures.add(network.from_engine(&frame), &frame));
            }
        });
        drop(slice);
        self.departures.depart(&self.network, now);
        self.shared.counts.slices.fetch_add(1, Ordering::Relaxed);
        self.deadline = next.deadline;
        self.untaken = next.untaken;
        next.busy || interrupts
    }

    /// Leaves the cores to programs that are behind with taking what is done.
    fn leave_alone(&mut self, now: u64) {
        if self.crowded && self.untaken >= BEHIND {
            let pause = PAUSE.min(u64::from(self.untaken) * TAKE);
            let due = self.deadline.map_or(PAUSE, |d| d.saturating_sub(now));
            self.park(Duration::from_nanos(pause.min(due)));
        }
    }

    /// Nothing happened: waits, for as long as the silence so far suggests.
    fn idle(&mut self, now: u64) {
        let due = [self.deadline, self.network.next_release()];
        let due = due.into_iter().flatten().min();
        let due = due.map(|d| d.saturating_sub(now));
        if due == Some(0) {
            return;
        }
        let silence = now.saturating_sub(self.last_work);
        if silence < self.spin {
            std::hint::spin_loop();
            return;
        }
        if silence < AWAKE {
            let nap = (silence / NAP_SHARE)
                .clamp(NAP_MIN, NAP_MAX)
                .min(due.unwrap_or(u64::MAX));
            self.park(Duration::from_nanos(nap));
            return;
        }
        if self.fall_asleep() {
            self.shared.counts.sleeps.fetch_add(1, Ordering::Relaxed);
            self.sleep(due);
        } else {
            // Something came up while falling asleep.
            self.last_work = now;
        }
    }

    /// Sleeps until somebody wakes it, or for so many nanoseconds; the heart beats on.
    fn sleep(&mut self, due: Option<u64>) {
        let end = due.map(|due| self.now().saturating_add(due));
        loop {
            let left = end.map_or(BEAT, |end| end.saturating_sub(self.now()));
            if left == 0 || self.park(Duration::from_nanos(left.min(BEAT))) {
                return;
            }
            self.beat(self.now());
        }
    }

    /// Tells the guest that posts have to be rung for. False: something was posted meanwhile.
    fn fall_asleep(&mut self) -> bool {
        let mut slice = self.model.slice();
        // Where there is no DMA there are no posts either.
        !slice.is_open()
            || slice
                .call(|device, ram| device.fall_asleep(ram))
                .unwrap_or(true)
    }
}

#[cfg(test)]
mod tests;
