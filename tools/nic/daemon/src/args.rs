// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The command line.

use crate::policy::{mac_text, GidRule, MacRule, OtherMacs, Policy};
use crate::subnet::{self, Subnet};
use crate::switch::MAX_VMS;
use crate::uplink::UplinkKind;
use clap::Parser;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use verbena_abi::cmd::LinkLayer;
use verbena_device::misbehave::Misbehaviour;
use verbena_fabric::Topology;

/// Parses a whole number within bounds.
fn parse_whole<T: TryFrom<u64>>(text: &str, bounds: RangeInclusive<u64>) -> Result<T, String> {
    let number = text.parse().ok().filter(|n| bounds.contains(n));
    number.and_then(|n| T::try_from(n).ok()).ok_or_else(|| {
        let (least, most) = (bounds.start(), bounds.end());
        format!("{text:?} is not a whole number from {least} to {most}")
    })
}

/// An emulated RDMA NIC, served to QEMU over vfio-user.
///
/// QEMU attaches the PCI function with
/// `-device '{"driver":"vfio-user-pci","socket":{"type":"unix","path":"SOCKET"}}'`, and the guest's
/// Ethernet with `-netdev stream,server=off,addr.type=unix,addr.path=NETDEV_SOCKET`. If the
/// `-device` also has `"bus":"PORT"`, where PORT is the id of a `-device pcie-root-port,id=PORT`,
/// the guest sees the speed of the PCI Express link. Guest RAM must be shared (`share=on`) and in a
/// file that cannot be truncated: use a memory-backend-memfd. QEMU can neither migrate nor save a
/// guest with this device, and does not refuse to: Documentation/snapshots.md names a second device
/// with which QEMU refuses. The NIC ends when QEMU disconnects. The NIC can serve several guests:
/// the n-th --socket, --netdev-socket, --control, --mac, --ip and --gid belong to the n-th guest.
/// It then ends when no QEMU is left; until then, a QEMU that has disconnected can connect again.
#[derive(Parser, Debug)]
#[command(version)]
pub struct NicArgs {
    /// Socket where QEMU connects to the PCI function; once for each guest, at most 16 times
    #[arg(long, value_name = "PATH", required = true)]
    pub socket: Vec<PathBuf>,

    /// Socket where QEMU's `-netdev stream` connects to the guest's Ethernet; once for each guest,
    /// or never
    #[arg(long, value_name = "PATH")]
    pub netdev_socket: Vec<PathBuf>,

    /// Connection to other NICs: unix:OWN,PEER connects two NICs of this host by two datagram
    /// sockets, one of each NIC; udp:OWN,PEER[,PEER...] is a UDP tunnel to each peer, where OWN and
    /// PEER are ADDRESS:PORT; tap:NAME is a TAP device of the host. May be repeated. A NIC does not
    /// forward from one uplink to another, so of three or more NICs each needs an uplink to each
    /// other
    #[arg(long, value_name = "KIND:ADDRESSES")]
    pub uplink: Vec<UplinkKind>,

    /// Socket for verbenactl; once for each guest, or never
    #[arg(long, value_name = "PATH")]
    pub control: Vec<PathBuf>,

    /// MAC address of the NIC, which is that of the guest's network card, and the other MAC
    /// addresses that the guest may use for RDMA. A single guest has 52:54:00:12:34:56 by default;
    /// each of several guests needs an address of its own. ADDRESS, ADDRESS,own and `own` allow no
    /// other address; a list (ADDRESS,ADDRESS,...) also allows the rest of the list; `any` and
    /// ADDRESS,any allow all addresses that no other guest has: macvlan devices, bonds and changes
    /// of the MAC address need this
    #[arg(long, value_name = "MAC[,MAC...|,any]")]
    pub mac: Vec<MacRule>,

    /// IP addresses and prefixes that the guest may use for RDMA, separated by commas, or `any` for
    /// all that no other guest has; once for each guest, or never. An address without a prefix
    /// length is reserved for the guests whose options name it
    #[arg(long, value_name = "IP[/BITS][,...]|any", value_parser = GidRule::of_ips)]
    pub ip: Vec<GidRule>,

    /// GIDs that the guest may use for RDMA in addition to those of --ip, separated by commas, or
    /// `any`; once for each guest, or never
    #[arg(long, value_name = "GID[,...]|any", value_parser = GidRule::of_gids)]
    pub gid: Vec<GidRule>,

    /// Link layer of the guests' ports: ethernet (RoCE v2), or ib for InfiniBand, whose switches and
    /// adapters this process emulates. A guest has to run a subnet manager, for example opensm
    #[arg(long, value_name = "LAYER", value_parser = parse_link_layer, default_value = "ethernet")]
    pub link_layer: LinkLayer,

    /// Topology of the InfiniBand subnet, in the format that ibnetdiscover prints; the guests have
    /// its first adapters. Without it, the guests' adapters are at one switch. A link to the node
    /// "uplinkN" is a link over the n-th uplink
    #[arg(long, value_name = "FILE")]
    pub topology: Option<PathBuf>,

    /// Guests that must not manage the InfiniBand subnet, by their numbers from 1, separated by
    /// commas, or `all`: their ports refuse IsSM, and drop their SMPs
    #[arg(long, value_name = "N[,N...]|all", value_parser = parse_guests)]
    pub no_smi: Option<GuestSet>,

    /// Level of the log: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log_level: log::LevelFilter,

    /// Make frames of the packets between local queue pairs, and between the guests of this process
    #[arg(long)]
    pub wire_local: bool,

    /// Drop this percentage of the packets between local queue pairs (implies --wire-local)
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = |text: &str| parse_whole::<u8>(text, 0..=100))]
    pub drop: u8,

    /// Send no end-to-end credits, and ignore those of peers
    #[arg(long)]
    pub no_credits: bool,

    /// Never reduce the number of packets in flight on a wire, and do not answer packets that
    /// routers have marked
    #[arg(long)]
    pub no_congestion_control: bool,

    /// Accept packets of a peer from any MAC address: for routes whose way back passes another
    /// router than the way there
    #[arg(long)]
    pub asymmetric_routes: bool,

    /// Record events from the beginning, in a ring of this number of entries (verbenactl record,
    /// why)
    #[arg(long, value_name = "ENTRIES", value_parser = |text: &str| parse_whole::<u32>(text, 1..=verbena_recorder::MAX_ENTRIES as u64))]
    pub record: Option<u32>,

    /// File for the recorded entries when the device dies; once for each guest, or never
    #[arg(long, value_name = "PATH")]
    pub record_dump: Vec<PathBuf>,

    /// File for the recorded entries when this process ends; once for each guest, or never
    #[arg(long, value_name = "PATH")]
    pub record_end: Vec<PathBuf>,

    /// Record all inputs and outputs of the device from the beginning into this file (verbenactl
    /// replay); once for each guest, or never
    #[arg(long, value_name = "PATH")]
    pub record_full: Vec<PathBuf>,

    /// Seed of all random numbers
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = |text: &str| parse_whole::<u64>(text, 0..=u64::MAX))]
    pub seed: u64,

    /// Lie to the driver, to test it; the seed determines the lies
    #[cfg(feature = "hostile")]
    #[arg(long, value_name = "SEED")]
    pub hostile: Option<u64>,

    /// Misbehave: KIND, KIND=NUMBER or KIND=always; the error for an unknown KIND lists all
    #[cfg(feature = "misbehave")]
    #[arg(long, value_name = "KIND=NUMBER", value_parser = verbena_device::misbehave::parse)]
    pub misbehave: Vec<(verbena_device::misbehave::Kind, u32)>,
}

/// A set of guests, by their numbers from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuestSet {
    /// All guests.
    All,
    /// The guests with these numbers.
    These(Vec<usize>),
}

impl GuestSet {
    fn has(&self, guest: usize) -> bool {
        match self {
            Self::All => true,
            Self::These(guests) => guests.contains(&guest),
        }
    }
}

fn parse_guests(text: &str) -> Result<GuestSet, String> {
    if text == "all" {
        return Ok(GuestSet::All);
    }
    let numbers = text.split(',').map(|n| n.parse::<usize>());
    let numbers: Result<Vec<_>, _> = numbers.collect();
    numbers.map(GuestSet::These).map_err(|_| {
        format!("{text:?} is neither `all` nor a list of numbers of guests, for example 2,3")
    })
}

fn parse_link_layer(text: &str) -> Result<LinkLayer, String> {
    match text {
        "ethernet" => Ok(LinkLayer::Ethernet),
        "ib" | "infiniband" => Ok(LinkLayer::InfiniBand),
        _ => Err(format!("{text:?} is neither `ethernet` nor `ib`")),
    }
}

impl NicArgs {
    /// Returns the device's configuration and the guest's policy for each VM.
    ///
    /// # Errors
    ///
    /// There are too many VMs, or an option is missing for a VM or has the value of another VM.
    pub fn vms(&self) -> Result<Vec<(verbena_device::Config, Policy)>, String> {
        let count = self.socket.len();
        if count > MAX_VMS.into() {
            return Err(format!(
                "{count} guests (--socket): at most {MAX_VMS} are possible"
            ));
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
                    "{name} is given {given} times for {count} guests (--socket): give it once for each guest, or never"
                ));
            }
        }
        let paths = [
            &self.socket,
            &self.netdev_socket,
            &self.control,
            &self.record_dump,
            &self.record_end,
            &self.record_full,
        ];
        let paths: Vec<_> = paths.into_iter().flatten().collect();
        if let Some(path) = find_duplicate(&paths) {
            return Err(format!(
                "{} is given for two sockets or files: each needs a path of its own",
                path.display()
            ));
        }
        if !self.record_full.is_empty() && self.has_neighbours() {
            return Err(String::from(
                "--record-full with several guests needs --wire-local: without it, packets between the guests pass by reference and are not recorded",
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
                    "--mac is given {given} times for {count} guests (--socket): give it once for each guest; only a single guest has a default"
                ))
            }
        };
        let macs = rules.iter().map(|rule| match (rule.own, count) {
            (Some(mac), _) => Ok(mac),
            (None, 1) => Ok(DEFAULT_MAC),
            (None, _) => Err(String::from(
                "each of several guests needs a MAC address of its own: give --mac ADDRESS,any or --mac ADDRESS,own",
            )),
        });
        let macs = macs.collect::<Result<Vec<_>, _>>()?;
        if let Some(mac) = find_duplicate(&macs) {
            return Err(format!(
                "--mac {}: two guests cannot have the same MAC address",
                mac_text(mac)
            ));
        }
        self.check_link(count)?;
        let vms = rules.into_iter().zip(&macs).enumerate();
        let vms = vms.map(|(n, (rule, mac))| {
            let policy = Policy::new(rule.others, self.ip.get(n), self.gid.get(n));
            if let Some(taken) = policy.macs().iter().find(|m| macs.contains(m)) {
                return Err(format!(
                    "--mac of guest {}: {} is already the NIC's address of a guest",
                    n + 1,
                    mac_text(taken)
                ));
            }
            Ok((self.device_config(*mac), policy))
        });
        vms.collect()
    }

    fn check_link(&self, count: usize) -> Result<(), String> {
        if self.link_layer == LinkLayer::InfiniBand {
            let unused = [
                ("--ip", self.ip.is_empty()),
                ("--gid", self.gid.is_empty()),
                ("--record-full", self.record_full.is_empty()),
            ];
            if let Some((name, _)) = unused.into_iter().find(|(_, is_unused)| !is_unused) {
                return Err(format!(
                    "{name} is for Ethernet ports: leave it out with --link-layer ib"
                ));
            }
        } else if self.topology.is_some() || self.no_smi.is_some() {
            return Err(String::from(
                "--topology and --no-smi are for InfiniBand ports: add --link-layer ib",
            ));
        }
        match &self.no_smi {
            Some(GuestSet::These(guests)) if guests.iter().any(|n| !(1..=count).contains(n)) => {
                Err(format!(
                    "--no-smi names a guest beyond {count}, the number of guests (--socket)"
                ))
            }
            _ => Ok(()),
        }
    }

    /// Returns the InfiniBand subnet of the guests, with links over `uplinks` uplinks; none for
    /// Ethernet ports.
    ///
    /// # Errors
    ///
    /// The topology file cannot be read, has a mistake, or has too few adapters or free ports.
    pub fn subnet(&self, macs: &[[u8; 6]], uplinks: usize) -> Result<Option<Subnet>, String> {
        if self.link_layer == LinkLayer::Ethernet {
            return Ok(None);
        }
        let (name, text) = match &self.topology {
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|e| format!("--topology {}: {e}", path.display()))?;
                (path.display().to_string(), text)
            }
            None => {
                let guid =
                    |mac: &[u8; 6]| u64::from_be_bytes(verbena_device::config::node_guid(*mac));
                let guids: Vec<u64> = macs.iter().map(guid).collect();
                (String::from("(default)"), subnet::default_topology(&guids))
            }
        };
        let named = |e: String| format!("--topology {name}: {e}");
        let topology = Topology::parse(&text).map_err(|e| named(e.to_string()))?;
        let mut subnet = Subnet::new(&topology, macs.len()).map_err(named)?;
        let mac = macs.first().copied().unwrap_or_default();
        subnet.add_uplinks(&topology, uplinks, mac).map_err(named)?;
        for vm in 0..macs.len() {
            if self.no_smi.as_ref().is_some_and(|set| set.has(vm + 1)) {
                subnet.forbid_management(vm as u8);
            }
        }
        Ok(Some(subnet))
    }

    fn has_neighbours(&self) -> bool {
        self.socket.len() > 1 && !self.wire_local && self.drop == 0
    }

    fn device_config(&self, mac: [u8; 6]) -> verbena_device::Config {
        verbena_device::Config {
            mac,
            link_layer: self.link_layer,
            guid: None,
            wire_local: self.wire_local || self.drop != 0,
            neighbours: self.has_neighbours(),
            drop_percent: self.drop,
            credits: !self.no_credits,
            // The congestion notifications of the transport are those of RoCE v2.
            congestion_control: !self.no_congestion_control
                && self.link_layer == LinkLayer::Ethernet,
            asymmetric_routes: self.asymmetric_routes,
            // The engine asks the network about each GID (`engine/vm.rs`).
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

impl NicArgs {
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

/// Default MAC address of a single guest. It is also QEMU's default.
const DEFAULT_MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];

/// Returns an element that occurs twice.
fn find_duplicate<T: PartialEq>(all: &[T]) -> Option<&T> {
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
        NicArgs::command().debug_assert();
    }

    #[test]
    fn drop_implies_wire_local_and_is_a_percentage() {
        let args = NicArgs::parse_from(["verbena-nic", "--socket", "s", "--drop", "5"]);
        let (config, policy) = args.vms().unwrap().remove(0);
        assert!(config.wire_local && config.drop_percent == 5);
        assert_eq!((config.mac, policy), (DEFAULT_MAC, Policy::default()));
        assert!(
            NicArgs::try_parse_from(["verbena-nic", "--socket", "s", "--drop", "101"]).is_err()
        );
        assert!(NicArgs::try_parse_from(["verbena-nic"]).is_err());
    }

    fn vms(line: &str) -> Result<Vec<[u8; 6]>, String> {
        let args = ["verbena-nic"].into_iter().chain(line.split(' '));
        let configs = NicArgs::parse_from(args).vms()?;
        Ok(configs.iter().map(|(config, _)| config.mac).collect())
    }

    #[test]
    fn the_options_of_a_guest_are_its_policy() {
        let policies = |line: &str| -> Result<Vec<String>, String> {
            let args = ["verbena-nic"].into_iter().chain(line.split(' '));
            let vms = NicArgs::parse_from(args).vms()?;
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
            (format!("{TWO} any"), "needs a MAC address of its own"),
            (
                format!("{TWO} 02:00:00:00:00:0b,02:00:00:00:00:0a"),
                "guest 2: 02:00:00:00:00:0a is already the NIC's",
            ),
            (
                format!("{TWO} 02:00:00:00:00:0b --ip any"),
                "--ip is given 1 times",
            ),
        ] {
            let error = policies(&line).unwrap_err();
            assert!(error.contains(named), "{line}: {error}");
        }
    }

    #[test]
    fn each_of_several_guests_needs_its_own_addresses_and_paths() {
        const TWO: &str = "--socket a --socket b";
        const MACS: &str = "--mac 02:00:00:00:00:0a --mac 02:00:00:00:00:0b";
        let macs = [[2, 0, 0, 0, 0, 0xa], [2, 0, 0, 0, 0, 0xb]];
        assert_eq!(vms(&format!("{TWO} {MACS}")), Ok(macs.to_vec()));
        let all = "--netdev-socket c --netdev-socket d --control e --control f";
        assert_eq!(vms(&format!("{TWO} {MACS} {all}")), Ok(macs.to_vec()));
        for (line, named) in [
            (TWO, "--mac"),
            (
                &format!("{TWO} --mac 02:00:00:00:00:0a"),
                "--mac is given 1 times",
            ),
            (&format!("--socket a {MACS}"), "--mac is given 2 times"),
            (
                &format!("{TWO} --mac 02:00:00:00:00:0a --mac 02:00:00:00:00:0a"),
                "02:00:00:00:00:0a: two guests cannot have the same MAC",
            ),
            (
                &format!("{TWO} {MACS} --netdev-socket c"),
                "--netdev-socket",
            ),
            (&format!("{TWO} {MACS} --control c"), "--control"),
            (
                &format!("--socket a --socket a {MACS}"),
                "a is given for two sockets or files",
            ),
            (
                &format!("{TWO} {MACS} --control b --control c"),
                "b is given for two sockets or files",
            ),
            (&["--socket a"; 17].join(" "), "17 guests"),
        ] {
            let error = vms(line).unwrap_err();
            assert!(error.contains(named), "{line}: {error}");
        }
    }
}
