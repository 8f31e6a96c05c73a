// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The identities that the host allows a guest in RDMA: its MAC addresses and GIDs (`--mac`,
//! `--ip`, `--gid`).
//!
//! | option | value | identities that the guest may use |
//! | --- | --- | --- |
//! | `--mac` | `own`, or one address | the MAC address of its NIC |
//! | | `ADDRESS,ADDRESS,...` | the MAC address of its NIC, which is the first, and the others |
//! | | `any`, or `ADDRESS,any` | all that are no other guest's |
//! | `--ip` | `any` | all IP addresses that no other guest has |
//! | | addresses and prefixes | only these; an address that is given without a prefix length is refused to guests whose options do not name it |
//! | `--gid` | GIDs, or `any` | the same for whole GIDs, in addition to those of `--ip` |
//!
//! The link-local address that is made of a guest's MAC address (EUI-64) is always that guest's.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;
use verbena_device::config::node_guid;

/// A MAC address in network order.
pub type MacAddress = [u8; 6];
/// A GID in network order.
pub type RawGid = [u8; 16];

/// MAC addresses that are allowed in addition to the NIC's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OtherMacs {
    /// Only these addresses are allowed.
    Listed(Vec<MacAddress>),
    /// All addresses are allowed that are no other guest's.
    Any,
}

/// A parsed value of `--mac`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MacRule {
    /// MAC address of the NIC, if the value names it.
    pub own: Option<MacAddress>,
    /// Further MAC addresses of the guest.
    pub others: OtherMacs,
}

impl FromStr for MacRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut rule = Self {
            own: None,
            others: OtherMacs::Listed(vec![]),
        };
        let words: Vec<&str> = text.split(',').collect();
        let (last, first) = words.split_last().unwrap_or((&"", &[]));
        let addresses = match *last {
            "any" => {
                rule.others = OtherMacs::Any;
                first
            }
            "own" => first,
            _ => &words,
        };
        let addresses: Vec<MacAddress> = addresses
            .iter()
            .map(|word| parse_mac(word))
            .collect::<Result<_, _>>()?;
        let Some((own, others)) = addresses.split_first() else {
            return Ok(rule);
        };
        rule.own = Some(*own);
        if !others.is_empty() && words.len() != addresses.len() {
            return Err(format!(
                "{text:?}: before {last:?} only one address is possible, that of the NIC"
            ));
        }
        if rule.others != OtherMacs::Any {
            rule.others = OtherMacs::Listed(others.to_vec());
        }
        Ok(rule)
    }
}

/// Parses six bytes in hexadecimal, separated by colons, which are not a group address.
fn parse_mac(text: &str) -> Result<MacAddress, String> {
    let form = || format!("{text:?} is no MAC address: give six bytes like 52:54:00:12:34:56");
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
    if mac[0] & 1 != 0 {
        return Err(format!(
            "{text} is a multicast address: give a unicast address, like 52:54:00:12:34:56"
        ));
    }
    if mac == [0; 6] {
        return Err(format!("{text}: the MAC address must not be zero"));
    }
    Ok(mac)
}

/// The GIDs that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Prefix {
    gid: RawGid,
    /// Number of leading bits to compare, at most 128.
    bits: u32,
}

impl Prefix {
    fn has(&self, gid: &RawGid) -> bool {
        let [own, other] = [&self.gid, gid].map(|gid| u128::from_be_bytes(*gid));
        // With a prefix of 0 bits, all GIDs match.
        (own ^ other)
            .checked_shr(128 - self.bits)
            .is_none_or(|rest| rest == 0)
    }

    /// True if the prefix is a single GID.
    fn is_exact(&self) -> bool {
        self.bits == 128
    }
}

/// The GIDs that a value of `--ip` or `--gid` allows. `None` allows all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GidRule(Option<Vec<Prefix>>);

impl GidRule {
    fn parse(text: &str, one: impl Fn(&str) -> Result<Prefix, String>) -> Result<Self, String> {
        if text == "any" {
            return Ok(Self(None));
        }
        let all: Result<_, _> = text.split(',').map(one).collect();
        Ok(Self(Some(all?)))
    }

    /// Parses a value of `--ip`: addresses and prefixes of IPv4 and IPv6, separated by commas, or
    /// `any`.
    ///
    /// # Errors
    ///
    /// A message with the word that is wrong.
    pub fn of_ips(text: &str) -> Result<Self, String> {
        Self::parse(text, |word| {
            let form = || {
                format!(
                    "{word:?} is no IP address or prefix like 10.0.0.1, 10.1.0.0/16 or fd00::/64"
                )
            };
            let (address, length) = match word.split_once('/') {
                Some((address, length)) => (address, Some(length)),
                None => (word, None),
            };
            let address: IpAddr = address.parse().map_err(|_| form())?;
            let (gid, before, most) = match address {
                IpAddr::V4(v4) => (v4.to_ipv6_mapped(), 96, 32),
                IpAddr::V6(v6) => (v6, 0, 128),
            };
            let length = length.map_or(Ok(most), |n| n.parse::<u32>().map_err(|_| form()))?;
            if length > most {
                return Err(form());
            }
            Ok(Prefix {
                gid: gid.octets(),
                bits: before + length,
            })
        })
    }

    /// Parses a value of `--gid`: GIDs as IPv6 addresses, separated by commas, or `any`.
    ///
    /// # Errors
    ///
    /// A message with the word that is wrong.
    pub fn of_gids(text: &str) -> Result<Self, String> {
        Self::parse(text, |word| {
            let gid: Ipv6Addr = word.parse().map_err(|_| {
                format!("{word:?} is no GID like fe80::5054:ff:fe12:3456 or ::ffff:10.0.0.1")
            })?;
            Ok(Prefix {
                gid: gid.octets(),
                bits: 128,
            })
        })
    }
}

/// The identities that the host allows a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    macs: OtherMacs,
    /// Allowed GIDs; `None` allows all.
    gids: Option<Vec<Prefix>>,
}

impl Default for Policy {
    /// Returns a policy that allows the NIC's MAC address, with any IP address.
    fn default() -> Self {
        Self {
            macs: OtherMacs::Listed(vec![]),
            gids: None,
        }
    }
}

/// Returns the link-local address that is made of a MAC address (RFC 4291, 2.5.6 and appendix A).
pub fn link_local(mac: &MacAddress) -> RawGid {
    let mut gid = [0; 16];
    gid[..2].copy_from_slice(&[0xfe, 0x80]);
    gid[8..].copy_from_slice(&node_guid(*mac));
    gid
}

impl Policy {
    /// Returns the policy of a guest's options, each of which is `None` if the guest does not have
    /// it.
    pub fn new(macs: OtherMacs, ips: Option<&GidRule>, gids: Option<&GidRule>) -> Self {
        let given = [ips, gids].into_iter().flatten();
        let lists: Vec<_> = given.map(|rule| rule.0.as_deref()).collect();
        let gids = match lists.is_empty() || lists.contains(&None) {
            true => None,
            false => Some(lists.into_iter().flatten().flatten().copied().collect()),
        };
        Self { macs, gids }
    }

    /// True if a guest may use a MAC address that is not its NIC's own.
    pub fn allows_mac(&self, mac: &MacAddress) -> bool {
        match &self.macs {
            OtherMacs::Listed(macs) => macs.contains(mac),
            OtherMacs::Any => true,
        }
    }

    /// True if a guest may use a GID with a MAC address.
    pub fn allows_gid(&self, gid: &RawGid, mac: &MacAddress) -> bool {
        let is_listed = |all: &Vec<Prefix>| all.iter().any(|one| one.has(gid));
        self.gids.as_ref().is_none_or(is_listed) || *gid == link_local(mac)
    }

    /// Returns the MAC addresses that the policy names.
    pub fn macs(&self) -> &[MacAddress] {
        match &self.macs {
            OtherMacs::Listed(macs) => macs,
            OtherMacs::Any => &[],
        }
    }

    /// Returns the GIDs that the policy names, without those of prefixes.
    pub fn gids(&self) -> impl Iterator<Item = RawGid> + '_ {
        let exact = self.gids.iter().flatten().filter(|one| one.is_exact());
        exact.map(|one| one.gid)
    }
}

/// Returns the text of a MAC address.
pub fn mac_text(mac: &MacAddress) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// Returns the text of a GID: its IPv4 address if it has one, or an IPv6 address.
pub fn gid_text(gid: &RawGid) -> String {
    let address = Ipv6Addr::from(*gid);
    match address.to_ipv4_mapped() {
        Some(v4) => v4.to_string(),
        None => address.to_string(),
    }
}

impl fmt::Display for Policy {
    /// Writes the policy as command line options, but without the NIC's own MAC address.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.macs {
            OtherMacs::Any => f.write_str("--mac any")?,
            OtherMacs::Listed(macs) if macs.is_empty() => f.write_str("--mac own")?,
            OtherMacs::Listed(macs) => {
                let macs: Vec<_> = macs.iter().map(mac_text).collect();
                write!(f, "--mac own,{}", macs.join(","))?;
            }
        }
        let Some(gids) = &self.gids else {
            return f.write_str(" --ip any");
        };
        let one = |prefix: &Prefix| {
            let bits = match Ipv6Addr::from(prefix.gid).to_ipv4_mapped() {
                Some(_) => prefix.bits.saturating_sub(96),
                None => prefix.bits,
            };
            match prefix.is_exact() {
                true => gid_text(&prefix.gid),
                false => format!("{}/{bits}", gid_text(&prefix.gid)),
            }
        };
        let gids: Vec<_> = gids.iter().map(one).collect();
        write!(f, " --ip {}", gids.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: MacAddress = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
    const B: MacAddress = [2, 0, 0, 0, 0, 0xb];

    fn v4(a: u8, b: u8, c: u8, d: u8) -> RawGid {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
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
    fn values_of_mac() {
        let listed = |macs: &[MacAddress]| OtherMacs::Listed(macs.to_vec());
        let rule = |own, others| Ok(MacRule { own, others });
        for (text, expected) in [
            ("own", rule(None, listed(&[]))),
            ("any", rule(None, OtherMacs::Any)),
            ("52:54:00:12:34:56", rule(Some(A), listed(&[]))),
            ("52:54:00:12:34:56,own", rule(Some(A), listed(&[]))),
            ("52:54:00:12:34:56,any", rule(Some(A), OtherMacs::Any)),
            (
                "52:54:00:12:34:56,02:00:00:00:00:0b",
                rule(Some(A), listed(&[B])),
            ),
        ] {
            assert_eq!(text.parse::<MacRule>(), expected, "{text}");
        }
        for bad in [
            "",
            ",",
            "any,own",
            "any,52:54:00:12:34:56",
            "52:54:00:12:34:56,",
            "52:54:00:12:34:56,02:00:00:00:00:0b,any",
            "52:54:00:12:34:56,all",
        ] {
            assert!(bad.parse::<MacRule>().is_err(), "{bad}");
        }
    }

    #[test]
    fn values_of_ip_and_gid() {
        for (text, inside, outside) in [
            ("10.0.0.1", vec![v4(10, 0, 0, 1)], vec![v4(10, 0, 0, 2)]),
            (
                "10.1.0.0/16,10.2.0.9",
                vec![v4(10, 1, 9, 9), v4(10, 2, 0, 9)],
                vec![v4(10, 2, 0, 8), link_local(&B)],
            ),
            ("0.0.0.0/0", vec![v4(1, 2, 3, 4)], vec![[0x20; 16]]),
            ("::/0", vec![v4(1, 2, 3, 4), [0x20; 16]], vec![]),
            (
                "fe80::/10",
                vec![link_local(&B)],
                vec![v4(1, 2, 3, 4), [0x20; 16]],
            ),
        ] {
            let rule = GidRule::of_ips(text).unwrap();
            let policy = Policy::new(OtherMacs::Any, Some(&rule), None);
            assert!(inside.iter().all(|g| policy.allows_gid(g, &A)), "{text}");
            assert!(!outside.iter().any(|g| policy.allows_gid(g, &A)), "{text}");
            // A guest may always use the link-local address of its NIC's MAC address.
            assert!(policy.allows_gid(&link_local(&A), &A), "{text}");
        }
        for bad in [
            "",
            "10.0.0",
            "10.0.0.1/33",
            "fe80::1/129",
            "10.0.0.1/x",
            "a,any",
        ] {
            let error = GidRule::of_ips(bad).unwrap_err();
            assert!(error.contains("no IP address"), "{error}");
        }
        for bad in ["", "10.0.0.1", "fe80::/64", "x"] {
            assert!(GidRule::of_gids(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_addresses_of_both_lists_are_allowed() {
        let ips = GidRule::of_ips("10.0.0.1").unwrap();
        let gids = GidRule::of_gids("fd00::1").unwrap();
        let fd = "fd00::1".parse::<Ipv6Addr>().unwrap().octets();
        let any = GidRule::of_ips("any").unwrap();
        let allows = |ips, gids, gid| Policy::new(OtherMacs::Any, ips, gids).allows_gid(&gid, &A);
        let one = v4(10, 0, 0, 1);
        assert!(allows(Some(&ips), Some(&gids), one) && allows(Some(&ips), Some(&gids), fd));
        assert!(allows(Some(&ips), None, one) && !allows(Some(&ips), None, fd));
        assert!(!allows(None, Some(&gids), one) && allows(None, Some(&gids), fd));
        assert!(allows(None, None, fd) && allows(Some(&any), Some(&gids), one));
        let policy = Policy::new(OtherMacs::Listed(vec![B]), Some(&ips), Some(&gids));
        assert_eq!(policy.gids().collect::<Vec<_>>(), [one, fd]);
        assert_eq!(
            policy.to_string(),
            "--mac own,02:00:00:00:00:0b --ip 10.0.0.1,fd00::1"
        );
        let prefix = GidRule::of_ips("10.1.0.0/16,fd00::/64").unwrap();
        let policy = Policy::new(OtherMacs::Any, Some(&prefix), None);
        assert_eq!(policy.to_string(), "--mac any --ip 10.1.0.0/16,fd00::/64");
        assert_eq!(policy.gids().count(), 0);
        assert_eq!(Policy::default().to_string(), "--mac own --ip any");
    }

    #[test]
    fn the_link_local_address_of_a_mac_address() {
        assert_eq!(gid_text(&link_local(&A)), "fe80::5054:ff:fe12:3456");
        assert_eq!(gid_text(&v4(10, 0, 0, 1)), "10.0.0.1");
    }
}
