// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A responder whose requests the test makes one by one, since no requester would send most of
//! them.

use verbena_lab_transport::{ArenaBuffer, LinkMode, PairSetup, PairSide::*, QpPair};
use verbena_transport::host::AtomicOp;
use verbena_transport::packet::{
    Aeth, AethSyndrome, NakCode, Packet, PacketKind, Payload, Reth, SendTail, Transport,
};
use verbena_transport::QpType;

/// First PSN that the responder expects.
pub const FIRST: u32 = 0xff_fffe;

/// Returns PSN number `n`, counted from [`FIRST`].
pub fn psn(n: u32) -> u32 {
    verbena_transport::psn::add(FIRST, n)
}

/// Returns a pair in which A is the responder. B drops the answers, because it has no requests
/// outstanding.
pub fn responder(setup: PairSetup) -> QpPair {
    responder_by(LinkMode::Split, setup)
}

/// Returns the same pair with a mode of transport.
pub fn responder_by(mode: LinkMode, setup: PairSetup) -> QpPair {
    let mut p = QpPair::new(PairSetup {
        mode,
        psns: [0, FIRST],
        ..setup
    });
    p.link.record = true;
    p
}

/// Returns a responder of a reliable connection.
pub fn rc() -> QpPair {
    responder(PairSetup::default())
}

/// Delivers a request to the responder, without time for the responder to send READ responses.
pub fn put(p: &mut QpPair, packet: Packet) {
    p.deliver(A, packet);
}

/// Returns the packets that the responder has sent since the last call, after it has sent all that
/// are pending.
pub fn answers(p: &mut QpPair) -> Vec<Packet> {
    p.run_until(p.now_ns);
    let log = std::mem::take(&mut p.link.log);
    log.into_iter()
        .filter(|(side, _)| *side == A)
        .map(|(_, packet)| packet)
        .collect()
}

/// Delivers a request and returns the answers.
pub fn exchange(p: &mut QpPair, packet: Packet) -> Vec<Packet> {
    put(p, packet);
    answers(p)
}

/// Returns a responder with this number of receives of 8 bytes.
pub fn receiving(receives: u64) -> QpPair {
    let mut p = rc();
    for wr_id in 0..receives {
        let buffer = p.zeros(A, 8);
        p.post_recv(A, wr_id, &[buffer.sge()]);
    }
    p
}

/// Returns the `wr_id`s of the receives that were completed since the last call.
pub fn completed(p: &mut QpPair) -> Vec<u64> {
    p.statuses(A).iter().map(|(wr_id, _)| *wr_id).collect()
}

/// Delivers SEND number `n`, of 8 bytes with that value, and returns the answers.
pub fn send(p: &mut QpPair, n: u32) -> Vec<Packet> {
    exchange(p, request(SEND, n, &[n as u8; 8]))
}

/// The same without AckReq.
pub fn send_quietly(p: &mut QpPair, n: u32) -> Vec<Packet> {
    exchange(p, quiet(request(SEND, n, &[n as u8; 8])))
}

/// Returns the PSNs and syndromes of acknowledgements. Any other packet fails the test.
pub fn acks(packets: &[Packet]) -> Vec<(u32, AethSyndrome)> {
    packets
        .iter()
        .map(|packet| match packet.kind {
            PacketKind::Ack(aeth) => (packet.psn, aeth.syndrome),
            kind => panic!("{kind:?} is not an acknowledgement"),
        })
        .collect()
}

/// True if the packets are one positive acknowledgement of PSN number `n`.
pub fn is_ack(packets: &[Packet], n: u32) -> bool {
    matches!(acks(packets)[..], [(at, AethSyndrome::Ack { .. })] if at == psn(n))
}

/// True if the packets are two positive acknowledgements of PSN number `n`. A responder sends two
/// for a copy of the end of a message.
pub fn is_ack_twice(packets: &[Packet], n: u32) -> bool {
    packets.len() == 2
        && packets
            .iter()
            .all(|packet| is_ack(std::slice::from_ref(packet), n))
}

/// True if the packets are one NAK of PSN number `n`.
pub fn is_nak(packets: &[Packet], n: u32, code: NakCode) -> bool {
    acks(packets) == [(psn(n), AethSyndrome::Nak(code))]
}

/// Returns the PSNs of packets.
pub fn psns(packets: &[Packet]) -> Vec<u32> {
    packets.iter().map(|packet| packet.psn).collect()
}

/// Returns the AETH of an answer, if it has one.
pub fn aeth(packet: &Packet) -> Option<Aeth> {
    match packet.kind {
        PacketKind::Ack(aeth)
        | PacketKind::AtomicResponse(aeth, _)
        | PacketKind::ReadResponse(Some(aeth)) => Some(aeth),
        _ => None,
    }
}

/// Returns a request of one packet with PSN number `n`.
pub fn request(kind: PacketKind, n: u32, payload: &[u8]) -> Packet {
    Packet {
        transport: Transport::Rc,
        kind,
        first: true,
        last: true,
        solicited: false,
        ack_req: true,
        pkey: 0xffff,
        dst_qpn: 0x10,
        src_qpn: 0x11,
        psn: psn(n),
        psns: 1,
        srqn: 0,
        marked: false,
        datagram: None,
        payload: Payload::from_bytes(payload),
    }
}

/// The same without AckReq.
pub fn quiet(packet: Packet) -> Packet {
    Packet {
        ack_req: false,
        ..packet
    }
}

/// Returns the same packet as a part of a message.
pub fn part(first: bool, last: bool, packet: Packet) -> Packet {
    Packet {
        first,
        last,
        ..packet
    }
}

/// Returns the same packet for an unreliable connection.
pub fn uc(packet: Packet) -> Packet {
    Packet {
        transport: Transport::Uc,
        ..packet
    }
}

/// SEND without immediate data.
pub const SEND: PacketKind = PacketKind::Send(SendTail::None);

/// Returns a RETH for a whole buffer.
pub fn reth(buffer: ArenaBuffer) -> Reth {
    Reth {
        addr: buffer.addr,
        rkey: buffer.key,
        length: buffer.len,
    }
}

/// Returns a WRITE of a whole buffer.
pub fn write(buffer: ArenaBuffer) -> PacketKind {
    PacketKind::Write {
        reth: Some(reth(buffer)),
        imm: None,
    }
}

/// WRITE of no bytes.
pub const WRITE_NOTHING: PacketKind = PacketKind::Write {
    reth: Some(Reth {
        addr: 0,
        rkey: 0,
        length: 0,
    }),
    imm: None,
};

/// A packet of a WRITE after the first one.
pub const WRITE_ON: PacketKind = PacketKind::Write {
    reth: None,
    imm: None,
};

/// Returns a READ of a whole buffer.
pub fn read(buffer: ArenaBuffer) -> PacketKind {
    PacketKind::ReadRequest(reth(buffer))
}

/// Returns a FetchAdd to the first word of a buffer.
pub fn fetch_add(buffer: ArenaBuffer, add: u64) -> PacketKind {
    PacketKind::Atomic {
        addr: buffer.addr,
        rkey: buffer.key,
        op: AtomicOp::FetchAdd { add },
    }
}

/// Returns a pair of unreliable connections in which A is the responder.
pub fn uc_pair(has_srq: bool) -> QpPair {
    responder(PairSetup {
        qp_type: QpType::Uc,
        has_srq,
        ..PairSetup::default()
    })
}
