// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The bytes of out-of-order packets that queue pairs may keep: an account of the device, and a
//! part of it for each peer. Therefore one peer cannot take the bytes of all others, however many
//! queue pairs it has.

use crate::config::{KEEP_BYTES, PEER_KEEP_BYTES};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use verbena_transport::ReassemblyQuota;

type Gid = [u8; 16];

/// The accounts of a device: see the module.
#[derive(Debug)]
pub struct Accounts {
    whole: Rc<ReassemblyQuota>,
    /// Accounts of peers, which exist for as long as a queue pair uses them.
    of_peers: HashMap<Gid, Weak<ReassemblyQuota>>,
    /// Number of peers at which the next call looks for accounts without a user.
    crowded: usize,
}

impl Default for Accounts {
    fn default() -> Self {
        Self {
            whole: ReassemblyQuota::new(KEEP_BYTES),
            of_peers: HashMap::new(),
            crowded: 64,
        }
    }
}

impl Accounts {
    /// Returns the account of the device, for queue pairs without a peer.
    pub fn whole(&self) -> Rc<ReassemblyQuota> {
        Rc::clone(&self.whole)
    }

    /// Returns the account of the peer with this GID, and creates it if needed.
    pub fn of_peer(&mut self, gid: &Gid) -> Rc<ReassemblyQuota> {
        if let Some(account) = self.of_peers.get(gid).and_then(Weak::upgrade) {
            return account;
        }
        if self.of_peers.len() >= self.crowded {
            self.of_peers
                .retain(|_, account| account.strong_count() > 0);
            self.crowded = (2 * self.of_peers.len()).max(64);
        }
        let account = ReassemblyQuota::child_of(&self.whole, PEER_KEEP_BYTES);
        self.of_peers.insert(*gid, Rc::downgrade(&account));
        account
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_one_account_while_it_is_used() {
        let mut accounts = Accounts::default();
        let one = accounts.of_peer(&[1; 16]);
        assert!(Rc::ptr_eq(&one, &accounts.of_peer(&[1; 16])));
        assert!(!Rc::ptr_eq(&one, &accounts.of_peer(&[2; 16])));
        assert_eq!(
            (one.available(), accounts.whole().available()),
            (PEER_KEEP_BYTES, KEEP_BYTES)
        );
    }

    #[test]
    fn accounts_without_users_are_dropped() {
        let mut accounts = Accounts::default();
        let stays = accounts.of_peer(&[255; 16]);
        for n in 0..10_000u32 {
            let mut gid = [0; 16];
            gid[..4].copy_from_slice(&n.to_be_bytes());
            accounts.of_peer(&gid);
        }
        assert!(accounts.of_peers.len() <= 64);
        assert!(Rc::ptr_eq(&stays, &accounts.of_peer(&[255; 16])));
    }
}
