// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Fault rules that clients set over a connection. Rules that are tied to the connection are
//! removed when it ends for any reason. Rules on uplinks are those of the NIC ([`crate::impair`]),
//! all others those of the device.

use super::{ask, PATIENCE};
use crate::shared::{Change, Question, Shared};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;
use verbena_device::misbehave::Kind;
use verbena_faults::{duplicate_name_error, Action, On, Rule, RuleSet, RuleStatus};
use verbena_protocol::{ControlRequest, ReplyEnvelope, RulesReply};

/// Number of attempts to remove a connection's rules, while too many questions wait for the engine.
const TRIES: u32 = 50;
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// Number of the next connection.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// The rules of one connection.
pub(super) struct Rules<'a> {
    shared: &'a Shared,
    number: u64,
    /// True if rules are tied to the connection, or may be.
    owns: bool,
}

impl<'a> Rules<'a> {
    /// Returns the state of a new connection without rules.
    pub(super) fn new(shared: &'a Shared) -> Self {
        Self {
            shared,
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            owns: false,
        }
    }

    /// Returns the answer to a request about rules, or `None` for other requests.
    pub(super) fn answer(&mut self, request: &ControlRequest) -> Option<String> {
        let told = match request {
            ControlRequest::Faults => self.change(Change::None),
            ControlRequest::FaultAdd {
                set,
                while_connected,
            } => {
                if let Err((_, why)) = set.check() {
                    return Some(ReplyEnvelope::<RulesReply>::from(Err(why)).to_line());
                }
                log::info!("{} rules, seed {}", set.rule.len(), set.seed);
                // If the engine does not answer, it may nevertheless have added the rules.
                self.owns |= *while_connected;
                self.add(set, while_connected.then_some(self.number))
            }
            ControlRequest::FaultRemove { name } => self.remove(name),
            ControlRequest::FaultClear => {
                self.shared.common.impairments.clear_rules();
                let misbehave = &self.shared.misbehave;
                Kind::ALL.iter().for_each(|kind| misbehave.set(*kind, 0));
                self.change(Change::Clear)
            }
            _ => return None,
        };
        // A frame that was delayed may be due now.
        self.shared.common.waker.wake();
        Some(ReplyEnvelope::from(told).to_line())
    }

    /// Changes the rules of the device. Returns all rules: those of the device, then those of
    /// uplinks.
    fn change(&self, change: Change) -> Result<RulesReply, String> {
        let rules = self.of_device(change)?;
        Ok(self.all(rules))
    }

    /// Adds the rules of uplinks and the misbehaviours of the NIC to the rules of the device. A
    /// misbehaviour that a rule of the device has switched on is listed as that rule.
    fn all(&self, mut rules: Vec<RuleStatus>) -> RulesReply {
        let is_known = |kind: Kind| {
            rules.iter().any(|told| match &told.rule.action {
                Action::Misbehave(text) => {
                    told.fired > 0 && text.split('=').next() == Some(kind.name())
                }
                _ => false,
            })
        };
        let misbehave = &self.shared.misbehave;
        let kinds = Kind::ALL.iter().copied();
        let kinds = kinds.filter(|kind| misbehave.is(*kind) && !is_known(*kind));
        let own = kinds.map(|kind| RuleStatus {
            rule: Rule::of_misbehaviour(kind.name(), misbehave.get(kind)),
            seed: 0,
            while_connected: false,
            matched: 1,
            fired: 1,
        });
        let own: Vec<RuleStatus> = own.collect();
        rules.extend(self.shared.common.impairments.rules());
        rules.extend(own);
        RulesReply { rules }
    }

    /// Ends the misbehaviour that a rule stands for. Returns false if there is none.
    fn end_misbehaviour(&self, name: &str) -> bool {
        let misbehave = &self.shared.misbehave;
        let kind = name.strip_prefix("misbehave ").and_then(Kind::of);
        let kind = kind.filter(|kind| misbehave.is(*kind));
        kind.into_iter().for_each(|kind| misbehave.set(kind, 0));
        kind.is_some()
    }

    fn of_device(&self, change: Change) -> Result<Vec<RuleStatus>, String> {
        ask(self.shared, |to| Question::Rules(change, to))?
    }

    /// Adds all rules of a file or none.
    fn add(&self, set: &RuleSet, owner: Option<u64>) -> Result<RulesReply, String> {
        let common = &self.shared.common;
        let impairments = &common.impairments;
        let _changes = impairments.change();
        let (of_uplinks, of_device) = set
            .rule
            .iter()
            .cloned()
            .partition(|rule| rule.matches.on == On::Uplink);
        let [of_uplinks, of_device] = [of_uplinks, of_device].map(|rule| RuleSet {
            version: set.version,
            seed: set.seed,
            rule,
        });
        check_names(&self.all(Vec::new()).rules, &of_device)?;
        if !of_uplinks.rule.is_empty() {
            impairments.check_rules(&of_uplinks)?;
            check_names(&self.of_device(Change::None)?, &of_uplinks)?;
        }
        let rules = self.of_device(Change::Add(of_device, owner))?;
        impairments.add_rules(&of_uplinks, owner, common.now())?;
        Ok(self.all(rules))
    }

    fn remove(&self, name: &str) -> Result<RulesReply, String> {
        match self.shared.common.impairments.remove_rule(name) || self.end_misbehaviour(name) {
            true => self.change(Change::None),
            false => self.change(Change::Remove(name.into())),
        }
    }
}

/// Checks that no new rule has the name of a present rule. The error names the rule.
fn check_names(present: &[RuleStatus], new: &RuleSet) -> Result<(), String> {
    let is_taken = |rule: &&Rule| present.iter().any(|told| told.rule.name == rule.name);
    match new.rule.iter().find(is_taken) {
        Some(rule) => Err(duplicate_name_error(&rule.name)),
        None => Ok(()),
    }
}

impl Drop for Rules<'_> {
    fn drop(&mut self) {
        if !self.owns {
            return;
        }
        let common = &self.shared.common;
        common.impairments.remove_rules_of(self.number);
        common.waker.wake();
        for _ in 0..TRIES {
            let (to, answer) = mpsc::channel();
            if self
                .shared
                .ask(Question::Rules(Change::RemoveOf(self.number), to))
            {
                // The answer is awaited, so that the rules are removed before the connection ends.
                let _ = answer.recv_timeout(PATIENCE);
                return;
            }
            std::thread::sleep(PAUSE);
        }
        log::warn!(
            "the rules of a closed connection are still set, because too many requests are \
             waiting: remove them by verbenactl fault remove"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// Runs an engine without rules; returns the changes that clients request.
    fn engine(shared: &Arc<Shared>) -> mpsc::Receiver<Change> {
        let (to, from) = mpsc::channel();
        let shared = Arc::clone(shared);
        std::thread::spawn(move || loop {
            match shared.mail(0, true).question {
                Some(Question::Rules(change, answer)) => {
                    // A client that has disconnected does not wait for the answer.
                    let _ = answer.send(Ok(Vec::new()));
                    if to.send(change).is_err() {
                        return;
                    }
                }
                _ => std::thread::yield_now(),
            }
        });
        from
    }

    fn add(while_connected: bool) -> ControlRequest {
        let text = "version = 1\n[[rule]]\nname = \"x\"\naction = \"drop\"\n";
        ControlRequest::FaultAdd {
            set: verbena_protocol::read_toml(text).unwrap(),
            while_connected,
        }
    }

    #[test]
    fn rules_that_are_tied_to_a_connection_end_with_it_and_others_stay() {
        let shared = Arc::new(Shared::new().unwrap());
        let asked = engine(&shared);
        let mut tied = Rules::new(&shared);
        let mut free = Rules::new(&shared);
        assert!(tied.answer(&add(true)).unwrap().contains("\"ok\":true"));
        assert!(matches!(asked.recv(), Ok(Change::Add(_, Some(n))) if n == tied.number));
        assert!(free.answer(&add(false)).is_some());
        assert!(matches!(asked.recv(), Ok(Change::Add(_, None))));
        let number = tied.number;
        drop(free);
        drop(tied);
        assert!(matches!(asked.recv(), Ok(Change::RemoveOf(n)) if n == number));
    }

    #[test]
    fn invalid_rules_are_refused_before_they_reach_the_engine() {
        let shared = Arc::new(Shared::new().unwrap());
        let mut rules = Rules::new(&shared);
        let ControlRequest::FaultAdd { mut set, .. } = add(false) else {
            return;
        };
        set.rule[0].matches.nth = Some(0);
        let request = ControlRequest::FaultAdd {
            set,
            while_connected: true,
        };
        let told = rules.answer(&request).unwrap();
        assert!(told.contains("match.nth: 0 is not valid"), "{told}");
        assert!(rules.answer(&ControlRequest::Status).is_none() && !rules.owns);
    }

    #[test]
    fn a_file_has_rules_of_the_device_and_of_uplinks_and_is_added_whole() {
        let shared = Arc::new(Shared::new().unwrap());
        let asked = engine(&shared);
        let mut rules = Rules::new(&shared);
        let uplink = "[[rule]]\nname = \"y\"\nmatch.on = \"uplink\"\naction = \"drop\"\n";
        let ControlRequest::FaultAdd { mut set, .. } = add(true) else {
            return;
        };
        let text = format!("version = 1\n{uplink}");
        set.rule
            .extend(verbena_protocol::read_toml(&text).unwrap().rule);
        let request = ControlRequest::FaultAdd {
            set,
            while_connected: true,
        };
        // Without an uplink the device is not asked.
        let told = rules.answer(&request).unwrap();
        assert!(
            told.contains("match.uplink: the NIC has no uplink"),
            "{told}"
        );
        shared.common.impairments.set_uplinks(1);
        let told = rules.answer(&request).unwrap();
        assert!(told.contains("\"name\":\"y\""), "{told}");
        assert!(matches!(asked.recv(), Ok(Change::None)));
        let Ok(Change::Add(set, Some(_))) = asked.recv() else {
            panic!("the device was not asked");
        };
        assert_eq!((set.rule.len(), set.rule[0].name.as_str()), (1, "x"));
        // A rule of the device cannot have the name of one on uplinks.
        let ControlRequest::FaultAdd { mut set, .. } = add(false) else {
            return;
        };
        set.rule[0].name = String::from("y");
        let twice = ControlRequest::FaultAdd {
            set,
            while_connected: false,
        };
        let told = rules.answer(&twice).unwrap();
        assert!(told.contains("already has a rule with this name"), "{told}");
        let name = String::from("y");
        let told = rules.answer(&ControlRequest::FaultRemove { name }).unwrap();
        assert!(told.contains("\"rules\":[]"), "{told}");
        assert!(matches!(asked.recv(), Ok(Change::None)));
        assert!(rules.answer(&request).is_some());
        drop(rules);
        assert!(shared.common.impairments.rules().is_empty());
    }

    #[test]
    fn misbehaviours_of_the_nic_are_listed_and_removed_as_rules() {
        let shared = Arc::new(Shared::new().unwrap());
        let _asked = engine(&shared);
        let mut rules = Rules::new(&shared);
        let mut names = |request: &ControlRequest| -> Result<Vec<(String, String)>, String> {
            let told: RulesReply = ReplyEnvelope::from_line(&rules.answer(request).unwrap())?;
            let one = |told: &RuleStatus| {
                let action = serde_json::to_string(&told.rule.action).unwrap();
                (told.rule.name.clone(), action)
            };
            Ok(told.rules.iter().map(one).collect())
        };
        assert_eq!(names(&ControlRequest::Faults), Ok(vec![]));
        // As `--misbehave` and the words of configuration space do.
        shared.misbehave.set(Kind::Stall, 20);
        shared.misbehave.set(Kind::MuteCommands, u32::MAX);
        let told = names(&ControlRequest::Faults).unwrap();
        let expected = [
            (
                "misbehave mute-commands",
                r#"{"misbehave":"mute-commands=always"}"#,
            ),
            ("misbehave stall", r#"{"misbehave":"stall=20"}"#),
        ];
        let expected = expected.map(|(name, action)| (name.to_owned(), action.to_owned()));
        assert_eq!(told, expected);
        let name = String::from("misbehave stall");
        let told = names(&ControlRequest::FaultRemove { name }).unwrap();
        assert_eq!(told, expected[..1]);
        assert!(!shared.misbehave.is(Kind::Stall));
        assert_eq!(names(&ControlRequest::FaultClear), Ok(vec![]));
        assert!(!shared.misbehave.is(Kind::MuteCommands));
    }
}
