// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Devices with an InfiniBand port: commands that the agents of the port answer, and packets by LID
//! between two devices.

use super::srq_ud::{datagram_on, datagram_wqe_by};
use crate::memory::GuestMemory;
use crate::mock::{CqHandle, Driver, QpHandle, SendWr};
use crate::{AgentReply, AgentRequest, Config, InfiniBandPort};
use std::rc::Rc;
use verbena_abi::cmd::*;
use verbena_abi::cqe::{network_type, wc_flags, Cqe, WcStatus};
use verbena_abi::ctx::{AddressVector, AV_GRH};
use verbena_abi::eqe::EventType;
use verbena_abi::wqe::WqeOpcode;

/// `enum ib_port_state`.
const ARMED: u8 = 3;
const ACTIVE: u8 = 4;

/// Bits of PortInfo:CapabilityMask.
const IS_SM: u32 = 1 << 1;
const IS_CM_SUPPORTED: u32 = 1 << 16;
const IS_DEVICE_MANAGEMENT_SUPPORTED: u32 = 1 << 19;
const IS_CLIENT_REREGISTRATION_SUPPORTED: u32 = 1 << 25;

/// Returns the configuration of an active port with two LIDs.
pub(super) fn port(lid: u16, pkeys: &[u16]) -> InfiniBandPort {
    let mut gid = [0; 16];
    gid[15] = lid as u8;
    InfiniBandPort {
        attributes: PortAttr {
            state: ACTIVE,
            max_mtu: 5,
            active_mtu: 5,
            lid: u32::from(lid).into(),
            lmc: 1,
            pkey_tbl_len: (pkeys.len() as u16).into(),
            gid_tbl_len: 1.into(),
            ..PortAttr::default()
        },
        gids: vec![gid],
        pkeys: pkeys.to_vec(),
    }
}

pub(super) fn device(configuration: InfiniBandPort) -> Driver {
    let mut d = Driver::with(Config {
        link_layer: LinkLayer::InfiniBand,
        ..Config::default()
    });
    d.device.configure_port(configuration);
    d
}

/// Returns the path to a LID.
pub(super) fn to_lid(dlid: u16, path_bits: u8) -> AddressVector {
    AddressVector {
        dlid: dlid.into(),
        path_bits,
        port_num: 1,
        ..AddressVector::default()
    }
}

/// Carries the packets of a device to another one. Returns them.
pub(super) fn carry(from: &mut Driver, to: &mut Driver) -> Vec<Rc<Vec<u8>>> {
    from.run();
    let packets: Vec<_> = std::iter::from_fn(|| from.device.next_frame()).collect();
    let all = packets.iter().map(|packet| &packet[..]);
    to.device.receive_frames(&to.ram, all, to.now);
    to.run();
    packets
}

/// Issues a command that the agents answer. Returns the request to them, if there is one, and the
/// status of the command.
fn ask<C: Command>(
    d: &mut Driver,
    request: &C,
    reply: AgentReply,
) -> (Option<AgentRequest>, CmdStatus) {
    d.begin_cmd(0, request);
    d.device.run_slice(&d.ram, d.now);
    let asked = d.device.next_agent_request();
    if asked.is_some() {
        assert!(!d.is_answered(0), "the reply is earlier than the agents'");
        d.device.end_agent_request(&d.ram, reply);
    }
    assert!(d.is_answered(0));
    (asked, d.answer(0).0)
}

fn capabilities(set: u32, clear: u32) -> ModifyPort {
    ModifyPort {
        port: 1,
        set_port_cap_mask: set.into(),
        clr_port_cap_mask: clear.into(),
        ..Default::default()
    }
}

#[test]
fn commands_read_the_configuration_of_the_port() {
    let mut d = device(port(6, &[0xffff, 0x8001]));
    let attributes = d.must(&QueryPort {
        port: 1,
        ..Default::default()
    });
    assert_eq!((attributes.lid.get(), attributes.state), (6, ACTIVE));
    let gid = |index: u16| QueryGid {
        port: 1,
        index: index.into(),
        ..Default::default()
    };
    let pkey = |index: u16| QueryPkey {
        port: 1,
        index: index.into(),
        ..Default::default()
    };
    assert_eq!(d.must(&gid(0)).gid[15], 6);
    assert_eq!(d.must(&pkey(1)).pkey.get(), 0x8001);
    let errors = [
        d.cmd(&gid(1)).unwrap_err(),
        d.cmd(&pkey(2)).unwrap_err(),
        d.cmd(&QueryPort::default()).unwrap_err(),
    ];
    assert_eq!(errors.map(|e| e.status), [CmdStatus::Invalid; 3]);
}

#[test]
fn the_agents_change_capabilities_of_software() {
    let mut d = device(port(6, &[0xffff]));
    let both = IS_SM | IS_DEVICE_MANAGEMENT_SUPPORTED;
    for (set, clear) in [
        (both, 0),
        (0, both),
        (IS_SM, IS_DEVICE_MANAGEMENT_SUPPORTED),
    ] {
        let asked = AgentRequest::SetCapabilities { set, clear };
        let request = capabilities(set | IS_CM_SUPPORTED, clear);
        assert_eq!(
            ask(&mut d, &request, AgentReply::Done),
            (Some(asked), CmdStatus::Ok)
        );
    }
    // Communication management is always supported, so the agents have nothing to do.
    let request = capabilities(0, IS_CM_SUPPORTED);
    assert_eq!(
        ask(&mut d, &request, AgentReply::Done),
        (None, CmdStatus::Ok)
    );
    let request = capabilities(IS_SM, 0);
    let (asked, status) = ask(&mut d, &request, AgentReply::Refused);
    assert_eq!((asked.is_some(), status), (true, CmdStatus::Denied));
}

#[test]
fn capabilities_of_the_device_do_not_change() {
    let mut d = device(port(6, &[0xffff]));
    let unsupported = capabilities(IS_SM | IS_CLIENT_REREGISTRATION_SUPPORTED, 0);
    assert_eq!(
        d.cmd(&unsupported).unwrap_err().status,
        CmdStatus::Unsupported
    );
    let contradiction = capabilities(IS_SM, IS_SM);
    assert_eq!(
        d.cmd(&contradiction).unwrap_err().status,
        CmdStatus::Invalid
    );
}

#[test]
fn a_management_datagram_gets_the_response_of_the_agents() {
    let mut d = device(port(6, &[0xffff]));
    let (request_at, response_at) = (d.alloc(4096), d.alloc(4096));
    d.ram.write(request_at, &[7; MAD_SIZE]).unwrap();
    let process = |flags| ProcessMad {
        port: 1,
        flags,
        in_addr: request_at.into(),
        out_addr: response_at.into(),
        ..Default::default()
    };
    for (flags, checks_m_key) in [(0, true), (1, false)] {
        let response = AgentReply::Response(Box::new([9; MAD_SIZE]));
        let asked = AgentRequest::Mad {
            mad: Box::new([7; MAD_SIZE]),
            checks_m_key,
        };
        assert_eq!(
            ask(&mut d, &process(flags), response),
            (Some(asked), CmdStatus::Ok)
        );
        assert_eq!(d.bytes(response_at, MAD_SIZE), [9; MAD_SIZE]);
    }
}

#[test]
fn a_management_datagram_without_memory_is_refused_before_the_agents_see_it() {
    let mut d = device(port(6, &[0xffff]));
    let at = d.alloc(4096);
    for (in_addr, out_addr) in [(u64::MAX - 8, at), (at, u64::MAX - 8)] {
        let request = ProcessMad {
            port: 1,
            in_addr: in_addr.into(),
            out_addr: out_addr.into(),
            ..Default::default()
        };
        let (asked, status) = ask(&mut d, &request, AgentReply::Consumed);
        assert_eq!((asked, status), (None, CmdStatus::BadAddress));
    }
}

#[test]
fn a_change_of_the_port_reaches_the_event_queue() {
    let mut d = device(port(6, &[0xffff]));
    let events = [EventType::LidChange, EventType::PkeyChange];
    d.device.report_port_events(&d.ram, &events);
    let found: Vec<_> = d.events(0).iter().map(|event| event.kind).collect();
    assert_eq!(found, events);
}

/// Returns two devices with LIDs 2 and 8, and an RC queue pair of each. The first has a path to LID
/// 9, which is path bit 1 of the second device, and the second to `peer_lid`.
pub(super) fn connected(peer_lid: u16) -> ([Driver; 2], [QpHandle; 2], [CqHandle; 2]) {
    let mut devices = [2, 8].map(|lid| device(port(lid, &[0xffff])));
    let cqs = [0, 1].map(|n| devices[n].create_cq(6));
    let qps = [0, 1].map(|n| devices[n].create_qp(&cqs[n], &cqs[n]));
    for (n, av) in [(0, to_lid(9, 0)), (1, to_lid(peer_lid, 1))] {
        devices[n].to_init(qps[n].qpn).unwrap();
        devices[n].to_rtr(qps[n].qpn, qps[1 - n].qpn, av).unwrap();
        devices[n].to_rts(qps[n].qpn).unwrap();
    }
    (devices, qps, cqs)
}

#[test]
fn connected_queue_pairs_exchange_packets_by_lid() {
    let ([mut a, mut b], [mut x, _], [mut cq, _]) = connected(2);
    let (from, key) = a.region(4096, 1);
    let (to, rkey) = b.region(4096, 2);
    let wr = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(from, 100, key)]).to(to, rkey);
    a.post_send(&mut x, &wr);
    let packets = carry(&mut a, &mut b);
    assert_eq!(packets.len(), 1);
    // LRH: DLID in bytes 2 and 3, SLID in bytes 6 and 7.
    assert_eq!([&packets[0][2..4], &packets[0][6..8]], [[0, 9], [0, 2]]);
    assert_eq!(b.bytes(to, 100), a.bytes(from, 100));
    carry(&mut b, &mut a);
    assert_eq!(a.drain(&mut cq), [(1, WcStatus::Success)]);
}

#[test]
fn packets_from_another_lid_than_the_peers_are_dropped() {
    let ([mut a, mut b], [mut x, _], _) = connected(4);
    let (to, rkey) = b.region(4096, 2);
    let before = b.bytes(to, 8);
    let (from, key) = a.region(4096, 1);
    let wr = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(from, 8, key)]).to(to, rkey);
    a.post_send(&mut x, &wr);
    carry(&mut a, &mut b);
    assert_eq!(b.bytes(to, 8), before);
}

#[test]
fn a_port_that_is_not_active_sends_no_data() {
    let ([mut a, mut b], [mut x, _], _) = connected(2);
    let mut armed = port(2, &[0xffff]);
    armed.attributes.state = ARMED;
    a.device.configure_port(armed);
    a.post_send(&mut x, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
    assert_eq!(carry(&mut a, &mut b).len(), 0);
    a.device.configure_port(port(2, &[0xffff]));
    a.pass(100_000_000);
    assert_ne!(carry(&mut a, &mut b).len(), 0, "the retransmission leaves");
}

/// Sends 100 bytes as a datagram from LID 2 to a queue pair at LID 8, with these P_Keys at both
/// ports. Returns the CQE of the receive, its flags, and the 40 bytes before the data. None if
/// nothing arrives.
fn send_datagram(path_bits: u8, pkeys: [u16; 2]) -> Option<(Cqe, u8, Vec<u8>)> {
    let mut a = device(port(2, &pkeys[..1]));
    let mut b = device(port(8, &pkeys[1..]));
    let (cq_a, mut cq_b) = (a.create_cq(6), b.create_cq(6));
    let mut x = datagram_on(&mut a, &cq_a);
    let mut y = datagram_on(&mut b, &cq_b);
    let (to, key) = b.region(4096, 0);
    b.post_recv(&mut y, 5, &[(to, 200, key)]);
    let (from, key) = a.region(4096, 1);
    let av = AddressVector {
        dgid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8],
        dest_qpn: y.qpn.into(),
        qkey: 0x1234.into(),
        pdn: 7.into(),
        ..to_lid(8, path_bits)
    };
    let wr = SendWr::new(WqeOpcode::Send, 6, &[(from, 100, key)]);
    a.post_raw(&mut x, &datagram_wqe_by(&wr, av));
    carry(&mut a, &mut b);
    let done = b.poll(&mut cq_b)?;
    assert_eq!(done.status(), WcStatus::Success);
    assert_eq!(b.bytes(to + 40, 100), a.bytes(from, 100));
    Some((done.cqe, done.tail.wc_flags, b.bytes(to, 40)))
}

#[test]
fn a_datagram_without_a_grh_leaves_room_for_one() {
    let (cqe, flags, _) = send_datagram(1, [0xffff; 2]).unwrap();
    assert_eq!((cqe.byte_len.get(), flags & wc_flags::GRH), (140, 0));
    assert_eq!((cqe.slid.get(), cqe.dlid_path_bits), (3, 0));
    assert_eq!(cqe.network_type, network_type::INFINIBAND);
}

#[test]
fn a_datagram_with_a_grh_delivers_it() {
    let (cqe, flags, grh) = send_datagram(AV_GRH, [0xffff; 2]).unwrap();
    assert_eq!(cqe.byte_len.get(), 140);
    assert_ne!(flags & wc_flags::GRH, 0);
    // The last bytes of the source and the destination GID.
    assert_eq!([grh[23], grh[39]], [2, 8]);
}

#[test]
fn datagrams_of_another_partition_do_not_arrive() {
    let arrives = [
        [0xffff, 0xffff],
        [0xffff, 0x7fff],
        [0x7fff, 0xffff],
        [0x7fff, 0x7fff],
        [0x8001, 0xffff],
    ]
    .map(|pkeys| send_datagram(0, pkeys).is_some());
    assert_eq!(arrives, [true, true, true, false, false]);
}
