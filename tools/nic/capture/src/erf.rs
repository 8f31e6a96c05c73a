// SPDX-License-Identifier: GPL-2.0 OR MIT

//! ERF records (Endace's extensible record format) of InfiniBand packets. tshark has no link type
//! for an InfiniBand packet alone, and reads packets from such records, as `ibdump` writes them.

/// Number of bytes of the header of a record.
const HEADER: usize = 16;
/// Type of a record with an InfiniBand packet.
const TYPE_INFINIBAND: u8 = 21;
/// Flag: the record is as long as its packet requires.
const VARYING_LENGTH: u8 = 1 << 2;

const NS_PER_S: u64 = 1_000_000_000;

/// Returns the record of a packet, from its LRH to its VCRC, that was seen at a time.
pub fn record(time_ns: u64, packet: &[u8]) -> Vec<u8> {
    let length = |bytes: usize| u16::try_from(bytes).unwrap_or(u16::MAX).to_be_bytes();
    let mut record = Vec::with_capacity(HEADER + packet.len());
    record.extend(timestamp(time_ns).to_le_bytes());
    record.extend([TYPE_INFINIBAND, VARYING_LENGTH]);
    record.extend(length(HEADER + packet.len()));
    // Number of packets that were lost before this one.
    record.extend([0; 2]);
    record.extend(length(packet.len()));
    record.extend_from_slice(packet);
    record
}

/// Returns the time as seconds in the upper 32 bits, and their fraction in the lower ones. The
/// fraction is rounded up, so that a reader that rounds down gets the same nanosecond.
fn timestamp(time_ns: u64) -> u64 {
    let fraction = ((time_ns % NS_PER_S) << 32).div_ceil(NS_PER_S);
    (time_ns / NS_PER_S) << 32 | fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_the_fields_of_one_from_hardware() {
        // The header of packet 11 of Wireshark's sample capture `infiniband.pcap`, whose record is
        // padded to 48 bytes.
        let time_ns = 0x482b_41f8 * NS_PER_S + 180_740_565;
        let record = record(time_ns, &[7; 30]);
        assert_eq!(record[4..10], [0xf8, 0x41, 0x2b, 0x48, 21, 4]);
        assert_eq!(record[10..16], [0, 46, 0, 0, 0, 30]);
        assert_eq!(record[16..], [7; 30]);
    }

    #[test]
    fn a_time_is_exact_to_the_nanosecond() {
        for time_ns in [0, 1, 999_999_999, NS_PER_S, 0x1234_5678_9abc_def0] {
            let stamp = timestamp(time_ns);
            let fraction = (stamp & 0xffff_ffff) * NS_PER_S >> 32;
            assert_eq!((stamp >> 32) * NS_PER_S + fraction, time_ns);
        }
    }
}
