// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The traps of a managed port: each is sent again until the subnet manager represses the trap
//! (IBTA 13.4.9).

use crate::mad::attribute::PortInfo;
use crate::mad::notice::{Notice, Trap};
use crate::mad::{attribute_id, class, method, Fields, Mad};
use crate::Time;
use std::time::Duration;

/// The shortest time between two traps of a kind, also if SubnetTimeOut is shorter.
const SHORTEST_PERIOD: Duration = Duration::from_millis(100);
/// PortInfo:SubnetTimeOut beyond this code, 18 minutes, has the same period.
const LONGEST_TIMEOUT: u8 = 28;

/// A trap that waits for its TrapRepress.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pending {
    trap: Trap,
    notice: Notice,
    transaction: u32,
    /// When the trap is sent, for the first time or again.
    due: Time,
}

/// The traps of a port, at most one of each kind: a newer event replaces the older one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrapQueue {
    pending: Vec<Pending>,
    last_transaction: u32,
    /// When the last trap of each kind was sent.
    last_sent: Vec<(Trap, Time)>,
}

impl TrapQueue {
    /// Adds a trap, which is due now, unless one of its kind was sent less than the shortest period
    /// ago: then the trap waits for the rest of the period, also if the older one was repressed.
    pub(crate) fn raise(&mut self, trap: Trap, notice: Notice, now: Time) {
        self.last_transaction = self.last_transaction.wrapping_add(1);
        let transaction = self.last_transaction;
        let last_sent = self.last_sent.iter().find(|(sent, _)| *sent == trap);
        let due = last_sent.map_or(now, |(_, at)| now.max(at.saturating_add(SHORTEST_PERIOD)));
        match self.pending.iter_mut().find(|pending| pending.trap == trap) {
            Some(pending) => {
                pending.notice = notice;
                pending.transaction = transaction;
                pending.due = pending.due.min(due);
            }
            None => self.pending.push(Pending {
                trap,
                notice,
                transaction,
                due,
            }),
        }
    }

    /// Removes the trap with a transaction. Returns whether there was one. Only the low 32 bits
    /// count, because the user-MAD interface of Linux replaces the high bits.
    pub(crate) fn repress(&mut self, transaction: u64) -> bool {
        let before = self.pending.len();
        self.pending
            .retain(|pending| pending.transaction != transaction as u32);
        self.pending.len() < before
    }

    /// Returns the number of traps that wait for their TrapRepress.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.pending.len()
    }

    /// Returns when the next trap is due.
    pub(crate) fn due(&self) -> Option<Time> {
        self.pending.iter().map(|pending| pending.due).min()
    }

    /// Returns the traps that are due, and sets the times at which they are sent again.
    pub(crate) fn take_due(&mut self, port: &PortInfo, now: Time) -> Vec<Mad> {
        let again = now.saturating_add(period(port.get(PortInfo::SUBNET_TIMEOUT)));
        let last_sent = &mut self.last_sent;
        let due = self.pending.iter_mut().filter(|pending| pending.due <= now);
        due.map(|pending| {
            pending.due = again;
            last_sent.retain(|(trap, _)| *trap != pending.trap);
            last_sent.push((pending.trap, now));
            let mut mad = Mad::smp(
                class::SUBNET_LID_ROUTED,
                method::TRAP,
                attribute_id::NOTICE,
                0,
            );
            mad.set(Mad::TRANSACTION_ID, u64::from(pending.transaction));
            mad.set_data(&pending.notice.0);
            mad
        })
        .collect()
    }
}

/// Returns the time of a code of SubnetTimeOut, 4.096 us times 2 to its power (IBTA 14.2.5.6).
fn period(code: u8) -> Duration {
    Duration::from_nanos(4096 << code.min(LONGEST_TIMEOUT)).max(SHORTEST_PERIOD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trap_is_sent_until_it_is_repressed() {
        let mut traps = TrapQueue::default();
        let info = PortInfo::default().with(PortInfo::SUBNET_TIMEOUT, 18);
        let start = Duration::from_secs(5);
        traps.raise(Trap::LinkState, Trap::LinkState.notice(2, 1), start);
        let first = traps.take_due(&info, start);
        assert_eq!(traps.take_due(&info, start), []);
        let again = traps.due().unwrap();
        assert_eq!(again - start, Duration::from_nanos(1_073_741_824));
        assert_eq!(traps.take_due(&info, again), first);
        let transaction = first[0].get(Mad::TRANSACTION_ID);
        assert!(!traps.repress(transaction + 1));
        assert!(traps.repress(transaction | 7 << 32));
        assert_eq!(traps.due(), None);
    }

    #[test]
    fn a_trap_soon_after_a_repressed_one_waits() {
        let mut traps = TrapQueue::default();
        let mut raise = |trap: Trap, at: u64| {
            let now = Duration::from_millis(at);
            traps.raise(trap, trap.notice(2, 1), now);
            let sent = traps.take_due(&PortInfo::default(), now);
            sent.iter().for_each(|mad| {
                traps.repress(mad.get(Mad::TRANSACTION_ID));
            });
            (sent.len(), traps.due().map(|due| due.as_millis()))
        };
        assert_eq!(raise(Trap::BadMKey, 1), (1, None));
        assert_eq!(raise(Trap::BadMKey, 2), (0, Some(101)));
        assert_eq!(raise(Trap::LinkState, 3), (1, Some(101)));
        assert_eq!(raise(Trap::BadMKey, 101), (1, None));
    }

    #[test]
    fn a_second_event_replaces_the_first() {
        let mut traps = TrapQueue::default();
        for lid in 1..1000 {
            traps.raise(Trap::BadMKey, Trap::BadMKey.notice(1, lid), Time::ZERO);
        }
        let sent = traps.take_due(&PortInfo::default(), Time::ZERO);
        assert_eq!(sent.len(), 1);
        assert_eq!(Notice(sent[0].data()).get(Notice::PORT_LID), 999);
        assert_eq!(traps.take_due(&PortInfo::default(), Time::ZERO), []);
    }
}
