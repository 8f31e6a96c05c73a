// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Properties of every header, tested with random values.

use super::*;
use crate::headers::{Aeth, AethSyndrome, NakCode, Reth};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};
use std::vec;

pub(crate) fn config(cases: u32) -> Config {
    Config {
        cases,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(0x1b7a),
        ..Config::default()
    }
}

pub(crate) const QPN: core::ops::RangeInclusive<u32> = 0..=0xff_ffff;

prop_compose! {
    fn ethernets()(destination: [u8; 6], source: [u8; 6], ether_type: u16) -> ethernet::Repr {
        ethernet::Repr { destination, source, ether_type }
    }
}
prop_compose! {
    fn vlans()(id in 0u16..0x1000, priority in 0u8..8, drop_eligible: bool, ether_type: u16) -> vlan::Repr {
        vlan::Repr { id, priority, drop_eligible, ether_type }
    }
}
prop_compose! {
    fn ipv4s()(tos: u8, ttl: u8, source: [u8; 4], destination: [u8; 4], payload_len in 0u16..64) -> ipv4::Repr {
        ipv4::Repr { tos, ttl, source, destination, payload_len }
    }
}
prop_compose! {
    fn ipv6s()(
        traffic_class: u8,
        flow_label in 0u32..0x10_0000,
        hop_limit: u8,
        source: [u8; 16],
        destination: [u8; 16],
        payload_len in 0u16..64,
    ) -> ipv6::Repr {
        ipv6::Repr { traffic_class, flow_label, hop_limit, source, destination, payload_len }
    }
}
fn grhs() -> impl Strategy<Value = grh::Repr> {
    ipv6s().prop_map(grh::Repr)
}
prop_compose! {
    fn lrhs()(
        vl in 0u8..16,
        sl in 0u8..16,
        next_header in prop_oneof![Just(lrh::NextHeader::Bth), Just(lrh::NextHeader::Grh)],
        dlid: u16,
        packet_length in 2u16..17,
        slid: u16,
    ) -> lrh::Repr {
        lrh::Repr { vl, sl, next_header, dlid, packet_length, slid }
    }
}
prop_compose! {
    fn udps()(source: u16, destination: u16, payload_len in 0u16..64) -> udp::Repr {
        udp::Repr { source, destination, payload_len }
    }
}
prop_compose! {
    pub(crate) fn bths()(
        opcode: u8,
        solicited: bool,
        pad in 0u8..4,
        pkey: u16,
        dest_qpn in QPN,
        ack_req: bool,
        psn in QPN,
    ) -> bth::Repr {
        bth::Repr { opcode, solicited, pad, pkey, dest_qpn, ack_req, psn }
    }
}
prop_compose! {
    pub(crate) fn deths()(qkey: u32, src_qpn in QPN) -> deth::Repr {
        deth::Repr { qkey, src_qpn }
    }
}
prop_compose! {
    pub(crate) fn feths()(placement in 0u8..16, level in 0u8..4) -> feth::Repr {
        feth::Repr { placement, level }
    }
}
prop_compose! {
    pub(crate) fn reths()(addr: u64, rkey: u32, length: u32) -> Reth {
        Reth { addr, rkey, length }
    }
}
prop_compose! {
    pub(crate) fn atomic_eths()(addr: u64, rkey: u32, swap_add: u64, compare: u64) -> atomic_eth::Repr {
        atomic_eth::Repr { addr, rkey, swap_add, compare }
    }
}
fn syndromes() -> impl Strategy<Value = AethSyndrome> {
    prop_oneof![
        (0u8..32).prop_map(|credits| AethSyndrome::Ack { credits }),
        (0u8..32).prop_map(|timer| AethSyndrome::Rnr { timer }),
        Just(AethSyndrome::Nak(NakCode::Sequence)),
        Just(AethSyndrome::Nak(NakCode::InvalidRequest)),
        Just(AethSyndrome::Nak(NakCode::RemoteAccess)),
        Just(AethSyndrome::Nak(NakCode::RemoteOperational)),
        Just(AethSyndrome::Nak(NakCode::InvalidRd)),
    ]
}
prop_compose! {
    pub(crate) fn aeths()(syndrome in syndromes(), msn in QPN) -> Aeth {
        Aeth { syndrome, msn }
    }
}

/// An emitted header is parsed to the same fields, whatever the buffer contained before. Fewer
/// bytes than a header are refused.
macro_rules! round_trips {
    ($($test:ident: $header:ident from $strategy:expr;)*) => {
        proptest! {
            #![proptest_config(config(128))]
            $(#[test]
            fn $test(repr in $strategy, garbage: u8) {
                let mut bytes = vec![garbage; $header::LEN + 64];
                repr.emit(&mut bytes);
                prop_assert_eq!($header::View::new(&bytes).and_then($header::Repr::parse), Ok(repr));
                for length in 0..$header::LEN {
                    prop_assert_eq!($header::View::new(&bytes[..length]).unwrap_err(), Malformed::Truncated);
                    let mut short = vec![garbage; length];
                    repr.emit(&mut short);
                }
            })*
        }
    };
}

round_trips! {
    ethernet_round_trip: ethernet from ethernets();
    vlan_round_trip: vlan from vlans();
    ipv4_round_trip: ipv4 from ipv4s();
    ipv6_round_trip: ipv6 from ipv6s();
    lrh_round_trip: lrh from lrhs();
    grh_round_trip: grh from grhs();
    udp_round_trip: udp from udps();
    bth_round_trip: bth from bths();
    deth_round_trip: deth from deths();
    feth_round_trip: feth from feths();
    reth_round_trip: reth from reths();
    atomic_eth_round_trip: atomic_eth from atomic_eths();
    aeth_round_trip: aeth from aeths();
    atomic_ack_eth_round_trip: atomic_ack_eth from any::<u64>().prop_map(|original| atomic_ack_eth::Repr { original });
    imm_dt_round_trip: imm_dt from any::<[u8; 4]>().prop_map(|data| imm_dt::Repr { data });
    ieth_round_trip: ieth from any::<u32>().prop_map(|rkey| ieth::Repr { rkey });
}
