// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Replies about the port and about single queue pairs.

use super::{name, protocol, request};
use crate::policy::mac_text;
use crate::vm_state::{EngineRequest, UnreachableRange, VmState};
use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use verbena_abi::cmd::QpType;
use verbena_abi::stats::{Counter, NUM_COUNTERS};
use verbena_device::observation::counters::Counters;
use verbena_device::QpFigures;

/// Returns the text of a GID.
pub(super) fn gid(bytes: [u8; 16]) -> String {
    Ipv6Addr::from(bytes).to_string()
}

fn mac(bytes: [u8; 6]) -> String {
    mac_text(&bytes)
}

/// Returns the wanted counters by their names.
fn by_name(
    counters: [u64; NUM_COUNTERS],
    wanted: impl Fn(Counter) -> bool,
) -> BTreeMap<String, u64> {
    let all = Counter::ALL.iter().zip(counters);
    let wanted = all.filter(|(counter, _)| wanted(**counter));
    wanted.map(|(&c, value)| (name(c).into(), value)).collect()
}

/// Returns a queue pair's counters: those of the ABI that a queue pair can have, and the further
/// counters of its transport.
pub(super) fn counters(qp: &QpFigures) -> BTreeMap<String, u64> {
    let mut all = by_name(qp.counters, |counter| !Counters::is_ports(counter));
    let beside = Counters::beside(&qp.transport, &qp.congestion);
    all.extend(beside.map(|(name, value)| (name.into(), value)));
    all
}

/// Returns the reply about the port.
pub(super) fn port(shared: &VmState) -> Result<protocol::PortReply, String> {
    let figures = request(shared, EngineRequest::Port)?;
    let counters = request(shared, EngineRequest::Stats)?;
    let gids = figures
        .gids
        .iter()
        .map(|(index, entry)| protocol::GidTableEntry {
            index: *index,
            gid: gid(entry.gid),
            mac: mac(entry.mac),
            vlan: entry.vlan,
        });
    let groups = figures
        .groups
        .into_iter()
        .map(|group| protocol::MulticastGroup {
            gid: gid(group.gid),
            members: group.members,
            first: group.first,
        });
    let refused = shared
        .refusals
        .all()
        .into_iter()
        .map(|one| protocol::RefusedGid {
            gid: gid(one.entry.gid),
            mac: mac(one.entry.mac),
            vlan: one.entry.vlan,
            rule: one.cause.name().into(),
            why: one.cause.explain().trim().into(),
            times: one.times,
        });
    let port = protocol::PortStatus {
        link_up: figures.up,
        mtu: figures.mtu,
        mac: mac(figures.mac),
        gids: gids.collect(),
        unreachable_ram: shared.unreachable().iter().map(unreachable_ram).collect(),
        refused: refused.collect(),
        groups: groups.collect(),
        counters: by_name(counters, |_| true),
    };
    Ok(protocol::PortReply { port })
}

fn unreachable_ram(range: &UnreachableRange) -> protocol::UnreachableRam {
    protocol::UnreachableRam {
        address: format!("{:#x}", range.addr),
        bytes: range.len,
        why: range.why.into(),
    }
}

/// Returns the reply with the MAC address of the NIC's guest, and the link layer of the port.
pub(super) fn capture_reply(shared: &VmState) -> Result<protocol::CaptureReply, String> {
    let figures = request(shared, EngineRequest::Port)?;
    Ok(protocol::CaptureReply {
        guest: mac(figures.mac),
        link_layer: match figures.is_infiniband {
            true => protocol::CaptureLinkLayer::InfiniBand,
            false => protocol::CaptureLinkLayer::Ethernet,
        },
    })
}

/// Returns the reply about a queue pair.
pub(super) fn qp(shared: &VmState, number: u32) -> Result<protocol::QpReply, String> {
    let figures = request(shared, |to| EngineRequest::Qp(number, to))?;
    let figures = figures.ok_or_else(|| {
        format!("there is no queue pair {number} (verbenactl contexts --kind qp lists them)")
    })?;
    Ok(protocol::QpReply {
        qp: queue_pair(&figures),
    })
}

fn queue_pair(qp: &QpFigures) -> protocol::QpDetails {
    let live = &qp.live;
    protocol::QpDetails {
        number: qp.qpn,
        qp_type: QpType::from_raw(qp.qp_type)
            .map_or("?", QpType::name)
            .into(),
        state: live.state.name().into(),
        syndrome: live.syndrome.map(|cause| cause.name().into()),
        dest_qpn: qp.dest_qpn,
        own_gid: qp.gids.map(|(own, _)| gid(own)),
        peer_gid: qp.gids.map(|(_, peer)| gid(peer)),
        is_local: qp.is_local,
        window: live.window,
        in_flight: live.in_flight,
        round_trip_ns: live.round_trip_ns.map(|(smoothed, _)| smoothed),
        round_trip_deviation_ns: live.round_trip_ns.map(|(_, deviation)| deviation),
        counters: counters(qp),
    }
}

#[cfg(test)]
mod tests {
    use super::super::answer;
    use super::*;
    use serde_json::Value;
    use std::sync::Arc;
    use verbena_abi::syndrome::Syndrome;
    use verbena_device::{Config, Device};
    use verbena_protocol::ControlRequest;

    /// Returns the reply to a request, with the answers of `device`.
    fn reply(request: &str, device: &Device) -> Value {
        reply_of(&Arc::new(VmState::new().unwrap()), request, device)
    }

    /// Like [`reply`], with the state of the NIC in `shared`.
    fn reply_of(shared: &Arc<VmState>, request: &str, device: &Device) -> Value {
        let asking = std::thread::spawn({
            let (shared, request) = (shared.clone(), String::from(request));
            move || {
                answer(
                    ControlRequest::from_line(request.as_bytes()).unwrap(),
                    &shared,
                )
            }
        });
        while !asking.is_finished() {
            match shared.take_mail(0, true).request {
                Some(EngineRequest::Port(to)) => drop(to.send(device.port_figures())),
                Some(EngineRequest::Stats(to)) => drop(to.send(device.stats())),
                Some(EngineRequest::Qp(n, to)) => drop(to.send(device.qp_figures(n).map(Box::new))),
                _ => std::thread::yield_now(),
            }
        }
        serde_json::from_str(&asking.join().unwrap()).unwrap()
    }

    #[test]
    fn the_reply_about_the_port_has_its_counters() {
        let device = Device::new(Config::default(), Arc::default());
        let value = reply("{\"command\":\"port\"}", &device);
        let port = &value["port"];
        assert_eq!(
            (&value["ok"], &port["link_up"]),
            (&true.into(), &false.into())
        );
        assert_eq!(
            (&port["mtu"], &port["mac"]),
            (&1024.into(), &"52:54:00:12:34:56".into())
        );
        let counters = port["counters"].as_object().unwrap();
        assert_eq!(counters.len(), NUM_COUNTERS);
        assert_eq!(counters["link_downed"], 0);
    }

    #[test]
    fn the_reply_about_the_port_has_refused_gids_with_the_rule() {
        let shared = Arc::new(VmState::new().unwrap());
        let mut ip = [0; 16];
        ip[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 51]);
        let entry = verbena_device::Gid {
            gid: ip,
            mac: [2, 0, 0, 0, 0, 9],
            vlan: Some(5),
        };
        for _ in 0..2 {
            shared.refusals.record(entry, Syndrome::GidMacNotAllowed, 0);
        }
        let device = Device::new(Config::default(), Arc::default());
        let value = reply_of(&shared, "{\"command\":\"port\"}", &device);
        let refused = &value["port"]["refused"][0];
        assert_eq!(refused["gid"], "::ffff:10.0.0.51");
        assert_eq!(refused["mac"], "02:00:00:00:00:09");
        assert_eq!(
            (&refused["vlan"], &refused["times"]),
            (&5.into(), &2.into())
        );
        assert_eq!(refused["rule"], "GidMacNotAllowed");
        assert!(refused["why"].as_str().unwrap().contains("the MAC address"));
    }

    #[test]
    fn the_error_for_an_unknown_queue_pair_names_it() {
        let device = Device::new(Config::default(), Arc::default());
        let value = reply("{\"command\":\"qp\",\"number\":4711}", &device);
        assert_eq!(value["ok"], false);
        assert!(value["error"].as_str().unwrap().contains("4711"));
    }

    #[test]
    fn addresses_are_written_in_the_usual_form() {
        let mut mapped = [0; 16];
        mapped[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 1]);
        assert_eq!(gid(mapped), "::ffff:10.0.0.1");
        assert_eq!(mac([2, 0, 0xab, 0, 0, 9]), "02:00:ab:00:00:09");
    }
}
