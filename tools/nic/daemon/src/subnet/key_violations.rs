// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Violations of P_Keys and Q_Keys at a guest's device, as the agents of its port count them.

use super::Subnet;
use std::time::Duration;
use verbena_device::KeyViolations;
use verbena_fabric::{self as fabric, ViolatedKey};
use verbena_transport::host;

impl Subnet {
    /// Reports packets that a guest's device has dropped because of a key to the agents of its port.
    pub fn report_key_violations(&mut self, vm: u8, violations: &KeyViolations, now: Duration) {
        let (Some(port), Some(violations)) = (self.port_id(vm), converted(violations)) else {
            return;
        };
        self.fabric.report_key_violations(port, &violations, now);
        self.take_outputs();
    }
}

/// Returns violations as the subnet takes them; none if the packets had no LIDs.
fn converted(violations: &KeyViolations) -> Option<fabric::KeyViolations> {
    let last = &violations.last;
    let route = last.path.local_route?;
    Some(fabric::KeyViolations {
        kind: match violations.kind {
            host::ViolatedKey::PKey => ViolatedKey::PKey,
            host::ViolatedKey::QKey => ViolatedKey::QKey,
        },
        count: violations.count,
        last: fabric::KeyViolation {
            key: last.key,
            source_lid: route.slid,
            destination_lid: route.dlid,
            sl: last.path.sl,
            source_qp: last.source_qpn,
            destination_qp: last.dest_qpn,
            gids: route.has_grh.then_some([last.path.sgid, last.path.dgid]),
        },
    })
}
