// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A responder to which requests are given by hand, one by one: no requester would send most of them.

use verbena_roce::host::AtomicOp;
use verbena_roce::packet::{
    Aeth, AethSyndrome, Kind, NakCode, Packet, Payload, Reth, SendTail, Transport,
};
use verbena_roce::QpType;
use verbena_roce_lab::{Buffer, Mode, Pair, Setup, Side::*};

/// First PSN that the responder expects.
pub const FIRST: u32 = 0xff_fffe;

/// The `n`th PSN.
pub fn psn(n: u32) -> u32 {
    verbena_roce::psn::add(FIRST, n)
}

/// The pair, of which A responds; B takes the answers and finds that they answer nothing.
pub fn responder(setup: Setup) -> Pair {
    responder_by(Mode::Split, setup)
}

/// The same, by a way of travel.
pub fn responder_by(mode: Mode, setup: Setup) -> Pair {
    let mut p = Pair::new(Setup {
        mode,
        psns: [0, FIRST],
        ..setup
    });
    p.link.record = true;
    p
}

/// One of a reliable connection.
pub fn rc() -> Pair {
    responder(Setup::default())
}

/// Gives the responder a request, without time for it to send responses.
pub fn put(p: &mut Pair, packet: Packet) {
    p.deliver(A, packet);
}

/// What the responder has sent since the last call, once it has nothing more to send.
pub fn answers(p: &mut Pair) -> Vec<Packet> {
    p.run_until(p.now);
    let log = std::mem::take(&mut p.link.log);
    log.into_iter()
        .filter(|(side, _)| *side == A)
        .map(|(_, packet)| packet)
        .collect()
}

/// Both: a request, and what it is answered with.
pub fn ask(p: &mut Pair, packet: Packet) -> Vec<Packet> {
    put(p, packet);
    answers(p)
}

/// A responder with so many receives of 8 bytes.
pub fn receiving(receives: u64) -> Pair {
    let mut p = rc();
    for wr_id in 0..receives {
        let buffer = p.zeros(A, 8);
        p.post_recv(A, wr_id, &[buffer.sge()]);
    }
    p
}

/// The receives that were completed since the last call.
pub fn completed(p: &mut Pair) -> Vec<u64> {
    p.statuses(A).iter().map(|(wr_id, _)| *wr_id).collect()
}

/// The `n`th SEND, of 8 bytes of that number, and what it is answered with.
pub fn send(p: &mut Pair, n: u32) -> Vec<Packet> {
    ask(p, request(SEND, n, &[n as u8; 8]))
}

/// The same, without a wish for an acknowledgement.
pub fn send_quietly(p: &mut Pair, n: u32) -> Vec<Packet> {
    ask(p, quiet(request(SEND, n, &[n as u8; 8])))
}

/// The syndromes and PSNs of acknowledgements. Anything else fails the test.
pub fn acks(packets: &[Packet]) -> Vec<(u32, AethSyndrome)> {
    packets
        .iter()
        .map(|packet| match packet.kind {
            Kind::Ack(aeth) => (packet.psn, aeth.syndrome),
            kind => panic!("{kind:?} is no acknowledgement"),
        })
        .collect()
}

/// Whether packets are one positive acknowledgement of the `n`th PSN.
pub fn is_ack(packets: &[Packet], n: u32) -> bool {
    matches!(acks(packets)[..], [(at, AethSyndrome::Ack { .. })] if at == psn(n))
}

/// Whether packets are two positive acknowledgements of the `n`th PSN, as the copy of the end of a message brings.
pub fn is_ack_twice(packets: &[Packet], n: u32) -> bool {
    packets.len() == 2
        && packets
            .iter()
            .all(|packet| is_ack(std::slice::from_ref(packet), n))
}

/// Whether packets are one NAK of the `n`th PSN.
pub fn is_nak(packets: &[Packet], n: u32, code: NakCode) -> bool {
    acks(packets) == [(psn(n), AethSyndrome::Nak(code))]
}

/// PSNs of responses.
pub fn psns(packets: &[Packet]) -> Vec<u32> {
    packets.iter().map(|packet| packet.psn).collect()
}

/// The AETH of an answer.
pub fn aeth(packet: &Packet) -> Option<Aeth> {
    match packet.kind {
        Kind::Ack(aeth) | Kind::AtomicResponse(aeth, _) | Kind::ReadResponse(Some(aeth)) => {
            Some(aeth)
        }
        _ => None,
    }
}

/// A request of one packet, with the `n`th PSN.
pub fn request(kind: Kind, n: u32, payload: &[u8]) -> Packet {
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

/// The same, without a wish for an acknowledgement.
pub fn quiet(packet: Packet) -> Packet {
    Packet {
        ack_req: false,
        ..packet
    }
}

/// The same as a part of a message.
pub fn part(first: bool, last: bool, packet: Packet) -> Packet {
    Packet {
        first,
        last,
        ..packet
    }
}

/// A packet of an unreliable connection.
pub fn uc(packet: Packet) -> Packet {
    Packet {
        transport: Transport::Uc,
        ..packet
    }
}

/// SEND.
pub const SEND: Kind = Kind::Send(SendTail::None);

/// The whole of a buffer.
pub fn reth(buffer: Buffer) -> Reth {
    Reth {
        addr: buffer.addr,
        rkey: buffer.key,
        length: buffer.len,
    }
}

/// WRITE of a whole buffer.
pub fn write(buffer: Buffer) -> Kind {
    Kind::Write {
        reth: Some(reth(buffer)),
        imm: None,
    }
}

/// WRITE of no bytes.
pub const WRITE_NOTHING: Kind = Kind::Write {
    reth: Some(Reth {
        addr: 0,
        rkey: 0,
        length: 0,
    }),
    imm: None,
};

/// A later packet of a WRITE.
pub const WRITE_ON: Kind = Kind::Write {
    reth: None,
    imm: None,
};

/// READ of a whole buffer.
pub fn read(buffer: Buffer) -> Kind {
    Kind::ReadRequest(reth(buffer))
}

/// Adds to the first word of a buffer.
pub fn fetch_add(buffer: Buffer, add: u64) -> Kind {
    Kind::Atomic {
        addr: buffer.addr,
        rkey: buffer.key,
        op: AtomicOp::FetchAdd { add },
    }
}

/// A pair of unreliable connections whose B has requests given by hand.
pub fn uc_pair(has_srq: bool) -> Pair {
    responder(Setup {
        qp_type: QpType::Uc,
        has_srq,
        ..Setup::default()
    })
}
