// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The command line.

use crate::policy::{mac_text, GidRule, MacRule, OtherMacs, Policy};
use crate::switch::MAX_VMS;
use crate::uplink::Kind;
use clap::Parser;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use verbena_device::misbehave::Misbehaviour;

/// A whole number within bounds.
fn whole<T: TryFrom<u64>>(text: &str, bounds: RangeInclusive<u64>) -> Result<T, String> {
    let number = text.parse().ok().filter(|n| bounds.contains(n));
    number.and_then(|n| T::try_from(n).ok()).ok_or_else(|| {
        let (least, most) = (bounds.start(), bounds.end());
        format!("{text:?} is no whole number from {least} to {most}")
    })
}

/// An emulated RDMA NIC, served to QEMU over vfio-user.
///
/// QEMU attaches it with `-device '{"driver":"vfio-user-pci","socket":{"type":"unix","path":"SOCKET"}}'`, and the
/// guest's Ethernet with `-netdev stream,server=off,addr.type=unix,addr.path=NETDEV_SOCKET`. With `"bus":"PORT"`, behind a
/// `-device pcie-root-port,id=PORT`, the guest sees the speed of its PCI Express link. Guest RAM must be shared
/// (`share=on`) and in a file that cannot be truncated: that of a memory-backend-memfd. QEMU can
/// neither migrate nor save the guest with it, but does not refuse to: Documentation/snapshots.md names a device that has it refuse.
/// The NIC ends when QEMU goes away. It can serve several guests: the n-th --socket, --netdev-socket, --control, --mac, --ip and --gid
/// are the n-th guest's. Then it ends with the last QEMU, and each can come back before that.
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

    /// MAC address of the port, which is that of the guest's network card, and what others the guest may use for RDMA. A single guest has
    /// 52:54:00:12:34:56 unless told otherwise, of several each needs its own. `own` (or nothing) lets it use that one only; a list
    /// with commas the others too (ADDRESS,ADDRESS,...); `any`, or ADDRESS,any, all that are no other guest's, which it needs for macvlan
    /// devices, bonds and a MAC address that is changed
    #[arg(long, value_name = "MAC[,MAC...|,any]")]
    pub mac: Vec<MacRule>,

    /// IP addresses and prefixes that a guest may use for RDMA, with commas between them, or `any` that no other guest has; for no guest
    /// or for each. An address that is named without a prefix length is kept for the guests that name it
    #[arg(long, value_name = "IP[/BITS][,...]|any", value_parser = GidRule::of_ips)]
    pub ip: Vec<GidRule>,

    /// The same by GID, beside what --ip allows; for no guest or for each
    #[arg(long, value_name = "GID[,...]|any", value_parser = GidRule::of_gids)]
    pub gid: Vec<GidRule>,

    /// What to log: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log_level: log::LevelFilter,

    /// Force packets between local queue pairs, and between the guests of one process, through the bytes of a frame
    #[arg(long)]
    pub wire_local: bool,

    /// Lose so many percent of the packets between local queue pairs (implies --wire-local)
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = |text: &str| whole::<u8>(text, 0..=100))]
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
    #[arg(long, value_name = "ENTRIES", value_parser = |text: &str| whole::<u32>(text, 1..=verbena_record::MAX_ENTRIES as u64))]
    pub record: Option<u32>,

    /// File for what was recorded when a device dies; for no guest or for each
    #[arg(long, value_name = "PATH")]
    pub record_dump: Vec<PathBuf>,

    /// File for what was recorded when this process ends; for no guest or for each
    #[arg(long, value_name = "PATH")]
    pub record_end: Vec<PathBuf>,

    /// Record all that the device is told and reads, and all that it does, from the beginning into this file (verbenactl replay);
    /// for no guest or for each
    #[arg(long, value_name = "PATH")]
    pub record_full: Vec<PathBuf>,

    /// Seed of all chance
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = |text: &str| whole::<u64>(text, 0..=u64::MAX))]
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
    /// What the device model of each VM is told, and what the host lets the guest call itself.
    ///
    /// # Errors
    ///
    /// There are too many VMs, or not each has what it needs for itself.
    pub fn vms(&self) -> Result<Vec<(verbena_device::Config, Policy)>, String> {
        let count = self.socket.len();
        if count > MAX_VMS.into() {
            return Err(format!("{count} guests (--socket), {MAX_VMS} are possible"));
        }
        for (name, given) in [
            ("--netdev-socket", self.netdev_socket.len()),
            ("--control", self.control.len()),
            ("--record-dump", self.record_dump.len()),
            ("--record-end", self.record_end.len()),
            ("--record-full", self.record_full.len()),
            ("--ip", self.ip.len()),
            ("--gid", self.gid.len()),
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
            &self.record_end,
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
        let rules = match (self.mac.len(), count) {
            (0, 1) => vec![MacRule {
                own: None,
                others: OtherMacs::Listed(vec![]),
            }],
            (given, _) if given == count => self.mac.clone(),
            (given, _) => {
                return Err(format!(
                    "{given} times --mac for {count} times --socket: of several guests each needs an address of its own"
                ))
            }
        };
        let macs = rules.iter().map(|rule| match (rule.own, count) {
            (Some(mac), _) => Ok(mac),
            (None, 1) => Ok(DEFAULT_MAC),
            (None, _) => Err(String::from(
                "of several guests each needs a MAC address of its own: --mac ADDRESS,any or --mac ADDRESS,own",
            )),
        });
        let macs = macs.collect::<Result<Vec<_>, _>>()?;
        if twice(&macs).is_some() {
            return Err(String::from(
                "two guests cannot have one MAC address (--mac)",
            ));
        }
        let vms = rules.into_iter().zip(&macs).enumerate();
        let vms = vms.map(|(n, (rule, mac))| {
            let policy = Policy::new(rule.others, self.ip.get(n), self.gid.get(n));
            if let Some(taken) = policy.macs().iter().find(|m| macs.contains(m)) {
                return Err(format!(
                    "--mac of guest {}: {} is the NIC's own of a guest already",
                    n + 1,
                    mac_text(taken)
                ));
            }
            Ok((self.device_config(*mac), policy))
        });
        vms.collect()
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
            // The engine asks the network for each (`engine/vm.rs`).
            asks_for_gids: true,
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn losing_packets_needs_packets() {
        let args = Args::parse_from(["verbena-nic", "--socket", "s", "--drop", "5"]);
        let (config, policy) = args.vms().unwrap().remove(0);
        assert!(config.wire_local && config.drop_percent == 5);
        assert_eq!((config.mac, policy), (DEFAULT_MAC, Policy::default()));
        assert!(Args::try_parse_from(["verbena-nic", "--socket", "s", "--drop", "101"]).is_err());
        assert!(Args::try_parse_from(["verbena-nic"]).is_err());
    }

    fn vms(line: &str) -> Result<Vec<[u8; 6]>, String> {
        let args = ["verbena-nic"].into_iter().chain(line.split(' '));
        let configs = Args::parse_from(args).vms()?;
        Ok(configs.iter().map(|(config, _)| config.mac).collect())
    }

    #[test]
    fn what_a_guest_may_use() {
        let policies = |line: &str| -> Result<Vec<String>, String> {
            let args = ["verbena-nic"].into_iter().chain(line.split(' '));
            let vms = Args::parse_from(args).vms()?;
            Ok(vms.iter().map(|(_, policy)| policy.to_string()).collect())
        };
        for (line, said) in [
            ("--socket a", "--mac own --ip any"),
            ("--socket a --mac own", "--mac own --ip any"),
            ("--socket a --mac any", "--mac any --ip any"),
            (
                "--socket a --mac any --ip 10.0.0.1,fd00::/64 --gid fe80::9",
                "--mac any --ip 10.0.0.1,fd00::/64,fe80::9",
            ),
            (
                "--socket a --mac 02:00:00:00:00:0a,02:00:00:00:00:0b",
                "--mac own,02:00:00:00:00:0b --ip any",
            ),
        ] {
            assert_eq!(policies(line), Ok(vec![said.into()]), "{line}");
        }
        const TWO: &str = "--socket a --socket b --mac 02:00:00:00:00:0a,any --mac";
        let both = policies(&format!("{TWO} 02:00:00:00:00:0b --ip any --ip 10.0.0.0/8"));
        let said = ["--mac any --ip any", "--mac own --ip 10.0.0.0/8"].map(String::from);
        assert_eq!(both, Ok(said.to_vec()));
        for (line, named) in [
            (format!("{TWO} any"), "each needs a MAC address"),
            (
                format!("{TWO} 02:00:00:00:00:0b,02:00:00:00:00:0a"),
                "guest 2: 02:00:00:00:00:0a is the NIC's own",
            ),
            (format!("{TWO} 02:00:00:00:00:0b --ip any"), "1 times --ip"),
        ] {
            let error = policies(&line).unwrap_err();
            assert!(error.contains(named), "{line}: {error}");
        }
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
