// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Fault rules that clients set over a connection. Rules that are tied to the connection are
//! removed when it ends for any reason. Rules on uplinks are those of the NIC
//! ([`crate::impairments`]), all others those of the device.

use super::{request, REPLY_TIMEOUT};
use crate::vm_state::{EngineRequest, RuleChange, VmState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;
use verbena_device::misbehave::Kind;
use verbena_faults::{duplicate_name_error, Action, Rule, RuleHook, RuleSet, RuleStatus};
use verbena_protocol::{ControlRequest, ReplyEnvelope, RulesReply};

/// Number of attempts to remove a connection's rules, while too many requests wait for the engine.
const MAX_ATTEMPTS: u32 = 50;
/// Pause between two attempts.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Number of the next connection.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// The rules of one connection.
pub(super) struct ConnectionRules<'a> {
    shared: &'a VmState,
    number: u64,
    /// True if rules are tied to the connection, or may be.
    has_tied_rules: bool,
}

impl<'a> ConnectionRules<'a> {
    /// Returns the state of a new connection without rules.
    pub(super) fn new(shared: &'a VmState) -> Self {
        Self {
            shared,
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            has_tied_rules: false,
        }
    }

    /// Returns the answer to a request about rules, or `None` for other requests.
    pub(super) fn answer(&mut self, request: &ControlRequest) -> Option<String> {
        let reply = match request {
            ControlRequest::Faults => self.change(RuleChange::Unchanged),
            ControlRequest::FaultAdd {
                set,
                while_connected,
            } => {
                if let Err((_, why)) = set.check() {
                    return Some(ReplyEnvelope::<RulesReply>::from(Err(why)).to_line());
                }
                log::info!("{} rules, seed {}", set.rule.len(), set.seed);
                // If the engine does not answer, it may nevertheless have added the rules.
                self.has_tied_rules |= *while_connected;
                self.add(set, while_connected.then_some(self.number))
            }
            ControlRequest::FaultRemove { name } => self.remove(name),
            ControlRequest::FaultClear => {
                self.shared.process.impairments.clear_rules();
                let misbehave = &self.shared.misbehave;
                Kind::ALL.iter().for_each(|kind| misbehave.set(*kind, 0));
                self.change(RuleChange::Clear)
            }
            _ => return None,
        };
        // A frame that was delayed may be due now.
        self.shared.process.waker.wake();
        Some(ReplyEnvelope::from(reply).to_line())
    }

    /// Changes the rules of the device. Returns all rules: those of the device, then those of
    /// uplinks.
    fn change(&self, change: RuleChange) -> Result<RulesReply, String> {
        let rules = self.change_device_rules(change)?;
        Ok(self.with_uplink_rules(rules))
    }

    /// Adds the rules of uplinks and the misbehaviours of the NIC to the rules of the device. A
    /// misbehaviour that a rule of the device has switched on is listed as that rule.
    fn with_uplink_rules(&self, mut rules: Vec<RuleStatus>) -> RulesReply {
        let is_known = |kind: Kind| {
            rules.iter().any(|status| match &status.rule.action {
                Action::Misbehave(text) => {
                    status.fired > 0 && text.split('=').next() == Some(kind.name())
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
        rules.extend(self.shared.process.impairments.rules());
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

    fn change_device_rules(&self, change: RuleChange) -> Result<Vec<RuleStatus>, String> {
        request(self.shared, |to| EngineRequest::ChangeRules(change, to))?
    }

    /// Adds all rules of a file or none.
    fn add(&self, set: &RuleSet, owner: Option<u64>) -> Result<RulesReply, String> {
        let process = &self.shared.process;
        let impairments = &process.impairments;
        let _changes = impairments.lock_changes();
        let (of_uplinks, of_device) = set
            .rule
            .iter()
            .cloned()
            .partition(|rule| rule.matches.on == RuleHook::Uplink);
        let [of_uplinks, of_device] = [of_uplinks, of_device].map(|rule| RuleSet {
            version: set.version,
            seed: set.seed,
            rule,
        });
        check_names(&self.with_uplink_rules(Vec::new()).rules, &of_device)?;
        if !of_uplinks.rule.is_empty() {
            impairments.check_rules(&of_uplinks)?;
            check_names(
                &self.change_device_rules(RuleChange::Unchanged)?,
                &of_uplinks,
            )?;
        }
        let rules = self.change_device_rules(RuleChange::Add(of_device, owner))?;
        impairments.add_rules(&of_uplinks, owner, process.now())?;
        Ok(self.with_uplink_rules(rules))
    }

    fn remove(&self, name: &str) -> Result<RulesReply, String> {
        match self.shared.process.impairments.remove_rule(name) || self.end_misbehaviour(name) {
            true => self.change(RuleChange::Unchanged),
            false => self.change(RuleChange::Remove(name.into())),
        }
    }
}

/// Checks that no new rule has the name of a present rule. The error names the rule.
fn check_names(present: &[RuleStatus], new: &RuleSet) -> Result<(), String> {
    let is_taken = |rule: &&Rule| present.iter().any(|status| status.rule.name == rule.name);
    match new.rule.iter().find(is_taken) {
        Some(rule) => Err(duplicate_name_error(&rule.name)),
        None => Ok(()),
    }
}

impl Drop for ConnectionRules<'_> {
    fn drop(&mut self) {
        if !self.has_tied_rules {
            return;
        }
        let process = &self.shared.process;
        process.impairments.remove_rules_of(self.number);
        process.waker.wake();
        for _ in 0..MAX_ATTEMPTS {
            let (to, answer) = mpsc::channel();
            if self.shared.post_request(EngineRequest::ChangeRules(
                RuleChange::RemoveOf(self.number),
                to,
            )) {
                // The answer is awaited, so that the rules are removed before the connection ends.
                let _ = answer.recv_timeout(REPLY_TIMEOUT);
                return;
            }
            std::thread::sleep(RETRY_PAUSE);
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
    fn engine(shared: &Arc<VmState>) -> mpsc::Receiver<RuleChange> {
        let (to, from) = mpsc::channel();
        let shared = Arc::clone(shared);
        std::thread::spawn(move || loop {
            match shared.take_mail(0, true).request {
                Some(EngineRequest::ChangeRules(change, answer)) => {
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
        let shared = Arc::new(VmState::new().unwrap());
        let changes = engine(&shared);
        let mut tied = ConnectionRules::new(&shared);
        let mut free = ConnectionRules::new(&shared);
        assert!(tied.answer(&add(true)).unwrap().contains("\"ok\":true"));
        assert!(matches!(changes.recv(), Ok(RuleChange::Add(_, Some(n))) if n == tied.number));
        assert!(free.answer(&add(false)).is_some());
        assert!(matches!(changes.recv(), Ok(RuleChange::Add(_, None))));
        let number = tied.number;
        drop(free);
        drop(tied);
        assert!(matches!(changes.recv(), Ok(RuleChange::RemoveOf(n)) if n == number));
    }

    #[test]
    fn invalid_rules_are_refused_before_they_reach_the_engine() {
        let shared = Arc::new(VmState::new().unwrap());
        let mut rules = ConnectionRules::new(&shared);
        let ControlRequest::FaultAdd { mut set, .. } = add(false) else {
            return;
        };
        set.rule[0].matches.nth = Some(0);
        let request = ControlRequest::FaultAdd {
            set,
            while_connected: true,
        };
        let reply = rules.answer(&request).unwrap();
        assert!(reply.contains("match.nth: 0 is not valid"), "{reply}");
        assert!(rules.answer(&ControlRequest::Status).is_none() && !rules.has_tied_rules);
    }

    #[test]
    fn a_file_has_rules_of_the_device_and_of_uplinks_and_is_added_whole() {
        let shared = Arc::new(VmState::new().unwrap());
        let changes = engine(&shared);
        let mut rules = ConnectionRules::new(&shared);
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
        let reply = rules.answer(&request).unwrap();
        assert!(
            reply.contains("match.uplink: the NIC has no uplink"),
            "{reply}"
        );
        shared.process.impairments.set_uplinks(1);
        let reply = rules.answer(&request).unwrap();
        assert!(reply.contains("\"name\":\"y\""), "{reply}");
        assert!(matches!(changes.recv(), Ok(RuleChange::Unchanged)));
        let Ok(RuleChange::Add(set, Some(_))) = changes.recv() else {
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
        let reply = rules.answer(&twice).unwrap();
        assert!(
            reply.contains("already has a rule with this name"),
            "{reply}"
        );
        let name = String::from("y");
        let reply = rules.answer(&ControlRequest::FaultRemove { name }).unwrap();
        assert!(reply.contains("\"rules\":[]"), "{reply}");
        assert!(matches!(changes.recv(), Ok(RuleChange::Unchanged)));
        assert!(rules.answer(&request).is_some());
        drop(rules);
        assert!(shared.process.impairments.rules().is_empty());
    }

    #[test]
    fn misbehaviours_of_the_nic_are_listed_and_removed_as_rules() {
        let shared = Arc::new(VmState::new().unwrap());
        let _asked = engine(&shared);
        let mut rules = ConnectionRules::new(&shared);
        let mut names = |request: &ControlRequest| -> Result<Vec<(String, String)>, String> {
            let reply: RulesReply = ReplyEnvelope::from_line(&rules.answer(request).unwrap())?;
            let one = |status: &RuleStatus| {
                let action = serde_json::to_string(&status.rule.action).unwrap();
                (status.rule.name.clone(), action)
            };
            Ok(reply.rules.iter().map(one).collect())
        };
        assert_eq!(names(&ControlRequest::Faults), Ok(vec![]));
        // As `--misbehave` and the words of configuration space do.
        shared.misbehave.set(Kind::Stall, 20);
        shared.misbehave.set(Kind::MuteCommands, u32::MAX);
        let listed = names(&ControlRequest::Faults).unwrap();
        let expected = [
            (
                "misbehave mute-commands",
                r#"{"misbehave":"mute-commands=always"}"#,
            ),
            ("misbehave stall", r#"{"misbehave":"stall=20"}"#),
        ];
        let expected = expected.map(|(name, action)| (name.to_owned(), action.to_owned()));
        assert_eq!(listed, expected);
        let name = String::from("misbehave stall");
        let listed = names(&ControlRequest::FaultRemove { name }).unwrap();
        assert_eq!(listed, expected[..1]);
        assert!(!shared.misbehave.is(Kind::Stall));
        assert_eq!(names(&ControlRequest::FaultClear), Ok(vec![]));
        assert!(!shared.misbehave.is(Kind::MuteCommands));
    }
}
