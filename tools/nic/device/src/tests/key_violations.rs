// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Violations of P_Keys and Q_Keys, as a device reports them to the agents of its port.

use super::infiniband::{carry, connected, device, port, to_lid};
use super::srq_ud::{datagram_on, datagram_wqe_by};
use super::Pair;
use crate::mock::{Driver, QpHandle, SendWr};
use crate::KeyViolations;
use verbena_abi::ctx::{AddressVector, AV_GRH};
use verbena_abi::stats::Counter;
use verbena_abi::wqe::WqeOpcode;
use verbena_transport::host::ViolatedKey;
use verbena_transport::wire::LocalRoute;

/// Q_Key of the queue pairs.
const QKEY: u32 = 0x1234;

/// Two devices with LIDs 2 and 8 and these P_Keys, and a UD queue pair of each.
struct Datagrams {
    devices: [Driver; 2],
    qps: [QpHandle; 2],
}

impl Datagrams {
    fn new(pkeys: [u16; 2]) -> Self {
        let mut devices =
            [(2, pkeys[0]), (8, pkeys[1])].map(|(lid, pkey)| device(port(lid, &[pkey])));
        let qps = [0, 1].map(|n| {
            let cq = devices[n].create_cq(6);
            datagram_on(&mut devices[n], &cq)
        });
        Self { devices, qps }
    }

    /// Sends a datagram from the first device to the second.
    fn send(&mut self, path_bits: u8, qkey: u32) {
        let [a, b] = &mut self.devices;
        let [from, to] = &mut self.qps;
        let av = AddressVector {
            dgid: [9; 16],
            dest_qpn: to.qpn.into(),
            qkey: qkey.into(),
            pdn: 7.into(),
            ..to_lid(8, path_bits)
        };
        let wr = SendWr::new(WqeOpcode::Send, 6, &[]);
        a.post_raw(from, &datagram_wqe_by(&wr, av));
        carry(a, b);
    }

    /// Takes the violations that the second device reports.
    fn take(&mut self) -> Vec<KeyViolations> {
        self.devices[1].device.take_key_violations().collect()
    }
}

/// Returns the route of a packet between the LIDs.
fn route(slid: u16, dlid: u16, has_grh: bool) -> Option<LocalRoute> {
    Some(LocalRoute {
        slid,
        dlid,
        has_grh,
    })
}

#[test]
fn a_datagram_of_another_partition_is_a_violation_with_its_addresses() {
    let mut all = Datagrams::new([0x8001, 0xffff]);
    all.send(0, QKEY);
    let found = all.take();
    let [KeyViolations {
        kind: ViolatedKey::PKey,
        count: 1,
        last,
    }] = found[..]
    else {
        panic!("{found:?}")
    };
    let route = route(2, 8, false);
    assert_eq!((last.key, last.path.local_route), (0x8001, route));
    let qpns = [0, 1].map(|n| all.qps[n].qpn);
    assert_eq!([last.source_qpn, last.dest_qpn], qpns);
    assert_eq!(all.take(), []);
}

#[test]
fn violations_of_each_kind_are_counted_until_they_are_taken() {
    let mut all = Datagrams::new([0xffff, 0xffff]);
    all.send(0, QKEY + 1);
    all.send(0, QKEY);
    all.send(AV_GRH | 1, QKEY + 2);
    all.devices[0].device.configure_port(port(2, &[0x8001]));
    all.send(0, QKEY);
    let found = all.take();
    let counts: Vec<_> = found.iter().map(|all| (all.kind, all.count)).collect();
    assert_eq!(counts, [(ViolatedKey::PKey, 1), (ViolatedKey::QKey, 2)]);
    let last = found[1].last;
    assert_eq!(
        (last.key, last.path.local_route),
        (QKEY + 2, route(3, 8, true))
    );
    // The only entry of the GID table of the sender.
    let mut sgid = [0; 16];
    sgid[15] = 2;
    assert_eq!((last.path.sgid, last.path.dgid), (sgid, [9; 16]));
}

#[test]
fn a_packet_of_a_connection_has_the_reverse_of_the_receivers_path() {
    let ([mut a, mut b], [mut x, y], _) = connected(2);
    a.device.configure_port(port(2, &[0x8001]));
    a.post_send(&mut x, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
    carry(&mut a, &mut b);
    let found: Vec<_> = b.device.take_key_violations().collect();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].kind, found[0].count), (ViolatedKey::PKey, 1));
    let last = found[0].last;
    assert_eq!(
        (last.key, last.path.local_route),
        (0x8001, route(2, 9, false))
    );
    assert_eq!((last.source_qpn, last.dest_qpn), (0, y.qpn));
}

#[test]
fn a_queue_pair_follows_the_pkey_of_its_entry() {
    let mut all = Datagrams::new([0xffff, 0xffff]);
    let counts = [0xffff, 0x8001, 0x8001, 0, 0xffff].map(|pkey| {
        all.devices[1].device.configure_port(port(8, &[pkey]));
        all.send(0, QKEY);
        all.take().len()
    });
    assert_eq!(counts, [0, 1, 1, 1, 0]);
}

#[test]
fn a_roce_port_reports_no_violations() {
    let mut p = Pair::new();
    let (mut from, to) = {
        let cq = p.cq_a.clone();
        (datagram_on(&mut p.d, &cq), datagram_on(&mut p.d, &cq))
    };
    let av = AddressVector {
        dest_qpn: to.qpn.into(),
        qkey: 0x9999.into(),
        pdn: 7.into(),
        ..Driver::path(0, 1)
    };
    let wr = SendWr::new(WqeOpcode::Send, 6, &[]);
    p.d.post_raw(&mut from, &datagram_wqe_by(&wr, av));
    p.d.run();
    let room = Counter::RxDropsUd as u32 + 1;
    let counters = p.d.query_stats(Some(to.qpn), room).unwrap();
    assert_eq!(counters[Counter::RxDropsUd as usize], 1);
    assert_eq!(p.d.device.take_key_violations().count(), 0);
}
