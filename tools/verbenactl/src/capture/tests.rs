// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Captures of queue pairs of the device model, read back.

use super::*;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_statistics::InterfaceStatisticsOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use verbena_abi::wqe::WqeOpcode;
use verbena_device::capture::capture_tap;
use verbena_device::memory::GuestMemory;
use verbena_device::mock::{Driver, SendWr};
use verbena_transport::frame;

const GUEST: &str = "52:54:00:12:34:56";

/// Frame and comment of each packet, and the numbers of frames seen and dropped in each block of
/// statistics.
type CaptureContents = (Vec<(Vec<u8>, String)>, Vec<(u64, u64)>);

fn read(bytes: &[u8]) -> CaptureContents {
    let mut reader = PcapNgReader::new(bytes).unwrap();
    let (mut packets, mut statistics) = (vec![], vec![]);
    while let Some(block) = reader.next_block() {
        match block.unwrap() {
            Block::EnhancedPacket(packet) => {
                let comment = packet.options.iter().find_map(|option| match option {
                    EnhancedPacketOption::Comment(text) => Some(text.to_string()),
                    _ => None,
                });
                packets.push((packet.data.to_vec(), comment.unwrap()));
            }
            Block::InterfaceStatistics(block) => {
                let [InterfaceStatisticsOption::IsbIfRecv(seen), InterfaceStatisticsOption::IsbIfDrop(dropped)] =
                    block.options[..]
                else {
                    panic!("{block:?}");
                };
                statistics.push((seen, dropped));
            }
            _ => {}
        }
    }
    (packets, statistics)
}

fn reply() -> CaptureReply {
    CaptureReply {
        guest: String::from(GUEST),
        link_layer: CaptureLinkLayer::Ethernet,
    }
}

fn captured(records: &[u8]) -> (CaptureEnd, CaptureContents) {
    let mut file = vec![];
    let end = write_records(BufReader::new(records), &mut file, &reply()).unwrap();
    (end, read(&file))
}

fn record(direction: FrameDirection, frame: &[u8]) -> CaptureRecord {
    CaptureRecord::Frame {
        direction,
        src_qpn: Some(16),
        dst_qpn: None,
        time_ns: 5,
        frame: frame.to_vec(),
        note: None,
    }
}

#[test]
fn captured_packets_of_two_queue_pairs_have_their_icrc() {
    let mut d = Driver::new();
    let cq = d.create_cq(6);
    let (mut a, b) = (d.create_qp(&cq, &cq), d.create_qp(&cq, &cq));
    d.connect(&a, &b);
    let (to, watch) = capture_tap(100, 1 << 20);
    assert!(d.device.attach_capture(to));
    let (at, key) = d.region(8192, 1);
    let pattern: Vec<u8> = (0..3000u32).map(|n| n as u8).collect();
    d.ram.write(at, &pattern).unwrap();
    let write = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(at, 3000, key)]);
    d.post_send(&mut a, &write.to(at + 4096, key));
    d.run();
    let mut records = vec![];
    while let Some(seen) = watch.try_next() {
        CaptureRecord::Frame {
            direction: FrameDirection::Local,
            src_qpn: seen.src_qpn,
            dst_qpn: seen.dst_qpn,
            time_ns: seen.time,
            frame: seen.frame,
            note: seen.note,
        }
        .put(&mut records);
    }
    let (seen, dropped) = watch.counts();
    CaptureRecord::End { seen, dropped }.put(&mut records);
    let (end, (packets, statistics)) = captured(&records);
    assert_eq!(
        end,
        CaptureEnd::Finished {
            seen: 4,
            dropped: 0
        }
    );
    assert_eq!((packets.len(), statistics), (4, vec![(4, 0)]));
    for (n, (bytes, comment)) in packets.iter().enumerate() {
        // The parser refuses a frame with a wrong ICRC.
        let packet = frame::parse(bytes).unwrap().packet;
        let (from, to) = if n < 3 {
            (a.qpn, b.qpn)
        } else {
            (b.qpn, a.qpn)
        };
        assert_eq!(packet.dst_qpn, to);
        let expected = format!("guest {GUEST}, QP {from:#x} -> {to:#x}, local");
        assert_eq!(*comment, expected);
    }
}

/// The time of the record is that of the packet, and the comments stay.
#[test]
fn packets_of_an_infiniband_port_are_erf_records() {
    let mut records = vec![];
    record(FrameDirection::Sent, &[7; 30]).put(&mut records);
    let (seen, dropped) = (1, 0);
    CaptureRecord::End { seen, dropped }.put(&mut records);
    let infiniband = CaptureReply {
        link_layer: CaptureLinkLayer::InfiniBand,
        ..reply()
    };
    let mut file = vec![];
    write_records(BufReader::new(&records[..]), &mut file, &infiniband).unwrap();
    let mut reader = PcapNgReader::new(&file[..]).unwrap();
    let Block::InterfaceDescription(interface) = reader.next_block().unwrap().unwrap() else {
        panic!("no interface");
    };
    assert_eq!(interface.linktype, pcap_file::DataLink::ERF);
    let (packets, _) = read(&file);
    // Type 21, and 30 bytes of the packet after 16 of the header.
    let (bytes, comment) = &packets[0];
    assert_eq!((bytes[8], &bytes[16..]), (21, &[7; 30][..]));
    assert_eq!(*comment, format!("guest {GUEST}, QP 0x10 -> ?, sent"));
}

#[test]
fn the_action_of_a_rule_is_in_the_comment() {
    let mut records = vec![];
    let CaptureRecord::Frame {
        direction,
        time_ns,
        frame,
        ..
    } = record(FrameDirection::Lost, &[1; 60])
    else {
        return;
    };
    CaptureRecord::Frame {
        direction,
        src_qpn: Some(16),
        dst_qpn: Some(17),
        time_ns,
        frame,
        note: Some(String::from("rule \"x\": drop")),
    }
    .put(&mut records);
    let (_, (packets, _)) = captured(&records);
    assert!(packets[0]
        .1
        .ends_with(", lost on purpose, rule \"x\": drop"));
}

#[test]
fn each_direction_has_its_comment_and_flag() {
    let text = |direction| comment(GUEST, direction, Some(16), None);
    assert!(text(FrameDirection::Sent).ends_with("QP 0x10 -> ?, sent"));
    assert!(text(FrameDirection::Received).ends_with(", received"));
    assert!(text(FrameDirection::Lost).ends_with(", local, lost on purpose"));
    let directions = [
        FrameDirection::Local,
        FrameDirection::Lost,
        FrameDirection::Sent,
        FrameDirection::Received,
    ]
    .map(interface_direction);
    let (inbound, outbound) = (
        Some(InterfaceDirection::Inbound),
        Some(InterfaceDirection::Outbound),
    );
    assert_eq!(directions, [None, None, outbound, inbound]);
}

#[test]
fn the_number_of_dropped_frames_is_in_the_file() {
    let mut records = vec![];
    record(FrameDirection::Sent, &[1; 60]).put(&mut records);
    let (seen, dropped) = (9, 8);
    CaptureRecord::End { seen, dropped }.put(&mut records);
    let (end, (packets, statistics)) = captured(&records);
    assert_eq!(end, CaptureEnd::Finished { seen, dropped });
    assert_eq!((packets.len(), statistics), (1, vec![(9, 8)]));
}

#[test]
fn a_capture_whose_nic_exits_can_be_read() {
    let mut records = vec![];
    record(FrameDirection::Sent, &[1; 60]).put(&mut records);
    record(FrameDirection::Sent, &[2; 60]).put(&mut records);
    for cut in [0, 1, 30] {
        let (end, (packets, _)) = captured(&records[..records.len() - cut]);
        assert_eq!(
            (end, packets.len()),
            (CaptureEnd::ConnectionLost, if cut == 0 { 2 } else { 1 })
        );
    }
    let nonsense = write_records(BufReader::new(&[9][..]), io::sink(), &reply()).unwrap_err();
    assert!(nonsense.to_string().contains("another version"));
}

#[test]
fn a_closed_pipe_ends_the_capture_without_an_error() {
    struct ClosedPipe;
    impl Write for ClosedPipe {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let end = write_records(BufReader::new(&[][..]), ClosedPipe, &reply()).unwrap();
    assert_eq!(end, CaptureEnd::ReaderClosed);
}

#[test]
fn frames_of_a_recording_have_the_time_of_day_and_their_comments() {
    let frame = verbena_recorder::SyntheticFrame {
        time_ns: 5,
        bytes: vec![7; 62],
        direction: verbena_recorder::PacketDirection::Sent,
        comment: String::from("QP 0x1 -> 0x2, sent"),
    };
    let mut file = vec![];
    write_frames(&[frame], CaptureLink::Ethernet, 100, &mut file).unwrap();
    let (packets, _) = read(&file);
    assert_eq!(
        packets,
        [(vec![7; 62], String::from("QP 0x1 -> 0x2, sent"))]
    );
    let mut reader = PcapNgReader::new(&file[..]).unwrap();
    let _ = reader.next_block().unwrap();
    let Block::EnhancedPacket(packet) = reader.next_block().unwrap().unwrap() else {
        panic!("no packet");
    };
    assert_eq!(packet.timestamp.as_nanos(), 105);
}
