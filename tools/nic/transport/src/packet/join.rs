// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Joins consecutive packets of a message into a super-packet: the inverse of [`Packet::split`],
//! for a carrier that passes packets by reference.

use super::{Packet, PacketKind, Payload, SendTail};
use crate::psn;
use alloc::rc::Rc;

impl Packet {
    /// Appends the next packet of the same message if one super-packet can stand for both, and
    /// returns true then. `self` must not end the message or request an acknowledgement or an
    /// event, and each of its packets must have `mtu` bytes.
    pub fn join(&mut self, next: &Packet, mtu: u32) -> bool {
        let same = |packet: &Packet| {
            (
                packet.transport,
                packet.pkey,
                packet.dst_qpn,
                packet.src_qpn,
                packet.srqn,
            )
        };
        let goes_on = !self.last && !self.ack_req && !self.solicited && !next.first;
        let follows = psn::add(self.psn, self.psns) == next.psn;
        let is_full = self.psns.checked_mul(mtu) == Some(self.payload.len());
        let is_datagram = self.datagram.is_some() || next.datagram.is_some();
        if !goes_on || !follows || !is_full || is_datagram || same(self) != same(next) {
            return false;
        }
        let kind = match (self.kind, next.kind) {
            (PacketKind::Send(SendTail::None), PacketKind::Send(tail)) => PacketKind::Send(tail),
            (PacketKind::Write { reth, imm: None }, PacketKind::Write { reth: None, imm }) => {
                PacketKind::Write { reth, imm }
            }
            // The later AETH has the newer state of the responder.
            (PacketKind::ReadResponse(first), PacketKind::ReadResponse(last)) => {
                PacketKind::ReadResponse(last.or(first))
            }
            _ => return false,
        };
        if !self.payload.append(&next.payload) {
            return false;
        }
        self.kind = kind;
        self.psns = self.psns.saturating_add(next.psns);
        self.marked |= next.marked;
        (self.last, self.solicited, self.ack_req) = (next.last, next.solicited, next.ack_req);
        true
    }
}

impl Payload {
    /// Appends the bytes that follow in the same work request or region, and returns false if
    /// `next` does not follow.
    fn append(&mut self, next: &Payload) -> bool {
        match (self, next) {
            (
                Payload::Gather {
                    gather,
                    offset,
                    length,
                },
                Payload::Gather {
                    gather: next,
                    offset: at,
                    length: more,
                },
            ) => {
                let follows = offset.checked_add(*length) == Some(*at) && Rc::ptr_eq(gather, next);
                extend(length, *more, follows)
            }
            (
                Payload::Region {
                    lease: lender,
                    pd,
                    key,
                    addr,
                    length,
                    owner,
                },
                Payload::Region {
                    lease: next,
                    pd: its_pd,
                    key: its_key,
                    addr: at,
                    length: more,
                    owner: its_owner,
                },
            ) => {
                let is_same = (*pd, *key, *owner) == (*its_pd, *its_key, *its_owner);
                let follows = addr.wrapping_add(u64::from(*length)) == *at;
                let is_next = follows && is_same && Rc::ptr_eq(lender, next);
                extend(length, *more, is_next)
            }
            _ => false,
        }
    }
}

fn extend(length: &mut u32, more: u32, follows: bool) -> bool {
    let all = length.checked_add(more).filter(|_| follows);
    *length = all.unwrap_or(*length);
    all.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gather::Gather;
    use crate::packet::{Aeth, AethSyndrome, ReadLease, Reth, Transport};
    use alloc::format;
    use alloc::vec::Vec;

    const MTU: u32 = 1024;
    const RETH: Reth = Reth {
        addr: 0x1000,
        rkey: 7,
        length: 5000,
    };

    fn message(kind: PacketKind, payload: Payload) -> Packet {
        Packet {
            transport: Transport::Rc,
            kind,
            first: true,
            last: true,
            solicited: true,
            ack_req: true,
            pkey: 0xffff,
            dst_qpn: 3,
            src_qpn: 4,
            psn: 0xff_fffe,
            psns: 5,
            srqn: 0,
            datagram: None,
            marked: false,
            payload,
        }
    }

    fn gather() -> Payload {
        Payload::Gather {
            gather: Rc::new(Gather::default()),
            offset: 0,
            length: 5000,
        }
    }

    fn region() -> Payload {
        Payload::Region {
            lease: Rc::new(ReadLease::default()),
            pd: 1,
            key: 2,
            addr: u64::MAX - 1500,
            length: 5000,
            owner: 9,
        }
    }

    fn aeth(credits: u8) -> Aeth {
        Aeth {
            syndrome: AethSyndrome::Ack { credits },
            msn: 1,
        }
    }

    /// Returns all fields of a packet as text, since packets cannot be compared.
    fn text(packet: &Packet) -> alloc::string::String {
        format!("{packet:?}")
    }

    #[test]
    fn split_packets_join_to_the_original() {
        let write = |imm| PacketKind::Write {
            reth: Some(RETH),
            imm,
        };
        for whole in [
            message(PacketKind::Send(SendTail::None), gather()),
            message(PacketKind::Send(SendTail::Invalidate(5)), gather()),
            message(write(Some([1; 4])), gather()),
            message(write(None), gather()),
            message(PacketKind::ReadResponse(Some(aeth(3))), region()),
        ] {
            let mut parts = whole.clone().split(MTU);
            let mut joined = parts.next().unwrap();
            for part in parts {
                assert!(joined.join(&part, MTU), "{part:?}");
            }
            assert_eq!(text(&joined), text(&whole));
        }
    }

    #[test]
    fn packets_that_do_not_follow_are_not_joined() {
        let whole = message(PacketKind::Send(SendTail::None), gather());
        let parts: Vec<_> = whole.split(MTU).collect();
        let (front, next) = (&parts[0], &parts[1]);
        let refused = |front: &Packet, next: &Packet, mtu| {
            let mut packet = front.clone();
            let joined = packet.join(next, mtu);
            assert_eq!(text(&packet), text(front));
            !joined
        };
        assert!(!front.clone().join(&parts[2], MTU) && front.clone().join(next, MTU));
        // Another MTU, the reverse order, and the same packet again.
        assert!(refused(front, next, 2048) && refused(next, front, MTU));
        assert!(refused(front, front, MTU));
        let others: [fn(&mut Packet); 8] = [
            |p| p.psn += 1,
            |p| p.dst_qpn += 1,
            |p| p.src_qpn += 1,
            |p| p.pkey = 1,
            |p| p.first = true,
            |p| p.transport = Transport::Uc,
            |p| p.kind = PacketKind::Unknown(3),
            |p| p.payload = p.payload.slice(1, MTU - 1),
        ];
        for change in others {
            let mut other = next.clone();
            change(&mut other);
            assert!(refused(front, &other, MTU), "{other:?}");
        }
        let ends: [fn(&mut Packet); 3] = [
            |p| p.last = true,
            |p| p.ack_req = true,
            |p| p.solicited = true,
        ];
        for change in ends {
            let mut other = front.clone();
            change(&mut other);
            assert!(refused(&other, next, MTU), "{other:?}");
        }
        // A gather of another work request with the same fields.
        let other = message(PacketKind::Send(SendTail::None), gather());
        assert!(refused(front, &other.split(MTU).nth(1).unwrap(), MTU));
        // Each call of `response` makes another lender, as after a RESET of the responder.
        let response = || message(PacketKind::ReadResponse(Some(aeth(1))), region()).split(MTU);
        let second = response().nth(1).unwrap();
        assert!(refused(&response().next().unwrap(), &second, MTU));
    }

    #[test]
    fn a_joined_response_has_the_later_aeth() {
        let of = |credits| message(PacketKind::ReadResponse(Some(aeth(credits))), Payload::None);
        let parts: Vec<_> = message(PacketKind::ReadResponse(Some(aeth(1))), region())
            .split(2500)
            .collect();
        let mut joined = Packet {
            psns: 1,
            last: false,
            solicited: false,
            ack_req: false,
            payload: parts[0].payload.clone(),
            ..of(1)
        };
        let last = Packet {
            psn: 0xff_ffff,
            psns: 1,
            first: false,
            payload: joined.payload.slice(0, 0),
            ..of(2)
        };
        assert!(
            !joined.join(&last, 2500),
            "a packet without payload is not joined"
        );
        let last = Packet {
            payload: parts[1].payload.clone(),
            ..last
        };
        assert!(joined.join(&last, 2500));
        assert!(matches!(joined.kind, PacketKind::ReadResponse(Some(a)) if a == aeth(2)));
    }
}
