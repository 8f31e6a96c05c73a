// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A tunnel to a NIC on another host: each frame is the payload of a UDP datagram, as for QEMU's
//! `-netdev dgram`.
//!
//! Each peer is given by its address; there is no discovery, and no authentication: a program that
//! can send from the peer's address can send frames. Each peer has its own socket, which is
//! connected, so that it receives only from that peer; the sockets of one NIC share their own
//! address. If a frame is longer than the path MTU between the hosts, their IP layers fragment and
//! reassemble it.

use super::segments::{self, SegmentedSender};
use super::{Batch, Uplink};
use rustix::io::Errno;
use rustix::net::{bind, connect, socket_with, sockopt};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Size of the socket's buffers in each direction, in bytes.
const BUFFER: usize = 16 << 20;

/// Largest payload of a UDP datagram over IPv4, in bytes.
const MTU: usize = 65507;

/// An uplink over a UDP socket to one peer.
pub struct Udp {
    socket: OwnedFd,
    segments: SegmentedSender,
}

impl Udp {
    /// Binds `own` and connects to `peer`.
    ///
    /// # Errors
    ///
    /// The address is not this host's or is in use, or the peer's address has another family.
    pub fn open(own: &SocketAddr, peer: &SocketAddr) -> io::Result<Self> {
        let open = || {
            let family = if own.is_ipv4() {
                AddressFamily::INET
            } else {
                AddressFamily::INET6
            };
            let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
            sockopt::set_socket_reuseport(&socket, true)?;
            // A privileged process may exceed the limit for other users.
            if sockopt::set_socket_send_buffer_size_force(&socket, BUFFER).is_err() {
                sockopt::set_socket_send_buffer_size(&socket, BUFFER)?;
            }
            if sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER).is_err() {
                sockopt::set_socket_recv_buffer_size(&socket, BUFFER)?;
            }
            bind(&socket, own)?;
            connect(&socket, peer)?;
            segments::enable_gro(&socket);
            Ok(Self {
                socket,
                segments: SegmentedSender::default(),
            })
        };
        open().map_err(|e: Errno| {
            let e = io::Error::from(e);
            io::Error::other(format!("cannot open a tunnel from {own} to {peer}: {e}"))
        })
    }
}

impl Uplink for Udp {
    fn send(&self, frames: &[&[u8]]) -> usize {
        let send = || self.segments.send(self.socket.as_fd(), frames);
        // The first error may only report that an earlier frame did not reach the peer.
        match send().or_else(|e| {
            if e == Errno::CONNREFUSED {
                send()
            } else {
                Err(e)
            }
        }) {
            Ok(count) => count,
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => 0,
            Err(_) => frames.len().min(1),
        }
    }

    fn receive(&self, batch: &mut Batch) {
        // An error reports that an earlier frame did not reach the peer.
        let _ = batch.receive(self.socket.as_fd());
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn mtu(&self) -> usize {
        MTU
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(end: &Udp) -> Vec<Vec<u8>> {
        let mut batch = Batch::default();
        end.receive(&mut batch);
        batch.frames().map(<[u8]>::to_vec).collect()
    }

    #[test]
    fn each_peer_gets_its_own_frames_and_frames_of_strangers_are_dropped() {
        // The addresses depend on the process, so that other processes use other addresses.
        let number = std::process::id().to_le_bytes();
        let address =
            |host| SocketAddr::from(([127, 77, number[0], host], 4000 + u16::from(number[1])));
        let all = [1, 2, 3].map(address);
        let to = |from: usize, to: usize| Udp::open(&all[from], &all[to]).unwrap();
        let early = to(0, 1);
        // The peer does not exist yet: this frame is lost, and no later one.
        assert_eq!(early.send(&[b"lost"]), 1);
        let (one_two, one_three, two, three) = (early, to(0, 2), to(1, 0), to(2, 0));
        // Runs of frames of one length, with a shorter frame between them: the kernel cuts the
        // runs.
        for (length, last) in [(60, 60), (1082, 61), (4170, 4170)] {
            let mut frames: Vec<_> = (0..150).map(|n| vec![n; length]).collect();
            frames.insert(7, vec![7; 50]);
            frames.push(vec![200; last]);
            let slices: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
            assert_eq!(one_two.send(&slices), frames.len());
            let mut all = vec![];
            while all.len() < frames.len() {
                let more = received(&two);
                assert!(!more.is_empty(), "{} of {}", all.len(), frames.len());
                all.extend(more);
            }
            assert_eq!(all, frames);
            assert!(received(&three).is_empty());
        }
        for length in [60, 1514, 9018, MTU] {
            let frames = [vec![2; length], vec![3; length]];
            assert_eq!(one_two.send(&[&frames[0], &frames[0]]), 2);
            assert_eq!(one_three.send(&[&frames[1]]), 1);
            assert_eq!(received(&two), [frames[0].clone(), frames[0].clone()]);
            assert_eq!(received(&three), [frames[1].clone()]);
        }
        assert_eq!(two.send(&[b"two"]), 1);
        assert_eq!(three.send(&[b"three"]), 1);
        assert_eq!(received(&one_two), [b"two"]);
        assert_eq!(received(&one_three), [b"three"]);
        let stranger = std::net::UdpSocket::bind(address(4)).unwrap();
        stranger.send_to(b"forged", all[1]).unwrap();
        assert!(received(&two).is_empty());
        // A frame that is too long does not stop the next one.
        assert_eq!(one_two.send(&[&[0; MTU + 1], b"next"]), 1);
        assert!(Udp::open(&"192.0.2.1:4000".parse().unwrap(), &all[0]).is_err());
    }
}
