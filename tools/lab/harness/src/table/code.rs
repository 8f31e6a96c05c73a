// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Suites without a guest: the checks of the source, the unit tests, the builds.

use super::{ARM64, LONG, TEST, TREE, VM};
use crate::guests::guest;
use crate::step::Step;
use crate::suite::{minutes, Form, Suite};
use std::path::{Path, PathBuf};

pub const SUITES: &[Suite] = &[
    Suite {
        name: "style",
        runs: TEST,
        needs: TREE,
        limit: minutes(120),
        about: "formatting, clippy of both builds, layout, walls of unsafe: scripts/check-style",
        steps: |_| vec![Step::script(["check-style"]).records()],
    },
    Suite {
        name: "unit",
        runs: TEST,
        needs: TREE,
        limit: minutes(180),
        about: "cargo test: unit tests and simulations",
        steps: |_| {
            vec![
                Step::cargo_test(["--workspace", "--tests", "--no-fail-fast"]).goes_on(),
                Step::doc_tests(["--workspace", "--no-fail-fast"]),
            ]
        },
    },
    Suite {
        name: "judges",
        runs: TEST,
        needs: TREE,
        limit: minutes(30),
        about: "captures of every opcode, judged by tshark and scapy",
        steps: |_| vec![Step::script(["judges"]).records()],
    },
    Suite {
        name: "fabric",
        runs: TEST,
        needs: TREE,
        limit: minutes(60),
        about: "the emulated InfiniBand subnet under stock opensm and infiniband-diags, without a guest; ibsim for comparison",
        steps: |_| vec![Step::script(["fabric"]).records()],
    },
    Suite {
        name: "loom",
        runs: TEST,
        needs: TREE,
        limit: minutes(60),
        about: "loom models of the shipped code: each order of memory that guest and NIC share",
        steps: loom,
    },
    Suite {
        name: "arm64-nic",
        runs: LONG,
        needs: TREE,
        limit: minutes(240),
        about: "the NIC builds for arm64, and its unit tests pass there, emulated",
        steps: |_| {
            vec![
                Step::script(["arm64", "build"]).prepares(),
                Step::script(["arm64", "test"]),
            ]
        },
    },
    Suite {
        name: "arm64",
        runs: LONG,
        needs: ARM64,
        limit: minutes(240),
        about: "a guest for arm64 with the NIC on amd64: the guest suite and kernel verbs",
        steps: arm64,
    },
    Suite {
        name: "module",
        runs: TEST,
        needs: VM,
        limit: minutes(60),
        about: "the kernel modules build",
        steps: |_| vec![Step::script(["build", "module"]).single("module")],
    },
];

/// Only the models of each crate, because its other tests cannot run with loom's types.
fn loom(form: &Form) -> Vec<Step> {
    let (mut apart, mut inside) = (Vec::new(), Vec::new());
    for manifest in manifests(&form.top) {
        let text = std::fs::read_to_string(&manifest).unwrap_or_default();
        let uses = |line: &str| {
            line.starts_with("loom") || line.contains(".loom]") || line.contains("cfg(loom)")
        };
        if !text.lines().any(uses) {
            continue;
        }
        let name = text
            .lines()
            .find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
        let package = format!("--package={}", name.unwrap_or("?"));
        let tests = manifest.with_file_name("tests");
        let own = files(&tests).iter().any(|file| {
            let name = file
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            name.starts_with("loom") && name.ends_with(".rs")
        });
        if own { &mut apart } else { &mut inside }.push(package);
    }
    let mut steps = Vec::new();
    if !apart.is_empty() {
        steps.push(models(&apart, &["--test", "loom*"]));
    }
    if !inside.is_empty() {
        steps.push(models(&inside, &["--lib", "loom"]));
    }
    if steps.is_empty() {
        steps.push(Step::impossible("no crate has a loom model"));
    }
    steps
}

/// In the second guest, the kernel has no contiguous area, so that it takes all memory of rings where
/// it does on amd64.
fn arm64(_: &Form) -> Vec<Step> {
    let suite = r#"[ "$(uname -m)" = aarch64 ] && rdma link show verbena0/1 | grep "state ACTIVE" && verbena-guest-tests"#;
    let guests = [
        guest(3600, suite),
        guest(600, "verbena-guest-tests --filter res/rings-are-charged")
            .with("--kernel-args", "cma=0"),
        guest(1200, "kernel-selftest"),
    ];
    guests
        .into_iter()
        .map(|guests| guests.with("--arch", "arm64").step())
        .collect()
}

/// Only the crates of loom that explore are compiled with optimisation.
fn models(packages: &[String], which: &[&str]) -> Step {
    let optimised = ["loom", "generator", "verbena-abi"];
    let optimised =
        optimised.map(|name| format!("--config=profile.dev.package.{name}.opt-level=3"));
    let which: Vec<String> = which.iter().map(|&word| word.to_owned()).collect();
    let directory = "--target-dir=build/cargo-loom".to_owned();
    let words = [&optimised[..], &[directory], packages, &which].concat();
    Step::cargo_test(words).env("RUSTFLAGS", "--cfg loom")
}

/// Returns the manifests of the crates in `tools`, at most two directories below it, in order.
fn manifests(top: &Path) -> Vec<PathBuf> {
    let tools = files(&top.join("tools"));
    let below: Vec<PathBuf> = tools
        .iter()
        .flat_map(|directory| files(directory))
        .collect();
    let found = tools
        .iter()
        .chain(&below)
        .map(|directory| directory.join("Cargo.toml"));
    let mut found: Vec<PathBuf> = found.filter(|manifest| manifest.exists()).collect();
    found.sort();
    found
}

/// Returns the entries of a directory, or none if there is no such directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}
