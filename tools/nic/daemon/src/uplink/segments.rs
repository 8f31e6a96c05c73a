// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Segmentation offload of UDP sockets: frames of one length go to the kernel as one datagram,
//! which the kernel, or the network card, cuts again (UDP_SEGMENT). Received frames come as one
//! datagram where the kernel has joined them (UDP_GRO).
//!
//! On the network each frame is its own datagram, so the other end needs no support. Where the
//! kernel or the route does not support segmentation, frames are sent one by one.

use super::batch;
use nix::sys::socket::{sendmsg, setsockopt, sockopt, ControlMessage, MsgFlags};
use rustix::io::Errno;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Largest number of segments that every kernel with UDP_SEGMENT accepts at once.
const MAX_SEGMENTS: usize = 64;
/// Largest number of bytes of a datagram that is cut, with room for its headers.
const MAX_DATAGRAM_BYTES: usize = 65_000;
/// Smallest number of frames that are worth a system call of their own.
const MIN_RUN: usize = 3;

/// Has the kernel join received datagrams.
pub(super) fn enable_gro(socket: &impl AsFd) {
    if let Err(e) = setsockopt(socket, sockopt::UdpGroSegment, &true) {
        log::debug!("uplink: the kernel does not join received datagrams: {e}");
    }
}

/// State of a socket's route for sending.
pub(super) struct SegmentedSender {
    /// Length of the longest frame that is sent in segments; longer frames are sent one by one.
    longest: AtomicUsize,
}

impl Default for SegmentedSender {
    fn default() -> Self {
        Self {
            longest: AtomicUsize::new(usize::MAX),
        }
    }
}

impl SegmentedSender {
    /// Sends frames over a connected socket, in order. Returns the number of frames that were sent.
    ///
    /// # Errors
    ///
    /// The error is that of the first frame, if it was not sent.
    pub(super) fn send(
        &self,
        socket: BorrowedFd<'_>,
        frames: &[&[u8]],
    ) -> rustix::io::Result<usize> {
        let mut sent = 0;
        while let Some(rest) = frames.get(sent..).filter(|rest| !rest.is_empty()) {
            let longest = self.longest.load(Ordering::Relaxed);
            let run = run(rest, longest);
            let singles = if run < MIN_RUN {
                until_run(rest, longest)
            } else {
                0
            };
            let wanted = run.max(singles);
            let result = if singles > 0 {
                batch::send(socket, rest.get(..singles).unwrap_or(rest))
            } else {
                self.send_run(socket, rest.get(..run).unwrap_or(rest))
            };
            match result {
                Ok(count) => {
                    sent += count;
                    if singles > 0 && count < wanted.min(super::BATCH) {
                        break;
                    }
                }
                Err(e) if sent == 0 => return Err(e),
                Err(_) => break,
            }
        }
        Ok(sent)
    }

    /// Sends frames of one length, but for the last, as one datagram. Returns the number of frames
    /// that were sent; it is 0 if the route does not support segments of this length, which are not
    /// tried again.
    fn send_run(&self, socket: BorrowedFd<'_>, run: &[&[u8]]) -> rustix::io::Result<usize> {
        let length = run.first().map_or(0, |frame| frame.len());
        let slices: Vec<_> = run.iter().map(|frame| IoSlice::new(frame)).collect();
        let size = length as u16;
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let cut = [ControlMessage::UdpGsoSegments(&size)];
        match sendmsg::<()>(socket.as_raw_fd(), &slices, &cut, flags, None) {
            Ok(_) => Ok(run.len()),
            // The segments are longer than the route allows, or neither kernel nor network card can
            // cut them.
            Err(
                nix::Error::EINVAL
                | nix::Error::EMSGSIZE
                | nix::Error::EIO
                | nix::Error::EOPNOTSUPP,
            ) => {
                let longest = length.saturating_sub(1);
                if self.longest.fetch_min(longest, Ordering::Relaxed) == usize::MAX {
                    log::info!("uplink: frames of {length} bytes and more are sent one by one");
                }
                Ok(0)
            }
            Err(e) => Err(Errno::from_raw_os_error(e as i32)),
        }
    }
}

/// Returns how many frames, from the first on, can be sent as one datagram: all have one length,
/// but the last may be shorter.
fn run(frames: &[&[u8]], longest: usize) -> usize {
    let Some(length) = frames.first().map(|f| f.len()) else {
        return 0;
    };
    if length == 0 || length > longest {
        return 1;
    }
    let most = MAX_SEGMENTS.min(MAX_DATAGRAM_BYTES / length);
    let equal = frames.iter().take(most).take_while(|f| f.len() == length);
    let equal = equal.count();
    let last = frames.get(equal).filter(|_| equal < most);
    let is_shorter = last.is_some_and(|f| !f.is_empty() && f.len() < length);
    (equal + usize::from(is_shorter)).max(1)
}

/// Returns the number of frames before the first run of at least [`MIN_RUN`].
fn until_run(frames: &[&[u8]], longest: usize) -> usize {
    let starts = 1..frames.len();
    let is_run = |at: &usize| {
        frames
            .get(*at..)
            .is_some_and(|rest| run(rest, longest) >= MIN_RUN)
    };
    starts.into_iter().find(is_run).unwrap_or(frames.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frames_of_a_run_have_one_length_but_for_a_shorter_last_one() {
        let frames = |lengths: &[usize]| lengths.iter().map(|&n| vec![0; n]).collect::<Vec<_>>();
        for (lengths, longest, first, before) in [
            (&[100, 100, 100, 60, 60][..], usize::MAX, 4, 1),
            (&[116, 100, 100, 100], 1000, 2, 1),
            (&[60, 100, 100], 1000, 1, 3),
            (&[100, 100, 100, 0], 1000, 3, 4),
            (&[100, 100, 100], 99, 1, 3),
            (&[40_000, 40_000], usize::MAX, 1, 2),
        ] {
            let frames = frames(lengths);
            let slices: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
            assert_eq!(run(&slices, longest), first, "{lengths:?}");
            assert_eq!(until_run(&slices, longest), before, "{lengths:?}");
        }
        assert_eq!(run(&[&[0; 20][..]; 100], usize::MAX), MAX_SEGMENTS);
    }

    #[test]
    fn frames_that_cannot_be_sent_in_segments_are_sent_one_by_one() {
        let [one, two] = [0, 1].map(|_| std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
        one.connect(two.local_addr().unwrap()).unwrap();
        let segments = SegmentedSender::default();
        let received = |length: usize| {
            let mut bytes = vec![0; 65536];
            let frames = (0..3).map(|_| two.recv(&mut bytes).unwrap());
            assert_eq!(frames.collect::<Vec<_>>(), [length; 3]);
        };
        let send = |length: usize| {
            let frame = vec![1; length];
            assert_eq!(segments.send(one.as_fd(), &[&frame[..]; 3]).unwrap(), 3);
            received(length);
        };
        send(1082);
        assert_eq!(segments.longest.load(Ordering::Relaxed), usize::MAX);
        // Three frames are more than a datagram has room for, so the kernel refuses to cut them,
        // as for a route with a smaller MTU.
        let frame = vec![1; 30_000];
        assert_eq!(segments.send_run(one.as_fd(), &[&frame[..]; 3]).unwrap(), 0);
        assert_eq!(segments.longest.load(Ordering::Relaxed), 29_999);
        send(30_000);
        send(1082);
    }
}
