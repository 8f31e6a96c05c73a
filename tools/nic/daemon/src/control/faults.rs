// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Fault rules that clients set over a connection. Rules that are tied to the connection are
//! removed when it ends for any reason.

use super::{ask, PATIENCE};
use crate::shared::{Change, Question, Shared};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;
use verbena_protocol::{Reply, Request, ToldRules};

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
    pub(super) fn answer(&mut self, request: &Request) -> Option<String> {
        let change = match request {
            Request::Faults => Change::None,
            Request::FaultAdd {
                set,
                while_connected,
            } => {
                if let Err((_, why)) = set.check() {
                    return Some(Reply::<ToldRules>::from(Err(why)).line());
                }
                log::info!("{} rules, seed {}", set.rule.len(), set.seed);
                // If the engine does not answer, it may nevertheless have added the rules.
                self.owns |= *while_connected;
                Change::Add(set.clone(), while_connected.then_some(self.number))
            }
            Request::FaultRemove { name } => Change::Remove(name.clone()),
            Request::FaultClear => Change::Clear,
            _ => return None,
        };
        let told = ask(self.shared, |to| Question::Rules(change, to));
        let told = told.and_then(|rules| rules);
        Some(Reply::from(told.map(|rules| ToldRules { rules })).line())
    }
}

impl Drop for Rules<'_> {
    fn drop(&mut self) {
        if !self.owns {
            return;
        }
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

    fn add(while_connected: bool) -> Request {
        let text = "version = 1\n[[rule]]\nname = \"x\"\naction = \"drop\"\n";
        Request::FaultAdd {
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
        let Request::FaultAdd { mut set, .. } = add(false) else {
            return;
        };
        set.rule[0].matches.nth = Some(0);
        let request = Request::FaultAdd {
            set,
            while_connected: true,
        };
        let told = rules.answer(&request).unwrap();
        assert!(told.contains("match.nth: 0 is not valid"), "{told}");
        assert!(rules.answer(&Request::Status).is_none() && !rules.owns);
    }
}
