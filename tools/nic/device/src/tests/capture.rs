// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A tap on the port sees every frame once, as the frame would be on a wire.

use super::*;
use crate::capture::{capture_tap, CaptureDirection, CaptureReader, CaptureTap, CapturedFrame};
use crate::memory::GuestMemory;
use crate::mock::{gid, SendWr};
use crate::Config;
use verbena_abi::doorbell::ArmMode;
use verbena_abi::wqe::WqeOpcode;
use verbena_faults::{Action, Match, RuleHook};
use verbena_transport::frame;
use verbena_transport::packet::{PacketKind, Payload};

const FRAMES: usize = 1000;
const BYTES: usize = 1 << 20;

fn watched(config: Config) -> (Pair, CaptureReader) {
    let mut p = Pair::on(Driver::with(config));
    let (to, watch) = capture_tap(FRAMES, BYTES);
    assert!(p.d.device.attach_capture(to));
    (p, watch)
}

fn all(watch: &CaptureReader) -> Vec<CapturedFrame> {
    std::iter::from_fn(|| watch.try_next()).collect()
}

/// Executes a WRITE of 3000 bytes: three packets and an acknowledgement.
fn write(p: &mut Pair) {
    let (at, key) = p.d.region(8192, 1);
    let pattern: Vec<u8> = (0..3000u32).map(|n| n as u8).collect();
    p.d.ram.write(at, &pattern).unwrap();
    let write = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(at, 3000, key)]);
    p.d.post_send(&mut p.a, &write.to(at + 4096, key));
    p.d.run();
}

#[test]
fn packets_by_reference_are_shown_as_frames() {
    for wire_local in [false, true] {
        let (mut p, watch) = watched(Config {
            wire_local,
            ..Config::default()
        });
        write(&mut p);
        let seen = all(&watch);
        assert_eq!((seen.len(), watch.counts()), (4, (4, 0)), "{wire_local}");
        let mut payload = vec![];
        for (n, seen) in seen.iter().enumerate() {
            // `parse` checks the ICRC.
            let packet = frame::parse(&seen.frame).unwrap().packet;
            let ends = if n < 3 {
                [p.a.qpn, p.b.qpn]
            } else {
                [p.b.qpn, p.a.qpn]
            };
            assert_eq!([seen.src_qpn, seen.dst_qpn], ends.map(Some));
            assert_eq!(
                (seen.direction, packet.dst_qpn),
                (CaptureDirection::Local, ends[1])
            );
            assert_eq!(matches!(packet.kind, PacketKind::Ack(_)), n == 3);
            if let Payload::Bytes { bytes, .. } = packet.payload {
                payload.extend_from_slice(&bytes);
            }
        }
        assert_eq!(payload.len(), 3000);
        assert!(payload.iter().enumerate().all(|(n, byte)| *byte == n as u8));
        assert!(p.d.poll(&mut p.cq_a).is_some());
    }
}

#[test]
fn randomly_lost_frames_are_shown_as_lost() {
    let (mut p, watch) = watched(Config {
        wire_local: true,
        drop_percent: 100,
        ..Config::default()
    });
    write(&mut p);
    let seen = all(&watch);
    assert!(
        seen.len() >= 3
            && seen
                .iter()
                .all(|seen| seen.direction == CaptureDirection::Lost)
    );
}

#[test]
fn sent_and_received_frames_are_shown_once() {
    let (mut p, watch) = watched(Config::default());
    let qp = p.d.create_qp(&p.cq_a.clone(), &p.cq_a.clone());
    let mut av = Driver::path(0, 0);
    av.dgid = gid([10, 0, 0, 9]);
    p.d.to_init(qp.qpn).unwrap();
    p.d.to_rtr(qp.qpn, 77, av).unwrap();
    p.d.to_rts(qp.qpn).unwrap();
    let mut qp = qp;
    p.d.post_send(&mut qp, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
    p.d.run();
    let sent = p.d.device.next_frame().unwrap();
    let [seen] = &all(&watch)[..] else {
        panic!("not one frame");
    };
    assert_eq!(
        (seen.direction, &seen.frame),
        (CaptureDirection::Sent, &*sent)
    );
    // The tap sees received frames even if they cannot be parsed.
    p.d.device.receive_frame(&p.d.ram, &[1, 2, 3], 5);
    p.d.device.receive_frame(&p.d.ram, &sent, 5);
    let seen = all(&watch);
    assert_eq!(seen.len(), 2);
    assert!(seen
        .iter()
        .all(|seen| seen.direction == CaptureDirection::Received));
    assert_eq!(
        (seen[0].dst_qpn, &seen[0].frame[..]),
        (None, &[1, 2, 3][..])
    );
    assert_eq!(seen[1].dst_qpn, Some(77));
}

#[test]
fn a_slow_reader_only_misses_frames() {
    let mut p = Pair::new();
    let (to, watch) = capture_tap(2, BYTES);
    p.d.device.attach_capture(to);
    write(&mut p);
    assert_eq!(watch.counts(), (4, 2));
    assert!(p.d.poll(&mut p.cq_a).is_some());
    // Without room for a byte no frame is made.
    let mut p = Pair::new();
    let (to, watch) = capture_tap(FRAMES, 0);
    p.d.device.attach_capture(to);
    write(&mut p);
    assert_eq!((watch.counts(), all(&watch)), ((4, 4), vec![]));
    assert!(p.d.poll(&mut p.cq_a).is_some());
}

#[test]
fn a_port_has_one_reader_over_resets_until_the_reader_is_dropped() {
    let taken = |d: &mut Driver| -> (bool, CaptureReader) {
        let (to, watch): (CaptureTap, CaptureReader) = capture_tap(FRAMES, BYTES);
        (d.device.attach_capture(to), watch)
    };
    let mut d = Driver::new();
    let (first, watch) = taken(&mut d);
    assert!(first && !taken(&mut d).0);
    d.device.reset();
    assert!(!taken(&mut d).0);
    let mut next = crate::Device::new(Config::default(), d.device.shared.regs().clone());
    d.device.hand_over_observers(&mut next);
    d.device = next;
    assert!(!taken(&mut d).0);
    drop(watch);
    let (mut p, watch) = (Pair::new(), taken(&mut d).1);
    drop(watch);
    assert!(taken(&mut p.d).0, "the reader has gone");
    write(&mut p);
    assert!(!p.d.device.shared.observers.capture().has_tap());
}

#[test]
fn the_next_frame_names_a_rule_that_fired_on_an_interrupt() {
    let (mut p, watch) = watched(Config::default());
    p.d.events(1);
    let first = Match {
        vector: Some(1),
        nth: Some(1),
        on: RuleHook::Interrupt,
        ..Match::default()
    };
    p.rule(first, Action::Withhold);
    p.d.arm(&mut p.cq_a, ArmMode::Next);
    write(&mut p);
    assert!(all(&watch).iter().all(|frame| frame.note.is_none()));
    write(&mut p);
    let notes: Vec<_> = all(&watch).into_iter().map(|frame| frame.note).collect();
    let note = notes[0].as_deref().unwrap();
    assert!(note.starts_with("before this frame, rule "), "{note}");
    assert!(note.ends_with(": withhold"), "{note}");
    assert!(notes[1..].iter().all(Option::is_none), "{notes:?}");
}
