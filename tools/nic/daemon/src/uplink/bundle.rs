// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Bundles: many frames in one datagram, between NICs that both know bundles. The kernel's cost is
//! that of a datagram, not that of a byte.
//!
//! A bundle begins with [`MARK`], which cannot be a frame: its source is no station's address. Then
//! come the frames, each after its length (2 bytes, big endian). A bundle without frames informs
//! the peer that the sender accepts bundles.

use std::io::IoSlice;

/// Beginning of a bundle: the destination is a link's neighbour (IEEE 802.1Q 8.6.3), the source is
/// no station, and the EtherType is one for experiments.
pub(super) const MARK: [u8; 14] = [
    0x01, 0x80, 0xc2, 0, 0, 0x0e, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x88, 0xb5,
];
/// Largest number of bytes of a bundle.
const MAX_SEGMENTS: usize = 60 << 10;

/// Returns how many of these frames, from the first on, fit into one datagram; at least one.
pub(super) fn count_fitting(frames: &[&[u8]]) -> usize {
    let mut bytes = MARK.len();
    let fitting = frames.iter().take_while(|frame| {
        bytes += 2 + frame.len();
        bytes <= MAX_SEGMENTS
    });
    fitting.count().max(1)
}

/// Returns the lengths of frames as a bundle has them.
pub(super) fn lengths(frames: &[&[u8]]) -> Vec<[u8; 2]> {
    let lengths = frames.iter().map(|f| (f.len() as u16).to_be_bytes());
    lengths.collect()
}

/// Returns the parts of a datagram that carries these frames. A single frame is sent without a
/// bundle.
pub(super) fn parts<'a>(frames: &[&'a [u8]], lengths: &'a [[u8; 2]]) -> Vec<IoSlice<'a>> {
    if let [only] = frames {
        return vec![IoSlice::new(only)];
    }
    let pairs = lengths.iter().zip(frames);
    let rest = pairs.flat_map(|(length, frame)| [IoSlice::new(length), IoSlice::new(frame)]);
    std::iter::once(IoSlice::new(&MARK)).chain(rest).collect()
}

/// Takes the next frame of a bundle without its mark. Returns `None` if there is no other, or the
/// rest is malformed.
pub(super) fn next<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, bytes) = rest.split_first_chunk::<2>()?;
    let (frame, bytes) = bytes.split_at_checked(u16::from_be_bytes(*length).into())?;
    *rest = bytes;
    Some(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_contains_its_frames_and_the_rest_of_a_broken_bundle_is_dropped() {
        let frames: [&[u8]; 3] = [&[1; 60], &[], &[3; 9000]];
        let lengths = lengths(&frames);
        let bytes: Vec<u8> = parts(&frames, &lengths)
            .iter()
            .flat_map(|p| p.to_vec())
            .collect();
        let rest = bytes.strip_prefix(&MARK).unwrap();
        let read = |mut rest| std::iter::from_fn(|| next(&mut rest)).collect::<Vec<_>>();
        assert_eq!(read(rest), frames);
        assert_eq!(read(&rest[..rest.len() - 1]), frames[..2]);
        assert_eq!(read(&rest[..1]), [[0u8; 0]; 0]);
        assert_eq!(parts(&frames[..1], &lengths).len(), 1);
    }

    #[test]
    fn the_length_of_a_bundle_is_limited() {
        let frame = [0; 1500];
        let count = count_fitting(&[&frame[..]; 100]);
        assert!(
            count * 1502 + MARK.len() <= MAX_SEGMENTS
                && (count + 1) * 1502 + MARK.len() > MAX_SEGMENTS
        );
        // A frame that is longer than a bundle is sent alone.
        assert_eq!(count_fitting(&[&[0; MAX_SEGMENTS][..], &[1]]), 1);
    }
}
