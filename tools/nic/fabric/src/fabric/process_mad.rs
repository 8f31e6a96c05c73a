// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The second entrance to an adapter's agents: the driver has the device process a MAD that the
//! kernel made, or that QP0 or QP1 received.

use super::Fabric;
use crate::agent::pma;
use crate::agent::sma::{Origin, Outcome};
use crate::mad::{attribute_id, class, method, Fields, Mad};
use crate::{PortId, Time};

/// The result of a MAD of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessMad {
    /// The MAD is not for the device. The kernel hands it to its clients.
    Pass,
    /// The device answers.
    Reply(Box<Mad>),
    /// The MAD is for the device, and has no answer.
    Consumed,
}

impl Fabric {
    /// Processes a MAD at the port of an adapter. `check_m_key` is false if the driver says so, or if
    /// the MAD did not come from the subnet. For a guest that must not manage the subnet, the port
    /// executes only Gets, and does not show its M_Key.
    pub fn process_mad(
        &mut self,
        port: PortId,
        mad: &Mad,
        check_m_key: bool,
        now: Time,
    ) -> ProcessMad {
        let Some(node) = self
            .nodes
            .get_mut(port.node)
            .filter(|node| !node.is_switch())
        else {
            return ProcessMad::Pass;
        };
        if node.port(port.port).is_none() {
            return ProcessMad::Pass;
        }
        let may_manage = node.guest_may_manage;
        let asked = mad.get(Mad::METHOD);
        let is_request = asked == method::GET || asked == method::SET;
        match mad.get(Mad::CLASS) {
            class::PERFORMANCE if is_request => pma::answer(node, mad)
                .map_or(ProcessMad::Pass, |reply| ProcessMad::Reply(Box::new(reply))),
            class::SUBNET_LID_ROUTED | class::SUBNET_DIRECTED_ROUTE
                if asked == method::TRAP_REPRESS
                    || is_request && mad.get(Mad::ATTRIBUTE_ID) != attribute_id::SM_INFO =>
            {
                if !may_manage && asked != method::GET {
                    self.refused_smps += 1;
                    return ProcessMad::Consumed;
                }
                let origin = if check_m_key {
                    Origin::Subnet
                } else {
                    Origin::Driver
                };
                let result = match self.ask_sma(port, mad, origin, now) {
                    Outcome::Answer(response, _) => ProcessMad::Reply(response),
                    Outcome::Consumed => ProcessMad::Consumed,
                    Outcome::NotForAgent => ProcessMad::Pass,
                };
                self.poll(now);
                result
            }
            _ => ProcessMad::Pass,
        }
    }
}
