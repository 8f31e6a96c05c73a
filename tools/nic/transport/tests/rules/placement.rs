// SPDX-License-Identifier: GPL-2.0 OR MIT

//! ATOMIC WRITE and FLUSH (annex A19): their effects, their checks, and their responses.

use super::answered;
use super::by_hand::*;
use super::MODES;
use verbena_abi::ctx::access;
use verbena_lab_transport::{ArenaBuffer, LinkMode, PairSetup, PairSide::*, QpPair, SendPost};
use verbena_transport::host::{EventType, Syndrome, WcOpcode, WcStatus::*, WqeOpcode};
use verbena_transport::packet::{AethSyndrome, Feth, NakCode, Packet, PacketKind, Reth};
use verbena_transport::{Attr, QpState};

/// FLUSH of a range with global visibility.
pub const RANGE: Feth = Feth {
    placement: 1,
    level: 0,
};
const REGION: Feth = Feth { level: 1, ..RANGE };
const PERSISTENT: Feth = Feth {
    placement: 2,
    level: 0,
};

fn reth(of: ArenaBuffer) -> Reth {
    Reth {
        addr: of.addr,
        rkey: of.key,
        length: of.len,
    }
}

fn atomic_write(to: ArenaBuffer) -> PacketKind {
    PacketKind::AtomicWrite(reth(to))
}

fn flush(how: Feth, of: ArenaBuffer) -> PacketKind {
    PacketKind::Flush(how, reth(of))
}

/// True if the packets are the one answer to PSN number `n`: a READ response of no bytes.
fn is_placed(packets: &[Packet], n: u32) -> bool {
    matches!(packets, [packet]
        if matches!(packet.kind, PacketKind::ReadResponse(Some(aeth))
            if matches!(aeth.syndrome, AethSyndrome::Ack { .. }))
        && packet.first && packet.last && packet.payload.is_empty() && packet.psn == psn(n))
}

#[test]
fn eight_bytes_are_written_and_memory_is_flushed() {
    for mode in MODES {
        for inline in [false, true] {
            let mut p = QpPair::rc(mode);
            let (from, to) = (p.buffer(A, &[1, 2, 3, 4, 5, 6, 7, 8]), p.zeros(B, 24));
            let mut post = SendPost::atomic_write(1, &[from.sge()], to).at(to.addr + 8, to.key);
            if inline {
                (post.sges, post.inline) = (vec![], vec![1, 2, 3, 4, 5, 6, 7, 8]);
            }
            p.post(A, post);
            p.post(A, SendPost::flush(2, RANGE, to));
            p.post(A, SendPost::flush(3, REGION, ArenaBuffer { len: 0, ..to }));
            p.settle();
            let done = p.completions(A);
            let seen: Vec<_> = done.iter().map(|c| (c.wr_id, c.status, c.opcode)).collect();
            let expected = [
                (1, Success, WcOpcode::AtomicWrite),
                (2, Success, WcOpcode::Flush),
                (3, Success, WcOpcode::Flush),
            ];
            assert_eq!(seen, expected, "{mode:?}");
            let bytes = p.adapter.bytes(to);
            assert_eq!(bytes[8..16], [1, 2, 3, 4, 5, 6, 7, 8], "{mode:?}");
            assert!(bytes[..8].iter().chain(&bytes[16..]).all(|b| *b == 0));
        }
    }
}

#[test]
fn atomic_write_and_flush_are_answered_by_a_response_of_no_bytes() {
    let mut p = rc();
    let word = p.zeros(A, 8);
    assert!(is_placed(
        &exchange(&mut p, request(atomic_write(word), 0, &[5; 8])),
        0
    ));
    assert_eq!(p.adapter.bytes(word), [5; 8]);
    assert!(is_placed(
        &exchange(&mut p, request(flush(RANGE, word), 1, &[])),
        1
    ));
    assert_eq!(p.qps[0].snapshot().msn, 2);
}

#[test]
fn a_duplicate_is_answered_again_and_writes_nothing() {
    let mut p = rc();
    let word = p.zeros(A, 8);
    let (first, second) = (
        request(atomic_write(word), 0, &[5; 8]),
        request(flush(RANGE, word), 1, &[]),
    );
    exchange(&mut p, first.clone());
    exchange(&mut p, second.clone());
    exchange(&mut p, request(atomic_write(word), 2, &[6; 8]));
    assert!(is_placed(&exchange(&mut p, first), 0));
    assert!(is_placed(&exchange(&mut p, second), 1));
    assert_eq!(p.adapter.bytes(word), [6; 8]);
    // A request that differs from the one executed with its PSN is dropped.
    for other in [
        request(flush(REGION, word), 1, &[]),
        request(atomic_write(word), 1, &[5; 8]),
        request(flush(RANGE, word), 0, &[]),
        request(atomic_write(ArenaBuffer { addr: 64, ..word }), 0, &[5; 8]),
    ] {
        assert!(exchange(&mut p, other).is_empty());
    }
    assert_eq!(p.state(A), QpState::Rts);
}

/// Returns how a responder refuses a request for a region of 16 bytes. The queue pair grants the
/// peer all rights but those in `taken`.
fn refusal(taken: u32, make: impl Fn(ArenaBuffer) -> (PacketKind, usize)) -> (NakCode, Syndrome) {
    let mut p = rc();
    let attr = Attr {
        access_flags: p.attr(A).access_flags & !taken | access::FLUSH_PERSISTENT,
        ..p.attr(A)
    };
    p.modify_attr(A, QpState::Rts, &attr).unwrap();
    let word = p.zeros(A, 16);
    let (kind, length) = make(word);
    let got = exchange(&mut p, request(kind, 0, &vec![9; length]));
    let [(_, AethSyndrome::Nak(code))] = acks(&got)[..] else {
        panic!("{got:?}");
    };
    assert_eq!(p.adapter.bytes(word), [0; 16]);
    assert_eq!(p.state(A), QpState::Err);
    let event = match code {
        NakCode::RemoteAccess => EventType::QpAccessErr,
        _ => EventType::QpReqErr,
    };
    assert_eq!(p.events(A), [event]);
    (code, p.qps[0].snapshot().syndrome.unwrap())
}

#[test]
fn an_atomic_write_is_checked_as_a_write_and_as_an_atomic() {
    use NakCode::*;
    let part = |w: ArenaBuffer, offset: u64, len| ArenaBuffer {
        addr: w.addr + offset,
        len,
        ..w
    };
    let write = |offset, len, bytes| move |w| (atomic_write(part(w, offset, len)), bytes);
    let disabled = refusal(access::REMOTE_WRITE, write(0, 8, 8));
    assert_eq!(disabled, (InvalidRequest, Syndrome::OperationDisabled));
    for (offset, len, bytes, expected) in [
        (4, 8, 8, (InvalidRequest, Syndrome::AtomicMisaligned)),
        (0, 4, 4, (InvalidRequest, Syndrome::RequestLength)),
        (0, 16, 16, (InvalidRequest, Syndrome::RequestLength)),
        (0, 8, 4, (InvalidRequest, Syndrome::RequestLength)),
        (0, 0, 8, (InvalidRequest, Syndrome::RequestLength)),
        (16, 8, 8, (RemoteAccess, Syndrome::RkeyBounds)),
        // The key is checked before the alignment.
        (12, 8, 8, (RemoteAccess, Syndrome::RkeyBounds)),
    ] {
        assert_eq!(refusal(0, write(offset, len, bytes)), expected, "{offset}");
    }
    let unknown = refusal(0, |w| {
        (
            atomic_write(ArenaBuffer {
                key: 0xbad,
                len: 8,
                ..w
            }),
            8,
        )
    });
    assert_eq!(unknown, (RemoteAccess, Syndrome::RkeyUnknown));
}

#[test]
fn a_flush_needs_its_rights_of_the_queue_pair_and_of_the_region() {
    use NakCode::*;
    let asks = |how| move |w| (flush(how, w), 0);
    let disabled = (InvalidRequest, Syndrome::OperationDisabled);
    assert_eq!(refusal(access::FLUSH_GLOBAL, asks(RANGE)), disabled);
    let both = Feth {
        placement: 3,
        level: 0,
    };
    assert_eq!(refusal(access::FLUSH_GLOBAL, asks(both)), disabled);
    // No region grants persistence.
    for how in [PERSISTENT, both] {
        assert_eq!(refusal(0, asks(how)), (RemoteAccess, Syndrome::RkeyAccess));
    }
    for (placement, level) in [(0, 0), (4, 0), (5, 0), (1, 2), (1, 3)] {
        let how = Feth { placement, level };
        assert_eq!(refusal(0, asks(how)), (InvalidRequest, Syndrome::FlushType));
    }
    let beyond = refusal(0, |w| (flush(RANGE, ArenaBuffer { len: 17, ..w }), 0));
    assert_eq!(beyond, (RemoteAccess, Syndrome::RkeyBounds));
    for how in [RANGE, REGION] {
        let unknown = refusal(0, |w| (flush(how, ArenaBuffer { key: 0xbad, ..w }), 0));
        assert_eq!(unknown, (RemoteAccess, Syndrome::RkeyUnknown));
    }
    let payload = refusal(0, |w| (flush(RANGE, w), 4));
    assert_eq!(payload, (InvalidRequest, Syndrome::RequestLength));
}

#[test]
fn a_flush_of_a_region_ignores_the_range_and_one_of_no_bytes_the_key() {
    let mut p = rc();
    let word = p.zeros(A, 8);
    let nowhere = ArenaBuffer {
        addr: 1,
        len: 0xffff_ffff,
        ..word
    };
    assert!(is_placed(
        &exchange(&mut p, request(flush(REGION, nowhere), 0, &[])),
        0
    ));
    let nothing = ArenaBuffer {
        key: 0xbad,
        addr: 1,
        len: 0,
    };
    assert!(is_placed(
        &exchange(&mut p, request(flush(RANGE, nothing), 1, &[])),
        1
    ));
}

#[test]
fn a_responder_accepts_as_many_as_max_dest_rd_atomic() {
    let mut p = rc();
    let word = p.zeros(A, 8);
    let most = u32::from(p.attr(A).max_dest_rd_atomic);
    for n in 0..most {
        let kind = match n % 2 {
            0 => atomic_write(word),
            _ => flush(RANGE, word),
        };
        let bytes: &[u8] = if n % 2 == 0 { &[1; 8] } else { &[] };
        put(&mut p, request(kind, n, bytes));
    }
    put(&mut p, request(flush(RANGE, word), most, &[]));
    let got = answers(&mut p);
    assert_eq!(got.len() as u32, most + 1);
    assert!(is_nak(&got[most as usize..], most, NakCode::InvalidRequest));
    assert_eq!(p.qps[0].snapshot().syndrome, Some(Syndrome::TooManyReads));
}

#[test]
fn a_requester_has_no_more_outstanding_than_max_rd_atomic() {
    let mut p = answered::requester(PairSetup::default());
    let most = u64::from(p.attr(A).max_rd_atomic);
    let (here, there) = (p.zeros(A, 8), p.zeros(B, 8));
    for wr_id in 0..=most {
        p.post(A, SendPost::atomic_write(wr_id, &[here.sge()], there));
    }
    assert_eq!(answered::numbers(&mut p).len() as u64, most);
    answered::read_only(&mut p, 0, &[]);
    assert_eq!(p.statuses(A), [(0, Success)]);
    assert_eq!(answered::numbers(&mut p), [most as u32]);
}

#[test]
fn an_acknowledgement_completes_no_atomic_write_and_no_flush() {
    for opcode in [WqeOpcode::AtomicWrite, WqeOpcode::Flush] {
        let mut p = answered::requester(PairSetup::default());
        let (here, there) = (p.zeros(A, 8), p.zeros(B, 8));
        p.post(
            A,
            match opcode {
                WqeOpcode::Flush => SendPost::flush(1, RANGE, there),
                _ => SendPost::atomic_write(1, &[here.sge()], there),
            },
        );
        assert_eq!(answered::numbers(&mut p), [0]);
        answered::ack(&mut p, 0);
        assert!(p.completions(A).is_empty(), "{opcode:?}");
        // The request is sent again, and its response completes it.
        assert_eq!(answered::numbers(&mut p), [0], "{opcode:?}");
        answered::read_only(&mut p, 0, &[]);
        assert_eq!(p.statuses(A), [(1, Success)], "{opcode:?}");
    }
}

#[test]
fn a_response_with_payload_to_an_atomic_write_or_flush_is_bad() {
    for opcode in [WqeOpcode::AtomicWrite, WqeOpcode::Flush] {
        let mut p = answered::requester(PairSetup::default());
        let (here, there) = (p.zeros(A, 8), p.zeros(B, 8));
        p.post(
            A,
            match opcode {
                WqeOpcode::Flush => SendPost::flush(1, RANGE, there),
                _ => SendPost::atomic_write(1, &[here.sge()], there),
            },
        );
        assert_eq!(answered::numbers(&mut p), [0]);
        answered::read_only(&mut p, 0, &[1; 8]);
        assert_eq!(p.statuses(A), [(1, BadRespErr)], "{opcode:?}");
        assert_eq!(p.adapter.bytes(here), [0; 8]);
    }
}

#[test]
fn an_atomic_write_has_eight_bytes() {
    for length in [0, 4, 7, 9, 16] {
        let mut p = QpPair::rc(LinkMode::Local);
        let (here, there) = (p.zeros(A, 16), p.zeros(B, 16));
        p.post(A, SendPost::atomic_write(1, &[here.part(0, length)], there));
        p.settle();
        let done = p.completions(A);
        assert_eq!(done[0].status, LocLenErr, "{length}");
        assert_eq!(done[0].syndrome, Some(Syndrome::AtomicLength), "{length}");
    }
}
