// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The whole NIC at its socket, as QEMU and a driver use it: a client of the vfio-user protocol
//! shares memory with the device, passes eventfds and drives the device through its BARs.

mod client;
mod dir;
mod misbehave;
mod process;
mod rules;
mod several;

use client::{Client, BAR_DOORBELL, BAR_REGS, CONFIG};
use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use std::os::fd::OwnedFd;
use verbena_abi::cmd::{self, Command, CreateUar, DeviceCaps, QueryDevice};
use verbena_abi::doorbell::{ALIVE, SLEEP};
use verbena_abi::regs;
use verbena_abi::ABI_VERSION;
use verbena_device::memory::GuestMemory;

const SLOTS: u64 = 0x1000;
const AREA: u64 = 0x4000;
const RAM: u64 = 1 << 20;

const EINVAL: u32 = 22;
const ENOTSUP: u32 = 95;

/// Starts a NIC. Returns a client whose device has memory and a running command queue, and the
/// eventfd of vector 0.
fn running() -> (Client, OwnedFd) {
    run(Client::start())
}

fn run(mut client: Client) -> (Client, OwnedFd) {
    client.version();
    // The device may still be in the reset after the last client.
    client.wait_reg(regs::STATUS, |status| status == 0);
    client.dma_map(0, RAM);
    let interrupt = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    client.set_vector(0, &interrupt);
    start_queue(&mut client);
    (client, interrupt)
}

fn start_queue(client: &mut Client) {
    client.write(CONFIG, 4, &[6, 0]).unwrap();
    client.write_reg(regs::VERSION_SELECT, ABI_VERSION.into());
    client.write_reg(regs::CMDQ_BASE_LO, SLOTS as u32);
    client.write_reg(regs::CMDQ_SLOTS, 1);
    client.write_reg(regs::CMDQ_ENABLE, 1);
    client.wait_reg(regs::STATUS, |status| status == regs::STATUS_READY);
}

fn wait_interrupt(fd: &OwnedFd) {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    let timeout = Timespec {
        tv_sec: 20,
        tv_nsec: 0,
    };
    assert_eq!(poll(&mut fds, Some(&timeout)), Ok(1), "no interrupt");
    rustix::io::read(fd, &mut [0; 8]).unwrap();
}

/// Executes a command and waits for its interrupt. Returns its status.
fn command<C: Command>(client: &mut Client, interrupt: &OwnedFd, token: u32, request: C) -> u32 {
    let header = cmd::RequestHeader {
        opcode: C::OPCODE.to_raw().into(),
        token: token.into(),
        ..Default::default()
    };
    let ram = &client.ram;
    ram.write_struct(SLOTS, &header).unwrap();
    ram.write_struct(SLOTS + cmd::HEADER_SIZE as u64, &request)
        .unwrap();
    client.write_reg(regs::CMDQ_DOORBELL, 0);
    wait_interrupt(interrupt);
    let reply: cmd::ReplyHeader = client
        .ram
        .read_struct(SLOTS + cmd::REQUEST_SIZE as u64)
        .unwrap();
    assert_eq!(reply.token.get(), token);
    reply.status.get()
}

#[test]
fn the_device_describes_itself() {
    let mut client = Client::start();
    client.version();
    let info = client.info();
    assert_eq!((info[1], info[2], info[3]), (3, 9, 3));
    assert_eq!(client.region_size(0), regs::BAR_REGS_SIZE as u64);
    assert_eq!(client.region_size(1), 0);
    assert_eq!(client.region_size(2), regs::BAR_DOORBELL_SIZE as u64);
    assert_eq!(client.region_size(4), regs::BAR_MSIX_SIZE as u64);
    assert_eq!(client.region_size(7), 4096);
    assert_eq!(client.irq_count(2), Ok(regs::NUM_VECTORS));
    assert_eq!(client.irq_count(0), Ok(0));
    assert_eq!(client.irq_count(3), Err(EINVAL));
    assert_eq!(client.read_reg(regs::MAGIC), regs::MAGIC_VALUE);
}

#[test]
fn invalid_messages_get_an_error_and_the_connection_goes_on() {
    let mut client = Client::start();
    client.version();
    // Commands that are unknown, not supported, or too short.
    for command in [0, 6, 11, 15, 999] {
        assert_eq!(client.request(command, &[7; 100], None), Err(ENOTSUP));
    }
    for command in [2, 3, 5, 7, 8, 9, 10] {
        assert_eq!(client.request(command, &[0xff; 6], None), Err(EINVAL));
    }
    // Accesses outside a region, to no region, and longer than a message may be.
    let mut out = [0; 4];
    assert_eq!(client.read(BAR_REGS, 0x1_0000, &mut out), Err(EINVAL));
    assert_eq!(client.read(BAR_REGS, u64::MAX, &mut out), Err(EINVAL));
    assert_eq!(client.read(1, 0, &mut out), Err(EINVAL));
    assert_eq!(client.read(1000, 0, &mut out), Err(EINVAL));
    let mut access = Vec::new();
    access.extend_from_slice(&0u64.to_le_bytes());
    access.extend_from_slice(&BAR_DOORBELL.to_le_bytes());
    access.extend_from_slice(&(32u32 << 20).to_le_bytes());
    assert_eq!(client.request(9, &access, None), Err(EINVAL));
    assert_eq!(client.request(10, &access, None), Err(EINVAL));
    assert_eq!(client.read_reg(regs::MAGIC), regs::MAGIC_VALUE);
}

#[test]
fn a_command_is_executed_and_interrupts() {
    let (mut client, interrupt) = running();
    let status = command(&mut client, &interrupt, 5, QueryDevice::default());
    assert_eq!(status, cmd::CmdStatus::Ok.to_raw());
    let payload = SLOTS + (cmd::REQUEST_SIZE + cmd::HEADER_SIZE) as u64;
    let caps: DeviceCaps = client.ram.read_struct(payload).unwrap();
    assert_eq!(caps.max_uar.get(), regs::NUM_UARS);
}

#[test]
fn without_bus_mastering_no_command_is_executed() {
    let (mut client, interrupt) = running();
    client.write(CONFIG, 4, &[2, 0]).unwrap();
    let header = cmd::RequestHeader {
        opcode: QueryDevice::OPCODE.to_raw().into(),
        token: 9.into(),
        ..Default::default()
    };
    client.ram.write_struct(SLOTS, &header).unwrap();
    client.write_reg(regs::CMDQ_DOORBELL, 0);
    // `settle` returns after the engine has seen the doorbell.
    client.settle();
    let token = SLOTS + cmd::REQUEST_SIZE as u64 + 12;
    assert_eq!(client.ram.load32(token), Ok(0));
    // The engine executes the command after bus mastering is on.
    client.write(CONFIG, 4, &[6, 0]).unwrap();
    wait_interrupt(&interrupt);
    assert_eq!(client.ram.load32(token), Ok(9));
}

#[test]
fn no_interrupt_is_raised_after_bus_mastering_is_off() {
    let (mut client, interrupt) = running();
    let reply = SLOTS + cmd::REQUEST_SIZE as u64 + 12;
    for token in 1..=500 {
        client.write(CONFIG, 4, &[6, 0]).unwrap();
        let header = cmd::RequestHeader {
            opcode: QueryDevice::OPCODE.to_raw().into(),
            token: token.into(),
            ..Default::default()
        };
        client.ram.write_struct(SLOTS, &header).unwrap();
        client.write_reg(regs::CMDQ_DOORBELL, 0);
        client.write(CONFIG, 4, &[2, 0]).unwrap();
        // If the command is done, its interrupt has been raised. If not, it is executed only after
        // bus mastering is on again.
        let raised = rustix::io::read(&interrupt, &mut [0; 8]).is_ok();
        let done = client.ram.load32(reply) == Ok(token);
        assert!(
            raised || !done,
            "command {token} has not raised its interrupt"
        );
        client.settle();
        assert!(
            rustix::io::read(&interrupt, &mut [0; 8]).is_err(),
            "{token}"
        );
    }
}

#[test]
fn unmapped_memory_of_the_command_queue_is_a_fatal_error_until_reset() {
    let (mut client, interrupt) = running();
    client.dma_unmap(0, RAM);
    client.write_reg(regs::CMDQ_DOORBELL, 0);
    client.wait_reg(regs::STATUS, |status| status & regs::STATUS_FATAL != 0);
    client.write_reg(regs::CONTROL, regs::CONTROL_RESET);
    client.wait_reg(regs::STATUS, |status| status == 0);
    client.remap(0, RAM);
    // The fatal error has raised vector 0.
    let _ = rustix::io::read(&interrupt, &mut [0; 8]);
    start_queue(&mut client);
    let status = command(&mut client, &interrupt, 6, QueryDevice::default());
    assert_eq!(status, cmd::CmdStatus::Ok.to_raw());
}

#[test]
fn a_reset_of_the_function_resets_the_device_and_clears_bus_mastering() {
    let (mut client, _interrupt) = running();
    client.request(13, &[], None).unwrap();
    client.wait_reg(regs::STATUS, |status| status == 0);
    assert_eq!(client.read_reg(regs::CMDQ_BASE_LO), 0);
    let mut command = [0; 2];
    client.read(CONFIG, 4, &mut command).unwrap();
    assert_eq!(command, [0, 0]);
}

#[test]
fn an_idle_device_sleeps_and_a_doorbell_wakes_it() {
    let (mut client, interrupt) = running();
    let uar = CreateUar {
        uar: 3.into(),
        addr: AREA.into(),
        ..Default::default()
    };
    assert_eq!(command(&mut client, &interrupt, 8, uar), 0);
    assert_eq!(client.ram.load32(AREA + ALIVE as u64), Ok(1));
    let mut last = 0;
    for _ in 0..3 {
        let asleep = client.wait_word(AREA + SLEEP as u64, |word| word & 1 != 0 && word != last);
        client.post_write(BAR_DOORBELL, 3 << 16, &[0; 4]);
        last = asleep;
    }
}

#[test]
fn the_server_ends_after_its_client_has_disconnected() {
    let (client, _interrupt) = running();
    assert!(client.leave().is_ok());
}
