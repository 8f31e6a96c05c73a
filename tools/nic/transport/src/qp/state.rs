// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The permitted state transitions (IBTA 10.3.1, figure 124), and the ranges of attributes.

use super::{Attr, QpType};
use crate::host::Syndrome;
use crate::psn::PSN_COUNT;
pub use verbena_abi::ctx::QpState;

/// True if the driver may move a queue pair from one state to the other. The queue pair itself also
/// enters SQE, and ERR from any state that processes something.
pub fn is_allowed(qp_type: QpType, from: QpState, to: QpState) -> bool {
    use QpState::*;
    match (from, to) {
        (_, Reset) => true,
        (Reset, Init) => true,
        (Reset, _) => false,
        (_, Err) => true,
        (Init, Init | Rtr) | (Rtr, Rts) | (Rts, Rts | Sqd) | (Sqd, Rts | Sqd) => true,
        (Sqe, Rts) => matches!(qp_type, QpType::Uc | QpType::Ud | QpType::Gsi | QpType::Smi),
        _ => false,
    }
}

/// Checks that each attribute is within its range.
pub fn check_attr(attr: &Attr) -> Result<(), Syndrome> {
    let fits = matches!(attr.path_mtu, 256 | 512 | 1024 | 2048 | 4096)
        && attr.dest_qpn < PSN_COUNT
        && attr.sq_psn < PSN_COUNT
        && attr.rq_psn < PSN_COUNT
        && attr.min_rnr_timer < 32
        && attr.timeout < 32
        && attr.retry_cnt < 8
        && attr.rnr_retry < 8;
    if fits {
        Ok(())
    } else {
        Err(Syndrome::CmdAttribute)
    }
}

/// Checks that the path MTU does not change after RTR was entered. It is set on the way to RTR
/// (IBTA 11.2.5.2), and from then on outstanding work is counted in packets of that size.
pub fn check_mtu(from: QpState, present: &Attr, attr: &Attr) -> Result<(), Syndrome> {
    let is_open = matches!(from, QpState::Reset | QpState::Init | QpState::Err);
    if is_open || attr.path_mtu == present.path_mtu {
        Ok(())
    } else {
        Err(Syndrome::CmdAttribute)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use QpState::*;

    const ALL: [QpState; 7] = [Reset, Init, Rtr, Rts, Sqd, Sqe, Err];

    #[test]
    fn reset_is_left_only_to_init() {
        for to in ALL {
            assert_eq!(
                is_allowed(QpType::Rc, Reset, to),
                matches!(to, Reset | Init),
                "{to:?}"
            );
        }
    }

    #[test]
    fn err_is_left_only_to_reset() {
        for to in ALL {
            assert_eq!(
                is_allowed(QpType::Rc, Err, to),
                matches!(to, Reset | Err),
                "{to:?}"
            );
        }
    }

    #[test]
    fn every_live_state_can_go_to_err_and_reset() {
        for from in [Init, Rtr, Rts, Sqd, Sqe] {
            assert!(is_allowed(QpType::Rc, from, Err));
            assert!(is_allowed(QpType::Rc, from, Reset));
        }
    }

    #[test]
    fn no_state_is_skipped() {
        assert!(!is_allowed(QpType::Rc, Init, Rts));
        assert!(!is_allowed(QpType::Rc, Rts, Rtr));
        assert!(!is_allowed(QpType::Rc, Rtr, Sqd));
        assert!(!is_allowed(QpType::Rc, Rtr, Rtr));
        assert!(!is_allowed(QpType::Rc, Rts, Sqe));
    }

    #[test]
    fn sqe_is_of_unreliable_services() {
        assert!(is_allowed(QpType::Ud, Sqe, Rts));
        assert!(is_allowed(QpType::Uc, Sqe, Rts));
        assert!(!is_allowed(QpType::Rc, Sqe, Rts));
    }

    #[test]
    fn attributes_have_ranges() {
        let good = Attr::default();
        assert_eq!(check_attr(&good), Ok(()));
        for bad in [
            Attr {
                path_mtu: 1500,
                ..good
            },
            Attr {
                sq_psn: 1 << 24,
                ..good
            },
            Attr {
                rq_psn: 1 << 24,
                ..good
            },
            Attr {
                dest_qpn: 1 << 24,
                ..good
            },
            Attr {
                min_rnr_timer: 32,
                ..good
            },
            Attr {
                timeout: 32,
                ..good
            },
            Attr {
                retry_cnt: 8,
                ..good
            },
            Attr {
                rnr_retry: 8,
                ..good
            },
        ] {
            assert_eq!(
                check_attr(&bad),
                Result::Err(Syndrome::CmdAttribute),
                "{bad:?}"
            );
        }
    }
}
