// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Operations without any error or loss.

use super::{pattern, MODES};
use verbena_lab_transport::{LinkMode, PairSetup, PairSide::*, QpPair, SendPost};
use verbena_transport::host::{WcOpcode, WcStatus, WqeOpcode};
use verbena_transport::packet::PacketKind;
use verbena_transport::{Budget, QpType};

#[test]
fn send_fills_the_receive() {
    for mode in MODES {
        for len in [1usize, 255, 256, 257, 1000, 4096, 10_000] {
            let mut p = QpPair::rc(mode);
            let (src, dst) = (p.buffer(A, &pattern(len, 1)), p.zeros(B, len + 7));
            p.post_recv(B, 9, &[dst.sge()]);
            p.post(A, SendPost::send(1, &[src.sge()]));
            p.settle();
            assert_eq!(p.adapter.bytes(dst)[..len], pattern(len, 1));
            let got = p.completions(B);
            assert_eq!(
                (got.len(), got[0].wr_id, got[0].status),
                (1, 9, WcStatus::Success),
                "{mode:?} {len}"
            );
            assert_eq!(
                (got[0].byte_len, got[0].opcode, got[0].imm),
                (len as u32, WcOpcode::Recv, None)
            );
            assert_eq!(p.statuses(A), [(1, WcStatus::Success)]);
            assert!(p.events(A).is_empty() && p.events(B).is_empty());
        }
    }
}

#[test]
fn each_byte_is_copied_once_between_local_peers() {
    let mut p = QpPair::rc(LinkMode::Local);
    let (src, dst) = (p.buffer(A, &pattern(10_000, 1)), p.zeros(B, 10_000));
    p.post(A, SendPost::write(1, &[src.sge()], dst));
    p.post(A, SendPost::read(2, &[src.sge()], dst));
    p.settle();
    assert_eq!(
        (p.adapter.queues(A).copied, p.adapter.queues(B).copied),
        (10_000, 10_000)
    );
}

#[test]
fn immediates_arrive_in_network_order() {
    for mode in MODES {
        let mut p = QpPair::rc(mode);
        let (src, dst) = (p.buffer(A, &pattern(600, 1)), p.zeros(B, 600));
        p.post_recv(B, 1, &[dst.sge()]);
        p.post_recv(B, 2, &[]);
        p.post(A, SendPost::send(1, &[src.sge()]).imm([1, 2, 3, 4]));
        p.post(A, SendPost::write(2, &[src.sge()], dst).imm([5, 6, 7, 8]));
        p.settle();
        let got = p.completions(B);
        assert_eq!(
            (got[0].opcode, got[0].imm, got[0].byte_len),
            (WcOpcode::Recv, Some([1, 2, 3, 4]), 600)
        );
        assert_eq!(
            (got[1].opcode, got[1].imm, got[1].byte_len),
            (WcOpcode::RecvRdmaWithImm, Some([5, 6, 7, 8]), 600)
        );
        assert_eq!(p.adapter.bytes(dst), pattern(600, 1));
    }
}

#[test]
fn write_and_read_move_bytes_between_several_sges() {
    for mode in MODES {
        let mut p = QpPair::rc(mode);
        let (src, dst, back) = (
            p.buffer(A, &pattern(3000, 2)),
            p.zeros(B, 3000),
            p.zeros(A, 3000),
        );
        let sges = [
            src.part(0, 1),
            src.part(1, 700),
            src.part(701, 0),
            src.part(701, 2299),
        ];
        p.post(A, SendPost::write(1, &sges, dst));
        let sges = [back.part(0, 999), back.part(999, 1), back.part(1000, 2000)];
        p.post(A, SendPost::read(2, &sges, dst));
        p.settle();
        assert_eq!(p.adapter.bytes(dst), pattern(3000, 2));
        assert_eq!(p.adapter.bytes(back), pattern(3000, 2));
        let got = p.completions(A);
        assert_eq!(
            (got[0].opcode, got[1].opcode),
            (WcOpcode::RdmaWrite, WcOpcode::RdmaRead)
        );
        assert_eq!(got[1].byte_len, 3000);
        assert!(p.completions(B).is_empty());
    }
}

#[test]
fn zero_length_operations_need_no_key() {
    for mode in MODES {
        let mut p = QpPair::rc(mode);
        p.post_recv(B, 1, &[]);
        p.post_recv(B, 2, &[]);
        p.post(A, SendPost::send(1, &[]));
        p.post(
            A,
            SendPost::new(2, WqeOpcode::RdmaWrite, &[]).at(0xdead, 0xbeef),
        );
        p.post(
            A,
            SendPost::new(3, WqeOpcode::RdmaRead, &[]).at(0xdead, 0xbeef),
        );
        p.post(
            A,
            SendPost::new(4, WqeOpcode::RdmaWrite, &[])
                .at(0xdead, 0xbeef)
                .imm([0; 4]),
        );
        p.settle();
        let ok = WcStatus::Success;
        assert_eq!(p.statuses(A), [(1, ok), (2, ok), (3, ok), (4, ok)]);
        assert_eq!(p.statuses(B), [(1, ok), (2, ok)]);
    }
}

/// rxe answers a READ of no bytes once, and each copy of it only if its R_Key is 0.
#[test]
fn a_read_of_no_bytes_is_sent_with_r_key_0() {
    let mut p = QpPair::new(PairSetup {
        mode: LinkMode::Split,
        ..PairSetup::default()
    });
    p.link.record = true;
    p.post(
        A,
        SendPost::new(1, WqeOpcode::RdmaRead, &[]).at(0xdead, 0xbeef),
    );
    p.settle();
    let asked = p.link.log.iter().find_map(|(_, packet)| match packet.kind {
        PacketKind::ReadRequest(reth) => Some((reth.addr, reth.rkey, reth.length)),
        _ => None,
    });
    assert_eq!(asked, Some((0xdead, 0, 0)));
    assert_eq!(p.statuses(A), [(1, WcStatus::Success)]);
}

#[test]
fn inline_data_needs_no_key() {
    for mode in MODES {
        let mut p = QpPair::rc(mode);
        let dst = p.zeros(B, 300);
        let mut post = SendPost::write(1, &[], dst);
        post.inline = pattern(300, 3);
        p.post(A, post);
        p.settle();
        assert_eq!(p.adapter.bytes(dst), pattern(300, 3));
        assert_eq!(p.statuses(A), [(1, WcStatus::Success)]);
    }
}

#[test]
fn unsignaled_sends_complete_silently_and_in_order() {
    let mut p = QpPair::rc(LinkMode::Local);
    let (src, dst) = (p.buffer(A, &pattern(8, 1)), p.zeros(B, 8));
    for i in 0..100 {
        let post = SendPost::write(i, &[src.sge()], dst);
        p.post(A, if i % 10 == 9 { post } else { post.unsignaled() });
    }
    p.settle();
    let got: Vec<u64> = p.completions(A).iter().map(|c| c.wr_id).collect();
    assert_eq!(got, [9, 19, 29, 39, 49, 59, 69, 79, 89, 99]);
    assert_eq!(p.qps[0].snapshot().sq_consumer, 100);
    assert_eq!(p.qps[0].next_deadline(), None);
}

#[test]
fn only_the_last_packet_of_a_run_asks_for_an_acknowledgement() {
    let mut p = QpPair::rc(LinkMode::Local);
    p.link.record = true;
    let (src, dst) = (p.buffer(A, &pattern(8, 1)), p.zeros(B, 8));
    for i in 0..16 {
        p.post(A, SendPost::write(i, &[src.sge()], dst));
    }
    p.settle();
    assert_eq!(
        p.link
            .log
            .iter()
            .filter(|(_, packet)| packet.ack_req)
            .count(),
        1
    );
    assert_eq!(p.completions(A).len(), 16);
}

#[test]
fn psns_wrap_at_24_bits() {
    for mode in MODES {
        let mut p = QpPair::new(PairSetup {
            mode,
            psns: [0xff_ffff, 0xff_fffe],
            ..PairSetup::default()
        });
        let (src, dst) = (p.buffer(A, &pattern(5000, 1)), p.zeros(B, 5000));
        for i in 0..20 {
            p.post(A, SendPost::write(i, &[src.sge()], dst));
            p.post(A, SendPost::read(100 + i, &[src.sge()], dst));
        }
        p.settle();
        assert_eq!(p.completions(A).len(), 40);
        assert!(p.qps[0].snapshot().next_psn < 0x1000);
    }
}

#[test]
fn max_rd_atomic_limits_the_outstanding_reads() {
    for limit in [1u8, 2, 4] {
        let mut setup = PairSetup {
            mode: LinkMode::Split,
            ..PairSetup::default()
        };
        setup.attr.max_rd_atomic = limit;
        let mut p = QpPair::new(setup);
        p.link.record = true;
        let (dst, src) = (p.zeros(A, 100), p.buffer(B, &pattern(100, 1)));
        for i in 0..10 {
            p.post(A, SendPost::read(i, &[dst.sge()], src));
        }
        p.settle();
        let (mut due, mut most) = (0, 0);
        for (_, packet) in &p.link.log {
            match packet.kind {
                PacketKind::ReadRequest(_) => due += 1,
                PacketKind::ReadResponse(_) => due -= 1,
                _ => {}
            }
            most = most.max(due);
        }
        assert_eq!(most, i32::from(limit));
        assert_eq!(p.completions(A).len(), 10);
    }
}

#[test]
fn a_fenced_write_waits_for_the_read_before_it() {
    // Without the fence the READ may see the data of the later WRITE.
    for mode in MODES {
        let mut p = QpPair::rc(mode);
        let (old, new, back) = (
            p.buffer(B, &[1; 1000]),
            p.buffer(A, &[2; 1000]),
            p.zeros(A, 1000),
        );
        p.post(A, SendPost::read(1, &[back.sge()], old));
        p.post(A, SendPost::write(2, &[new.sge()], old).fence());
        p.settle();
        assert_eq!(p.adapter.bytes(back), [1; 1000]);
        assert_eq!(p.adapter.bytes(old), [2; 1000]);
    }
}

#[test]
fn a_read_sees_the_write_before_it() {
    for mode in MODES {
        let mut p = QpPair::rc(mode);
        let (old, new, back) = (
            p.buffer(B, &[1; 1000]),
            p.buffer(A, &[2; 1000]),
            p.zeros(A, 1000),
        );
        p.post(A, SendPost::write(2, &[new.sge()], old));
        p.post(A, SendPost::read(1, &[back.sge()], old));
        p.settle();
        assert_eq!(p.adapter.bytes(back), [2; 1000]);
    }
}

#[test]
fn solicited_is_carried_by_the_last_packet() {
    for mode in MODES {
        let mut p = QpPair::rc(mode);
        let (src, dst) = (p.buffer(A, &pattern(600, 1)), p.zeros(B, 600));
        p.post_recv(B, 1, &[dst.sge()]);
        p.post_recv(B, 2, &[dst.sge()]);
        let mut post = SendPost::send(1, &[src.sge()]);
        post.wqe.solicited = true;
        p.post(A, post);
        p.post(A, SendPost::send(2, &[src.sge()]));
        p.settle();
        let got: Vec<bool> = p.completions(B).iter().map(|c| c.solicited).collect();
        assert_eq!(got, [true, false]);
    }
}

#[test]
fn atomics_return_the_value_before() {
    for mode in MODES {
        let mut p = QpPair::rc(mode);
        let (word, back) = (p.buffer(B, &40u64.to_ne_bytes()), p.zeros(A, 24));
        let mut add =
            SendPost::new(1, WqeOpcode::FetchAdd, &[back.part(0, 8)]).at(word.addr, word.key);
        add.wqe.compare_add = 2;
        p.post(A, add);
        for (i, compare) in [42u64, 42].into_iter().enumerate() {
            let at = 8 + 8 * i as u32;
            let mut swap = SendPost::new(2, WqeOpcode::CompareSwap, &[back.part(at, 8)])
                .at(word.addr, word.key);
            swap.wqe.compare_add = compare;
            swap.wqe.swap = 7;
            p.post(A, swap);
        }
        p.settle();
        let words: Vec<u64> = p
            .adapter
            .bytes(back)
            .chunks(8)
            .map(|w| u64::from_ne_bytes(w.try_into().unwrap()))
            .collect();
        assert_eq!(words, vec![40, 42, 7]);
        assert_eq!(p.adapter.bytes(word), 7u64.to_ne_bytes());
        assert_eq!(p.completions(A).len(), 3);
    }
}

#[test]
fn send_with_invalidate_names_the_key() {
    for mode in MODES {
        let mut p = QpPair::rc(mode);
        let (window, dst) = (p.zeros(B, 8), p.zeros(B, 8));
        p.post_recv(B, 1, &[dst.sge()]);
        let mut post = SendPost::new(1, WqeOpcode::SendInv, &[]);
        post.wqe.imm = window.key.to_le_bytes();
        p.post(A, post);
        p.settle();
        assert_eq!(p.completions(B)[0].invalidated, Some(window.key));
        assert!(!p.adapter.region(window).valid);
    }
}

#[test]
fn a_local_invalidate_waits_for_all_earlier_work_requests() {
    let mut p = QpPair::rc(LinkMode::Local);
    let (src, dst) = (p.buffer(A, &pattern(5000, 1)), p.zeros(B, 5000));
    p.post(A, SendPost::write(1, &[src.sge()], dst));
    let mut post = SendPost::new(2, WqeOpcode::LocalInv, &[]);
    post.wqe.imm = src.key.to_le_bytes();
    p.post(A, post);
    p.settle();
    assert_eq!(
        p.statuses(A),
        [(1, WcStatus::Success), (2, WcStatus::Success)]
    );
    assert!(!p.adapter.region(src).valid);
}

#[test]
fn a_key_is_checked_after_an_earlier_fast_registration() {
    for mode in MODES {
        let mut p = QpPair::rc(mode);
        let (src, dst) = (p.buffer(A, &pattern(600, 1)), p.zeros(B, 600));
        p.adapter.region(src).valid = false;
        let mut register = SendPost::new(1, WqeOpcode::FastReg, &[]);
        register.wqe.imm = src.key.to_le_bytes();
        let mut invalidate = SendPost::new(3, WqeOpcode::LocalInv, &[]);
        invalidate.wqe.imm = src.key.to_le_bytes();
        p.post(A, register);
        p.post(A, SendPost::write(2, &[src.sge()], dst));
        p.post(A, invalidate);
        p.post(A, SendPost::write(4, &[src.sge()], dst));
        p.settle();
        use WcStatus::{LocProtErr, Success};
        let expected = [(1, Success), (2, Success), (3, Success), (4, LocProtErr)];
        assert_eq!(p.statuses(A), expected, "{mode:?}");
        assert_eq!(p.adapter.bytes(dst), pattern(600, 1));
    }
}

/// A work request without packets counts as one packet of the budget. Otherwise a queue pair could
/// execute any number of them in its turn.
#[test]
fn work_requests_without_packets_count_in_the_budget() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut p = QpPair::new(PairSetup {
            qp_type,
            ..PairSetup::default()
        });
        let src = p.buffer(A, &pattern(600, 1));
        for id in 0..40 {
            let opcode = [WqeOpcode::LocalInv, WqeOpcode::FastReg][id as usize % 2];
            let mut post = SendPost::new(id, opcode, &[]);
            post.wqe.imm = src.key.to_le_bytes();
            p.post(A, post);
        }
        for (done, more) in [(16, true), (16, true), (8, false)] {
            let mut budget = Budget::new(16, 1 << 20);
            let left = p.qps[0].poll(&mut p.adapter.host(A), p.now_ns, &mut budget);
            assert_eq!((p.statuses(A).len(), left), (done, more), "{qp_type:?}");
        }
    }
}
