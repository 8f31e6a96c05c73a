// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Suites of several guests on one Ethernet.

use super::{BY_NAME, LONG, TEST, VM};
use crate::guests::{pair, Guests, Link, MacPolicy};
use crate::step::Step;
use crate::suite::{minutes, Form, Suite};

pub const SUITES: &[Suite] = &[
    Suite {
        name: "wire",
        runs: TEST,
        needs: VM,
        limit: minutes(120),
        about: "two guests with Verbena: every byte of all kinds of messages compared; stock programs; short: one way",
        // The two guests are alike, so the short form tests only one direction.
        steps: |form| {
            let way = form.pick("--one-way", "");
            vec![
                wire(pair(), way),
                large(pair().link(Link::Udp), way),
                faults_peer(pair()),
            ]
        },
    },
    Suite {
        name: "one-process",
        runs: TEST,
        needs: VM,
        limit: minutes(120),
        about: "suite wire with one NIC process for both guests; short: not each path MTU",
        steps: |form| {
            let way = form.pick("--one-way --short", "");
            let one = || pair().link(Link::OneProcess);
            let mut steps = vec![wire(one().timeout(900), way), faults_peer(one())];
            if form.long {
                steps.push(large(one(), way));
            }
            steps
        },
    },
    Suite {
        name: "interop",
        runs: TEST,
        needs: VM,
        limit: minutes(60),
        about: "suite wire between Verbena and stock rxe, both ways; short: not each path MTU",
        steps: |form| vec![wire(pair().with("--peer", "rxe"), form.pick("--short", ""))],
    },
    Suite {
        name: "hostile-frames",
        runs: TEST,
        needs: VM,
        limit: minutes(30),
        about: "a guest floods and sends forged and malformed frames, while two guests compare every byte",
        steps: |_| vec![hostile_frames(Link::OneProcess)],
    },
    Suite {
        name: "smi-refused",
        runs: TEST,
        needs: VM,
        limit: minutes(30),
        about: "a guest that must not manage the InfiniBand subnet sends raw SMPs, and the guest that manages it hostile ones",
        steps: |_| vec![pair().infiniband().timeout(400).on_all("smi-refused").step()],
    },
    Suite {
        name: "all-to-all",
        runs: TEST,
        needs: VM,
        limit: minutes(30),
        about: "four guests of one NIC process: each exchanges compared bytes with each other guest",
        // One processor for each guest: with two they would mostly wait for each other.
        steps: |_| {
            let four = pair().number(4).memory(768).with("--smp", "1").timeout(500);
            vec![four.link(Link::OneProcess).on_all("all-to-all").step()]
        },
    },
    Suite {
        name: "addresses",
        runs: TEST,
        needs: VM,
        limit: minutes(90),
        about: "addresses: changed MAC, macvlan, ipvlan, VLAN, bond, bridge, both MAC policies; short: no ipvlan, bridge, traffic, rxe",
        steps: addresses,
    },
    Suite {
        name: "wire-loss",
        runs: TEST,
        needs: VM,
        limit: minutes(30),
        about: "suite wire over uplinks that lose, reorder, duplicate and corrupt; short: one way",
        steps: |form| vec![wire_loss(pair().timeout(600), form.pick("--one-way", ""), "")],
    },
    Suite {
        name: "wire-storage",
        runs: TEST,
        needs: VM,
        limit: minutes(40),
        about: "NVMe and NFS over RDMA from guest to guest, over a link that goes down; short: one way, without rxe",
        steps: |form| {
            let storage = |way| pair().memory(1536).timeout(400).on_all(format!("storage-wire {way}10"));
            let mut steps = vec![storage(form.pick("--one-way ", "")).step()];
            if form.long {
                steps.push(storage("").with("--peer", "rxe").step());
            }
            steps
        },
    },
    Suite {
        name: "peer-faults",
        runs: TEST,
        needs: VM,
        limit: minutes(20),
        about: "a peer loses its link, is reset, loses its NIC, and comes back",
        steps: |_| vec![peer_faults(300, "")],
    },
    Suite {
        name: "wire-long",
        runs: LONG,
        needs: VM,
        limit: minutes(180),
        about: "rxe over lossy uplinks and with large path MTUs; frames between guests of one process; hostile frames between processes",
        steps: |_| {
            let wire_local = || pair().link(Link::OneProcess).with("--nic-args", "--wire-local");
            vec![
                // rxe retransmits, or requests again, everything after the lost packet, and only after
                // its timer: long messages take it minutes.
                wire_loss(pair().timeout(900).with("--peer", "rxe"), "", "!read_1048579"),
                large(pair().with("--peer", "rxe").link(Link::Udp), ""),
                large(wire_local(), ""),
                wire_local().timeout(900).on_all("wire --bytes").step(),
                hostile_frames(Link::Unix),
            ]
        },
    },
    Suite {
        name: "wire-scale",
        runs: BY_NAME,
        needs: VM,
        limit: minutes(90),
        about: "10,000 simultaneous connections between two guests, 20,000 connects in a row",
        steps: |_| vec![pair().memory(3072).timeout(3000).on_all("scale 10000 20000").step()],
    },
];

/// Some programs of each kind. The suites with a single guest test the others.
const STOCK: &str =
    "rc_new_events ucmatose_ack udaddy_10 rping_own send_bw_RC_plain read_lat_RC_plain \
    atomic_bw_RC_plain send_lat_UC_plain send_bw_RC_cm send_lat_UD_events";

/// Returns a command line of words, without the empty ones.
fn words<const N: usize>(words: [&str; N]) -> String {
    let words = words.into_iter().filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ")
}

/// All kinds of messages, and stock programs.
fn wire(guests: Guests, way: &str) -> Step {
    let guests = match guests.seconds(crate::suite::Kernel::Stock) {
        0 => guests.timeout(1300),
        _ => guests,
    };
    guests.on_all(words(["wire", way, STOCK])).step()
}

/// An Ethernet with jumbo frames: path MTUs above 1500 bytes.
fn large(guests: Guests, way: &str) -> Step {
    let command = words(["wire --bytes", way, "_4096_ GID6_2048_"]);
    guests
        .timeout(900)
        .with("--mtu", "9000")
        .on_all(command)
        .step()
}

/// Rules that need two guests.
fn faults_peer(guests: Guests) -> Step {
    let guests = guests
        .timeout(300)
        .on(2, "faults-peer --agent")
        .on(1, "faults-peer vm2");
    guests.step()
}

fn hostile_frames(link: Link) -> Step {
    let three = pair().number(3).memory(768).mac_policy(MacPolicy::Own);
    three
        .timeout(400)
        .link(link)
        .on_all("hostile-frames")
        .step()
}

/// The messages of one path MTU that match the filter, over lossy uplinks.
fn wire_loss(guests: Guests, way: &str, filter: &str) -> Step {
    let impaired = "--impair '--loss 5 --delay 300us --reorder 5 --duplicate 1 --corrupt 1'";
    let command = words([
        "wire",
        way,
        "--bytes",
        impaired,
        "GID_1024_RC/ !8388608",
        filter,
    ]);
    guests.on_all(command).step()
}

/// The addresses of vm1, with vm2 as its peer.
fn addresses(form: &Form) -> Vec<Step> {
    let short = form.pick("--short", "");
    let with_policy = |policy: MacPolicy, guests: Guests| {
        let command = format!("POLICY={} addresses {short}", policy.name());
        let guests = guests
            .timeout(600)
            .mac_policy(policy)
            .on(2, "addresses --agent");
        guests.on(1, command.trim_end()).step()
    };
    let one = || pair().link(Link::OneProcess);
    let mut steps = vec![
        with_policy(MacPolicy::Any, one()),
        with_policy(MacPolicy::Own, one()),
    ];
    if form.long {
        let rxe = || pair().with("--peer", "rxe");
        steps.push(with_policy(MacPolicy::Any, pair()));
        steps.push(with_policy(MacPolicy::Any, rxe()));
        steps.push(with_policy(MacPolicy::Own, rxe()));
    }
    steps
}

pub(super) fn peer_faults(timeout: u32, what: &str) -> Step {
    let guests = pair()
        .flag("--reboots")
        .timeout(timeout)
        .on(2, "peer-faults --agent");
    guests.on(1, words(["peer-faults", what])).step()
}
