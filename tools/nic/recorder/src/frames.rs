// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Makes frames from a recording, for a capture. Fields that the recording does not have are zero:
//! payload, IP and MAC addresses, Q_Keys, immediate data and the operands of atomics. The ICRC is
//! computed over the frame as it is made here.

use crate::entry::{Packet, What};
use crate::facts::{is_error, packets_name, Facts, Name};
use crate::flags::{FIRST, LAST};
use crate::why::syndrome_text;
use std::collections::{HashMap, HashSet};
use verbena_abi::cqe::WcStatus;
use verbena_abi::eqe::EventType;
use verbena_abi::syndrome::Syndrome;
use verbena_transport::packet::Reth;
use verbena_transport::psn;
use verbena_transport::wire::opcode::{self, op, Header, Operation};
use verbena_transport::wire::{bth, ethernet, icrc, ipv4, udp};

/// Most frames, and most bytes of payload, for which each packet of a row becomes a frame of its
/// own. A recording beyond these limits gives one frame for each row, with the payload of at most
/// one packet.
const MOST: usize = 1 << 16;
const MOST_BYTES: usize = 1 << 25;
const MOST_PAYLOAD: u32 = 4096;
const PKEY: u16 = 0xffff;
const SOURCE_PORT: u16 = 0xc000;

/// Direction in which a frame went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The frame went between QPs of the same device.
    Local,
    /// The frame left the device.
    Sent,
    /// The frame came from another device.
    Received,
}

/// A frame made from a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Device clock in nanoseconds.
    pub time: u64,
    /// Bytes from the Ethernet header to the ICRC.
    pub bytes: Vec<u8>,
    /// Direction in which the frame went.
    pub way: Way,
    /// The QPs, and the events since the previous frame.
    pub comment: String,
}

/// Returns the opcode of the n-th of several packets in a row.
fn opcode_of(packet: &Packet, n: u32) -> u8 {
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
fn is_split(packet: &Packet) -> bool {
    let operation = opcode::lookup(packet.opcode).map(|(_, row)| row.operation);
    let parts = [Operation::Send, Operation::Write, Operation::ReadResponse];
    packet.count > 1 && operation.is_some_and(|operation| parts.contains(&operation))
}

/// Appends the headers that follow the BTH.
fn extensions(packet: &Packet, opcode: u8, out: &mut Vec<u8>) {
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
            Header::Reth => Reth {
                addr: packet.address,
                rkey: packet.detail,
                length: packet.bytes,
            }
            .emit(place),
            Header::AtomicEth => {
                place[..8].copy_from_slice(&packet.address.to_be_bytes());
                place[8..12].copy_from_slice(&packet.detail.to_be_bytes());
            }
            Header::Aeth => place[..4].copy_from_slice(&packet.detail.to_be_bytes()),
            Header::Deth => place[5..8].copy_from_slice(&packet.qpn.to_be_bytes()[1..]),
            _ => {}
        }
    }
}

/// Makes the frame of the n-th packet of a row.
fn frame(packet: &Packet, n: u32, payload: u32, to: u32) -> Vec<u8> {
    let opcode = if is_split(packet) {
        opcode_of(packet, n)
    } else {
        packet.opcode
    };
    let ip_at = ethernet::LEN;
    let udp_at = ip_at + ipv4::LEN;
    let bth_at = udp_at + udp::LEN;
    let mut out = vec![0; bth_at + bth::LEN];
    extensions(packet, opcode, &mut out);
    let pad = payload.wrapping_neg() & 3;
    out.resize(out.len() + (payload + pad) as usize, 0);
    let length = out.len() + icrc::LEN;
    let behind = |at: usize| u16::try_from(length - at).unwrap_or(u16::MAX);
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
        payload_len: behind(udp_at),
    }
    .emit(&mut out[ip_at..udp_at]);
    udp::Repr {
        source: SOURCE_PORT,
        destination: udp::PORT,
        payload_len: behind(bth_at),
    }
    .emit(&mut out[udp_at..bth_at]);
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
    let sum = icrc::compute(&out[ip_at..]);
    out.extend(sum);
    out
}

/// Returns the text about an entry that is not a packet, for the comment of the next frame. None
/// for an entry that needs no text.
fn note(facts: &Facts, what: &What) -> Option<String> {
    let cause = |raw| Syndrome::from_raw(raw).map_or_else(String::new, syndrome_text);
    Some(match *what {
        What::Fired { rule, .. } => {
            let action = facts.action(rule);
            let does = action.map_or_else(String::new, |action| format!(": {}", action.name()));
            format!("{}{does}", facts.rule(rule))
        }
        What::Completed {
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
                Name(qpn)
            )
        }
        What::State {
            qpn, to, syndrome, ..
        } if is_error(to) => format!("{} is in an error state: {}", Name(qpn), cause(syndrome)),
        What::Event {
            kind,
            number,
            syndrome,
        } if kind != EventType::Completion.to_raw() => {
            let name = EventType::from_raw(kind).map_or("?", EventType::verbs_name);
            format!("{name} of {number}: {}", cause(syndrome))
        }
        _ => return None,
    })
}

/// The locations of QPs and of their peers, as the entries give them.
struct Places {
    /// True for a QP whose peer belongs to the same device.
    is_local: HashMap<u32, bool>,
    here: HashSet<u32>,
}

impl Places {
    fn of(facts: &Facts) -> Self {
        let mut places = Self {
            is_local: HashMap::new(),
            here: HashSet::new(),
        };
        for entry in facts.all() {
            match entry.what {
                What::State {
                    qpn,
                    is_local: Some(is_local),
                    ..
                } => {
                    places.is_local.insert(qpn, is_local);
                    places.here.insert(qpn);
                }
                What::Created { qpn, .. } | What::State { qpn, .. } => {
                    places.here.insert(qpn);
                }
                _ => {}
            }
        }
        places
    }

    /// Returns the packet and its direction. None for an entry that is not a packet, and for a
    /// packet received from this device, which the entry of the sender covers.
    fn way(&self, what: &What) -> Option<(Packet, Way)> {
        let is_local = |p: &Packet| {
            let known = self.is_local.get(&p.qpn).copied();
            known.unwrap_or_else(|| self.here.contains(&p.peer))
        };
        match *what {
            What::Sent(p) if is_local(&p) => Some((p, Way::Local)),
            What::Sent(p) => Some((p, Way::Sent)),
            What::Received(p) if !is_local(&p) => Some((p, Way::Received)),
            _ => None,
        }
    }
}

/// Returns the frames of a recording, in order.
pub fn frames(facts: &Facts) -> Vec<Frame> {
    let places = Places::of(facts);
    let rows = facts.all().iter();
    let size = |(p, _): (Packet, Way)| {
        let count = if is_split(&p) { p.count as usize } else { 1 };
        (count, p.bytes as usize)
    };
    let sizes = rows.filter_map(|entry| places.way(&entry.what).map(size));
    let (count, bytes) = sizes.fold((0usize, 0usize), |(count, bytes), (more, long)| {
        (count.saturating_add(more), bytes.saturating_add(long))
    });
    let is_whole = count <= MOST && bytes <= MOST_BYTES;
    let mut out = Vec::new();
    let mut notes: Vec<String> = Vec::new();
    for entry in facts.all() {
        notes.extend(note(facts, &entry.what));
        let Some((packet, way)) = places.way(&entry.what) else {
            continue;
        };
        let (from, to) = match way {
            Way::Received => (packet.peer, packet.qpn),
            Way::Local | Way::Sent => (packet.qpn, packet.peer),
        };
        let way_name = match way {
            Way::Local => "local",
            Way::Sent => "sent",
            Way::Received => "received",
        };
        let mut comment = format!("QP {from:#x} -> {to:#x}, {way_name}");
        if is_split(&packet) {
            comment += &format!(", of {}", packets_name(&packet));
        }
        for note in notes.drain(..) {
            comment += &format!(", {note}");
        }
        let splits = is_whole && is_split(&packet);
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
            out.push(Frame {
                time: entry.time,
                bytes: frame(&packet, n, payload.min(MOST_PAYLOAD), to),
                way,
                comment: std::mem::replace(
                    &mut comment,
                    format!("QP {from:#x} -> {to:#x}, {way_name}"),
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
    use crate::entry::Entry;
    use crate::file::Recording;
    use crate::why::tests::{created, state};
    use verbena_abi::ctx::QpState;
    use verbena_transport::wire::{self, reth};

    fn of(whats: Vec<What>) -> Vec<Frame> {
        let entries = (0..).zip(whats);
        let recording = Recording {
            entries: entries.map(|(time, what)| Entry { time, what }).collect(),
            ..Recording::default()
        };
        frames(&Facts::of(recording, Vec::new()))
    }

    fn write(qpn: u32, peer: u32) -> Packet {
        Packet {
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
            What::Sent(write(1, 2)),
            What::Received(write(2, 1)),
            state(1, 2, QpState::Err, Some(Syndrome::RetryExceeded)),
        ]);
        let seen = |frame: &Frame| {
            let rest = &frame.bytes[ethernet::LEN + ipv4::LEN + udp::LEN..];
            let view = bth::View::new(rest).unwrap();
            assert!(wire::frame::parse(&frame.bytes).is_ok());
            (
                view.opcode(),
                view.psn(),
                view.dest_qpn(),
                frame.bytes.len(),
            )
        };
        let base = ethernet::LEN + ipv4::LEN + udp::LEN + bth::LEN + icrc::LEN;
        let told: Vec<_> = all.iter().map(seen).collect();
        assert_eq!(
            told,
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
    fn frames_of_another_device_are_taken_from_both_ends() {
        let peer = |is_local| What::State {
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
        let whats = |is_local| {
            vec![
                created(1),
                peer(is_local),
                What::Sent(write(1, 1)),
                What::Received(write(1, 1)),
            ]
        };
        let ways = |is_local| {
            of(whats(is_local))
                .iter()
                .map(|f| f.way)
                .collect::<Vec<_>>()
        };
        assert_eq!(ways(true), [Way::Local; 3]);
        let far = [[Way::Sent; 3], [Way::Received; 3]].concat();
        assert_eq!(ways(false), far);
    }

    #[test]
    fn in_a_large_recording_a_row_becomes_one_frame() {
        let many = Packet {
            count: 1 << 17,
            bytes: 1 << 30,
            ..write(1, 2)
        };
        let all = of(vec![created(1), created(2), What::Sent(many)]);
        assert_eq!(all.len(), 1);
        assert!(all[0].bytes.len() < 4200);
    }
}
