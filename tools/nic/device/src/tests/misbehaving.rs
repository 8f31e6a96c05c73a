// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Misbehaviours of the NIC as actions of rules.

use super::fault_hooks::rule;
use super::Pair;
use crate::mock::Driver;
use verbena_faults::{Action, Match, RuleHook, RuleSet, VERSION};

fn set(matches: Match, text: &str) -> RuleSet {
    RuleSet {
        version: VERSION,
        seed: 0,
        rule: vec![rule("x", matches, Action::Misbehave(text.into()))],
    }
}

fn at_once() -> Match {
    Match {
        on: RuleHook::Time,
        after_ms: Some(0),
        ..Match::default()
    }
}

#[cfg(not(feature = "misbehave"))]
#[test]
fn a_build_without_the_feature_refuses_the_rule_and_names_the_feature() {
    let mut p = Pair::on(Driver::new());
    let rules = set(at_once(), "stall=20");
    let error = p.d.device.add_rules(&rules, None, p.d.now).unwrap_err();
    for wanted in ["rule \"x\": action.misbehave", "the feature misbehave"] {
        assert!(error.contains(wanted), "{error}");
    }
    assert!(p.d.device.rules().is_empty() && p.d.device.shared.faults.is_none());
}

#[cfg(feature = "misbehave")]
mod with_the_feature {
    use super::*;
    use crate::misbehave::{Kind, ALWAYS};
    use crate::Config;
    use verbena_abi::cmd::{Opcode, QueryDevice};

    #[test]
    fn a_rule_begins_a_misbehaviour_and_ends_it_when_the_rule_is_removed() {
        // No driver: the device has no slices.
        let mut d = Driver::cold(Config::default());
        let m = d.device.shared.config().misbehave.clone();
        let rules = set(at_once(), "newest-version=9");
        d.device.add_rules(&rules, Some(4), d.now).unwrap();
        assert_eq!(m.get(Kind::NewestVersion), 9);
        let told = d.device.rules();
        assert_eq!((told[0].matched, told[0].fired), (1, 1));
        d.device.reset();
        assert_eq!(m.get(Kind::NewestVersion), 9);
        d.device.remove_rules_of(4);
        assert_eq!(m.get(Kind::NewestVersion), 0);
        assert!(d.device.shared.faults.is_none());
        d.device
            .add_rules(&set(at_once(), "no-interrupts"), None, d.now)
            .unwrap();
        d.device
            .add_rules(
                &RuleSet {
                    rule: vec![rule(
                        "y",
                        at_once(),
                        Action::Misbehave("no-interrupts=always".into()),
                    )],
                    ..set(at_once(), "")
                },
                None,
                d.now,
            )
            .unwrap();
        assert!(d.device.remove_rule("x"));
        assert_eq!(
            m.get(Kind::NoInterrupts),
            ALWAYS,
            "another rule has it, too"
        );
        d.device.clear_rules();
        assert!(!m.is(Kind::NoInterrupts));
    }

    #[test]
    fn a_command_can_begin_a_misbehaviour_for_the_commands_after_it() {
        let mut p = Pair::on(Driver::new());
        let m = p.d.device.shared.config().misbehave.clone();
        let second = Match {
            on: RuleHook::Command,
            command: Some(String::from("QUERY_DEVICE")),
            nth: Some(2),
            ..Match::default()
        };
        p.d.device
            .add_rules(&set(second, "mute-commands=2"), None, p.d.now)
            .unwrap();
        p.d.must(&QueryDevice::default());
        assert!(!m.is(Kind::MuteCommands));
        p.d.begin_cmd(1, &QueryDevice::default());
        p.d.run();
        // The second command begins it, and is the first without an answer.
        assert!(!p.d.is_answered(1));
        assert_eq!(m.get(Kind::MuteCommands), 1);
        assert!(m.applies_to(Opcode::QueryDevice.to_raw()));
    }
}
