// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The table of all suites.
//!
//! The suites start in the order of the table: the long ones come first, right after those that
//! compile, or they would run alone at the end.

mod code;
mod devices;
mod fabrics;
mod lives;
mod networks;
mod programs;
mod scripts;

use crate::suite::{Need, Runs, Suite};

const TEST: &[Runs] = &[Runs::Test];
const TEST_AND_DEBUG: &[Runs] = &[Runs::Test, Runs::Debug];
const DEBUG: &[Runs] = &[Runs::Debug];
const LONG: &[Runs] = &[Runs::Long];
const BY_NAME: &[Runs] = &[];
const TREE: &[Need] = &[Need::Tree];
const VM: &[Need] = &[Need::Vm];
const ARM64: &[Need] = &[Need::Arm64];
const VM_AND_HOSTILE: &[Need] = &[Need::Vm, Need::Hostile];
const VM_AND_DEBUG: &[Need] = &[Need::Vm, Need::Debug];
const INSTALLATION: &[Need] = &[Need::Installation];

/// Returns all suites, in the order in which they start.
pub fn suites() -> Vec<Suite> {
    let parts = [
        code::SUITES,
        devices::SUITES,
        scripts::SUITES,
        lives::SUITES,
        programs::SUITES,
        networks::SUITES,
        fabrics::SUITES,
    ];
    parts.concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::Program;
    use crate::suite::{Form, Kernel};
    use std::collections::HashSet;

    fn forms() -> Vec<Form> {
        let top = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../..");
        let all = [
            (false, Kernel::Stock),
            (true, Kernel::Stock),
            (true, Kernel::Debug),
        ];
        let form = |(long, kernel)| Form {
            long,
            kernel,
            top: top.clone(),
        };
        all.map(form).into()
    }

    #[test]
    fn names_are_unique_and_each_suite_has_steps_in_each_form() {
        let mut names = HashSet::new();
        for suite in suites() {
            assert!(names.insert(suite.name), "two suites {}", suite.name);
            for form in forms() {
                assert!(
                    !(suite.steps)(&form).is_empty(),
                    "{} has no step",
                    suite.name
                );
            }
        }
        assert!(names.len() > 70);
    }

    #[test]
    fn the_guests_of_a_suite_end_before_its_limit() {
        for (suite, form) in suites()
            .iter()
            .flat_map(|s| forms().into_iter().map(move |f| (s, f)))
        {
            let of_guests = |step| match step {
                Program::Guests(guests) => u64::from(guests.seconds(form.kernel)) + 60,
                _ => 60,
            };
            let seconds: u64 = (suite.steps)(&form)
                .into_iter()
                .map(|step| of_guests(step.program))
                .sum();
            let limit = suite.limit_on(form.kernel).as_secs();
            assert!(
                seconds <= limit,
                "{}: {seconds} s of guests, limit {limit} s",
                suite.name
            );
        }
    }

    #[test]
    fn each_guest_has_a_timeout_of_its_own() {
        for (suite, form) in suites()
            .iter()
            .flat_map(|s| forms().into_iter().map(move |f| (s, f)))
        {
            for step in (suite.steps)(&form) {
                if let Program::Guests(guests) = step.program {
                    assert!(
                        guests.seconds(form.kernel) > 0,
                        "{}: {guests:?}",
                        suite.name
                    );
                }
            }
        }
    }

    #[test]
    fn each_script_of_the_table_exists() {
        for suite in suites() {
            for form in forms() {
                for step in (suite.steps)(&form) {
                    if let Program::Script(words) = step.program {
                        let script = form.top.join("scripts").join(&words[0]);
                        assert!(script.exists(), "{}: {}", suite.name, script.display());
                    }
                }
            }
        }
    }

    #[test]
    fn only_a_suite_for_the_debug_kernel_has_a_kernel_of_its_own() {
        for suite in suites() {
            let debug = Form {
                kernel: Kernel::Debug,
                ..forms().remove(0)
            };
            let stock = forms().remove(0);
            let always = (suite.steps)(&stock)
                .into_iter()
                .any(|step| match step.program {
                    Program::Guests(guests) => {
                        guests.arguments(Kernel::Stock) == guests.arguments(Kernel::Debug)
                    }
                    _ => false,
                });
            assert!(
                !always || suite.needs.contains(&Need::Debug),
                "{}",
                suite.name
            );
            assert!(!(suite.steps)(&debug).is_empty());
        }
    }
}
