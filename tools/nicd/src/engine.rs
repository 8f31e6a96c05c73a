// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The engine's thread: it owns the device and gives it time, slice after slice.
//!
//! A slice is bounded, and between two slices the front may change the map of guest RAM or close the gate. Posts in guest
//! memory make no noise, so the engine polls; how eagerly, depends on how long nothing has happened:
//!
//! | silence | what the engine does | price of noticing a post |
//! | --- | --- | --- |
//! | up to [`SPIN`] or [`SPIN_CROWDED`] | looks again at once | none |
//! | up to [`AWAKE`] | sleeps for [`NAP_MIN`] to [`NAP_MAX`] between looks | a nap |
//! | longer | tells the guest that it is asleep and blocks | one doorbell write of the guest |
//!
//! The machine often has fewer cores than busy threads (two virtual CPUs that poll, and this thread). A thread that
//! only spins is then taken off its core for milliseconds; one that naps wakes up ahead of those that never sleep. So
//! spinning is short.
//!
//! **When the device model panics** (a defect), the panic is caught, the device is declared dead with `EngineFailure`, and
//! this thread lives on: QEMU and the driver get answers, and a reset begins again with a new device. If the dead device
//! panics once more, it gets no more slices until then.

use crate::shared::{Message, Question, Shared};
use crate::uplink::Uplink;
use rustix::event::Timespec;
use std::num::NonZeroU64;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};
use verbena_abi::syndrome::Syndrome;
use verbena_device::misbehave::Kind;
use verbena_device::{Action, Config, Device};

/// So long the engine looks again at once after something happened, where there are cores for it: about the time that a
/// guest needs to see a completion and post again.
const SPIN: u64 = 20_000;
/// The same with [`FEW_CORES`]: a spinning engine then keeps the core from the virtual CPU that is to answer. With 20 us
/// perftest's write latency was 25 us on two cores, with this 18 us; with 2 us it is 16 us or, when answers come a
/// little later, 32 us.
const SPIN_CROWDED: u64 = 5_000;
/// Cores that two busy virtual CPUs and the engine cannot share without getting in each other's way.
const FEW_CORES: usize = 2;
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
/// The priority that the engine asks for, as a real device has one: its naps end sooner. Without the right to ask it
/// goes without.
const NICE: i32 = -10;

/// Whether the device model can be trusted with time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Health {
    Well,
    /// It panicked and was told so; it may still answer commands.
    Failed,
    /// It panicked again.
    Gone,
}

/// The engine.
pub struct Engine {
    shared: Arc<Shared>,
    config: Config,
    device: Device,
    health: Health,
    uplink: Uplink,
    /// [`SPIN`], or less.
    spin: u64,
    start: Instant,
    /// When something happened last, and when the device wants its next slice.
    last_work: u64,
    deadline: Option<u64>,
    /// Interrupts that a device which misbehaves keeps back.
    withheld: u32,
}

impl Engine {
    /// An engine with a device as after power-on. To be made in the thread that will run it.
    pub fn new(shared: Arc<Shared>, mut config: Config, uplink: Uplink) -> Self {
        config.misbehave = shared.misbehave.clone();
        let cores = std::thread::available_parallelism().map_or(FEW_CORES, usize::from);
        Self {
            device: Device::new(config.clone(), shared.regs.clone()),
            shared,
            config,
            health: Health::Well,
            uplink,
            spin: if cores > FEW_CORES {
                SPIN
            } else {
                SPIN_CROWDED
            },
            start: Instant::now(),
            last_work: 0,
            deadline: None,
            withheld: 0,
        }
    }

    /// Runs for ever.
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
            let worked = self.misbehave() | self.take_messages() | self.slice();
            let now = self.now();
            if worked {
                self.last_work = now;
            } else {
                self.idle(now);
            }
        }
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

    /// Raises interrupts, unless they are to be withheld.
    fn raise(&mut self, interrupts: u32) {
        let wanted = interrupts | std::mem::take(&mut self.withheld);
        if self.shared.misbehave.is(Kind::NoInterrupts) {
            self.withheld = wanted;
        } else if wanted != 0 {
            self.shared.raise(wanted);
        }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Calls into the device model, and survives its panic.
    fn guarded<T>(&mut self, call: impl FnOnce(&mut Device) -> T) -> Option<T> {
        if self.health == Health::Gone {
            return None;
        }
        let device = &mut self.device;
        match catch_unwind(AssertUnwindSafe(|| call(device))) {
            Ok(value) => Some(value),
            Err(_) => {
                self.failed();
                None
            }
        }
    }

    #[cold]
    fn failed(&mut self) {
        log::error!("the device model failed: the device is dead until it is reset");
        let again = self.health != Health::Well;
        self.health = if again { Health::Gone } else { Health::Failed };
        if !again && self.shared.gate_open() {
            let ram = self.shared.ram();
            let device = &mut self.device;
            let call = AssertUnwindSafe(|| device.fail(&*ram, Syndrome::EngineFailure));
            if catch_unwind(call).is_err() {
                self.health = Health::Gone;
            }
        }
        self.shared.regs.set_fatal(Syndrome::EngineFailure);
    }

    /// Handles what was left for the engine. Returns whether there was anything.
    fn take_messages(&mut self) -> bool {
        let shared = self.shared.clone();
        let messages = shared.messages();
        let mut worked = !messages.is_empty();
        for message in messages {
            match message {
                Message::Register(Action::Reset) => self.reset(),
                // What came before a reset is void.
                Message::Register(_) | Message::Frame(_) if shared.resetting() => {}
                Message::Register(Action::EnableCmdq) => {
                    let ram = shared.ram();
                    self.guarded(|device| device.enable_cmdq(&*ram));
                }
                Message::Register(Action::Command(slot)) => {
                    self.guarded(|device| device.command(slot));
                }
                Message::Register(Action::None) => {}
                Message::Frame(frame) => self.receive(&frame),
                // The one who asked may have gone; then the answer is for nobody.
                Message::Ask(Question::Stats(to)) => {
                    if let Some(stats) = self.guarded(|device| device.stats().to_vec()) {
                        let _ = to.send(stats);
                    }
                }
                Message::Ask(Question::Contexts(to)) => {
                    if let Some(contexts) = self.guarded(|device| device.contexts()) {
                        let _ = to.send(contexts);
                    }
                }
            }
        }
        let mut last = None;
        let writes = shared.take_rings(|uar| {
            last = Some(uar);
            self.guarded(|device| device.ring(uar));
        });
        if writes > 1 {
            // `ring` has counted one for each area.
            self.guarded(|device| device.count_doorbells(writes - 1));
        }
        worked |= last.is_some();
        worked
    }

    fn reset(&mut self) {
        if self.shared.take_reset() {
            if self.health == Health::Well {
                self.guarded(Device::reset);
            }
            if self.health != Health::Well {
                self.device = Device::new(self.config.clone(), self.shared.regs.clone());
                self.health = Health::Well;
                self.device.reset();
            }
            self.deadline = None;
            self.withheld = 0;
            log::debug!("the device is reset");
        }
        self.shared.reset_done();
    }

    fn receive(&mut self, frame: &[u8]) {
        let shared = self.shared.clone();
        let ram = shared.ram();
        if !shared.gate_open() {
            return;
        }
        let now = self.now();
        let taken = self.guarded(|device| {
            let wants = device.wants_frame(frame);
            if wants {
                device.receive_frame(&*ram, frame, now);
            }
            wants
        });
        drop(ram);
        if taken == Some(false) {
            self.uplink.send(frame);
        }
    }

    /// Gives the device one slice. Returns whether it did anything.
    fn slice(&mut self) -> bool {
        let shared = self.shared.clone();
        let now = self.now();
        let ram = shared.ram();
        if !shared.gate_open() {
            self.deadline = None;
            return false;
        }
        let next = self
            .guarded(|device| device.run_slice(&*ram, now))
            .unwrap_or_default();
        let interrupts = self.guarded(Device::take_interrupts).unwrap_or(0);
        drop(ram);
        self.raise(interrupts);
        while let Some(Some(frame)) = self.guarded(Device::next_frame) {
            self.uplink.send(&frame);
        }
        shared.counts.slices.fetch_add(1, Ordering::Relaxed);
        self.deadline = next.deadline;
        next.busy || interrupts != 0
    }

    /// Nothing happened: waits, for as long as the silence so far suggests.
    fn idle(&mut self, now: u64) {
        let due = self.deadline.map(|d| d.saturating_sub(now));
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
            let time = Timespec {
                tv_sec: 0,
                tv_nsec: nap as i64,
            };
            let _ = rustix::thread::nanosleep(&time);
            return;
        }
        if self.fall_asleep() {
            self.shared.counts.sleeps.fetch_add(1, Ordering::Relaxed);
            self.shared.park(due.map(Duration::from_nanos));
        } else {
            // Something came up while falling asleep.
            self.last_work = now;
        }
    }

    /// Tells the guest that posts have to be rung for. False: something was posted meanwhile.
    fn fall_asleep(&mut self) -> bool {
        let shared = self.shared.clone();
        let ram = shared.ram();
        if !shared.gate_open() {
            // No DMA, so no posts either.
            return true;
        }
        self.guarded(|device| device.fall_asleep(&*ram))
            .unwrap_or(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbena_abi::regs;

    fn engine() -> Engine {
        let shared = Arc::new(Shared::new().unwrap());
        let uplink = Uplink::new(shared.clone());
        Engine::new(shared, Config::default(), uplink)
    }

    fn status(engine: &Engine) -> u32 {
        engine.shared.regs.read(regs::STATUS)
    }

    #[test]
    fn a_panic_of_the_model_is_a_fatal_error_until_reset() {
        let mut engine = engine();
        assert_eq!(
            engine.guarded(|_| -> u32 { panic!("the first, on purpose") }),
            None
        );
        assert_eq!(status(&engine), regs::STATUS_FATAL);
        assert_eq!(engine.guarded(|_| 5), Some(5));
        assert_eq!(
            engine.guarded(|_| -> u32 { panic!("the second, on purpose") }),
            None
        );
        assert_eq!(engine.guarded(|_| 5), None);
        engine.shared.reset();
        engine.take_messages();
        assert_eq!(status(&engine), 0);
        assert_eq!(engine.guarded(|_| 5), Some(5));
    }

    #[test]
    fn of_two_resets_only_the_last_is_done_and_what_came_before_is_void() {
        let mut engine = engine();
        engine.shared.send(Message::Register(Action::EnableCmdq));
        engine.shared.reset();
        engine.shared.send(Message::Register(Action::EnableCmdq));
        engine.shared.reset();
        assert!(engine.take_messages());
        // Enabling without a version would have been a fatal error.
        assert_eq!(status(&engine), 0);
        assert!(!engine.shared.resetting() && !engine.take_messages());
    }
}
