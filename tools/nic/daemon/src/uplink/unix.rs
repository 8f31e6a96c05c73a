// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Two NICs on one host, over UNIX datagram sockets that are connected to each other.
//!
//! Both sockets are connected, because the kernel then bounds the queued datagrams by the sender's
//! buffer; else the bound would be `net.unix.max_dgram_qlen`, which is ten frames by default. A
//! connected socket also receives only from its peer. The peer may come later, disconnect and come
//! back: frames without a peer are lost, and [`Unix::maintain`] checks for the peer with a datagram
//! that is no frame. If the peer has announced that it accepts [bundles](super::bundle), frames are
//! sent in bundles.

use super::{batch, Batch, Uplink, MAX_FRAME};
use crate::bound_sockets::BoundSockets;
use rustix::io::Errno;
use rustix::net::{connect, sockopt, SocketAddrUnix};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Size of the send buffer in bytes, with the kernel's overhead for each frame.
const BUFFER: usize = 16 << 20;

/// Number of announcements to the peer that this end accepts bundles: a peer that connects after
/// this end may not receive the first ones.
const MAX_OFFERS: u32 = 8;

/// An uplink over a UNIX datagram socket.
pub struct Unix {
    socket: UnixDatagram,
    peer: SocketAddrUnix,
    is_connected: AtomicBool,
    /// True if the peer has announced that it accepts bundles.
    takes_bundles: AtomicBool,
    /// Number of announcements of bundles that are still to be sent.
    offers: AtomicU32,
}

impl Unix {
    /// Binds `own`, and connects to `peer` as soon as it exists.
    ///
    /// # Errors
    ///
    /// The path cannot be used, or is too long.
    pub fn open(sockets: &BoundSockets, own: &Path, peer: &Path) -> io::Result<Self> {
        let address = SocketAddrUnix::new(peer);
        let text = |e| {
            let path = peer.display();
            io::Error::other(format!("{path} cannot be the path of a socket: {e}"))
        };
        let uplink = Self {
            peer: address.map_err(text)?,
            socket: sockets.datagram(own)?,
            is_connected: AtomicBool::new(false),
            takes_bundles: AtomicBool::new(false),
            offers: AtomicU32::new(MAX_OFFERS),
        };
        // A privileged process may exceed the limit for other users.
        if sockopt::set_socket_send_buffer_size_force(&uplink.socket, BUFFER).is_err() {
            sockopt::set_socket_send_buffer_size(&uplink.socket, BUFFER)?;
        }
        uplink.connect();
        Ok(uplink)
    }

    /// Connects to the peer if there is no connection. Returns true if there is one.
    fn connect(&self) -> bool {
        if self.is_connected.load(Ordering::Relaxed) {
            return true;
        }
        let result = connect(&self.socket, &self.peer);
        match result {
            Ok(()) => log::info!("uplink: connected"),
            Err(e) => log::debug!("uplink: no peer: {e}"),
        }
        self.is_connected.store(result.is_ok(), Ordering::Relaxed);
        result.is_ok()
    }

    /// Notes that the peer has disconnected, so that another may connect.
    fn on_disconnected(&self, why: Errno) {
        self.takes_bundles.store(false, Ordering::Relaxed);
        self.offers.store(MAX_OFFERS, Ordering::Relaxed);
        if self.is_connected.swap(false, Ordering::Relaxed) {
            log::info!("uplink: the peer has disconnected: {why}");
        }
    }
}

impl Uplink for Unix {
    fn send(&self, frames: &[&[u8]]) -> usize {
        if !self.is_connected.load(Ordering::Relaxed) {
            return frames.len();
        }
        let send = match self.takes_bundles.load(Ordering::Relaxed) {
            true => batch::send_bundles,
            false => batch::send,
        };
        match send(self.socket.as_fd(), frames) {
            Ok(count) => count,
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => 0,
            Err(e) => {
                self.on_disconnected(e);
                frames.len()
            }
        }
    }

    fn receive(&self, batch: &mut Batch) {
        // An error is that of a peer that has disconnected, and is cleared by this call.
        let result = batch.receive(self.socket.as_fd());
        if let Err(nix::Error::ECONNRESET) = result {
            self.on_disconnected(Errno::CONNRESET);
        }
        if batch.find_bundles() && self.is_connected.load(Ordering::Relaxed) {
            self.takes_bundles.store(true, Ordering::Relaxed);
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn mtu(&self) -> usize {
        MAX_FRAME
    }

    fn maintain(&self) {
        if !self.connect() {
            return;
        }
        let offers = self.offers.load(Ordering::Relaxed);
        let nothing: &[u8] = &[];
        let sent = match offers {
            0 => batch::send(self.socket.as_fd(), &[nothing]),
            _ => batch::offer_bundles(self.socket.as_fd()),
        };
        match sent {
            Ok(_) => self
                .offers
                .store(offers.saturating_sub(1), Ordering::Relaxed),
            Err(Errno::AGAIN) => {}
            Err(e) => self.on_disconnected(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bound_sockets::dir::Dir;

    fn received(end: &Unix) -> Vec<Vec<u8>> {
        let (mut batch, mut all) = (Batch::default(), vec![]);
        loop {
            end.receive(&mut batch);
            let frames = batch.frames().filter(|f| !f.is_empty());
            let frames: Vec<_> = frames.map(<[u8]>::to_vec).collect();
            if frames.is_empty() {
                return all;
            }
            all.extend(frames);
        }
    }

    #[test]
    fn frames_arrive_in_order_and_a_peer_may_connect_late_and_again() {
        let dir = Dir::new("uplink-unix");
        let (a, b) = (dir.0.join("a"), dir.0.join("b"));
        let sockets = BoundSockets::default();
        let one = Unix::open(&sockets, &a, &b).unwrap();
        // Without a peer, frames are lost, as on a port without a cable.
        assert_eq!(one.send(&[b"lost"]), 1);
        for life in 0..3 {
            let sockets = BoundSockets::default();
            let other = Unix::open(&sockets, &b, &a).unwrap();
            // After two calls of `maintain`, each end is connected and has offered to take bundles.
            (0..2).for_each(|_| [&one, &other].map(Uplink::maintain).into_iter().collect());
            let frames: Vec<Vec<u8>> = (0..200).map(|n| vec![n; 1500]).collect();
            let slices: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
            for (from, to) in [(&one, &other), (&other, &one)] {
                received(to);
                let sent = from.send(&slices);
                assert_eq!(sent, super::super::BATCH, "{life}");
                assert_eq!(received(to), frames[..sent]);
            }
            sockets.remove_all();
        }
        sockets.remove_all();
    }

    #[test]
    fn a_peer_that_does_not_offer_to_take_bundles_gets_single_frames() {
        let dir = Dir::new("uplink-unix-plain");
        let (a, b) = (dir.0.join("a"), dir.0.join("b"));
        let sockets = BoundSockets::default();
        let other = UnixDatagram::bind(&b).unwrap();
        let one = Unix::open(&sockets, &a, &b).unwrap();
        other.connect(&a).unwrap();
        let got = || {
            let mut bytes = [0; 100];
            let count = other.recv(&mut bytes).unwrap();
            bytes[..count].to_vec()
        };
        let frames: [&[u8]; 3] = [&[1; 60], &[2; 70], &[3; 60]];
        assert_eq!(one.send(&frames), 3);
        assert_eq!([got(), got(), got()], frames);
        // The offer to take bundles is no valid frame, so other software drops it.
        one.maintain();
        let offer = got();
        assert!(crate::switch::Switch::new(1)
            .forward(crate::switch::SwitchPort::Wire(0), &offer, 0)
            .is_empty());
        // From now on the peer takes bundles.
        other.send(&offer).unwrap();
        assert!(received(&one).is_empty());
        assert_eq!(one.send(&frames), 3);
        let sum: usize = frames.iter().map(|frame| 2 + frame.len()).sum();
        let mut bytes = [0; 1000];
        assert_eq!(other.recv(&mut bytes).unwrap(), offer.len() + sum);
        sockets.remove_all();
    }

    #[test]
    fn one_call_receives_only_a_few_full_bundles() {
        let dir = Dir::new("uplink-unix-many");
        let (a, b) = (dir.0.join("a"), dir.0.join("b"));
        let sockets = BoundSockets::default();
        let one = Unix::open(&sockets, &a, &b).unwrap();
        let other = Unix::open(&sockets, &b, &a).unwrap();
        (0..2).for_each(|_| [&one, &other].map(Uplink::maintain).into_iter().collect());
        received(&one);
        let frame = vec![7; 1500];
        let frames = vec![&frame[..]; super::super::BATCH];
        let mut batch = Batch::default();
        let (mut sent, mut got) = (0, 0);
        for round in 0..3 {
            sent += (0..20).map(|_| one.send(&frames)).sum::<usize>();
            other.receive(&mut batch);
            let count = batch.frames().filter(|f| !f.is_empty()).count();
            // The first call does not know yet that the peer sends bundles.
            assert!(round == 0 || (1..400).contains(&count), "{round}: {count}");
            got += count;
        }
        assert_eq!(got + received(&other).len(), sent);
        sockets.remove_all();
    }

    #[test]
    fn frames_without_room_are_not_sent_and_can_be_sent_later() {
        let dir = Dir::new("uplink-unix-full");
        let (a, b) = (dir.0.join("a"), dir.0.join("b"));
        let sockets = BoundSockets::default();
        let one = Unix::open(&sockets, &a, &b).unwrap();
        let other = Unix::open(&sockets, &b, &a).unwrap();
        one.maintain();
        let frame = vec![7; 9000];
        let frames = vec![&frame[..]; 64];
        let mut sent = 0;
        while one.send(&frames) == 64 {
            sent += 64;
            assert!(sent < 1 << 20, "no end");
        }
        // In bundles, the socket holds more frames than `net.unix.max_dgram_qlen`.
        assert!(sent >= 64);
        while !received(&other).is_empty() {}
        assert_eq!(one.send(&frames), 64);
        sockets.remove_all();
    }
}
