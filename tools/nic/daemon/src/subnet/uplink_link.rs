// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Links to the switches of other processes, over uplinks.
//!
//! Each end sends a hello when something about it has changed, and twice a second. The link is up
//! while both ends hear each other and are enabled, so it has two ends even where more processes
//! share an Ethernet: an end hears one process, until that process has been silent for
//! [`SILENCE`] or hears another one. Frames of any other process are refused.

use super::link_frame::{self, Hello, LinkFrame};
use std::time::Duration;
use verbena_fabric::{Fabric, LocalEnd, PacketLimits, PortId, RemoteEnd};

/// Time without a frame after which the peer is gone.
const SILENCE: Duration = Duration::from_secs(3);

/// The peer, as its last hello says.
#[derive(Clone, Copy, Debug)]
struct Peer {
    mac: [u8; 6],
    hello: Hello,
    last_heard: Duration,
}

/// A packet that came over a link.
pub struct ReceivedPacket<'a> {
    /// The port of the switch to which the link belongs.
    pub port: PortId,
    pub limits: PacketLimits,
    /// The packet from its LRH to its VCRC.
    pub packet: &'a [u8],
}

/// A link over an uplink.
#[derive(Debug)]
pub struct UplinkLink {
    /// The port of this process' switch.
    port: PortId,
    guid: u64,
    /// Number of this process.
    process: u64,
    mac: [u8; 6],
    peer: Option<Peer>,
    last_sent: Option<Hello>,
    /// True if a peer with the same switch GUID was reported.
    has_reported_guid: bool,
}

impl UplinkLink {
    /// Creates a link of a port of the switch with this GUID. The frames have the source address
    /// `mac`; `process` is a number that other processes do not have.
    pub fn new(port: PortId, guid: u64, process: u64, mac: [u8; 6]) -> Self {
        Self {
            port,
            guid,
            process: process.max(1),
            mac,
            peer: None,
            last_sent: None,
            has_reported_guid: false,
        }
    }

    /// Returns the port of this process' switch.
    pub fn port(&self) -> PortId {
        self.port
    }

    /// Returns the peer, if both ends hear each other.
    fn connected(&self) -> Option<&Peer> {
        let peer = self.peer.as_ref();
        peer.filter(|peer| peer.hello.heard == self.process)
    }

    /// Returns the far end, if the link is up.
    fn far_end(&self) -> Option<RemoteEnd> {
        self.connected()?.hello.end.rates
    }

    /// Returns the frame of a packet that leaves by the link; none while no peer is there.
    pub fn frame_of(&self, limits: PacketLimits, packet: &[u8]) -> Option<Vec<u8>> {
        let peer = self.connected()?;
        let frame = link_frame::emit_packet(self.mac, peer.mac, limits, packet);
        Some(frame)
    }

    /// Takes a frame from the uplink. Returns the packet in the frame, if the link is up.
    ///
    /// # Errors
    ///
    /// The frame is malformed, or comes from a process that is not the peer.
    pub fn receive<'a>(
        &mut self,
        frame: &'a [u8],
        fabric: &mut Fabric,
        now: Duration,
    ) -> Result<Option<ReceivedPacket<'a>>, ()> {
        let parsed = link_frame::parse(frame).ok_or_else(|| fabric.count_malformed(self.port));
        let (source, contents) = parsed?;
        match contents {
            LinkFrame::Hello(hello) => {
                self.take_hello(source, hello, fabric, now)?;
                Ok(None)
            }
            LinkFrame::Packet { limits, packet } => {
                let port = self.port;
                let is_connected = self.connected().is_some();
                let peer = self.peer.as_mut().filter(|peer| peer.mac == source);
                peer.ok_or(())?.last_heard = now;
                Ok(is_connected.then_some(ReceivedPacket {
                    port,
                    limits,
                    packet,
                }))
            }
        }
    }

    fn take_hello(
        &mut self,
        source: [u8; 6],
        hello: Hello,
        fabric: &mut Fabric,
        now: Duration,
    ) -> Result<(), ()> {
        if hello.process == self.process || !self.may_hear(source, &hello, now) {
            return Err(());
        }
        if hello.guid == self.guid {
            if !std::mem::replace(&mut self.has_reported_guid, true) {
                log::error!(
                    "an uplink leads to another switch with the GUID {:#x}: give the switches of the \
                     topology files different GUIDs (switchguid)",
                    self.guid
                );
            }
            return Err(());
        }
        let peer = Peer {
            mac: source,
            hello,
            last_heard: now,
        };
        let before = (self.far_end(), self.peer.replace(peer));
        self.update(before, fabric, now);
        Ok(())
    }

    /// True if a hello is from the peer, or if its sender may become the peer.
    fn may_hear(&self, source: [u8; 6], hello: &Hello, now: Duration) -> bool {
        self.peer.is_none_or(|peer| {
            let is_same = peer.hello.process == hello.process || peer.mac == source;
            let is_taken = ![0, self.process].contains(&peer.hello.heard);
            is_same || is_taken || is_gone(&peer, now)
        })
    }

    /// Forgets a peer that has been silent for too long.
    pub fn expire(&mut self, fabric: &mut Fabric, now: Duration) {
        if self.peer.is_some_and(|peer| is_gone(&peer, now)) {
            let before = (self.far_end(), self.peer.take());
            self.update(before, fabric, now);
        }
    }

    /// Tells the fabric what has changed about the far end.
    fn update(
        &self,
        (end_before, peer_before): (Option<RemoteEnd>, Option<Peer>),
        fabric: &mut Fabric,
        now: Duration,
    ) {
        let state =
            |peer: Option<Peer>| peer.map(|peer| (peer.hello.process, peer.hello.end.restarts));
        let end = self.far_end();
        if end.is_some() != end_before.is_some() {
            let (guid, port) = self.peer.map_or((0, 0), |p| (p.hello.guid, p.hello.port));
            match end {
                Some(_) => log::info!("uplink: linked to port {port} of the switch {guid:#x}"),
                None => log::info!("uplink: the link to another switch is down"),
            }
        }
        let has_restarted = state(peer_before) != state(self.peer);
        fabric.set_remote_end(self.port, end, has_restarted, now);
    }

    /// Returns the frame of a hello, if something about this end has changed since the last one, or
    /// if one `is_due`.
    pub fn hello(&mut self, fabric: &Fabric, is_due: bool) -> Option<Vec<u8>> {
        let end: LocalEnd = fabric.local_end(self.port)?;
        let hello = Hello {
            process: self.process,
            heard: self.peer.map_or(0, |peer| peer.hello.process),
            guid: self.guid,
            port: self.port.port,
            end,
        };
        if self.last_sent == Some(hello) && !is_due {
            return None;
        }
        self.last_sent = Some(hello);
        let peer = self.peer.map(|peer| peer.mac);
        Some(link_frame::emit_hello(self.mac, peer, &hello))
    }
}

fn is_gone(peer: &Peer, now: Duration) -> bool {
    now.saturating_sub(peer.last_heard) >= SILENCE
}
