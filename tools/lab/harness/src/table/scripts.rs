// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Suites of the scripts, the command line, the packages and the pages.

use super::{BY_NAME, INSTALLATION, LONG, TEST, TREE, VM};
use crate::step::Step;
use crate::suite::{minutes, Suite};

pub const SUITES: &[Suite] = &[
    Suite {
        name: "clone",
        runs: TEST,
        needs: TREE,
        limit: minutes(40),
        about: "builds in a new clone when the archive fails or has other kernels: an error each, and the next try works",
        steps: |_| vec![Step::script(["test-clone"]).records()],
    },
    Suite {
        name: "clone-cold",
        runs: BY_NAME,
        needs: TREE,
        limit: minutes(240),
        about: "suite clone with the real archive through a mirror that breaks off, then make run",
        steps: |_| vec![Step::script(["test-clone", "--cold"]).records()],
    },
    Suite {
        name: "scripts",
        runs: BY_NAME,
        needs: VM,
        limit: minutes(120),
        about: "the scripts: rebuilds, the root, repeated boots, the picture of the benchmark",
        steps: |_| vec![Step::script(["test-scripts"]).records()],
    },
    Suite {
        name: "manners",
        runs: TEST,
        needs: VM,
        limit: minutes(90),
        about: "the command line: shell in a guest, standard input, exit statuses, errors, failed boots; long: a kernel of KDIR",
        steps: |form| vec![Step::script(["test-manners", form.pick("", "--long")]).records()],
    },
    Suite {
        name: "ci",
        runs: LONG,
        needs: INSTALLATION,
        limit: minutes(120),
        about: "the steps of the GitHub Action and the GitLab template, with tests in C, Rust and Python that pass and one that fails",
        steps: |_| vec![Step::script(["test-ci"]).records()],
    },
    Suite {
        name: "packages",
        runs: LONG,
        needs: VM,
        limit: minutes(240),
        about: "Debian packages in a clean Debian 13: installed without network, used by an ordinary user, upgraded, purged; lintian",
        steps: |_| vec![Step::script(["test-packages"]).records()],
    },
    Suite {
        name: "image",
        runs: LONG,
        needs: VM,
        limit: minutes(240),
        about: "the OCI image: built twice, bill of materials, run by rootless podman as an ordinary user without network",
        steps: |_| vec![Step::script(["test-image"]).records()],
    },
    Suite {
        name: "old-module",
        runs: LONG,
        needs: VM,
        limit: minutes(240),
        about: "a newer NIC serves an older driver: module, provider and guest suite of the commit before (REVISION=)",
        steps: |_| vec![Step::script(["test-old-module"])],
    },
    Suite {
        name: "command",
        runs: TEST,
        needs: INSTALLATION,
        limit: minutes(60),
        about: "verbena run, and nodes that stay: exit status, standard input, files, errors, timeout, Ctrl-C, an ordinary user",
        steps: |_| vec![Step::script(["test-command"]).records()],
    },
    Suite {
        name: "posts",
        runs: TEST,
        needs: INSTALLATION,
        limit: minutes(60),
        about: "verbena selftest, with tests that pass and that fail; verbena bench, with all figures and with some missing",
        steps: |_| vec![Step::script(["test-posts"]).records()],
    },
    Suite {
        name: "recipes",
        runs: TEST,
        needs: VM,
        limit: minutes(240),
        about: "the recipes of the documentation, word for word; short: one of them",
        // Without a name, all recipes.
        steps: |form| {
            vec![
                Step::script(["test-recipes", "--own"]).records(),
                Step::script(["test-recipes", form.pick("shell", "")]).records(),
            ]
        },
    },
    Suite {
        name: "failing",
        runs: TEST,
        needs: VM,
        limit: minutes(120),
        about: "for failing programs, the last lines of the run name the cause; short: some; long: all, also with two guests",
        steps: |form| vec![Step::script(["test-failing", form.pick("", "--long")]).records()],
    },
    Suite {
        name: "interrupt",
        runs: BY_NAME,
        needs: VM,
        limit: minutes(120),
        about: "Ctrl-C at different moments of warm runs leaves no process and no mount",
        steps: |_| vec![Step::script(["test-interrupt"]).records()],
    },
];
