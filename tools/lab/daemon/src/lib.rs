// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The laboratory of the NIC: its switch and devices, without sockets, threads or guests, and an
//! attacker whose frames come from a fuzzer.
//!
//! Two VMs, each with a driver and connected QPs, exchange messages. A third VM and two uplinks
//! send frames: arbitrary bytes, or valid frames with one defect, with any source address. These
//! frames must not affect the two VMs ([`World`]).
//!
//! The laboratory also has targets for files that users pass to the NIC's programs ([`rule_file`],
//! [`recording`]).
//!
//! Two more targets send hostile management datagrams and packets into the InfiniBand subnet
//! ([`subnet`], [`subnet_packets`]). A guest without the right to manage it changes nothing, no
//! packet multiplies, and no table makes a loop.
//!
//! `tools/lab/transport/fuzz` makes a libFuzzer program of each target, and `scripts/fuzz` runs them
//! together with the other targets. The tests here replay the committed inputs.
#![forbid(unsafe_code)]

mod end;
mod files;
mod frames;
mod subnet;
mod subnet_packets;
mod world;

pub use files::{is_clear, is_good, recording, rule_file};
use verbena_lab_transport::fuzz::FuzzInput;
pub use world::World;

/// Number of bytes of an input that are used.
const LONGEST: usize = 1024;

/// Fuzz target whose input is a setup and a sequence of steps. Panics if a rule is broken.
pub fn hostile_frames(bytes: &[u8]) {
    let mut input = FuzzInput::new(bytes.get(..LONGEST).unwrap_or(bytes));
    let mut world = World::new(&mut input);
    while !input.is_empty() {
        world.step(&mut input);
    }
    world.finish();
}

/// Fuzz target whose input is a subnet and a sequence of datagrams, data packets and changes of
/// its guests. Panics if a rule is broken.
pub fn subnet(bytes: &[u8]) {
    let mut input = FuzzInput::new(bytes.get(..LONGEST).unwrap_or(bytes));
    let mut world = subnet::World::new(&mut input);
    while !input.is_empty() {
        world.step(&mut input);
    }
}

/// Fuzz target whose input is a sequence of packets of guests with InfiniBand ports. Panics if a
/// rule is broken.
pub fn subnet_packets(bytes: &[u8]) {
    let mut input = FuzzInput::new(bytes.get(..LONGEST).unwrap_or(bytes));
    let mut packets = subnet_packets::Packets::new();
    while !input.is_empty() {
        packets.step(&mut input);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};
    use verbena_lab_transport::Rng;

    fn fuzz() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../transport/fuzz")
    }

    fn unhex(line: &str) -> Vec<u8> {
        let digit = |at: usize| u8::from_str_radix(&line[at..at + 2], 16).unwrap();
        (0..line.len()).step_by(2).map(digit).collect()
    }

    type Target = fn(&[u8]);
    const TARGETS: [(&str, Target); 5] = [
        ("hostile_frames", super::hostile_frames),
        ("rule_file", super::rule_file),
        ("recording", super::recording),
        ("subnet", super::subnet),
        ("subnet_packets", super::subnet_packets),
    ];

    #[test]
    fn corpus_passes() {
        for (name, target) in TARGETS {
            let file = fuzz().join(format!("corpus/{name}.hex"));
            let lines = fs::read_to_string(file).unwrap();
            assert!(lines.lines().count() > 2, "{name}");
            for line in lines.lines() {
                target(&unhex(line));
            }
        }
    }

    #[test]
    fn inputs_that_crashed_once_pass() {
        for (name, target) in TARGETS {
            let Ok(files) = fs::read_dir(fuzz().join("crashes").join(name)) else {
                continue;
            };
            for file in files {
                target(&fs::read(file.unwrap().path()).unwrap());
            }
        }
    }

    #[test]
    fn random_inputs_pass() {
        for seed in 0..300 {
            let mut rng = Rng::new(seed);
            let bytes: Vec<u8> = (0..400).map(|_| rng.next() as u8).collect();
            TARGETS.iter().for_each(|(_, target)| target(&bytes));
        }
    }
}
