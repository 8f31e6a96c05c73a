// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Violations of P_Keys and Q_Keys: their counters, and traps 257 and 258.

use super::*;
use crate::mad::notice::Notice;

/// Packets that queue pair 0x1234 at guest 4 has dropped.
fn violations(kind: ViolatedKey, count: u64, key: u32) -> KeyViolations {
    KeyViolations {
        kind,
        count,
        last: KeyViolation {
            key,
            source_lid: 0x0408,
            destination_lid: 0x0807,
            sl: 9,
            source_qp: 0x56789a,
            destination_qp: 0x1234,
            gids: None,
        },
    }
}

/// Returns the P_Key and the Q_Key violations of guest 4's port.
fn counted(lab: &Lab) -> (u16, u16) {
    let info = lab.fabric.port(GUEST_4).unwrap().info;
    (
        info.get(PortInfo::P_KEY_VIOLATIONS),
        info.get(PortInfo::Q_KEY_VIOLATIONS),
    )
}

/// Returns the notices of the traps that the subnet manager has received.
fn notices(lab: &mut Lab) -> Vec<Notice> {
    let all = lab.datagrams().into_iter();
    all.map(|(to, datagram)| {
        assert_eq!((to, datagram.mad.get(Mad::METHOD)), (GUEST_1, method::TRAP));
        Notice(datagram.mad.data())
    })
    .collect()
}

#[test]
fn traps_257_and_258_to_the_byte() {
    let mut lab = Lab::active();
    for (kind, trap, key, gids) in [
        (ViolatedKey::PKey, 1, 0x8001, None),
        (ViolatedKey::QKey, 2, 0x8765_4321, Some([[7; 16], [8; 16]])),
    ] {
        let mut violations = violations(kind, 3, key);
        violations.last.gids = gids;
        lab.fabric
            .report_key_violations(GUEST_4, &violations, lab.now);
        let mut expected = [0; SMP_DATA_LEN];
        // Generic, of the type security, from an adapter; the LID of the issuer.
        expected[..8].copy_from_slice(&[0x82, 0, 0, 1, 1, trap, 0, H4 as u8 + 1]);
        expected[12..16].copy_from_slice(&[4, 8, 8, 7]);
        expected[16..20].copy_from_slice(&key.to_be_bytes());
        expected[20..28].copy_from_slice(&[0x90, 0x56, 0x78, 0x9a, 0, 0, 0x12, 0x34]);
        for (gid, place) in gids.iter().flatten().zip([28, 44]) {
            expected[place..place + 16].copy_from_slice(gid);
        }
        assert_eq!(notices(&mut lab), [Notice(expected)]);
    }
    assert_eq!(counted(&lab), (3, 3));
}

#[test]
fn violations_are_counted_up_to_the_largest_number_until_the_manager_clears_them() {
    let mut lab = Lab::active();
    let report = |lab: &mut Lab, count| {
        let violations = violations(ViolatedKey::PKey, count, 0x8001);
        lab.fabric
            .report_key_violations(GUEST_4, &violations, lab.now);
        counted(lab)
    };
    assert_eq!(report(&mut lab, 0xfffe), (0xfffe, 0));
    assert_eq!(report(&mut lab, 2), (0xffff, 0));
    assert_eq!(report(&mut lab, 1 << 40), (0xffff, 0));
    let cleared = lab
        .port_info(H4, 1)
        .with(PortInfo::PORT_STATE, 0)
        .with(PortInfo::PORT_PHYSICAL_STATE, 0)
        .with(PortInfo::P_KEY_VIOLATIONS, 0);
    lab.set(&path_to(H4), attribute_id::PORT_INFO, 1, cleared.0);
    assert_eq!(counted(&lab), (0, 0));
    assert_eq!(report(&mut lab, 1 << 40), (0xffff, 0));
}

#[test]
fn a_later_violation_replaces_the_trap_and_a_repressed_trap_is_not_sent_again() {
    let mut lab = Lab::active();
    for key in [0x8001, 0x8002, 0x8003] {
        let violations = violations(ViolatedKey::PKey, 1, key);
        lab.fabric
            .report_key_violations(GUEST_4, &violations, lab.now);
    }
    let keys = |lab: &mut Lab| -> Vec<u32> {
        let all = notices(lab).into_iter();
        all.map(|notice| notice.get(Notice::KEY)).collect()
    };
    assert_eq!(keys(&mut lab), [0x8001]);
    lab.now = lab.fabric.next_deadline().unwrap();
    lab.fabric.poll(lab.now);
    let datagrams = lab.datagrams();
    let [(GUEST_1, trap)] = &datagrams[..] else {
        panic!("{datagrams:?}")
    };
    assert_eq!(Notice(trap.mad.data()).get(Notice::KEY), 0x8003);
    lab.repress(trap);
    assert_eq!(lab.fabric.next_deadline(), None);
    assert_eq!(counted(&lab), (3, 0));
}

#[test]
fn violations_before_the_port_has_a_lid_are_only_counted() {
    let mut lab = Lab::new();
    let violations = violations(ViolatedKey::QKey, 2, 5);
    lab.fabric
        .report_key_violations(GUEST_4, &violations, lab.now);
    assert_eq!((counted(&lab), lab.fabric.next_deadline()), ((0, 2), None));
}

#[test]
fn the_agent_at_qp1_of_an_adapter_without_a_guest_sends_the_traps_too() {
    let mut lab = Lab::active();
    let mad = Mad::smp(
        class::PERFORMANCE,
        method::GET,
        attribute_id::CLASS_PORT_INFO,
        0,
    );
    let datagram = Datagram {
        source_qp: 1,
        destination_qp: 1,
        q_key: 0x8001_0001,
        ..Datagram::smp(H1 as u16 + 1, H5 as u16 + 1, mad)
    };
    lab.fabric.send(GUEST_1, datagram, lab.now);
    let [notice] = notices(&mut lab)[..] else {
        panic!("no trap")
    };
    let fields = [Notice::LIDADDR1, Notice::LIDADDR2, Notice::ISSUER_LID];
    let lids = fields.map(|field| usize::from(notice.get(field)) - 1);
    assert_eq!(lids, [H1, H5, H5]);
    assert_eq!(notice.get(Notice::TRAP_NUMBER), 258);
    assert_eq!(notice.get(Notice::KEY), 0x8001_0001);
}
