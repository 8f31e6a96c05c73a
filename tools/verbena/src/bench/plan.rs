// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What `verbena bench` measures: scenes, and the tests of perftest in each.

use crate::host::GUEST_COMMAND;
use serde::{Deserialize, Serialize};

/// A test of perftest with a message size in bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Test {
    /// The program, as in `ib_send_lat`.
    pub test: String,
    /// Bytes of a message.
    pub size: u32,
}

/// The devices that are compared.
pub const DEVICES: [&str; 2] = ["verbena0", "rxe0"];
const OPERATIONS: [&str; 3] = ["send", "write", "read"];
const LATENCY_SIZES: [u32; 3] = [2, 4096, 65536];
const BANDWIDTH_SIZES: [u32; 4] = [64, 4096, 65536, 1 << 20];
/// The tests of the short form, and of the links between two NIC processes.
const FEW: [(&str, u32); 6] = [
    ("ib_send_lat", 2),
    ("ib_write_lat", 2),
    ("ib_send_bw", 64),
    ("ib_write_bw", 64),
    ("ib_write_bw", 65536),
    ("ib_read_bw", 65536),
];

/// Guests in which tests run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scene {
    /// Its name in files and directories.
    pub name: &'static str,
    /// Its title for people.
    pub title: &'static str,
    /// The link between two guests, or `None` for one guest.
    link: Option<&'static str>,
    /// True if the scene has all tests in the long form.
    has_all: bool,
    /// True if the short form has the scene.
    is_short: bool,
}

/// All scenes, in the order in which they run.
pub const SCENES: [Scene; 3] = [
    Scene {
        name: "guest",
        title: "In one guest: the device to itself",
        link: None,
        has_all: true,
        is_short: true,
    },
    Scene {
        name: "one-process",
        title: "From guest to guest: one NIC process serves both",
        link: Some("one-process"),
        has_all: true,
        is_short: true,
    },
    Scene {
        name: "unix",
        title: "From guest to guest: two NIC processes, joined by UNIX sockets",
        link: Some("unix"),
        has_all: false,
        is_short: false,
    },
];

impl Test {
    /// True if the result is a latency, of which less is better.
    pub fn is_latency(&self) -> bool {
        self.test.ends_with("_lat")
    }

    /// Returns the unit of the result.
    pub fn unit(&self) -> &'static str {
        match self.is_latency() {
            true => "us",
            false => "MiB/s",
        }
    }
}

/// Returns the scenes of a form.
pub fn scenes(is_short: bool) -> Vec<Scene> {
    let chosen = SCENES.iter().filter(|scene| scene.is_short || !is_short);
    chosen.copied().collect()
}

impl Scene {
    /// Returns the tests, in the order in which they run, whose `NAME_SIZE` contains a text.
    pub fn tests(self, is_short: bool, only: &str) -> Vec<Test> {
        let test = |test: &str, size| Test {
            test: String::from(test),
            size,
        };
        let mut tests = Vec::new();
        if self.has_all && !is_short {
            for (kind, sizes) in [("lat", &LATENCY_SIZES[..]), ("bw", &BANDWIDTH_SIZES[..])] {
                for operation in OPERATIONS {
                    let name = format!("ib_{operation}_{kind}");
                    tests.extend(sizes.iter().map(|&size| test(&name, size)));
                }
            }
        } else {
            tests.extend(FEW.map(|(name, size)| test(name, size)));
        }
        tests.retain(|test| format!("{}_{}", test.test, test.size).contains(only));
        tests
    }

    /// Returns the arguments of `verbena run` for these tests, except those that all scenes have.
    pub fn arguments(self, tests: &[Test], rounds: u32, seconds: f64) -> Vec<String> {
        let names: Vec<String> = tests
            .iter()
            .map(|test| format!("{}:{}", test.test, test.size))
            .collect();
        let devices = DEVICES.join(",");
        let mut command = format!(
            "{GUEST_COMMAND}; perftest-table --bench {rounds} {seconds} --devices {devices} --tests {}",
            names.join(",")
        );
        let mut arguments = Vec::from(["--rxe", "--no-record"].map(String::from));
        if let Some(link) = self.link {
            command += " --peer vm2";
            arguments.extend([String::from("--nodes=2"), format!("--link={link}")]);
            let agent = ["--on", "2", "python3 /usr/lib/verbena/agent.py"];
            arguments.extend(agent.map(String::from));
        }
        arguments.extend([String::from("--"), command]);
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_form_has_one_guest_and_two() {
        let names = |is_short| {
            let scenes = scenes(is_short);
            scenes.iter().map(|scene| scene.name).collect::<Vec<_>>()
        };
        assert_eq!(names(true), ["guest", "one-process"]);
        assert_eq!(names(false), ["guest", "one-process", "unix"]);
        assert_eq!(SCENES[0].tests(true, "").len(), 6);
        assert_eq!(SCENES[0].tests(false, "").len(), 21);
        assert_eq!(SCENES[2].tests(false, "").len(), 6);
        let chosen = SCENES[0].tests(false, "write_bw_65536");
        assert_eq!((chosen.len(), chosen[0].unit()), (1, "MiB/s"));
    }

    #[test]
    fn the_guests_get_the_names_of_the_tests() {
        let tests = SCENES[1].tests(true, "lat");
        let arguments = SCENES[1].arguments(&tests, 2, 0.5);
        let command = arguments.last().unwrap();
        let expected = "perftest-table --bench 2 0.5 --devices verbena0,rxe0 --tests ib_send_lat:2,ib_write_lat:2 --peer vm2";
        assert!(command.ends_with(expected), "{command}");
        assert!(arguments.contains(&String::from("--link=one-process")));
    }
}
