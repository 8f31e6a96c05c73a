// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A program that writes random and mostly almost valid values into its own queues, beside a
//! program whose data are checked.

use super::Pair;
use crate::memory::GuestMemory;
use crate::mock::{Driver, QpHandle, SendWr};
use crate::Config;
use std::collections::BTreeSet;
use verbena_abi::cmd::*;
use verbena_abi::cqe::WcStatus;
use verbena_abi::ctx::{mr_flags, QpState, Translation, TRANSLATION_ELEMENTS};
use verbena_abi::doorbell::{self, Words};
use verbena_abi::stats::NUM_COUNTERS;
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::{FastRegSegment, WqeOpcode, FAST_REG_OFFSET};
use zerocopy::IntoBytes;

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.roll(from.len() as u64) as usize]
    }
}

/// Keys and addresses that the program has, or that resemble these.
struct Loot {
    at: u64,
    /// First address of the region with gaps.
    yard: u64,
    keys: Vec<u32>,
}

fn wqe(dice: &mut Dice, loot: &Loot) -> crate::mock::WqeBytes {
    let opcode = dice.pick(WqeOpcode::ALL);
    let addr = |dice: &mut Dice| {
        let near = dice.pick(&[loot.at, loot.at, loot.yard]);
        near.wrapping_add(dice.roll(5000)).wrapping_sub(8) & !dice.roll(8)
    };
    let mut sges = vec![];
    for _ in 0..dice.roll(4) {
        let len = dice.pick(&[0, 1, 8, 8, 100, 3000, 1 << 20, u32::MAX]);
        sges.push((addr(dice), len, dice.pick(&loot.keys)));
    }
    let mut wr = SendWr::new(opcode, dice.roll(1 << 32), &sges);
    wr.flags = dice.roll(8) as u8;
    wr.remote = (addr(dice), dice.pick(&loot.keys));
    wr.imm = (dice.pick(&loot.keys)).to_le_bytes();
    if dice.roll(5) == 0 {
        wr.sges.clear();
        wr.inline = vec![7; dice.roll(180) as usize];
    }
    let mut bytes = wr.encode();
    for _ in 0..dice.roll(6).saturating_sub(3) {
        let at = dice.roll(96) as usize;
        bytes[at] = dice.roll(256) as u8;
    }
    bytes
}

/// Resets two queue pairs and connects them again.
fn revive(d: &mut Driver, a: &mut QpHandle, b: &mut QpHandle) {
    for qp in [&mut *a, &mut *b] {
        d.move_to(qp.qpn, QpState::Reset).unwrap();
        (qp.sq_pi, qp.rq_pi) = (0, 0);
        d.words().store(doorbell::sq_producer(qp.slot.into()), 0);
        d.words().store(doorbell::rq_producer(qp.slot.into()), 0);
    }
    d.connect(a, b);
}

/// Registers a region with gaps of 32 elements, in memory that no other test data use. Returns its
/// key and the addresses of its list and of its memory.
fn gaps(p: &mut Pair) -> (u32, u64, u64) {
    let (key, list, memory) = (0x6311, p.d.alloc(512), p.d.alloc(3 * 4096));
    for i in 0..32 {
        p.d.ram.store64(list + 16 * i, memory + 64 * i).unwrap();
        p.d.ram.store64(list + 16 * i + 8, 128 * (i + 1)).unwrap();
    }
    let mut cq = p.d.create_cq(6);
    let mut request = p.d.qp_request(&cq, &cq);
    request.flags = QP_PRIVILEGED;
    let mut kernel = p.d.create_qp_by(&request).unwrap();
    let other = p.d.create_qp(&cq, &cq);
    p.d.connect(&kernel, &other);
    p.d.must(&CreateMr {
        key: key.into(),
        pdn: 7.into(),
        flags: mr_flags::FAST_REG.into(),
        ..Default::default()
    });
    let pages = Translation {
        addr: list.into(),
        num_pages: 32.into(),
        levels: TRANSLATION_ELEMENTS,
        ..Default::default()
    };
    let segment = FastRegSegment {
        key: key.into(),
        access: 0xf.into(),
        iova: memory.into(),
        length: 4096.into(),
        page_offset: 0.into(),
        pages,
    };
    let mut register = SendWr::new(WqeOpcode::FastReg, 1, &[]).encode();
    register[FAST_REG_OFFSET..][..size_of_val(&segment)].copy_from_slice(segment.as_bytes());
    p.d.post_raw(&mut kernel, &register);
    assert_eq!(p.d.drain(&mut cq), [(1, WcStatus::Success)]);
    (key, list, memory)
}

/// Changes an address or an end in the list of a registered region.
fn scribble(dice: &mut Dice, d: &Driver, list: u64, memory: u64) {
    let element = list + 16 * dice.roll(32);
    let (near, far) = (dice.roll(5000), dice.roll(64));
    let addr = dice.pick(&[memory + near.min(4096), u64::MAX - near, near, 1 << 50]);
    let end = dice.pick(&[near, near, far, u64::MAX - far, 1 << far]);
    let word = dice.pick(&[(element, addr), (element + 8, end)]);
    d.ram.store64(word.0, word.1).unwrap();
}

fn storm(config: Config, rounds: u64, seen: &mut BTreeSet<u16>) {
    let mut p = Pair::on(Driver::with(config));
    p.d.watch = 16;
    let dice = &mut Dice(config_seed());
    // The program whose data are checked.
    let (mut calm_cq, mut far_cq) = (p.d.create_cq(6), p.d.create_cq(6));
    let mut calm = p.d.create_qp(&calm_cq, &calm_cq);
    let far = p.d.create_qp(&far_cq, &far_cq);
    p.d.connect(&calm, &far);
    let (from, lkey) = p.d.region(3000, 5);
    let (to, rkey) = p.d.region(3000, 6);
    // The hostile program has a valid region, one without rights, one of another PD, and one whose
    // memory cannot be reached.
    let (at, good) = p.d.region(4096, 1);
    p.d.create_mr(0x6011, at, 4096, 0).unwrap();
    p.d.must(&CreateMr {
        key: 0x6111.into(),
        pdn: 8.into(),
        access: 0xf.into(),
        iova: at.into(),
        length: 4096.into(),
        pages: crate::mock::flat(at),
        ..Default::default()
    });
    let unreachable = 1u64 << 50;
    p.d.must(&CreateMr {
        key: 0x6211.into(),
        pdn: 7.into(),
        access: 0xf.into(),
        iova: at.into(),
        length: 4096.into(),
        pages: crate::mock::flat(unreachable),
        ..Default::default()
    });
    let (key, list, yard) = gaps(&mut p);
    let loot = Loot {
        at,
        yard,
        keys: vec![
            key,
            key,
            good,
            good,
            good,
            good ^ 1,
            0x6011,
            0x6111,
            0x6211,
            0,
            0x5a,
            u32::MAX,
        ],
    };
    for round in 0..rounds {
        scribble(dice, &p.d, list, yard);
        for _ in 0..1 + dice.roll(3) {
            let bytes = wqe(dice, &loot);
            p.d.post_raw(&mut p.a, &bytes);
            let sges: Vec<_> = (0..dice.roll(5))
                .map(|_| {
                    (
                        at + dice.roll(4096),
                        dice.pick(&[0, 8, 100, 4096]),
                        dice.pick(&loot.keys),
                    )
                })
                .collect();
            if sges.len() < 4 {
                p.d.post_recv(&mut p.b, round, &sges);
            }
        }
        if dice.roll(20) == 0 {
            let slot = p.a.slot as usize;
            let word = dice.pick(&[
                doorbell::sq_producer(slot),
                doorbell::rq_producer(p.b.slot as usize),
                doorbell::cq_consumer(p.cq_a.slot as usize),
                doorbell::cq_arm(p.cq_a.slot as usize),
                doorbell::RUNG,
            ]);
            let value = dice.pick(&[0, 1, 17, 1 << 31, u32::MAX, p.a.sq_pi + 1]);
            p.d.words().store(word, value);
            p.d.words()
                .increment(doorbell::qp_generation(slot / doorbell::GROUP_SLOTS));
        }
        p.d.post_send(
            &mut calm,
            &SendWr::new(WqeOpcode::RdmaWrite, round, &[(from, 3000, lkey)]).to(to, rkey),
        );
        p.d.pass(20_000_000_000);
        assert_eq!(p.d.drain(&mut calm_cq), [(round, WcStatus::Success)]);
        assert_eq!(p.d.bytes(to, 3000), p.d.bytes(from, 3000));
        p.d.ram.write(to, &[0; 3000]).unwrap();
        for cq in [&mut p.cq_a, &mut p.cq_b] {
            while let Some(done) = p.d.poll(cq) {
                seen.insert(done.cqe.vendor_err.get() as u16);
            }
        }
        for eqn in [0, 1] {
            for event in p.d.events(eqn) {
                seen.insert(event.syndrome as u16);
            }
        }
        let dead = [p.a.qpn, p.b.qpn]
            .map(|q| p.d.query_qp(q).attr.qp_state)
            .contains(&QpState::Err.to_raw());
        if dead {
            let cq_died = [p.cq_a.cqn, p.cq_b.cqn]
                .iter()
                .any(|&c| p.d.device.shared.cqs.get(c).unwrap().error.is_some());
            if cq_died {
                // The program has put its own CQ in error, and goes on with new queues.
                for qp in [p.a.clone(), p.b.clone()] {
                    p.d.must(&DestroyQp {
                        id: qp.qpn.into(),
                        ..Default::default()
                    });
                    p.d.free_slot(qp.slot);
                }
                for cq in [p.cq_a.clone(), p.cq_b.clone()] {
                    p.d.must(&DestroyCq {
                        id: cq.cqn.into(),
                        ..Default::default()
                    });
                    p.d.free_slot(cq.slot);
                }
                (p.cq_a, p.cq_b) = (p.d.create_cq(4), p.d.create_cq(4));
                p.a = p.d.create_qp(&p.cq_a, &p.cq_a);
                p.b = p.d.create_qp(&p.cq_b, &p.cq_b);
                p.d.connect(&p.a.clone(), &p.b.clone());
            } else {
                revive(&mut p.d, &mut p.a, &mut p.b);
            }
        }
    }
    assert!(p.d.poll(&mut far_cq).is_none());
}

fn config_seed() -> u64 {
    4711
}

#[test]
fn random_work_requests_harm_no_other_program() {
    let mut seen = BTreeSet::new();
    storm(Config::default(), 3000, &mut seen);
    let wire = Config {
        wire_local: true,
        ..Config::default()
    };
    storm(wire, 1000, &mut seen);
    for cause in [
        Syndrome::Flushed,
        Syndrome::RecvTooSmall,
        Syndrome::AtomicLength,
        Syndrome::WqeOpcodeUnknown,
        Syndrome::WqeFlags,
        Syndrome::WqeSgeCount,
        Syndrome::WqeInline,
        Syndrome::Privilege,
        Syndrome::LkeyUnknown,
        Syndrome::LkeyPd,
        Syndrome::LkeyBounds,
        Syndrome::LkeyAccess,
        Syndrome::LkeyUnreachable,
        Syndrome::NakInvalidRequest,
        Syndrome::NakRemoteAccess,
        Syndrome::NakRemoteOperational,
    ] {
        assert!(seen.contains(&cause.to_raw()), "{cause:?} was not seen");
    }
}

/// Returns a request whose fields are drawn close to valid values. In one of three a bit is
/// flipped.
fn request(dice: &mut Dice, p: &mut Pair, pool: u64) -> (Opcode, Vec<u8>) {
    let number = FIRST_QPN + dice.roll(6) as u32;
    let page = pool + dice.roll(8) * 4096;
    let id = ObjectId {
        id: number.into(),
        ..Default::default()
    };
    let opcode = dice.pick(Opcode::ALL);
    let mut bytes = match opcode {
        Opcode::SetTableChunk => SetTableChunk {
            table: dice.roll(5) as u8,
            chunk: (dice.roll(3) as u32).into(),
            addr: page.into(),
            ..Default::default()
        }
        .as_bytes()
        .to_vec(),
        Opcode::QueryStats => QueryStats {
            kind: dice.roll(2) as u8,
            port: 1,
            id: number.into(),
            addr: page.into(),
            count: (dice.roll(2 * NUM_COUNTERS as u64) as u32).into(),
            ..Default::default()
        }
        .as_bytes()
        .to_vec(),
        // A fault of the whole device is never injected, because it would end the test.
        Opcode::InjectFault => {
            let kind = dice.roll(3) as u8;
            InjectFault {
                kind,
                status: u8::from(kind == 0) * dice.roll(24) as u8,
                number: number.into(),
                ..Default::default()
            }
            .as_bytes()
            .to_vec()
        }
        Opcode::CreateUar => CreateUar {
            uar: number.into(),
            addr: page.into(),
            ..Default::default()
        }
        .as_bytes()
        .to_vec(),
        Opcode::CreateEq => CreateEq {
            eqn: number.into(),
            vector: (dice.roll(32) as u16).into(),
            log_size: dice.roll(6) as u8,
            ring: crate::mock::flat(page),
            ci_addr: (page + 4092).into(),
            log_entry_size: 4,
            ..Default::default()
        }
        .as_bytes()
        .to_vec(),
        Opcode::CreateMr | Opcode::ModifyMr => CreateMr {
            key: (number << 8 | 1).into(),
            pdn: 7.into(),
            access: 0xf.into(),
            flags: (dice.roll(4) as u32).into(),
            iova: page.into(),
            length: dice.roll(20_000).into(),
            page_offset: dice.roll(4096).into(),
            pages: crate::mock::flat(page),
        }
        .as_bytes()
        .to_vec(),
        Opcode::CreateCq => CreateCq {
            cqn: number.into(),
            eqn: (dice.roll(3) as u32).into(),
            slot: (20 + number as u16).into(),
            log_size: dice.roll(8) as u8,
            ring: crate::mock::flat(page),
            ..Default::default()
        }
        .as_bytes()
        .to_vec(),
        Opcode::ResizeCq => ResizeCq {
            cqn: number.into(),
            log_size: dice.roll(8) as u8,
            ring: crate::mock::flat(page),
            ..Default::default()
        }
        .as_bytes()
        .to_vec(),
        Opcode::ResizeSrq => ResizeSrq {
            srqn: number.into(),
            log_size: dice.roll(8) as u8,
            ring: crate::mock::flat(page),
            ..Default::default()
        }
        .as_bytes()
        .to_vec(),
        Opcode::CreateSrq => CreateSrq {
            srqn: number.into(),
            pdn: 7.into(),
            slot: (30 + number as u16).into(),
            log_size: 4,
            log_stride: 6,
            ring: crate::mock::flat(page),
            ..Default::default()
        }
        .as_bytes()
        .to_vec(),
        Opcode::CreateQp => {
            let cq = p.cq_a.clone();
            let mut qp = CreateQp {
                qpn: number.into(),
                slot: (40 + number as u16).into(),
                send_cqn: cq.cqn.into(),
                recv_cqn: number.into(),
                srqn: number.into(),
                flags: dice.roll(8) as u8,
                qp_type: 1 + dice.roll(4) as u8,
                log_sq_size: 4,
                log_sq_stride: 6,
                log_rq_size: 4,
                log_rq_stride: 5,
                sq: crate::mock::flat(page),
                rq: crate::mock::flat(page),
                max_send_sge: 1,
                max_recv_sge: 1,
                ..Default::default()
            };
            if dice.roll(4) == 0 {
                qp.qpn = 1.into();
                qp.qp_type = 1;
                qp.port = 1;
            }
            qp.as_bytes().to_vec()
        }
        Opcode::ModifyQp => {
            use verbena_abi::ctx::QpAttr;
            ModifyQp {
                qpn: number.into(),
                mask: (dice.roll(1 << 21) as u32 | 1).into(),
                attr: QpAttr {
                    qp_state: dice.roll(7) as u8,
                    path_mtu: 1 + dice.roll(5) as u8,
                    port_num: 1,
                    dest_qpn: number.into(),
                    ..Default::default()
                },
                av: Driver::path(0, 1),
                ..Default::default()
            }
            .as_bytes()
            .to_vec()
        }
        _ => id.as_bytes().to_vec(),
    };
    if dice.roll(3) == 0 {
        let at = dice.roll(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << dice.roll(8);
    }
    (opcode, bytes)
}

#[test]
fn almost_valid_commands_harm_no_other_object() {
    let mut p = Pair::new();
    p.d.watch = 16;
    let dice = &mut Dice(config_seed());
    let pool = p.d.alloc(32 * 4096);
    // The checked objects get numbers above those that the commands name.
    for _ in 0..20 {
        p.d.number();
    }
    for slot in 0..60 {
        let _ = slot;
        p.d.slot();
    }
    let (mut cq_x, cq_y) = (p.d.create_cq(6), p.d.create_cq(6));
    let mut x = p.d.create_qp(&cq_x, &cq_x);
    let y = p.d.create_qp(&cq_y, &cq_y);
    p.d.connect(&x, &y);
    let (from, lkey) = p.d.region(3000, 5);
    let (to, rkey) = p.d.region(3000, 6);
    let mut worked = 0;
    let mut done = BTreeSet::new();
    for round in 0..30_000 {
        let (opcode, bytes) = request(dice, &mut p, pool);
        if matches!(opcode, Opcode::SetPort | Opcode::SetGid) {
            continue;
        }
        if p.d.raw_cmd(opcode.to_raw(), &bytes).is_ok() {
            worked += 1;
            done.insert(opcode.to_raw());
        }
        p.d.events(0);
        p.d.events(1);
        if round % 16 == 0 {
            p.d.ram.write(to, &[0; 3000]).unwrap();
            let wr = SendWr::new(WqeOpcode::RdmaWrite, round, &[(from, 3000, lkey)]).to(to, rkey);
            p.d.post_send(&mut x, &wr);
            assert_eq!(p.d.drain(&mut cq_x), [(round, WcStatus::Success)]);
            assert_eq!(p.d.bytes(to, 3000), p.d.bytes(from, 3000));
        }
    }
    assert!(worked > 3000, "only {worked} commands succeeded");
    for opcode in [Opcode::InjectFault, Opcode::QueryStats] {
        assert!(
            done.contains(&opcode.to_raw()),
            "{opcode:?} never succeeded"
        );
    }
}
