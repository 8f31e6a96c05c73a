// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Frames by the batch: many with one system call, and many in one datagram where both ends can do that.

use super::{bundle, BATCH, MAX_FRAME};
use nix::cmsg_space;
use nix::sys::socket::{recvmmsg, ControlMessageOwned, MsgFlags, MultiHeaders};
use rustix::net::{sendmmsg, MMsgHdr, SendAncillaryBuffer, SendFlags};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Datagrams that are received with one system call ...
const DATAGRAMS: usize = 64;
/// ... and where they carry many frames, so that what the engine handles before its next slice is bounded ...
const FULL_DATAGRAMS: usize = 8;
/// ... which is so for this many calls after the last that did.
const WARY: u8 = 200;

/// What a datagram carries.
#[derive(Clone, Copy)]
enum Carries {
    /// One frame.
    One,
    /// A bundle.
    Bundle,
    /// Frames of this length, but for the last: the kernel has put them together.
    Equal(usize),
}

/// Frames that were received at once. There is room for them from the first time on.
#[derive(Default)]
pub struct Batch {
    buffers: Vec<Vec<u8>>,
    /// What is in the first of them: how many bytes, and what they are.
    datagrams: Vec<(usize, Carries)>,
    /// For so many calls datagrams are expected to carry many frames.
    wary: u8,
}

/// The frames of one datagram.
enum Frames<'a> {
    One(Option<&'a [u8]>),
    Bundle(&'a [u8]),
    Equal(std::slice::Chunks<'a, u8>),
}

impl<'a> Iterator for Frames<'a> {
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
    /// The frames.
    pub fn frames(&self) -> impl Iterator<Item = &[u8]> {
        let pairs = self.buffers.iter().zip(&self.datagrams);
        pairs.flat_map(|(buffer, &(length, carries))| {
            let bytes = buffer.get(..length).unwrap_or(&[]);
            match carries {
                Carries::One => Frames::One(Some(bytes)),
                Carries::Bundle => Frames::Bundle(bytes.get(bundle::MARK.len()..).unwrap_or(&[])),
                Carries::Equal(length) => Frames::Equal(bytes.chunks(length.max(1))),
            }
        })
    }

    fn make_room(&mut self) {
        self.datagrams.clear();
        self.buffers.resize_with(DATAGRAMS, || vec![0; MAX_FRAME]);
    }

    /// Receives one frame after the other, at most [`DATAGRAMS`], until there is none.
    pub(super) fn fill(&mut self, mut receive: impl FnMut(&mut [u8]) -> Option<usize>) {
        self.make_room();
        let received = self.buffers.iter_mut().map_while(|b| receive(b));
        self.datagrams.extend(received.map(|n| (n, Carries::One)));
    }

    /// Receives what a connected socket has, at most [`DATAGRAMS`]. A frame that was too long is empty.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>) -> Result<(), nix::Error> {
        self.make_room();
        let most = match self.wary {
            0 => DATAGRAMS,
            _ => FULL_DATAGRAMS,
        };
        self.wary = self.wary.saturating_sub(1);
        let mut headers = MultiHeaders::<()>::preallocate(most, Some(cmsg_space!(i32)));
        let slices = self.buffers.iter_mut().map(|b| [IoSliceMut::new(b)]);
        let mut slices: Vec<_> = slices.take(most).collect();
        let flags = MsgFlags::MSG_DONTWAIT;
        let received = recvmmsg(socket.as_raw_fd(), &mut headers, &mut slices, flags, None)?;
        for message in received {
            let is_whole = !message.flags.contains(MsgFlags::MSG_TRUNC);
            let mut told = message.cmsgs().into_iter().flatten();
            let equal = told.find_map(|told| match told {
                ControlMessageOwned::UdpGroSegments(length) => usize::try_from(length).ok(),
                _ => None,
            });
            let carries = equal.map_or(Carries::One, Carries::Equal);
            let length = if is_whole { message.bytes } else { 0 };
            if equal.is_some_and(|equal| equal < length) {
                self.wary = WARY;
            }
            self.datagrams.push((length, carries));
        }
        Ok(())
    }

    /// Looks for bundles among what was received. Returns whether there were any.
    pub(super) fn find_bundles(&mut self) -> bool {
        let mut any = false;
        for (buffer, (length, carries)) in self.buffers.iter().zip(&mut self.datagrams) {
            let bytes = buffer.get(..*length).unwrap_or(&[]);
            if bytes.starts_with(&bundle::MARK) {
                *carries = Carries::Bundle;
                any = true;
                if *length > bundle::MARK.len() {
                    self.wary = WARY;
                }
            }
        }
        any
    }
}

/// Sends datagrams over a connected socket, each of these parts. Returns how many have left.
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

/// Sends frames over a connected socket, at most [`BATCH`], each in a datagram of its own. Returns how many have left.
pub(super) fn send(socket: BorrowedFd<'_>, frames: &[&[u8]]) -> rustix::io::Result<usize> {
    let frames = frames.iter().take(BATCH);
    let datagrams: Vec<_> = frames.map(|frame| vec![IoSlice::new(frame)]).collect();
    send_all(socket, &datagrams)
}

/// The same as bundles.
pub(super) fn send_bundles(socket: BorrowedFd<'_>, frames: &[&[u8]]) -> rustix::io::Result<usize> {
    let frames = frames.get(..BATCH).unwrap_or(frames);
    let lengths = bundle::lengths(frames);
    let (mut datagrams, mut ends, mut at) = (vec![], vec![], 0);
    while let Some(rest) = frames.get(at..).filter(|rest| !rest.is_empty()) {
        let end = at + bundle::fitting(rest);
        datagrams.push(bundle::parts(&frames[at..end], &lengths[at..end]));
        ends.push(end);
        at = end;
    }
    let sent = send_all(socket, &datagrams)?;
    let last = sent.checked_sub(1).and_then(|last| ends.get(last));
    Ok(last.copied().unwrap_or(0))
}

/// Sends an empty bundle: it tells that bundles are taken.
pub(super) fn offer_bundles(socket: BorrowedFd<'_>) -> rustix::io::Result<usize> {
    send_all(socket, &[vec![IoSlice::new(&bundle::MARK)]])
}
