// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The operations of queue pairs that together send every opcode, every syndrome that a responder
//! of these services has, and every number of padding bytes.

use crate::ExpectedCapture;
use std::cell::RefCell;
use std::rc::Rc;
use verbena_lab_transport::{ArenaBuffer, LinkMode, PairSetup, PairSide, QpPair, SendPost};
use verbena_transport::host::{DatagramDest, Sge, WcStatus, WqeOpcode, XrcSrq};
use verbena_transport::packet::{Feth, PacketKind};
use verbena_transport::wire::{ipv4_to_gid, LocalRoute, Path};
use verbena_transport::{Attr, QpType};
use PairSide::{A, B};

/// Lengths of messages of one packet: each number of padding bytes, no bytes, and a whole path MTU.
const SHORT: [u32; 7] = [0, 1, 2, 3, 4, 17, 256];
/// Lengths of messages of several packets of 256 bytes.
const LONG: [u32; 5] = [257, 512, 513, 770, 1027];
const QKEY: u32 = 0x1234;
/// QPN of queue pair A of each pair.
pub const QPN_A: u32 = 0x10;
const QPN_B: u32 = 0x11;
/// The shared receive queue that extended connections name.
const SRQN: u32 = 0x65_4321;

/// Returns each kind of path with its name: the paths of both ends.
pub fn paths() -> Vec<(&'static str, [Path; 2])> {
    let mut paths = roce_paths();
    paths.extend([false, true].map(|has_grh| {
        let name = if has_grh { "ib-global" } else { "ib-local" };
        (name, infiniband_paths(has_grh))
    }));
    paths
}

/// Returns the paths of both ends on an InfiniBand link.
pub fn infiniband_paths(has_grh: bool) -> [Path; 2] {
    let gid = |n| {
        let mut gid = [0; 16];
        (gid[0], gid[1], gid[8], gid[15]) = (0xfe, 0x80, 0xaa, n);
        gid
    };
    [(1, 2), (2, 1)].map(|(from, to)| {
        let path = Path {
            sl: 9,
            local_route: Some(LocalRoute {
                slid: 0x1230 + u16::from(from),
                dlid: 0x1230 + u16::from(to),
                has_grh,
            }),
            ..Path::default()
        };
        match has_grh {
            false => path,
            true => Path {
                sgid: gid(from),
                dgid: gid(to),
                flow_label: 0xa_bcde,
                traffic_class: 0xb9,
                hop_limit: 63,
                ..path
            },
        }
    })
}

fn roce_paths() -> Vec<(&'static str, [Path; 2])> {
    let ipv4 = [1, 2].map(|n| ipv4_to_gid([10, 0, 0, n]));
    let ipv6 = [1, 2].map(|n| {
        let mut gid = [0; 16];
        (gid[0], gid[1], gid[8], gid[15]) = (0xfe, 0x80, 0xaa, n);
        gid
    });
    let both = |[a, b]: [[u8; 16]; 2], vlan: Option<u16>, flow_label| {
        let path = |(sgid, smac), (dgid, dmac)| Path {
            smac: [2, 0, 0, 0, 0, smac],
            dmac: [2, 0, 0, 0, 0, dmac],
            vlan,
            sgid,
            dgid,
            udp_sport: 0xc123,
            flow_label,
            traffic_class: 0xb9,
            hop_limit: 63,
            sl: vlan.map_or(0, |_| 5),
            local_route: None,
        };
        [path((a, 1), (b, 2)), path((b, 2), (a, 1))]
    };
    vec![
        ("ipv4", both(ipv4, None, 0)),
        ("ipv4-vlan", both(ipv4, Some(0x123), 0)),
        ("ipv6", both(ipv6, None, 0xa_bcde)),
        ("ipv6-vlan", both(ipv6, Some(0x123), 0xa_bcde)),
    ]
}

/// Makes pairs over a path, whose packets are recorded one pair after the other.
struct ScenePairs<'a> {
    paths: [Path; 2],
    expected_capture: &'a Rc<RefCell<ExpectedCapture>>,
}

/// Runs all scenes.
pub fn all(paths: [Path; 2], expected_capture: &Rc<RefCell<ExpectedCapture>>) {
    let pairs = ScenePairs {
        paths,
        expected_capture,
    };
    for qp_type in [QpType::Rc, QpType::Uc, QpType::XrcIni] {
        pairs.sends(qp_type);
        pairs.writes(qp_type);
    }
    for qp_type in [QpType::Rc, QpType::XrcIni] {
        pairs.invalidates(qp_type);
        pairs.reads(qp_type);
        pairs.atomics(qp_type);
        pairs.placements(qp_type);
    }
    pairs.datagrams();
    pairs.big_packets();
    pairs.refusals();
    pairs.not_ready();
    pairs.losses();
    // Code 4 is for reliable datagrams, which RoCE does not have.
    let seen = &mut expected_capture.borrow_mut().sent_codes[1];
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(*seen, [0, 0x20, 0x60, 0x61, 0x62, 0x63], "syndromes");
}

impl ScenePairs<'_> {
    fn pair_of(&self, setup: PairSetup) -> QpPair {
        let mut pair = QpPair::in_reset(PairSetup {
            mode: LinkMode::Wire,
            paths: self.paths,
            ..setup
        });
        pair.now_ns = self.expected_capture.borrow().now + 1_000;
        pair.tap = Some(Box::new(Rc::clone(self.expected_capture)));
        // The SRQ has the protection domain of B's memory.
        let (pd, life) = (pair.adapter.queues[1].pd, 1);
        let srqn = SRQN;
        pair.adapter.xrc.insert(srqn, Ok(XrcSrq { srqn, life, pd }));
        pair.connect(A);
        pair.connect(B);
        pair
    }

    fn pair(&self, qp_type: QpType) -> QpPair {
        self.pair_of(PairSetup {
            qp_type,
            ..PairSetup::default()
        })
    }

    fn sends(&self, qp_type: QpType) {
        let mut pair = self.pair(qp_type);
        let (from, to) = buffers(&mut pair, 2048);
        for (wr, length) in SHORT.into_iter().chain(LONG).enumerate() {
            let wr = 2 * wr as u64;
            let mut plain = SendPost::send(wr, &part(from, length));
            plain.wqe.solicited = wr % 4 == 0;
            let imm = SendPost::send(wr + 1, &part(from, length)).imm([1, 2, 3, length as u8]);
            pair.post_recv(B, wr, &[to.sge()]);
            pair.post_recv(B, wr + 1, &[to.sge()]);
            send(&mut pair, plain);
            send(&mut pair, imm);
        }
        succeed(&mut pair);
    }

    fn writes(&self, qp_type: QpType) {
        let mut pair = self.pair(qp_type);
        let (from, to) = buffers(&mut pair, 2048);
        for (wr, length) in SHORT.into_iter().chain(LONG).enumerate() {
            let wr = 2 * wr as u64;
            pair.post_recv(B, wr, &[]);
            send(&mut pair, SendPost::write(wr, &part(from, length), to));
            let imm = SendPost::write(wr + 1, &part(from, length), to).imm([4, 3, 2, length as u8]);
            send(&mut pair, imm);
        }
        succeed(&mut pair);
    }

    fn invalidates(&self, qp_type: QpType) {
        let mut pair = self.pair(qp_type);
        let (from, to) = buffers(&mut pair, 2048);
        for (wr, length) in [3, 256, 258, 1024].into_iter().enumerate() {
            let wr = wr as u64;
            let mut post = SendPost::new(wr, WqeOpcode::SendInv, &part(from, length));
            post.wqe.imm = pair.zeros(B, 8).key.to_le_bytes();
            pair.post_recv(B, wr, &[to.sge()]);
            send(&mut pair, post);
        }
        succeed(&mut pair);
    }

    fn reads(&self, qp_type: QpType) {
        let mut pair = self.pair(qp_type);
        let (to, from) = buffers(&mut pair, 2048);
        for (wr, length) in SHORT.into_iter().chain(LONG).enumerate() {
            send(
                &mut pair,
                SendPost::read(wr as u64, &part(to, length), from),
            );
        }
        succeed(&mut pair);
    }

    fn atomics(&self, qp_type: QpType) {
        let mut pair = self.pair(qp_type);
        let (to, from) = buffers(&mut pair, 8);
        let (addr, key) = (from.addr, from.key);
        let mut swap = SendPost::new(1, WqeOpcode::CompareSwap, &[to.sge()]).at(addr, key);
        swap.wqe.compare_add = u64::from_ne_bytes([7; 8]);
        swap.wqe.swap = 0x0102_0304_0506_0708;
        let mut add = SendPost::new(2, WqeOpcode::FetchAdd, &[to.sge()]).at(addr, key);
        add.wqe.compare_add = 0xfedc_ba98_7654_3210;
        send(&mut pair, swap);
        send(&mut pair, add);
        succeed(&mut pair);
    }

    fn placements(&self, qp_type: QpType) {
        let mut pair = self.pair(qp_type);
        let (from, to) = buffers(&mut pair, 8);
        send(&mut pair, SendPost::atomic_write(1, &[from.sge()], to));
        // A FLUSH of a range and of the whole region, with global visibility.
        for level in [0, 1] {
            let how = Feth {
                placement: 1,
                level,
            };
            send(&mut pair, SendPost::flush(2 + u64::from(level), how, to));
        }
        succeed(&mut pair);
    }

    fn datagrams(&self) {
        let mut pair = self.pair(QpType::Ud);
        let (from, to) = buffers(&mut pair, 512);
        for (wr, length) in SHORT.into_iter().enumerate() {
            for imm in [false, true] {
                let wr = 2 * wr as u64 + u64::from(imm);
                let mut post = SendPost::send(wr, &part(from, length));
                post.wqe.datagram = Some(Box::new(DatagramDest {
                    path: self.paths[0],
                    qpn: QPN_B,
                    qkey: QKEY,
                    pkey: None,
                }));
                if imm {
                    post = post.imm([9, 8, 7, length as u8]);
                }
                pair.post_recv(B, wr, &[to.sge()]);
                send(&mut pair, post);
            }
        }
        succeed(&mut pair);
    }

    /// Sends with the largest path MTU: a message of one whole packet and one byte more.
    fn big_packets(&self) {
        let mut pair = self.pair_of(PairSetup {
            attr: Attr {
                path_mtu: 4096,
                ..PairSetup::default().attr
            },
            ..PairSetup::default()
        });
        let (from, to) = buffers(&mut pair, 4097);
        send(&mut pair, SendPost::write(1, &[from.sge()], to));
        send(&mut pair, SendPost::read(2, &[from.sge()], to));
        succeed(&mut pair);
    }

    /// Causes the NAKs that end a connection.
    fn refusals(&self) {
        type PostFn = fn(&mut QpPair, ArenaBuffer, ArenaBuffer);
        let acts: [(WcStatus, PostFn); 3] = [
            (WcStatus::RemInvReqErr, |pair, from, to| {
                pair.post_recv(B, 1, &[to.part(0, 3)]);
                send(pair, SendPost::send(1, &[from.part(0, 4)]));
            }),
            (WcStatus::RemAccessErr, |pair, from, to| {
                send(
                    pair,
                    SendPost::write(1, &[from.sge()], to).at(to.addr, 0xbad),
                );
            }),
            (WcStatus::RemOpErr, |pair, from, to| {
                let sge = Sge {
                    lkey: 0xbad,
                    ..to.sge()
                };
                pair.post_recv(B, 1, &[sge]);
                send(pair, SendPost::send(1, &[from.part(0, 4)]));
            }),
        ];
        for (status, act) in acts {
            let mut pair = self.pair(QpType::Rc);
            let (from, to) = buffers(&mut pair, 64);
            act(&mut pair, from, to);
            pair.settle();
            assert_eq!(pair.statuses(A), [(1, status)]);
        }
    }

    /// Causes RNR NAKs until a receive is posted.
    fn not_ready(&self) {
        let mut pair = self.pair(QpType::Rc);
        let (from, to) = buffers(&mut pair, 64);
        send(&mut pair, SendPost::send(1, &[from.part(0, 4)]));
        pair.run_until(pair.now_ns + 30_000);
        pair.post_recv(B, 1, &[to.sge()]);
        succeed(&mut pair);
    }

    /// Causes a gap in a SEND, and a gap in the responses of a READ.
    fn losses(&self) {
        let mut pair = self.pair(QpType::Rc);
        let (from, to) = buffers(&mut pair, 1024);
        pair.link.drop_if = Some(|packet| packet.psn == 0xff_fff1 && packet.kind.is_request());
        pair.post_recv(B, 1, &[to.sge()]);
        send(&mut pair, SendPost::send(1, &[from.sge()]));
        pair.run_until(pair.now_ns + 20_000);
        pair.link.drop_if = None;
        pair.settle();
        pair.link.drop_if = Some(|packet| matches!(packet.kind, PacketKind::ReadResponse(None)));
        send(&mut pair, SendPost::read(2, &[from.sge()], to));
        pair.run_until(pair.now_ns + 20_000);
        pair.link.drop_if = None;
        succeed(&mut pair);
    }
}

/// Posts a work request to A. On an extended connection, the work request names the SRQ at B.
fn send(pair: &mut QpPair, mut post: SendPost) {
    post.wqe.srqn = SRQN;
    pair.post(A, post);
}

fn buffers(pair: &mut QpPair, length: usize) -> (ArenaBuffer, ArenaBuffer) {
    let (from, to) = (vec![7; length], vec![7; length]);
    (pair.buffer(A, &from), pair.buffer(B, &to))
}

/// Returns an SGE for the beginning of a buffer, or none for no bytes.
fn part(buffer: ArenaBuffer, length: u32) -> Vec<Sge> {
    let sge = buffer.part(0, length);
    Some(sge).filter(|_| length > 0).into_iter().collect()
}

fn succeed(pair: &mut QpPair) {
    pair.settle();
    let posted = pair.adapter.queues[0].sq.len();
    let statuses = pair.statuses(A);
    assert_eq!(statuses.len(), posted);
    assert!(
        statuses
            .iter()
            .all(|(_, status)| *status == WcStatus::Success),
        "{statuses:?}"
    );
}
