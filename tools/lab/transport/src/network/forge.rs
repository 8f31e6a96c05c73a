// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A stranger on the wire: packets with a correct ICRC and wrong fields.

use super::event_queue::PacketArrival;
use super::SimNetwork;
use crate::Rng;
use verbena_transport::frame;
use verbena_transport::packet::{Aeth, AethSyndrome, NakCode, PacketKind, Reth, SendTail};

const NAKS: [NakCode; 5] = [
    NakCode::Sequence,
    NakCode::InvalidRequest,
    NakCode::RemoteAccess,
    NakCode::RemoteOperational,
    NakCode::InvalidRd,
];

fn aeth(rng: &mut Rng) -> Aeth {
    let syndrome = match rng.below(4) {
        0 => AethSyndrome::Rnr {
            timer: rng.below(32) as u8,
        },
        1 => AethSyndrome::Nak(NAKS[rng.below(5) as usize]),
        _ => AethSyndrome::Ack {
            credits: rng.below(32) as u8,
        },
    };
    Aeth {
        syndrome,
        msn: rng.below(1 << 24) as u32,
    }
}

impl SimNetwork {
    /// Changes a packet before its ICRC is computed.
    pub(super) fn forge(&mut self, arrival: &mut PacketArrival) {
        let parsed = arrival.frame.as_ref().map(|bytes| frame::parse(bytes));
        let Some(Ok(parsed)) = parsed else {
            return;
        };
        arrival.frame = None;
        let keys = self.model.ops.len() as u64 * 3 + 4;
        let rng = &mut self.events.rng;
        let mut packet = parsed.packet;
        let reth = match packet.kind {
            PacketKind::Write {
                reth: Some(reth), ..
            }
            | PacketKind::ReadRequest(reth) => reth,
            _ => {
                let number = 1 + rng.below(keys);
                Reth {
                    addr: number << 32 | 0x40,
                    rkey: (number as u32) << 8 | 0x5a,
                    length: rng.below(3000) as u32,
                }
            }
        };
        for _ in 0..1 + rng.below(2) {
            match rng.below(12) {
                0 => packet.psn = rng.below(1 << 24) as u32,
                1 | 2 => {
                    let near = packet.psn.wrapping_add(rng.below(17) as u32);
                    packet.psn = near.wrapping_sub(8) & 0xff_ffff;
                }
                3 => packet.first = !packet.first,
                4 => packet.last = !packet.last,
                5 => {
                    let count = rng.below(u64::from(packet.payload.len()) + 1) as u32;
                    packet.payload = packet.payload.slice(0, count);
                }
                6 => packet.ack_req = !packet.ack_req,
                7 if rng.chance(50) => packet.pkey ^= 0x8000,
                7 => packet.pkey = rng.next() as u16,
                8 => packet.kind = PacketKind::Ack(aeth(rng)),
                9 => {
                    let value = rng.next();
                    packet.kind = match rng.below(3) {
                        0 => PacketKind::AtomicResponse(aeth(rng), value),
                        _ => PacketKind::ReadResponse(rng.chance(70).then(|| aeth(rng))),
                    };
                }
                10 => {
                    let length = match rng.below(4) {
                        0 => u32::MAX,
                        1 => 1 << 31,
                        2 => reth.length + 1,
                        _ => reth.length,
                    };
                    let reth = Reth { length, ..reth };
                    packet.kind = match rng.below(3) {
                        0 => PacketKind::ReadRequest(reth),
                        _ => PacketKind::Write {
                            reth: rng.chance(80).then_some(reth),
                            imm: rng.chance(30).then_some([1; 4]),
                        },
                    };
                }
                _ => {
                    packet.kind = PacketKind::Send(match rng.below(3) {
                        0 => SendTail::None,
                        1 => SendTail::Imm([2; 4]),
                        _ => SendTail::Invalidate(reth.rkey),
                    });
                }
            }
        }
        arrival.packet = packet;
    }
}
