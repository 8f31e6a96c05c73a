// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Expands rules to all their defaults.

use crate::names::Opcodes;
use crate::rule::{Action, CompletionError, CompletionFault, Match, Rule, RuleHook};

impl Rule {
    /// Returns the same rule with its defaults written out: the direction of packets, the opcodes
    /// of a name, the cause of a status.
    pub fn expanded(&self) -> Rule {
        let mut rule = self.clone();
        if rule.matches.on == RuleHook::Packet {
            rule.matches.direction = Some(rule.matches.packet_direction());
        }
        if matches!(rule.matches.on, RuleHook::Packet | RuleHook::Local) {
            rule.matches.opcode = opcodes(&rule.matches);
        }
        if let Action::Complete(how) = &rule.action {
            if let Some(cause) = how.cause() {
                rule.action = Action::Complete(CompletionFault::WithCause(CompletionError {
                    status: how.status().into(),
                    vendor_err: cause.to_raw().into(),
                }));
            }
        }
        rule
    }

    /// Returns a text that says how often the rule fires.
    pub fn describe_frequency(&self) -> String {
        let m = &self.matches;
        let which = match (m.nth, m.every, m.probability) {
            _ if m.on == RuleHook::Time => return String::from("once"),
            (Some(n), ..) => return format!("match number {n}, once"),
            (_, Some(n), _) => format!("one of {n} matches"),
            (.., Some(p)) => format!("each match with probability {p}"),
            _ => String::from("each match"),
        };
        match m.limit {
            Some(1) => format!("{which}, at most once"),
            Some(n) => format!("{which}, at most {n} times"),
            None => format!("{which}, without a limit"),
        }
    }
}

/// Returns all names that the names of a match stand for. An empty list matches any opcode.
fn opcodes(matches: &Match) -> Vec<String> {
    match Opcodes::of(&matches.opcode) {
        Ok(all) if !matches.opcode.is_empty() => {
            let names = all.rows().map(|row| String::from(row.name));
            let cnp = all.cnp.then(|| String::from("CNP"));
            names.chain(cnp).collect()
        }
        _ => matches.opcode.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::Direction;

    fn rule(matches: Match, action: Action) -> Rule {
        Rule {
            name: String::from("x"),
            optional: false,
            matches,
            action,
        }
    }

    fn named(opcode: &str) -> Match {
        Match {
            opcode: vec![opcode.into()],
            ..Match::default()
        }
    }

    #[test]
    fn expanded_rules_have_their_defaults() {
        let all = rule(named("RDMA READ response"), Action::Drop).expanded();
        let parts = ["First", "Middle", "Last", "Only"];
        let wanted = parts.map(|part| format!("RDMA READ response {part}"));
        assert_eq!(all.matches.opcode, wanted);
        assert_eq!(all.matches.direction, Some(Direction::Out));
        let cnp = rule(named("cnp"), Action::Drop).expanded();
        assert_eq!(cnp.matches.opcode, ["CNP"]);
        let any = rule(Match::default(), Action::Drop).expanded();
        assert!(any.matches.opcode.is_empty());
        let send = Match {
            on: RuleHook::Send,
            ..named("SEND")
        };
        let action = Action::Complete(CompletionFault::Status("GENERAL_ERR".into()));
        let send = rule(send, action).expanded();
        assert_eq!(
            (send.matches.direction, send.matches.opcode.len()),
            (None, 1)
        );
        let Action::Complete(CompletionFault::WithCause(error)) = &send.action else {
            panic!("{:?}", send.action);
        };
        assert_eq!(error.vendor_err, 0x1302);
    }

    #[test]
    fn an_expanded_rule_is_valid_and_expands_to_itself() {
        for (matches, action) in [
            (named("SEND"), Action::Drop),
            (named("CNP"), Action::MarkEcn),
            (named("Acknowledge"), Action::Nak("invalid request".into())),
            (Match::default(), Action::Duplicate(1)),
        ] {
            let rule = rule(matches, action);
            rule.check().unwrap();
            let expanded = rule.expanded();
            expanded.check().unwrap();
            assert_eq!(expanded.expanded(), expanded);
        }
    }

    #[test]
    fn describe_frequency_returns_words() {
        let often = |matches| rule(matches, Action::Drop).describe_frequency();
        let m = Match::default;
        let (nth, every) = (Some(3), Some(2));
        assert_eq!(often(Match { nth, ..m() }), "match number 3, once");
        let limit = Some(5);
        let all = Match { limit, ..m() };
        assert_eq!(often(all), "each match, at most 5 times");
        let once = Match {
            limit: Some(1),
            ..m()
        };
        assert_eq!(often(once), "each match, at most once");
        let all = Match { every, ..m() };
        assert_eq!(often(all), "one of 2 matches, without a limit");
        let probability = Some(0.25);
        let all = Match {
            probability,
            limit,
            ..m()
        };
        assert_eq!(
            often(all),
            "each match with probability 0.25, at most 5 times"
        );
        let on = RuleHook::Time;
        assert_eq!(often(Match { on, ..m() }), "once");
    }
}
