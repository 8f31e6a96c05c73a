// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What MODIFY_QP says of states: of the present one, rightly or wrongly, and of one that there is not.

use super::*;

#[test]
fn the_present_state_is_named_rightly_or_not_at_all() {
    for kind in KINDS {
        let mut b = Bench::new(kind);
        for &from in QpState::ALL {
            // With a state to go to, or with attributes alone.
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
                    // Without the bit nobody looks at it.
                    if named == 8 {
                        assert_eq!(b.attempt(from, state | must, attr), Ok(()), "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn there_is_no_other_state() {
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
