// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Suites of faults and recordings, and of stock programs, in one guest.

use super::{BY_NAME, LONG, TEST, VM};
use crate::guests::{guest, pair};
use crate::step::Step;
use crate::suite::{minutes, Form, Suite};
use std::path::Path;

pub const SUITES: &[Suite] = &[
    Suite {
        name: "faults",
        runs: TEST,
        needs: VM,
        limit: minutes(90),
        about: "rules under stock programs: each status, each event, retransmissions",
        steps: |_| vec![guest(600, "faults").step(), Step::script(["faults", "--no-build"]).records()],
    },
    Suite {
        name: "handles",
        runs: TEST,
        needs: VM,
        limit: minutes(40),
        about: "programs that set rules: the pytest of README.md in the guest and on the host, C in the guest",
        steps: |_| vec![Step::script(["test-handles"]).records()],
    },
    Suite {
        name: "scenarios",
        runs: TEST,
        needs: VM,
        limit: minutes(30),
        about: "common faults, by rules: for each a careless program fails and a careful one succeeds",
        steps: |_| vec![guest(600, "scenarios").step()],
    },
    Suite {
        name: "record",
        runs: TEST,
        needs: VM,
        limit: minutes(60),
        about: "the flight recorder: causes of errors, random faults repeated by exact rules, the page; a full recording replayed",
        steps: record,
    },
    Suite {
        name: "browser",
        runs: TEST,
        needs: VM,
        limit: minutes(90),
        about: "reports in a headless browser: one of each scenario, 10^5 packets, hostile names; an empty console, all packets shown",
        steps: |_| vec![Step::script(["browser", "--no-build", "test"]).records()],
    },
    Suite {
        name: "programs",
        runs: TEST,
        needs: VM,
        limit: minutes(60),
        about: "all of ibverbs-utils and rdmacm-utils, 2000 connects in a row (short: 600), rdma resource",
        steps: |form| {
            let connects = form.pick(600, 2000);
            vec![guest(1200, format!("VERBENA_CONNECTS={connects} programs '!perftest/'")).step()]
        },
    },
    Suite {
        name: "perftest",
        runs: TEST,
        needs: VM,
        limit: minutes(90),
        about: "perftest: each operation over each transport, with each of its options; short: without options, options over RC and UD",
        steps: |form| {
            let short = form.pick(" --short", "");
            vec![guest(1800, format!("programs{short} perftest/")).step()]
        },
    },
    Suite {
        name: "infiniband",
        runs: TEST,
        needs: VM,
        limit: minutes(20),
        about: "a guest with an InfiniBand port: opensm, stock programs, IPoIB, an error of a CQ under IPoIB and its end",
        steps: |_| vec![guest(300, "infiniband").infiniband().step()],
    },
    Suite {
        name: "ipoib-errors",
        runs: LONG,
        needs: VM,
        limit: minutes(60),
        about: "errors of sends, queue pairs and CQs under stock ib_ipoib, in datagram and connected mode, from guest to guest",
        // The subnet manager runs in vm1, and the device of vm2 is reset.
        steps: |_| {
            let guests = pair()
                .infiniband()
                .timeout(1500)
                .on(1, "python3 /usr/lib/verbena/agent.py & barrier end 1500")
                .on(2, "ipoib-errors vm1 && barrier end");
            vec![guests.step()]
        },
    },
    Suite {
        name: "pyverbs",
        runs: TEST,
        needs: VM,
        limit: minutes(30),
        about: "the tests of pyverbs that rdma-core has for every device",
        steps: |_| vec![guest(600, "pyverbs").step()],
    },
    Suite {
        name: "libibverbs",
        runs: TEST,
        needs: VM,
        limit: minutes(120),
        about: "libibverbs 65 of Debian testing: stock programs and pyverbs; other releases are refused; long: all, the guest suite",
        steps: libibverbs,
    },
    Suite {
        name: "libibverbs-sources",
        runs: BY_NAME,
        needs: VM,
        limit: minutes(600),
        about: "the same programs with each release of rdma-core in SOURCES",
        steps: libibverbs_sources,
    },
];

fn record(form: &Form) -> Vec<Step> {
    let full = &form.built("vm/full.recording");
    let flight = &form.built("vm/flight.record");
    let page = &form.built("vm/flight.html");
    let recorded = format!("--record-full {full}");
    vec![
        guest(600, "record").step(),
        guest(400, "record loss why/ fatal")
            .with("--nic-args", recorded)
            .step(),
        Step::in_root(["verbenactl", "replay", full, "-o", flight]).single("replay"),
        Step::in_root(["verbenactl", "report", flight, "-o", page]).single("report"),
    ]
}

/// Stock programs by a filter, and further commands, in a guest with another libibverbs. cmtime has
/// other options in newer releases. perftest, which the test `resources` runs, needs the private ABI of
/// its own release, because perftest is linked against libhns. rping of v59 and later, and of updates
/// of older releases, sometimes does not end: Documentation/libibverbs.md.
fn with_rdma_core(release: &str, programs: &str, more: &[&str]) -> Step {
    let stock =
        format!("programs --short {programs} '!perftest/' '!cmtime' '!resources' '!rping_200'");
    let mut command = "rc=0".to_owned();
    for next in ["verbena-guest-tests --filter res/other-libibverbs", &stock]
        .iter()
        .chain(more)
    {
        command += &format!("; {next} || rc=1");
    }
    let guests = guest(1200, command + "; exit $rc").with("--rdma-core", release);
    guests.step()
}

fn libibverbs(form: &Form) -> Vec<Step> {
    let programs = form.pick("pingpong/ rping_ ucmatose udaddy", "");
    let tests = form.pick("true", "verbena-guest-tests");
    let modules = form.pick(
        " test_cq test_cqex test_qp test_qpex test_mr test_parent_domain",
        "",
    );
    let pyverbs =
        format!("python3.14 /usr/lib/verbena/pyverbs --tests /usr/lib/rdma-core-tests{modules}");
    let made = Step::script(["libibverbs", "65"]).prepares();
    vec![
        made.skips_with(3, "libibverbs-65", "Debian testing has another one"),
        with_rdma_core("65", programs, &[tests, &pyverbs]),
    ]
}

/// SOURCES names a directory with sources of rdma-core, each in a directory of its own.
fn libibverbs_sources(_: &Form) -> Vec<Step> {
    let sources = std::env::var_os("SOURCES").unwrap_or_default();
    let entries = std::fs::read_dir(Path::new(&sources))
        .into_iter()
        .flatten()
        .flatten();
    let directories = entries.map(|entry| entry.path());
    let mut found: Vec<_> = directories
        .filter(|path| path.join("libibverbs/driver.h").exists())
        .collect();
    found.sort();
    if found.is_empty() {
        return vec![Step::impossible(
            "SOURCES names no directory with sources of rdma-core, each in a directory of its own",
        )];
    }
    let step = |path: &std::path::PathBuf| {
        let path = path.display().to_string();
        with_rdma_core(&path, "", &[]).titled(path)
    };
    found.iter().map(step).collect()
}
