// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Figures of the port and of queue pairs, as users see them.

use super::*;
use crate::mock::{gid, SendWr};
use crate::observation::counters::Counters;
use verbena_abi::cmd::*;
use verbena_abi::stats::Counter;
use verbena_abi::wqe::WqeOpcode;

#[test]
fn port_figures_show_state_mtu_and_gids() {
    let mut d = Driver::new();
    let before = d.device.port_figures();
    assert!(before.up && before.groups.is_empty());
    d.must(&SetGid {
        index: 255.into(),
        valid: 1,
        vlan: 7.into(),
        mac: [2, 0, 0, 0, 0, 9],
        gid: gid([10, 0, 0, 200]),
        port: 1,
        gid_type: GID_TYPE_ROCE_V2,
        ..Default::default()
    });
    let after = d.device.port_figures();
    assert_eq!(after.gids.len(), before.gids.len() + 1);
    let (index, entry) = after.gids.last().unwrap();
    assert_eq!(
        (*index, entry.vlan, entry.gid),
        (255, Some(7), gid([10, 0, 0, 200]))
    );
    d.must(&SetPort {
        up: 0,
        mtu: 5,
        port: 1,
        ..Default::default()
    });
    let down = d.device.port_figures();
    assert_eq!((down.up, down.mtu), (false, 4096));
}

#[test]
fn only_the_first_members_of_a_group_are_listed() {
    let mut d = Driver::new();
    let cq = d.create_cq(6);
    let group = gid([224, 0, 0, 251]);
    let count = crate::device::figures::GROUP_MEMBERS + 4;
    for _ in 0..count {
        let mut request = d.qp_request(&cq, &cq);
        request.qp_type = QpType::Ud.to_raw();
        let qp = d.create_qp_by(&request).unwrap();
        d.must(&AttachMcast {
            qpn: qp.qpn.into(),
            mgid: group,
            port: 1,
            ..Default::default()
        });
    }
    let groups = d.device.port_figures().groups;
    assert_eq!((groups.len(), groups[0].gid), (1, group));
    assert_eq!(groups[0].members as usize, count);
    assert_eq!(groups[0].first.len(), count - 4);
}

#[test]
fn queue_pair_figures_show_its_counters_and_peer() {
    let mut p = Pair::new();
    let (at, key) = p.d.region(8192, 1);
    let write = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(at, 3000, key)]).to(at, key);
    p.d.post_send(&mut p.a, &write);
    p.d.run();
    let a = p.d.device.qp_figures(p.a.qpn).unwrap();
    assert_eq!((a.dest_qpn, a.is_local), (p.b.qpn, true));
    let (own, peer) = a.gids.unwrap();
    let gids = p.d.device.port_figures().gids;
    assert!([own, peer]
        .iter()
        .all(|x| gids.iter().any(|(_, g)| g.gid == *x)));
    assert_eq!(a.counters[Counter::TxPackets as usize], 3);
    assert_eq!((a.live.in_flight, a.live.round_trip_ns), (0, None));
    assert!(a.live.window > 0);
    let beside: Vec<_> = Counters::beside(&a.transport, &a.congestion).collect();
    assert!(beside.contains(&("completed", 1)), "{beside:?}");
    for name in [
        "probes",
        "kept",
        "sequence_naks_sent",
        "stale_responses",
        "np_cnp_sent",
    ] {
        assert!(beside.contains(&(name, 0)), "{name}");
    }
    for name in ["tx_packets", "rx_packets", "rp_cnp_ignored"] {
        assert!(!beside.iter().any(|(told, _)| *told == name), "{name}");
    }
    assert!(p.d.device.qp_figures(9999).is_none() && p.d.device.qp_figures(u32::MAX).is_none());
}

#[test]
fn queue_pairs_are_listed_in_portions() {
    let p = Pair::new();
    let (mut all, mut next) = (vec![], Some(0));
    let mut turns = 0;
    while let Some(from) = next {
        let (some, on) = p.d.device.all_qp_figures(from, 1);
        assert!(some.len() <= 1);
        all.extend(some.iter().map(|qp| qp.qpn));
        next = on;
        turns += 1;
    }
    assert!(all.contains(&p.a.qpn) && all.contains(&p.b.qpn));
    assert!(turns >= 2);
}

#[test]
fn queue_pairs_do_not_count_what_only_the_port_counts() {
    let mut p = Pair::new();
    let (at, key) = p.d.region(8192, 1);
    let write = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(at, 64, key)]).to(at, key);
    p.d.post_send(&mut p.a, &write);
    p.d.run();
    for qpn in [p.a.qpn, p.b.qpn] {
        let figures = p.d.device.qp_figures(qpn).unwrap();
        for counter in Counter::ALL.iter().filter(|c| Counters::is_ports(**c)) {
            assert_eq!(figures.counters[*counter as usize], 0, "{counter:?}");
        }
    }
}
