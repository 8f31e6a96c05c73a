// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Random and hostile datagrams: they neither panic nor loop, and without the right M_Key they change
//! nothing that a subnet manager has configured.

use super::*;
use crate::mad::performance::PortCountersExtended;
use proptest::prelude::*;

/// The M_Key of all ports in these tests.
const KEY: u64 = 0x1122_3344_5566_7788;

/// Returns true if the subnet has the configuration of `before`: all but counters, violations,
/// traps and M_Key leases is equal.
fn is_configured_as(fabric: &Fabric, before: &[Node]) -> bool {
    let mut nodes = fabric.nodes.iter().zip(before);
    fabric.nodes.len() == before.len() && nodes.all(|(is, was)| is.has_configuration_of(was))
}

/// Returns the number of packets that all ports have sent.
fn sent_packets(fabric: &Fabric) -> u64 {
    let nodes = fabric.nodes.iter();
    let ports = nodes.flat_map(|node| node.port_numbers().filter_map(|port| node.port(port)));
    let field = PortCountersExtended::PORT_XMIT_PKTS;
    ports.map(|port| port.counters.extended().get(field)).sum()
}

/// An active subnet whose ports have an M_Key with protect bits 2.
fn keyed() -> Lab {
    let mut lab = Lab::active();
    for node in 0..lab.fabric.nodes.len() {
        let port = u8::from(node >= H1);
        let info = &mut lab.fabric.nodes[node].port_mut(port).unwrap().info;
        info.set(PortInfo::M_KEY, KEY);
        info.set(PortInfo::M_KEY_PROTECT_BITS, 2);
    }
    lab
}

/// A field that is most often one of some values that mean something.
fn often<T: std::fmt::Debug + Clone + Arbitrary + 'static>(
    values: &'static [T],
) -> impl Strategy<Value = T> {
    prop_oneof![4 => proptest::sample::select(values), 1 => any::<T>()]
}

prop_compose! {
    /// A MAD with plausible headers, and random data and paths.
    fn any_mad()(
        bytes in proptest::collection::vec(any::<u8>(), 256),
        path in proptest::collection::vec(0u8..6, 128),
        class in often(&[1u8, 0x81, 0x81, 4]),
        method in often(&[1u8, 2, 2, 5, 7, 0x81]),
        attribute in often(&[1u16, 2, 0x10, 0x11, 0x12, 0x14, 0x15, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1b, 0x1d, 0x20]),
        modifier in often(&[0u32, 1, 2, 3, 4, 0x10000, 0x30001, 0x101, 0x8000_0001]),
        pointer in often(&[0u8, 1, 1, 1, 2, 3, 64]),
        count in often(&[0u8, 1, 2, 3, 4, 5, 63]),
        lids in (often(&[0xffffu16, 0xffff, 4, 1]), often(&[0xffffu16, 0xffff, 2, 8])),
        status in often(&[0u16, 0x8000]),
        version in often(&[1u8]),
    ) -> Mad {
        let mut mad = Mad(bytes.try_into().unwrap());
        mad.0[128..].copy_from_slice(&path);
        mad.with(Mad::BASE_VERSION, 1)
            .with(Mad::CLASS, class)
            .with(Mad::CLASS_VERSION, version)
            .with(Mad::METHOD, method)
            .with(Mad::STATUS, status)
            .with(Mad::HOP_POINTER, pointer)
            .with(Mad::HOP_COUNT, count)
            .with(Mad::ATTRIBUTE_ID, attribute)
            .with(Mad::ATTRIBUTE_MODIFIER, modifier)
            .with(Mad::DR_SLID, lids.0)
            .with(Mad::DR_DLID, lids.1)
    }
}

/// A datagram of guest 1.
fn any_datagram() -> impl Strategy<Value = Datagram> {
    let lid = often(&[0xffffu16, 0xffff, 1, 2, 3, 4, 5, 7, 8, 9, 10, 0xc003]);
    (any_mad(), lid, any::<bool>(), 0u8..16).prop_map(|(mad, lid, is_grh, sl)| {
        let qp = u32::from(!mad.is_smp());
        let source = if lid == PERMISSIVE_LID && qp == 0 {
            PERMISSIVE_LID
        } else {
            H1 as u16 + 1
        };
        Datagram {
            sl,
            source_qp: qp,
            destination_qp: qp,
            q_key: 0x8001_0000,
            grh: is_grh.then_some([7; 40]),
            ..Datagram::smp(source, lid, mad)
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn without_the_m_key_nothing_changes(datagrams in proptest::collection::vec(any_datagram(), 1..20)) {
        let mut lab = keyed();
        let before = lab.fabric.nodes.clone();
        for mut datagram in datagrams {
            if datagram.mad.get(Mad::M_KEY) == KEY {
                datagram.mad.set(Mad::M_KEY, 0);
            }
            lab.fabric.send(GUEST_1, datagram, lab.now);
            // One answer, and traps of the nodes that saw a wrong M_Key.
            prop_assert!(lab.fabric.outputs.len() <= 1 + lab.fabric.nodes.len());
            lab.fabric.outputs.clear();
        }
        prop_assert!(is_configured_as(&lab.fabric, &before));
    }

    #[test]
    fn without_permission_nothing_changes(
        steps in proptest::collection::vec((any_datagram(), any::<bool>(), any::<bool>()), 1..20),
    ) {
        let mut lab = Lab::active();
        lab.fabric.allow_management(H1, false);
        let before = lab.fabric.nodes.clone();
        for (datagram, is_sent, checks_m_key) in steps {
            if is_sent {
                lab.fabric.send(GUEST_1, datagram, lab.now);
            } else {
                lab.fabric.process_mad(GUEST_1, &datagram.mad, checks_m_key, lab.now);
            }
            prop_assert!(is_configured_as(&lab.fabric, &before));
            for (_, heard) in lab.datagrams() {
                prop_assert!(!heard.mad.is_smp());
            }
        }
    }

    #[test]
    fn tables_of_any_content_make_no_endless_way(
        linear in proptest::collection::vec(0u8..6, 30),
        groups in proptest::collection::vec(0u16..32, 3),
    ) {
        let mut lab = Lab::active();
        let lids = 1u16..=10;
        for (switch, ports) in linear.chunks_exact(10).enumerate() {
            let tables = lab.fabric.nodes[switch].tables.as_mut().unwrap();
            tables.linear_block(0).unwrap()[1..11].copy_from_slice(ports);
            let mut data = [0; SMP_DATA_LEN];
            data[6..8].copy_from_slice(&groups[switch].to_be_bytes());
            prop_assert!(tables.set_multicast_block(0, &data));
        }
        for lid in lids {
            let before = sent_packets(&lab.fabric);
            prop_assert!(lab.forward(lid, 0, 0xffff).len() <= 1);
            prop_assert!(sent_packets(&lab.fabric) - before <= u64::from(HOPS));
            lab.ask_by_lid(lid, method::GET, attribute_id::NODE_INFO);
            // The request and its response.
            prop_assert!(sent_packets(&lab.fabric) - before <= 3 * u64::from(HOPS));
        }
        let before = sent_packets(&lab.fabric);
        let mut reached = lab.forward(GROUP, 0, 0xffff);
        // Nine links, each with two directions.
        prop_assert!(sent_packets(&lab.fabric) - before <= 18);
        let copies = reached.len();
        reached.sort_unstable();
        reached.dedup();
        prop_assert_eq!(reached.len(), copies);
    }

    #[test]
    fn with_the_m_key_nothing_panics_or_loops(
        datagrams in proptest::collection::vec((any_datagram(), 0u64..1 << 40), 1..40), lid: u16, sl in 0u8..16,
    ) {
        let mut lab = Lab::active();
        for (mut datagram, time) in datagrams {
            datagram.mad.set(Mad::M_KEY, 0);
            lab.now += Time::from_nanos(time);
            lab.fabric.send(GUEST_1, datagram.clone(), lab.now);
            lab.fabric.process_mad(GUEST_4, &datagram.mad, true, lab.now);
            prop_assert!(lab.fabric.in_flight.is_empty());
            lab.forward(lid, sl, 0xffff);
            lab.forward(GROUP, sl, 0xffff);
        }
        for node in &lab.fabric.nodes {
            prop_assert!(node.traps.iter().all(|traps| traps.len() <= 5));
        }
        lab.fabric.poll(Time::MAX);
    }
}

#[test]
fn a_wrong_m_key_is_counted_and_reported() {
    let mut lab = keyed();
    let mad = Mad::smp(
        class::SUBNET_DIRECTED_ROUTE,
        method::SET,
        attribute_id::PORT_INFO,
        1,
    )
    .with(Mad::M_KEY, 9);
    assert_eq!(lab.ask_by_path(&path_to(H4), mad), None);
    let datagrams = lab.datagrams();
    let [(GUEST_1, trap)] = &datagrams[..] else {
        panic!("{datagrams:?}")
    };
    let notice = Notice(trap.mad.data());
    assert_eq!(
        (notice.get(Notice::TRAP_NUMBER), notice.get(Notice::M_KEY)),
        (256, 9)
    );
    assert_eq!(
        (notice.get(Notice::HOP_COUNT), notice.0[34..37].to_vec()),
        (3, vec![1, 4, 1])
    );
    assert_eq!(
        lab.fabric.nodes[H4]
            .port(1)
            .unwrap()
            .info
            .get(PortInfo::M_KEY_VIOLATIONS),
        1
    );
    let mad = mad.with(Mad::METHOD, method::GET).with(Mad::M_KEY, KEY);
    assert!(lab.ask_by_path(&path_to(H4), mad).is_some());
}
