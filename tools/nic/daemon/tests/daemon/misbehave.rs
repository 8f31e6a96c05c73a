// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A device with a misbehaviour does what the misbehaviour says, and behaves correctly otherwise.

use crate::client::{Client, CONFIG};
use crate::{command, running, start_queue, wait_interrupt, RAM, SLOTS};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use verbena_abi::cmd::{self, Command, CreateEq, QueryDevice, QueryStats, SetTableChunk, Table};
use verbena_abi::cqe::phase;
use verbena_abi::ctx::Translation;
use verbena_abi::eqe::{self, EventType};
use verbena_abi::regs;
use verbena_abi::syndrome::Syndrome;
use verbena_device::memory::GuestMemory;
use verbena_device::misbehave::{Kind, ALWAYS, CONFIG_BASE, CONFIG_MAGIC};

/// Where the device stores the token of a command that it has answered.
const TOKEN: u64 = SLOTS + cmd::REQUEST_SIZE as u64 + 12;

/// Issues a command without waiting for its reply.
fn issue<C: Command>(client: &mut Client, token: u32) {
    let header = cmd::RequestHeader {
        opcode: C::OPCODE.to_raw().into(),
        token: token.into(),
        ..Default::default()
    };
    client.ram.write_struct(SLOTS, &header).unwrap();
    client.write_reg(regs::CMDQ_DOORBELL, 0);
}

/// Resets the device, starts its command queue and checks that a command succeeds.
fn revive(client: &mut Client, interrupt: &OwnedFd, token: u32) {
    client.write_reg(regs::CONTROL, regs::CONTROL_RESET);
    client.wait_reg(regs::STATUS, |status| status == 0);
    let _ = rustix::io::read(interrupt, &mut [0; 8]);
    start_queue(client);
    assert_eq!(command(client, interrupt, token, QueryDevice::default()), 0);
}

#[test]
fn configuration_space_has_a_word_for_each_kind_that_the_script_lists() {
    let mut client = Client::start();
    client.version();
    let mut out = [0; 4];
    client.read(CONFIG, CONFIG_BASE as u64, &mut out).unwrap();
    assert_eq!(u32::from_le_bytes(out), CONFIG_MAGIC);
    client.misbehave(Kind::SeqSleep, 5);
    assert_eq!(client.misbehaves(Kind::SeqSleep), 5);
    client.write(CONFIG, CONFIG_BASE as u64, &[0; 4]).unwrap();
    assert_eq!(client.misbehaves(Kind::SeqSleep), 0);
    let end = CONFIG_BASE as u64 + 4 * (Kind::ALL.len() as u64 + 1);
    client.write(CONFIG, end, &[7; 4]).unwrap();
    client.read(CONFIG, end, &mut out).unwrap();
    assert_eq!(out, [0; 4]);

    let script = include_str!("../../../../../scripts/guest/misbehave");
    let list = script.split_once("kinds=(").unwrap().1;
    let list = list.split_once(')').unwrap().0;
    let names: Vec<_> = list.split_whitespace().collect();
    let ours = Kind::ALL.iter().map(|kind| kind.name());
    assert_eq!(names, ["off"].into_iter().chain(ours).collect::<Vec<_>>());
    let numbers: Vec<_> = Kind::ALL.iter().map(|&kind| kind as usize).collect();
    assert_eq!(numbers, (1..names.len()).collect::<Vec<_>>());
}

#[test]
fn commands_are_lost_or_not_answered() {
    let (mut client, interrupt) = running();
    for kind in [Kind::SwallowCommands, Kind::MuteCommands] {
        client.misbehave(kind, 1);
        issue::<QueryDevice>(&mut client, 100);
        client.settle();
        client.settle();
        assert_eq!(client.misbehaves(kind), 0);
        assert_ne!(client.ram.load32(TOKEN), Ok(100));
        assert_eq!(
            command(&mut client, &interrupt, 101, QueryDevice::default()),
            0
        );
    }
    // `OnlyOpcode` selects the commands, and `ALWAYS` has no limit.
    client.misbehave(Kind::OnlyOpcode, QueryStats::OPCODE.to_raw().into());
    client.misbehave(Kind::SwallowCommands, ALWAYS);
    assert_eq!(
        command(&mut client, &interrupt, 102, QueryDevice::default()),
        0
    );
    issue::<QueryStats>(&mut client, 103);
    client.settle();
    client.settle();
    assert_eq!(client.ram.load32(TOKEN), Ok(102));
    assert_eq!(client.misbehaves(Kind::SwallowCommands), ALWAYS);
}

#[test]
fn late_replies_arrive() {
    let (mut client, interrupt) = running();
    for (kind, token) in [(Kind::LateCommand, 200), (Kind::StallAtCommand, 201)] {
        client.misbehave(kind, 30);
        issue::<QueryDevice>(&mut client, token);
        wait_interrupt(&interrupt);
        assert_eq!(client.ram.load32(TOKEN), Ok(token));
        assert_eq!(client.misbehaves(kind), 0);
    }
}

#[test]
fn a_stalled_engine_continues_unless_the_device_was_reset() {
    let (mut client, interrupt) = running();
    client.misbehave(Kind::StallAtCommand, ALWAYS);
    issue::<QueryDevice>(&mut client, 300);
    while client.misbehaves(Kind::Stall) == 0 {
        std::thread::yield_now();
    }
    // The PCI function answers during the stall. The reset is confirmed after the engine has done
    // it.
    client.write_reg(regs::CONTROL, regs::CONTROL_RESET);
    assert_eq!(
        client.read_reg(regs::STATUS),
        regs::STATUS_RESETTING | regs::STATUS_READY
    );
    client.misbehave(Kind::Stall, 0);
    client.wait_reg(regs::STATUS, |status| status == 0);
    assert_eq!(client.ram.load32(TOKEN), Ok(0));
    start_queue(&mut client);
    client.misbehave(Kind::Stall, 20);
    issue::<QueryDevice>(&mut client, 301);
    wait_interrupt(&interrupt);
    assert_eq!(client.ram.load32(TOKEN), Ok(301));
}

#[test]
fn withheld_interrupts_are_raised_after_the_misbehaviour_ends() {
    let (mut client, interrupt) = running();
    client.misbehave(Kind::NoInterrupts, 1);
    issue::<QueryDevice>(&mut client, 400);
    client.wait_word(TOKEN, |token| token == 400);
    client.settle();
    assert!(rustix::io::read(&interrupt, &mut [0; 8]).is_err());
    client.misbehave(Kind::NoInterrupts, 0);
    wait_interrupt(&interrupt);
}

#[test]
fn after_a_reset_that_is_never_confirmed_dma_continues_until_bus_mastering_is_off() {
    let (mut client, interrupt) = running();
    client.misbehave(Kind::ResetUnconfirmed, 1);
    client.write_reg(regs::CONTROL, regs::CONTROL_RESET);
    issue::<QueryDevice>(&mut client, 500);
    wait_interrupt(&interrupt);
    assert_eq!(client.ram.load32(TOKEN), Ok(500));
    assert_ne!(client.read_reg(regs::STATUS) & regs::STATUS_RESETTING, 0);
    client.write(CONFIG, 4, &[2, 0]).unwrap();
    issue::<QueryDevice>(&mut client, 501);
    client.settle();
    client.settle();
    assert_eq!(client.ram.load32(TOKEN), Ok(500));
    client.misbehave(Kind::ResetUnconfirmed, 0);
    assert_ne!(client.read_reg(regs::STATUS) & regs::STATUS_RESETTING, 0);
    revive(&mut client, &interrupt, 502);
}

#[test]
fn bus_mastering_that_is_stuck_reads_as_set_and_dma_continues() {
    let (mut client, interrupt) = running();
    client.misbehave(Kind::BusMasterStuck, 1);
    client.write(CONFIG, 4, &[2, 0]).unwrap();
    let mut out = [0; 2];
    client.read(CONFIG, 4, &mut out).unwrap();
    assert_eq!(out, [6, 0]);
    assert_eq!(
        command(&mut client, &interrupt, 600, QueryDevice::default()),
        0
    );
    client.misbehave(Kind::BusMasterStuck, 0);
    client.write(CONFIG, 4, &[2, 0]).unwrap();
    client.read(CONFIG, 4, &mut out).unwrap();
    assert_eq!(out, [2, 0]);
}

/// Limit for a reply of the PCI function, which may have to wait for the end of a slice.
const AT_ONCE: Duration = Duration::from_secs(1);

#[test]
fn panics_do_not_block_maps_and_unmaps() {
    let (mut client, interrupt) = running();
    for round in 0..100 {
        // The engine panics while maps change: at once, or in a slice with a command.
        client.misbehave(Kind::Panic, 1);
        if round % 2 == 0 {
            issue::<QueryDevice>(&mut client, 1000 + round);
        }
        for _ in 0..20 {
            let start = Instant::now();
            client.remap(2 * RAM, RAM);
            client.dma_unmap(2 * RAM, RAM);
            assert!(start.elapsed() < AT_ONCE, "round {round}");
        }
        client.wait_reg(regs::STATUS, |status| status & regs::STATUS_FATAL != 0);
        // The fatal error raises vector 0.
        wait_interrupt(&interrupt);
        let syndrome = client.read_reg(regs::FATAL_SYNDROME);
        assert_eq!(syndrome, u32::from(Syndrome::EngineFailure.to_raw()));
        revive(&mut client, &interrupt, 2000 + round);
    }
}

#[test]
fn a_panic_is_reported_by_an_event() {
    let (mut client, interrupt) = running();
    const CHUNK: u64 = 0x2_0000;
    const RING: u64 = 0x3_0000;
    const CONSUMED: u64 = 0x3_1000;
    let chunk = SetTableChunk {
        table: Table::Eqc.to_raw(),
        addr: CHUNK.into(),
        ..Default::default()
    };
    assert_eq!(command(&mut client, &interrupt, 1, chunk), 0);
    let eq = CreateEq {
        ring: Translation {
            addr: RING.into(),
            num_pages: 1.into(),
            ..Default::default()
        },
        ci_addr: CONSUMED.into(),
        log_size: 4,
        log_entry_size: eqe::LOG_EQE_SIZE,
        ..Default::default()
    };
    assert_eq!(command(&mut client, &interrupt, 2, eq), 0);
    client.misbehave(Kind::Panic, 1);
    let tail = RING + eqe::TAIL_OFFSET as u64;
    let tail = client.wait_word(tail, |word| word != 0);
    let fatal = eqe::pack_tail(EventType::DeviceFatal, phase(0, 4));
    assert_eq!(tail, fatal);
    wait_interrupt(&interrupt);
    revive(&mut client, &interrupt, 3);
}

#[test]
fn an_engine_failure_is_a_fatal_error_until_reset() {
    let (mut client, interrupt) = running();
    for round in 0..3 {
        client.misbehave(Kind::EngineDies, 1);
        wait_interrupt(&interrupt);
        let status = client.read_reg(regs::STATUS);
        assert_eq!(status, regs::STATUS_FATAL | regs::STATUS_READY);
        // The engine fails again while the device is dead.
        client.misbehave(Kind::EngineDies, 1);
        wait_interrupt(&interrupt);
        revive(&mut client, &interrupt, 800 + round);
    }
}

#[test]
fn the_heartbeat_advances_without_commands() {
    let (mut client, _interrupt) = running();
    for _ in 0..3 {
        let before = client.read_reg(regs::HEARTBEAT);
        client.wait_reg(regs::HEARTBEAT, |now| now != before);
    }
}
