// SPDX-License-Identifier: GPL-2.0 OR MIT

//! InfiniBand packets from the LRH to the VCRC. Packets to QP0 are sent on VL 15 and all others on
//! VL 0: the link has one data VL.

use super::{append_transport, parse_transport, split_icrc, Frame, ParsedFrame};
use crate::packet::Packet;
use crate::pool::Pool;
use crate::wire::bth::MULTICAST_QPN;
use crate::wire::lrh::{self, NextHeader};
use crate::wire::{bth, grh, icrc, opcode, put, vcrc, LocalRoute, Malformed, Path};
use alloc::rc::Rc;
use alloc::vec::Vec;

/// Returns the path of a packet. The checksums, and bytes after the GRH, are not read.
pub fn peek_infiniband(bytes: &[u8]) -> Option<Path> {
    layers(bytes).ok().map(|layers| layers.path)
}

/// Parses a packet from its LRH to its VCRC. The result owns a copy of the payload.
pub fn parse_infiniband(bytes: &[u8]) -> Result<Frame, Malformed> {
    Ok(parse_parts(bytes)?.copied())
}

/// Parses a packet that fills a buffer, like [`parse_in`](super::parse_in).
pub fn parse_infiniband_in(buffer: &Rc<Vec<u8>>, pool: &mut Pool) -> Result<Frame, Malformed> {
    Ok(parse_parts(buffer)?.within(buffer, pool))
}

/// LRH and GRH of a packet.
struct LowerLayers<'a> {
    path: Path,
    lrh: lrh::Repr,
    /// Bytes of the GRH, if the packet has one.
    grh: &'a [u8],
    /// Packet from its LRH to its ICRC.
    packet: &'a [u8],
    /// Packet from its BTH to its ICRC.
    transport: &'a [u8],
    vcrc: [u8; vcrc::LEN],
}

fn layers(bytes: &[u8]) -> Result<LowerLayers<'_>, Malformed> {
    let view = lrh::View::new(bytes)?;
    let lrh = lrh::Repr::parse(view)?;
    if view.packet().len().saturating_add(vcrc::LEN) != bytes.len() {
        return Err(Malformed::Length);
    }
    let has_grh = lrh.next_header == NextHeader::Grh;
    let mut path = Path {
        sl: lrh.sl,
        local_route: Some(LocalRoute {
            slid: lrh.slid,
            dlid: lrh.dlid,
            has_grh,
        }),
        ..Path::default()
    };
    let (mut grh, mut transport): (&[u8], _) = (&[], view.payload());
    if has_grh {
        let inner = grh::View::new(transport)?;
        grh::Repr::parse(inner)?.to_path(&mut path);
        // Both lengths end at the end of the ICRC.
        if inner.packet().len() != transport.len() {
            return Err(Malformed::Length);
        }
        grh = transport.get(..grh::LEN).unwrap_or(&[]);
        transport = inner.payload();
    }
    Ok(LowerLayers {
        path,
        lrh,
        grh,
        packet: view.packet(),
        transport,
        vcrc: view.vcrc(),
    })
}

fn parse_parts(bytes: &[u8]) -> Result<ParsedFrame<'_>, Malformed> {
    let layers = layers(bytes)?;
    // The link layer checks the VCRC before any other field is used (IBTA 7.3).
    if vcrc::compute(layers.packet) != layers.vcrc {
        return Err(Malformed::Vcrc);
    }
    let (transport, _) = split_icrc(layers.transport)?;
    let (covered, crc) = split_icrc(layers.packet)?;
    let view = bth::View::new(transport)?;
    if icrc::compute_infiniband(layers.lrh.next_header, covered) != *crc {
        return Err(Malformed::Icrc);
    }
    check_destination(&layers.lrh, view.dest_qpn())?;
    // Congestion notifications of this form belong to RoCEv2 (A17.9.3).
    if view.opcode() == opcode::CNP {
        return Err(Malformed::Opcode);
    }
    let (packet, mut datagram, payload) = parse_transport(view)?;
    if let Some(datagram) = datagram.as_mut() {
        put(&mut datagram.grh, 0, layers.grh);
        datagram.path = layers.path;
    }
    Ok(ParsedFrame {
        frame: Frame {
            path: layers.path,
            packet,
        },
        datagram,
        payload,
    })
}

/// Returns the number of bytes of a single packet on a path, from its LRH to its ICRC.
pub fn infiniband_length(path: &Path, packet: &Packet) -> usize {
    let grh_len = if path.has_grh() { grh::LEN } else { 0 };
    let extensions = opcode::lookup(packet.opcode()).map_or(0, |(service, row)| {
        let all = service.headers_of(row).iter().chain(row.headers);
        all.map(|header| header.length()).sum::<usize>()
    });
    let payload = packet.payload.len() as usize;
    [lrh::LEN, grh_len, bth::LEN, extensions, icrc::LEN]
        .iter()
        .sum::<usize>()
        .saturating_add(payload.next_multiple_of(4))
}

fn check_destination(lrh: &lrh::Repr, qpn: u32) -> Result<(), Malformed> {
    if (lrh.vl == lrh::MANAGEMENT_VL) != (qpn == 0) {
        return Err(Malformed::VirtualLane);
    }
    if qpn == MULTICAST_QPN && lrh.next_header == NextHeader::Bth {
        return Err(Malformed::NoGrh);
    }
    Ok(())
}

/// Appends a packet, like [`emit`](super::emit), which stays short for RoCE because this function
/// is not inlined.
#[inline(never)]
pub(super) fn emit<E>(
    path: &Path,
    route: LocalRoute,
    packet: &Packet,
    out: &mut Vec<u8>,
    fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    let start = out.len();
    let grh_len = if route.has_grh { grh::LEN } else { 0 };
    let grh_at = start.saturating_add(lrh::LEN);
    let bth_at = grh_at.saturating_add(grh_len);
    out.resize(bth_at.saturating_add(bth::LEN), 0);
    let bth = append_transport(packet, out, start, fill)?;
    let end = out.len().saturating_add(icrc::LEN);
    let lrh = lrh::Repr {
        vl: match packet.dst_qpn {
            0 => lrh::MANAGEMENT_VL,
            _ => 0,
        },
        sl: path.sl,
        next_header: match route.has_grh {
            true => NextHeader::Grh,
            false => NextHeader::Bth,
        },
        dlid: route.dlid,
        packet_length: lrh::words(end.saturating_sub(start)),
        slid: route.slid,
    };
    let mut at = |at: usize, write: &dyn Fn(&mut [u8])| {
        if let Some(place) = out.get_mut(at..) {
            write(place);
        }
    };
    at(start, &|place| lrh.emit(place));
    if route.has_grh {
        let length = end.saturating_sub(bth_at).min(0xffff) as u16;
        at(grh_at, &|place| {
            grh::Repr::from_path(path, length).emit(place)
        });
    }
    at(bth_at, &|place| bth.emit(place));
    let crc = icrc::compute_infiniband(lrh.next_header, out.get(start..).unwrap_or(&[]));
    out.extend(crc);
    let crc = vcrc::compute(out.get(start..).unwrap_or(&[]));
    out.extend(crc);
    Ok(())
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
