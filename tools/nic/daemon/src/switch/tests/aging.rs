// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The switch over hours: stations appear, move, and are silent for times close to the limits after
//! which addresses may move or are forgotten. A small model gives the destinations of each frame.

use super::super::*;
use verbena_lab_transport::Rng;

const MS: u64 = 1_000_000;
const HOUR_NS: u64 = 3_600_000 * MS;
const WIRES: u8 = 2;
const VMS: u8 = 2;

fn vm_mac(vm: u8) -> MacAddress {
    [2, 0, 0, 0, 1, vm]
}

fn station(n: u8) -> MacAddress {
    [2, 0, 0, 0, 2, n]
}

/// Returns a frame without RoCE.
fn frame(to: MacAddress, from: MacAddress) -> Vec<u8> {
    let mut frame = [&to[..], &from, &[0x88, 0xb5]].concat();
    frame.resize(60, 0);
    frame
}

fn ports() -> Vec<SwitchPort> {
    let guests = (0..VMS).map(SwitchPort::Guest);
    (0..WIRES).map(SwitchPort::Wire).chain(guests).collect()
}

fn run(seed: u64) {
    let mut rng = Rng::new(seed);
    let mut switch = Switch::new(WIRES);
    (0..VMS).for_each(|vm| assert_eq!(switch.add(vm_mac(vm)), Some(vm)));
    let mut heard: HashMap<MacAddress, (SwitchPort, u64)> = HashMap::new();
    let mut now = rng.below(HOUR_NS);
    let mut refused = 0;
    for step in 0..3000 {
        now += [0, MS, HOLD_NS - 1, HOLD_NS, AGE_NS - 1, AGE_NS, HOUR_NS][rng.below(7) as usize]
            / (1 + rng.below(2));
        let from = ports()[rng.below(4) as usize];
        let own = from.vm().filter(|_| rng.below(4) == 0);
        let source = own.map_or_else(|| station(rng.below(6) as u8), vm_mac);
        let to = match rng.below(8) {
            0 => [0xff; 6],
            1 => vm_mac(rng.below(VMS.into()) as u8),
            _ => station(rng.below(8) as u8),
        };
        let got = switch.forward(from, &frame(to, source), now);
        let mut want = PortSet::default();
        let moved = heard.get(&source).filter(|(port, _)| *port != from);
        let held = moved.is_some_and(|(_, at)| now - at < HOLD_NS) && from.vm().is_some();
        if held {
            refused += 1;
        } else {
            if own.is_none() {
                heard.insert(source, (from, now));
            }
            let known = heard.get(&to).filter(|(_, at)| now - at < AGE_NS);
            if let Some(vm) = (0..VMS).find(|vm| vm_mac(*vm) == to) {
                want.add(SwitchPort::Guest(vm));
            } else if let Some((port, _)) = known {
                want.add(*port);
            } else {
                ports().into_iter().for_each(|port| want.add(port));
            }
            want.remove(from);
            if from.vm().is_none() {
                (0..WIRES).for_each(|wire| want.remove(SwitchPort::Wire(wire)));
            }
        }
        assert_eq!(
            got, want,
            "seed {seed}, step {step}: from {from:?}, {source:?} to {to:?}"
        );
        assert_eq!(switch.counters.refused, refused, "seed {seed}, step {step}");
    }
    assert!(refused > 0, "seed {seed} has no frame that is refused");
}

#[test]
fn over_hours_each_frame_goes_to_the_port_where_its_address_was_last_heard() {
    (0..30).for_each(run);
}
