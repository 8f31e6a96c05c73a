// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Many queue pairs at once with SENDs, WRITEs and READs of many sizes: by reference, through
//! frames, and with losses.

use crate::memory::GuestMemory;
use crate::mock::{CqHandle, Driver, QpHandle, SendWr};
use crate::Config;
use verbena_abi::cqe::WcStatus;
use verbena_abi::stats::{Counter, NUM_COUNTERS};
use verbena_abi::wqe::WqeOpcode;

const PAIRS: usize = 6;
const SIZE: u32 = 60_000;

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

struct Lane {
    a: QpHandle,
    b: QpHandle,
    from: (u64, u32),
    to: (u64, u32),
    /// Bytes that the target has to contain after the posted requests.
    expected: Vec<u8>,
    posted: Vec<u64>,
    receives: Vec<u64>,
}

/// Posts a random request, and applies its effect to the expected state.
fn post(d: &mut Driver, lane: &mut Lane, dice: &mut Dice, id: u64) {
    let len = [0, 1, 8, 1024, 1025, 4096, 30_000][dice.roll(7) as usize];
    let (from, to) = (
        dice.roll((SIZE - len + 1).into()),
        dice.roll((SIZE - len + 1).into()),
    );
    let data = d.bytes(lane.from.0 + from, len as usize);
    let at = lane.to.0 + to;
    let sges = [(lane.from.0 + from, len, lane.from.1)];
    let place = to as usize..to as usize + len as usize;
    match dice.roll(4) {
        0 => {
            d.post_recv(&mut lane.b, id, &[(at, len, lane.to.1)]);
            lane.receives.push(id);
            d.post_send(&mut lane.a, &SendWr::new(WqeOpcode::Send, id, &sges));
            lane.expected[place].copy_from_slice(&data);
        }
        1 => {
            d.post_recv(&mut lane.b, id, &[]);
            lane.receives.push(id);
            let wr = SendWr::new(WqeOpcode::RdmaWriteImm, id, &sges).to(at, lane.to.1);
            d.post_send(&mut lane.a, &wr);
            lane.expected[place].copy_from_slice(&data);
        }
        2 => {
            let wr = SendWr::new(WqeOpcode::RdmaWrite, id, &sges).to(at, lane.to.1);
            d.post_send(&mut lane.a, &wr);
            lane.expected[place].copy_from_slice(&data);
        }
        _ => {
            // The data of a READ go to a place of their own, which is not compared.
            let sges = [(lane.from.0 + u64::from(SIZE), len, lane.from.1)];
            let wr = SendWr::new(WqeOpcode::RdmaRead, id, &sges).to(at, lane.to.1);
            d.post_send(&mut lane.a, &wr);
        }
    }
    lane.posted.push(id);
}

fn load(config: Config, rounds: u64) -> [u64; NUM_COUNTERS] {
    let mut d = Driver::with(config);
    let dice = &mut Dice(7);
    let (mut sends, mut recvs) = (d.create_cq(9), d.create_cq(9));
    let mut lanes: Vec<Lane> = (0..PAIRS).map(|_| lane(&mut d, &sends, &recvs)).collect();
    for round in 0..rounds {
        for i in 0..8 {
            for (n, lane) in lanes.iter_mut().enumerate() {
                post(&mut d, lane, dice, (n as u64) << 32 | round << 8 | i);
            }
        }
        d.pass(20_000_000_000);
        let (done, got) = (d.drain(&mut sends), d.drain(&mut recvs));
        for (n, lane) in lanes.iter_mut().enumerate() {
            let of = |all: &[(u64, WcStatus)]| -> Vec<u64> {
                let mine = all.iter().filter(|(id, _)| (id >> 32) == n as u64);
                mine.map(|&(id, status)| {
                    assert_eq!(status, WcStatus::Success);
                    id
                })
                .collect()
            };
            assert_eq!(of(&done), std::mem::take(&mut lane.posted));
            assert_eq!(of(&got), std::mem::take(&mut lane.receives));
            let bytes = d.bytes(lane.to.0, SIZE as usize);
            assert!(bytes == lane.expected, "round {round}, lane {n}");
        }
        assert_eq!(d.events(0), []);
    }
    d.device.stats()
}

fn lane(d: &mut Driver, sends: &CqHandle, recvs: &CqHandle) -> Lane {
    let a = d.create_qp(sends, recvs);
    let b = d.create_qp(sends, recvs);
    d.connect(&a, &b);
    let from = d.region(2 * SIZE, 1);
    let to = d.region(SIZE, 2);
    d.ram.write(to.0, &vec![0; SIZE as usize]).unwrap();
    Lane {
        a,
        b,
        from,
        to,
        expected: vec![0; SIZE as usize],
        posted: vec![],
        receives: vec![],
    }
}

#[test]
fn by_reference() {
    let stats = load(Config::default(), 60);
    assert_eq!(stats[Counter::Retransmits as usize], 0);
}

#[test]
fn through_frames() {
    let config = Config {
        wire_local: true,
        ..Config::default()
    };
    load(config, 30);
}

#[test]
fn with_losses() {
    for (drop_percent, wire_local) in [(3, false), (1, true), (5, true)] {
        let config = Config {
            wire_local,
            drop_percent,
            ..Config::default()
        };
        let stats = load(config, 15);
        assert!(stats[Counter::Retransmits as usize] > 10);
    }
}
