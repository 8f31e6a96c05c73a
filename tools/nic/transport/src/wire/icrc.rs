// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Invariant CRC (IBTA A17.3): CRC-32 over 8 bytes of ones (where InfiniBand has its LRH), IP, UDP,
//! BTH and all bytes after the BTH, with ones in place of the fields that may change on the way.
//! The CRC is stored least significant byte first. The ICRC of an InfiniBand packet (IBTA 7.8.1)
//! covers the LRH as well, and a GRH in place of IP and UDP.

use super::lrh::NextHeader;
use super::{bth, grh, ipv4, ipv6, lrh, put, udp};
use crc32fast::Hasher;

/// Number of bytes of the ICRC.
pub const LEN: usize = 4;
/// Number of bytes of ones where InfiniBand has its local route header.
const LRH: usize = 8;

/// Computes the ICRC of a packet from its IP header on, without the ICRC itself.
pub fn compute(packet: &[u8]) -> [u8; LEN] {
    // The headers with masked fields are assembled first, so that the CRC runs over two long ranges
    // of bytes.
    let mut head = [0xff; LRH + ipv6::LEN + udp::LEN + bth::LEN];
    let is_ipv6 = packet.first().is_some_and(|version| version >> 4 == 6);
    let ip_len = if is_ipv6 { ipv6::LEN } else { ipv4::LEN };
    let (udp_at, bth_at) = (ip_len, ip_len + udp::LEN);
    let end = bth_at + bth::LEN;
    if is_ipv6 {
        put(&mut head, LRH, &ipv6::masked(packet));
    } else {
        put(&mut head, LRH, &ipv4::masked(packet));
    }
    let from = |at| packet.get(at..).unwrap_or(&[]);
    put(&mut head, LRH + udp_at, &udp::masked(from(udp_at)));
    put(&mut head, LRH + bth_at, &bth::masked(from(bth_at)));
    let mut hasher = Hasher::new();
    hasher.update(head.get(..LRH + end).unwrap_or(&[]));
    hasher.update(from(end));
    hasher.finalize().to_le_bytes()
}

/// Computes the ICRC of an InfiniBand packet from its LRH on, without the ICRC itself. Without a
/// GRH, the ICRC covers the LRH except for the VL. With a GRH, a router writes another LRH, so all
/// bits of the LRH count as ones (IBTA 7.8.1).
pub fn compute_infiniband(next_header: NextHeader, packet: &[u8]) -> [u8; LEN] {
    let mut head = [0xff; lrh::LEN + grh::LEN + bth::LEN];
    let from = |at| packet.get(at..).unwrap_or(&[]);
    let bth_at = match next_header {
        NextHeader::Bth => {
            put(&mut head, 0, &lrh::masked(packet));
            lrh::LEN
        }
        NextHeader::Grh => {
            put(&mut head, lrh::LEN, &ipv6::masked(from(lrh::LEN)));
            lrh::LEN + grh::LEN
        }
    };
    let end = bth_at + bth::LEN;
    put(&mut head, bth_at, &bth::masked(from(bth_at)));
    let mut hasher = Hasher::new();
    hasher.update(head.get(..end).unwrap_or(&[]));
    hasher.update(from(end));
    hasher.finalize().to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{samples, vcrc};

    /// A CNP captured from a ConnectX-4 Lx, from the IP header on; the last four bytes are its
    /// ICRC. The frame is a public test vector of Scapy's RoCE layer.
    const CONNECTX4_CNP: [u8; 60] = [
        0x45, 0xc2, 0x00, 0x3c, 0x71, 0x8c, 0x40, 0x00, 0x40, 0x11, 0x91, 0x61, 0x0a, 0x00, 0x11,
        0x01, 0x0a, 0x00, 0x12, 0x01, 0x00, 0x00, 0x12, 0xb7, 0x00, 0x28, 0x00, 0x00, 0x81, 0x00,
        0xff, 0xff, 0x40, 0x00, 0x01, 0x18, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x82, 0xfd, 0x00, 0x2a,
    ];

    #[test]
    fn icrc_of_a_frame_from_hardware() {
        let (packet, icrc) = CONNECTX4_CNP.split_at(56);
        assert_eq!(compute(packet), icrc);
    }

    /// `vcrc` is the number of bytes of the VCRC after the ICRC, if the packet has it.
    fn check_infiniband(packet: &[u8], next_header: NextHeader, vcrc: usize) {
        let (packet, _) = packet.split_at(packet.len() - vcrc);
        let (covered, icrc) = packet.split_last_chunk().unwrap();
        assert_eq!(compute_infiniband(next_header, covered), *icrc);
    }

    #[test]
    fn icrc_of_infiniband_packets_from_elsewhere() {
        check_infiniband(&samples::LOCAL_WRITE, NextHeader::Bth, 0);
        check_infiniband(&samples::LOCAL_ACKNOWLEDGE, NextHeader::Bth, vcrc::LEN);
        check_infiniband(&samples::directed_route_smp(), NextHeader::Bth, vcrc::LEN);
        check_infiniband(&samples::GLOBAL_DATAGRAM, NextHeader::Grh, vcrc::LEN);
    }

    #[test]
    fn icrc_of_a_uc_send() {
        // UC SEND ONLY of 18 bytes with 2 bytes of padding, 192.168.0.7 to itself, QPN 211, PSN 13571856.
        let mut packet = std::vec![0x45, 0x01, 0, 64, 0x04, 0x78, 0x40, 0, 64, 17, 0xb4, 0xd5];
        packet.extend([192, 168, 0, 7, 192, 168, 0, 7]);
        packet.extend([0xc0, 0x00, 0x12, 0xb7, 0, 44, 0xac, 0xa2]);
        packet.extend([0x24, 0x60, 0xff, 0xff, 0, 0, 0, 211, 0, 0xcf, 0x17, 0x10]);
        packet.extend(*b"F0\x81\x8b\xe2\x895\xd9\x0e\x9a\x95PT\x01\xbe\x88^P\x00\x00");
        assert_eq!(compute(&packet), [0x78, 0xf3, 0x53, 0xf3]);
    }

    /// UC RDMA WRITE ONLY of 3 bytes over IPv6, from its IP header on, built by Scapy.
    const UC_WRITE_IPV6: [u8; 84] = [
        0x61, 0x23, 0x45, 0x67, 0x00, 0x2c, 0x11, 0x09, 0xfe, 0x80, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x20, 0x01, 0x0d, 0xb8, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0xc0, 0x01, 0x12, 0xb7, 0x00,
        0x2c, 0x00, 0x00, 0x2a, 0x50, 0xff, 0xff, 0x00, 0x00, 0x00, 0xd3, 0x00, 0xcf, 0x17, 0x10,
        0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x40, 0x00, 0x00, 0x02, 0x5a, 0x00, 0x00, 0x00,
        0x03, 0x61, 0x62, 0x63, 0x00, 0xd8, 0x47, 0x29, 0x11,
    ];

    #[test]
    fn icrc_of_a_uc_write_over_ipv6() {
        let mut packet = UC_WRITE_IPV6;
        let icrc = packet[80..].to_vec();
        assert_eq!(compute(&packet[..80])[..], icrc);
        packet[0] ^= 0x0f; // traffic class
        packet[1..4].fill(0); // traffic class, flow label
        packet[7] = 64; // hop limit
        packet[46..48].fill(7); // UDP checksum
        packet[52] = 0xff; // FECN, BECN
        assert_eq!(compute(&packet[..80])[..], icrc);
        packet[0] ^= 0x20; // version
        assert_ne!(compute(&packet[..80])[..], icrc);
    }

    #[test]
    fn fields_that_routers_change_do_not_change_the_icrc() {
        let mut packet = CONNECTX4_CNP;
        packet[1] = 0; // traffic class
        packet[8] = 1; // TTL
        packet[10..12].fill(0); // IP checksum
        packet[26..28].fill(7); // UDP checksum
        packet[32] = 0; // FECN, BECN
        let (packet, icrc) = packet.split_at(56);
        assert_eq!(compute(packet), icrc);
    }
}
