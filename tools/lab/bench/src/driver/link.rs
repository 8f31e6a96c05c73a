// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Links between two devices: one process, or the NIC's own uplinks, with sockets of the kernel
//! between them.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use verbena_device::misbehave::Misbehaviour;
use verbena_device::Config;
use verbena_nic::bound_sockets::BoundSockets;
use verbena_nic::network::Network;
use verbena_nic::process_state::ProcessState;
use verbena_nic::uplink::{Uplink, UplinkKind};
use verbena_nic::vm_state::VmState;

/// Connection between two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// One process, which passes packets by reference.
    Reference,
    /// One process, which passes packets as frames.
    Frames,
    /// Two processes with UNIX sockets between them.
    Unix,
    /// Two processes with a UDP tunnel over the loopback device between them.
    Udp,
}

/// Connection between two devices, and its congestion control.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    pub by: By,
    pub congestion_control: bool,
}

/// One engine's network, and the devices that the engine runs.
pub struct Process {
    pub network: Arc<Network>,
    pub vms: Vec<(Arc<VmState>, Config)>,
}

impl Process {
    /// Creates a process with one device for each MAC address. The devices get the configuration
    /// `like`.
    pub fn new(macs: &[[u8; 6]], like: &Config, wires: Vec<Box<dyn Uplink>>) -> io::Result<Self> {
        let process = Arc::new(ProcessState::new()?);
        let vms = macs.iter().map(|&mac| {
            let shared = VmState::with_process(&process, Misbehaviour::default());
            shared.set_bus_master(true);
            let config = Config {
                mac,
                ..like.clone()
            };
            (Arc::new(shared), config)
        });
        let vms: Vec<_> = vms.collect();
        let ports: Vec<_> = vms.iter().map(|(vm, c)| (vm.clone(), c.mac)).collect();
        Ok(Self {
            network: Arc::new(Network::new(&process, &ports, wires)),
            vms,
        })
    }
}

impl From<By> for Link {
    fn from(by: By) -> Self {
        Self {
            by,
            congestion_control: true,
        }
    }
}

impl Link {
    /// Returns a link of each kind with congestion control.
    #[cfg(test)]
    pub fn all() -> impl Iterator<Item = Self> {
        [By::Reference, By::Frames, By::Unix, By::Udp]
            .into_iter()
            .map(Self::from)
    }

    /// Creates the processes of the link, with a device for each MAC address.
    pub fn processes(self, macs: [[u8; 6]; 2]) -> io::Result<Vec<Process>> {
        let like = Config {
            neighbours: self.by == By::Reference,
            congestion_control: self.congestion_control,
            ..Config::default()
        };
        let (own, peer, sockets) = match self.by {
            By::Reference | By::Frames => return Ok(vec![Process::new(&macs, &like, vec![])?]),
            By::Unix => unix()?,
            By::Udp => udp()?,
        };
        let wires = [own.open(&sockets)?, peer.open(&sockets)?];
        // Each uplink connects to its peer here, and needs the names of the sockets no longer.
        wires.iter().flatten().for_each(|wire| wire.maintain());
        sockets.remove_all();
        let both = macs.iter().zip(wires);
        both.map(|(&mac, wires)| Process::new(&[mac], &like, wires))
            .collect()
    }
}

fn unix() -> io::Result<(UplinkKind, UplinkKind, BoundSockets)> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = |end| {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("verbena-bench-{}-{count}-{end}", std::process::id());
        std::env::temp_dir().join(name)
    };
    let (a, b) = (name("a"), name("b"));
    Ok((
        UplinkKind::Unix(a.clone(), b.clone()),
        UplinkKind::Unix(b, a),
        BoundSockets::default(),
    ))
}

fn udp() -> io::Result<(UplinkKind, UplinkKind, BoundSockets)> {
    let free = || UdpSocket::bind("127.0.0.1:0");
    let all = [free()?, free()?];
    let address = |socket: &UdpSocket| -> io::Result<SocketAddr> { socket.local_addr() };
    let (a, b) = (address(&all[0])?, address(&all[1])?);
    drop(all);
    Ok((
        UplinkKind::Udp(a, vec![b]),
        UplinkKind::Udp(b, vec![a]),
        BoundSockets::default(),
    ))
}
