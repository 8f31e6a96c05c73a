// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Several VMs in one process: the failure or the end of one VM does not affect the others.

use crate::client::Client;
use crate::dir::Dir;
use crate::process::NicProcess;
use crate::{command, run, start_queue, wait_interrupt, AREA, CONFIG, RAM};
use rustix::event::{eventfd, EventfdFlags};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use verbena_abi::cmd::{CreateUar, QueryDevice};
use verbena_abi::doorbell::SLEEP;
use verbena_abi::regs;
use verbena_device::memory::GuestMemory;
use verbena_device::misbehave::{Kind, ALWAYS};

/// Returns two VMs of one NIC, with running command queues.
fn two() -> [(Client, OwnedFd); 2] {
    let mut clients = Client::start_all(2).into_iter().map(run);
    [clients.next().unwrap(), clients.next().unwrap()]
}

fn works(client: &mut Client, interrupt: &OwnedFd, token: u32) {
    assert_eq!(command(client, interrupt, token, QueryDevice::default()), 0);
}

fn reset(client: &mut Client, interrupt: &OwnedFd) {
    client.write_reg(regs::CONTROL, regs::CONTROL_RESET);
    client.wait_reg(regs::STATUS, |status| status == 0);
    let _ = rustix::io::read(interrupt, &mut [0; 8]);
}

#[test]
fn a_reset_a_panic_and_an_engine_failure_affect_one_vm_alone() {
    let [(mut a, a_interrupt), (mut b, b_interrupt)] = two();
    for round in 0..10 {
        match round % 3 {
            0 => a.misbehave(Kind::Panic, 1),
            1 => a.misbehave(Kind::EngineDies, 1),
            _ => {}
        }
        if round % 3 != 2 {
            wait_interrupt(&a_interrupt);
            let status = a.read_reg(regs::STATUS);
            assert_ne!(status & regs::STATUS_FATAL, 0);
        }
        works(&mut b, &b_interrupt, 10 + round);
        reset(&mut a, &a_interrupt);
        works(&mut b, &b_interrupt, 20 + round);
        start_queue(&mut a);
        works(&mut a, &a_interrupt, 30 + round);
        assert_eq!(b.read_reg(regs::STATUS), regs::STATUS_READY);
    }
}

#[test]
fn unmapped_memory_is_a_fatal_error_of_its_own_vm_alone() {
    let [(mut a, a_interrupt), (mut b, b_interrupt)] = two();
    a.dma_unmap(0, RAM);
    a.write_reg(regs::CMDQ_DOORBELL, 0);
    a.wait_reg(regs::STATUS, |status| status & regs::STATUS_FATAL != 0);
    works(&mut b, &b_interrupt, 1);
    a.remap(0, RAM);
    reset(&mut a, &a_interrupt);
    start_queue(&mut a);
    works(&mut a, &a_interrupt, 2);
}

#[test]
fn a_stalled_vm_blocks_no_other_and_each_vm_has_its_own_bus_mastering() {
    let [(mut a, a_interrupt), (mut b, b_interrupt)] = two();
    a.misbehave(Kind::Stall, ALWAYS);
    for token in 1..20 {
        works(&mut b, &b_interrupt, token);
    }
    a.misbehave(Kind::Stall, 0);
    works(&mut a, &a_interrupt, 1);
    a.write(CONFIG, 4, &[2, 0]).unwrap();
    works(&mut b, &b_interrupt, 30);
    a.write(CONFIG, 4, &[6, 0]).unwrap();
    works(&mut a, &a_interrupt, 2);
}

#[test]
fn a_busy_vm_does_not_keep_another_awake() {
    let [(mut a, a_interrupt), (mut b, b_interrupt)] = two();
    let uar = CreateUar {
        uar: 3.into(),
        addr: AREA.into(),
        ..Default::default()
    };
    assert_eq!(command(&mut b, &b_interrupt, 1, uar), 0);
    let mut token = 1;
    while b.ram.load32(AREA + SLEEP as u64).unwrap() & 1 == 0 {
        token += 1;
        assert!(token < 100_000, "the idle VM stays awake");
        works(&mut a, &a_interrupt, token);
    }
    // The idle VM wakes up for its own command.
    works(&mut b, &b_interrupt, 2);
}

const MACS: [&str; 2] = ["02:00:00:00:00:0a", "02:00:00:00:00:0b"];

fn start(dir: &Dir) -> NicProcess {
    let vms = [
        ("1", &["--mac", MACS[0]][..]),
        ("2", &["--mac", MACS[1]][..]),
    ];
    NicProcess::start_with(&dir.0, &vms).listening()
}

fn qemu(dir: &Dir, number: u32) -> UnixStream {
    UnixStream::connect(dir.0.join(format!("nic{number}"))).unwrap()
}

#[test]
fn a_vm_can_be_started_again_and_the_last_qemu_ends_the_process() {
    let dir = Dir::new("several-qemu");
    let mut nic = start(&dir);
    let vector = || eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let (mut b, b_interrupt) = run(Client::over(qemu(&dir, 2)));
    nic.wait_for_log("VM 2: QEMU is connected");
    for round in 1..4 {
        let (mut a, interrupt) = run(Client::over(qemu(&dir, 1)));
        works(&mut a, &interrupt, round);
        // A second client of the same socket waits.
        let mut late = Client::over(qemu(&dir, 1));
        drop(a);
        nic.wait_for_log("VM 1: QEMU has disconnected");
        late.version();
        // Nothing of the last client is left.
        late.wait_reg(regs::STATUS, |status| status == 0);
        let mut mastering = [0; 2];
        late.read(CONFIG, 4, &mut mastering).unwrap();
        assert_eq!(mastering, [0, 0]);
        assert_eq!(late.read_reg(regs::CMDQ_BASE_LO), 0);
        late.dma_map(0, RAM);
        late.set_vector(0, &vector());
        drop(late);
        nic.wait_for_log("VM 1: QEMU has disconnected");
        works(&mut b, &b_interrupt, 50 + round);
    }
    drop(b);
    let (status, said) = nic.end();
    assert!(status.success(), "{said}");
    assert!(dir.list().is_empty());
}

#[test]
fn an_invalid_message_disconnects_its_own_vm_alone() {
    let dir = Dir::new("several-wrong");
    let mut nic = start(&dir);
    let (mut b, b_interrupt) = run(Client::over(qemu(&dir, 2)));
    let mut a = qemu(&dir, 1);
    a.write_all(&[0xff; 64]).unwrap();
    nic.wait_for_log("VM 1: a message of");
    works(&mut b, &b_interrupt, 1);
    let (mut a, a_interrupt) = run(Client::over(qemu(&dir, 1)));
    works(&mut a, &a_interrupt, 2);
}

/// A client may disconnect or send anything, also in the middle of a message and during a command:
/// the next client finds a device as after power-on, and the other VM is not affected.
#[test]
fn after_a_connection_has_ended_in_an_error_the_next_finds_a_device_as_after_power_on() {
    let dir = Dir::new("several-errors");
    let mut nic = start(&dir);
    let (mut b, b_interrupt) = run(Client::over(qemu(&dir, 2)));
    // A header: identifier, command, length, flags, error.
    let header = |command: u16, length: u32, flags: u32| {
        let words = [7 | u32::from(command) << 16, length, flags, 0];
        words.map(u32::to_le_bytes).concat()
    };
    let ends = [
        header(9, 15, 0),
        header(9, 0, 0),
        header(9, u32::MAX, 0),
        header(9, 32, 0),
        header(10, 32, 0)[..7].to_vec(),
        header(2, 48, 0),
        header(0xffff, 16, 1),
        vec![],
        vec![0; 16],
        vec![0xff; 4096],
    ];
    for (round, last) in (1..).zip(ends) {
        let stream = qemu(&dir, 1);
        let mut raw = stream.try_clone().unwrap();
        let mut a = Client::over(stream);
        a.version();
        a.wait_reg(regs::STATUS, |status| status == 0);
        let mut mastering = [0xff; 2];
        a.read(CONFIG, 4, &mut mastering).unwrap();
        assert_eq!(mastering, [0, 0], "round {round}");
        assert_eq!(a.read_reg(regs::CMDQ_BASE_LO), 0, "round {round}");
        a.dma_map(0, RAM);
        let interrupt = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        a.set_vector(0, &interrupt);
        start_queue(&mut a);
        works(&mut a, &interrupt, round);
        a.write_reg(regs::CMDQ_DOORBELL, 0);
        // The NIC may already have closed the connection.
        let _ = raw.write_all(&last);
        drop((a, raw));
        nic.wait_for_log("VM 1: ");
        works(&mut b, &b_interrupt, 50 + round);
    }
    let (mut a, a_interrupt) = run(Client::over(qemu(&dir, 1)));
    works(&mut a, &a_interrupt, 99);
}

#[test]
fn guests_exchange_ethernet_and_cannot_use_each_others_addresses() {
    let dir = Dir::new("several-ethernet");
    let _nic = start(&dir);
    let [mut a, mut b] = [1, 2].map(|n| {
        let stream = UnixStream::connect(dir.0.join(format!("net{n}"))).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_millis(10)))
            .unwrap();
        stream
    });
    let frame = |to: &[u8], from: u8, what: u8| {
        let mut frame = [to, &[2, 0, 0, 0, 0, from, 0x88, 0xb5]].concat();
        frame.resize(60, what);
        [&60u32.to_be_bytes()[..], &frame].concat()
    };
    let mut heard = [0; 64];
    // The NIC may not yet have accepted the connection of `a` when `b` sends.
    loop {
        b.write_all(&frame(&[0xff; 6], 0xb, 1)).unwrap();
        if a.read(&mut heard).is_ok() {
            break;
        }
    }
    b.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    a.write_all(&frame(&[2, 0, 0, 0, 0, 0xb], 0xb, 2)).unwrap();
    a.write_all(&frame(&[2, 0, 0, 0, 0, 0xb], 0xa, 3)).unwrap();
    b.read_exact(&mut heard).unwrap();
    assert_eq!(heard[..], frame(&[2, 0, 0, 0, 0, 0xb], 0xa, 3)[..]);
}
