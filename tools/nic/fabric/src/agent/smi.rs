// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The subnet management interface (SMI): the next place of an SMP of a directed route, and its hop
//! pointer there (IBTA 14.2.2).

use crate::mad::{Fields, Mad, PATH_LEN, PERMISSIVE_LID};

/// The next place of an SMP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// To the subnet management agent of this node.
    Agent,
    /// To the subnet manager of this node.
    Manager,
    /// Out of this port.
    Port(u8),
    /// To this LID, in the LID-routed part of the route.
    Lid(u16),
    /// Nowhere: the route is invalid.
    Discard,
}

/// Moves the hop pointer of an SMP that arrived by port `ingress` of a node, and returns the next place
/// of the SMP.
pub fn arrive(mad: &mut Mad, is_switch: bool, ingress: u8) -> Step {
    if usize::from(mad.get(Mad::HOP_COUNT)) >= PATH_LEN {
        Step::Discard
    } else if mad.get(Mad::DIRECTION) {
        return_step(mad, is_switch)
    } else {
        request_step(mad, is_switch, ingress)
    }
}

/// A request of the subnet manager (IBTA 14.2.2, C14-9).
fn request_step(mad: &mut Mad, is_switch: bool, ingress: u8) -> Step {
    let (pointer, count) = (mad.get(Mad::HOP_POINTER), mad.get(Mad::HOP_COUNT));
    // The directed part begins here, after a LID-routed part.
    if pointer == 0 && count > 0 {
        if mad.get(Mad::DR_SLID) == PERMISSIVE_LID {
            return Step::Discard;
        }
        mad.set(Mad::HOP_POINTER, 1);
        return Step::Port(mad.initial_path(1));
    }
    if pointer < count {
        if !is_switch {
            return Step::Discard;
        }
        mad.set_return_path(pointer, ingress);
        mad.set(Mad::HOP_POINTER, pointer + 1);
        return Step::Port(mad.initial_path(pointer + 1));
    }
    // The directed part ends here.
    if pointer == count {
        if count > 0 {
            mad.set_return_path(pointer, ingress);
        }
        mad.set(Mad::HOP_POINTER, pointer + 1);
        return match mad.get(Mad::DR_DLID) {
            PERMISSIVE_LID => Step::Agent,
            lid if is_switch => Step::Lid(lid),
            _ => Step::Discard,
        };
    }
    match pointer == count + 1 {
        true => Step::Agent,
        false => Step::Discard,
    }
}

/// A response to the subnet manager (IBTA 14.2.2, C14-13).
fn return_step(mad: &mut Mad, is_switch: bool) -> Step {
    let (pointer, count) = (mad.get(Mad::HOP_POINTER), mad.get(Mad::HOP_COUNT));
    if count > 0 && pointer == count + 1 {
        mad.set(Mad::HOP_POINTER, pointer - 1);
        return Step::Port(mad.return_path(pointer - 1));
    }
    if (2..=count).contains(&pointer) {
        if !is_switch {
            return Step::Discard;
        }
        mad.set(Mad::HOP_POINTER, pointer - 1);
        return Step::Port(mad.return_path(pointer - 1));
    }
    match pointer {
        1 => {
            mad.set(Mad::HOP_POINTER, 0);
            match mad.get(Mad::DR_SLID) {
                PERMISSIVE_LID => Step::Manager,
                lid => Step::Lid(lid),
            }
        }
        0 => Step::Manager,
        _ => Step::Discard,
    }
}

/// Returns the place to which this node sends the response of its agent. The request came by port `ingress`
/// from `source_lid`.
pub fn answer(mad: &mut Mad, ingress: u8, source_lid: u16) -> Step {
    // The last part of the request's route was LID-routed, and so is the first of the response's.
    if mad.get(Mad::DR_DLID) != PERMISSIVE_LID {
        return Step::Lid(source_lid);
    }
    match return_step(mad, true) {
        Step::Manager => Step::Port(ingress),
        step => step,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mad::{attribute_id, class, method};

    /// A request with a hop pointer, for a path of ports.
    fn request(pointer: u8, path: &[u8]) -> Mad {
        let mut mad = Mad::smp(
            class::SUBNET_DIRECTED_ROUTE,
            method::GET,
            attribute_id::NODE_INFO,
            0,
        );
        mad.set_initial_path(path);
        mad.set(Mad::HOP_POINTER, pointer);
        mad
    }

    #[test]
    fn one_hop_to_a_switch_and_back() {
        let mut mad = request(1, &[1]);
        assert_eq!(arrive(&mut mad, true, 4), Step::Agent);
        assert_eq!((mad.get(Mad::HOP_POINTER), mad.return_path(1)), (2, 4));
        mad.make_response(0);
        assert_eq!(answer(&mut mad, 4, 0xffff), Step::Port(4));
        assert_eq!(mad.get(Mad::HOP_POINTER), 1);
        assert_eq!(arrive(&mut mad, false, 1), Step::Manager);
        assert_eq!(mad.get(Mad::HOP_POINTER), 0);
    }

    #[test]
    fn two_hops_to_an_adapter_and_back() {
        let mut mad = request(1, &[1, 7]);
        assert_eq!(arrive(&mut mad, true, 4), Step::Port(7));
        assert_eq!(mad.get(Mad::HOP_POINTER), 2);
        assert_eq!(arrive(&mut mad, false, 2), Step::Agent);
        mad.make_response(0);
        assert_eq!(answer(&mut mad, 2, 0xffff), Step::Port(2));
        assert_eq!(mad.get(Mad::HOP_POINTER), 2);
        assert_eq!(arrive(&mut mad, true, 7), Step::Port(4));
        assert_eq!(mad.get(Mad::HOP_POINTER), 1);
    }

    #[test]
    fn no_hop_is_answered_by_the_port_of_the_request() {
        let mut mad = request(0, &[]);
        assert_eq!(arrive(&mut mad, true, 4), Step::Agent);
        mad.make_response(0);
        assert_eq!(answer(&mut mad, 4, 0xffff), Step::Port(4));
    }

    #[test]
    fn an_adapter_is_no_intermediate_hop() {
        assert_eq!(arrive(&mut request(1, &[1, 2]), false, 1), Step::Discard);
        let mut back = request(2, &[1, 2]);
        back.make_response(0);
        assert_eq!(arrive(&mut back, false, 1), Step::Discard);
    }

    #[test]
    fn unreasonable_pointers_are_discarded() {
        assert_eq!(arrive(&mut request(0, &[1]), true, 1), Step::Discard);
        assert_eq!(arrive(&mut request(3, &[1]), true, 1), Step::Discard);
        assert_eq!(arrive(&mut request(255, &[1]), true, 1), Step::Discard);
        let mut far = request(64, &[1]);
        far.set(Mad::HOP_COUNT, 64);
        assert_eq!(arrive(&mut far, true, 1), Step::Discard);
    }

    #[test]
    fn a_lid_routed_part_comes_before_and_after() {
        let mut mad = request(0, &[3]);
        mad.set(Mad::DR_SLID, 9);
        assert_eq!(arrive(&mut mad, true, 1), Step::Port(3));
        assert_eq!(arrive(&mut mad, true, 5), Step::Agent);
        mad.make_response(0);
        assert_eq!(answer(&mut mad, 5, 0xffff), Step::Port(5));
        assert_eq!(arrive(&mut mad, true, 3), Step::Lid(9));

        let mut mad = request(1, &[3]);
        mad.set(Mad::DR_DLID, 12);
        assert_eq!(arrive(&mut mad, true, 5), Step::Lid(12));
        assert_eq!(arrive(&mut mad, false, 1), Step::Agent);
        mad.make_response(0);
        assert_eq!(answer(&mut mad, 1, 4), Step::Lid(4));
        assert_eq!(arrive(&mut mad, true, 2), Step::Port(5));
    }
}
