// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Makes frames from a recording, for a capture. Fields that the recording does not have are zero:
//! payload, IP and MAC addresses, LIDs, Q_Keys, immediate data and the operands of atomics. The ICRC
//! is computed over the frame as it is made, and so is the VCRC of an InfiniBand port.

use crate::device_history::{is_error, packet_entry_name, DeviceHistory, QpName};
use crate::diagnosis::syndrome_text;
use crate::entry::{EntryKind, PacketEntry};
use crate::flags::{FIRST, LAST};
use std::collections::{HashMap, HashSet};
use verbena_abi::cqe::WcStatus;
use verbena_abi::eqe::EventType;
use verbena_abi::syndrome::Syndrome;
use verbena_transport::packet::Reth;
use verbena_transport::psn;
use verbena_transport::wire::opcode::{self, op, ExtensionHeader, Operation};
use verbena_transport::wire::{bth, ethernet, icrc, ipv4, lrh, udp, vcrc};

/// Most frames, and most bytes of payload, for which each packet of a row becomes a frame of its
/// own. A recording beyond these limits gives one frame for each row, with the payload of at most
/// one packet.
const MAX_SPLIT_FRAMES: usize = 1 << 16;
const MAX_SPLIT_BYTES: usize = 1 << 25;
const MAX_PAYLOAD_BYTES: u32 = 4096;
const PKEY: u16 = 0xffff;
const SOURCE_PORT: u16 = 0xc000;

/// Direction in which a frame went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketDirection {
    /// The frame went between QPs of the same device.
    Local,
    /// The frame left the device.
    Sent,
    /// The frame came from another device.
    Received,
}

/// A frame made from a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntheticFrame {
    /// Device clock in nanoseconds.
    pub time_ns: u64,
    /// Bytes from the Ethernet header to the ICRC, or from the LRH to the VCRC.
    pub bytes: Vec<u8>,
    /// Direction in which the frame went.
    pub direction: PacketDirection,
    /// The QPs, and the events since the previous frame.
    pub comment: String,
}

/// Returns the opcode of the n-th of several packets in a row.
fn nth_opcode(packet: &PacketEntry, n: u32) -> u8 {
    let (service, code) = (
        packet.opcode & !opcode::OPERATION,
        packet.opcode & opcode::OPERATION,
    );
    let Some((_, row)) = opcode::lookup(packet.opcode) else {
        return packet.opcode;
    };
    let [first, middle, last] = match (row.operation, code) {
        (Operation::Send, op::SEND_ONLY_IMM | op::SEND_LAST_IMM) => {
            [op::SEND_FIRST, op::SEND_MIDDLE, op::SEND_LAST_IMM]
        }
        (Operation::Send, op::SEND_ONLY_INVALIDATE | op::SEND_LAST_INVALIDATE) => {
            [op::SEND_FIRST, op::SEND_MIDDLE, op::SEND_LAST_INVALIDATE]
        }
        (Operation::Send, _) => [op::SEND_FIRST, op::SEND_MIDDLE, op::SEND_LAST],
        (Operation::Write, op::WRITE_ONLY_IMM | op::WRITE_LAST_IMM) => {
            [op::WRITE_FIRST, op::WRITE_MIDDLE, op::WRITE_LAST_IMM]
        }
        (Operation::Write, _) => [op::WRITE_FIRST, op::WRITE_MIDDLE, op::WRITE_LAST],
        (Operation::ReadResponse, _) => [
            op::READ_RESPONSE_FIRST,
            op::READ_RESPONSE_MIDDLE,
            op::READ_RESPONSE_LAST,
        ],
        _ => return packet.opcode,
    };
    let begins = n == 0 && packet.flags & FIRST != 0;
    let ends = n + 1 == packet.count && packet.flags & LAST != 0;
    service
        | match (begins, ends) {
            (true, _) => first,
            (_, true) => last,
            _ => middle,
        }
}

/// True if each packet of a row becomes a frame of its own. The count of a READ request is that of
/// its responses, so a READ request is a single frame.
fn is_split(packet: &PacketEntry) -> bool {
    let operation = opcode::lookup(packet.opcode).map(|(_, row)| row.operation);
    let parts = [Operation::Send, Operation::Write, Operation::ReadResponse];
    packet.count > 1 && operation.is_some_and(|operation| parts.contains(&operation))
}

/// Appends the headers that follow the BTH.
fn extensions(packet: &PacketEntry, opcode: u8, out: &mut Vec<u8>) {
    if opcode == opcode::CNP {
        out.resize(out.len() + opcode::CNP_PAYLOAD, 0);
        return;
    }
    let Some((service, row)) = opcode::lookup(opcode) else {
        return;
    };
    for header in service.headers_of(row).iter().chain(row.headers) {
        let at = out.len();
        out.resize(at + header.length(), 0);
        let Some(place) = out.get_mut(at..) else {
            continue;
        };
        match header {
            ExtensionHeader::Reth => Reth {
                addr: packet.address,
                rkey: packet.detail,
                length: packet.bytes,
            }
            .emit(place),
            ExtensionHeader::AtomicEth => {
                place[..8].copy_from_slice(&packet.address.to_be_bytes());
                place[8..12].copy_from_slice(&packet.detail.to_be_bytes());
            }
            ExtensionHeader::Aeth => place[..4].copy_from_slice(&packet.detail.to_be_bytes()),
            ExtensionHeader::Deth => place[5..8].copy_from_slice(&packet.qpn.to_be_bytes()[1..]),
            _ => {}
        }
    }
}

/// Appends the BTH of the n-th packet of a row, and what follows up to the ICRC.
fn transport(packet: &PacketEntry, n: u32, payload: u32, to: u32, out: &mut Vec<u8>) {
    let opcode = if is_split(packet) {
        nth_opcode(packet, n)
    } else {
        packet.opcode
    };
    let bth_at = out.len();
    out.resize(bth_at + bth::LEN, 0);
    extensions(packet, opcode, out);
    let pad = payload.wrapping_neg() & 3;
    out.resize(out.len() + (payload + pad) as usize, 0);
    bth::Repr {
        opcode,
        solicited: false,
        pad: pad as u8,
        pkey: PKEY,
        dest_qpn: to,
        ack_req: false,
        psn: psn::add(packet.psn, n),
    }
    .emit(&mut out[bth_at..]);
}

/// Makes the RoCE v2 frame of the n-th packet of a row.
fn ethernet_frame(packet: &PacketEntry, n: u32, payload: u32, to: u32) -> Vec<u8> {
    let ip_at = ethernet::LEN;
    let udp_at = ip_at + ipv4::LEN;
    let bth_at = udp_at + udp::LEN;
    let mut out = vec![0; bth_at];
    transport(packet, n, payload, to, &mut out);
    let length = out.len() + icrc::LEN;
    let length_from = |at: usize| u16::try_from(length - at).unwrap_or(u16::MAX);
    ethernet::Repr {
        destination: [0; 6],
        source: [0; 6],
        ether_type: ethernet::TYPE_IPV4,
    }
    .emit(&mut out[..ip_at]);
    ipv4::Repr {
        tos: 0,
        ttl: 64,
        source: [0; 4],
        destination: [0; 4],
        payload_len: length_from(udp_at),
    }
    .emit(&mut out[ip_at..udp_at]);
    udp::Repr {
        source: SOURCE_PORT,
        destination: udp::PORT,
        payload_len: length_from(bth_at),
    }
    .emit(&mut out[udp_at..bth_at]);
    let sum = icrc::compute(&out[ip_at..]);
    out.extend(sum);
    out
}

/// Makes the InfiniBand packet of the n-th packet of a row, without a GRH.
fn infiniband_packet(packet: &PacketEntry, n: u32, payload: u32, to: u32) -> Vec<u8> {
    let mut out = vec![0; lrh::LEN];
    transport(packet, n, payload, to, &mut out);
    let next_header = lrh::NextHeader::Bth;
    lrh::Repr {
        vl: if to == 0 { lrh::MANAGEMENT_VL } else { 0 },
        sl: 0,
        next_header,
        dlid: 0,
        packet_length: lrh::words(out.len() + icrc::LEN),
        slid: 0,
    }
    .emit(&mut out);
    let sum = icrc::compute_infiniband(next_header, &out);
    out.extend(sum);
    let sum = vcrc::compute(&out);
    out.extend(sum);
    out
}

/// Returns the text about an entry that is not a packet, for the comment of the next frame. None
/// for an entry that needs no text.
fn event_text(history: &DeviceHistory, kind: &EntryKind) -> Option<String> {
    let cause = |raw| Syndrome::from_raw(raw).map_or_else(String::new, syndrome_text);
    Some(match *kind {
        EntryKind::Fired { rule, .. } => {
            let action = history.action(rule);
            let does = action.map_or_else(String::new, |action| format!(": {}", action.name()));
            format!("{}{does}", history.rule_text(rule))
        }
        EntryKind::Completed {
            qpn,
            status,
            syndrome,
            wr_id,
            ..
        } if ![WcStatus::Success, WcStatus::WrFlushErr]
            .map(WcStatus::to_raw)
            .contains(&status) =>
        {
            let name = WcStatus::from_raw(status).map_or("?", WcStatus::verbs_name);
            let cause = cause(syndrome);
            format!(
                "{}: wr_id {wr_id:#x} completed with {name}: {cause}",
                QpName(qpn)
            )
        }
        EntryKind::State {
            qpn, to, syndrome, ..
        } if is_error(to) => format!("{} is in an error state: {}", QpName(qpn), cause(syndrome)),
        EntryKind::Event {
            event_type,
            number,
            syndrome,
        } if event_type != EventType::Completion.to_raw() => {
            let name = EventType::from_raw(event_type).map_or("?", EventType::verbs_name);
            format!("{name} of {number}: {}", cause(syndrome))
        }
        _ => return None,
    })
}

/// Distinguishes the QPs of the recorded device from those of other devices, by the entries of a recording.
/// The addresses of a synthetic frame depend on this.
struct QpLocations {
    /// True for a QP whose peer belongs to the same device.
    is_local: HashMap<u32, bool>,
    local_qpns: HashSet<u32>,
}

impl QpLocations {
    fn new(history: &DeviceHistory) -> Self {
        let mut locations = Self {
            is_local: HashMap::new(),
            local_qpns: HashSet::new(),
        };
        for entry in history.entries() {
            match entry.kind {
                EntryKind::State {
                    qpn,
                    is_local: Some(is_local),
                    ..
                } => {
                    locations.is_local.insert(qpn, is_local);
                    locations.local_qpns.insert(qpn);
                }
                EntryKind::Created { qpn, .. } | EntryKind::State { qpn, .. } => {
                    locations.local_qpns.insert(qpn);
                }
                _ => {}
            }
        }
        locations
    }

    /// Returns the packet and its direction. None for an entry that is not a packet, and for a
    /// packet received from this device, which the entry of the sender covers.
    fn direction(&self, kind: &EntryKind) -> Option<(PacketEntry, PacketDirection)> {
        let is_local = |p: &PacketEntry| {
            let recorded = self.is_local.get(&p.qpn).copied();
            recorded.unwrap_or_else(|| self.local_qpns.contains(&p.peer))
        };
        match *kind {
            EntryKind::Sent(p) if is_local(&p) => Some((p, PacketDirection::Local)),
            EntryKind::Sent(p) => Some((p, PacketDirection::Sent)),
            EntryKind::Received(p) if !is_local(&p) => Some((p, PacketDirection::Received)),
            _ => None,
        }
    }
}

/// Returns the frames of a recording, in order.
pub fn synthesize_frames(history: &DeviceHistory) -> Vec<SyntheticFrame> {
    let locations = QpLocations::new(history);
    let rows = history.entries().iter();
    let size = |(p, _): (PacketEntry, PacketDirection)| {
        let count = if is_split(&p) { p.count as usize } else { 1 };
        (count, p.bytes as usize)
    };
    let sizes = rows.filter_map(|entry| locations.direction(&entry.kind).map(size));
    let (count, bytes) = sizes.fold((0usize, 0usize), |(count, bytes), (more, long)| {
        (count.saturating_add(more), bytes.saturating_add(long))
    });
    let frame = match history.recording.is_infiniband {
        true => infiniband_packet,
        false => ethernet_frame,
    };
    let is_split_fully = count <= MAX_SPLIT_FRAMES && bytes <= MAX_SPLIT_BYTES;
    let mut out = Vec::new();
    let mut notes: Vec<String> = Vec::new();
    for entry in history.entries() {
        notes.extend(event_text(history, &entry.kind));
        let Some((packet, direction)) = locations.direction(&entry.kind) else {
            continue;
        };
        let (from, to) = match direction {
            PacketDirection::Received => (packet.peer, packet.qpn),
            PacketDirection::Local | PacketDirection::Sent => (packet.qpn, packet.peer),
        };
        let direction_name = match direction {
            PacketDirection::Local => "local",
            PacketDirection::Sent => "sent",
            PacketDirection::Received => "received",
        };
        let mut comment = format!("QP {from:#x} -> {to:#x}, {direction_name}");
        if is_split(&packet) {
            comment += &format!(", of {}", packet_entry_name(&packet));
        }
        for note in notes.drain(..) {
            comment += &format!(", {note}");
        }
        let splits = is_split_fully && is_split(&packet);
        let part = packet.bytes.div_ceil(packet.count.max(1));
        let part = part.checked_next_power_of_two().unwrap_or(u32::MAX);
        for n in 0..if splits { packet.count } else { 1 } {
            let payload = match splits {
                true => packet
                    .bytes
                    .saturating_sub(part.saturating_mul(n))
                    .min(part),
                false => packet.bytes,
            };
            out.push(SyntheticFrame {
                time_ns: entry.time_ns,
                bytes: frame(&packet, n, payload.min(MAX_PAYLOAD_BYTES), to),
                direction,
                comment: std::mem::replace(
                    &mut comment,
                    format!("QP {from:#x} -> {to:#x}, {direction_name}"),
                ),
            });
        }
    }
    if let Some(last) = out.last_mut() {
        for note in notes {
            last.comment += &format!(", then {note}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::tests::{created, state};
    use crate::entry::FlightEntry;
    use crate::flight_recording::FlightRecording;
    use verbena_abi::ctx::QpState;
    use verbena_transport::frame;
    use verbena_transport::wire::reth;

    fn of(kinds: Vec<EntryKind>) -> Vec<SyntheticFrame> {
        of_port(kinds, false)
    }

    fn of_port(kinds: Vec<EntryKind>, is_infiniband: bool) -> Vec<SyntheticFrame> {
        let entries = (0..).zip(kinds);
        let recording = FlightRecording {
            entries: entries
                .map(|(time_ns, kind)| FlightEntry { time_ns, kind })
                .collect(),
            is_infiniband,
            ..FlightRecording::default()
        };
        synthesize_frames(&DeviceHistory::new(recording, Vec::new()))
    }

    fn write(qpn: u32, peer: u32) -> PacketEntry {
        PacketEntry {
            qpn,
            peer,
            opcode: op::WRITE_ONLY,
            flags: FIRST | LAST,
            psn: 0xff_ffff,
            count: 3,
            bytes: 2500,
            detail: 0x77,
            address: 0x1000,
        }
    }

    #[test]
    fn a_row_of_packets_becomes_one_frame_for_each() {
        let all = of(vec![
            created(1),
            created(2),
            EntryKind::Sent(write(1, 2)),
            EntryKind::Received(write(2, 1)),
            state(1, 2, QpState::Err, Some(Syndrome::RetryExceeded)),
        ]);
        let decoded = |frame: &SyntheticFrame| {
            let rest = &frame.bytes[ethernet::LEN + ipv4::LEN + udp::LEN..];
            let view = bth::View::new(rest).unwrap();
            assert!(verbena_transport::frame::parse(&frame.bytes).is_ok());
            (
                view.opcode(),
                view.psn(),
                view.dest_qpn(),
                frame.bytes.len(),
            )
        };
        let base = ethernet::LEN + ipv4::LEN + udp::LEN + bth::LEN + icrc::LEN;
        let headers: Vec<_> = all.iter().map(decoded).collect();
        assert_eq!(
            headers,
            [
                (op::WRITE_FIRST, 0xff_ffff, 2, base + 16 + 1024),
                (op::WRITE_MIDDLE, 0, 2, base + 1024),
                (op::WRITE_LAST, 1, 2, base + 452),
            ]
        );
        let at = ethernet::LEN + ipv4::LEN + udp::LEN + bth::LEN;
        let view = reth::View::new(&all[0].bytes[at..]).unwrap();
        assert_eq!(
            (view.addr(), view.rkey(), view.length()),
            (0x1000, 0x77, 2500)
        );
        assert!(all[0]
            .comment
            .starts_with("QP 0x1 -> 0x2, local, of RDMA WRITE First to Last"));
        assert!(all[2]
            .comment
            .contains("then QP 0x1 is in an error state: RetryExceeded"));
    }

    #[test]
    fn packets_of_another_device_become_frames_in_both_directions() {
        let peer = |is_local| EntryKind::State {
            qpn: 1,
            owner: 1,
            peer: 1,
            is_local: Some(is_local),
            from: 0,
            to: QpState::Rts.to_raw(),
            syndrome: 0,
            next_psn: 0,
            una_psn: 0,
            expected_psn: 0,
        };
        let kinds = |is_local| {
            vec![
                created(1),
                peer(is_local),
                EntryKind::Sent(write(1, 1)),
                EntryKind::Received(write(1, 1)),
            ]
        };
        let directions = |is_local| {
            of(kinds(is_local))
                .iter()
                .map(|f| f.direction)
                .collect::<Vec<_>>()
        };
        assert_eq!(directions(true), [PacketDirection::Local; 3]);
        let far = [[PacketDirection::Sent; 3], [PacketDirection::Received; 3]].concat();
        assert_eq!(directions(false), far);
    }

    #[test]
    fn packets_of_an_infiniband_port_have_an_lrh_and_a_vcrc() {
        let kinds = vec![created(1), created(2), EntryKind::Sent(write(1, 2))];
        let all = of_port(kinds, true);
        let packets: Vec<_> = all
            .iter()
            .map(|one| frame::parse_infiniband(&one.bytes).unwrap().packet)
            .map(|packet| (packet.psn, packet.dst_qpn, packet.payload.len()))
            .collect();
        assert_eq!(packets, [(0xff_ffff, 2, 1024), (0, 2, 1024), (1, 2, 452)]);
    }

    #[test]
    fn in_a_large_recording_a_row_becomes_one_frame() {
        let many = PacketEntry {
            count: 1 << 17,
            bytes: 1 << 30,
            ..write(1, 2)
        };
        let all = of(vec![created(1), created(2), EntryKind::Sent(many)]);
        assert_eq!(all.len(), 1);
        assert!(all[0].bytes.len() < 4200);
    }
}
