// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Suites of one guest under load, under allocations that fail, and of storage.

use super::{BY_NAME, DEBUG, LONG, TEST_AND_DEBUG, VM, VM_AND_DEBUG};
use crate::guests::guest;
use crate::step::Step;
use crate::suite::{minutes, Kernel, Suite};

pub const SUITES: &[Suite] = &[
    Suite {
        name: "failnth",
        runs: DEBUG,
        needs: VM_AND_DEBUG,
        limit: minutes(60),
        about: "every allocation of every verb fails once",
        // The stock kernel has no fault injection.
        steps: |_| vec![guest(200, "failnth").kernel(Kernel::Debug).step()],
    },
    Suite {
        name: "hogs",
        runs: LONG,
        needs: VM,
        limit: minutes(40),
        about: "100 processes of one user allocate all they can, three users open more than 4000 contexts; other users are not affected",
        steps: |_| {
            let tests = "long/a-hundred-hogs long/thousands-of-contexts long/contexts-leave-areas-to-the-kernel";
            vec![guest(1500, guest_tests(tests)).step()]
        },
    },
    Suite {
        name: "churn",
        runs: DEBUG,
        needs: VM,
        limit: minutes(40),
        about: "ten minutes of resizes, re-registrations and windows under traffic",
        steps: |_| vec![guest(1500, guest_tests("long/changes-under-traffic")).step()],
    },
    Suite {
        name: "storage",
        runs: TEST_AND_DEBUG,
        needs: VM,
        limit: minutes(30),
        about: "NVMe and NFS over RDMA with every byte compared, while link, target and device go away and come back",
        steps: |_| vec![guest(600, "storage").step()],
    },
    Suite {
        name: "storage-soak",
        runs: BY_NAME,
        needs: VM,
        limit: minutes(40),
        about: "NVMe and NFS at the same time for ten minutes",
        steps: |_| vec![guest(1200, "storage --soak 600").step()],
    },
    Suite {
        name: "storage-death",
        runs: BY_NAME,
        needs: VM,
        limit: minutes(20),
        about: "the device is lost under NFS, which waits for it for more than a minute",
        steps: |_| vec![guest(400, "storage nfs_death").with("--expected", "blocked for more than").step()],
    },
    Suite {
        name: "failnth-bind",
        runs: BY_NAME,
        needs: VM_AND_DEBUG,
        limit: minutes(240),
        about: "every allocation of binding and unbinding the driver fails once: an hour or more",
        steps: |_| vec![guest(1000, "failnth --filter bind").kernel(Kernel::Debug).step()],
    },
    Suite {
        name: "planted",
        runs: DEBUG,
        needs: VM_AND_DEBUG,
        limit: minutes(30),
        about: "a planted bug for each checker of the debug kernel, which must report it",
        steps: |_| vec![Step::script(["test-planted"]).records()],
    },
];

/// Returns the command for these tests of the guest suite.
pub(super) fn guest_tests(names: &str) -> String {
    let filters = names
        .split_whitespace()
        .map(|name| format!(" --filter {name}"));
    format!("verbena-guest-tests{}", filters.collect::<String>())
}
