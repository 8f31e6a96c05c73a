// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The 48 bytes of an entry: the fields of each kind, and their places in the 64-bit words.

use super::{EntryKind, FlightEntry, PacketEntry};
use verbena_faults::{Direction, RuleHook};

/// Length of an entry in 64-bit words.
pub const ENTRY_WORDS: usize = 6;

/// The slots of an entry in the order in which its words hold them.
#[derive(Clone, Copy, Default)]
struct RawEntry {
    kind: u8,
    a: u8,
    b: u16,
    n: [u32; 7],
    g: u64,
}

impl RawEntry {
    #[inline]
    fn of(kind: u8) -> Self {
        Self {
            kind,
            ..Self::default()
        }
    }

    #[inline]
    fn a(self, a: u8) -> Self {
        Self { a, ..self }
    }

    #[inline]
    fn b(self, b: u16) -> Self {
        Self { b, ..self }
    }

    /// Sets the first slots of `n`.
    #[inline]
    fn n<const N: usize>(mut self, n: [u32; N]) -> Self {
        for (slot, value) in self.n.iter_mut().zip(n) {
            *slot = value;
        }
        self
    }

    #[inline]
    fn g(self, g: u64) -> Self {
        Self { g, ..self }
    }
}

/// A value that a slot of type `S` holds.
trait EntrySlot<S>: Copy {
    fn to_slot(self) -> S;
    /// None if the slot has a value that is not known.
    fn from_slot(slot: S) -> Option<Self>;
}

impl<T: Copy> EntrySlot<T> for T {
    #[inline]
    fn to_slot(self) -> T {
        self
    }

    fn from_slot(slot: T) -> Option<Self> {
        Some(slot)
    }
}

macro_rules! numbers {
    ($($value:ty as $slot:ty),+) => {$(
        impl EntrySlot<$slot> for $value {
            #[inline]
            fn to_slot(self) -> $slot {
                self.into()
            }

            fn from_slot(slot: $slot) -> Option<Self> {
                Some(slot as Self)
            }
        }
    )+};
}
numbers!(u8 as u32, u16 as u32, u8 as u64);

impl EntrySlot<u8> for bool {
    #[inline]
    fn to_slot(self) -> u8 {
        self.into()
    }

    fn from_slot(slot: u8) -> Option<Self> {
        Some(slot != 0)
    }
}

impl EntrySlot<u16> for Direction {
    #[inline]
    fn to_slot(self) -> u16 {
        match self {
            Self::Out => 0,
            Self::In => 1,
        }
    }

    fn from_slot(slot: u16) -> Option<Self> {
        Some(if slot & 1 == 0 { Self::Out } else { Self::In })
    }
}

impl EntrySlot<u8> for RuleHook {
    #[inline]
    fn to_slot(self) -> u8 {
        match self {
            Self::Packet | Self::Local | Self::Uplink => 0,
            Self::Send => 1,
            Self::Command => 2,
            Self::Time => 3,
            Self::Event => 4,
            Self::Interrupt => 5,
        }
    }

    fn from_slot(slot: u8) -> Option<Self> {
        Some(match slot {
            0 => Self::Packet,
            1 => Self::Send,
            2 => Self::Command,
            3 => Self::Time,
            4 => Self::Event,
            5 => Self::Interrupt,
            _ => return None,
        })
    }
}

/// Direction and flags of a packet.
impl EntrySlot<u16> for (Direction, u8) {
    #[inline]
    fn to_slot(self) -> u16 {
        let direction: u16 = self.0.to_slot();
        direction | u16::from(self.1) << 8
    }

    fn from_slot(slot: u16) -> Option<Self> {
        Some((Direction::from_slot(slot)?, (slot >> 8) as u8))
    }
}

/// Opcode and direction of the event on which a rule fired.
impl EntrySlot<u64> for (u16, Direction) {
    #[inline]
    fn to_slot(self) -> u64 {
        let direction: u16 = self.1.to_slot();
        u64::from(self.0) | u64::from(direction) << 16
    }

    fn from_slot(slot: u64) -> Option<Self> {
        Some((slot as u16, Direction::from_slot((slot >> 16) as u16)?))
    }
}

/// 0 for None, 1 for false, 2 for true.
impl EntrySlot<u32> for Option<bool> {
    #[inline]
    fn to_slot(self) -> u32 {
        self.map_or(0, |value| 1 + u32::from(value))
    }

    fn from_slot(slot: u32) -> Option<Self> {
        Some([None, Some(false), Some(true)][(slot as usize).min(2)])
    }
}

/// The slot for `is_local`: 0 for None, 1 for true, 2 for false.
struct IsLocal;

impl IsLocal {
    #[inline]
    fn to_slot(is_local: Option<bool>) -> u32 {
        is_local.map(|is_local| !is_local).to_slot()
    }

    fn from_slot(slot: u32) -> Option<Option<bool>> {
        let is_remote = <Option<bool>>::from_slot(slot)?;
        Some(is_remote.map(|is_remote| !is_remote))
    }
}

const SENT: u8 = 2;
const RECEIVED: u8 = 3;

impl PacketEntry {
    fn pack(&self, kind: u8) -> RawEntry {
        let n = [
            self.qpn,
            self.peer,
            self.psn,
            self.count,
            self.detail,
            self.bytes,
        ];
        let raw = RawEntry::of(kind).a(self.opcode).b(self.flags.into());
        raw.n(n).g(self.address)
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

macro_rules! to_slot {
    ($field:ident) => {
        EntrySlot::to_slot($field)
    };
    ($field:ident as $slot:ident) => {
        $slot::to_slot($field)
    };
}

macro_rules! from_slot {
    ($value:expr) => {
        EntrySlot::from_slot($value)?
    };
    ($value:expr, $slot:ident) => {
        $slot::from_slot($value)?
    };
}

/// Makes the conversions from a table: for each kind its number, its fields, and the slots that
/// hold the fields. Other slots are 0.
macro_rules! layout {
    ($(
        $number:literal $name:ident { $($field:ident),* }
        $(a $a:tt)? $(b $b:tt)? $(n [$($n:ident $(as $slot:ident)?),+])? $(g $g:tt)?;
    )+) => {
        impl EntryKind {
            #[inline]
            fn pack(&self) -> RawEntry {
                match *self {
                    Self::Sent(packet) => packet.pack(SENT),
                    Self::Received(packet) => packet.pack(RECEIVED),
                    $(Self::$name { $($field),* } => RawEntry::of($number)
                        $(.a(EntrySlot::to_slot($a)))?
                        $(.b(EntrySlot::to_slot($b)))?
                        $(.n([$(to_slot!($n $(as $slot)?)),+]))?
                        $(.g(EntrySlot::to_slot($g)))?,)+
                }
            }

            fn unpack(raw: &RawEntry) -> Option<Self> {
                Some(match raw.kind {
                    SENT => Self::Sent(PacketEntry::unpack(raw)),
                    RECEIVED => Self::Received(PacketEntry::unpack(raw)),
                    $($number => {
                        $(let $a = EntrySlot::from_slot(raw.a)?;)?
                        $(let $b = EntrySlot::from_slot(raw.b)?;)?
                        $(
                            let mut n = raw.n.into_iter();
                            $(let $n = from_slot!(n.next()? $(, $slot)?);)+
                        )?
                        $(let $g = EntrySlot::from_slot(raw.g)?;)?
                        Self::$name { $($field),* }
                    })+
                    _ => return None,
                })
            }
        }
    };
}

layout! {
    1 Work { qpn, owner, index, opcode, wr_id }
        a opcode n [qpn, owner, index] g wr_id;
    4 Passed { direction, flags, opcode, qpn, owner, psn, nth }
        a opcode b (direction, flags) n [qpn, owner, psn, nth];
    5 Completed { qpn, cqn, index, bytes, status, flags, syndrome, wr_id }
        a status b syndrome n [qpn, cqn, index, bytes, flags] g wr_id;
    6 Event { event_type, number, syndrome }
        a event_type b syndrome n [number];
    7 Command { opcode, status, syndrome, port_up }
        a status b opcode n [syndrome, port_up];
    8 Created { qpn, owner, qp_type, send_cqn, recv_cqn }
        a qp_type n [qpn, owner, send_cqn, recv_cqn];
    9 State { qpn, owner, peer, is_local, from, to, syndrome, next_psn, una_psn, expected_psn }
        a to b syndrome n [qpn, owner, peer, next_psn, una_psn, expected_psn, is_local as IsLocal] g from;
    10 Destroyed { qpn, owner }
        n [qpn, owner];
    11 Rule { rule, late }
        a late b rule;
    12 Fired { rule, on, direction, opcode, qpn, owner, base, psn, nth }
        a on b rule n [qpn, owner, base, psn, nth] g (opcode, direction);
    13 Reset {};
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
mod tests {
    use super::super::tests::entries_of_each_kind;
    use super::*;

    #[test]
    fn each_kind_has_its_words() {
        let words: [[u64; ENTRY_WORDS - 1]; 13] = [
            [0x1_0000_0401, 0x3_0000_0002, 0, 0, u64::MAX],
            [
                0x1_0003_0302,
                0xff_ffff_0000_0002,
                0x6200_0007_0000_0006,
                1 << 31,
                u64::MAX - 5,
            ],
            [
                0x1_0003_0303,
                0xff_ffff_0000_0002,
                0x6200_0007_0000_0006,
                1 << 31,
                u64::MAX - 5,
            ],
            [0x1_0401_1104, 0x3_0000_0002, 4, 0, 0],
            [0x1_0401_0505, 0x3_0000_0002, 0x3_0000_0004, 0, 8],
            [0x2_3001_0106, 0, 0, 0, 0],
            [0x4001_1234_0507, 2, 0, 0, 0],
            [0x1_0000_0308, 0x4_0000_0002, 5, 0, 0],
            [
                0x1_0007_0609,
                0x3_0000_0002,
                0x9_0000_0008,
                0x2_0000_000a,
                4,
            ],
            [0x1_0000_000a, 2, 0, 0, 0],
            [0x7_010b, 0, 0, 0, 0],
            [0x4_0001_010c, 0x6_0000_0005, 0x8_0000_0007, 0, 0x1_fffe],
            [13, 0, 0, 0, 0],
        ];
        let kinds = entries_of_each_kind();
        assert_eq!(kinds.len(), words.len());
        for (time_ns, (kind, words)) in (0..).zip(kinds.into_iter().zip(words)) {
            let entry = FlightEntry { time_ns, kind };
            let packed = entry.pack();
            assert_eq!((packed[0], &packed[1..]), (time_ns, &words[..]), "{kind:?}");
            assert_eq!(FlightEntry::unpack(&packed), Some(entry));
        }
    }

    #[test]
    fn optional_fields_are_unpacked_with_each_value() {
        for value in [None, Some(false), Some(true)] {
            let command = EntryKind::Command {
                opcode: 1,
                status: 0,
                syndrome: 0,
                port_up: value,
            };
            let mut state = EntryKind::unpack(&RawEntry::of(9)).unwrap();
            if let EntryKind::State { is_local, .. } = &mut state {
                *is_local = value;
            }
            for kind in [command, state] {
                assert_eq!(EntryKind::unpack(&kind.pack()), Some(kind));
            }
        }
    }

    #[test]
    fn words_of_an_unknown_kind_are_refused() {
        for kind in [0, 14, 255] {
            assert_eq!(FlightEntry::unpack(&[1, kind, 0, 0, 0, 0]), None);
        }
        let fired_on_an_unknown_event = 12 | 9 << 8;
        assert!(FlightEntry::unpack(&[1, fired_on_an_unknown_event, 0, 0, 0, 0]).is_none());
    }
}
