// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The requests that each command refuses, with the status and the syndrome: one field after the
//! other is one step beyond its limit, and the last allowed value is accepted. The limits are those
//! that QUERY_DEVICE reports. A command that failed has taken nothing: the same request, once
//! corrected, succeeds with the same number and slot.

use super::*;
use crate::error::CmdError;
use crate::memory::GuestMemory;
use crate::mock::{flat, BASE};
use verbena_abi::cmd::*;
use verbena_abi::ctx::{access, mr_flags, Translation};
use verbena_abi::doorbell;
use verbena_abi::regs::{NUM_UARS, NUM_VECTORS};
use verbena_abi::syndrome::Syndrome;

type Told = Result<(), (CmdStatus, Syndrome)>;

const NUMBER: Told = Err((CmdStatus::Invalid, Syndrome::CmdNumber));
const SIZE: Told = Err((CmdStatus::Invalid, Syndrome::CmdSize));
const ATTRIBUTE: Told = Err((CmdStatus::Invalid, Syndrome::CmdAttribute));
const UNSUPPORTED: Told = Err((CmdStatus::Unsupported, Syndrome::CmdAttribute));
const NO_OBJECT: Told = Err((CmdStatus::NotFound, Syndrome::CmdNoObject));
const IN_USE: Told = Err((CmdStatus::Exists, Syndrome::CmdInUse));
const BUSY: Told = Err((CmdStatus::Busy, Syndrome::CmdBusy));
const TABLE_SLOT: Told = Err((CmdStatus::Invalid, Syndrome::CmdTableSlot));
const TRANSLATION: Told = Err((CmdStatus::Invalid, Syndrome::CmdTranslation));
const UNREACHABLE: Told = Err((CmdStatus::BadAddress, Syndrome::CmdTranslation));
const OK: Told = Ok(());

fn told<T>(result: Result<T, CmdError>) -> Told {
    result.map(|_| ()).map_err(|e| (e.status, e.syndrome))
}

/// Executes a valid request with one change at a time, and checks the result of each.
macro_rules! tries {
    ($d:expr, $good:expr, $( |$r:ident| $change:expr => $expected:expr; )*) => { $({
        let mut request = $good;
        let $r = &mut request;
        $change;
        assert_eq!(told($d.cmd(&request)), $expected, "{}", stringify!($change));
    })* };
}

mod completions;
mod work;

/// Returns the end of memory.
fn end(d: &Driver) -> u64 {
    let mut end = BASE;
    while d.ram.contains(end, 4096) {
        end += 4096;
    }
    end
}

fn id<C: Command>(d: &mut Driver, request: C) -> Told {
    told(d.cmd(&request))
}

fn destroy_cq(d: &mut Driver, cqn: u32) -> Told {
    id(
        d,
        DestroyCq {
            id: cqn.into(),
            ..Default::default()
        },
    )
}

fn destroy_eq(d: &mut Driver, eqn: u32) -> Told {
    id(
        d,
        DestroyEq {
            id: eqn.into(),
            ..Default::default()
        },
    )
}

fn destroy_srq(d: &mut Driver, srqn: u32) -> Told {
    id(
        d,
        DestroySrq {
            id: srqn.into(),
            ..Default::default()
        },
    )
}

fn destroy_qp(d: &mut Driver, qpn: u32) -> Told {
    id(
        d,
        DestroyQp {
            id: qpn.into(),
            ..Default::default()
        },
    )
}

fn destroy_uar(d: &mut Driver, uar: u32) -> Told {
    id(
        d,
        DestroyUar {
            id: uar.into(),
            ..Default::default()
        },
    )
}

fn area(d: &mut Driver, uar: u32) {
    let addr = d.alloc(doorbell::AREA_SIZE as u64);
    d.must(&CreateUar {
        uar: uar.into(),
        addr: addr.into(),
        ..Default::default()
    });
}

#[test]
fn query_device_reports_features_and_limits() {
    let mut d = Driver::new();
    let expected = DeviceCaps {
        mac: [0x52, 0x54, 0, 0x12, 0x34, 0x56, 0, 0],
        node_guid: [0x50, 0x54, 0, 0xff, 0xfe, 0x12, 0x34, 0x56],
        fw_ver: 0x0000_0000_0001_0000.into(),
        max_mr_size: (1 << 47).into(),
        // 4 KiB to 1 GiB.
        page_size_cap: 0x7fff_f000.into(),
        // RC, UC, UD, SRQ, atomics, fast registration, RESIZE_CQ, moderation, memory windows,
        // multicast, atomic writes, FLUSH, XRC, RESIZE_SRQ, faults on demand, gaps.
        features: 0xffff.into(),
        max_qp: 16384.into(),
        max_cq: 16384.into(),
        max_srq: 4096.into(),
        max_mr: 65536.into(),
        max_pd: 65536.into(),
        max_eq: 64.into(),
        max_uar: 8192.into(),
        max_gid: 256.into(),
        max_qp_wr: 16384.into(),
        max_srq_wr: 16384.into(),
        max_cqe: 262_144.into(),
        max_eqe: 131_072.into(),
        max_send_sge: 32.into(),
        max_recv_sge: 32.into(),
        max_srq_sge: 32.into(),
        max_inline_data: 512.into(),
        max_msg_size: (1 << 31).into(),
        max_qp_init_rd_atom: 16.into(),
        max_qp_rd_atom: 16.into(),
        num_comp_vectors: 31.into(),
        local_dma_lkey: 0x5a.into(),
        clock_ns_q16: 65536.into(),
        max_mcast_grp: 1024.into(),
        num_ports: 1,
        max_mcast_qp_attach: 256.into(),
        max_gaps: 512.into(),
        ..Default::default()
    };
    assert_eq!(d.must(&QueryDevice::default()), expected);
}

#[test]
fn memory_regions() {
    let mut d = Driver::new();
    let caps = d.must(&QueryDevice::default());
    let table = d.alloc(4096);
    let most = (caps.max_mr.get() - 1) << 8;
    let good = CreateMr {
        key: 0x102.into(),
        pdn: 7.into(),
        access: access::ALL.into(),
        flags: mr_flags::PRIVILEGED.into(),
        iova: 0x1000.into(),
        length: (3 * 4096u64 - 5).into(),
        page_offset: 5.into(),
        pages: Translation {
            addr: table.into(),
            num_pages: 3.into(),
            log_page_size: 12,
            levels: 1,
            ..Default::default()
        },
    };
    tries! { d, good,
        |r| r.key = 0x5a.into() => NUMBER;
        |r| r.key = (most + 0x100).into() => NUMBER;
        |r| r.key = u32::MAX.into() => NUMBER;
        |r| r.key = most.into() => TABLE_SLOT;
        |r| r.flags = mr_flags::ON_DEMAND.into() => ATTRIBUTE;
        |r| r.flags = mr_flags::DEVICE_MEMORY.into() => ATTRIBUTE;
        |r| r.access = (access::ALL + 1).into() => ATTRIBUTE;
        |r| r.iova = (u64::MAX - 3 * 4096 + 6).into() => SIZE;
        |r| r.page_offset = (u64::MAX - 3 * 4096 + 6).into() => SIZE;
        |r| r.page_offset = 6.into() => TRANSLATION;
        |r| r.length = (3 * 4096u64 - 4).into() => TRANSLATION;
        |r| r.pages.num_pages = 2.into() => TRANSLATION;
        |r| (r.length, r.page_offset, r.pages.num_pages) = (0.into(), 0.into(), 0.into()) => TRANSLATION;
        |r| r.pages.log_page_size = 11 => TRANSLATION;
        |r| r.pages.log_page_size = 31 => TRANSLATION;
        |r| r.pages.levels = 3 => TRANSLATION;
        |r| r.pages.levels = 0 => TRANSLATION;
        |r| r.pages.addr = (table + 4).into() => TRANSLATION;
        |r| r.pages.addr = (u64::MAX - 15).into() => TRANSLATION;
        |_r| {} => OK;
        |_r| {} => IN_USE;
        |r| r.key = 0x1ff.into() => IN_USE;
    }
    // Contiguous memory counts as one page, at any address.
    let contiguous = CreateMr {
        key: 0x200.into(),
        pages: flat(table),
        ..good
    };
    tries! { d, contiguous,
        |r| r.pages.num_pages = 0.into() => TRANSLATION;
        |r| r.pages.addr = (u64::MAX - 3 * 4096 + 1).into() => TRANSLATION;
        |r| r.pages.addr = (u64::MAX - 3 * 4096).into() => OK;
    }
    tries! { d, contiguous,
        |r| (r.key, r.length) = (0x700.into(), (caps.max_mr_size.get() + 1).into()) => SIZE;
        |r| (r.key, r.length) = (0x700.into(), caps.max_mr_size) => OK;
    }
    // A region may end at the largest address.
    tries! { d, good,
        |r| (r.key, r.iova) = (0x300.into(), (u64::MAX - 3 * 4096 + 5).into()) => OK;
        |r| (r.key, r.pages.log_page_size) = (0x400.into(), 30) => OK;
        // A key for fast registration has no pages before the registration.
        |r| (r.key, r.flags, r.pages) = (0x500.into(), mr_flags::FAST_REG.into(), Translation::default()) => OK;
    }
    let modify = ModifyMr {
        key: 0x1aa.into(),
        pdn: 9.into(),
        access: 1.into(),
        flags: 0.into(),
        iova: good.iova,
        length: good.length,
        page_offset: good.page_offset,
        pages: good.pages,
    };
    tries! { d, modify,
        |r| r.key = 0x600.into() => NO_OBJECT;
        |r| r.key = 0x5a.into() => NO_OBJECT;
        |r| r.access = 0x40.into() => ATTRIBUTE;
        |r| r.flags = 4.into() => ATTRIBUTE;
        |r| r.page_offset = 6.into() => TRANSLATION;
        |_r| {} => OK;
    }
    let destroy = DestroyMr {
        id: 0x1aa.into(),
        ..Default::default()
    };
    tries! { d, destroy,
        |r| r.id = 0x600.into() => NO_OBJECT;
        |_r| {} => OK;
        |_r| {} => NO_OBJECT;
    }
    tries! { d, good, |_r| {} => OK; }
}

#[test]
fn areas_and_context_tables() {
    let mut d = Driver::new();
    let last = end(&d);
    let addr = d.alloc(doorbell::AREA_SIZE as u64);
    let good = CreateUar {
        uar: (NUM_UARS - 1).into(),
        addr: addr.into(),
        ..Default::default()
    };
    tries! { d, good,
        |r| r.uar = NUM_UARS.into() => NUMBER;
        |r| r.uar = 0.into() => IN_USE;
        |r| r.addr = (addr + 64).into() => TRANSLATION;
        |r| r.addr = (last - 4096).into() => UNREACHABLE;
        |_r| {} => OK;
        |_r| {} => IN_USE;
    }
    assert_eq!(d.ram.load32(addr + doorbell::ALIVE as u64), Ok(1));
    assert_eq!(destroy_uar(&mut d, NUM_UARS - 2), NO_OBJECT);
    assert_eq!(destroy_uar(&mut d, NUM_UARS - 1), OK);
    assert_eq!(d.ram.load32(addr + doorbell::ALIVE as u64), Ok(0));
    let chunk = d.alloc(TABLE_CHUNK_SIZE as u64);
    // Number of chunks of each table.
    let counts = [
        (Table::Qpc, 128),
        (Table::Cqc, 32),
        (Table::Srqc, 8),
        (Table::Mpt, 128),
        (Table::Eqc, 1),
    ];
    for (table, count) in counts {
        let good = SetTableChunk {
            table: table.to_raw(),
            chunk: (count - 1).into(),
            addr: chunk.into(),
            ..Default::default()
        };
        tries! { d, good,
            |r| r.table = 99 => NUMBER;
            |r| r.chunk = count.into() => NUMBER;
            |r| r.chunk = 0.into() => IN_USE;
        }
        if count > 1 {
            tries! { d, good,
                |r| r.addr = (chunk + 64).into() => TRANSLATION;
                |r| r.addr = (last - TABLE_CHUNK_SIZE as u64 + 4096).into() => UNREACHABLE;
                |_r| {} => OK;
                |_r| {} => IN_USE;
            }
        }
    }
}

#[test]
fn ports_and_gids() {
    let mut d = Driver::new();
    let caps = d.must(&QueryDevice::default());
    let gid = SetGid {
        index: (caps.max_gid.get() as u16 - 1).into(),
        valid: 1,
        port: 1,
        gid_type: GID_TYPE_ROCE_V2,
        vlan: NO_VLAN.into(),
        gid: [9; 16],
        ..Default::default()
    };
    tries! { d, gid,
        |r| r.index = (caps.max_gid.get() as u16).into() => NUMBER;
        |r| r.port = 0 => NUMBER;
        |r| r.port = 2 => NUMBER;
        |r| r.valid = 2 => ATTRIBUTE;
        |r| r.gid_type = 0 => UNSUPPORTED;
        |_r| {} => OK;
    }
    let port = SetPort {
        up: 1,
        mtu: 5,
        port: 1,
        ..Default::default()
    };
    tries! { d, port,
        |r| r.port = 0 => NUMBER;
        |r| r.port = 2 => NUMBER;
        |r| r.up = 2 => ATTRIBUTE;
        |r| r.mtu = 0 => ATTRIBUTE;
        |r| r.mtu = 6 => ATTRIBUTE;
        |r| r.mtu = 1 => OK;
        |_r| {} => OK;
    }
}
