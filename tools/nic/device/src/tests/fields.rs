// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Fields of commands that this device does not support, or supports with one value only: other
//! values are refused.

use super::*;
use crate::error::CmdError;
use crate::memory::GuestMemory;
use crate::mock::{flat, SendWr};
use verbena_abi::cmd::*;
use verbena_abi::stats::{Counter, NUM_COUNTERS};
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::WqeOpcode;

fn refused<T: std::fmt::Debug>(result: Result<T, CmdError>) -> CmdStatus {
    result.expect_err("the request was accepted").status
}

#[test]
fn counters_are_written_to_the_address_of_the_request() {
    let mut p = Pair::new();
    p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
    assert_eq!(p.d.drain(&mut p.cq_a).len(), 1);
    let all = p.d.query_stats(None, 100).unwrap();
    assert_eq!(all.len(), Counter::ALL.len());
    assert!(all[Counter::TxPackets as usize] >= 2);
    // The device writes as many counters as there is room for, and no byte more.
    assert_eq!(p.d.query_stats(None, 3).unwrap(), all[..3]);
    let addr = p.d.alloc(64);
    p.d.ram.write(addr, &[0xee; 64]).unwrap();
    let request = QueryStats {
        port: 1,
        addr: addr.into(),
        count: 2.into(),
        ..Default::default()
    };
    assert_eq!(p.d.must(&request).count.get(), 2);
    assert_eq!(p.d.bytes(addr + 16, 48), [0xee; 48]);
    assert_eq!(p.d.query_stats(None, 0).unwrap(), []);
}

#[test]
fn a_queue_pair_has_counters_of_its_own() {
    let mut p = Pair::new();
    let (from, lkey) = p.d.region(4096, 1);
    let (to, rkey) = p.d.region(4096, 2);
    let wr = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(from, 100, lkey)]).to(to, rkey);
    p.d.post_send(&mut p.a, &wr);
    assert_eq!(p.d.drain(&mut p.cq_a).len(), 1);
    let (a, b) = (p.a.qpn, p.b.qpn);
    let of = |d: &mut Driver, qpn, counter: Counter| {
        d.query_stats(Some(qpn), NUM_COUNTERS as u32).unwrap()[counter as usize]
    };
    assert_eq!(of(&mut p.d, a, Counter::TxBytes), 100);
    assert_eq!(of(&mut p.d, a, Counter::RxBytes), 0);
    assert_eq!(of(&mut p.d, b, Counter::RxBytes), 100);
    assert_eq!(
        refused(p.d.query_stats(Some(b + 500), NUM_COUNTERS as u32)),
        CmdStatus::NotFound
    );
}

#[test]
fn query_stats_with_invalid_fields_is_refused() {
    let mut d = Driver::new();
    let good = QueryStats {
        port: 1,
        addr: d.alloc(NUM_COUNTERS as u64 * 8).into(),
        count: (NUM_COUNTERS as u32).into(),
        ..Default::default()
    };
    let mut with = |change: &dyn Fn(&mut QueryStats)| {
        let mut request = good;
        change(&mut request);
        refused(d.cmd(&request))
    };
    assert_eq!(with(&|r| r.port = 0), CmdStatus::Invalid);
    assert_eq!(with(&|r| r.port = 2), CmdStatus::Invalid);
    assert_eq!(with(&|r| r.kind = 7), CmdStatus::Unsupported);
    assert_eq!(
        with(&|r| r.addr = (r.addr.get() + 4).into()),
        CmdStatus::Invalid
    );
    assert_eq!(
        with(&|r| r.addr = (1u64 << 60).into()),
        CmdStatus::BadAddress
    );
    assert_eq!(
        with(&|r| r.addr = (u64::MAX - 7).into()),
        CmdStatus::BadAddress
    );
}

#[test]
fn reserved_qpns_and_unsupported_fields_of_create_qp_are_refused() {
    let mut d = Driver::new();
    let cq = d.create_cq(6);
    let good = d.qp_request(&cq, &cq);
    let mut with = |change: &dyn Fn(&mut CreateQp)| {
        let mut request = good;
        change(&mut request);
        d.cmd(&request).map_err(|e| e.status)
    };
    for qpn in 0..FIRST_QPN {
        assert_eq!(
            with(&|r| r.qpn = qpn.into()),
            Err(CmdStatus::Invalid),
            "{qpn}"
        );
    }
    assert_eq!(with(&|r| r.port = 1), Err(CmdStatus::Invalid));
    assert_eq!(with(&|r| r.xrcdn = 1.into()), Err(CmdStatus::Invalid));
    assert_eq!(
        with(&|r| r.create_flags = 1.into()),
        Err(CmdStatus::Unsupported)
    );
    for qp_type in [0, 5, 8, 11, 255] {
        assert_eq!(
            with(&|r| r.qp_type = qp_type),
            Err(CmdStatus::Unsupported),
            "{qp_type}"
        );
    }
    let gsi = |r: &mut CreateQp, port| {
        r.qpn = 1.into();
        r.qp_type = QpType::Gsi.to_raw();
        r.slot = 100.into();
        r.port = port;
    };
    assert_eq!(with(&|r| gsi(r, 0)), Err(CmdStatus::Invalid));
    assert_eq!(with(&|r| gsi(r, 2)), Err(CmdStatus::Invalid));
    assert!(with(&|r| gsi(r, 1)).is_ok());
    assert!(with(&|_| ()).is_ok());
}

#[test]
fn unsupported_kinds_of_ports_gids_and_queues_are_refused() {
    let mut d = Driver::new();
    let gid = SetGid {
        valid: 1,
        port: 1,
        gid_type: GID_TYPE_ROCE_V2,
        vlan: NO_VLAN.into(),
        ..Default::default()
    };
    assert_eq!(
        refused(d.cmd(&SetGid { port: 2, ..gid })),
        CmdStatus::Invalid
    );
    assert_eq!(
        refused(d.cmd(&SetGid { gid_type: 1, ..gid })),
        CmdStatus::Unsupported
    );
    d.must(&gid);
    let up = SetPort {
        up: 1,
        mtu: 3,
        ..Default::default()
    };
    assert_eq!(refused(d.cmd(&up)), CmdStatus::Invalid);
    // Each request has one invalid field. Its other fields would change the port.
    for (up, mtu, port) in [(0, 0, 1), (0, 6, 1), (2, 3, 1), (0, 3, 0), (0, 3, 2)] {
        let bad = SetPort {
            up,
            mtu,
            port,
            ..Default::default()
        };
        assert_eq!(refused(d.cmd(&bad)), CmdStatus::Invalid, "{bad:?}");
    }
    let eq = CreateEq {
        eqn: 9.into(),
        log_size: 4,
        log_entry_size: 4,
        ring: flat(d.alloc(4096)),
        ci_addr: d.alloc(4).into(),
        ..Default::default()
    };
    assert_eq!(
        refused(d.cmd(&CreateEq { kind: 1, ..eq })),
        CmdStatus::Unsupported
    );
    let other = CreateEq {
        log_entry_size: 6,
        ..eq
    };
    assert_eq!(refused(d.cmd(&other)), CmdStatus::Invalid);
    d.must(&eq);
    let srq = CreateSrq {
        srqn: 9.into(),
        slot: 100.into(),
        log_size: 4,
        log_stride: 6,
        ring: flat(d.alloc(4096)),
        ..Default::default()
    };
    for bad in [
        CreateSrq {
            cqn: 1.into(),
            ..srq
        },
        CreateSrq {
            xrcdn: 1.into(),
            ..srq
        },
    ] {
        assert_eq!(refused(d.cmd(&bad)), CmdStatus::Invalid);
    }
}

#[test]
fn commands_without_their_feature_are_unsupported() {
    let mut d = Driver::new();
    for opcode in [
        Opcode::QueryPort,
        Opcode::QueryPkey,
        Opcode::ModifyPort,
        Opcode::ProcessMad,
        Opcode::ResumePageFault,
        Opcode::AllocDm,
        Opcode::FreeDm,
    ] {
        let error = d.raw_cmd(opcode.to_raw(), &[0; 64]).unwrap_err();
        assert_eq!(error.status, CmdStatus::Unsupported, "{opcode:?}");
        assert_eq!(error.syndrome, Syndrome::CmdOpcode);
    }
}
