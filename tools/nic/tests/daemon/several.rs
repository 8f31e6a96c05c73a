// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Several VMs in one process: what happens to one of them is its own affair.

use crate::client::Client;
use crate::dir::Dir;
use crate::process::Nic;
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

/// Two VMs of one NIC, with running command queues.
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
fn a_reset_a_panic_and_an_end_of_the_engine_are_one_vms_alone() {
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
fn memory_that_goes_is_the_end_of_its_own_vm_alone() {
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
fn one_that_stalls_holds_up_nobody_and_bus_mastering_is_each_ones() {
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
fn one_that_is_busy_keeps_nobody_awake() {
    let [(mut a, a_interrupt), (mut b, b_interrupt)] = two();
    let uar = CreateUar {
        uar: 3.into(),
        addr: AREA.into(),
        ..Default::default()
    };
    assert_eq!(command(&mut b, &b_interrupt, 1, uar), 0);
    // More often than a VM has to be silent for before it is told.
    let mut token = 1;
    while b.ram.load32(AREA + SLEEP as u64).unwrap() & 1 == 0 {
        token += 1;
        assert!(token < 100_000, "it stays awake");
        works(&mut a, &a_interrupt, token);
    }
    // And it wakes for its own.
    works(&mut b, &b_interrupt, 2);
}

const MACS: [&str; 2] = ["02:00:00:00:00:0a", "02:00:00:00:00:0b"];

fn start(dir: &Dir) -> Nic {
    let vms = [
        ("1", &["--mac", MACS[0]][..]),
        ("2", &["--mac", MACS[1]][..]),
    ];
    Nic::start_with(&dir.0, &vms).listening()
}

fn qemu(dir: &Dir, number: u32) -> UnixStream {
    UnixStream::connect(dir.0.join(format!("nic{number}"))).unwrap()
}

#[test]
fn a_vm_whose_qemu_goes_comes_back_and_the_last_ends_the_process() {
    let dir = Dir::new("several-qemu");
    let mut nic = start(&dir);
    let vector = || eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let (mut b, b_interrupt) = run(Client::over(qemu(&dir, 2)));
    nic.says("VM 2: QEMU is connected");
    for round in 1..4 {
        let (mut a, interrupt) = run(Client::over(qemu(&dir, 1)));
        works(&mut a, &interrupt, round);
        // Another one waits for its turn.
        let mut late = Client::over(qemu(&dir, 1));
        drop(a);
        nic.says("VM 1: QEMU is gone");
        late.version();
        // Nothing of the last one's is left.
        late.wait_reg(regs::STATUS, |status| status == 0);
        let mut mastering = [0; 2];
        late.read(CONFIG, 4, &mut mastering).unwrap();
        assert_eq!(mastering, [0, 0]);
        assert_eq!(late.read_reg(regs::CMDQ_BASE_LO), 0);
        late.dma_map(0, RAM);
        late.set_vector(0, &vector());
        drop(late);
        nic.says("VM 1: QEMU is gone");
        works(&mut b, &b_interrupt, 50 + round);
    }
    drop(b);
    let (status, said) = nic.end();
    assert!(status.success(), "{said}");
    assert!(dir.list().is_empty());
}

#[test]
fn what_qemu_says_wrong_is_its_own_vms_end() {
    let dir = Dir::new("several-wrong");
    let mut nic = start(&dir);
    let (mut b, b_interrupt) = run(Client::over(qemu(&dir, 2)));
    let mut a = qemu(&dir, 1);
    a.write_all(&[0xff; 64]).unwrap();
    nic.says("VM 1: a message of");
    works(&mut b, &b_interrupt, 1);
    let (mut a, a_interrupt) = run(Client::over(qemu(&dir, 1)));
    works(&mut a, &a_interrupt, 2);
}

/// Whatever the last one said before it went, in the middle of a message and of a command among it: the next one finds a device as after
/// power-on, and nobody beside it notices.
#[test]
fn a_connection_that_ends_in_an_error_leaves_the_next_one_nothing() {
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
        // The NIC may have given up the connection in the middle of it.
        let _ = raw.write_all(&last);
        drop((a, raw));
        nic.says("VM 1: ");
        works(&mut b, &b_interrupt, 50 + round);
    }
    let (mut a, a_interrupt) = run(Client::over(qemu(&dir, 1)));
    works(&mut a, &a_interrupt, 99);
}

#[test]
fn guests_hear_each_others_ethernet_and_nobody_speaks_for_another() {
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
    // The NIC may not have seen the one yet when the other speaks.
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
