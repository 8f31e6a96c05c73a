// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Uplinks: the links to other machines. They carry Ethernet frames and know nothing of RDMA.
//!
//! | kind | file | carrier of the frames |
//! | --- | --- | --- |
//! | `unix:OWN,PEER` | [`unix`] | two UNIX datagram sockets, connected to each other: two NICs on one host |
//! | `udp:OWN,PEER[,PEER...]` | [`udp`] | a UDP tunnel to each peer |
//! | `tap:NAME` | [`tap`], [`tun`] | a TAP device of the host, and the bridge or switch that it is a port of |
//!
//! Each uplink has one other end; a NIC may have several uplinks, to different ends. An uplink
//! without room for a frame refuses it, so that the engine keeps the frames that are not sent yet;
//! a frame that an uplink has accepted can still be lost, as on any wire. The engine's thread
//! receives, in batches; all threads send.

mod batch;
mod bundle;
mod segments;
pub mod tap;
pub mod tun;
pub mod udp;
pub mod unix;

pub use batch::Batch;

use crate::bound_sockets::BoundSockets;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::str::FromStr;

/// Largest number of frames that are sent at once.
pub const BATCH: usize = 128;

/// Length of the longest frame that any uplink carries, in bytes: the longest that QEMU sends.
pub const MAX_FRAME: usize = 68 << 10;

/// A link to another machine.
pub trait Uplink: Send + Sync {
    /// Sends frames, in order. Returns the number of frames that the uplink has accepted, which may
    /// still be lost; there is no room for the others now.
    fn send(&self, frames: &[&[u8]]) -> usize;

    /// Receives the frames that have arrived, at most a batch, without waiting.
    fn receive(&self, batch: &mut Batch);

    /// Returns the descriptor that becomes readable when there is something to receive, and
    /// writable when there is room again. Returns `None` while there is nothing to wait for, until
    /// [`maintain`](Self::maintain) changes that.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Returns the length of the longest frame that the uplink carries, in bytes.
    fn mtu(&self) -> usize;

    /// Maintains the connection to the other end; called about twice a second.
    fn maintain(&self) {}
}

/// A kind of uplink with its parameters, as the command line has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UplinkKind {
    /// Path of the own socket and of the peer's.
    Unix(PathBuf, PathBuf),
    /// The own address and those of the peers.
    Udp(SocketAddr, Vec<SocketAddr>),
    /// Name of the TAP device.
    Tap(String),
}

impl FromStr for UplinkKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        match kind {
            "unix" => {
                let form = || format!("{text:?} is not unix:OWN,PEER, the paths of two sockets");
                let (own, peer) = rest.split_once(',').ok_or_else(form)?;
                if own.is_empty() || peer.is_empty() || peer.contains(',') {
                    return Err(form());
                }
                if own == peer {
                    return Err(format!("{text:?}: a socket cannot be its own peer"));
                }
                Ok(Self::Unix(own.into(), peer.into()))
            }
            "udp" => {
                let form = || {
                    format!(
                        "{text:?} is not udp:OWN,PEER[,PEER...], each an address and a port, like 10.0.0.1:5000"
                    )
                };
                let all = rest.split(',').map(str::parse::<SocketAddr>);
                let all = all.collect::<Result<Vec<_>, _>>().map_err(|_| form())?;
                let (own, peers) = all.split_first().ok_or_else(form)?;
                if peers.is_empty() {
                    return Err(form());
                }
                if all
                    .iter()
                    .any(|a| a.port() == 0 || a.is_ipv4() != own.is_ipv4())
                {
                    return Err(format!(
                        "{text:?}: each address needs a port, and all addresses the same version of IP"
                    ));
                }
                if (1..all.len()).any(|n| all[..n].contains(&all[n])) {
                    return Err(format!("{text:?} names an address twice"));
                }
                Ok(Self::Udp(*own, peers.to_vec()))
            }
            "tap" => {
                let is_plain = |c: char| c.is_ascii_graphic() && !"/%:".contains(c);
                let fits = (1..tun::IFNAMSIZ).contains(&rest.len()) && rest.chars().all(is_plain);
                if !fits || rest == "." || rest == ".." {
                    return Err(format!(
                        "{text:?} is not tap:NAME, where NAME is the name of a network interface"
                    ));
                }
                Ok(Self::Tap(rest.into()))
            }
            _ => Err(format!(
                "{text:?} is no uplink: give unix:OWN,PEER or udp:OWN,PEER[,PEER...] or tap:NAME"
            )),
        }
    }
}

impl UplinkKind {
    /// Opens an uplink for each other end.
    ///
    /// # Errors
    ///
    /// A socket or a device cannot be opened.
    pub fn open(&self, sockets: &BoundSockets) -> io::Result<Vec<Box<dyn Uplink>>> {
        Ok(match self {
            Self::Unix(own, peer) => vec![Box::new(unix::Unix::open(sockets, own, peer)?)],
            Self::Tap(name) => vec![Box::new(tap::TapDevice::open(name)?)],
            Self::Udp(own, peers) => {
                let all = peers.iter().map(|peer| -> io::Result<Box<dyn Uplink>> {
                    Ok(Box::new(udp::Udp::open(own, peer)?))
                });
                all.collect::<io::Result<_>>()?
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_parsed_and_errors_name_the_rule() {
        let unix = UplinkKind::Unix("/run/a".into(), "b".into());
        assert_eq!("unix:/run/a,b".parse(), Ok(unix));
        let [a, b, c] = ["10.0.0.1:5000", "10.0.0.2:5000", "10.0.0.3:5001"];
        let peers = [b, c].map(|p| p.parse().unwrap()).to_vec();
        let udp = UplinkKind::Udp(a.parse().unwrap(), peers);
        assert_eq!(format!("udp:{a},{b},{c}").parse(), Ok(udp));
        assert!("udp:[fd00::1]:5000,[fd00::2]:5000"
            .parse::<UplinkKind>()
            .is_ok());
        assert_eq!("tap:vm-1.0".parse(), Ok(UplinkKind::Tap("vm-1.0".into())));
        for (bad, why) in [
            ("", "is no uplink"),
            ("cable", "is no uplink"),
            ("unix", "OWN,PEER"),
            ("unix:a", "OWN,PEER"),
            ("unix:a,", "OWN,PEER"),
            ("unix:,b", "OWN,PEER"),
            ("unix:a,b,c", "OWN,PEER"),
            ("unix:a,a", "own peer"),
            ("tap:", "tap:NAME"),
            ("tap:a-name-that-is-long", "tap:NAME"),
            ("tap:a/b", "tap:NAME"),
            ("tap:tap%d", "tap:NAME"),
            ("udp:10.0.0.1:5000", "OWN,PEER"),
            ("udp:10.0.0.1,10.0.0.2", "like 10.0.0.1:5000"),
            ("udp:10.0.0.1:0,10.0.0.2:5000", "needs a port"),
            ("udp:10.0.0.1:5000,[fd00::2]:5000", "same version of IP"),
            ("udp:10.0.0.1:5000,10.0.0.1:5000", "twice"),
        ] {
            let error = bad.parse::<UplinkKind>().unwrap_err();
            assert!(error.contains(why), "{bad}: {error}");
        }
    }
}
