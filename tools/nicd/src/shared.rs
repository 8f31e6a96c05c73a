// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the threads of the NIC share: guest RAM, the gate of DMA, the engine's inbox and the interrupts.
//!
//! The front (which answers QEMU) never waits for the engine, except for the end of one slice where silence has to be
//! certain. So everything that it tells the engine is left in atomics or in the inbox, and the engine is woken if it
//! sleeps.
//!
//! **The gate** (device specification, section 1): no DMA while bus mastering is off or a reset is going on. The engine
//! takes the read lock of guest RAM for each slice and looks at the gate after that. So whoever closes the gate and then
//! holds the write lock for a moment knows that all DMA has ended.
//!
//! **Waking**: the engine sets `parked`, executes a full fence and looks once more whether anything came; the others leave
//! their message, execute a full fence and look at `parked`. One of both sees the other.

use crate::guest_ram::GuestRam;
use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{fence, AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{
    mpsc, Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
use std::time::Duration;
use verbena_abi::regs;
use verbena_device::misbehave::Misbehaviour;
use verbena_device::{Action, ContextInfo, Registers};

/// The most messages that wait for the engine. A guest that sends more than this in one slice loses some, which it
/// can cause only by ringing for the same command slots again and again, or by flooding its Ethernet.
const INBOX_MAX: usize = 4096;

const RING_WORDS: usize = regs::NUM_UARS as usize / 64;

/// A message for the engine.
pub enum Message {
    /// A register was written.
    Register(Action),
    /// A RoCE frame came from the guest's Ethernet or an uplink.
    Frame(Vec<u8>),
    /// Somebody wants to know something.
    Ask(Question),
}

/// What the control socket asks.
pub enum Question {
    /// The counters.
    Stats(mpsc::Sender<Vec<u64>>),
    /// All contexts.
    Contexts(mpsc::Sender<Vec<ContextInfo>>),
}

/// Counts for which the device model has no place.
#[derive(Default)]
pub struct Counts {
    /// Ethernet frames of the guest.
    pub ethernet_frames: AtomicU64,
    /// Frames that had to leave although there is no uplink.
    pub uplink_dropped: AtomicU64,
    /// Messages that did not fit into the inbox.
    pub inbox_dropped: AtomicU64,
    /// Slices that the engine has run.
    pub slices: AtomicU64,
    /// How often the engine went to sleep until somebody would wake it.
    pub sleeps: AtomicU64,
    /// Interrupts that were wanted while their vector had no eventfd.
    pub interrupts_lost: AtomicU64,
}

/// See the module.
pub struct Shared {
    /// The registers; both sides use them without waiting.
    pub regs: Arc<Registers>,
    /// Counts.
    pub counts: Counts,
    /// What the NIC does wrong at present: nothing, but in a build for tests.
    pub misbehave: Misbehaviour,
    ram: RwLock<GuestRam>,
    bus_master: AtomicBool,
    resets: AtomicU32,
    rung: [AtomicU64; RING_WORDS],
    rings: AtomicU64,
    inbox: Mutex<VecDeque<Message>>,
    has_mail: AtomicBool,
    parked: AtomicBool,
    wake: OwnedFd,
    vectors: Mutex<Vec<Option<OwnedFd>>>,
}

/// A lock is poisoned only if a thread panicked while it held it; what these locks protect is valid at any moment.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// As after power-on.
    pub fn new() -> io::Result<Self> {
        Self::misbehaving(Misbehaviour::default())
    }

    /// As after power-on, of a NIC that may misbehave.
    pub fn misbehaving(misbehave: Misbehaviour) -> io::Result<Self> {
        Ok(Self {
            misbehave,
            regs: Arc::default(),
            counts: Counts::default(),
            ram: RwLock::default(),
            bus_master: AtomicBool::new(false),
            resets: AtomicU32::new(0),
            rung: [const { AtomicU64::new(0) }; RING_WORDS],
            rings: AtomicU64::new(0),
            inbox: Mutex::default(),
            has_mail: AtomicBool::new(false),
            parked: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            vectors: Mutex::new((0..regs::NUM_VECTORS).map(|_| None).collect()),
        })
    }

    /// Guest RAM, for the length of one slice.
    pub fn ram(&self) -> RwLockReadGuard<'_, GuestRam> {
        self.ram.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Guest RAM, to change what is mapped. Waits for the end of the slice that is going on.
    pub fn ram_mut(&self) -> RwLockWriteGuard<'_, GuestRam> {
        self.ram.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether DMA and interrupts are allowed now. Look while holding [`Shared::ram`].
    pub fn gate_open(&self) -> bool {
        self.bus_master.load(Ordering::SeqCst) && !self.resetting()
    }

    /// Whether a reset waits for the engine.
    pub fn resetting(&self) -> bool {
        self.resets.load(Ordering::SeqCst) != 0
    }

    /// Front: bus mastering was switched. When this returns after switching it off, all DMA has ended.
    pub fn set_bus_master(&self, on: bool) {
        self.bus_master.store(on, Ordering::SeqCst);
        if on {
            self.wake();
        } else {
            drop(self.ram_mut());
        }
    }

    /// Front: asks for a reset. When this returns all DMA of the old life has ended.
    pub fn reset(&self) {
        {
            // Counted and left in one step, as `start_over` needs it.
            let mut inbox = lock(&self.inbox);
            self.resets.fetch_add(1, Ordering::SeqCst);
            self.regs.write(regs::CONTROL, regs::CONTROL_RESET);
            // A reset is never dropped, however full the inbox is.
            inbox.push_back(Message::Register(Action::Reset));
            self.has_mail.store(true, Ordering::SeqCst);
        }
        self.wake();
        drop(self.ram_mut());
    }

    /// Engine: one reset was taken from the inbox. True: it was the last that waits.
    pub fn take_reset(&self) -> bool {
        self.resets.load(Ordering::SeqCst) == 1
    }

    /// Engine: so many resets are done, or left to a later one.
    pub fn resets_done(&self, count: u32) {
        self.resets.fetch_sub(count, Ordering::SeqCst);
    }

    /// Engine: takes the place of one that ended. Drops what waits in the inbox; returns how many resets are to be done.
    pub fn start_over(&self) -> u32 {
        let mut inbox = lock(&self.inbox);
        inbox.clear();
        self.resets.load(Ordering::SeqCst)
    }

    /// Leaves a message for the engine.
    pub fn send(&self, message: Message) {
        let mut inbox = lock(&self.inbox);
        if inbox.len() >= INBOX_MAX {
            self.counts.inbox_dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        inbox.push_back(message);
        drop(inbox);
        self.has_mail.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Front: the page of an area in the doorbell BAR was written.
    pub fn ring(&self, uar: u32) {
        if let Some(word) = self.rung.get(uar as usize / 64) {
            word.fetch_or(1 << (uar % 64), Ordering::Release);
            self.rings.fetch_add(1, Ordering::Release);
            self.wake();
        }
    }

    /// Engine: all messages that came since the last call.
    pub fn messages(&self) -> VecDeque<Message> {
        if !self.has_mail.load(Ordering::Relaxed) {
            return VecDeque::new();
        }
        let mut inbox = lock(&self.inbox);
        self.has_mail.store(false, Ordering::SeqCst);
        std::mem::take(&mut *inbox)
    }

    /// Engine: calls `each` for every area that was rung for; returns how many writes there were.
    pub fn take_rings(&self, mut each: impl FnMut(u32)) -> u64 {
        if self.rings.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let count = self.rings.swap(0, Ordering::Acquire);
        for (i, word) in self.rung.iter().enumerate() {
            let mut bits = match word.load(Ordering::Relaxed) {
                0 => continue,
                _ => word.swap(0, Ordering::Acquire),
            };
            while bits != 0 {
                each(i as u32 * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
        count
    }

    /// Engine: sleeps until somebody leaves something, or for `timeout`. Returns whether there may be something.
    pub fn park(&self, timeout: Duration) -> bool {
        self.parked.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let pending =
            self.has_mail.load(Ordering::SeqCst) || self.rings.load(Ordering::SeqCst) != 0;
        let woken = pending || {
            let timeout = Timespec {
                tv_sec: timeout.as_secs().min(i32::MAX as u64) as i64,
                tv_nsec: i64::from(timeout.subsec_nanos()),
            };
            let mut fds = [PollFd::new(&self.wake, PollFlags::IN)];
            // An error (a signal) is as good as an early wake-up.
            poll(&mut fds, Some(&timeout)) != Ok(0)
        };
        self.parked.store(false, Ordering::SeqCst);
        // Non-blocking: it fails if nobody woke, which is fine.
        let read = rustix::io::read(&self.wake, &mut [0; 8]);
        woken || read.is_ok()
    }

    /// Has the engine look for what is new.
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.parked.swap(false, Ordering::SeqCst) {
            // It fails only if the counter is full, and then the engine wakes as well.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    /// Front: sets or takes away the eventfd of a vector.
    pub fn set_vector(&self, vector: u32, eventfd: Option<OwnedFd>) {
        if let Some(slot) = lock(&self.vectors).get_mut(vector as usize) {
            *slot = eventfd;
        }
    }

    /// Engine: raises the vectors whose bit is set.
    pub fn raise(&self, mut mask: u32) {
        let vectors = lock(&self.vectors);
        while mask != 0 {
            let vector = mask.trailing_zeros();
            mask &= mask - 1;
            match vectors.get(vector as usize) {
                // A full counter has raised the interrupt already.
                Some(Some(fd)) => drop(rustix::io::write(fd, &1u64.to_ne_bytes())),
                _ => drop(self.counts.interrupts_lost.fetch_add(1, Ordering::Relaxed)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn rings_are_collected_by_area_and_counted() {
        let shared = Shared::new().unwrap();
        for uar in [0, 63, 64, 1023, 64, 1024, u32::MAX] {
            shared.ring(uar);
        }
        let mut seen = vec![];
        assert_eq!(shared.take_rings(|uar| seen.push(uar)), 5);
        assert_eq!(seen, [0, 63, 64, 1023]);
        assert_eq!(shared.take_rings(|_| unreachable!()), 0);
    }

    #[test]
    fn parking_returns_at_once_when_something_came() {
        let shared = Shared::new().unwrap();
        shared.ring(7);
        shared.park(LONG);
        shared.take_rings(|_| ());
        shared.send(Message::Register(Action::Command(1)));
        shared.park(LONG);
        assert_eq!(shared.messages().len(), 1);
        assert!(shared.messages().is_empty());
    }

    #[test]
    fn a_parked_engine_is_woken() {
        let shared = Arc::new(Shared::new().unwrap());
        let engine = std::thread::spawn({
            let shared = shared.clone();
            move || {
                for _ in 0..1000 {
                    while shared.take_rings(|_| ()) == 0 {
                        shared.park(LONG);
                    }
                    shared.regs.beat();
                }
            }
        });
        for n in 0..1000 {
            shared.ring(n);
            while shared.regs.read(regs::HEARTBEAT) <= n {
                std::thread::yield_now();
            }
        }
        engine.join().unwrap();
    }

    #[test]
    fn the_inbox_is_bounded_but_a_reset_is_never_lost() {
        let shared = Shared::new().unwrap();
        for _ in 0..2 * INBOX_MAX {
            shared.send(Message::Frame(vec![]));
        }
        shared.reset();
        assert_ne!(shared.regs.read(regs::STATUS) & regs::STATUS_RESETTING, 0);
        let messages = shared.messages();
        assert_eq!(messages.len(), INBOX_MAX + 1);
        assert!(matches!(
            messages.back(),
            Some(Message::Register(Action::Reset))
        ));
    }

    #[test]
    fn the_gate_needs_bus_mastering_and_no_reset() {
        let shared = Shared::new().unwrap();
        assert!(!shared.gate_open());
        shared.set_bus_master(true);
        assert!(shared.gate_open());
        shared.reset();
        assert!(!shared.gate_open() && shared.take_reset());
        shared.resets_done(1);
        assert!(shared.gate_open());
    }
}
