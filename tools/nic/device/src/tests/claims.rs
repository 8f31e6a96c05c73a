// SPDX-License-Identifier: GPL-2.0 OR MIT

//! GIDs and their MAC addresses: the host decides on each entry of the GID table, and packets of a
//! GID have the MAC address of its entry.

use super::port::{emitted, frames};
use super::Pair;
use crate::config::Config;
use crate::mock::{gid, Driver, SendWr};
use crate::objects::port::Gid;
use verbena_abi::cmd::{CmdStatus, QueryDevice, SetGid, GID_TYPE_ROCE_V2, NO_VLAN};
use verbena_abi::cqe::WcStatus;
use verbena_abi::ctx::AddressVector;
use verbena_abi::regs;
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::WqeOpcode;
use verbena_transport::frame;
use verbena_transport::wire::Path;

/// MAC address of another net device of the guest.
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 0x51];

fn asking() -> Driver {
    Driver::with(Config {
        asks_for_gids: true,
        ..Config::default()
    })
}

fn entry(index: u16, last: u8, mac: [u8; 6]) -> SetGid {
    SetGid {
        index: index.into(),
        valid: 1,
        port: 1,
        gid_type: GID_TYPE_ROCE_V2,
        gid: gid([10, 0, 0, last]),
        vlan: NO_VLAN.into(),
        mac,
        ..Default::default()
    }
}

#[test]
fn set_gid_and_later_commands_wait_for_the_host() {
    let mut d = asking();
    d.begin_cmd(0, &entry(3, 51, OTHER));
    d.begin_cmd(1, &QueryDevice::default());
    for _ in 0..3 {
        d.device.run_slice(&d.ram, d.now);
        let (gid, vlan) = (gid([10, 0, 0, 51]), None);
        let mac = OTHER;
        assert_eq!(d.device.next_claim(), Some(Gid { gid, mac, vlan }));
        assert!(!d.is_answered(0) && !d.is_answered(1));
        assert_eq!(d.device.shared.port.gid(3), None);
    }
    d.device.decide_claim(&d.ram, None);
    assert_eq!(d.device.next_claim(), None);
    assert_eq!(d.answer(0), (CmdStatus::Ok, 0));
    assert_eq!(d.device.shared.port.gid(3).map(|own| own.mac), Some(OTHER));
    // A decision without a waiting command has no effect.
    d.device.decide_claim(&d.ram, Some(Syndrome::GidInUse));
    d.device.run_slice(&d.ram, d.now);
    assert!(d.is_answered(1));
    // The host is not asked before an entry is cleared.
    d.begin_cmd(
        0,
        &SetGid {
            valid: 0,
            ..entry(3, 51, OTHER)
        },
    );
    d.device.run_slice(&d.ram, d.now);
    assert_eq!((d.is_answered(0), d.device.next_claim()), (true, None));
}

#[test]
fn a_refused_entry_is_not_set_and_the_syndrome_names_the_rule() {
    let mut d = asking();
    for cause in [
        Syndrome::GidMacNotAllowed,
        Syndrome::GidNotAllowed,
        Syndrome::GidReserved,
        Syndrome::GidInUse,
        Syndrome::GidMacInUse,
    ] {
        d.denies = Some(cause);
        let error = d.cmd(&entry(0, 51, OTHER)).unwrap_err();
        assert_eq!((error.status, error.syndrome), (CmdStatus::Denied, cause));
        // The entry keeps its old GID.
        let old = d.device.shared.port.gid(0).unwrap();
        assert_eq!(old.gid, gid([10, 0, 0, 1]));
    }
    // The host is not asked about an invalid request.
    let wrong = SetGid {
        gid_type: 1,
        ..entry(0, 51, OTHER)
    };
    assert_eq!(d.cmd(&wrong).unwrap_err().status, CmdStatus::Unsupported);
    let error = d.cmd(&entry(256, 51, OTHER)).unwrap_err();
    assert_eq!(error.syndrome, Syndrome::CmdNumber);
    // A driver of a version before 12 does not know the status `Denied`.
    d.regs.write(regs::VERSION_SELECT, 11);
    d.denies = Some(Syndrome::GidInUse);
    assert_eq!(
        d.cmd(&entry(0, 51, OTHER)).unwrap_err().status,
        CmdStatus::Invalid
    );
}

#[test]
fn a_fatal_error_or_a_reset_ends_the_wait_for_the_host() {
    let mut d = asking();
    d.begin_cmd(0, &entry(3, 51, OTHER));
    d.device.run_slice(&d.ram, d.now);
    d.device.fail(&d.ram, Syndrome::EngineFailure);
    d.device.decide_claim(&d.ram, None);
    assert_eq!(d.answer(0).0, CmdStatus::Fatal);
    assert_eq!(d.device.shared.port.gid(3), None);
    let mut d = asking();
    d.begin_cmd(0, &entry(3, 51, OTHER));
    d.device.run_slice(&d.ram, d.now);
    d.device.reset();
    assert_eq!(d.device.next_claim(), None);
    d.device.decide_claim(&d.ram, None);
    assert!(!d.is_answered(0));
}

#[test]
fn a_gid_sends_with_its_own_mac_address_and_receives_at_any_of_the_port() {
    let mut d = Driver::new();
    d.must(&entry(3, 51, OTHER));
    let cq = d.create_cq(6);
    let mut qp = d.create_qp(&cq, &cq);
    let far = AddressVector {
        dmac: [2, 0, 0, 0, 0, 9],
        ..Driver::path(3, 8)
    };
    d.to_init(qp.qpn).unwrap();
    d.to_rtr(qp.qpn, 77, far).unwrap();
    d.to_rts(qp.qpn).unwrap();
    d.post_send(&mut qp, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
    let sent = frame::parse(&frames(&mut d)[0]).unwrap();
    assert_eq!(
        (sent.path.smac, sent.path.sgid, sent.path.dmac),
        (OTHER, gid([10, 0, 0, 51]), far.dmac)
    );
    let wants = |d: &Driver, dmac: [u8; 6], last: u8| {
        let path = Path {
            dmac,
            smac: far.dmac,
            sgid: far.dgid,
            dgid: gid([10, 0, 0, last]),
            ..sent.path
        };
        d.device.wants_frame(&emitted(&path, &sent.packet))
    };
    let net = crate::mock::MAC;
    for mac in [OTHER, net] {
        assert!(wants(&d, mac, 51) && wants(&d, mac, 1));
    }
    let nics = Config::default().mac;
    assert!(!wants(&d, nics, 51) && !wants(&d, far.dmac, 51) && !wants(&d, OTHER, 52));
    // After the entry is cleared, the port no longer has its MAC address.
    d.must(&SetGid {
        valid: 0,
        ..entry(3, 51, OTHER)
    });
    assert!(!wants(&d, OTHER, 51) && !wants(&d, OTHER, 1) && wants(&d, net, 1));
}

#[test]
fn two_net_devices_of_one_guest_exchange_packets() {
    for wire_local in [false, true] {
        let mut p = Pair::on(Driver::with(Config {
            wire_local,
            ..Config::default()
        }));
        p.d.must(&entry(3, 51, OTHER));
        let (mut a, b) = (
            p.d.create_qp(&p.cq_a, &p.cq_a),
            p.d.create_qp(&p.cq_b, &p.cq_b),
        );
        // Each path has the GID of the other net device and the MAC address of its own one, as
        // Linux resolves addresses of the same host.
        let path = |from, last, dmac| AddressVector {
            dgid: gid([10, 0, 0, last]),
            dmac,
            ..Driver::path(from, 0)
        };
        for (one, other, av) in [
            (a.qpn, b.qpn, path(0, 51, crate::mock::MAC)),
            (b.qpn, a.qpn, path(3, 1, OTHER)),
        ] {
            p.d.to_init(one).unwrap();
            p.d.to_rtr(one, other, av).unwrap();
            p.d.to_rts(one).unwrap();
        }
        p.d.post_send(&mut a, &SendWr::new(WqeOpcode::RdmaWrite, 7, &[]));
        p.d.pass(1_000_000);
        let done = p.d.drain(&mut p.cq_a);
        assert_eq!(done, [(7, WcStatus::Success)], "{wire_local}");
        assert_eq!(p.d.device.next_frame(), None);
    }
}
