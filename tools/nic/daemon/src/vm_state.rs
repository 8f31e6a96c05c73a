// SPDX-License-Identifier: GPL-2.0 OR MIT

//! State that the threads of the NIC share for one VM: guest RAM, the gate of DMA, the engine's
//! mail and the interrupts. [`ProcessState`] is the state that all VMs share.
//!
//! The PCI function (which answers QEMU) never waits for the engine, except for the end of one
//! slice where it must be certain that the device is silent. So the PCI function leaves every
//! message for the engine in atomics or in the engine's mail, and wakes the engine if it sleeps.
//!
//! **The mail** has an inbox for each kind (`inbox.rs`): register writes, frames, requests.
//!
//! **The gate** (device specification, section 1): there is no DMA while bus mastering is off or a
//! reset is in progress. For each slice the engine takes the read lock of guest RAM and checks the
//! gate after that. So after a thread has closed the gate and then held the write lock for a
//! moment, all DMA has ended.

use crate::frame_address::PortLink;
use crate::guest_ram::GuestRam;
pub use crate::inbox::{EngineRequest, FullRecordingChange, RecorderChange, RuleChange};
use crate::inbox::{Inboxes, PortChange};
use crate::process_state::ProcessState;
use crate::refusals::Refusals;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
use std::time::{SystemTime, UNIX_EPOCH};
use verbena_abi::regs;
use verbena_device::misbehave::Misbehaviour;
use verbena_device::{Action, FullRecordingRequest, Registers};

const RING_WORDS: usize = regs::NUM_UARS as usize / 64;
const RING_GROUPS: usize = RING_WORDS.div_ceil(64);

/// Messages that were left for the engine.
#[derive(Default)]
pub struct EngineMail {
    /// Register writes, in order.
    pub actions: Vec<Action>,
    /// RoCE frames from the guest's Ethernet or an uplink, in order.
    pub frames: Vec<Vec<u8>>,
    /// A query from the control socket.
    pub request: Option<EngineRequest>,
    /// A change of the InfiniBand port.
    pub port_change: Option<PortChange>,
}

/// Counts of one VM that the device model cannot keep.
#[derive(Default)]
pub struct VmCounters {
    /// Ethernet frames that the guest has sent.
    pub ethernet_frames: AtomicU64,
    /// Frames for the guest's Ethernet that were dropped: there was no room, or no guest.
    pub ethernet_dropped: AtomicU64,
    /// Frames and packets for the device that were dropped, because they came faster than the
    /// engine took them.
    pub inbox_dropped: AtomicU64,
    /// Slices that the engine has given the device.
    pub slices: AtomicU64,
    /// Number of times that the guest was informed that the engine sleeps until a doorbell wakes
    /// it.
    pub sleeps: AtomicU64,
    /// Interrupts that were dropped, because their vector had no eventfd.
    pub interrupts_lost: AtomicU64,
}

/// A range of guest memory that the NIC cannot map, and that may be RAM because of its size or
/// place. DMA to it fails.
pub struct UnreachableRange {
    /// Guest address of the range.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// The fault of this memory, as the rest of a sentence about it.
    pub why: &'static str,
}

/// State that the threads share for one VM. See the [module](self).
pub struct VmState {
    /// The registers; both sides use them without waiting.
    pub regs: Arc<Registers>,
    /// Counts of this VM.
    pub counts: VmCounters,
    /// Present misbehaviour of the NIC, of which there is none but in a build for tests.
    pub misbehave: Misbehaviour,
    /// State that all VMs of the process share.
    pub process: Arc<ProcessState>,
    /// GIDs that the host or the switch has refused to the driver.
    pub refusals: Refusals,
    /// Path for the recording that is saved when the device fails, if one was given.
    pub dump: OnceLock<PathBuf>,
    full_recording: Mutex<Option<FullRecordingRequest>>,
    ram: RwLock<GuestRam>,
    unreachable: Mutex<Vec<UnreachableRange>>,
    bus_master: AtomicBool,
    resetting: AtomicBool,
    rung_areas: [AtomicU64; RING_WORDS],
    /// Bit for each word of `rung_areas` that is not 0: of thousands of areas few have rung at a
    /// time.
    rung_words: [AtomicU64; RING_GROUPS],
    doorbell_writes: AtomicU64,
    inboxes: Mutex<Inboxes>,
    has_mail: AtomicBool,
    slice_requested: AtomicBool,
    vectors: Mutex<Vec<Option<OwnedFd>>>,
}

/// Locks a mutex even if it is poisoned, which means that a thread panicked while it held the lock:
/// the data of these locks is valid at any moment.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Clears a word, and returns the numbers of the bits that were set.
fn take_bits(word: &AtomicU64) -> impl Iterator<Item = usize> {
    let mut bits = match word.load(Ordering::Relaxed) {
        0 => 0,
        _ => word.swap(0, Ordering::Acquire),
    };
    std::iter::from_fn(move || {
        let bit = bits.trailing_zeros() as usize;
        bits &= bits.wrapping_sub(1);
        (bit < 64).then_some(bit)
    })
}

impl VmState {
    /// Returns the state after power-on of the only VM of a process.
    ///
    /// # Errors
    ///
    /// The process cannot get another descriptor.
    pub fn new() -> io::Result<Self> {
        let process = Arc::new(ProcessState::new()?);
        Ok(Self::with_process(&process, Misbehaviour::default()))
    }

    /// Returns the state after power-on of one of the VMs of a process, with a NIC that may
    /// misbehave.
    pub fn with_process(process: &Arc<ProcessState>, misbehave: Misbehaviour) -> Self {
        Self {
            misbehave,
            process: process.clone(),
            refusals: Refusals::default(),
            dump: OnceLock::new(),
            full_recording: Mutex::default(),
            regs: Arc::default(),
            counts: VmCounters::default(),
            ram: RwLock::default(),
            unreachable: Mutex::default(),
            bus_master: AtomicBool::new(false),
            resetting: AtomicBool::new(false),
            rung_areas: [const { AtomicU64::new(0) }; RING_WORDS],
            rung_words: [const { AtomicU64::new(0) }; RING_GROUPS],
            doorbell_writes: AtomicU64::new(0),
            inboxes: Mutex::default(),
            has_mail: AtomicBool::new(false),
            slice_requested: AtomicBool::new(false),
            vectors: Mutex::new((0..regs::NUM_VECTORS).map(|_| None).collect()),
        }
    }

    /// Returns the ranges of the guest's memory that cannot be reached. Only the PCI function
    /// changes them.
    pub fn unreachable(&self) -> MutexGuard<'_, Vec<UnreachableRange>> {
        lock(&self.unreachable)
    }

    /// Requests that the device is recorded in full from its beginning.
    pub fn request_full_recording(&self, request: FullRecordingRequest) {
        *lock(&self.full_recording) = Some(request);
    }

    /// Takes the recording that was requested (called by the engine).
    pub(crate) fn take_full_recording_request(&self) -> Option<FullRecordingRequest> {
        lock(&self.full_recording).take()
    }

    /// Returns the device clock in nanoseconds.
    pub fn now(&self) -> u64 {
        self.process.now()
    }

    /// Returns the time at which the device clock was 0, in nanoseconds since 1970. Captures and
    /// recordings use the time of day, because they are read beside those of other machines.
    pub fn power_on(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        (since.unwrap_or_default().as_nanos() as u64).saturating_sub(self.now())
    }

    /// Locks guest RAM for the length of one slice.
    pub fn ram(&self) -> RwLockReadGuard<'_, GuestRam> {
        self.ram.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks guest RAM for a change of the map. Waits for the end of the present slice.
    pub fn ram_mut(&self) -> RwLockWriteGuard<'_, GuestRam> {
        self.ram.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if DMA and interrupts are allowed now. The caller holds [`VmState::ram`].
    pub fn is_gate_open(&self) -> bool {
        self.bus_master.load(Ordering::SeqCst) && !self.is_resetting()
    }

    /// True if the engine has yet to do a reset.
    pub fn is_resetting(&self) -> bool {
        self.resetting.load(Ordering::SeqCst)
    }

    /// Switches bus mastering (called by the PCI function). When this returns after switching it
    /// off, all DMA has ended.
    pub fn set_bus_master(&self, on: bool) {
        self.bus_master.store(on, Ordering::SeqCst);
        if on {
            self.request_slice();
        } else {
            drop(self.ram_mut());
        }
    }

    /// Requests a reset (called by the PCI function). When this returns, all DMA from before the
    /// reset has ended.
    pub fn begin_reset(&self) {
        {
            // The lock covers all of these, so that the engine cannot end the reset before all of
            // them are set.
            let mut inboxes = lock(&self.inboxes);
            self.resetting.store(true, Ordering::SeqCst);
            self.regs.write(regs::CONTROL, regs::CONTROL_RESET);
            inboxes.push_action(Action::Reset);
            self.has_mail.store(true, Ordering::SeqCst);
        }
        self.wake();
        drop(self.ram_mut());
    }

    /// Ends a reset (called by the engine). If another reset was requested meanwhile, the device
    /// stays in reset until that one is done.
    pub fn end_reset(&self) {
        let inboxes = lock(&self.inboxes);
        let has_another_reset = inboxes.actions.has_reset();
        self.resetting.store(has_another_reset, Ordering::SeqCst);
    }

    /// Drops all waiting mail for an engine that replaces one that panicked. Returns true if a
    /// reset is to be done, which the engine that panicked may have begun.
    pub fn start_over(&self) -> bool {
        let mut inboxes = lock(&self.inboxes);
        *inboxes = Inboxes::default();
        self.is_resetting()
    }

    fn post<T>(&self, leave: impl FnOnce(&mut Inboxes) -> T) -> T {
        let mut inboxes = lock(&self.inboxes);
        let result = leave(&mut inboxes);
        self.has_mail.store(!inboxes.is_empty(), Ordering::SeqCst);
        drop(inboxes);
        self.wake();
        result
    }

    /// Posts a register write that the engine has to act on (called by the PCI function).
    pub fn post_action(&self, action: Action) {
        self.post(|inboxes| inboxes.push_action(action));
    }

    /// Posts an Ethernet frame for the engine. Drops and counts it if there is no room.
    pub fn post_frame(&self, frame: Vec<u8>) {
        self.post_of(PortLink::Ethernet, frame);
    }

    /// Posts a frame of a port with this link for the engine, like [`VmState::post_frame`].
    pub(crate) fn post_of(&self, link: PortLink, frame: Vec<u8>) {
        if !self.post(|inboxes| inboxes.frames.push(link, frame)) {
            self.count_dropped();
        }
    }

    /// Posts a change of the InfiniBand port for the engine.
    pub fn post_port_change(&self, change: PortChange) {
        self.post(|inboxes| inboxes.push_port_change(change));
    }

    /// Counts a frame or packet that came faster than the engine took them.
    pub fn count_dropped(&self) {
        self.counts.inbox_dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Posts a request for the engine. Returns false if too many requests wait.
    pub fn post_request(&self, request: EngineRequest) -> bool {
        self.post(|inboxes| inboxes.requests.push(request))
    }

    /// Records a write to the page of area `uar` in the doorbell BAR (called by the PCI function).
    pub fn ring_doorbell(&self, uar: u32) {
        let at = uar as usize / 64;
        if let (Some(word), Some(group)) = (self.rung_areas.get(at), self.rung_words.get(at / 64)) {
            word.fetch_or(1 << (uar % 64), Ordering::Release);
            group.fetch_or(1 << (at % 64), Ordering::Release);
            self.doorbell_writes.fetch_add(1, Ordering::Release);
            self.wake();
        }
    }

    /// Takes mail (called by the engine): all register writes, at most `frames` frames, and one
    /// request if `with_request` is true.
    pub fn take_mail(&self, frames: usize, with_request: bool) -> EngineMail {
        if !self.has_mail.load(Ordering::Relaxed) {
            return EngineMail::default();
        }
        let mut inboxes = lock(&self.inboxes);
        let mail = EngineMail {
            actions: inboxes.actions.take(),
            frames: inboxes.frames.take(frames),
            request: with_request.then(|| inboxes.requests.take()).flatten(),
            port_change: inboxes.port_change.take(),
        };
        self.has_mail.store(!inboxes.is_empty(), Ordering::SeqCst);
        mail
    }

    /// Calls `each` for every area whose doorbell was rung, and returns the number of writes
    /// (called by the engine).
    pub fn take_doorbells(&self, mut each: impl FnMut(u32)) -> u64 {
        if self.doorbell_writes.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let count = self.doorbell_writes.swap(0, Ordering::Acquire);
        for (group, words) in self.rung_words.iter().enumerate() {
            for at in take_bits(words).map(|bit| group * 64 + bit) {
                let rung = self.rung_areas.get(at).into_iter().flat_map(take_bits);
                rung.for_each(|bit| each((at * 64 + bit) as u32));
            }
        }
        count
    }

    /// True if anything was left for the engine.
    pub fn has_messages(&self) -> bool {
        self.has_mail.load(Ordering::SeqCst)
            || self.doorbell_writes.load(Ordering::SeqCst) != 0
            || self.slice_requested.load(Ordering::SeqCst)
    }

    /// Has the engine give the device a slice even if there is no mail.
    pub fn request_slice(&self) {
        self.slice_requested.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// True if [`request_slice`](Self::request_slice) was called since the last call (called by the
    /// engine).
    pub fn take_slice_request(&self) -> bool {
        self.slice_requested.load(Ordering::Relaxed)
            && self.slice_requested.swap(false, Ordering::SeqCst)
    }

    fn wake(&self) {
        self.process.waker.wake();
    }

    /// Sets the eventfd of a vector, or removes it for `None` (called by the PCI function). QEMU's
    /// eventfds never block; a descriptor that did would stop the engine, which serves all VMs, so
    /// it is made non-blocking.
    pub fn set_vector(&self, vector: u32, eventfd: Option<OwnedFd>) {
        if let Some(fd) = &eventfd {
            let _ = rustix::io::ioctl_fionbio(fd, true);
        }
        if let Some(slot) = lock(&self.vectors).get_mut(vector as usize) {
            *slot = eventfd;
        }
    }

    /// Raises the vectors whose bit is set (called by the engine). The caller has held guest RAM
    /// since before it found the gate open, so a thread that closes the gate and waits for the end
    /// of the slice gets no interrupt after that.
    pub fn raise(&self, _ram: &GuestRam, mut mask: u32) {
        let vectors = lock(&self.vectors);
        while mask != 0 {
            let vector = mask.trailing_zeros();
            mask &= mask - 1;
            match vectors.get(vector as usize) {
                // A write fails only if the counter is full; then the interrupt is raised already.
                Some(Some(fd)) => drop(rustix::io::write(fd, &1u64.to_ne_bytes())),
                _ => drop(self.counts.interrupts_lost.fetch_add(1, Ordering::Relaxed)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inbox::{MAX_FRAMES, MAX_REQUESTS};
    use std::sync::mpsc;
    use std::time::Duration;

    const LONG: Duration = Duration::from_secs(20);

    fn park(shared: &VmState) {
        let pending = || shared.has_messages();
        shared.process.waker.park(LONG, pending, std::iter::empty());
    }

    #[test]
    fn rings_are_collected_by_area_and_counted() {
        let shared = VmState::new().unwrap();
        let last = regs::NUM_UARS - 1;
        let rung = [0, 63, 64, 1023, 64, 4096, last, last + 1, u32::MAX];
        for _ in 0..2 {
            for uar in rung {
                shared.ring_doorbell(uar);
            }
            let mut seen = vec![];
            assert_eq!(shared.take_doorbells(|uar| seen.push(uar)), 7);
            assert_eq!(seen, [0, 63, 64, 1023, 4096, last]);
            assert_eq!(shared.take_doorbells(|_| unreachable!()), 0);
        }
    }

    #[test]
    fn the_engine_does_not_sleep_while_there_is_work() {
        let shared = VmState::new().unwrap();
        shared.ring_doorbell(7);
        park(&shared);
        shared.take_doorbells(|_| ());
        shared.post_action(Action::Command(1));
        park(&shared);
        assert_eq!(shared.take_mail(1, true).actions, [Action::Command(1)]);
        assert!(shared.take_mail(1, true).actions.is_empty());
    }

    #[test]
    fn a_parked_engine_is_woken() {
        let shared = Arc::new(VmState::new().unwrap());
        let engine = std::thread::spawn({
            let shared = shared.clone();
            move || {
                for _ in 0..1000 {
                    while shared.take_doorbells(|_| ()) == 0 {
                        park(&shared);
                    }
                    shared.regs.beat();
                }
            }
        });
        for n in 0..1000 {
            shared.ring_doorbell(n);
            while shared.regs.read(regs::HEARTBEAT) <= n {
                std::thread::yield_now();
            }
        }
        engine.join().unwrap();
    }

    #[test]
    fn a_flood_of_frames_is_bounded_and_drops_no_command() {
        let shared = VmState::new().unwrap();
        for _ in 0..2 * MAX_FRAMES {
            shared.post_frame(vec![]);
        }
        shared.post_action(Action::EnableCmdq);
        shared.post_action(Action::Command(7));
        shared.ring_doorbell(3);
        let dropped = shared.counts.inbox_dropped.load(Ordering::Relaxed);
        assert_eq!(dropped, MAX_FRAMES as u64);
        let mail = shared.take_mail(10, true);
        assert_eq!(mail.actions, [Action::EnableCmdq, Action::Command(7)]);
        assert_eq!(mail.frames.len(), 10);
        assert_eq!(shared.take_doorbells(|uar| assert_eq!(uar, 3)), 1);
        // The other frames still wait, so the engine does not sleep.
        park(&shared);
        assert_eq!(
            shared.take_mail(usize::MAX, true).frames.len(),
            MAX_FRAMES - 10
        );
        assert!(shared.take_mail(usize::MAX, true).frames.is_empty());
    }

    #[test]
    fn the_number_of_actions_that_register_writes_cause_is_bounded() {
        let shared = VmState::new().unwrap();
        for round in 0..1000 {
            shared.post_action(Action::EnableCmdq);
            shared.post_action(Action::Command(round));
            shared.post_action(Action::Command(round % 64));
        }
        assert_eq!(shared.take_mail(0, false).actions.len(), 65);
        // After the engine has taken a slot, the slot can be queued again.
        shared.post_action(Action::Command(0));
        assert_eq!(shared.take_mail(0, false).actions, [Action::Command(0)]);
        for _ in 0..1000 {
            shared.post_action(Action::Command(1));
            shared.begin_reset();
        }
        assert_ne!(shared.regs.read(regs::STATUS) & regs::STATUS_RESETTING, 0);
        assert_eq!(shared.take_mail(0, false).actions, [Action::Reset]);
    }

    #[test]
    fn requests_are_taken_one_by_one_and_their_number_is_bounded() {
        let shared = VmState::new().unwrap();
        let (to, _from) = mpsc::channel();
        let accepted = (0..1000).filter(|_| shared.post_request(EngineRequest::Stats(to.clone())));
        assert_eq!(accepted.count(), MAX_REQUESTS);
        assert!(shared.take_mail(0, false).request.is_none());
        for _ in 0..MAX_REQUESTS {
            assert!(shared.take_mail(0, true).request.is_some());
        }
        assert!(shared.take_mail(0, true).request.is_none());
    }

    #[test]
    fn after_the_engine_has_started_over_there_is_no_mail_and_no_reset_is_lost() {
        let shared = VmState::new().unwrap();
        shared.post_action(Action::EnableCmdq);
        shared.post_action(Action::Command(1));
        shared.post_frame(vec![]);
        assert!(!shared.start_over());
        let mail = shared.take_mail(1, true);
        assert!(mail.actions.is_empty() && mail.frames.is_empty());
        shared.post_action(Action::Command(1));
        assert_eq!(shared.take_mail(0, false).actions, [Action::Command(1)]);
        // The engine fails after it has taken the reset from the mail.
        shared.begin_reset();
        drop(shared.take_mail(0, false));
        assert!(shared.start_over());
        // A reset that is requested before the last one is done stays in the mail.
        shared.begin_reset();
        shared.end_reset();
        assert!(shared.is_resetting());
        assert_eq!(shared.take_mail(0, false).actions, [Action::Reset]);
    }

    #[test]
    fn a_vector_never_blocks() {
        let shared = VmState::new().unwrap();
        // A hostile client might pass a socket instead of an eventfd.
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let same = ours.try_clone().unwrap();
        shared.set_vector(0, Some(ours.into()));
        let flags = rustix::fs::fcntl_getfl(&same).unwrap();
        assert!(flags.contains(rustix::fs::OFlags::NONBLOCK));
    }

    #[test]
    fn the_gate_needs_bus_mastering_and_no_reset() {
        let shared = VmState::new().unwrap();
        assert!(!shared.is_gate_open());
        shared.set_bus_master(true);
        assert!(shared.is_gate_open());
        shared.begin_reset();
        assert!(!shared.is_gate_open());
        assert_eq!(shared.take_mail(0, false).actions, [Action::Reset]);
        // A second reset is requested before the first is done.
        shared.begin_reset();
        shared.end_reset();
        assert!(!shared.is_gate_open());
        assert_eq!(shared.take_mail(0, false).actions, [Action::Reset]);
        shared.end_reset();
        assert!(shared.is_gate_open());
    }
}
