// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Whole frames: [`parse`] and [`emit`].

use super::bth::{op, service};
use super::{bth, ethernet, ext, icrc, ipv4, ipv6, udp, Malformed, Path};
use crate::packet::{Datagram, Kind, Packet, Payload, SendTail, Transport};
use crate::pool::Pool;
use alloc::rc::Rc;
use alloc::vec::Vec;

/// Longest payload of a packet that is accepted: the largest path MTU.
pub const MAX_PAYLOAD: usize = 4096;

/// A frame that is a RoCEv2 packet.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The way it came, as the sender names it.
    pub path: Path,
    /// The packet.
    pub packet: Packet,
}

/// Whether a frame is for the RoCEv2 port, so that it is to be parsed here rather than given to the Ethernet side.
/// Anything malformed before the UDP header is not.
pub fn is_rocev2(bytes: &[u8]) -> bool {
    matches!(layers(bytes), Ok((_, _, udp)) if udp_port(udp) == Some(udp::PORT))
}

fn udp_port(packet: &[u8]) -> Option<u16> {
    packet
        .get(2..4)
        .map(|port| u16::from_be_bytes([port[0], port[1]]))
}

/// Ethernet and IP: the path so far, the packet from its IP header on, and the packet from its UDP header on.
fn layers(bytes: &[u8]) -> Result<(Path, &[u8], &[u8]), Malformed> {
    let view = ethernet::View::new(bytes)?;
    let ethernet = ethernet::Repr::parse(view);
    let mut path = Path {
        smac: ethernet.source,
        dmac: ethernet.destination,
        // Priority-tagged frames carry VLAN id 0 and belong to no VLAN.
        vlan: ethernet.vlan.map(|(id, _)| id).filter(|id| *id != 0),
        sl: ethernet.vlan.map_or(0, |(_, priority)| priority),
        ..Path::default()
    };
    match ethernet.ether_type {
        ethernet::TYPE_IPV4 => {
            let view = ipv4::View::new(view.payload())?;
            if view.protocol() != ipv4::PROTOCOL_UDP {
                return Err(Malformed::Protocol);
            }
            ipv4::Repr::parse(view).to_path(&mut path);
            Ok((path, view.bytes(), view.payload()))
        }
        ethernet::TYPE_IPV6 => {
            let view = ipv6::View::new(view.payload())?;
            if view.next_header() != ipv4::PROTOCOL_UDP {
                return Err(Malformed::Protocol);
            }
            ipv6::Repr::parse(view).to_path(&mut path);
            Ok((path, view.bytes(), view.payload()))
        }
        _ => Err(Malformed::EtherType),
    }
}

/// Reads a frame. The packet has its payload in bytes of its own.
pub fn parse(bytes: &[u8]) -> Result<Frame, Malformed> {
    let parts = parse_parts(bytes)?;
    let mut frame = parts.frame;
    frame.packet.datagram = parts.datagram.map(Rc::new);
    frame.packet.payload = Payload::from_bytes(parts.payload);
    Ok(frame)
}

/// Reads a frame that fills a buffer. The packet refers to that buffer for its payload, so nothing is copied, and nothing is
/// allocated if the pool has what a datagram needs.
pub fn parse_in(buffer: &Rc<Vec<u8>>, pool: &mut Pool) -> Result<Frame, Malformed> {
    let parts = parse_parts(buffer)?;
    let mut frame = parts.frame;
    frame.packet.datagram = parts.datagram.map(|datagram| pool.datagram(datagram));
    if !parts.payload.is_empty() {
        let offset = (parts.payload.as_ptr() as usize).wrapping_sub(buffer.as_ptr() as usize);
        frame.packet.payload = Payload::Bytes {
            bytes: Rc::clone(buffer),
            offset: offset as u32,
            length: parts.payload.len() as u32,
        };
    }
    Ok(frame)
}

/// A frame of which the packet has neither payload nor datagram's headers yet.
struct Parts<'a> {
    frame: Frame,
    datagram: Option<Datagram>,
    payload: &'a [u8],
}

fn parse_parts(bytes: &[u8]) -> Result<Parts<'_>, Malformed> {
    let (mut path, ip, rest) = layers(bytes)?;
    let view = udp::View::new(rest)?;
    let udp = udp::Repr::parse(view);
    if udp.destination != udp::PORT {
        return Err(Malformed::Port);
    }
    // Nothing may hide between what UDP and what IP call the end: the ICRC is at both.
    if view.payload().len() + udp::LEN != rest.len() {
        return Err(Malformed::Length);
    }
    path.udp_sport = udp.source;
    let body = view
        .payload()
        .len()
        .checked_sub(icrc::LEN)
        .ok_or(Malformed::Truncated)?;
    let transport = bth::View::new(&view.payload()[..body])?;
    let (covered, crc) = ip.split_at(ip.len() - icrc::LEN);
    if icrc::compute(covered) != crc {
        return Err(Malformed::Icrc);
    }
    let (packet, mut datagram, payload) = parse_transport(transport)?;
    if let Some(datagram) = datagram.as_mut() {
        let from = if path.is_ipv4() { 20 } else { 0 };
        let header = &ip[..40 - from];
        super::put(&mut datagram.grh, from, header);
        datagram.path = path;
    }
    Ok(Parts {
        frame: Frame { path, packet },
        datagram,
        payload,
    })
}

fn parse_transport(view: bth::View<'_>) -> Result<(Packet, Option<Datagram>, &[u8]), Malformed> {
    let bth = bth::Repr::parse(view);
    let transport = match bth.opcode & 0xe0 {
        service::RC => Transport::Rc,
        service::UC => Transport::Uc,
        service::UD => Transport::Ud,
        _ => return Err(Malformed::Opcode),
    };
    let operation = bth.opcode & 0x1f;
    let served = match transport {
        Transport::Rc => true,
        Transport::Uc => operation <= op::WRITE_ONLY_IMM,
        Transport::Ud => matches!(operation, op::SEND_ONLY | op::SEND_ONLY_IMM),
    };
    if !served {
        return Err(Malformed::Opcode);
    }
    let mut reader = ext::Reader(view.payload());
    let (mut src_qpn, mut datagram) = (0, None);
    if transport == Transport::Ud {
        let (qkey, qpn) = ext::read_deth(&mut reader)?;
        src_qpn = qpn;
        datagram = Some(Datagram {
            qkey,
            ..Datagram::default()
        });
    }
    let (kind, first, last) = parse_operation(operation, &mut reader)?;
    let length = reader
        .0
        .len()
        .checked_sub(usize::from(bth.pad))
        .ok_or(Malformed::Length)?;
    // Padding fills up to four bytes, no more (IBTA 9.2.4).
    let carries = matches!(
        kind,
        Kind::Send(_) | Kind::Write { .. } | Kind::ReadResponse(_)
    );
    if reader.0.len() % 4 != 0 || length > MAX_PAYLOAD || (!carries && !reader.0.is_empty()) {
        return Err(Malformed::Length);
    }
    let packet = Packet {
        transport,
        kind,
        first,
        last,
        solicited: bth.solicited,
        ack_req: bth.ack_req,
        pkey: bth.pkey,
        dst_qpn: bth.dest_qpn,
        src_qpn,
        psn: bth.psn,
        psns: 1,
        datagram: None,
        payload: Payload::None,
    };
    Ok((packet, datagram, &reader.0[..length]))
}

/// Kind and place of an operation, with its extension headers.
fn parse_operation(
    operation: u8,
    reader: &mut ext::Reader<'_>,
) -> Result<(Kind, bool, bool), Malformed> {
    let send = |tail| Kind::Send(tail);
    Ok(match operation {
        op::SEND_FIRST => (send(SendTail::None), true, false),
        op::SEND_MIDDLE => (send(SendTail::None), false, false),
        op::SEND_LAST => (send(SendTail::None), false, true),
        op::SEND_ONLY => (send(SendTail::None), true, true),
        op::SEND_LAST_IMM => (send(SendTail::Imm(ext::read_imm(reader)?)), false, true),
        op::SEND_ONLY_IMM => (send(SendTail::Imm(ext::read_imm(reader)?)), true, true),
        op::SEND_LAST_INVALIDATE => (
            send(SendTail::Invalidate(ext::read_ieth(reader)?)),
            false,
            true,
        ),
        op::SEND_ONLY_INVALIDATE => (
            send(SendTail::Invalidate(ext::read_ieth(reader)?)),
            true,
            true,
        ),
        op::WRITE_FIRST => (
            Kind::Write {
                reth: Some(ext::read_reth(reader)?),
                imm: None,
            },
            true,
            false,
        ),
        op::WRITE_MIDDLE => (
            Kind::Write {
                reth: None,
                imm: None,
            },
            false,
            false,
        ),
        op::WRITE_LAST => (
            Kind::Write {
                reth: None,
                imm: None,
            },
            false,
            true,
        ),
        op::WRITE_LAST_IMM => (
            Kind::Write {
                reth: None,
                imm: Some(ext::read_imm(reader)?),
            },
            false,
            true,
        ),
        op::WRITE_ONLY => (
            Kind::Write {
                reth: Some(ext::read_reth(reader)?),
                imm: None,
            },
            true,
            true,
        ),
        op::WRITE_ONLY_IMM => {
            let reth = ext::read_reth(reader)?;
            (
                Kind::Write {
                    reth: Some(reth),
                    imm: Some(ext::read_imm(reader)?),
                },
                true,
                true,
            )
        }
        op::READ_REQUEST => (Kind::ReadRequest(ext::read_reth(reader)?), true, true),
        op::READ_RESPONSE_FIRST => (
            Kind::ReadResponse(Some(ext::read_aeth(reader)?)),
            true,
            false,
        ),
        op::READ_RESPONSE_MIDDLE => (Kind::ReadResponse(None), false, false),
        op::READ_RESPONSE_LAST => (
            Kind::ReadResponse(Some(ext::read_aeth(reader)?)),
            false,
            true,
        ),
        op::READ_RESPONSE_ONLY => (
            Kind::ReadResponse(Some(ext::read_aeth(reader)?)),
            true,
            true,
        ),
        op::ACKNOWLEDGE => (Kind::Ack(ext::read_aeth(reader)?), true, true),
        op::ATOMIC_ACKNOWLEDGE => {
            let aeth = ext::read_aeth(reader)?;
            (
                Kind::AtomicResponse(aeth, ext::read_atomic_ack(reader)?),
                true,
                true,
            )
        }
        op::COMPARE_SWAP | op::FETCH_ADD => {
            let (addr, rkey, op) = ext::read_atomic(reader, operation == op::COMPARE_SWAP)?;
            (Kind::Atomic { addr, rkey, op }, true, true)
        }
        _ => return Err(Malformed::Opcode),
    })
}

/// Appends the frame of a single packet to `out`. `fill` writes the payload, of `packet.payload.len()` bytes, into its
/// place; when it fails, `out` is as it was.
pub fn emit<E>(
    path: &Path,
    packet: &Packet,
    out: &mut Vec<u8>,
    fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    let start = out.len();
    let is_ipv4 = path.is_ipv4();
    let ethernet = ethernet::Repr {
        destination: path.dmac,
        source: path.smac,
        vlan: path.vlan.map(|id| (id, path.sl & 7)),
        ether_type: if is_ipv4 {
            ethernet::TYPE_IPV4
        } else {
            ethernet::TYPE_IPV6
        },
    };
    let ip_at = start + ethernet.header_len();
    let udp_at = ip_at + if is_ipv4 { ipv4::LEN } else { ipv6::LEN };
    let bth_at = udp_at + udp::LEN;
    // Headers of fixed place are written last, when the length is known.
    out.resize(bth_at + bth::LEN, 0);
    emit_extensions(packet, out);
    let payload_at = out.len();
    let length = packet.payload.len() as usize;
    let pad = length.wrapping_neg() & 3;
    out.resize(payload_at + length + pad, 0);
    if let Err(error) = fill(&mut out[payload_at..payload_at + length]) {
        out.truncate(start);
        return Err(error);
    }
    let bth = bth::Repr {
        opcode: packet.opcode(),
        solicited: packet.solicited,
        pad: pad as u8,
        pkey: packet.pkey,
        dest_qpn: packet.dst_qpn,
        ack_req: packet.ack_req,
        psn: packet.psn,
    };
    bth.emit(&mut out[bth_at..]);
    let udp_payload = (out.len() - bth_at + icrc::LEN).min(0xffff) as u16;
    let udp = udp::Repr {
        source: path.udp_sport,
        destination: udp::PORT,
        payload_len: udp_payload,
    };
    udp.emit(&mut out[udp_at..]);
    let ip_payload = udp_payload.saturating_add(udp::LEN as u16);
    if is_ipv4 {
        ipv4::Repr::from_path(path, ip_payload).emit(&mut out[ip_at..]);
    } else {
        ipv6::Repr::from_path(path, ip_payload).emit(&mut out[ip_at..]);
    }
    ethernet.emit(&mut out[start..]);
    let crc = icrc::compute(&out[ip_at..]);
    out.extend(crc);
    Ok(())
}

/// Bytes of a datagram from its UDP header on, for the length in its GRH.
pub fn datagram_udp_length(payload: u32, has_imm: bool) -> u32 {
    let headers = udp::LEN + bth::LEN + 8 + if has_imm { 4 } else { 0 } + icrc::LEN;
    payload.next_multiple_of(4) + headers as u32
}

fn emit_extensions(packet: &Packet, out: &mut Vec<u8>) {
    if let Some(datagram) = &packet.datagram {
        ext::write_deth(out, datagram.qkey, packet.src_qpn);
    }
    match &packet.kind {
        Kind::Send(SendTail::None) => {}
        Kind::Send(SendTail::Imm(imm)) => out.extend(imm),
        Kind::Send(SendTail::Invalidate(key)) => out.extend(key.to_be_bytes()),
        Kind::Write { reth, imm } => {
            if let Some(reth) = reth {
                ext::write_reth(out, reth);
            }
            if let Some(imm) = imm {
                out.extend(imm);
            }
        }
        Kind::ReadRequest(reth) => ext::write_reth(out, reth),
        Kind::ReadResponse(aeth) => {
            if let Some(aeth) = aeth {
                ext::write_aeth(out, aeth);
            }
        }
        Kind::Ack(aeth) => ext::write_aeth(out, aeth),
        Kind::AtomicResponse(aeth, value) => {
            ext::write_aeth(out, aeth);
            out.extend(value.to_be_bytes());
        }
        Kind::Atomic { addr, rkey, op } => ext::write_atomic(out, *addr, *rkey, op),
    }
}

#[cfg(test)]
mod tests;
