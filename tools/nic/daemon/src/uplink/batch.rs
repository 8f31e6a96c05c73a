// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Batches of frames: many frames with one system call, and many in one datagram where both ends
//! support that.

use super::{bundle, BATCH, MAX_FRAME};
use nix::cmsg_space;
use nix::sys::socket::{recvmmsg, ControlMessageOwned, MsgFlags, MultiHeaders};
use rustix::net::{sendmmsg, MMsgHdr, SendAncillaryBuffer, SendFlags};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Largest number of datagrams that are received with one system call.
const MAX_DATAGRAMS: usize = 64;
/// Largest number of datagrams that are received with one system call while they carry many frames,
/// so that the engine's work before its next slice is bounded.
const MAX_FULL_DATAGRAMS: usize = 8;
/// Number of calls for which [`MAX_FULL_DATAGRAMS`] applies after the last datagram with many
/// frames.
const WARY_CALLS: u8 = 200;

/// Contents of a datagram.
#[derive(Clone, Copy)]
enum DatagramContents {
    /// The datagram is one frame.
    One,
    /// The datagram is a bundle.
    Bundle,
    /// The datagram is a sequence of frames of this length, but for the last: the kernel has joined
    /// them.
    Equal(usize),
}

/// Frames that were received at once. The buffers are allocated at the first use.
#[derive(Default)]
pub struct Batch {
    buffers: Vec<Vec<u8>>,
    /// Length and contents of the datagrams in the first buffers.
    datagrams: Vec<(usize, DatagramContents)>,
    /// Number of calls for which datagrams are still expected to carry many frames.
    wary: u8,
}

/// Iterator over the frames of one datagram.
enum DatagramFrames<'a> {
    One(Option<&'a [u8]>),
    Bundle(&'a [u8]),
    Equal(std::slice::Chunks<'a, u8>),
}

impl<'a> Iterator for DatagramFrames<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        match self {
            Self::One(frame) => frame.take(),
            Self::Bundle(rest) => bundle::next(rest),
            Self::Equal(frames) => frames.next(),
        }
    }
}

impl Batch {
    /// Returns the received frames.
    pub fn frames(&self) -> impl Iterator<Item = &[u8]> {
        let pairs = self.buffers.iter().zip(&self.datagrams);
        pairs.flat_map(|(buffer, &(length, contents))| {
            let bytes = buffer.get(..length).unwrap_or(&[]);
            match contents {
                DatagramContents::One => DatagramFrames::One(Some(bytes)),
                DatagramContents::Bundle => {
                    DatagramFrames::Bundle(bytes.get(bundle::MARK.len()..).unwrap_or(&[]))
                }
                DatagramContents::Equal(length) => {
                    DatagramFrames::Equal(bytes.chunks(length.max(1)))
                }
            }
        })
    }

    fn make_room(&mut self) {
        self.datagrams.clear();
        self.buffers
            .resize_with(MAX_DATAGRAMS, || vec![0; MAX_FRAME]);
    }

    /// Receives frames one by one, at most [`MAX_DATAGRAMS`], until `receive` returns `None`.
    pub(super) fn fill(&mut self, mut receive: impl FnMut(&mut [u8]) -> Option<usize>) {
        self.make_room();
        let received = self.buffers.iter_mut().map_while(|b| receive(b));
        self.datagrams
            .extend(received.map(|n| (n, DatagramContents::One)));
    }

    /// Receives the datagrams that wait at a connected socket, at most [`MAX_DATAGRAMS`]. A
    /// datagram that was too long becomes an empty frame.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>) -> Result<(), nix::Error> {
        self.make_room();
        let max = match self.wary {
            0 => MAX_DATAGRAMS,
            _ => MAX_FULL_DATAGRAMS,
        };
        self.wary = self.wary.saturating_sub(1);
        let mut headers = MultiHeaders::<()>::preallocate(max, Some(cmsg_space!(i32)));
        let slices = self.buffers.iter_mut().map(|b| [IoSliceMut::new(b)]);
        let mut slices: Vec<_> = slices.take(max).collect();
        let flags = MsgFlags::MSG_DONTWAIT;
        let received = recvmmsg(socket.as_raw_fd(), &mut headers, &mut slices, flags, None)?;
        for message in received {
            let is_whole = !message.flags.contains(MsgFlags::MSG_TRUNC);
            let mut control_messages = message.cmsgs().into_iter().flatten();
            let equal = control_messages.find_map(|control| match control {
                ControlMessageOwned::UdpGroSegments(length) => usize::try_from(length).ok(),
                _ => None,
            });
            let contents = equal.map_or(DatagramContents::One, DatagramContents::Equal);
            let length = if is_whole { message.bytes } else { 0 };
            if equal.is_some_and(|equal| equal < length) {
                self.wary = WARY_CALLS;
            }
            self.datagrams.push((length, contents));
        }
        Ok(())
    }

    /// Finds the bundles among the received datagrams. Returns true if there were any.
    pub(super) fn find_bundles(&mut self) -> bool {
        let mut any = false;
        for (buffer, (length, contents)) in self.buffers.iter().zip(&mut self.datagrams) {
            let bytes = buffer.get(..*length).unwrap_or(&[]);
            if bytes.starts_with(&bundle::MARK) {
                *contents = DatagramContents::Bundle;
                any = true;
                if *length > bundle::MARK.len() {
                    self.wary = WARY_CALLS;
                }
            }
        }
        any
    }
}

/// Sends datagrams over a connected socket, each given by its parts. Returns the number of
/// datagrams that were sent.
fn send_all(socket: BorrowedFd<'_>, datagrams: &[Vec<IoSlice<'_>>]) -> rustix::io::Result<usize> {
    let mut nothing: Vec<_> = datagrams
        .iter()
        .map(|_| SendAncillaryBuffer::default())
        .collect();
    let pairs = datagrams.iter().zip(&mut nothing);
    let messages = pairs.map(|(parts, nothing)| MMsgHdr::new(parts, nothing));
    let mut messages: Vec<_> = messages.collect();
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmmsg(socket, &mut messages, flags)
}

/// Sends frames over a connected socket, at most [`BATCH`], each in its own datagram. Returns the
/// number of frames that were sent.
pub(super) fn send(socket: BorrowedFd<'_>, frames: &[&[u8]]) -> rustix::io::Result<usize> {
    let frames = frames.iter().take(BATCH);
    let datagrams: Vec<_> = frames.map(|frame| vec![IoSlice::new(frame)]).collect();
    send_all(socket, &datagrams)
}

/// Sends frames as [`send`] does, but in bundles.
pub(super) fn send_bundles(socket: BorrowedFd<'_>, frames: &[&[u8]]) -> rustix::io::Result<usize> {
    let frames = frames.get(..BATCH).unwrap_or(frames);
    let lengths = bundle::lengths(frames);
    let (mut datagrams, mut ends, mut at) = (vec![], vec![], 0);
    while let Some(rest) = frames.get(at..).filter(|rest| !rest.is_empty()) {
        let end = at + bundle::count_fitting(rest);
        datagrams.push(bundle::parts(&frames[at..end], &lengths[at..end]));
        ends.push(end);
        at = end;
    }
    let sent = send_all(socket, &datagrams)?;
    let last = sent.checked_sub(1).and_then(|last| ends.get(last));
    Ok(last.copied().unwrap_or(0))
}

/// Sends an empty bundle, which informs the peer that this side accepts bundles.
pub(super) fn offer_bundles(socket: BorrowedFd<'_>) -> rustix::io::Result<usize> {
    send_all(socket, &[vec![IoSlice::new(&bundle::MARK)]])
}
