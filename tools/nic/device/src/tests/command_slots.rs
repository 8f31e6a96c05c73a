// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Slots of the command queue: the slots that are executed, how often and in which order, and the
//! accesses to their memory.

use super::watched::{Op, Watched};
use super::*;
use crate::memory::GuestMemory;
use crate::mock::flat;
use crate::Config;
use verbena_abi::cmd::*;
use verbena_abi::regs;
use verbena_abi::stats::{Counter, NUM_COUNTERS};
use verbena_abi::syndrome::Syndrome;

/// Writes a request to a slot of the queue at `base`.
fn write_request<C: Command>(d: &Driver, base: u64, slot: u32, token: u32, request: &C) {
    let header = RequestHeader {
        opcode: C::OPCODE.to_raw().into(),
        token: token.into(),
        ..Default::default()
    };
    let at = base + u64::from(slot) * SLOT_SIZE as u64;
    d.ram.write_struct(at, &header).unwrap();
    let at = at + HEADER_SIZE as u64;
    d.ram.write(at, request.as_bytes()).unwrap();
}

fn reply(d: &Driver, base: u64, slot: u32) -> ReplyHeader {
    let at = base + u64::from(slot) * SLOT_SIZE as u64 + REQUEST_SIZE as u64;
    d.ram.read_struct(at).unwrap()
}

/// Returns a device whose command queue has this number of slots, and the address of the queue.
fn with_slots(slots: u32) -> (Driver, u64) {
    let mut d = Driver::cold(Config::default());
    // There is memory for more slots than the device has, so that only their number keeps the
    // device from them.
    let base = d.alloc(128 * SLOT_SIZE as u64);
    for (at, value) in [
        (regs::VERSION_SELECT, verbena_abi::ABI_VERSION.into()),
        (regs::CMDQ_BASE_LO, base as u32),
        (regs::CMDQ_SLOTS, slots),
    ] {
        d.regs.write(at, value);
    }
    d.device.enable_cmdq(&d.ram);
    (d, base)
}

fn executed(d: &Driver) -> u64 {
    d.device.stats()[Counter::Commands as usize]
}

#[test]
fn slots_beyond_the_last_are_ignored() {
    for slots in [1, 2, 8, 63, 64] {
        let (mut d, base) = with_slots(slots);
        for slot in 0..128 {
            write_request(&d, base, slot, 9, &QueryDevice::default());
        }
        let memory = d.bytes(base, 128 * SLOT_SIZE);
        for slot in [slots, slots + 1, 63, 64, 65, 127, 128, 1 << 31, u32::MAX] {
            if slot >= slots {
                d.device.command(slot);
                let watched = Watched::new(&d.ram);
                d.device.run_slice(&watched, d.now);
                // The slot is not read either.
                let beyond = base + u64::from(slots) * SLOT_SIZE as u64;
                let looked = |op: &Op| op.touches(beyond, 1 << 20);
                assert!(!watched.ops().iter().any(looked), "{slot} of {slots}");
                d.run();
                assert_eq!(executed(&d), 0, "{slot} of {slots}");
            }
        }
        assert!(memory == d.bytes(base, 128 * SLOT_SIZE));
        assert_eq!(d.interrupts.get(&0), None);
        // All slots of the queue are executed.
        for slot in 0..slots {
            d.device.command(slot);
        }
        d.run();
        assert_eq!(executed(&d), slots.into());
        for slot in 0..128 {
            let told = reply(&d, base, slot);
            let expected = if slot < slots { 9 } else { 0 };
            assert_eq!(told.token.get(), expected, "{slot} of {slots}");
        }
    }
}

#[test]
fn a_token_executes_a_command_once() {
    let (mut d, base) = with_slots(4);
    let ring = |d: &mut Driver, slot: u32, token: u32| {
        write_request(d, base, slot, token, &QueryDevice::default());
        let before = executed(d);
        d.device.command(slot);
        d.run();
        (executed(d) - before, reply(d, base, slot).token.get())
    };
    // Without a token no command is executed.
    assert_eq!(ring(&mut d, 1, 0), (0, 0));
    assert_eq!(ring(&mut d, 1, 5), (1, 5));
    assert_eq!(ring(&mut d, 1, 5), (0, 5), "the same again");
    assert_eq!(ring(&mut d, 2, 5), (1, 5), "each slot has its own token");
    assert_eq!(ring(&mut d, 1, 0), (0, 5));
    // The device remembers the last token that was executed, whatever the guest writes to the
    // reply.
    d.ram.write(base + 768, &[0; 256]).unwrap();
    assert_eq!(ring(&mut d, 1, 5), (0, 0));
    for token in [4, 5, u32::MAX, 1 << 31] {
        assert_eq!(ring(&mut d, 1, token), (1, token));
    }
    // A command that failed counts as executed.
    write_request(&d, base, 3, 8, &DestroyMr::default());
    d.device.command(3);
    d.run();
    assert_eq!(ring(&mut d, 3, 8), (0, 8));
}

#[test]
fn commands_are_executed_in_the_order_of_their_doorbells() {
    let mut d = Driver::new();
    let region = |key: u32| CreateMr {
        key: key.into(),
        pages: flat(crate::mock::BASE),
        ..Default::default()
    };
    let gone = DestroyMr {
        id: 0x4201.into(),
        ..Default::default()
    };
    // The order is neither that of the slots nor that of the tokens. The long command in between
    // delays the others.
    let cq = d.create_cq(4);
    let resize = ResizeCq {
        cqn: cq.cqn.into(),
        log_size: 5,
        ring: flat(d.alloc(4096)),
        ..Default::default()
    };
    d.begin_cmd(7, &region(0x4201));
    d.begin_cmd(2, &resize);
    d.begin_cmd(6, &region(0x4202));
    d.begin_cmd(1, &gone);
    d.begin_cmd(5, &gone);
    d.begin_cmd(3, &region(0x4203));
    d.run();
    let ok = (CmdStatus::Ok, 0);
    let exists = (CmdStatus::Exists, Syndrome::CmdInUse.to_raw());
    let none = (CmdStatus::NotFound, Syndrome::CmdNoObject.to_raw());
    let told = [7, 2, 6, 1, 5, 3].map(|slot| d.answer(slot));
    assert_eq!(told, [ok, ok, exists, ok, none, ok]);
}

#[test]
fn the_reply_of_a_failed_command_has_no_earlier_payload() {
    let mut d = Driver::new();
    d.must(&QueryDevice::default());
    let at = d.cmdq_memory() + (REQUEST_SIZE + HEADER_SIZE) as u64;
    assert!(d.bytes(at, PAYLOAD_SIZE) != [0; PAYLOAD_SIZE]);
    assert!(d.cmd(&DestroyMr::default()).is_err());
    assert!(d.bytes(at, PAYLOAD_SIZE) == [0; PAYLOAD_SIZE]);
    d.must(&QueryDevice::default());
    d.set_port(true);
    assert!(d.bytes(at, PAYLOAD_SIZE) == [0; PAYLOAD_SIZE]);
}

/// Executes a command. Checks its accesses to its slot, and returns all its accesses to memory.
fn watched<C: Command>(d: &mut Driver, request: &C) -> Vec<Op> {
    d.begin_cmd(4, request);
    let mut all = vec![];
    for _ in 0..10 {
        let mem = Watched::new(&d.ram);
        d.device.run_slice(&mem, d.now);
        all.extend(mem.ops());
        if d.is_answered(4) {
            break;
        }
    }
    assert_eq!(d.answer(4).0, CmdStatus::Ok, "{:?}", C::OPCODE);
    let slot = d.cmdq_memory() + 4 * SLOT_SIZE as u64;
    let to = slot + REQUEST_SIZE as u64;
    // The request is read once, and nothing is written to it.
    let inside = |op: &&Op| op.touches(slot, REQUEST_SIZE as u64);
    let mut of_request: Vec<&Op> = all.iter().filter(inside).collect();
    if cfg!(feature = "misbehave") {
        // A device that may misbehave reads the header first, to see if misbehaviour is requested.
        of_request.retain(|op| **op != Op::Read(slot, HEADER_SIZE as u64));
    }
    assert_eq!(of_request, [&Op::Read(slot, REQUEST_SIZE as u64)]);
    // The token is the last word that is written, after status and payload.
    let writes: Vec<&Op> = all.iter().filter(|op| op.writes()).collect();
    let token = Op::Store(to + 12, 4, d.commands().into());
    assert_eq!(writes.last(), Some(&&token), "{:?}", C::OPCODE);
    let reply = writes
        .iter()
        .filter(|op| op.touches(to, SLOT_SIZE as u64 / 2));
    assert_eq!(reply.count(), 3, "payload, status, token");
    all
}

/// Checks that a context was published once: its sequence counter becomes odd, the context is
/// written, and the counter becomes even. The device reads only the counter that the last object of
/// the slot has left.
fn publishes(d: &Driver, ops: &[Op], table: Table, number: u32, size: usize) {
    let at = d.table(table) + u64::from(number) * size as u64;
    let seq = d.ram.load32(at).unwrap();
    let mut all = ops.iter().filter(|op| op.touches(at, size as u64));
    let mut next = all.next();
    if next == Some(&Op::Load(at, 4)) {
        next = all.next();
    }
    assert_eq!(seq % 2, 0);
    assert_eq!(next, Some(&Op::Store(at, 4, u64::from(seq) - 1)));
    assert_eq!(all.next(), Some(&Op::Write(at + 4, size as u64 - 4)));
    assert_eq!(all.next(), Some(&Op::Store(at, 4, seq.into())));
    assert_eq!(all.next(), None, "{table:?}");
}

#[test]
fn each_command_reads_its_request_once_and_ends_with_its_token() {
    use verbena_abi::ctx::*;
    let mut d = Driver::new();
    let d = &mut d;
    let cq = d.create_cq(4);
    let [area, chunk, ring, ci] =
        [8192, TABLE_CHUNK_SIZE as u64, 8192, 8].map(|bytes| d.alloc(bytes));
    watched(d, &QueryDevice::default());
    watched(
        d,
        &SetTableChunk {
            table: Table::Qpc.to_raw(),
            chunk: 1.into(),
            addr: chunk.into(),
            ..Default::default()
        },
    );
    let qp = d.create_qp(&cq, &cq);
    for kind in [StatsKind::Port, StatsKind::Qp] {
        watched(
            d,
            &QueryStats {
                kind: kind.to_raw(),
                id: qp.qpn.into(),
                port: 1,
                addr: area.into(),
                count: (NUM_COUNTERS as u32).into(),
                ..Default::default()
            },
        );
    }
    watched(
        d,
        &SetGid {
            index: 3.into(),
            port: 1,
            gid_type: GID_TYPE_ROCE_V2,
            ..Default::default()
        },
    );
    watched(
        d,
        &SetPort {
            up: 1,
            mtu: 3,
            port: 1,
            ..Default::default()
        },
    );
    watched(
        d,
        &CreateUar {
            uar: 2.into(),
            addr: area.into(),
            ..Default::default()
        },
    );
    let eq = CreateEq {
        eqn: 5.into(),
        log_size: 4,
        log_entry_size: 4,
        ring: flat(ring),
        ci_addr: ci.into(),
        ..Default::default()
    };
    let ops = watched(d, &eq);
    publishes(d, &ops, Table::Eqc, 5, size_of::<EqContext>());
    let mr = CreateMr {
        key: 0x4401.into(),
        pages: flat(ring),
        ..Default::default()
    };
    let ops = watched(d, &mr);
    publishes(d, &ops, Table::Mpt, 0x44, size_of::<MemoryEntry>());
    let change = ModifyMr {
        key: 0x4402.into(),
        pages: flat(ring),
        ..Default::default()
    };
    let ops = watched(d, &change);
    publishes(d, &ops, Table::Mpt, 0x44, size_of::<MemoryEntry>());
    let ops = watched(
        d,
        &CreateCq {
            cqn: 50.into(),
            eqn: 5.into(),
            uar: 2.into(),
            slot: 3.into(),
            log_size: 4,
            ring: flat(ring),
            ..Default::default()
        },
    );
    publishes(d, &ops, Table::Cqc, 50, size_of::<CqContext>());
    let change = ModifyCq {
        cqn: 50.into(),
        ..Default::default()
    };
    let ops = watched(d, &change);
    publishes(d, &ops, Table::Cqc, 50, size_of::<CqContext>());
    let resize = ResizeCq {
        cqn: 50.into(),
        log_size: 5,
        ring: flat(ring + 4096),
        ..Default::default()
    };
    let ops = watched(d, &resize);
    publishes(d, &ops, Table::Cqc, 50, size_of::<CqContext>());
    let ops = watched(
        d,
        &CreateSrq {
            srqn: 51.into(),
            uar: 2.into(),
            slot: 4.into(),
            log_size: 4,
            log_stride: 6,
            ring: flat(ring),
            ..Default::default()
        },
    );
    publishes(d, &ops, Table::Srqc, 51, size_of::<SrqContext>());
    let change = ModifySrq {
        srqn: 51.into(),
        ..Default::default()
    };
    let ops = watched(d, &change);
    publishes(d, &ops, Table::Srqc, 51, size_of::<SrqContext>());
    let mut request = d.qp_request(&cq, &cq);
    (request.uar, request.qpn) = (2.into(), 52.into());
    let ops = watched(d, &request);
    publishes(d, &ops, Table::Qpc, 52, size_of::<QpContext>());
    let init = ModifyQp {
        qpn: 52.into(),
        mask: (qp_mask::STATE | qp_mask::PKEY_INDEX | qp_mask::PORT | qp_mask::ACCESS_FLAGS).into(),
        attr: QpAttr {
            qp_state: QpState::Init.to_raw(),
            port_num: 1,
            ..Default::default()
        },
        ..Default::default()
    };
    let ops = watched(d, &init);
    publishes_some(d, &ops, Table::Qpc, 52, size_of::<QpContext>());
    macro_rules! by_id {
        ($($command:ident $id:expr, $table:expr, $context:ty;)*) => { $({
            let request = $command { id: $id.into(), ..Default::default() };
            let ops = watched(d, &request);
            let number = if $table == Table::Mpt { 0x44 } else { $id };
            publishes(d, &ops, $table, number, size_of::<$context>());
        })* };
    }
    by_id! {
        QueryCq 50, Table::Cqc, CqContext;
        QuerySrq 51, Table::Srqc, SrqContext;
        QueryQp 52, Table::Qpc, QpContext;
        DestroyQp 52, Table::Qpc, QpContext;
        DestroySrq 51, Table::Srqc, SrqContext;
        DestroyCq 50, Table::Cqc, CqContext;
        DestroyMr 0x4477, Table::Mpt, MemoryEntry;
        DestroyEq 5, Table::Eqc, EqContext;
    }
    let gone = DestroyUar {
        id: 2.into(),
        ..Default::default()
    };
    watched(d, &gone);
}

/// Checks the same for a command that may publish several times, for a change of state and for a
/// change of attributes.
fn publishes_some(d: &Driver, ops: &[Op], table: Table, number: u32, size: usize) {
    let at = d.table(table) + u64::from(number) * size as u64;
    let all: Vec<&Op> = ops
        .iter()
        .filter(|op| op.touches(at, size as u64))
        .collect();
    assert!(!all.is_empty() && all.len() % 3 == 0, "{all:?}");
    for update in all.chunks(3) {
        let [Op::Store(a, 4, odd), Op::Write(b, _), Op::Store(c, 4, even)] = update else {
            panic!("{update:?}");
        };
        assert_eq!((*a, *b, *c), (at, at + 4, at));
        assert_eq!((odd % 2, *even), (1, odd + 1));
    }
}

#[cfg(feature = "misbehave")]
#[test]
fn a_command_that_is_refused_on_purpose_is_not_executed() {
    use crate::misbehave::{Kind, ALWAYS};
    let mut d = Driver::new();
    let addr = d.alloc(4096);
    let request = CreateMr {
        key: 0x500.into(),
        pdn: 7.into(),
        length: 4096.into(),
        pages: flat(addr),
        ..Default::default()
    };
    let m = d.device.shared.config().misbehave.clone();
    m.set(Kind::OnlyOpcode, CreateMr::OPCODE.to_raw().into());
    m.set(Kind::RefuseCommands, ALWAYS);
    // Other commands are not refused.
    d.create_cq(4);
    assert_eq!(d.cmd(&request).unwrap_err().status, CmdStatus::NoResources);
    m.set(Kind::RefuseCommands, 0);
    // If the refused command had created the region, its number would be in use.
    d.must(&request);
}
