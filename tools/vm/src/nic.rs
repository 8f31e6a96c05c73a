// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The command line of `verbena-nic`: sockets, uplinks, link layer, recorder.

use crate::options::{LinkKind, LinkLayer, Run};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Entries of the flight recorder.
const RECORDED_ENTRIES: &str = "16384";
const TUNNEL_PORT: usize = 4790;

/// The directories of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestPlaces {
    /// Logs, recordings, captures.
    pub logs: PathBuf,
    /// Sockets.
    pub sockets: PathBuf,
}

impl GuestPlaces {
    /// Returns the directories of a guest. With a single guest all files are in one directory.
    pub fn new(run: &Run, number: usize, logs: &Path, sockets: &Path) -> Self {
        match run.guests {
            1 => Self {
                logs: logs.to_owned(),
                sockets: sockets.to_owned(),
            },
            _ => Self {
                logs: logs.join(run.name(number)),
                sockets: sockets.join(number.to_string()),
            },
        }
    }

    /// Returns the socket to which QEMU connects the port of the agent in a guest that stays.
    pub fn agent_socket(&self) -> PathBuf {
        self.sockets.join("agent")
    }

    /// Returns the sockets that the NIC opens for this guest.
    pub fn nic_sockets(&self) -> [PathBuf; 3] {
        ["nic", "net", "control"].map(|name| self.sockets.join(name))
    }
}

/// Returns the MAC address of a guest.
pub fn mac_address(number: usize) -> String {
    format!("52:54:00:12:{:02x}:56", 0x33 + number)
}

/// Returns the MAC address of the network card of rxe0 in a guest.
pub fn rxe_mac_address(number: usize) -> String {
    format!("52:54:00:12:{:02x}:57", 0x33 + number)
}

/// Returns the arguments of a NIC process for these guests: one guest, or all guests of the run.
/// `loopback` is the beginning of an IPv4 address, three bytes that no other run uses.
pub fn arguments(run: &Run, guests: &[(usize, GuestPlaces)], loopback: &str) -> Vec<OsString> {
    let mut line = Line::default();
    let is_shared = run.has_shared_nic();
    for (number, places) in guests {
        let [nic, net, control] = places.nic_sockets();
        line.option("--socket", nic);
        line.option("--netdev-socket", net);
        line.option("--mac", format!("{},any", mac_address(*number)));
        line.option("--control", control);
        if !is_shared {
            line.option("--record-dump", places.logs.join("death.record"));
            add_uplinks(&mut line, run, *number, places, loopback);
        }
    }
    if run.link_layer == LinkLayer::InfiniBand {
        line.option("--link-layer", "ib");
        // opensm runs in vm1.
        let refused: Vec<String> = (1..)
            .zip(guests)
            .filter(|(_, (number, _))| *number != 1)
            .map(|(place, _)| place.to_string())
            .collect();
        if !refused.is_empty() {
            line.option("--no-smi", refused.join(","));
        }
    }
    if run.is_recorded {
        line.option("--record", RECORDED_ENTRIES);
        for (_, places) in guests {
            line.option("--record-end", places.logs.join("flight.record"));
        }
    }
    line.0.extend(run.nic_args.iter().map(OsString::from));
    line.0
}

fn add_uplinks(line: &mut Line, run: &Run, number: usize, places: &GuestPlaces, loopback: &str) {
    let peers = || run.numbers().filter(move |&peer| peer != number);
    match (run.link(), run.link_layer) {
        _ if run.guests == 1 => {}
        (LinkKind::OneProcess, _) => {}
        (LinkKind::Unix, _) => {
            let all = places.sockets.parent().unwrap_or(&places.sockets);
            for peer in peers() {
                let own = places.sockets.join(format!("to{peer}"));
                let other = all.join(format!("{peer}/to{number}"));
                line.option(
                    "--uplink",
                    format!("unix:{},{}", own.display(), other.display()),
                );
            }
        }
        (LinkKind::Udp, LinkLayer::Ethernet) => {
            let mut tunnels = format!("udp:{loopback}.{number}:{TUNNEL_PORT}");
            for peer in peers() {
                tunnels += &format!(",{loopback}.{peer}:{TUNNEL_PORT}");
            }
            line.option("--uplink", tunnels);
        }
        // A link of InfiniBand has two ends, so each peer has a tunnel of its own.
        (LinkKind::Udp, LinkLayer::InfiniBand) => {
            for peer in peers() {
                let (here, there) = (TUNNEL_PORT + peer, TUNNEL_PORT + number);
                let ends = format!("udp:{loopback}.{number}:{here},{loopback}.{peer}:{there}");
                line.option("--uplink", ends);
            }
        }
    }
}

#[derive(Default)]
struct Line(Vec<OsString>);

impl Line {
    fn option(&mut self, name: &str, value: impl Into<OsString>) {
        self.0.push(name.into());
        self.0.push(value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::RunOptions;

    fn line(options: RunOptions, numbers: &[usize]) -> String {
        let run = options.check().unwrap();
        let guests: Vec<_> = numbers
            .iter()
            .map(|&n| {
                (
                    n,
                    GuestPlaces::new(&run, n, Path::new("/l"), Path::new("/s")),
                )
            })
            .collect();
        let arguments = arguments(&run, &guests, "127.3.4");
        let words: Vec<_> = arguments.iter().map(|a| a.to_str().unwrap()).collect();
        words.join(" ")
    }

    fn pair() -> RunOptions {
        RunOptions {
            guests: 2,
            is_recorded: false,
            ..RunOptions::default()
        }
    }

    #[test]
    fn a_single_guest_has_no_uplink() {
        let options = RunOptions {
            nic_args: vec![String::from("--drop"), String::from("5")],
            ..RunOptions::default()
        };
        assert_eq!(
            line(options, &[1]),
            "--socket /s/nic --netdev-socket /s/net --mac 52:54:00:12:34:56,any --control /s/control --record-dump /l/death.record --record 16384 --record-end /l/flight.record --drop 5"
        );
    }

    #[test]
    fn each_peer_has_a_socket_or_an_address() {
        let unix = line(pair(), &[2]);
        assert!(unix.ends_with("--uplink unix:/s/2/to1,/s/1/to2"), "{unix}");
        assert!(unix.contains("--mac 52:54:00:12:35:56,any"), "{unix}");
        let udp = RunOptions {
            guests: 3,
            link: Some(LinkKind::Udp),
            ..pair()
        };
        let tunnels = "--uplink udp:127.3.4.2:4790,127.3.4.1:4790,127.3.4.3:4790";
        assert!(line(udp.clone(), &[2]).ends_with(tunnels));
        let ib = RunOptions {
            guests: 2,
            link_layer: LinkLayer::InfiniBand,
            ..udp
        };
        let tunnel = "--uplink udp:127.3.4.2:4791,127.3.4.1:4792 --link-layer ib --no-smi 1";
        assert!(line(ib.clone(), &[2]).ends_with(tunnel));
        let tunnel = "--uplink udp:127.3.4.1:4792,127.3.4.2:4791 --link-layer ib";
        assert!(line(ib, &[1]).ends_with(tunnel));
    }

    #[test]
    fn a_shared_process_has_the_sockets_of_all_guests() {
        let options = RunOptions {
            link_layer: LinkLayer::InfiniBand,
            is_recorded: true,
            ..pair()
        };
        assert_eq!(
            line(options, &[1, 2]),
            "--socket /s/1/nic --netdev-socket /s/1/net --mac 52:54:00:12:34:56,any --control /s/1/control --socket /s/2/nic --netdev-socket /s/2/net --mac 52:54:00:12:35:56,any --control /s/2/control --link-layer ib --no-smi 2 --record 16384 --record-end /l/vm1/flight.record --record-end /l/vm2/flight.record"
        );
    }
}
