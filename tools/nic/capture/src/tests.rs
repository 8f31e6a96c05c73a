// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that read captures back with the reader of the same crate. Other programs read them in
//! `scripts/judges`.

use super::*;
use pcap_file::pcapng::{Block, PcapNgReader};
use std::cell::RefCell;
use std::rc::Rc;
use verbena_lab_transport::{LinkMode, PairSide, QpPair, SendPost};

/// Returns the time, bytes and comment of each packet.
fn read(bytes: &[u8]) -> Vec<(u64, Vec<u8>, Option<String>)> {
    let mut reader = PcapNgReader::new(bytes).unwrap();
    let mut packets = vec![];
    while let Some(block) = reader.next_block() {
        if let Block::EnhancedPacket(packet) = block.unwrap() {
            let comment = packet.options.iter().find_map(|option| match option {
                EnhancedPacketOption::Comment(text) => Some(text.to_string()),
                _ => None,
            });
            let time = packet.timestamp.as_nanos() as u64;
            packets.push((time, packet.data.to_vec(), comment));
        }
    }
    packets
}

/// Returns the comments on the packets that a pair sends.
fn comments(mut pair: QpPair, act: impl FnOnce(&mut QpPair)) -> Vec<String> {
    let capture = Rc::new(RefCell::new(Capture::new(Vec::new(), "test").unwrap()));
    pair.tap = Some(Box::new(Rc::clone(&capture)));
    act(&mut pair);
    pair.settle();
    drop(pair);
    let capture = Rc::into_inner(capture).unwrap().into_inner();
    let packets = read(&capture.finish().unwrap());
    packets.into_iter().filter_map(|(.., text)| text).collect()
}

#[test]
fn frames_times_and_comments_are_read_back() {
    let mut capture = Capture::new(Vec::new(), "test").unwrap();
    let late = 0x1234_5678_9abc_def0;
    capture.write(1, &[1, 2, 3], Some("one")).unwrap();
    capture.write(late, &[4; 64], None).unwrap();
    let packets = read(&capture.finish().unwrap());
    let one = (1, vec![1, 2, 3], Some("one".into()));
    assert_eq!(packets, [one, (late, vec![4; 64], None)]);
}

#[test]
fn infiniband_packets_are_records_of_an_erf_interface() {
    let link = CaptureLink::InfiniBand;
    let mut capture = Capture::of_link(Vec::new(), "test", link).unwrap();
    capture.write(5, &[7; 30], Some("one")).unwrap();
    let bytes = capture.finish().unwrap();
    let packets = read(&bytes);
    assert_eq!(packets, [(5, erf::record(5, &[7; 30]), Some("one".into()))]);
    let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
    let Some(Ok(Block::InterfaceDescription(interface))) = reader.next_block() else {
        panic!("no interface");
    };
    assert_eq!(u32::from(interface.linktype), 197);
}

#[test]
fn directions_and_statistics_are_read_back() {
    let mut capture = Capture::new(Vec::new(), "test").unwrap();
    let late = 0x1234_5678_9abc_def0;
    let (inbound, outbound) = (InterfaceDirection::Inbound, InterfaceDirection::Outbound);
    for direction in [None, Some(inbound), Some(outbound)] {
        capture
            .write_with_direction(5, &[1; 64], None, direction)
            .unwrap();
    }
    capture.statistics(late, 10, 7).unwrap();
    capture.flush().unwrap();
    let bytes = capture.finish().unwrap();
    let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
    let (mut flags, mut statistics) = (vec![], vec![]);
    while let Some(block) = reader.next_block() {
        match block.unwrap() {
            Block::EnhancedPacket(packet) => {
                flags.push(packet.options.first().cloned().map(|option| match option {
                    EnhancedPacketOption::Flags(flags) => flags,
                    other => panic!("{other:?}"),
                }))
            }
            Block::InterfaceStatistics(block) => statistics.push(block.into_owned()),
            _ => {}
        }
    }
    assert_eq!(flags, [None, Some(1), Some(2)]);
    let [block] = &statistics[..] else {
        panic!("{statistics:?}");
    };
    let expected = [
        InterfaceStatisticsOption::IsbIfRecv(10),
        InterfaceStatisticsOption::IsbIfDrop(7),
    ];
    assert_eq!(block.options, expected);
    // The high half of the time comes first in either byte order.
    let place = bytes.len() - block_length(&bytes);
    let half =
        |at: usize| u32::from_ne_bytes(bytes[place + at..place + at + 4].try_into().unwrap());
    assert_eq!((half(12), half(16)), (0x1234_5678, 0x9abc_def0));
}

/// Returns the length of the last block, which is in its last four bytes.
fn block_length(bytes: &[u8]) -> usize {
    u32::from_ne_bytes(bytes[bytes.len() - 4..].try_into().unwrap()) as usize
}

#[test]
fn parts_of_a_message_are_numbered() {
    let comments = comments(QpPair::rc(LinkMode::Wire), |pair| {
        let (from, to) = (
            pair.buffer(PairSide::A, &[7; 600]),
            pair.zeros(PairSide::B, 600),
        );
        pair.post(PairSide::A, SendPost::write(5, &[from.sge()], to));
        pair.post(PairSide::A, SendPost::read(6, &[from.sge()], to));
    });
    let answers = |n| {
        format!(
            "QP 0x11 -> 0x10, answers WR 6 (RDMA READ), PSN {}, response {n} of 3",
            16_777_202 + n
        )
    };
    for expected in [
        "QP 0x10 -> 0x11, WR 5 (RDMA WRITE), PSN 16777200, packet 1 of 3".into(),
        "QP 0x10 -> 0x11, WR 5 (RDMA WRITE), PSN 16777202, packet 3 of 3".into(),
        "QP 0x10 -> 0x11, WR 6 (RDMA READ), PSN 16777203, 3 responses".into(),
        answers(1),
        answers(3),
    ] {
        assert!(comments.contains(&expected), "{expected}: {comments:#?}");
    }
    assert!(!comments.iter().any(|text| text.contains("retransmission")));
}

#[test]
fn comments_name_lost_packets_and_retransmissions() {
    let mut pair = QpPair::rc(LinkMode::Wire);
    pair.link.loss = 30;
    let comments = comments(pair, |pair| {
        let (from, to) = (
            pair.buffer(PairSide::A, &[7; 2000]),
            pair.zeros(PairSide::B, 2000),
        );
        pair.post(PairSide::A, SendPost::write(5, &[from.sge()], to));
    });
    let lost = |text: &&String| text.ends_with(", lost") && !text.contains("acknowledges");
    let lost = comments.iter().find(lost).unwrap();
    let retransmission = format!("{}, retransmission", lost.strip_suffix(", lost").unwrap());
    assert!(
        comments
            .iter()
            .any(|text| text.starts_with(&retransmission)),
        "{retransmission}: {comments:#?}"
    );
}

#[test]
fn a_failed_write_is_returned_at_the_end() {
    #[derive(Debug)]
    struct FullDisk(usize);
    impl Write for FullDisk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self
                .0
                .checked_sub(bytes.len())
                .ok_or(io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let capture = Rc::new(RefCell::new(Capture::new(FullDisk(300), "test").unwrap()));
    let mut pair = QpPair::rc(LinkMode::Wire);
    pair.tap = Some(Box::new(Rc::clone(&capture)));
    let (from, to) = (
        pair.buffer(PairSide::A, &[7; 2000]),
        pair.zeros(PairSide::B, 2000),
    );
    pair.post(PairSide::A, SendPost::write(5, &[from.sge()], to));
    pair.settle();
    drop(pair);
    let failure = Rc::into_inner(capture).unwrap().into_inner().finish();
    assert_eq!(failure.unwrap_err().kind(), io::ErrorKind::StorageFull);
}
