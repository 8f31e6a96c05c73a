// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The events of a device.

use crate::objects::qp::Env;
use crate::observation::counters::Counters;
use verbena_abi::cmd::CmdStatus;
use verbena_abi::cqe::{Cqe, Tail};
use verbena_abi::eqe::EventType;
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::SendWqe;
use verbena_faults::{Direction, PacketAtHook, Rule, RuleHook};
use verbena_transport::host::{ViolatedKey, WorkCompletion};
use verbena_transport::Packet;

/// An event of a device.
#[derive(Debug)]
pub enum DeviceEvent<'a> {
    /// The daemon has made a call that does not access guest memory.
    Called(Call<'a>),
    /// The device is in the state after power-on again.
    Reset,
    /// The device has accepted a command.
    CommandAccepted,
    /// The device writes the reply to a command.
    CommandDone {
        /// Opcode of the command, which may be unknown.
        opcode: u16,
        /// Status of the reply.
        status: CmdStatus,
        /// Syndrome of the reply; 0 for success.
        syndrome: u32,
    },
    /// An asynchronous event of the device is reported to the driver.
    Async {
        /// Type of the event.
        kind: EventType,
        /// Number of the object that the event is about.
        number: u32,
        /// Cause of the event.
        cause: Option<Syndrome>,
    },
    /// An interrupt is raised.
    InterruptRaised,
    /// A packet is dropped because no queue pair can take it.
    PacketDropped(DropReason),
    /// A packet is sent to a multicast group.
    MulticastSent,
    /// The port was up and is down now.
    PortDown,
    /// The rules have decided about a packet at a queue pair.
    PacketJudged {
        /// The packet, as rules see it.
        passing: &'a PacketAtHook,
        /// True if a rule has fired on the packet.
        fired: bool,
    },
    /// The rules on local packets have decided about a packet.
    LocalPacketJudged {
        /// The queue pair that sent the packet, if it still exists.
        env: Option<&'a Env>,
        /// The packet.
        packet: &'a Packet,
        /// True if the rule of `verbena-nic --drop` loses the packet.
        lost: bool,
    },
    /// A rule has fired. [`EventContext`](super::EventContext) has the rule.
    RuleFired(FiredOn),
    /// Rules were added to the device.
    RulesAdded {
        /// The added rules.
        rules: &'a [Rule],
        /// True if the rules existed before the flight recorder.
        late: bool,
    },
    /// An event of a queue pair.
    Qp(&'a Env, QpEvent<'a>),
}

/// An event of a queue pair.
#[derive(Debug)]
pub enum QpEvent<'a> {
    /// The queue pair was created.
    Created,
    /// The queue pair is destroyed.
    Destroyed {
        /// The last values of its counters.
        counters: &'a Counters,
    },
    /// The device takes a work request from the send queue.
    SendTaken,
    /// The device takes a receive from the receive queue or the SRQ.
    ReceiveTaken,
    /// The device begins with a work request.
    WorkBegun {
        /// Index of the work request in the send queue.
        index: u32,
        /// The work request.
        wqe: &'a SendWqe,
        /// True if a rule makes the work request fail.
        by_rule: bool,
    },
    /// A work request or a receive completes.
    Completed {
        /// Number of the CQ.
        cqn: u32,
        /// The completion, as the transport reports it.
        completion: &'a WorkCompletion,
        /// The entry without its tail.
        cqe: &'a Cqe,
        /// The tail of the entry.
        tail: Tail,
        /// True for a receive.
        recv: bool,
        /// True if the CQ had room for the entry.
        written: bool,
    },
    /// The queue pair sends a packet.
    PacketSent(&'a Packet),
    /// The queue pair receives a packet.
    PacketReceived {
        /// The packet.
        packet: &'a Packet,
        /// True if the packet was sent to a multicast group.
        multicast: bool,
    },
    /// A packet is dropped that does not come from the peer of the queue pair.
    PacketRefused,
    /// A packet is dropped because of a key.
    KeyViolated {
        /// The key.
        key: ViolatedKey,
        /// The packet.
        packet: &'a Packet,
    },
    /// The state of the queue pair differs from the state in its context.
    StateChanged(&'a verbena_transport::Qp),
}

/// A call of the daemon that does not access guest memory.
#[derive(Debug)]
pub enum Call<'a> {
    /// The daemon resets the device.
    Reset,
    /// The doorbell of a command slot was rung.
    RingCommand {
        /// Number of the slot.
        slot: u32,
    },
    /// The page of a doorbell area was written.
    RingArea {
        /// Number of the area.
        uar: u32,
    },
    /// Further writes to the doorbell BAR are counted.
    CountDoorbells {
        /// Number of these writes.
        more: u64,
    },
    /// The daemon takes the vectors to be raised.
    TakeInterrupts {
        /// One bit for each vector.
        vectors: u32,
    },
    /// The daemon takes a frame for the uplink.
    TakeFrame(&'a [u8]),
    /// A rule is removed.
    RemoveRule {
        /// Name of the rule.
        name: &'a str,
    },
    /// The rules of an owner are removed.
    RemoveRulesOf {
        /// Number of the owner.
        owner: u64,
    },
    /// All rules are removed.
    ClearRules,
}

/// Reason for which a packet is dropped.
#[derive(Clone, Copy, Debug)]
pub enum DropReason {
    /// There is no queue pair of its destination QPN.
    NoQp,
    /// The frame cannot be parsed.
    Malformed,
    /// The ICRC is wrong.
    Icrc,
    /// The packet is larger than the MTU of the port.
    OverMtu,
}

/// The thing on which a rule has fired.
#[derive(Clone, Copy, Debug)]
pub struct FiredOn {
    /// Kind of the thing.
    pub on: RuleHook,
    /// Direction of a packet.
    pub direction: Direction,
    /// Opcode of a packet, a work request or a command; type of an event; vector of an interrupt.
    pub opcode: u16,
    /// QPN and owner value of a queue pair, or zeros.
    pub qp: (u32, u64),
    /// PSN of a packet, and its position among the packets of the queue pair, or zeros.
    pub psn: (u32, u32),
}

impl FiredOn {
    /// Returns the description of a packet.
    pub fn packet(passing: &PacketAtHook) -> Self {
        Self {
            on: RuleHook::Packet,
            direction: passing.direction,
            opcode: passing.opcode.into(),
            qp: (passing.qp.qpn, passing.qp.created),
            psn: (passing.psn, position(passing)),
        }
    }

    /// Returns the description of something that is not a packet. `env` is the queue pair, if the
    /// thing belongs to one.
    pub fn other(on: RuleHook, opcode: u16, env: Option<&Env>) -> Self {
        Self {
            on,
            direction: Direction::Out,
            opcode,
            qp: env.map_or((0, 0), |env| (env.qpn(), env.owner)),
            psn: (0, 0),
        }
    }
}

/// Returns the position of a packet among the packets of its queue pair and direction, from 1.
pub(super) fn position(passing: &PacketAtHook) -> u32 {
    verbena_transport::psn::ahead(passing.psn, passing.first_psn) + 1
}
