// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Attributes and operations that programs may request, and the users of a domain.

use crate::errno::Errno;
use crate::ffi::mock;
use crate::ffi::object::InDomain;
use crate::ffi::options::{check_cq, check_qp, function, offered, Function};
use crate::ffi::pabi::*;
use crate::use_count::UseCount;

#[test]
fn attributes_and_operations_that_are_not_supported_are_refused() {
    let mut attr = mock::cq_attr();
    assert_eq!(check_cq(&attr), Ok(()));
    // A field is ignored unless the mask names it.
    attr.flags = u32::MAX;
    assert_eq!(check_cq(&attr), Ok(()));
    attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
    assert_eq!(check_cq(&attr), Err(Errno::OPNOTSUPP));
    attr.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
    assert_eq!(check_cq(&attr), Ok(()));
    attr.flags |= IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    assert_eq!(check_cq(&attr), Ok(()));
    attr.comp_mask = 1 << 7;
    assert_eq!(check_cq(&attr), Err(Errno::OPNOTSUPP));
    attr.comp_mask = 0;
    attr.wc_flags = 1 << 40;
    assert_eq!(check_cq(&attr), Err(Errno::OPNOTSUPP));

    let mut attr = mock::qp_attr();
    attr.create_flags = u32::MAX;
    assert_eq!(check_qp(&attr), Ok(()));
    attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
    assert_eq!(check_qp(&attr), Err(Errno::OPNOTSUPP));
    attr.create_flags = 0;
    assert_eq!(check_qp(&attr), Ok(()));
    attr.comp_mask |= IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
    assert_eq!(check_qp(&attr), Ok(()));
    attr.max_tso_header = 14;
    assert_eq!(check_qp(&attr), Err(Errno::OPNOTSUPP));
    attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_RX_HASH;
    assert_eq!(check_qp(&attr), Err(Errno::OPNOTSUPP));

    for (operation, types) in [
        (
            IBV_QP_EX_WITH_SEND,
            &[IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD][..],
        ),
        (IBV_QP_EX_WITH_RDMA_WRITE, &[IBV_QPT_RC, IBV_QPT_UC]),
        (IBV_QP_EX_WITH_RDMA_READ, &[IBV_QPT_RC]),
        (IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, &[IBV_QPT_RC]),
        (IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, &[IBV_QPT_RC]),
        (IBV_QP_EX_WITH_SEND_WITH_INV, &[IBV_QPT_RC]),
        (IBV_QP_EX_WITH_ATOMIC_WRITE, &[IBV_QPT_RC]),
        (IBV_QP_EX_WITH_FLUSH, &[IBV_QPT_RC]),
        (IBV_QP_EX_WITH_TSO, &[]),
    ] {
        for qp_type in [IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD] {
            assert_eq!(
                offered(operation.into(), qp_type).is_ok(),
                types.contains(&qp_type),
                "{operation:#x} of {qp_type}"
            );
        }
    }
}

#[test]
fn functions_for_placement_are_null_unless_the_program_has_requested_them() {
    let has = |wanted: u32, qp_type, operation| {
        function(offered(wanted.into(), qp_type).unwrap(), operation)
    };
    for (qp_type, operation, expected) in [
        (IBV_QPT_RC, IBV_QP_EX_WITH_SEND, Function::Works),
        (IBV_QPT_RC, IBV_QP_EX_WITH_RDMA_READ, Function::Works),
        (IBV_QPT_UC, IBV_QP_EX_WITH_RDMA_READ, Function::Refuses),
        (IBV_QPT_RC, IBV_QP_EX_WITH_FLUSH, Function::Missing),
        (IBV_QPT_RC, IBV_QP_EX_WITH_ATOMIC_WRITE, Function::Missing),
        (IBV_QPT_UD, IBV_QP_EX_WITH_FLUSH, Function::Missing),
    ] {
        let found = has(IBV_QP_EX_WITH_SEND, qp_type, operation);
        assert_eq!(found, expected, "{operation:#x} of {qp_type}");
    }
    for operation in [IBV_QP_EX_WITH_FLUSH, IBV_QP_EX_WITH_ATOMIC_WRITE] {
        assert_eq!(has(operation, IBV_QPT_RC, operation), Function::Works);
    }
}

#[test]
fn a_domain_is_in_use_while_it_has_users() {
    let domain = UseCount::default();
    assert!(!domain.is_in_use());
    let (first, second) = (domain.begin(), domain.begin());
    let member = InDomain::new(7, Some(first));
    assert_eq!(*member, 7);
    drop(second);
    assert!(domain.is_in_use());
    drop(member);
    assert!(!domain.is_in_use());
    drop(InDomain::new(8, None));
}
