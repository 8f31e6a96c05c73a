// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Frames to the guest's network card: they are written to QEMU's stream, each after its length (4
//! bytes, big endian).
//!
//! A thread that has a frame writes it at once if QEMU has room; it never waits. Otherwise the
//! frame is queued. The queue has at most [`MAX_FRAMES`] frames, and a separate thread
//! ([`NetdevQueue::drain`]) empties it; further frames are dropped, as a card with a full ring
//! drops them.

use rustix::event::{poll, PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{sendmsg, SendAncillaryBuffer, SendFlags};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Largest number of frames that wait for QEMU.
const MAX_FRAMES: usize = 1024;

/// QEMU's stream, and the frames that wait for it.
#[derive(Default)]
struct NetdevQueueState {
    stream: Option<Arc<UnixStream>>,
    /// Waiting frames, each after its length.
    queue: VecDeque<Vec<u8>>,
    /// Number of bytes of the first frame that were written.
    written: usize,
}

/// The path to the guest's network card.
#[derive(Default)]
pub struct NetdevQueue {
    state: Mutex<NetdevQueueState>,
    /// Notified when a frame is queued.
    filled: Condvar,
}

impl NetdevQueue {
    fn state(&self) -> MutexGuard<'_, NetdevQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets QEMU's stream, or removes it for `None`. Waiting frames are dropped, because they are
    /// not for a later stream.
    pub fn connect(&self, stream: Option<UnixStream>) {
        *self.state() = NetdevQueueState {
            stream: stream.map(Arc::new),
            ..NetdevQueueState::default()
        };
    }

    /// Gives the guest a frame. Returns false if there is no room, or no stream.
    pub fn send(&self, frame: &[u8]) -> bool {
        let mut state = self.state();
        let Some(stream) = &state.stream else {
            return false;
        };
        let length = (frame.len() as u32).to_be_bytes();
        let mut written = 0;
        if state.queue.is_empty() {
            written = write(stream, &[&length, frame]);
            if written == length.len() + frame.len() {
                return true;
            }
        } else if state.queue.len() >= MAX_FRAMES {
            return false;
        }
        if state.queue.is_empty() {
            state.written = written;
        }
        state.queue.push_back([&length, frame].concat());
        drop(state);
        self.filled.notify_one();
        true
    }

    /// Writes waiting frames for ever.
    pub fn drain(&self) {
        loop {
            let mut state = self.state();
            while state.queue.is_empty() {
                let woken = self.filled.wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
            }
            let Some(stream) = state.stream.clone() else {
                state.queue.clear();
                continue;
            };
            drop(state);
            // An error counts as room, because the next write notices it.
            let _ = poll(&mut [PollFd::new(&*stream, PollFlags::OUT)], None);
            self.flush(&stream);
        }
    }

    /// Writes waiting frames while there is room, if `stream` is still QEMU's stream.
    fn flush(&self, stream: &Arc<UnixStream>) {
        let mut state = self.state();
        let state = &mut *state;
        if !state
            .stream
            .as_ref()
            .is_some_and(|s| Arc::ptr_eq(s, stream))
        {
            return;
        }
        while let Some(frame) = state.queue.front() {
            let rest = frame.get(state.written..).unwrap_or(&[]);
            let count = write(stream, &[rest]);
            if count < rest.len() {
                state.written += count;
                return;
            }
            state.written = 0;
            state.queue.pop_front();
        }
    }
}

/// Writes bytes while there is room, and returns their number. A broken stream accepts everything;
/// the thread that reads it notices the error.
fn write(stream: &UnixStream, parts: &[&[u8]]) -> usize {
    let slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut nothing = SendAncillaryBuffer::default();
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match sendmsg(stream, &slices, &mut nothing, flags) {
        Ok(count) => count,
        Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => 0,
        Err(_) => parts.iter().map(|part| part.len()).sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_slow_reader_gets_whole_frames_in_order_and_frames_without_room_are_dropped() {
        let queue = Arc::new(NetdevQueue::default());
        assert!(!queue.send(&[1; 60]));
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        queue.connect(Some(ours));
        std::thread::spawn({
            let queue = queue.clone();
            move || queue.drain()
        });
        let frame = |n: u32| [&n.to_be_bytes()[..], &[9; 2000]].concat();
        let mut count = 0;
        // While the client does not read, `send` does not wait.
        while queue.send(&frame(count)) {
            count += 1;
        }
        assert!(count as usize > MAX_FRAMES);
        for n in 0..count {
            let mut length = [0; 4];
            theirs.read_exact(&mut length).unwrap();
            let mut bytes = vec![0; u32::from_be_bytes(length) as usize];
            theirs.read_exact(&mut bytes).unwrap();
            assert!(bytes == frame(n), "{n}");
        }
        // A frame that is longer than the buffer of the socket is sent in many parts.
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(&ours, 1).unwrap();
        queue.connect(Some(ours));
        let long: Vec<u8> = (0..60_000u32).map(|n| (n % 251) as u8).collect();
        assert!(queue.send(&long) && queue.send(&[5; 60]));
        let mut bytes = vec![0; 4 + long.len() + 4 + 60];
        theirs.read_exact(&mut bytes).unwrap();
        assert!(bytes[4..][..long.len()] == long);
        assert_eq!(bytes[4 + long.len()..][..5], [0, 0, 0, 60, 5]);
        // The next QEMU gets none of the frames that waited for the last one.
        while queue.send(&frame(0)) {}
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        queue.connect(Some(ours));
        assert!(queue.send(&[5; 60]));
        let mut bytes = [0; 64];
        theirs.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes[..5], [0, 0, 0, 60, 5]);
    }
}
