// SPDX-License-Identifier: GPL-2.0 OR MIT

//! One entry of the flight recorder, and its conversion to and from 64-bit words.

use verbena_faults::{Direction, On};

/// Length of an entry in 64-bit words.
pub const ENTRY_WORDS: usize = 6;

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
    /// A packet passed the rules, or the random drop ([`RANDOM_DROP`](crate::RANDOM_DROP)). `nth` is
    /// its PSN counted from the first PSN of the QP in that sequence, which is 1.
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
        on: On,
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

/// The fields of an entry in the order in which its words hold them.
#[derive(Clone, Copy, Default)]
struct RawEntry {
    kind: u8,
    a: u8,
    b: u16,
    n: [u32; 7],
    g: u64,
}

const WORK: u8 = 1;
const SENT: u8 = 2;
const RECEIVED: u8 = 3;
const PASSED: u8 = 4;
const COMPLETED: u8 = 5;
const EVENT: u8 = 6;
const COMMAND: u8 = 7;
const CREATED: u8 = 8;
const STATE: u8 = 9;
const DESTROYED: u8 = 10;
const RULE: u8 = 11;
const FIRED: u8 = 12;
const RESET: u8 = 13;

fn direction_to_bits(direction: Direction) -> u16 {
    match direction {
        Direction::Out => 0,
        Direction::In => 1,
    }
}

fn direction_from_bits(bits: u16) -> Direction {
    if bits & 1 == 0 {
        Direction::Out
    } else {
        Direction::In
    }
}

fn on_to_bits(on: On) -> u8 {
    match on {
        On::Packet | On::Local | On::Uplink => 0,
        On::Send => 1,
        On::Command => 2,
        On::Time => 3,
        On::Event => 4,
        On::Interrupt => 5,
    }
}

fn on_from_bits(bits: u8) -> Option<On> {
    Some(match bits {
        0 => On::Packet,
        1 => On::Send,
        2 => On::Command,
        3 => On::Time,
        4 => On::Event,
        5 => On::Interrupt,
        _ => return None,
    })
}

impl PacketEntry {
    fn pack(&self, kind: u8) -> RawEntry {
        RawEntry {
            kind,
            a: self.opcode,
            b: self.flags.into(),
            n: [
                self.qpn,
                self.peer,
                self.psn,
                self.count,
                self.detail,
                self.bytes,
                0,
            ],
            g: self.address,
        }
    }

    fn unpack(raw: &RawEntry) -> Self {
        let [qpn, peer, psn, count, detail, bytes, _] = raw.n;
        Self {
            qpn,
            peer,
            opcode: raw.a,
            flags: raw.b as u8,
            psn,
            count,
            bytes,
            detail,
            address: raw.g,
        }
    }
}

impl EntryKind {
    #[inline]
    fn pack(&self) -> RawEntry {
        let raw = |kind, a, b, n, g| RawEntry { kind, a, b, n, g };
        match *self {
            Self::Work {
                qpn,
                owner,
                index,
                opcode,
                wr_id,
            } => raw(WORK, opcode, 0, [qpn, owner, index, 0, 0, 0, 0], wr_id),
            Self::Sent(packet) => packet.pack(SENT),
            Self::Received(packet) => packet.pack(RECEIVED),
            Self::Passed {
                direction,
                flags,
                opcode,
                qpn,
                owner,
                psn,
                nth,
            } => {
                let b = direction_to_bits(direction) | u16::from(flags) << 8;
                raw(PASSED, opcode, b, [qpn, owner, psn, nth, 0, 0, 0], 0)
            }
            Self::Completed {
                qpn,
                cqn,
                index,
                bytes,
                status,
                flags,
                syndrome,
                wr_id,
            } => {
                let n = [qpn, cqn, index, bytes, flags.into(), 0, 0];
                raw(COMPLETED, status, syndrome, n, wr_id)
            }
            Self::Event {
                event_type,
                number,
                syndrome,
            } => raw(EVENT, event_type, syndrome, [number, 0, 0, 0, 0, 0, 0], 0),
            Self::Command {
                opcode,
                status,
                syndrome,
                port_up,
            } => {
                let port = port_up.map_or(0, |up| 1 + u32::from(up));
                raw(
                    COMMAND,
                    status,
                    opcode,
                    [syndrome.into(), port, 0, 0, 0, 0, 0],
                    0,
                )
            }
            Self::Created {
                qpn,
                owner,
                qp_type,
                send_cqn,
                recv_cqn,
            } => raw(
                CREATED,
                qp_type,
                0,
                [qpn, owner, send_cqn, recv_cqn, 0, 0, 0],
                0,
            ),
            Self::State {
                qpn,
                owner,
                peer,
                is_local,
                from,
                to,
                syndrome,
                next_psn,
                una_psn,
                expected_psn,
            } => {
                let place = is_local.map_or(0, |is_local| 1 + u32::from(!is_local));
                let n = [qpn, owner, peer, next_psn, una_psn, expected_psn, place];
                raw(STATE, to, syndrome, n, from.into())
            }
            Self::Destroyed { qpn, owner } => raw(DESTROYED, 0, 0, [qpn, owner, 0, 0, 0, 0, 0], 0),
            Self::Rule { rule, late } => raw(RULE, late.into(), rule, [0; 7], 0),
            Self::Fired {
                rule,
                on,
                direction,
                opcode,
                qpn,
                owner,
                base,
                psn,
                nth,
            } => {
                let g = u64::from(opcode) | u64::from(direction_to_bits(direction)) << 16;
                raw(
                    FIRED,
                    on_to_bits(on),
                    rule,
                    [qpn, owner, base, psn, nth, 0, 0],
                    g,
                )
            }
            Self::Reset => raw(RESET, 0, 0, [0; 7], 0),
        }
    }

    fn unpack(raw: &RawEntry) -> Option<Self> {
        let (a, b, g) = (raw.a, raw.b, raw.g);
        let n = raw.n;
        Some(match raw.kind {
            WORK => Self::Work {
                qpn: n[0],
                owner: n[1],
                index: n[2],
                opcode: a,
                wr_id: g,
            },
            SENT => Self::Sent(PacketEntry::unpack(raw)),
            RECEIVED => Self::Received(PacketEntry::unpack(raw)),
            PASSED => Self::Passed {
                direction: direction_from_bits(b),
                flags: (b >> 8) as u8,
                opcode: a,
                qpn: n[0],
                owner: n[1],
                psn: n[2],
                nth: n[3],
            },
            COMPLETED => Self::Completed {
                qpn: n[0],
                cqn: n[1],
                index: n[2],
                bytes: n[3],
                status: a,
                flags: n[4] as u8,
                syndrome: b,
                wr_id: g,
            },
            EVENT => Self::Event {
                event_type: a,
                number: n[0],
                syndrome: b,
            },
            COMMAND => Self::Command {
                opcode: b,
                status: a,
                syndrome: n[0] as u16,
                port_up: [None, Some(false), Some(true)][(n[1] as usize).min(2)],
            },
            CREATED => Self::Created {
                qpn: n[0],
                owner: n[1],
                qp_type: a,
                send_cqn: n[2],
                recv_cqn: n[3],
            },
            STATE => Self::State {
                qpn: n[0],
                owner: n[1],
                peer: n[2],
                is_local: [None, Some(true), Some(false)][(n[6] as usize).min(2)],
                from: g as u8,
                to: a,
                syndrome: b,
                next_psn: n[3],
                una_psn: n[4],
                expected_psn: n[5],
            },
            DESTROYED => Self::Destroyed {
                qpn: n[0],
                owner: n[1],
            },
            RULE => Self::Rule {
                rule: b,
                late: a != 0,
            },
            FIRED => Self::Fired {
                rule: b,
                on: on_from_bits(a)?,
                direction: direction_from_bits((g >> 16) as u16),
                opcode: g as u16,
                qpn: n[0],
                owner: n[1],
                base: n[2],
                psn: n[3],
                nth: n[4],
            },
            RESET => Self::Reset,
            _ => return None,
        })
    }
}

impl FlightEntry {
    /// Packs the entry into its words.
    #[inline]
    pub fn pack(&self) -> [u64; ENTRY_WORDS] {
        let raw = self.kind.pack();
        let [n0, n1, n2, n3, n4, n5, n6] = raw.n.map(u64::from);
        [
            self.time_ns,
            u64::from(raw.kind) | u64::from(raw.a) << 8 | u64::from(raw.b) << 16 | n0 << 32,
            n1 | n2 << 32,
            n3 | n4 << 32,
            n5 | n6 << 32,
            raw.g,
        ]
    }

    /// Unpacks an entry. None if the words have a kind that is not known.
    pub fn unpack(words: &[u64; ENTRY_WORDS]) -> Option<Self> {
        let [time_ns, head, w2, w3, w4, g] = *words;
        let high = |word: u64| (word >> 32) as u32;
        let raw = RawEntry {
            kind: head as u8,
            a: (head >> 8) as u8,
            b: (head >> 16) as u16,
            n: [
                high(head),
                w2 as u32,
                high(w2),
                w3 as u32,
                high(w3),
                w4 as u32,
                high(w4),
            ],
            g,
        };
        let kind = EntryKind::unpack(&raw)?;
        Some(Self { time_ns, kind })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::flags::{FIRST, LAST, LOST, RECV, WRITTEN};

    /// Returns one entry of each kind, with different values in all fields.
    pub(crate) fn entries_of_each_kind() -> Vec<EntryKind> {
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
                on: On::Send,
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

    #[test]
    fn each_kind_survives_its_words() {
        for (time_ns, kind) in (0..).zip(entries_of_each_kind()) {
            let entry = FlightEntry { time_ns, kind };
            assert_eq!(FlightEntry::unpack(&entry.pack()), Some(entry));
        }
    }

    #[test]
    fn words_of_an_unknown_kind_are_refused() {
        for kind in [0, RESET + 1, 255] {
            assert_eq!(FlightEntry::unpack(&[1, kind.into(), 0, 0, 0, 0]), None);
        }
        assert!(FlightEntry::unpack(&[1, u64::from(FIRED) | 9 << 8, 0, 0, 0, 0]).is_none());
    }
}
