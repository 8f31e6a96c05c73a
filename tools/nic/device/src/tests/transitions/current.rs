// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The states in a MODIFY_QP: the current state, right or wrong, and states that do not exist.

use super::*;

#[test]
fn a_wrong_current_state_is_refused() {
    for kind in KINDS {
        let mut b = Bench::new(kind);
        for &from in QpState::ALL {
            // The request has a new state, or attributes alone.
            let targets = QpState::ALL.iter().map(|to| (*to, STATE));
            for (to, state) in targets.chain([(from, 0)]) {
                let Some((must, may)) = row(kind, from, to) else {
                    continue;
                };
                if may & CUR_STATE == 0 || !b.bring(from) {
                    continue;
                }
                for named in 0..=8 {
                    let mut attr = Bench::attr(to);
                    attr.cur_qp_state = named;
                    let expected = if named == from.to_raw() {
                        Ok(())
                    } else {
                        TRANSITION
                    };
                    let told = b.attempt(from, state | CUR_STATE | must, attr);
                    let what = format!("{kind:?} {from:?} to {to:?} ({state}), named {named}");
                    assert_eq!(told, expected, "{what}");
                    // Without the mask bit the device ignores the current state.
                    if named == 8 {
                        assert_eq!(b.attempt(from, state | must, attr), Ok(()), "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn states_that_do_not_exist_are_refused() {
    for kind in KINDS {
        let mut b = Bench::new(kind);
        for &from in QpState::ALL {
            for state in [7, 8, 0x80, 0xff] {
                if !b.bring(from) {
                    continue;
                }
                let mut attr = Bench::attr(from);
                attr.qp_state = state;
                for mask in [STATE, STATE | QKEY, STATE | ACCESS_FLAGS] {
                    assert_eq!(b.attempt(from, mask, attr), ATTRIBUTE, "{from:?} {state}");
                }
            }
        }
    }
}
