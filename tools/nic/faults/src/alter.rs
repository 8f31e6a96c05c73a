// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Alters frames as a fault on the wire, a router or an attacker on the path would.

use crate::rule::{Corruption, HeaderField};
use verbena_abi::cmd::LinkLayer;
use verbena_transport::wire::lrh::{self, NextHeader};
use verbena_transport::wire::opcode::{self, ExtensionHeader};
use verbena_transport::wire::{bth, ethernet, grh, icrc, ipv4, ipv6, udp, vcrc, vlan};

/// Offsets of the parts of a frame.
#[derive(Clone, Copy, Debug)]
struct FrameOffsets {
    /// Offset of the first byte that the checksums cover: of the IP header or the LRH.
    begin: usize,
    bth: usize,
    /// Offset of the ICRC.
    end: usize,
    /// Header that follows the LRH, in an InfiniBand packet.
    next_header: Option<NextHeader>,
}

fn offsets(frame: &[u8], link_layer: LinkLayer) -> Option<FrameOffsets> {
    match link_layer {
        LinkLayer::Ethernet => offsets_of_ethernet(frame),
        LinkLayer::InfiniBand => offsets_of_infiniband(frame),
    }
}

fn offsets_of_infiniband(frame: &[u8]) -> Option<FrameOffsets> {
    let next_header = lrh::View::new(frame).ok()?.next_header()?;
    let bth = match next_header {
        NextHeader::Bth => lrh::LEN,
        NextHeader::Grh => lrh::LEN + grh::LEN,
    };
    let end = frame.len().checked_sub(icrc::LEN + vcrc::LEN)?;
    (end >= bth + bth::LEN).then_some(FrameOffsets {
        begin: 0,
        bth,
        end,
        next_header: Some(next_header),
    })
}

fn offsets_of_ethernet(frame: &[u8]) -> Option<FrameOffsets> {
    let ether_type = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
    let mut ip = ethernet::LEN;
    if ether_type(ip - 2)? == ethernet::TYPE_VLAN {
        ip += vlan::LEN;
    }
    let ip_len = match ether_type(ip - 2)? {
        ethernet::TYPE_IPV4 => ipv4::LEN,
        ethernet::TYPE_IPV6 => ipv6::LEN,
        _ => return None,
    };
    let bth = ip + ip_len + udp::LEN;
    let end = frame.len().checked_sub(icrc::LEN)?;
    (end >= bth + bth::LEN).then_some(FrameOffsets {
        begin: ip,
        bth,
        end,
        next_header: None,
    })
}

/// Returns the headers that follow the BTH, each with its offset, and the offset of the payload.
fn extension_headers(
    frame: &[u8],
    at: FrameOffsets,
) -> Option<(Vec<(ExtensionHeader, usize)>, usize)> {
    let (service, row) = opcode::lookup(*frame.get(at.bth)?)?;
    let mut next = at.bth + bth::LEN;
    let mut all = Vec::new();
    for &header in service.headers_of(row).iter().chain(row.headers) {
        all.push((header, next));
        next += header.length();
    }
    Some((all, next))
}

/// Returns the offset of a field. None if the frame does not have the field.
fn field_offset(frame: &[u8], at: FrameOffsets, field: HeaderField) -> Option<usize> {
    let of = |wanted: &[(ExtensionHeader, usize)]| {
        let (all, _) = extension_headers(frame, at)?;
        all.iter().find_map(|(header, begin)| {
            let found = wanted.iter().find(|(known, _)| known == header);
            found.map(|(_, offset)| begin + offset)
        })
    };
    match field {
        HeaderField::Opcode => Some(at.bth),
        HeaderField::Pkey => Some(at.bth + 2),
        HeaderField::DestQp => Some(at.bth + 5),
        HeaderField::Psn => Some(at.bth + 9),
        HeaderField::Va => of(&[(ExtensionHeader::Reth, 0), (ExtensionHeader::AtomicEth, 0)]),
        HeaderField::Rkey => of(&[(ExtensionHeader::Reth, 8), (ExtensionHeader::AtomicEth, 8)]),
        HeaderField::DmaLength => of(&[(ExtensionHeader::Reth, 12)]),
        HeaderField::Syndrome => of(&[(ExtensionHeader::Aeth, 0)]),
        HeaderField::Msn => of(&[(ExtensionHeader::Aeth, 1)]),
        HeaderField::Qkey => of(&[(ExtensionHeader::Deth, 0)]),
        HeaderField::OriginalData => of(&[(ExtensionHeader::AtomicAckEth, 0)]),
    }
}

/// Changes a frame of a port with this link layer. Returns false, and leaves the frame as it was,
/// if the frame does not have the field or byte.
pub fn corrupt(frame: &mut [u8], link_layer: LinkLayer, how: &Corruption) -> bool {
    try_corrupt(frame, link_layer, how).is_some()
}

fn try_corrupt(frame: &mut [u8], link_layer: LinkLayer, how: &Corruption) -> Option<()> {
    let at = offsets(frame, link_layer)?;
    match (how.field, how.payload) {
        (Some(name), _) => {
            let begin = field_offset(frame, at, name)?;
            let bytes = frame.get_mut(begin..begin + name.bytes())?;
            match how.value {
                Some(value) => {
                    let value = value.to_be_bytes();
                    bytes.copy_from_slice(value.get(value.len() - bytes.len()..)?);
                }
                None => *bytes.last_mut()? ^= 1,
            }
        }
        (None, offset) => {
            let (_, payload) = extension_headers(frame, at)?;
            let pad = usize::from(frame.get(at.bth + 1)? >> 4 & 3);
            let end = at.end.checked_sub(pad)?;
            let begin = payload.checked_add(offset? as usize)?;
            let byte = frame.get_mut(..end)?.get_mut(begin)?;
            *byte = how.value.map_or(*byte ^ 1, |value| value as u8);
        }
    }
    if how.has_valid_icrc() {
        write_icrc(frame, at)?;
    }
    // Each link writes another VCRC, so that of an altered packet is right (IBTA 7.8.2).
    if at.next_header.is_some() {
        let vcrc_at = at.end + icrc::LEN;
        let right = vcrc::compute(frame.get(at.begin..vcrc_at)?);
        frame.get_mut(vcrc_at..)?.copy_from_slice(&right);
    }
    Some(())
}

/// Writes the correct ICRC of a frame.
fn write_icrc(frame: &mut [u8], at: FrameOffsets) -> Option<()> {
    let covered = frame.get(at.begin..at.end)?;
    let right = match at.next_header {
        Some(next_header) => icrc::compute_infiniband(next_header, covered),
        None => icrc::compute(covered),
    };
    let place = frame.get_mut(at.end..at.end + icrc::LEN)?;
    place.copy_from_slice(&right);
    Some(())
}
