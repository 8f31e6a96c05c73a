// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The checks of each use of a key: key, protection domain, rights, bounds and privilege, for local
//! and remote keys.

use super::*;
use crate::config::LOCAL_DMA_LKEY;
use crate::mock::flat;
use crate::objects::mr::resolve;
use verbena_abi::cmd::*;
use verbena_abi::ctx::{access, mr_flags};
use verbena_abi::syndrome::Syndrome::{self, *};
use verbena_abi::wqe::{flush_level, flush_placement};
use verbena_transport::host::{KeyAccess, KeyUse};
use verbena_transport::packet::Feth;

const USES: [(KeyAccess, u32); 6] = [
    (KeyAccess::LocalRead, 0),
    (KeyAccess::LocalWrite, access::LOCAL_WRITE),
    (KeyAccess::RemoteRead, access::REMOTE_READ),
    (KeyAccess::RemoteWrite, access::REMOTE_WRITE),
    (KeyAccess::RemoteAtomic, access::REMOTE_ATOMIC),
    (KeyAccess::RemoteFlush(RANGE), access::FLUSH_GLOBAL),
];

const RANGE: Feth = Feth {
    placement: flush_placement::GLOBAL,
    level: flush_level::RANGE,
};

const KEY: u32 = 0x4301;
const IOVA: u64 = 0x7000_0000;
const LENGTH: u64 = 4096;

#[test]
fn each_use_of_a_key_is_checked_against_its_region() {
    let all = access::ALL;
    for (kind, needs) in USES {
        for flags in [0, mr_flags::PRIVILEGED] {
            for rights in [all, all & !needs] {
                let mut d = Driver::new();
                let pages = flat(d.alloc(LENGTH));
                d.must(&CreateMr {
                    key: KEY.into(),
                    pdn: 7.into(),
                    access: rights.into(),
                    flags: flags.into(),
                    iova: IOVA.into(),
                    length: LENGTH.into(),
                    pages,
                    ..Default::default()
                });
                let good = KeyUse {
                    pd: 7,
                    owner: 5,
                    privileged: true,
                    key: KEY,
                    addr: IOVA,
                    length: LENGTH,
                    access: kind,
                };
                let told = |change: &dyn Fn(&mut KeyUse)| {
                    let mut key = good;
                    change(&mut key);
                    resolve(&d.device.shared.mrs, &key).map(|_| ()).err()
                };
                let local = kind.is_local();
                let names = |of_local: Syndrome, of_remote: Syndrome| {
                    Some(if local { of_local } else { of_remote })
                };
                let what = format!("{kind:?}, flags {flags}, rights {rights:#x}");
                let (unknown, pd) = (names(LkeyUnknown, RkeyUnknown), names(LkeyPd, RkeyPd));
                for key in [KEY ^ 1, KEY ^ 0x100, KEY | 1 << 31, 0] {
                    assert_eq!(told(&|u| u.key = key), unknown, "{what}");
                }
                for other in [0, 6, 8, 7 | 1 << 16] {
                    assert_eq!(told(&|u| u.pd = other), pd, "{what}");
                }
                let denied = names(LkeyAccess, RkeyAccess);
                if rights & needs != needs {
                    assert_eq!(told(&|_| ()), denied, "{what}");
                    continue;
                }
                assert_eq!(told(&|_| ()), None, "{what}");
                // Peers may use a privileged region, and so may the privileged queue pairs of this
                // device.
                let expected = if local && flags != 0 { denied } else { None };
                assert_eq!(told(&|u| u.privileged = false), expected, "{what}");
                let bounds = names(LkeyBounds, RkeyBounds);
                for (addr, length, expected) in [
                    (IOVA, 1, None),
                    (IOVA + LENGTH - 1, 1, None),
                    (IOVA + LENGTH - 1, 2, bounds),
                    (IOVA + LENGTH, 1, bounds),
                    (IOVA, LENGTH + 1, bounds),
                    (IOVA - 1, 1, bounds),
                    (IOVA - 1, LENGTH, bounds),
                    (0, 1, bounds),
                    (u64::MAX, 1, bounds),
                    (IOVA + 1, u64::MAX, bounds),
                    (IOVA, u64::MAX - IOVA + 2, bounds),
                ] {
                    let told = told(&|u| (u.addr, u.length) = (addr, length));
                    assert_eq!(told, expected, "{what}: {addr:#x} {length:#x}");
                }
                // The key of all memory is for local accesses of privileged queue pairs only.
                for privileged in [false, true] {
                    let told = told(&|u| {
                        (u.key, u.privileged, u.addr) = (LOCAL_DMA_LKEY, privileged, u64::MAX);
                    });
                    let expected = if local && privileged { None } else { unknown };
                    assert_eq!(told, expected, "{what}, {privileged}");
                }
            }
        }
    }
}

#[test]
fn a_flush_of_a_whole_region_has_no_address() {
    let mut d = Driver::new();
    let pages = flat(d.alloc(LENGTH));
    d.must(&CreateMr {
        key: KEY.into(),
        pdn: 7.into(),
        access: access::FLUSH_GLOBAL.into(),
        iova: IOVA.into(),
        length: LENGTH.into(),
        pages,
        ..Default::default()
    });
    let whole = |placement| {
        let level = flush_level::REGION;
        let key = KeyUse {
            pd: 7,
            owner: 5,
            privileged: false,
            key: KEY,
            addr: 3,
            length: u64::MAX,
            access: KeyAccess::RemoteFlush(Feth { placement, level }),
        };
        resolve(&d.device.shared.mrs, &key).map(|_| ()).err()
    };
    assert_eq!(whole(flush_placement::GLOBAL), None);
    assert_eq!(whole(flush_placement::PERSISTENT), Some(RkeyAccess));
    assert_eq!(whole(flush_placement::ALL), Some(RkeyAccess));
}
