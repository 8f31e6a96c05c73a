// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of payload in guest memory: the bytes are those of a `memmove`, and a poller of the last ones sees no stale byte.

use super::tests::memfd;
use super::*;
use std::sync::atomic::AtomicU64;
use std::thread;

/// Longest message in bytes.
const LONGEST: u64 = 64 << 10;
/// Where messages are copied from, and where they come to: two regions, so that messages cross from one to the other.
const FROM: u64 = 0x10_0000;
const TO: u64 = 0x20_0000;
const ROOM: u64 = 2 * LONGEST;

/// Source and target, and the target once more, as one region.
fn ram() -> [GuestRam; 2] {
    let [mut ram, mut whole] = [GuestRam::new(), GuestRam::new()];
    ram.map(FROM, ROOM, memfd(ROOM), 0, true).unwrap();
    let (half, target) = (ROOM / 2, memfd(ROOM));
    ram.map(TO, half, &target, 0, true).unwrap();
    ram.map(TO + half, half, &target, half, true).unwrap();
    whole.map(TO, ROOM, &target, 0, true).unwrap();
    [ram, whole]
}

#[test]
fn payload_is_what_a_memmove_makes_of_it() {
    const ALL: u64 = 128;
    let [ram, _] = ram();
    let fresh: Vec<u8> = (0..ALL as u8).collect();
    for length in 0..40 {
        for from in 24..40 {
            for to in 16..64 {
                let mut expected = fresh.clone();
                expected.copy_within(from..from + length, to);
                let mut got = [0; ALL as usize];
                // Inside a region, and across the border of two.
                for base in [FROM, TO + ROOM / 2 - 32] {
                    ram.write(base, &fresh).unwrap();
                    if base == FROM {
                        let (from, to) = (base + from as u64, base + to as u64);
                        ram.copy_from(to, &ram, from, length).unwrap();
                    } else {
                        let payload = &fresh[from..from + length];
                        ram.write_payload(base + to as u64, payload).unwrap();
                    }
                    ram.read(base, &mut got).unwrap();
                    assert_eq!(got[..], expected[..], "{length} bytes from {from} to {to}");
                }
            }
        }
    }
}

/// Numbers that are drawn, the same in both threads.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }

    /// Address, length, and which byte from the end a program polls. Lengths are uniform in the logarithm from 8 B to 64 KiB.
    fn message(&mut self) -> (u64, u64, u64) {
        let octave = 8 << self.below(13);
        let length = octave + self.below(octave);
        (TO + self.below(ROOM - length), length, 1 + self.below(8))
    }
}

/// How many bytes of `[start, end)` are not `value`, counted from the first word. Those at the end are looked at first: they are the
/// likely ones, and they are not stale for long.
fn stale(words: &[AtomicU64], start: usize, end: usize, value: u8) -> u64 {
    let (want, mut count, mut at) = (u64::from_le_bytes([value; 8]), 0, end);
    while at > start {
        let word = (at - 1) / 8;
        let from = start.max(8 * word);
        // Of this word, bytes from `from % 8` to those before `at`.
        let mask = u64::MAX >> (64 - 8 * (at - from)) << (8 * (from % 8));
        let different = (words[word].load(Ordering::Relaxed) ^ want) & mask;
        if different != 0 {
            count += different.to_le_bytes().iter().filter(|&&b| b != 0).count() as u64;
        }
        at = from;
    }
    count
}

/// One thread copies a message after another, each of one value; the other polls a byte of the last 8 and then wants each byte below
/// that one to be new. `VERBENA_MESSAGES` is how many; two processors see more than one.
#[test]
fn a_poller_of_the_last_bytes_sees_no_stale_byte() {
    let messages = std::env::var("VERBENA_MESSAGES").map_or(30_000, |text| text.parse().unwrap());
    let ([ram, whole], ready) = (ram(), AtomicU64::new(0));
    let wait = |done: &dyn Fn() -> bool| {
        for round in 1u64.. {
            if done() {
                return;
            }
            if round % 4096 == 0 {
                thread::yield_now();
            }
            std::hint::spin_loop();
        }
    };
    let value = |number: u64| (number % 255) as u8 + 1;
    let (mut bad, mut worst, mut example) = (0u64, 0, (0, 0));
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut draw, mut frame) = (Draw(1), Vec::new());
            for number in 0..messages {
                let (to, length, _) = draw.message();
                frame.clear();
                frame.resize(length as usize, value(number));
                wait(&|| ready.load(Ordering::Acquire) > number);
                if number % 2 == 0 {
                    ram.write_payload(to, &frame).unwrap();
                } else {
                    ram.write(FROM, &frame).unwrap();
                    ram.copy_from(to, &ram, FROM, length as usize).unwrap();
                }
            }
        });
        let mut draw = Draw(1);
        // As it is mapped once more, in one piece.
        let words = whole.words(TO, (ROOM / 8) as usize);
        let byte = |at: usize| (words[at / 8].load(Ordering::Acquire) >> (8 * (at % 8))) as u8;
        for number in 0..messages {
            let (addr, length, from_end) = draw.message();
            let value = value(number);
            let (start, length) = ((addr - TO) as usize, length as usize);
            let (end, polled) = (start + length, start + length - from_end as usize);
            // What is polled may be what a message before has left there.
            ram.write(TO + end as u64 - 8, &[!value; 8]).unwrap();
            ready.store(number + 1, Ordering::Release);
            wait(&|| byte(polled) == value);
            let stale = stale(words, start, polled, value);
            if stale > 0 {
                bad += 1;
                worst = worst.max(stale);
                example = (length, from_end);
            }
            // The next one is not begun before this one is there.
            wait(&|| byte(end - 1) == value);
        }
    });
    println!("{messages} messages, {bad} with stale bytes");
    let (length, from_end) = example;
    assert_eq!(
        bad, 0,
        "of {messages} messages had stale bytes, up to {worst}; the last of them had {length} bytes and byte {from_end} from its end was polled"
    );
}
