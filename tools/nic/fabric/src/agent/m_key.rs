// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The M_Key of a port: which SMPs the port refuses, and the lease that limits the time for which a
//! lost subnet manager keeps others out (IBTA 14.2.4).

use crate::mad::attribute::PortInfo;
use crate::mad::{method, Fields, Mad};
use crate::port::Port;
use crate::Time;
use std::time::Duration;

/// The result of the check of an SMP's M_Key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyCheck {
    /// The key is right, or the port has none.
    Right,
    /// The key is wrong, but this Get is allowed without the right one.
    Readable,
    /// The request needs no key, and does not learn it.
    Hidden,
    /// The SMP is discarded.
    Refused,
}

/// Checks the M_Key of a request for a port, and counts a violation.
pub fn check(port: &mut Port, request: &Mad, now: Time) -> KeyCheck {
    end_lease(port, now);
    let key = port.info.get(PortInfo::M_KEY);
    if key == 0 || request.get(Mad::M_KEY) == key {
        port.lease_end = None;
        return KeyCheck::Right;
    }
    if request.get(Mad::METHOD) == method::GET && port.info.get(PortInfo::M_KEY_PROTECT_BITS) < 2 {
        return KeyCheck::Readable;
    }
    let violations = port.info.get(PortInfo::M_KEY_VIOLATIONS);
    port.info
        .set(PortInfo::M_KEY_VIOLATIONS, violations.saturating_add(1));
    let lease = port.info.get(PortInfo::M_KEY_LEASE_PERIOD);
    if port.lease_end.is_none() && lease != 0 {
        port.lease_end = Some(now.saturating_add(Duration::from_secs(u64::from(lease))));
    }
    KeyCheck::Refused
}

/// Ends a lease whose time is over: another subnet manager may read the M_Key then.
fn end_lease(port: &mut Port, now: Time) {
    if port.lease_end.is_some_and(|end| end <= now) {
        port.lease_end = None;
        port.info.set(PortInfo::M_KEY_PROTECT_BITS, 0);
    }
}

/// Returns the M_Key that an answer shows: 0 if the request has no right to know the key.
pub fn shown(port: &Port, check: KeyCheck) -> u64 {
    match check {
        KeyCheck::Hidden => 0,
        KeyCheck::Readable if port.info.get(PortInfo::M_KEY_PROTECT_BITS) != 0 => 0,
        _ => port.info.get(PortInfo::M_KEY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mad::{attribute_id, class};
    use crate::port::PortKind;

    fn port(protect: u8, lease: u16) -> Port {
        let mut port = Port::new(PortKind::Adapter, 1, 1);
        port.info.set(PortInfo::M_KEY, 7);
        port.info.set(PortInfo::M_KEY_PROTECT_BITS, protect);
        port.info.set(PortInfo::M_KEY_LEASE_PERIOD, lease);
        port
    }

    fn smp(method: u8, key: u64) -> Mad {
        Mad::smp(class::SUBNET_LID_ROUTED, method, attribute_id::PORT_INFO, 0).with(Mad::M_KEY, key)
    }

    #[test]
    fn protect_bits_decide_about_reading() {
        use KeyCheck::*;
        for (protect, expected, key) in [
            (0, Readable, 7),
            (1, Readable, 0),
            (2, Refused, 7),
            (3, Refused, 7),
        ] {
            let mut port = port(protect, 0);
            let check = check(&mut port, &smp(method::GET, 8), Time::ZERO);
            assert_eq!(
                (check, shown(&port, check)),
                (expected, key),
                "protect bits {protect}"
            );
        }
        for method in [method::SET, method::TRAP_REPRESS] {
            let mut port = port(0, 0);
            assert_eq!(check(&mut port, &smp(method, 8), Time::ZERO), Refused);
            assert_eq!(check(&mut port, &smp(method, 7), Time::ZERO), Right);
            assert_eq!(port.info.get(PortInfo::M_KEY_VIOLATIONS), 1);
        }
    }

    #[test]
    fn a_lease_ends_without_the_right_key() {
        let mut port = port(3, 10);
        let at = |s| Duration::from_secs(s);
        assert_eq!(
            check(&mut port, &smp(method::GET, 8), at(1)),
            KeyCheck::Refused
        );
        assert_eq!(
            check(&mut port, &smp(method::GET, 8), at(10)),
            KeyCheck::Refused
        );
        assert_eq!(
            check(&mut port, &smp(method::GET, 8), at(11)),
            KeyCheck::Readable
        );
    }

    #[test]
    fn the_right_key_renews_the_lease() {
        let mut port = port(2, 10);
        let at = |s| Duration::from_secs(s);
        assert_eq!(
            check(&mut port, &smp(method::SET, 8), at(1)),
            KeyCheck::Refused
        );
        assert_eq!(
            check(&mut port, &smp(method::GET, 7), at(9)),
            KeyCheck::Right
        );
        assert_eq!(
            check(&mut port, &smp(method::GET, 8), at(12)),
            KeyCheck::Refused
        );
    }
}
