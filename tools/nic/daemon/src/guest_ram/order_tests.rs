// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Copies of payload into guest memory: the bytes are those of a `memmove`, and a program that
//! polls the last bytes sees no stale byte before them.

use super::tests::memfd;
use super::*;
use std::sync::atomic::AtomicU64;
use std::thread;

/// Longest message in bytes.
const LONGEST: u64 = 64 << 10;
/// Start of the source and of the target of messages. The target consists of two regions, so that
/// messages cross from one region to the other.
const FROM: u64 = 0x10_0000;
const TO: u64 = 0x20_0000;
const ROOM: u64 = 2 * LONGEST;

/// Returns memory with source and target, and memory with the same target as one region.
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
fn payload_is_copied_as_by_memmove() {
    const ALL: u64 = 128;
    let [ram, _] = ram();
    let fresh: Vec<u8> = (0..ALL as u8).collect();
    for length in 0..40 {
        for from in 24..40 {
            for to in 16..64 {
                let mut expected = fresh.clone();
                expected.copy_within(from..from + length, to);
                let mut got = [0; ALL as usize];
                // Inside a region, and across the border of two regions.
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

/// Pseudo-random numbers, which are the same in both threads.
struct MessageRng(u64);

impl MessageRng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }

    /// Returns the address and the length of a message, and the distance from its end of the byte
    /// that the program polls. The logarithms of the lengths, from 8 B to 64 KiB, are uniformly
    /// distributed.
    fn message(&mut self) -> (u64, u64, u64) {
        let octave = 8 << self.below(13);
        let length = octave + self.below(octave);
        (TO + self.below(ROOM - length), length, 1 + self.below(8))
    }
}

/// Returns the number of bytes in `[start, end)` that differ from `value`. The offsets count from
/// the first word. The last bytes are read first, because they are the likeliest to be stale, and
/// only for a short time.
fn stale(words: &[AtomicU64], start: usize, end: usize, value: u8) -> u64 {
    let (want, mut count, mut at) = (u64::from_le_bytes([value; 8]), 0, end);
    while at > start {
        let word = (at - 1) / 8;
        let from = start.max(8 * word);
        // The mask selects the bytes of this word from `from` on and before `at`.
        let mask = u64::MAX >> (64 - 8 * (at - from)) << (8 * (from % 8));
        let different = (words[word].load(Ordering::Relaxed) ^ want) & mask;
        if different != 0 {
            count += different.to_le_bytes().iter().filter(|&&b| b != 0).count() as u64;
        }
        at = from;
    }
    count
}

/// One thread copies messages one after the other, each filled with one value. Another thread polls
/// one of the last 8 bytes, and then checks that each byte before the polled one is new. The
/// variable `VERBENA_MESSAGES` sets the number of messages. The test finds more on a machine with
/// at least two processors.
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
            let (mut draw, mut frame) = (MessageRng(1), Vec::new());
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
        let mut draw = MessageRng(1);
        // These words are the target as one region.
        let words = whole.words(TO, (ROOM / 8) as usize);
        let byte = |at: usize| (words[at / 8].load(Ordering::Acquire) >> (8 * (at % 8))) as u8;
        for number in 0..messages {
            let (addr, length, from_end) = draw.message();
            let value = value(number);
            let (start, length) = ((addr - TO) as usize, length as usize);
            let (end, polled) = (start + length, start + length - from_end as usize);
            // An earlier message may have left the polled value at the end of this message.
            ram.write(TO + end as u64 - 8, &[!value; 8]).unwrap();
            ready.store(number + 1, Ordering::Release);
            wait(&|| byte(polled) == value);
            let stale = stale(words, start, polled, value);
            if stale > 0 {
                bad += 1;
                worst = worst.max(stale);
                example = (length, from_end);
            }
            // The next message begins after this message is complete.
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
