// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Loss of packets between QPs of the device by rules, of which `verbena-nic --drop` is one.

use crate::device::Device;
use crate::objects::fault_injector::{passing, passing_of_none};
use crate::observation::event::{DeviceEvent, FiredOn};
use verbena_faults::{Direction, Rule, RuleSet, LOSS_OPTION};
use verbena_transport::wire::bth::MULTICAST_QPN;
use verbena_transport::Packet;

impl Device {
    /// Adds the rule of `verbena-nic --drop` to a new device.
    pub(super) fn add_loss(&mut self) {
        let config = self.shared.config();
        if config.drop_percent == 0 {
            return;
        }
        let set = RuleSet {
            version: verbena_faults::VERSION,
            seed: config.seed,
            rule: vec![Rule::of_loss(config.drop_percent)],
        };
        let faults = self.shared.faults.get_or_insert_default();
        if faults.table.add(&set, None, 0, 0).is_ok() {
            self.shared.report(DeviceEvent::RulesAdded {
                rules: &set.rule,
                late: false,
            });
        }
    }

    /// True if the device has the rule of `verbena-nic --drop`.
    pub(super) fn has_loss(&self) -> bool {
        let faults = self.shared.faults.as_ref();
        faults.is_some_and(|faults| faults.table.has_name(LOSS_OPTION))
    }

    /// True if the device has rules, or effects of rules, other than the one that it began with.
    pub(super) fn has_added_rules(&self) -> bool {
        let own = usize::from(self.shared.config().drop_percent != 0);
        let faults = self.shared.faults.as_ref();
        faults.is_some_and(|faults| faults.table.added_count() > own || !faults.is_quiet())
    }

    /// True if a rule on packets between QPs of the device loses a packet. The flight recorder
    /// names the rule of `verbena-nic --drop` by a flag of the packet, and other rules as those on
    /// packets.
    #[inline]
    pub(super) fn is_lost(&mut self, packet: &Packet) -> bool {
        let faults = self.shared.faults.as_ref();
        faults.is_some_and(|faults| faults.table.has_local()) && self.judge_local(packet)
    }

    #[cold]
    fn judge_local(&mut self, packet: &Packet) -> bool {
        let now = self.shared.clock.now();
        let (Some(faults), qp) = (&mut self.shared.faults, self.qps.get(packet.src_qpn)) else {
            return false;
        };
        let passing = match qp {
            Some(qp) => passing(&qp.env, Direction::Out, packet),
            None => passing_of_none(packet),
        };
        let lost = faults.table.on_local_packet(now, &passing);
        let is_option = faults
            .table
            .last_fired()
            .is_some_and(|(rule, _)| rule.name == LOSS_OPTION);
        let env = qp.map(|qp| &qp.env);
        // The recording has no packets to groups, of which each member gets a copy.
        if packet.dst_qpn != MULTICAST_QPN {
            self.shared.report(DeviceEvent::LocalPacketJudged {
                env,
                packet,
                lost: lost && is_option,
            });
        }
        if lost && !is_option {
            let fired = FiredOn {
                direction: Direction::Out,
                ..FiredOn::packet(&passing)
            };
            self.shared.report(DeviceEvent::RuleFired(fired));
        }
        lost
    }
}
