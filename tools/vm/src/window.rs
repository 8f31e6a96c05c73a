// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The bytes that a sender of a stream may still send.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A window that the receiver opens again by credits.
#[derive(Debug)]
pub struct Window {
    state: Mutex<State>,
    has_changed: Condvar,
}

#[derive(Debug)]
struct State {
    bytes: usize,
    most: usize,
    is_closed: bool,
}

impl Window {
    /// Returns a window of `bytes` bytes, which never becomes larger.
    pub fn new(bytes: usize) -> Self {
        Self {
            state: Mutex::new(State {
                bytes,
                most: bytes,
                is_closed: false,
            }),
            has_changed: Condvar::new(),
        }
    }

    /// Waits until there is room, and takes up to `most` bytes of it. Returns 0 once the window is
    /// closed.
    pub fn take(&self, most: usize) -> usize {
        let mut state = self.lock();
        loop {
            if state.is_closed {
                return 0;
            }
            let taken = state.bytes.min(most);
            if taken > 0 {
                state.bytes -= taken;
                return taken;
            }
            let waited = self.has_changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Gives bytes back. More than were taken are ignored.
    pub fn give(&self, bytes: usize) {
        let mut state = self.lock();
        state.bytes = state.bytes.saturating_add(bytes).min(state.most);
        self.has_changed.notify_all();
    }

    /// Closes the window for good.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.has_changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_waits_for_room_and_for_the_end() {
        let window = Window::new(10);
        assert_eq!([window.take(7), window.take(7)], [7, 3]);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| window.take(5));
            window.give(2);
            assert_eq!(waiting.join().unwrap(), 2);
            window.give(100);
            assert_eq!(window.take(100), 10);
            let waiting = scope.spawn(|| window.take(1));
            window.close();
            assert_eq!(waiting.join().unwrap(), 0);
        });
    }
}
