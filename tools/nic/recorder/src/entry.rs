// SPDX-License-Identifier: GPL-2.0 OR MIT

//! One entry of the flight recorder.

mod words;

use verbena_faults::{Direction, RuleHook};
pub use words::ENTRY_WORDS;

/// Rule number that stands for a rule about which nothing else is known.
pub const NO_RULE: u16 = u16::MAX;

/// An event of the device, with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlightEntry {
    /// Device clock in nanoseconds at the beginning of the slice.
    pub time_ns: u64,
    /// The event, with the fields of its kind.
    pub kind: EntryKind,
}

/// An event by its kind. `owner` is the ordinal of the QP among all QPs that were created since the
/// reset of the device; unlike a QPN it is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// The device began with a send work request, whose WQE has this `opcode`.
    #[allow(missing_docs)]
    Work {
        qpn: u32,
        owner: u32,
        index: u32,
        opcode: u8,
        wr_id: u64,
    },
    /// A QP sent a packet, or `count` packets in a row.
    Sent(PacketEntry),
    /// A QP received a packet, or `count` packets in a row.
    Received(PacketEntry),
    /// A packet passed the rules, or the random drop of `verbena-nic --drop`
    /// ([`RANDOM_DROP`](crate::RANDOM_DROP)). `nth` is its PSN counted from the first PSN of the QP
    /// in that sequence, which is 1.
    #[allow(missing_docs)]
    Passed {
        direction: Direction,
        flags: u8,
        opcode: u8,
        qpn: u32,
        owner: u32,
        psn: u32,
        nth: u32,
    },
    /// A work request completed.
    #[allow(missing_docs)]
    Completed {
        qpn: u32,
        cqn: u32,
        index: u32,
        bytes: u32,
        status: u8,
        flags: u8,
        syndrome: u16,
        wr_id: u64,
    },
    /// The device raised an asynchronous event.
    #[allow(missing_docs)]
    Event {
        event_type: u8,
        number: u32,
        syndrome: u16,
    },
    /// The device answered a command.
    #[allow(missing_docs)]
    Command {
        opcode: u16,
        status: u8,
        syndrome: u16,
        /// State of the port after SET_PORT. Older recordings do not have it.
        port_up: Option<bool>,
    },
    /// The driver created a QP.
    #[allow(missing_docs)]
    Created {
        qpn: u32,
        owner: u32,
        qp_type: u8,
        send_cqn: u32,
        recv_cqn: u32,
    },
    /// A QP changed its state; `syndrome` is the cause if the new state is an error. `is_local` is
    /// true if the peer belongs to the same device, and None if that is not known.
    #[allow(missing_docs)]
    State {
        qpn: u32,
        owner: u32,
        peer: u32,
        is_local: Option<bool>,
        from: u8,
        to: u8,
        syndrome: u16,
        next_psn: u32,
        una_psn: u32,
        expected_psn: u32,
    },
    /// The driver destroyed a QP.
    #[allow(missing_docs)]
    Destroyed { qpn: u32, owner: u32 },
    /// A rule was added, or was present when the recording began (`late`).
    #[allow(missing_docs)]
    Rule { rule: u16, late: bool },
    /// A rule fired. `base` is the number of QPs created before the rule was added. `opcode` is
    /// that of the packet, of the WQE for a send, or of the command.
    #[allow(missing_docs)]
    Fired {
        rule: u16,
        on: RuleHook,
        direction: Direction,
        opcode: u16,
        qpn: u32,
        owner: u32,
        base: u32,
        psn: u32,
        nth: u32,
    },
    /// The device was reset, so that all numbers begin again.
    Reset,
}

/// A packet, or `count` packets of one message in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketEntry {
    /// QPN of the QP that sent or received the packet.
    pub qpn: u32,
    /// QPN of the other QP, where it is known.
    pub peer: u32,
    /// BTH opcode of the first packet.
    pub opcode: u8,
    /// The flags [`FIRST`](crate::FIRST) and [`LAST`](crate::LAST).
    pub flags: u8,
    /// PSN of the first packet.
    pub psn: u32,
    /// Number of packets, or of PSNs for a READ request.
    pub count: u32,
    /// Payload of all packets, in bytes.
    pub bytes: u32,
    /// AETH: syndrome in bits 31:24, MSN in the others. RETH and AtomicETH: the R_Key.
    pub detail: u32,
    /// Virtual address in the RETH or AtomicETH.
    pub address: u64,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::flags::{FIRST, LAST, LOST, RECV, WRITTEN};

    /// Returns one entry of each kind, with different values in all fields, by the numbers of the
    /// kinds.
    pub(crate) fn entries_of_each_kind() -> Vec<EntryKind> {
        [
            entries_of_packets(),
            entries_of_device(),
            entries_of_qps_and_rules(),
        ]
        .concat()
    }

    fn entries_of_packets() -> Vec<EntryKind> {
        let packet = PacketEntry {
            qpn: 1,
            peer: 2,
            opcode: 3,
            flags: FIRST | LAST,
            psn: 0xff_ffff,
            count: 6,
            bytes: 1 << 31,
            detail: 0x6200_0007,
            address: u64::MAX - 5,
        };
        vec![
            EntryKind::Work {
                qpn: 1,
                owner: 2,
                index: 3,
                opcode: 4,
                wr_id: u64::MAX,
            },
            EntryKind::Sent(packet),
            EntryKind::Received(packet),
            EntryKind::Passed {
                direction: Direction::In,
                flags: LOST,
                opcode: 17,
                qpn: 1,
                owner: 2,
                psn: 3,
                nth: 4,
            },
        ]
    }

    fn entries_of_device() -> Vec<EntryKind> {
        vec![
            EntryKind::Completed {
                qpn: 1,
                cqn: 2,
                index: 3,
                bytes: 4,
                status: 5,
                flags: RECV | WRITTEN,
                syndrome: 0x401,
                wr_id: 8,
            },
            EntryKind::Event {
                event_type: 1,
                number: 2,
                syndrome: 0x3001,
            },
            EntryKind::Command {
                opcode: 0x1234,
                status: 5,
                syndrome: 0x4001,
                port_up: Some(true),
            },
        ]
    }

    fn entries_of_qps_and_rules() -> Vec<EntryKind> {
        vec![
            EntryKind::Created {
                qpn: 1,
                owner: 2,
                qp_type: 3,
                send_cqn: 4,
                recv_cqn: 5,
            },
            EntryKind::State {
                qpn: 1,
                owner: 2,
                peer: 3,
                is_local: Some(false),
                from: 4,
                to: 6,
                syndrome: 7,
                next_psn: 8,
                una_psn: 9,
                expected_psn: 10,
            },
            EntryKind::Destroyed { qpn: 1, owner: 2 },
            EntryKind::Rule {
                rule: 7,
                late: true,
            },
            EntryKind::Fired {
                rule: 1,
                on: RuleHook::Send,
                direction: Direction::In,
                opcode: 0xfffe,
                qpn: 4,
                owner: 5,
                base: 6,
                psn: 7,
                nth: 8,
            },
            EntryKind::Reset,
        ]
    }
}
