// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Frames by the batch: many with one system call.

use super::{BATCH, MAX_FRAME};
use nix::sys::socket::{recvmmsg, MsgFlags, MultiHeaders};
use rustix::net::{sendmmsg, MMsgHdr, SendAncillaryBuffer, SendFlags};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Frames that were received at once. There is room for them from the first time on.
#[derive(Default)]
pub struct Batch {
    buffers: Vec<Vec<u8>>,
    lengths: Vec<usize>,
}

impl Batch {
    /// The frames.
    pub fn frames(&self) -> impl Iterator<Item = &[u8]> {
        let pairs = self.buffers.iter().zip(&self.lengths);
        pairs.map(|(buffer, &length)| buffer.get(..length).unwrap_or(&[]))
    }

    /// Receives one frame after the other, at most [`BATCH`], until there is none.
    pub(super) fn fill(&mut self, mut receive: impl FnMut(&mut [u8]) -> Option<usize>) {
        self.lengths.clear();
        self.buffers.resize_with(BATCH, || vec![0; MAX_FRAME]);
        let received = self.buffers.iter_mut().map_while(|b| receive(b));
        self.lengths.extend(received);
    }

    /// Receives what a connected socket has, at most [`BATCH`] frames. A frame that was too long is empty.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>) -> Result<(), nix::Error> {
        self.lengths.clear();
        self.buffers.resize_with(BATCH, || vec![0; MAX_FRAME]);
        let mut headers = MultiHeaders::<()>::preallocate(BATCH, None);
        let slices = self.buffers.iter_mut().map(|b| [IoSliceMut::new(b)]);
        let mut slices: Vec<_> = slices.collect();
        let flags = MsgFlags::MSG_DONTWAIT;
        let received = recvmmsg(socket.as_raw_fd(), &mut headers, &mut slices, flags, None)?;
        for message in received {
            let is_whole = !message.flags.contains(MsgFlags::MSG_TRUNC);
            self.lengths.push(if is_whole { message.bytes } else { 0 });
        }
        Ok(())
    }
}

/// Sends frames over a connected socket, at most [`BATCH`]. Returns how many have left.
pub(super) fn send(socket: BorrowedFd<'_>, frames: &[&[u8]]) -> rustix::io::Result<usize> {
    let frames = frames.iter().take(BATCH);
    let slices: Vec<_> = frames.map(|frame| [IoSlice::new(frame)]).collect();
    let mut nothing: Vec<_> = slices
        .iter()
        .map(|_| SendAncillaryBuffer::default())
        .collect();
    let pairs = slices.iter().zip(&mut nothing);
    let messages = pairs.map(|(slice, nothing)| MMsgHdr::new(slice, nothing));
    let mut messages: Vec<_> = messages.collect();
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmmsg(socket, &mut messages, flags)
}
