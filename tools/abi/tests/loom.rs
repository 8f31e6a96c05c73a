// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A model of the doorbell protocol. It shows that no post and no arm is lost in any interleaving,
//! with any reordering that the memory model allows. The models run the code of
//! `include/abi/doorbell.rs` itself with loom's atomics.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p verbena-abi --release --test loom --target-dir
//! build/cargo-loom`. A lost post shows as a deadlock: the device waits for a doorbell that is
//! never rung. The models without the device's fence must fail, which shows that a lost post is
//! found.
#![cfg(loom)]

use loom::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};
use loom::sync::{Condvar, Mutex, Notify};
use loom::thread;
use std::sync::Arc;
use verbena_abi::doorbell::{self, Arm, ArmMode, Words};

const CQ_SLOT: usize = 2;
/// Slot of a queue pair that is in error.
const QP_SLOT: usize = 3;

/// The words of an area that the models use.
struct Area {
    sleep: AtomicU32,
    rung: AtomicU32,
    qp_generation: AtomicU32,
    cq_generation: AtomicU32,
    producers: [AtomicU32; 2],
    recv_producer: AtomicU32,
    recv_watch: AtomicU32,
    served: AtomicU32,
    arm: AtomicU64,
    /// Number of CQEs that were written, in place of the ring of the CQ.
    cqes: AtomicU32,
    /// The doorbell, latched like an eventfd. It orders no memory accesses, whereas the real one
    /// does.
    doorbell: Notify,
    /// The completion event, latched. A thread that sees it also sees the writes before it.
    event: Mutex<bool>,
    event_raised: Condvar,
}

impl Area {
    /// Returns an area whose device sleeps or is awake.
    fn new(asleep: bool) -> Arc<Self> {
        Arc::new(Self {
            sleep: AtomicU32::new(asleep.into()),
            rung: AtomicU32::new(0),
            qp_generation: AtomicU32::new(0),
            cq_generation: AtomicU32::new(0),
            producers: [AtomicU32::new(0), AtomicU32::new(0)],
            recv_producer: AtomicU32::new(0),
            recv_watch: AtomicU32::new(0),
            served: AtomicU32::new(0),
            arm: AtomicU64::new(0),
            cqes: AtomicU32::new(0),
            doorbell: Notify::new(),
            event: Mutex::new(false),
            event_raised: Condvar::new(),
        })
    }
}

/// The view of one side. With `fences` false, the full fences of that side are left out. `count` is
/// the order in which that side increments a generation.
struct View {
    area: Arc<Area>,
    fences: bool,
    count: Ordering,
}

impl View {
    fn new(area: &Arc<Area>, fences: bool) -> Self {
        Self {
            area: area.clone(),
            fences,
            count: Ordering::Release,
        }
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        let area = &self.area;
        if offset == doorbell::SLEEP {
            &area.sleep
        } else if offset == doorbell::RUNG {
            &area.rung
        } else if offset == doorbell::qp_generation(0) {
            &area.qp_generation
        } else if offset == doorbell::cq_generation(0) {
            &area.cq_generation
        } else if offset == doorbell::sq_producer(0) {
            &area.producers[0]
        } else if offset == doorbell::sq_producer(1) {
            &area.producers[1]
        } else if offset == doorbell::rq_producer(QP_SLOT) {
            &area.recv_producer
        } else if offset == doorbell::recv_watch(QP_SLOT) {
            &area.recv_watch
        } else if offset == doorbell::cq_served(CQ_SLOT) {
            &area.served
        } else {
            panic!("the model has no word at {offset:#x}")
        }
    }
}

impl Words for View {
    fn load(&self, offset: usize) -> u32 {
        self.word(offset).load(Ordering::Relaxed)
    }

    fn load_acquire(&self, offset: usize) -> u32 {
        self.word(offset).load(Ordering::Acquire)
    }

    fn store(&self, offset: usize, value: u32) {
        self.word(offset).store(value, Ordering::Relaxed);
    }

    fn store_release(&self, offset: usize, value: u32) {
        self.word(offset).store(value, Ordering::Release);
    }

    fn store64_release(&self, offset: usize, value: u64) {
        assert_eq!(offset, doorbell::cq_arm(CQ_SLOT));
        self.area.arm.store(value, Ordering::Release);
    }

    fn load64_acquire(&self, offset: usize) -> u64 {
        assert_eq!(offset, doorbell::cq_arm(CQ_SLOT));
        self.area.arm.load(Ordering::Acquire)
    }

    fn increment(&self, offset: usize) {
        self.word(offset).fetch_add(1, self.count);
    }

    fn fence(&self) {
        if self.fences {
            fence(Ordering::SeqCst);
        }
    }
}

/// The device, as far as the models need it: the values that it has seen last, and its sleep word.
struct Device {
    view: View,
    sleep: u32,
    qp_generation: u32,
    cq_generation: u32,
    producers: [u32; 2],
    notified: u32,
    served: u32,
    written: u32,
}

impl Device {
    fn new(area: &Arc<Area>, asleep: bool, fences: bool) -> Self {
        Self {
            view: View::new(area, fences),
            sleep: asleep.into(),
            qp_generation: 0,
            cq_generation: 0,
            producers: [0; 2],
            notified: 0,
            served: 0,
            written: 0,
        }
    }

    /// Reads the words that have changed. Returns true if any has.
    fn scan(&mut self) -> bool {
        let mut found = false;
        let generation = self.view.load_acquire(doorbell::qp_generation(0));
        if generation != self.qp_generation {
            self.qp_generation = generation;
            for slot in 0..2 {
                self.producers[slot] = self.view.load_acquire(doorbell::sq_producer(slot));
            }
            found = true;
        }
        let generation = self.view.load_acquire(doorbell::cq_generation(0));
        if generation != self.cq_generation {
            self.cq_generation = generation;
            self.serve();
            found = true;
        }
        found
    }

    /// Raises an event if the arm word requests one (device specification, "Notification").
    fn serve(&mut self) {
        let arm = Arm::unpack(self.view.load64_acquire(doorbell::cq_arm(CQ_SLOT)));
        let beyond = |index: u32| 0 < self.written.wrapping_sub(index) as i32;
        if arm.mode != ArmMode::None
            && arm.seq != self.served
            && beyond(arm.index)
            && beyond(self.notified)
        {
            self.served = arm.seq;
            self.notified = self.written;
            self.view
                .store_release(doorbell::cq_served(CQ_SLOT), arm.seq);
            let area = &self.view.area;
            *area.event.lock().unwrap() = true;
            area.event_raised.notify_one();
        }
    }

    /// Writes a CQE.
    fn complete(&mut self) {
        self.written += 1;
        self.view.area.cqes.store(self.written, Ordering::Release);
        self.view.fence();
        self.serve();
    }

    /// Sleeps and wakes until `done` returns true.
    fn run(&mut self, done: impl Fn(&Self) -> bool) {
        while !done(self) {
            if self.sleep & 1 == 0 {
                doorbell::fall_asleep(&self.view, &mut self.sleep);
                if !self.scan() {
                    self.view.area.doorbell.wait();
                }
            } else {
                self.view.area.doorbell.wait();
            }
            doorbell::wake_up(&self.view, &mut self.sleep);
            self.scan();
        }
    }
}

fn post(area: &Arc<Area>, slot: usize) {
    doorbell::post_send(&View::new(area, true), slot, 1, || area.doorbell.notify());
}

fn posts_are_noticed(asleep: bool, device_fences: bool) {
    check(move || {
        let area = Area::new(asleep);
        let posters: Vec<_> = (0..2)
            .map(|slot| {
                let area = area.clone();
                thread::spawn(move || post(&area, slot))
            })
            .collect();
        let mut device = Device::new(&area, asleep, device_fences);
        device.run(|device| device.producers == [1, 1]);
        for poster in posters {
            poster.join().unwrap();
        }
    });
}

fn arms_are_served(device_fences: bool) {
    check(move || {
        let area = Area::new(false);
        let program = {
            let area = area.clone();
            thread::spawn(move || {
                let view = View::new(&area, true);
                let mut last = Arm {
                    index: 0,
                    seq: 0,
                    mode: ArmMode::None,
                };
                // The program arms the CQ, does not poll, and waits for the event.
                doorbell::arm_cq(&view, CQ_SLOT, &mut last, 0, ArmMode::Next, || {
                    area.doorbell.notify();
                });
                let mut raised = area.event.lock().unwrap();
                while !*raised {
                    raised = area.event_raised.wait(raised).unwrap();
                }
                assert_eq!(area.cqes.load(Ordering::Acquire), 1);
            })
        };
        let mut device = Device::new(&area, false, device_fences);
        device.complete();
        device.run(|device| device.served != 0);
        program.join().unwrap();
    });
}

/// A guest posts while the device scans an area that is awake. The count of the post has this order.
fn a_scan_finds_what_was_counted(count: Ordering) {
    check(move || {
        let area = Area::new(false);
        let poster = {
            let mut view = View::new(&area, true);
            view.count = count;
            thread::spawn(move || doorbell::post_send(&view, 0, 1, || {}))
        };
        let mut device = Device::new(&area, false, true);
        if device.scan() {
            assert_eq!(
                device.producers[0], 1,
                "the count is new and the post is not"
            );
        }
        poster.join().unwrap();
    });
}

/// A guest posts a receive while its queue pair moves to ERR. Whichever comes first, the device
/// flushes the receive.
fn receives_are_flushed(guest_fences: bool, device_fences: bool) {
    check(move || {
        let area = Area::new(false);
        let poster = {
            let view = View::new(&area, guest_fences);
            thread::spawn(move || doorbell::post_recv(&view, QP_SLOT, 1, || {}))
        };
        let device = View::new(&area, device_fences);
        doorbell::watch_receives(&device, QP_SLOT, true);
        let flushed = device.load_acquire(doorbell::rq_producer(QP_SLOT)) == 1;
        poster.join().unwrap();
        let announced = device.load_acquire(doorbell::qp_generation(0)) == 1;
        assert!(flushed || announced, "a receive is never flushed");
    });
}

/// A sender waits for a receive, and the device falls asleep. The post of the receive wakes it.
fn wanted_receives_wake(device_fences: bool) {
    check(move || {
        let area = Area::new(false);
        let poster = {
            let area = area.clone();
            thread::spawn(move || {
                let view = View::new(&area, true);
                doorbell::post_recv(&view, QP_SLOT, 1, || area.doorbell.notify());
            })
        };
        let mut device = Device::new(&area, false, device_fences);
        doorbell::watch_receives(&device.view, QP_SLOT, true);
        let is_posted =
            |device: &Device| device.view.load_acquire(doorbell::rq_producer(QP_SLOT)) == 1;
        device.run(is_posted);
        poster.join().unwrap();
    });
}

/// Explores all interleavings with up to three preemptions. That was enough for every bug that the
/// protocol had during its design, and is quick.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn loom_posts_wake_a_sleeping_device() {
    posts_are_noticed(true, true);
}

#[test]
fn loom_posts_are_not_lost_while_the_device_falls_asleep() {
    posts_are_noticed(false, true);
}

#[test]
#[should_panic]
fn loom_posts_are_lost_without_the_devices_fence() {
    posts_are_noticed(false, false);
}

#[test]
fn loom_an_arm_is_served_by_an_event() {
    arms_are_served(true);
}

#[test]
#[should_panic]
fn loom_an_arm_is_lost_without_the_devices_fence() {
    arms_are_served(false);
}

#[test]
fn loom_a_scan_finds_the_post_that_was_counted() {
    a_scan_finds_what_was_counted(Ordering::Release);
}

#[test]
#[should_panic(expected = "the post is not")]
fn loom_a_post_is_lost_if_its_count_may_come_first() {
    a_scan_finds_what_was_counted(Ordering::Relaxed);
}

#[test]
fn loom_a_wanted_receive_wakes_the_device() {
    wanted_receives_wake(true);
}

#[test]
#[should_panic]
fn loom_a_wanted_receive_is_missed_without_the_devices_fence() {
    wanted_receives_wake(false);
}

#[test]
fn loom_a_receive_is_flushed() {
    receives_are_flushed(true, true);
}

#[test]
#[should_panic(expected = "never flushed")]
fn loom_a_receive_needs_the_guests_fence() {
    receives_are_flushed(false, true);
}

#[test]
#[should_panic(expected = "never flushed")]
fn loom_a_receive_needs_the_devices_fence() {
    receives_are_flushed(true, false);
}
