// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Models of the rings and contexts that the device writes and the driver or a program reads. Both
//! sides are the shipped code: the device's objects, and the consumer's functions of the contract
//! (`verbena_abi::shared`, `doorbell`). The memory is that of loom, which shows every order of the
//! stores that a weakly ordered machine can show.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p verbena-device --test loom_queues --target-dir
//! build/cargo-loom`. Each model also runs without one of its fences, and has to fail then. The
//! mutants of `tools/lab/mutants/loom` remove the other orders from the code itself.
#![cfg(loom)]

use loom::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};
use loom::sync::Notify;
use loom::thread;
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::sync::Arc;
use verbena_abi::cmd::{SetTableChunk, Table};
use verbena_abi::cqe::{self, Cqe, Tail, WcOpcode, WcStatus};
use verbena_abi::ctx::{EqContext, Translation};
use verbena_abi::doorbell::{self, Arm, ArmMode, Words};
use verbena_abi::eqe::{Eqe, EventType, EQE_SIZE, LOG_EQE_SIZE};
use verbena_abi::shared;
use verbena_device::memory::ring::Ring;
use verbena_device::memory::tables::{ContextSlot, Tables};
use verbena_device::memory::{Access, GuestMemory};
use verbena_device::misbehave::Misbehaviour;
use verbena_device::objects::cq::{Cq, Written};
use verbena_device::objects::eq::{Eq, Event};
use verbena_device::slots::Slots;

/// DMA addresses of the parts of the models' memory.
const RING: u64 = 0x1000;
const INDEX: u64 = 0x2000;
const AREA: u64 = 0x4000;
const TABLE: u64 = 0x10_0000;
const SLOT: u16 = 0;

/// Guest memory that has only the words that a model looks at. Other words read as 0.
struct Memory {
    words: BTreeMap<u64, AtomicU32>,
    arm: AtomicU64,
}

/// The memory as one side sees it. Without `fences`, that side executes no fence.
#[derive(Clone)]
struct Side {
    memory: Arc<Memory>,
    fences: bool,
}

/// Returns the device and the consumer, with the words at these addresses.
fn sides(addresses: &[u64], fences: (bool, bool)) -> (Side, Side) {
    let words = addresses.iter().map(|&at| (at, AtomicU32::new(0)));
    let memory = Arc::new(Memory {
        words: words.collect(),
        arm: AtomicU64::new(0),
    });
    let side = |fences| Side {
        memory: memory.clone(),
        fences,
    };
    (side(fences.0), side(fences.1))
}

impl Side {
    fn load_at(&self, addr: u64, order: Ordering) -> u32 {
        self.memory.words.get(&addr).map_or(0, |w| w.load(order))
    }

    fn store_at(&self, addr: u64, value: u32, order: Ordering) {
        if let Some(word) = self.memory.words.get(&addr) {
            word.store(value, order);
        }
    }

    /// Returns the words from this address on.
    fn at(&self, base: u64) -> Part<'_> {
        Part { side: self, base }
    }
}

impl GuestMemory for Side {
    fn contains(&self, _: u64, _: u64) -> bool {
        true
    }

    fn read(&self, addr: u64, to: &mut [u8]) -> Access {
        for (at, word) in (addr..).step_by(4).zip(to.chunks_exact_mut(4)) {
            word.copy_from_slice(&self.load_at(at, Ordering::Relaxed).to_le_bytes());
        }
        Ok(())
    }

    fn write(&self, addr: u64, from: &[u8]) -> Access {
        for (at, word) in (addr..).step_by(4).zip(from.chunks_exact(4)) {
            let value = u32::from_le_bytes(word.try_into().unwrap());
            self.store_at(at, value, Ordering::Relaxed);
        }
        Ok(())
    }

    fn copy_from(&self, _: u64, _: &Self, _: u64, _: usize) -> Access {
        unimplemented!("the models have no payload")
    }

    fn load32(&self, addr: u64) -> Access<u32> {
        Ok(self.load_at(addr, Ordering::Acquire))
    }

    fn store32(&self, addr: u64, value: u32) -> Access {
        self.store_at(addr, value, Ordering::Release);
        Ok(())
    }

    fn load64(&self, addr: u64) -> Access<u64> {
        assert_eq!(addr, AREA + doorbell::cq_arm(SLOT.into()) as u64);
        Ok(self.memory.arm.load(Ordering::Acquire))
    }

    fn store64(&self, addr: u64, value: u64) -> Access {
        assert_eq!(addr, AREA + doorbell::cq_arm(SLOT.into()) as u64);
        self.memory.arm.store(value, Ordering::Release);
        Ok(())
    }

    fn compare_swap64(&self, _: u64, _: u64, _: u64) -> Access<u64> {
        unimplemented!("the models have no atomics")
    }

    fn fetch_add64(&self, _: u64, _: u64) -> Access<u64> {
        unimplemented!("the models have no atomics")
    }

    fn fence(&self) {
        if self.fences {
            fence(Ordering::SeqCst);
        }
    }
}

/// Words of the consumer, by their offset from `base`, with the orders that [`Words`] promises.
struct Part<'a> {
    side: &'a Side,
    base: u64,
}

impl Words for Part<'_> {
    fn load(&self, offset: usize) -> u32 {
        self.side
            .load_at(self.base + offset as u64, Ordering::Relaxed)
    }

    fn load_acquire(&self, offset: usize) -> u32 {
        self.side
            .load_at(self.base + offset as u64, Ordering::Acquire)
    }

    fn store(&self, offset: usize, value: u32) {
        self.side
            .store_at(self.base + offset as u64, value, Ordering::Relaxed);
    }

    fn store_release(&self, offset: usize, value: u32) {
        self.side
            .store_at(self.base + offset as u64, value, Ordering::Release);
    }

    fn store64_release(&self, offset: usize, value: u64) {
        self.side.store64(self.base + offset as u64, value).unwrap();
    }

    fn load64_acquire(&self, offset: usize) -> u64 {
        self.side.load64(self.base + offset as u64).unwrap()
    }

    fn increment(&self, offset: usize) {
        if let Some(word) = self.side.memory.words.get(&(self.base + offset as u64)) {
            word.fetch_add(1, Ordering::Release);
        }
    }

    fn fence(&self) {
        self.side.fence();
    }

    fn read_fence(&self) {
        if self.side.fences {
            fence(Ordering::Acquire);
        }
    }
}

/// Returns a ring of 2^log_size entries.
fn ring(device: &Side, log_size: u8, log_stride: u8) -> Ring {
    let raw = Translation {
        addr: RING.into(),
        num_pages: 1.into(),
        ..Default::default()
    };
    Ring::new(device, &raw, log_size, log_stride).unwrap()
}

fn context_slot(device: &Side) -> ContextSlot {
    let mut tables = Tables::new(Misbehaviour::default());
    let request = SetTableChunk {
        table: Table::Eqc.to_raw(),
        addr: TABLE.into(),
        ..Default::default()
    };
    tables.set_chunk(device, &request).unwrap();
    tables.slot(device, Table::Eqc, 0).unwrap()
}

const LOG_EQ: u8 = 2;

fn event_queue(device: &Side) -> Eq {
    let ring = ring(device, LOG_EQ, LOG_EQE_SIZE);
    Eq::new(1, 1, ring, INDEX, context_slot(device))
}

fn completion(number: u32) -> Event {
    Event {
        kind: EventType::Completion,
        number,
        syndrome: 0,
    }
}

/// Address of a word of the event with this index.
fn eqe(index: u64, offset: usize) -> u64 {
    RING + index * EQE_SIZE as u64 + offset as u64
}

/// Driver: takes the event with this index, and returns the number in it.
fn take_event(driver: &Side, consumer: &mut u32) -> Option<u32> {
    let at = eqe((*consumer).into(), 0);
    let number = || driver.at(at).load(offset_of!(Eqe, number));
    let number = shared::read_event(&driver.at(at), *consumer, LOG_EQ, number)?;
    *consumer += 1;
    shared::consume_event(&driver.at(INDEX), *consumer);
    Some(number)
}

/// The device writes two events, and raises the interrupt as it sees fit. A driver that handles
/// events only after an interrupt handles both; a lost interrupt shows as a deadlock.
fn events_are_taken(device_fences: bool, driver_fences: bool) {
    check(move || {
        let words = [
            eqe(0, offset_of!(Eqe, number)),
            eqe(0, offset_of!(Eqe, tail)),
            eqe(1, offset_of!(Eqe, number)),
            eqe(1, offset_of!(Eqe, tail)),
            INDEX,
        ];
        let (device, driver) = sides(&words, (device_fences, driver_fences));
        let interrupt = Arc::new(Notify::new());
        let handler = {
            let interrupt = interrupt.clone();
            thread::spawn(move || {
                let mut consumer = 0;
                while consumer < 2 {
                    interrupt.wait();
                    while let Some(number) = take_event(&driver, &mut consumer) {
                        assert_eq!(number, 6 + consumer, "an event is incomplete");
                    }
                }
            })
        };
        let mut eq = event_queue(&device);
        for number in [7, 8] {
            eq.push(&device, completion(number)).unwrap();
            if eq.flush(&device, &mut 8, |_, _| {}).unwrap() {
                interrupt.notify();
            }
        }
        handler.join().unwrap();
    });
}

/// The device merges a second event of a CQ into the first one if that is still in the ring. The
/// driver then sees the completion of the second event too.
fn merged_events_are_handled(device_fences: bool, driver_fences: bool) {
    check(move || {
        let completions = AREA;
        let words = [
            eqe(0, offset_of!(Eqe, number)),
            eqe(0, offset_of!(Eqe, tail)),
            INDEX,
            completions,
        ];
        let (device, driver) = sides(&words, (device_fences, driver_fences));
        let mut eq = event_queue(&device);
        let index = eq.push(&device, completion(7)).unwrap().unwrap();
        let handler = thread::spawn(move || {
            take_event(&driver, &mut 0).map(|_| driver.load32(completions).unwrap())
        });
        device.store32(completions, 1).unwrap();
        let is_merged = eq.is_unconsumed(&device, index);
        if let (Some(seen), true) = (handler.join().unwrap(), is_merged) {
            assert_eq!(seen, 1, "the completion of a merged event is missed");
        }
    });
}

/// Address of a word of the CQE with this index.
fn cqe(index: u64, offset: usize) -> u64 {
    RING + index * cqe::CQE_SIZE as u64 + offset as u64
}

fn completion_queue(device: &Side, log_size: u8) -> Cq {
    let mut eqs = Slots::new(2);
    eqs.put(1, Box::new(event_queue(device)));
    let eq = eqs.hold(1).unwrap();
    let ring = ring(device, log_size, 6);
    Cq::new(1, eq, (1, AREA, SLOT), ring, context_slot(device))
}

/// Device: writes a completion, if the CQ has room.
fn complete(device: &Side, cq: &mut Cq, wr_id: u64) {
    let body = Cqe {
        wr_id: wr_id.into(),
        qpn: (wr_id as u32).into(),
        ..Default::default()
    };
    let tail = Tail {
        status: WcStatus::Success.to_raw(),
        opcode: WcOpcode::Send.to_raw(),
        wc_flags: 0,
    };
    let written = cq.reserve(device).unwrap().push(device, &body, tail, false);
    assert_eq!(written, Written::Yes);
}

/// Program: reads the CQE with this index.
fn poll(program: &Side, index: u32, log_size: u8) -> Option<(u32, u32)> {
    let entry = program.at(cqe(u64::from(index & ((1 << log_size) - 1)), 0));
    shared::read_entry(
        &entry,
        cqe::TAIL_OFFSET,
        |tail| Tail::unpack(tail, index, log_size),
        |_| {
            let load = |offset| entry.load(offset);
            (load(offset_of!(Cqe, wr_id)), load(offset_of!(Cqe, qpn)))
        },
    )
}

/// A ring of one entry: the second completion overwrites the first, after the program took it. The
/// program sees each entry as a whole.
#[test]
fn loom_completions_are_whole() {
    check(|| {
        let words = [
            cqe(0, offset_of!(Cqe, wr_id)),
            cqe(0, offset_of!(Cqe, qpn)),
            cqe(0, cqe::TAIL_OFFSET),
            AREA + doorbell::cq_consumer(SLOT.into()) as u64,
        ];
        let (device, program) = sides(&words, (true, true));
        let poller = thread::spawn(move || {
            let mut consumer = 0;
            for _ in 0..2 {
                if let Some(entry) = poll(&program, consumer, 0) {
                    consumer += 1;
                    assert_eq!(entry, (consumer, consumer), "a completion is mixed");
                    let area = program.at(AREA);
                    area.store_release(doorbell::cq_consumer(SLOT.into()), consumer);
                }
            }
        });
        let mut cq = completion_queue(&device, 0);
        complete(&device, &mut cq, 1);
        if cq.untaken(&device) == 0 {
            complete(&device, &mut cq, 2);
        }
        poller.join().unwrap();
    });
}

/// A program arms a CQ and polls once more. Either that poll finds the completion, or the device
/// finds the arm after it has written the completion.
fn arms_or_polls_find_a_completion(device_fences: bool, program_fences: bool) {
    check(move || {
        let words = [
            cqe(0, offset_of!(Cqe, wr_id)),
            cqe(0, offset_of!(Cqe, qpn)),
            cqe(0, cqe::TAIL_OFFSET),
            AREA + doorbell::cq_generation(0) as u64,
        ];
        let (device, program) = sides(&words, (device_fences, program_fences));
        let poller = thread::spawn(move || {
            let mut last = Arm::unpack(0);
            let area = program.at(AREA);
            doorbell::arm_cq(&area, SLOT.into(), &mut last, 0, ArmMode::Next, || {});
            poll(&program, 0, 1).is_some()
        });
        let mut cq = completion_queue(&device, 1);
        complete(&device, &mut cq, 1);
        let wants_event = cq.wants_event(&device).is_some();
        assert!(
            poller.join().unwrap() || wants_event,
            "neither the poll nor the event"
        );
    });
}

/// The device publishes two contexts, and the driver reads one at any time.
fn contexts_are_whole(device_fences: bool, driver_fences: bool) {
    check(move || {
        let fields = [
            offset_of!(EqContext, producer_index),
            offset_of!(EqContext, consumer_index),
        ];
        let words = [0, fields[0], fields[1]].map(|offset| TABLE + offset as u64);
        let (device, driver) = sides(&words, (device_fences, driver_fences));
        let reader = thread::spawn(move || {
            let context = driver.at(TABLE);
            let copy = |_| fields.map(|offset| context.load(offset));
            if let Some([first, second]) = shared::read_context(&context, copy) {
                assert_eq!(first, second, "a context is mixed");
            }
        });
        let mut slot = context_slot(&device);
        for index in 1..=2 {
            let context = EqContext {
                producer_index: index.into(),
                consumer_index: index.into(),
                ..Default::default()
            };
            slot.publish(&device, &context);
        }
        reader.join().unwrap();
    });
}

/// Explores all interleavings with up to three preemptions, like the models of the doorbell.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn loom_events_are_taken() {
    events_are_taken(true, true);
}

#[test]
#[should_panic]
fn loom_events_need_the_devices_fence() {
    events_are_taken(false, true);
}

#[test]
#[should_panic]
fn loom_events_need_the_drivers_fence() {
    events_are_taken(true, false);
}

#[test]
fn loom_merged_events_are_handled() {
    merged_events_are_handled(true, true);
}

#[test]
#[should_panic(expected = "merged event is missed")]
fn loom_merged_events_need_the_devices_fence() {
    merged_events_are_handled(false, true);
}

#[test]
#[should_panic(expected = "merged event is missed")]
fn loom_merged_events_need_the_drivers_fence() {
    merged_events_are_handled(true, false);
}

#[test]
fn loom_an_arm_or_a_poll_finds_a_completion() {
    arms_or_polls_find_a_completion(true, true);
}

#[test]
#[should_panic(expected = "neither the poll")]
fn loom_an_arm_needs_the_devices_fence() {
    arms_or_polls_find_a_completion(false, true);
}

#[test]
#[should_panic(expected = "neither the poll")]
fn loom_an_arm_needs_the_programs_fence() {
    arms_or_polls_find_a_completion(true, false);
}

#[test]
fn loom_contexts_are_whole() {
    contexts_are_whole(true, true);
}

#[test]
#[should_panic(expected = "a context is mixed")]
fn loom_contexts_need_the_devices_fence() {
    contexts_are_whole(false, true);
}

#[test]
#[should_panic(expected = "a context is mixed")]
fn loom_contexts_need_the_drivers_fence() {
    contexts_are_whole(true, false);
}
