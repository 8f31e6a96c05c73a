// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The command line.

use crate::switch::{is_group, MAX_VMS};
use crate::uplink::Kind;
use clap::Parser;
use std::path::PathBuf;
use verbena_device::misbehave::Misbehaviour;

/// An emulated RDMA NIC, served to QEMU over vfio-user.
///
/// QEMU attaches it with `-device '{"driver":"vfio-user-pci","socket":{"type":"unix","path":"SOCKET"}}'`, and the
/// guest's Ethernet with `-netdev stream,server=off,addr.type=unix,addr.path=NETDEV_SOCKET`. Guest RAM must be shared
/// (`share=on`) and in a file that cannot be truncated: that of a memory-backend-memfd. QEMU can
/// neither migrate nor save the guest with it, but does not refuse to: Documentation/snapshots.md names a device that has it refuse.
/// The NIC ends when QEMU goes away. It can serve several guests: the n-th --socket, --netdev-socket, --control and --mac are the
/// n-th guest's. Then it ends with the last QEMU, and each can come back before that.
#[derive(Parser, Debug)]
#[command(version)]
pub struct Args {
    /// Socket on which QEMU finds the PCI function; one for each guest, at most 16
    #[arg(long, value_name = "PATH", required = true)]
    pub socket: Vec<PathBuf>,

    /// Socket on which QEMU's `-netdev stream` finds the port; for no guest or for each
    #[arg(long, value_name = "PATH")]
    pub netdev_socket: Vec<PathBuf>,

    /// Way to another machine: unix:OWN,PEER joins two NICs on this host by two datagram sockets, one of each;
    /// udp:OWN,PEER[,PEER...] is a UDP tunnel to each peer, all of them ADDRESS:PORT; tap:NAME is a TAP device of the host. May be
    /// repeated: with several other ends, each has to have a way to each
    #[arg(long, value_name = "KIND:ADDRESSES")]
    pub uplink: Vec<Kind>,

    /// Socket for verbenactl; for no guest or for each
    #[arg(long, value_name = "PATH")]
    pub control: Vec<PathBuf>,

    /// MAC address of the port: that of the guest's network card. A single guest has 52:54:00:12:34:56 unless told otherwise, of
    /// several each needs its own
    #[arg(long, value_name = "MAC", value_parser = parse_mac)]
    pub mac: Vec<[u8; 6]>,

    /// What to log: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log_level: log::LevelFilter,

    /// Force packets between local queue pairs, and between the guests of one process, through the bytes of a frame
    #[arg(long)]
    pub wire_local: bool,

    /// Lose so many percent of the packets between local queue pairs (implies --wire-local)
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub drop: u8,

    /// Send and heed no end-to-end credits
    #[arg(long)]
    pub no_credits: bool,

    /// Have as much under way on a wire as ever may be, and leave alone what routers mark
    #[arg(long)]
    pub no_congestion_control: bool,

    /// Hear peers from whatever MAC address, because the way back is by another router than the way there
    #[arg(long)]
    pub asymmetric_routes: bool,

    /// Record what happens in a ring of so many entries (verbenactl record, why), from the beginning
    #[arg(long, value_name = "ENTRIES", value_parser = clap::value_parser!(u32).range(1..=verbena_record::MAX_ENTRIES as i64))]
    pub record: Option<u32>,

    /// File for what was recorded when a device dies; for no guest or for each
    #[arg(long, value_name = "PATH")]
    pub record_dump: Vec<PathBuf>,

    /// Record all that the device is told and reads, and all that it does, from the beginning into this file (verbenactl replay);
    /// for no guest or for each
    #[arg(long, value_name = "PATH")]
    pub record_full: Vec<PathBuf>,

    /// Seed of all chance
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Lie to the driver, drawn with this seed, to test the driver
    #[cfg(feature = "hostile")]
    #[arg(long, value_name = "SEED")]
    pub hostile: Option<u64>,

    /// Misbehave: KIND, KIND=NUMBER or KIND=always; an unknown KIND lists them
    #[cfg(feature = "misbehave")]
    #[arg(long, value_name = "KIND=NUMBER", value_parser = verbena_device::misbehave::parse)]
    pub misbehave: Vec<(verbena_device::misbehave::Kind, u32)>,
}

impl Args {
    /// What the device model of each VM is told.
    ///
    /// # Errors
    ///
    /// There are too many VMs, or not each has what it needs for itself.
    pub fn vms(&self) -> Result<Vec<verbena_device::Config>, String> {
        let count = self.socket.len();
        if count > MAX_VMS.into() {
            return Err(format!("{count} guests (--socket), {MAX_VMS} are possible"));
        }
        for (name, given) in [
            ("--netdev-socket", self.netdev_socket.len()),
            ("--control", self.control.len()),
            ("--record-dump", self.record_dump.len()),
            ("--record-full", self.record_full.len()),
        ] {
            if given != 0 && given != count {
                return Err(format!(
                    "{given} times {name} for {count} times --socket: it is for no guest or for each"
                ));
            }
        }
        let places = [
            &self.socket,
            &self.netdev_socket,
            &self.control,
            &self.record_dump,
            &self.record_full,
        ];
        let sockets: Vec<_> = places.into_iter().flatten().collect();
        if let Some(path) = twice(&sockets) {
            return Err(format!("two sockets or files at {}", path.display()));
        }
        if !self.record_full.is_empty() && self.has_neighbours() {
            return Err(String::from(
                "--record-full of several guests needs --wire-local: packets go by reference between them",
            ));
        }
        let macs = match (self.mac.len(), count) {
            (0, 1) => vec![DEFAULT_MAC],
            (given, _) if given == count => self.mac.clone(),
            (given, _) => {
                return Err(format!(
                    "{given} times --mac for {count} times --socket: of several guests each needs an address of its own"
                ))
            }
        };
        if twice(&macs).is_some() {
            return Err(String::from(
                "two guests cannot have one MAC address (--mac)",
            ));
        }
        Ok(macs
            .into_iter()
            .map(|mac| self.device_config(mac))
            .collect())
    }

    fn has_neighbours(&self) -> bool {
        self.socket.len() > 1 && !self.wire_local && self.drop == 0
    }

    fn device_config(&self, mac: [u8; 6]) -> verbena_device::Config {
        verbena_device::Config {
            mac,
            wire_local: self.wire_local || self.drop != 0,
            neighbours: self.has_neighbours(),
            drop_percent: self.drop,
            credits: !self.no_credits,
            congestion_control: !self.no_congestion_control,
            asymmetric_routes: self.asymmetric_routes,
            seed: self.seed,
            #[cfg(feature = "hostile")]
            hostile: self.hostile,
            #[cfg(not(feature = "hostile"))]
            hostile: None,
            misbehave: self.misbehaviour(),
            record: self.record.map_or(0, |entries| entries as usize),
        }
    }
}

impl Args {
    #[cfg(feature = "misbehave")]
    fn misbehaviour(&self) -> Misbehaviour {
        let all = Misbehaviour::default();
        for (kind, value) in &self.misbehave {
            all.set(*kind, *value);
        }
        all
    }

    #[cfg(not(feature = "misbehave"))]
    fn misbehaviour(&self) -> Misbehaviour {
        Misbehaviour::default()
    }
}

/// The address of a single guest of which nothing is said, as QEMU gives it.
const DEFAULT_MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];

/// What is there twice.
fn twice<T: PartialEq>(all: &[T]) -> Option<&T> {
    all.iter()
        .enumerate()
        .find_map(|(n, one)| all.get(..n)?.contains(one).then_some(one))
}

/// Six bytes in hexadecimal, separated by colons; not a group address.
fn parse_mac(text: &str) -> Result<[u8; 6], String> {
    let form = || format!("{text:?} is no MAC address like 52:54:00:12:34:56");
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        let part = parts.next().filter(|p| p.len() == 2).ok_or_else(form)?;
        if !part.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(form());
        }
        *byte = u8::from_str_radix(part, 16).map_err(|_| form())?;
    }
    if parts.next().is_some() {
        return Err(form());
    }
    if is_group(&mac) {
        return Err(format!(
            "{text} is a multicast address, a port needs one of its own"
        ));
    }
    if mac == [0; 6] {
        return Err(String::from("the MAC address must not be zero"));
    }
    Ok(mac)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn mac_addresses() {
        assert_eq!(
            parse_mac("52:54:00:aB:34:56"),
            Ok([0x52, 0x54, 0, 0xab, 0x34, 0x56])
        );
        for bad in [
            "",
            "52:54:00:12:34",
            "52:54:00:12:34:56:78",
            "5:54:00:12:34:56",
            "+2:54:00:12:34:56",
            "53:54:00:12:34:56",
            "00:00:00:00:00:00",
            "52-54-00-12-34-56",
        ] {
            assert!(parse_mac(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn losing_packets_needs_packets() {
        let args = Args::parse_from(["verbena-nic", "--socket", "s", "--drop", "5"]);
        let config = args.vms().unwrap().remove(0);
        assert!(config.wire_local && config.drop_percent == 5);
        assert_eq!(config.mac, DEFAULT_MAC);
        assert!(Args::try_parse_from(["verbena-nic", "--socket", "s", "--drop", "101"]).is_err());
        assert!(Args::try_parse_from(["verbena-nic"]).is_err());
    }

    fn vms(line: &str) -> Result<Vec<[u8; 6]>, String> {
        let args = ["verbena-nic"].into_iter().chain(line.split(' '));
        let configs = Args::parse_from(args).vms()?;
        Ok(configs.iter().map(|config| config.mac).collect())
    }

    #[test]
    fn each_of_several_guests_has_its_own() {
        const TWO: &str = "--socket a --socket b";
        const MACS: &str = "--mac 02:00:00:00:00:0a --mac 02:00:00:00:00:0b";
        let macs = [[2, 0, 0, 0, 0, 0xa], [2, 0, 0, 0, 0, 0xb]];
        assert_eq!(vms(&format!("{TWO} {MACS}")), Ok(macs.to_vec()));
        let all = "--netdev-socket c --netdev-socket d --control e --control f";
        assert_eq!(vms(&format!("{TWO} {MACS} {all}")), Ok(macs.to_vec()));
        for (line, named) in [
            (TWO, "--mac"),
            (&format!("{TWO} --mac 02:00:00:00:00:0a"), "1 times --mac"),
            (&format!("--socket a {MACS}"), "2 times --mac"),
            (
                &format!("{TWO} --mac 02:00:00:00:00:0a --mac 02:00:00:00:00:0a"),
                "one MAC",
            ),
            (
                &format!("{TWO} {MACS} --netdev-socket c"),
                "--netdev-socket",
            ),
            (&format!("{TWO} {MACS} --control c"), "--control"),
            (
                &format!("--socket a --socket a {MACS}"),
                "two sockets or files at a",
            ),
            (
                &format!("{TWO} {MACS} --control b --control c"),
                "two sockets or files at b",
            ),
            (&["--socket a"; 17].join(" "), "17 guests"),
        ] {
            let error = vms(line).unwrap_err();
            assert!(error.contains(named), "{line}: {error}");
        }
    }
}
