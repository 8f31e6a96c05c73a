// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Suites of one device, in one guest: its verbs, its life, hostile programs and NICs.

use super::{BY_NAME, DEBUG, LONG, TEST, TEST_AND_DEBUG, VM, VM_AND_HOSTILE};
use crate::guests::guest;
use crate::step::Step;
use crate::suite::{minutes, Form, Kernel, Suite};

pub const SUITES: &[Suite] = &[
    Suite {
        name: "users",
        runs: TEST_AND_DEBUG,
        needs: VM,
        limit: minutes(360),
        about: "some programs of other projects: UCX, libfabric, MPI, qperf, fio, QEMU, iSER; UCX and libfabric under rules",
        steps: users,
    },
    Suite {
        name: "guest",
        runs: TEST_AND_DEBUG,
        needs: VM,
        limit: minutes(30),
        about: "the guest suite",
        steps: |_| vec![guest(900, "verbena-guest-tests").step()],
    },
    Suite {
        name: "guest-wire",
        runs: LONG,
        needs: VM,
        limit: minutes(30),
        about: "the guest suite, with every local packet forced through wire bytes",
        steps: |_| vec![guest(900, "verbena-guest-tests").with("--nic-args", "--wire-local").step()],
    },
    Suite {
        name: "guest-loss",
        runs: TEST,
        needs: VM,
        limit: minutes(30),
        about: "guest-wire with 5% of the packets lost; short: operations and statuses",
        // With loss, a responder in ERR may not answer: if its NAK is lost, the requester only runs
        // out of retries.
        steps: |form| {
            let filters = form.pick(" --filter ops/ --filter 3/ --filter 3.", "");
            let lossy = guest(900, format!("VERBENA_LOSSY=1 verbena-guest-tests{filters}"));
            vec![lossy.with("--nic-args", "--wire-local --drop 5").step()]
        },
    },
    Suite {
        name: "unbind",
        runs: TEST_AND_DEBUG,
        needs: VM,
        limit: minutes(20),
        about: "the driver is unbound and bound again while a process uses the device",
        steps: |form| vec![guest(300, format!("verbena-guest-unbind {}", form.pick(8, 20))).step()],
    },
    Suite {
        name: "reload",
        runs: TEST_AND_DEBUG,
        needs: VM,
        limit: minutes(20),
        about: "the module is loaded and unloaded repeatedly, with traffic between",
        steps: |form| {
            let cycles = guest(400, format!("reload-cycles {}", form.pick(5, 10)));
            vec![cycles.flag("--no-module").step()]
        },
    },
    Suite {
        name: "pairing",
        runs: TEST,
        needs: VM,
        limit: minutes(20),
        about: "the port finds its net device, and follows it to other network namespaces; container networks; device attributes",
        steps: |_| {
            // Three programs, each of which reports its own tests.
            let programs = "rc=0; port-pairing || rc=1; modprobe verbena || exit
                device-files || rc=1; namespaces || rc=1; exit $rc";
            vec![guest(200, programs).flag("--no-module").step()]
        },
    },
    Suite {
        name: "containers",
        runs: LONG,
        needs: VM,
        limit: minutes(40),
        about: "perftest and UCX between containers of Podman in a guest: two share a device, two have their own",
        steps: |_| vec![Step::script(["test-containers"]).records()],
    },
    Suite {
        name: "hostile",
        runs: TEST_AND_DEBUG,
        needs: VM,
        limit: minutes(20),
        about: "a process forges entries of its own queues, while another compares every byte",
        steps: |form| vec![guest(200, format!("verbena-guest-hostile {}", form.pick(20, 60))).step()],
    },
    Suite {
        name: "hostile-nic",
        runs: TEST_AND_DEBUG,
        needs: VM_AND_HOSTILE,
        limit: minutes(20),
        about: "a NIC that sends the driver false data",
        steps: |form| {
            let seeds = 1..=form.pick(1, 2);
            let seed = |seed| {
                let nic = format!("--hostile {seed}");
                let guests = guest(200, "hostile-nic 2").flag("--no-module").with("--nic-args", nic);
                hostile(guests.step(), form).titled(format!("seed {seed}"))
            };
            seeds.map(seed).collect()
        },
    },
    Suite {
        name: "death",
        runs: TEST_AND_DEBUG,
        needs: VM_AND_HOSTILE,
        limit: minutes(40),
        about: "the device stops and continues under a process and kernel queues, by each of the ways to stop it once",
        steps: |form| vec![death(form, "queries refused process kernel")],
    },
    Suite {
        name: "death-nvme",
        runs: DEBUG,
        needs: VM_AND_HOSTILE,
        limit: minutes(40),
        about: "suite death under NVMe over RDMA",
        steps: |form| vec![death(form, "nvme")],
    },
    Suite {
        name: "snapshots",
        runs: TEST,
        needs: VM,
        limit: minutes(90),
        about: "QEMU refuses to migrate and to save; stop and cont; two snapshots loaded under traffic; long: 20, suspend, a peer",
        steps: |form| vec![Step::script(["test-snapshots", form.pick("1", "20")]).records()],
    },
    Suite {
        name: "panics",
        runs: TEST_AND_DEBUG,
        needs: VM_AND_HOSTILE,
        limit: minutes(20),
        about: "the device model panics under traffic",
        steps: |form| {
            let panics = guest(400, format!("panics {}", form.pick(3, 5)));
            vec![hostile(panics.step(), form)]
        },
    },
    Suite {
        name: "kernel",
        runs: TEST_AND_DEBUG,
        needs: VM,
        limit: minutes(20),
        about: "kernel verbs: the self-test module",
        steps: |_| vec![guest(300, "kernel-selftest").step()],
    },
    Suite {
        name: "rxe",
        runs: BY_NAME,
        needs: VM,
        limit: minutes(20),
        about: "stock rxe for comparison: multicasts, then its queue pair is destroyed",
        steps: |_| vec![guest(120, "rxe-multicast").flag("--rxe").step()],
    },
    Suite {
        name: "kernels",
        runs: LONG,
        needs: VM,
        limit: minutes(600),
        about: "the guest suite and kernel verbs on all other kernels with Rust that Debian offers (scripts/versions)",
        steps: |_| vec![Step::script(["test-kernels"])],
    },
];

/// Runs the step with the NIC that misbehaves on request.
fn hostile(step: Step, form: &Form) -> Step {
    step.env(
        "VERBENA_NIC",
        form.built("cargo-hostile/release/verbena-nic"),
    )
}

/// Freed memory is poisoned, and the poison is compared when the memory is allocated again: with
/// less memory that happens sooner. Memory that a lost device may still use stays mapped, which the
/// checker of the DMA API reports when the driver is unbound.
fn death(form: &Form, ways: &str) -> Step {
    let memory = match form.kernel {
        Kernel::Stock => 1024,
        Kernel::Debug => 2048,
    };
    let guests = guest(900, format!("death {ways}"))
        .memory(memory)
        .flag("--no-module")
        .with("--kernel-args", "page_poison=1")
        .with(
            "--expected",
            "device driver has pending DMA allocations while released|at dma_debug_device_change",
        );
    hostile(guests.step(), form)
}

/// The results of rxe are not tested here. How libraries react to faults depends on timing, so not on
/// the debug kernel.
fn users(form: &Form) -> Vec<Step> {
    let words = [
        "users",
        "--kernel",
        form.kernel.name(),
        "--device",
        "verbena0",
        "--short",
        "--fresh",
    ];
    let mut steps = vec![Step::script(words).env("VERBENA_BUILT", "1").each()];
    if form.kernel == Kernel::Stock {
        steps.push(Step::script(["libraries", "--no-build", "--short"]).records());
    }
    steps
}
