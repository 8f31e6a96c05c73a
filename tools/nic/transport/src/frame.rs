// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Whole frames to and from packets: [`parse`] and [`emit`], with the headers that the table of
//! [`opcode`]s gives. [`emit`] makes an InfiniBand packet if the path is that of an InfiniBand link;
//! [`parse_infiniband`] reads one. The link tells a receiver which of the parsers to call.

mod infiniband;

use crate::packet::{DatagramHeaders, Packet, PacketKind, Payload, Transport};
use crate::pool::Pool;
use crate::wire::{
    bth, deth, ethernet, extensions, icrc, imm_dt, ipv4, ipv6, opcode, put, split, udp, vlan,
    xrceth, Malformed, Path,
};
use alloc::rc::Rc;
use alloc::vec::Vec;
pub use infiniband::{infiniband_length, parse_infiniband, parse_infiniband_in, peek_infiniband};

/// Longest accepted payload of a packet in bytes: the largest path MTU.
pub const MAX_PAYLOAD: usize = 4096;

/// A frame that is a RoCEv2 packet, or an InfiniBand packet.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Path of the frame from the sender's point of view.
    pub path: Path,
    /// Packet in the frame.
    pub packet: Packet,
}

/// True if a frame is for the RoCEv2 port, so that this module parses it and the Ethernet side does
/// not get it. False for a frame that is malformed before its UDP header.
pub fn is_rocev2(bytes: &[u8]) -> bool {
    peek(bytes).is_some()
}

/// Returns the path of a frame for the RoCEv2 port, without its UDP source port. Bytes after the
/// UDP ports are not read.
pub fn peek(bytes: &[u8]) -> Option<Path> {
    let layers = layers(bytes).ok()?;
    let ([_, _, port @ ..], _): (&[u8; 4], _) = split(layers.segment).ok()?;
    (u16::from_be_bytes(*port) == udp::PORT).then_some(layers.path)
}

/// Ethernet and IP headers of a frame.
struct LowerLayers<'a> {
    /// Path of the frame, without its UDP source port.
    path: Path,
    /// Packet from its IP header on.
    packet: &'a [u8],
    /// Packet from its UDP header on.
    segment: &'a [u8],
}

fn layers(bytes: &[u8]) -> Result<LowerLayers<'_>, Malformed> {
    let view = ethernet::View::new(bytes)?;
    let ethernet = ethernet::Repr::parse(view)?;
    let mut path = Path {
        smac: ethernet.source,
        dmac: ethernet.destination,
        ..Path::default()
    };
    let (mut ether_type, mut bytes) = (ethernet.ether_type, view.payload());
    if ether_type == ethernet::TYPE_VLAN {
        let view = vlan::View::new(bytes)?;
        let vlan = vlan::Repr::parse(view)?;
        // Priority-tagged frames carry VLAN id 0 and belong to no VLAN.
        path.vlan = Some(vlan.id).filter(|id| *id != 0);
        path.sl = vlan.priority;
        (ether_type, bytes) = (vlan.ether_type, view.payload());
    }
    let (packet, segment) = match ether_type {
        ethernet::TYPE_IPV4 => {
            let view = ipv4::View::new(bytes)?;
            ipv4::Repr::parse(view)?.to_path(&mut path);
            (view.packet(), view.payload())
        }
        ethernet::TYPE_IPV6 => {
            let view = ipv6::View::new(bytes)?;
            ipv6::Repr::parse(view)?.to_path(&mut path);
            (view.packet(), view.payload())
        }
        _ => return Err(Malformed::EtherType),
    };
    Ok(LowerLayers {
        path,
        packet,
        segment,
    })
}

/// Parses a frame. The packet owns a copy of the payload.
pub fn parse(bytes: &[u8]) -> Result<Frame, Malformed> {
    Ok(parse_parts(bytes)?.copied())
}

/// Parses a frame that fills a buffer. The payload of the packet refers to that buffer, so no bytes
/// are copied, and nothing is allocated if the pool has free headers of a datagram.
pub fn parse_in(buffer: &Rc<Vec<u8>>, pool: &mut Pool) -> Result<Frame, Malformed> {
    Ok(parse_parts(buffer)?.within(buffer, pool))
}

/// A frame whose packet has neither its payload nor the headers of a datagram yet.
struct ParsedFrame<'a> {
    frame: Frame,
    datagram: Option<DatagramHeaders>,
    payload: &'a [u8],
}

impl ParsedFrame<'_> {
    /// Returns the frame with a copy of its payload.
    #[inline]
    fn copied(self) -> Frame {
        let mut frame = self.frame;
        frame.packet.datagram = self.datagram.map(Rc::new);
        frame.packet.payload = Payload::from_bytes(self.payload);
        frame
    }

    /// Returns the frame, whose payload refers to the buffer from which it was parsed.
    #[inline]
    fn within(self, buffer: &Rc<Vec<u8>>, pool: &mut Pool) -> Frame {
        let mut frame = self.frame;
        frame.packet.datagram = self.datagram.map(|datagram| pool.datagram(datagram));
        if !self.payload.is_empty() {
            let offset = (self.payload.as_ptr() as usize).wrapping_sub(buffer.as_ptr() as usize);
            frame.packet.payload = Payload::Bytes {
                bytes: Rc::clone(buffer),
                offset: offset as u32,
                length: self.payload.len() as u32,
            };
        }
        frame
    }
}

fn parse_parts(bytes: &[u8]) -> Result<ParsedFrame<'_>, Malformed> {
    let LowerLayers {
        mut path,
        packet: ip,
        segment,
    } = layers(bytes)?;
    let view = udp::View::new(segment)?;
    let udp = udp::Repr::parse(view)?;
    if udp.destination != udp::PORT {
        return Err(Malformed::Port);
    }
    // The ICRC is at the end of the IP packet and of the UDP datagram, so both must end at the same
    // byte.
    if view.payload().len().saturating_add(udp::LEN) != segment.len() {
        return Err(Malformed::Length);
    }
    path.udp_sport = udp.source;
    let (transport, _) = split_icrc(view.payload())?;
    let (covered, crc) = split_icrc(ip)?;
    let view = bth::View::new(transport)?;
    // The ICRC is checked before any field of the transport headers is used (IBTA 9.6).
    if icrc::compute(covered) != *crc {
        return Err(Malformed::Icrc);
    }
    let (mut packet, mut datagram, payload) = parse_transport(view)?;
    packet.marked = path.is_marked();
    if let Some(datagram) = datagram.as_mut() {
        let (from, length) = if path.is_ipv4() {
            (ipv6::LEN - ipv4::LEN, ipv4::LEN)
        } else {
            (0, ipv6::LEN)
        };
        put(&mut datagram.grh, from, ip.get(..length).unwrap_or(&[]));
        datagram.path = path;
    }
    Ok(ParsedFrame {
        frame: Frame { path, packet },
        datagram,
        payload,
    })
}

fn split_icrc(bytes: &[u8]) -> Result<(&[u8], &[u8; icrc::LEN]), Malformed> {
    bytes.split_last_chunk().ok_or(Malformed::Truncated)
}

fn parse_transport(
    view: bth::View<'_>,
) -> Result<(Packet, Option<DatagramHeaders>, &[u8]), Malformed> {
    let bth = bth::Repr::parse(view)?;
    if opcode::is_refused(bth.opcode) {
        return Ok((refused(bth, view.payload())?, None, &[]));
    }
    if bth.opcode == opcode::CNP {
        // 16 reserved bytes follow the BTH of a CNP (A17.9.3).
        return match view.payload().len() {
            opcode::CNP_PAYLOAD => Ok((packet(bth, Transport::Rc, PacketKind::Cnp), None, &[])),
            _ => Err(Malformed::Length),
        };
    }
    let (service, row) = opcode::lookup(bth.opcode).ok_or(Malformed::Opcode)?;
    let transport = service.transport.ok_or(Malformed::Opcode)?;
    let mut headers = extensions::Repr::default();
    let rest = headers.parse(service.headers_of(row), view.payload())?;
    let rest = headers.parse(row.headers, rest)?;
    let kind = headers.kind(row)?;
    let length = rest
        .len()
        .checked_sub(usize::from(bth.pad))
        .ok_or(Malformed::Length)?;
    // Padding fills the payload up to a multiple of four bytes and no further (IBTA 9.2).
    if rest.len() % 4 != 0 || length > MAX_PAYLOAD || !(row.payload || rest.is_empty()) {
        return Err(Malformed::Length);
    }
    let packet = Packet {
        first: row.first,
        last: row.last,
        src_qpn: headers.deth.map_or(0, |deth| deth.src_qpn),
        srqn: headers.xrceth.map_or(0, |xrceth| xrceth.srqn),
        ..packet(bth, transport, kind)
    };
    let datagram = headers.deth.map(|deth| DatagramHeaders {
        qkey: deth.qkey,
        ..DatagramHeaders::default()
    });
    Ok((packet, datagram, rest.get(..length).unwrap_or(&[])))
}

/// Returns the single packet of a message, with the fields of its BTH.
fn packet(bth: bth::Repr, transport: Transport, kind: PacketKind) -> Packet {
    Packet {
        transport,
        kind,
        first: true,
        last: true,
        solicited: bth.solicited,
        ack_req: bth.ack_req,
        pkey: bth.pkey,
        dst_qpn: bth.dest_qpn,
        src_qpn: 0,
        psn: bth.psn,
        psns: 1,
        srqn: 0,
        marked: false,
        datagram: None,
        payload: Payload::None,
    }
}

/// Returns a packet that the responder will refuse. Its extended headers are not known, so only the
/// length of the headers together with the payload is checked.
fn refused(bth: bth::Repr, rest: &[u8]) -> Result<Packet, Malformed> {
    if rest.len() % 4 != 0
        || rest.len() < usize::from(bth.pad)
        || rest.len() > extensions::MAX_LEN + MAX_PAYLOAD
    {
        return Err(Malformed::Length);
    }
    let kind = PacketKind::Unknown(bth.opcode & opcode::OPERATION);
    let transport = match bth.opcode & !opcode::OPERATION {
        opcode::service::XRC => Transport::Xrc,
        _ => Transport::Rc,
    };
    Ok(packet(bth, transport, kind))
}

/// Returns the headers of a packet between its BTH and its payload.
fn headers_of(packet: &Packet) -> extensions::Repr {
    extensions::Repr {
        deth: packet.datagram.as_ref().map(|datagram| deth::Repr {
            qkey: datagram.qkey,
            src_qpn: packet.src_qpn,
        }),
        xrceth: (packet.transport == Transport::Xrc).then_some(xrceth::Repr { srqn: packet.srqn }),
        ..extensions::Repr::of(&packet.kind)
    }
}

/// Appends what follows the BTH up to the ICRC: extended headers, payload and padding. Returns the
/// BTH. If `fill` fails, `out` ends at `start` again.
#[inline]
fn append_transport<E>(
    packet: &Packet,
    out: &mut Vec<u8>,
    start: usize,
    fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
) -> Result<bth::Repr, E> {
    let opcode = packet.opcode();
    if let Some((service, row)) = opcode::lookup(opcode) {
        let headers = headers_of(packet);
        headers.emit(service.headers_of(row), out);
        headers.emit(row.headers, out);
    } else if packet.kind == PacketKind::Cnp {
        out.resize(out.len().saturating_add(opcode::CNP_PAYLOAD), 0);
    }
    let payload_at = out.len();
    let length = packet.payload.len() as usize;
    let pad = length.wrapping_neg() & 3;
    let payload_end = payload_at.saturating_add(length);
    out.resize(payload_end.saturating_add(pad), 0);
    if let Some(Err(error)) = out.get_mut(payload_at..payload_end).map(fill) {
        out.truncate(start);
        return Err(error);
    }
    Ok(bth::Repr {
        opcode,
        solicited: packet.solicited,
        pad: pad as u8,
        pkey: packet.pkey,
        dest_qpn: packet.dst_qpn,
        ack_req: packet.ack_req,
        psn: packet.psn,
    })
}

/// Appends the frame of a single packet to `out`. `fill` writes the payload, of
/// `packet.payload.len()` bytes, to its place. If `fill` fails, `out` is left unchanged. On an
/// InfiniBand link the frame is the packet from its LRH to its VCRC.
pub fn emit<E>(
    path: &Path,
    packet: &Packet,
    out: &mut Vec<u8>,
    fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    if let Some(route) = path.local_route {
        return infiniband::emit(path, route, packet, out, fill);
    }
    let start = out.len();
    let is_ipv4 = path.is_ipv4();
    let vlan_len = if path.vlan.is_some() { vlan::LEN } else { 0 };
    let vlan_at = start.saturating_add(ethernet::LEN);
    let ip_at = vlan_at.saturating_add(vlan_len);
    let udp_at = ip_at.saturating_add(if is_ipv4 { ipv4::LEN } else { ipv6::LEN });
    let bth_at = udp_at.saturating_add(udp::LEN);
    // The headers with a fixed place are written last, when the length of the frame is known.
    out.resize(bth_at.saturating_add(bth::LEN), 0);
    let bth = append_transport(packet, out, start, fill)?;
    let transport_len = out.len().saturating_sub(bth_at);
    let udp_payload = transport_len.saturating_add(icrc::LEN).min(0xffff) as u16;
    let udp = udp::Repr {
        source: path.udp_sport,
        destination: udp::PORT,
        payload_len: udp_payload,
    };
    let ip_payload = udp_payload.saturating_add(udp::LEN as u16);
    let ip_type = if is_ipv4 {
        ethernet::TYPE_IPV4
    } else {
        ethernet::TYPE_IPV6
    };
    let vlan = path.vlan.map(|id| vlan::Repr {
        id,
        priority: path.sl,
        drop_eligible: false,
        ether_type: ip_type,
    });
    let ethernet = ethernet::Repr {
        destination: path.dmac,
        source: path.smac,
        ether_type: vlan.map_or(ip_type, |_| ethernet::TYPE_VLAN),
    };
    let mut at = |at: usize, write: &dyn Fn(&mut [u8])| {
        if let Some(place) = out.get_mut(at..) {
            write(place);
        }
    };
    at(start, &|place| ethernet.emit(place));
    if let Some(vlan) = vlan {
        at(vlan_at, &|place| vlan.emit(place));
    }
    if is_ipv4 {
        at(ip_at, &|place| {
            ipv4::Repr::from_path(path, ip_payload).emit(place);
        });
    } else {
        at(ip_at, &|place| {
            ipv6::Repr::from_path(path, ip_payload).emit(place);
        });
    }
    at(udp_at, &|place| udp.emit(place));
    at(bth_at, &|place| bth.emit(place));
    let crc = icrc::compute(out.get(ip_at..).unwrap_or(&[]));
    out.extend(crc);
    Ok(())
}

/// Returns the number of bytes of a datagram from its UDP header on, for the length in its GRH.
pub fn datagram_udp_length(payload: u32, has_imm: bool) -> u32 {
    let imm = if has_imm { imm_dt::LEN } else { 0 };
    let headers = udp::LEN + bth::LEN + deth::LEN + imm + icrc::LEN;
    let padded = payload.checked_next_multiple_of(4).unwrap_or(u32::MAX);
    padded.saturating_add(headers as u32)
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
