// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The engine's thread: it owns the device of each VM and gives each device time, slice after
//! slice, in turn.
//!
//! A slice is bounded, and between two slices the PCI function may change the map of guest RAM or
//! close the gate. A post in guest memory raises no event, so the engine polls; the interval
//! depends on the silence, which is the time since the last work:
//!
//! | silence | action of the engine | delay until it notices a post |
//! | --- | --- | --- |
//! | up to [`SPIN_NS`] or [`SPIN_FEW_CORES_NS`] | looks again at once | none |
//! | none, but a program lags in polling its CQ | sleeps for 1 us for each entry, up to [`MAX_PAUSE_NS`] | none: the program does not post before it has polled |
//! | up to [`AWAKE_NS`] | sleeps for [`NAP_MIN_NS`] to [`NAP_MAX_NS`] between looks; mail wakes it | a nap |
//! | longer | marks itself asleep for the guest, and blocks once that is done for all guests | one doorbell write of the guest |
//!
//! Each VM has its own silence: a silent VM is marked asleep and gets no slices, while others go
//! on. The engine's naps follow the VM that was busy last.
//!
//! The machine often has fewer cores than busy threads (two virtual CPUs that poll, and this
//! thread). The scheduler then takes a thread that only spins off its core for milliseconds,
//! whereas a thread that naps is scheduled before threads that never sleep. So spinning is short,
//! and with [`FEW_CORES`] the engine pauses while a CQ of each awake VM has [`MANY_UNTAKEN`] or
//! more untaken completions: work requests that are posted in the pause run at once after it, and
//! both virtual CPUs have a core in it. perftest's sends of 64 bytes on two cores, medians of
//! alternating runs: 15 to 23 MB/s without, 33 to 55 with it.
//!
//! A panic of the device model ends at the [slice](crate::vm_device): QEMU and the driver get
//! answers, and a reset begins again with a new device. A panic of the engine's own code ends the
//! turn of the VM (`engine/vm.rs`) that it was busy with. The device of that VM is then in a fatal
//! error too, which vector 0 reports to it; the other VMs do not notice.

mod packet_inbox;
mod requests;
mod vm;

use crate::network::{ForwardingCache, Network};
use crate::process_state::ProcessState;
use crate::switch::PortSet;
use crate::uplink::Batch;
use crate::vm_state::VmState;
use rustix::event::{PollFd, PollFlags};
use std::num::NonZeroU64;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;
use verbena_device::Config;
use vm::Vm;

/// Time that the engine polls without pause after the last work, in nanoseconds, where there are
/// enough cores: about the time that a guest needs to see a completion and post again.
const SPIN_NS: u64 = 20_000;
/// [`SPIN_NS`] with [`FEW_CORES`], where a spinning engine keeps the core from the virtual CPU that
/// is to answer. On two cores perftest's write latency was 25 us with 20 us, and 18 us with this
/// value; with 2 us it is 16 us or, when answers come a little later, 32 us.
const SPIN_FEW_CORES_NS: u64 = 5_000;
/// Number of cores that two busy virtual CPUs and the engine cannot share without disturbing each
/// other.
const FEW_CORES: usize = 2;
/// Number of untaken completions from which on a program does not wait for the next one.
const MANY_UNTAKEN: u32 = 32;
/// Longest pause that lets a program take its completions, in nanoseconds.
const MAX_PAUSE_NS: u64 = 100_000;
/// Assumed time to take a completion, in nanoseconds. A fast virtual CPU needs a tenth of it, but
/// has posts to make too.
const TAKE_COMPLETION_NS: u64 = 1_000;
/// Silence after which the engine falls asleep, in nanoseconds. Posts at shorter intervals ring no
/// doorbell.
const AWAKE_NS: u64 = 1_000_000;
/// First nap, in nanoseconds. The kernel adds about 15 us. With shorter naps a ping-pong of two
/// virtual CPUs on two cores takes milliseconds, not tens of microseconds: the virtual CPU that
/// this thread has preempted hardly runs before it is preempted again.
const NAP_MIN_NS: u64 = 15_000;
/// Longest nap, in nanoseconds: the longest delay of a post while the engine is awake.
const NAP_MAX_NS: u64 = 30_000;
/// A nap is this part of the silence so far: a post after a long silence can wait a little longer.
const NAP_SHARE: u64 = 16;
/// Timer slack of this thread, in nanoseconds (Linux' default of 50 us would double each nap).
const TIMER_SLACK_NS: u64 = 1_000;
/// Longest interval between two counts of HEARTBEAT, in nanoseconds: half a second, so that it
/// counts every second on a busy host too.
const HEARTBEAT_INTERVAL_NS: u64 = 500_000_000;
/// Nice value that the engine asks for, because a real device has precedence too: its naps end
/// sooner. The engine runs without it if it lacks the right.
const NICE: i32 = -10;

/// Interval between two looks at the uplinks while the engine is awake, in nanoseconds: each look
/// is a system call, and slices can be shorter than one.
const UPLINK_POLL_NS: u64 = 2_000;
/// Longest wait for room in an uplink.
const MAX_ROOM_WAIT: Duration = Duration::from_micros(200);
/// Interval at which the engine looks at a VM that stalls on purpose, in nanoseconds.
const STALL_POLL_NS: u64 = 1_000_000;

/// Result of a turn of all VMs.
#[derive(Clone, Copy, Debug)]
pub struct TurnResult {
    /// True if any work was done.
    pub worked: bool,
    /// True if no VM can go on before there is room in an uplink.
    is_stuck: bool,
    /// Device time at the end of the turn, in nanoseconds.
    now_ns: u64,
}

/// The engine, with the devices of all VMs.
pub struct Engine {
    process: Arc<ProcessState>,
    vms: Vec<Vm>,
    /// Index of the VM that the engine is busy with.
    current_vm: Option<usize>,
    network: Arc<Network>,
    /// Frames that an uplink has delivered, and the time of the last look at the uplinks.
    batch: Batch,
    last_uplink_poll_ns: u64,
    /// Time that the engine spins: [`SPIN_NS`] or [`SPIN_FEW_CORES_NS`].
    spin_ns: u64,
    /// True if there are at most [`FEW_CORES`] cores.
    has_few_cores: bool,
    /// Time at which HEARTBEAT counted last, in nanoseconds.
    last_heartbeat_ns: u64,
}

impl Engine {
    /// Returns an engine with a device as after power-on for each VM, in the order of their numbers
    /// in the network. The thread that runs the engine must call this.
    pub fn new(vms: Vec<(Arc<VmState>, Config)>, network: Arc<Network>) -> Self {
        let cores = std::thread::available_parallelism().map_or(FEW_CORES, usize::from);
        let vms = (0..).zip(vms);
        let vms = vms.map(|(n, (shared, config))| Vm::new(n, shared, config, network.clone()));
        Self {
            process: network.process().clone(),
            vms: vms.collect(),
            current_vm: None,
            network,
            batch: Batch::default(),
            last_uplink_poll_ns: 0,
            spin_ns: if cores > FEW_CORES {
                SPIN_NS
            } else {
                SPIN_FEW_CORES_NS
            },
            has_few_cores: cores <= FEW_CORES,
            last_heartbeat_ns: 0,
        }
    }

    /// Runs for ever. If the engine panics, the VM that it was busy with starts over, and the
    /// device of that VM is in a fatal error until reset.
    pub fn run(mut self) {
        let slack = rustix::thread::set_current_timer_slack(NonZeroU64::new(TIMER_SLACK_NS));
        if let Err(e) = slack {
            log::debug!("the timer slack of the engine's thread is unchanged: {e}");
        }
        // On Linux this is the thread's own priority.
        if let Err(e) = rustix::process::setpriority_process(None, NICE) {
            log::debug!("the priority of the engine's thread is unchanged: {e}");
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
        match self.current_vm.take().and_then(|at| self.vms.get_mut(at)) {
            Some(vm) => vm.start_over(),
            None => self.vms.iter_mut().for_each(Vm::start_over),
        }
    }

    /// Gives each VM a turn, then rests.
    fn round(&mut self) {
        let result = self.turn();
        if result.is_stuck {
            self.park(MAX_ROOM_WAIT, |_| false);
        } else if result.worked {
            self.pause_for_completions(result.now_ns);
        } else {
            self.idle(result.now_ns);
        }
    }

    /// Gives each VM a turn.
    pub fn turn(&mut self) -> TurnResult {
        let mut worked = self.poll_uplinks();
        // True if a VM that worked does not wait for room in an uplink.
        let mut is_free = false;
        let mut is_waiting = false;
        let mut now = 0;
        for number in 0..self.vms.len() {
            self.current_vm = Some(number);
            let delivered = self.deliver_packets(number);
            let Some(vm) = self.vms.get_mut(number) else {
                break;
            };
            let did = vm.turn() | delivered;
            now = self.process.now();
            vm.end_turn(did, now, AWAKE_NS);
            worked |= did;
            is_free |= did && !vm.uplink_queues.has_frames();
            is_waiting |= vm.uplink_queues.has_frames();
            worked |= self.queue_outgoing(number);
        }
        self.current_vm = None;
        self.network.release();
        if now.saturating_sub(self.last_heartbeat_ns) >= HEARTBEAT_INTERVAL_NS {
            self.heartbeat(now);
        }
        TurnResult {
            worked,
            is_stuck: is_waiting && !is_free,
            now_ns: now,
        }
    }

    /// Does the work that is due twice a second, also while all VMs are silent.
    fn heartbeat(&mut self, now: u64) {
        self.last_heartbeat_ns = now;
        let alive = self.vms.iter().filter(|vm| !vm.is_stalled());
        alive.for_each(|vm| vm.shared.regs.beat());
        for wire in self.network.wires() {
            wire.maintain();
        }
        self.network.maintain_subnet();
    }

    /// Sleeps until the engine is woken, an uplink has frames or the room that a VM waits for, or
    /// `timeout` is over. Does not sleep if there is work for a VM, or if `is_due` is true for the
    /// time at which the next delayed frame is due. Returns true if there may be work.
    fn park(&mut self, timeout: Duration, is_due: impl Fn(u64) -> bool) -> bool {
        let vms = &self.vms;
        let wires = self.network.wires().enumerate();
        let wires = wires.filter_map(|(n, wire)| {
            let mut wanted = PollFlags::IN;
            let is_awaited = vms.iter().any(|vm| vm.uplink_queues.has_frames_for(n));
            wanted.set(PollFlags::OUT, is_awaited);
            Some(PollFd::from_borrowed_fd(wire.descriptor()?, wanted))
        });
        let has_due_frame = || self.network.next_release().is_some_and(&is_due);
        let pending = || vms.iter().any(Vm::has_messages) || has_due_frame();
        let woken = self.process.waker.park(timeout, pending, wires);
        if woken {
            self.last_uplink_poll_ns = 0;
        }
        woken
    }

    /// Takes frames from the uplinks, at most a batch of each. Returns true if there were any.
    fn poll_uplinks(&mut self) -> bool {
        let now = self.process.now();
        if now.saturating_sub(self.last_uplink_poll_ns) < UPLINK_POLL_NS {
            return false;
        }
        self.last_uplink_poll_ns = now;
        let network = self.network.clone();
        let mut batch = std::mem::take(&mut self.batch);
        let mut any = false;
        for (n, wire) in network.wires().enumerate() {
            wire.receive(&mut batch);
            let (mut cache, mut run, mut run_to) =
                (ForwardingCache::default(), vec![], PortSet::default());
            // An empty frame only tests if this side is reachable.
            for frame in batch.frames().filter(|frame| !frame.is_empty()) {
                any = true;
                let (to, frame) = match network.from_infiniband_wire(n, frame) {
                    Some(received) => received,
                    None => (network.from_wire(n, frame, &mut cache), frame),
                };
                if to != run_to {
                    self.deliver_to_engines(run_to, &run, now);
                    run.clear();
                    run_to = to;
                }
                run.push(frame);
            }
            self.deliver_to_engines(run_to, &run, now);
        }
        if any {
            // The uplinks may have more frames.
            self.last_uplink_poll_ns = 0;
        }
        self.batch = batch;
        any
    }

    /// Gives devices the frames that an uplink has delivered for them.
    fn deliver_to_engines(&mut self, to: PortSet, frames: &[&[u8]], now: u64) {
        for at in to.engines() {
            self.current_vm = Some(at);
            if let Some(vm) = self.vms.get_mut(at) {
                vm.receive_from_uplink(frames.iter().copied(), now);
            }
        }
        self.current_vm = None;
    }

    /// Pauses on a machine with few cores if a program of each awake VM lags in taking its
    /// completions.
    fn pause_for_completions(&mut self, now: u64) {
        if !self.has_few_cores {
            return;
        }
        let awake = self.vms.iter().filter(|vm| !vm.is_asleep);
        let untaken = awake.map(|vm| vm.untaken).min().unwrap_or(0);
        if untaken >= MANY_UNTAKEN {
            let pause = MAX_PAUSE_NS.min(u64::from(untaken) * TAKE_COMPLETION_NS);
            let due = self.next_slice_in_ns(now).unwrap_or(MAX_PAUSE_NS);
            self.park(Duration::from_nanos(pause.min(due)), |_| false);
        }
    }

    /// Returns the time until the first device wants its next slice, in nanoseconds.
    fn next_slice_in_ns(&self, now: u64) -> Option<u64> {
        let due = self.vms.iter().filter_map(|vm| {
            if vm.is_stalled() {
                return Some(STALL_POLL_NS);
            }
            Some(vm.deadline_ns?.saturating_sub(now))
        });
        due.min()
    }

    /// Waits after a turn without work, for a time that depends on the silence so far.
    fn idle(&mut self, now: u64) {
        let release = self.network.next_release();
        let release = release.map(|due| due.saturating_sub(now));
        let due = [self.next_slice_in_ns(now), release]
            .into_iter()
            .flatten()
            .min();
        if due == Some(0) {
            return;
        }
        let awake = self.vms.iter().filter(|vm| !vm.is_asleep);
        let Some(last_work) = awake.map(|vm| vm.last_work_ns).max() else {
            self.sleep(due);
            return;
        };
        let silence = now.saturating_sub(last_work);
        if silence < self.spin_ns {
            std::hint::spin_loop();
            return;
        }
        let nap = (silence / NAP_SHARE)
            .clamp(NAP_MIN_NS, NAP_MAX_NS)
            .min(due.unwrap_or(u64::MAX));
        self.park(Duration::from_nanos(nap), |_| false);
    }

    /// Sleeps until the engine is woken, or for `due` nanoseconds; HEARTBEAT goes on counting.
    fn sleep(&mut self, due: Option<u64>) {
        let end = due.map(|due| self.process.now().saturating_add(due));
        // A thread may have delayed a frame after `due` was computed, and before the engine slept.
        let is_sooner = |at| end.is_none_or(|end| at < end);
        loop {
            let left = end.map_or(HEARTBEAT_INTERVAL_NS, |end| {
                end.saturating_sub(self.process.now())
            });
            if left == 0
                || self.park(
                    Duration::from_nanos(left.min(HEARTBEAT_INTERVAL_NS)),
                    is_sooner,
                )
            {
                return;
            }
            self.heartbeat(self.process.now());
        }
    }
}

#[cfg(test)]
mod tests;
