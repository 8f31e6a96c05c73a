// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Suites of InfiniBand ports, and suites that take hours.

use super::lives::guest_tests;
use super::networks::peer_faults;
use super::{BY_NAME, DEBUG, LONG, VM, VM_AND_DEBUG};
use crate::guests::{guest, pair, Guests, Link};
use crate::step::Step;
use crate::suite::{minutes, Form, Kernel, Suite};

pub const SUITES: &[Suite] = &[
    Suite {
        name: "infiniband-consumers",
        runs: LONG,
        needs: VM,
        limit: minutes(60),
        about: "NVMe, NFS, SRP and RDS over InfiniBand ports: 1 GiB each compared, and a link that goes down",
        steps: |_| {
            let consumers = pair().memory(2048).timeout(2400).infiniband();
            vec![consumers.on_all("infiniband-consumers").step()]
        },
    },
    Suite {
        name: "infiniband-fabric",
        runs: LONG,
        needs: VM,
        limit: minutes(60),
        about: "opensm, and the diagnostics, which show what the topology file says: one switch; three with eight adapters",
        steps: |form| {
            let alone = guest(200, "infiniband-fabric").infiniband().flag("--no-sm");
            vec![
                alone.step(),
                on_topology(form, "infiniband-fabric", "three-switches"),
            ]
        },
    },
    Suite {
        name: "infiniband-verbs",
        runs: LONG,
        needs: VM,
        limit: minutes(90),
        about: "perftest and pingpongs by LID, with and without a GRH; partitions; pyverbs on an InfiniBand port",
        steps: |form| {
            let shared = form.built("vm/pyverbs");
            let pyverbs = |what| guest(600, format!("pyverbs {what} /mnt/host/passes")).with("--share", &shared);
            vec![
                infiniband_pair("infiniband-verbs").step(),
                Step::host(["mkdir", "-p", &shared]).prepares(),
                pyverbs("--passes").step(),
                pyverbs("--as-many").infiniband().step(),
            ]
        },
    },
    Suite {
        name: "infiniband-ipoib",
        runs: LONG,
        needs: VM,
        limit: minutes(60),
        about: "IPoIB: pings, iperf3, 10^6 packets compared, rdma_cm, NFS; the interface of a partition made 100 times",
        steps: |form| {
            let (packets, times) = form.pick((100_000, 10), (1_000_000, 100));
            let command = format!("infiniband-ipoib --packets {packets} --times {times}");
            vec![infiniband_pair(&command).timeout(1800).step()]
        },
    },
    Suite {
        name: "infiniband-managers",
        runs: LONG,
        needs: VM,
        limit: minutes(40),
        about: "a second opensm takes over, links and a switch go and come, under RC traffic and IPoIB",
        steps: |form| vec![on_topology(form, "infiniband-managers", "ring")],
    },
    Suite {
        name: "infiniband-uplinks",
        runs: LONG,
        needs: VM,
        limit: minutes(90),
        about: "two NIC processes whose subnets are joined by each kind of uplink, which goes and comes: opensm, IPoIB, pingpongs",
        steps: |_| {
            let joined = |link: Link| {
                let guests = pair().infiniband().link(link).timeout(900).on(2, "infiniband-uplinks --agent");
                guests.on(1, "infiniband-uplinks").step().titled(link.name())
            };
            [Link::Unix, Link::Udp, Link::Tap].map(joined).into()
        },
    },
    Suite {
        name: "infiniband-captures",
        runs: LONG,
        needs: VM,
        limit: minutes(90),
        about: "captures of small runs of all InfiniBand programs, by tshark and their checksums; no kind of packet is missing",
        steps: infiniband_captures,
    },
    Suite {
        name: "debug-consumers",
        runs: DEBUG,
        needs: VM_AND_DEBUG,
        limit: minutes(120),
        about: "RNBD, SMB Direct and SMC-R, which the stock kernel lacks: 64 MiB each compared, and a lost connection, over RoCE",
        steps: |_| vec![debug_consumers().step()],
    },
    Suite {
        name: "debug-consumers-ib",
        runs: DEBUG,
        needs: VM_AND_DEBUG,
        limit: minutes(120),
        about: "RNBD and SMB Direct over InfiniBand ports, as in suite debug-consumers",
        steps: |_| vec![debug_consumers().infiniband().step()],
    },
    Suite {
        name: "mutants",
        runs: LONG,
        needs: VM,
        limit: minutes(600),
        about: "bugs planted in module, provider and NIC: ten that guests must find, all that unit tests must find",
        steps: |_| {
            let lab = ["provider", "daemon", "fabric", "loom"].map(|part| format!("tools/lab/mutants/{part}"));
            vec![
                Step::script(["mutants", "--guest", "--short"]).each(),
                Step::script([&["mutants".to_owned()], &lab[..]].concat()).each(),
            ]
        },
    },
    Suite {
        name: "captures",
        runs: BY_NAME,
        needs: VM,
        limit: minutes(180),
        about: "the packets between two guests, judged by tshark and scapy",
        steps: |form| [Link::Unix, Link::OneProcess].iter().flat_map(|&link| captures(form, link)).collect(),
    },
    Suite {
        name: "wire-all",
        runs: BY_NAME,
        needs: VM,
        limit: minutes(720),
        about: "the programs suite, each operation of perftest, NVMe and NFS between two guests, over each kind of link",
        steps: |_| {
            let links = [Link::OneProcess, Link::Unix, Link::Udp, Link::Tap];
            links.into_iter().flat_map(wire_all).collect()
        },
    },
    Suite {
        name: "order",
        runs: LONG,
        needs: VM,
        limit: minutes(300),
        about: "the last bytes of messages polled: 10^7 natively, 10^6 in a guest and between two, each by reference and as frames",
        steps: order,
    },
    Suite {
        name: "peer-resets",
        runs: BY_NAME,
        needs: VM,
        limit: minutes(180),
        about: "a peer is reset 50 times, and loses its NIC 5 times",
        steps: |_| {
            vec![
                peer_faults(6000, "--times 50 down reset"),
                peer_faults(1800, "--times 5 nic"),
            ]
        },
    },
];

/// Runs a command in vm1 of two guests with InfiniBand ports, which manage their subnet themselves, and
/// its agent in vm2.
fn infiniband_pair(command: &str) -> Guests {
    let program = command.split(' ').next().unwrap_or_default();
    let guests = pair().infiniband().flag("--no-sm").timeout(900);
    guests.on(2, format!("{program} --agent")).on(1, command)
}

fn on_topology(form: &Form, program: &str, topology: &str) -> Step {
    let directory = form.top.join("tools/lab/fabric");
    let file = directory.join(topology).with_extension("topology");
    infiniband_pair(&format!("{program} /mnt/host/{topology}.topology"))
        .with("--topology", file.display().to_string())
        .with("--share", directory.display().to_string())
        .step()
}

/// Consumers that only the debug kernel has. With its checkers and under an emulator, ksmbd's work for a
/// request can take a second.
fn debug_consumers() -> Guests {
    let guests = pair().memory(2048).timeout(400).kernel(Kernel::Debug);
    guests
        .with("--expected", "workqueue: handle_ksmbd_work .* hogged CPU")
        .on_all("debug-consumers")
}

/// The captures of both guests of a run.
fn captured(run: &str) -> [String; 2] {
    [1, 2].map(|k| format!("{run}/vm{k}/rdma.pcapng"))
}

fn judge(form: &Form, option: &str, runs: [&str; 2]) -> Step {
    let judge = form
        .top
        .join("scripts/lib/judge_capture.py")
        .display()
        .to_string();
    let files = runs.map(captured).concat();
    Step::in_root(
        [
            &["python3".to_owned(), judge, option.to_owned()],
            &files[..],
        ]
        .concat(),
    )
    .records()
}

fn infiniband_captures(form: &Form) -> Vec<Step> {
    let stock = form.built("vm/infiniband-captures");
    let consumers = form.built("vm/infiniband-captures-consumers");
    let capture =
        |guests: Guests, run: &str| guests.flag("--capture").with("--run-dir", run).step();
    let small = pair().infiniband().timeout(900);
    vec![
        capture(infiniband_pair("infiniband-captured"), &stock),
        capture(
            small.on_all("infiniband-consumers --mib 4 --no-link"),
            &consumers,
        ),
        judge(form, "--infiniband", [&stock, &consumers]),
    ]
}

fn captures(form: &Form, link: Link) -> Vec<Step> {
    let opcodes = form.built("vm/captures-opcodes");
    let stock = form.built("vm/captures");
    let capture = |run: &str| {
        pair()
            .timeout(1800)
            .link(link)
            .flag("--capture")
            .with("--run-dir", run)
    };
    let agent = "python3 /usr/lib/verbena/wire-opcodes --agent";
    vec![
        capture(&opcodes)
            .on(2, agent)
            .on(1, "/usr/lib/verbena/wire-opcodes vm2")
            .step(),
        capture(&stock).on_all("wire --captured").step(),
        judge(form, "--all", [&opcodes, &stock]),
    ]
}

/// UC loses each packet that the link loses, and perftest waits for it. Tunnel and bridge apply no
/// backpressure: no long UC messages there.
fn wire_all(link: Link) -> Vec<Step> {
    let more = match link {
        Link::Udp | Link::Tap => " !UC_all",
        Link::OneProcess | Link::Unix => "",
    };
    let command = format!("wire pingpong/ cm/ resources statistics _plain _all multicast{more}");
    let programs = pair().timeout(6000).link(link).on_all(command);
    let storage = pair()
        .memory(1536)
        .timeout(900)
        .link(link)
        .on_all("storage-wire 10");
    let step = |guests: Guests| guests.step().goes_on().titled(link.name());
    vec![step(programs), step(storage)]
}

fn order(_: &Form) -> Vec<Step> {
    let native = "--release -p verbena-nic --lib guest_ram::order_tests -- --nocapture";
    let in_guest = || guest(3000, guest_tests("long/last-bytes-come-last"));
    let between = |link| {
        pair()
            .timeout(3000)
            .link(link)
            .on_all("order 1000000")
            .step()
    };
    vec![
        Step::cargo_test(native.split(' ')).env("VERBENA_MESSAGES", "10000000"),
        in_guest().step(),
        in_guest().with("--nic-args", "--wire-local").step(),
        between(Link::OneProcess),
        between(Link::Unix),
    ]
}
