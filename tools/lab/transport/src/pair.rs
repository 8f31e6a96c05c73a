// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Two connected queue pairs and the world between them.

use super::arena::ArenaBuffer;
use super::link_model::{LinkItem, LinkMode, LinkModel};
use super::mock_adapter::{MockAdapter, PairSide, RecvPost, SendPost};
use super::tap::{FrameFate, FrameTap, TappedFrame, WorkRequestInfo};
use std::rc::Rc;
use verbena_abi::ctx::access;
use verbena_transport::frame;
use verbena_transport::host::{
    CopyFault, CopyTarget, EventType, Sge, Syndrome, WcStatus, WorkCompletion, WqeOpcode,
};
use verbena_transport::packet::Packet;
use verbena_transport::psn;
use verbena_transport::wire::{ipv4_to_gid, Path};
use verbena_transport::{Attr, Budget, Host, Qp, QpConfig, QpState, QpType, ReassemblyQuota};

/// The configuration of a pair.
#[derive(Clone, Debug)]
pub struct PairSetup {
    /// Transport service; for an extended connection, that of end A.
    pub qp_type: QpType,
    /// Mode in which packets travel.
    pub mode: LinkMode,
    /// Seed of the link.
    pub seed: u64,
    /// Attributes of both ends, except QPNs and PSNs.
    pub attr: Attr,
    /// First PSNs of A and B.
    pub psns: [u32; 2],
    /// Number of packets that may be unacknowledged.
    pub window: u32,
    /// Highest number of packets of a super-packet on a wire.
    pub wire_super_packets: u8,
    /// Minimum of the local ACK timeout in nanoseconds.
    pub min_timeout_ns: u64,
    /// Budget of one call of poll.
    pub budget: Budget,
    /// True if both ends recover on a wire as this engine does; if false, as the specification
    /// describes.
    pub recovers: bool,
    /// True if both ends apply congestion control on a wire.
    pub congestion_control: bool,
    /// True if both ends take receives from SRQs.
    pub has_srq: bool,
    /// Paths of the frames from A and B.
    pub paths: [Path; 2],
}

impl Default for PairSetup {
    fn default() -> Self {
        Self {
            qp_type: QpType::Rc,
            mode: LinkMode::Local,
            seed: 1,
            attr: Attr {
                path_mtu: 256,
                access_flags: access::REMOTE_WRITE
                    | access::REMOTE_READ
                    | access::REMOTE_ATOMIC
                    | access::FLUSH_GLOBAL,
                qkey: 0x1234,
                max_rd_atomic: 4,
                max_dest_rd_atomic: 4,
                min_rnr_timer: 1,
                timeout: 8,
                retry_cnt: 7,
                rnr_retry: 7,
                ..Attr::default()
            },
            psns: [0xff_fff0, 5],
            window: 64,
            wire_super_packets: 1,
            min_timeout_ns: 100_000,
            budget: Budget::new(16, 64 << 10),
            recovers: true,
            congestion_control: true,
            has_srq: false,
            paths: [path(PairSide::A), path(PairSide::B)],
        }
    }
}

/// Returns the usual path of frames from one side.
pub fn path(from: PairSide) -> Path {
    let (a, b) = (ipv4_to_gid([10, 0, 0, 1]), ipv4_to_gid([10, 0, 0, 2]));
    let (sgid, dgid) = if from == PairSide::A { (a, b) } else { (b, a) };
    Path {
        sgid,
        dgid,
        smac: [2; 6],
        dmac: [4; 6],
        ..Path::default()
    }
}

/// Two queue pairs, the world around them and the link between them.
#[derive(Debug)]
pub struct QpPair {
    /// Queue pairs of A and B.
    pub qps: [Qp; 2],
    /// Memory and rings of both ends.
    pub adapter: MockAdapter,
    /// The link between the queue pairs.
    pub link: LinkModel,
    /// Virtual time in nanoseconds.
    pub now_ns: u64,
    /// Observer that is shown each frame (mode [`LinkMode::Wire`]).
    pub tap: Option<Box<dyn FrameTap>>,
    setup: PairSetup,
}

impl QpPair {
    /// Returns a connected pair of the given setup, both in RTS.
    pub fn new(setup: PairSetup) -> Self {
        let mut pair = Self::in_reset(setup);
        for side in [PairSide::A, PairSide::B] {
            pair.connect(side);
        }
        pair
    }

    /// Returns a pair of reliable connections.
    pub fn rc(mode: LinkMode) -> Self {
        Self::new(PairSetup {
            mode,
            ..PairSetup::default()
        })
    }

    /// Returns a pair that is not connected yet.
    pub fn in_reset(setup: PairSetup) -> Self {
        let qp = |side: PairSide| {
            let qp_type = match (side, setup.qp_type) {
                (PairSide::B, QpType::XrcIni) => QpType::XrcTgt,
                (PairSide::B, QpType::XrcTgt) => QpType::XrcIni,
                (_, qp_type) => qp_type,
            };
            let mut config = QpConfig::new(0x10 + side as u32, qp_type, 100 + side as u32);
            config.window = setup.window;
            config.wire_window = setup.window;
            config.has_srq = setup.has_srq || qp_type == QpType::XrcTgt;
            config.super_bytes = 4096;
            config.wire_super_packets = setup.wire_super_packets;
            config.min_timeout_ns = setup.min_timeout_ns;
            config.recovers = setup.recovers;
            config.congestion_control = setup.congestion_control;
            if !setup.recovers {
                config.reassembly_bytes = 0;
            }
            Qp::new(config)
        };
        let mut world = MockAdapter::default();
        for side in [PairSide::A, PairSide::B] {
            world.queues(side).pd = 100 + side as u32;
        }
        Self {
            qps: [qp(PairSide::A), qp(PairSide::B)],
            adapter: world,
            link: LinkModel::new(setup.mode, setup.seed),
            now_ns: 0,
            tap: None,
            setup,
        }
    }

    /// Returns the attributes of one side for its present connection.
    pub fn attr(&self, side: PairSide) -> Attr {
        Attr {
            dest_qpn: 0x10 + side.peer() as u32,
            sq_psn: self.setup.psns[side as usize],
            rq_psn: self.setup.psns[side.peer() as usize],
            local_peer: self.setup.mode == LinkMode::Local,
            ..self.setup.attr
        }
    }

    /// Returns one queue pair.
    pub fn qp(&mut self, side: PairSide) -> &mut Qp {
        &mut self.qps[side as usize]
    }

    /// Limits the bytes that a side keeps of packets ahead of a gap.
    pub fn restrict(&mut self, side: PairSide, bytes: u64) -> Rc<ReassemblyQuota> {
        let allowance = ReassemblyQuota::new(bytes);
        self.qps[side as usize].set_reassembly_quota(Rc::clone(&allowance));
        allowance
    }

    /// Moves a queue pair to a state with its attributes.
    pub fn modify(&mut self, side: PairSide, to: QpState) -> Result<(), Syndrome> {
        let attr = self.attr(side);
        self.modify_attr(side, to, &attr)
    }

    /// Moves a queue pair to a state with other attributes.
    pub fn modify_attr(
        &mut self,
        side: PairSide,
        to: QpState,
        attr: &Attr,
    ) -> Result<(), Syndrome> {
        self.qps[side as usize].handle_modify(&mut self.adapter.host(side), self.now_ns, to, attr)
    }

    /// Moves a queue pair from RESET to RTS.
    pub fn connect(&mut self, side: PairSide) {
        if let Some(tap) = &mut self.tap {
            tap.on_connect(self.qps[side as usize].config().qpn);
        }
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            self.modify(side, to).unwrap();
        }
    }

    /// Moves a queue pair to RESET and empties its rings, as a driver does.
    pub fn reset(&mut self, side: PairSide) {
        self.modify(side, QpState::Reset).unwrap();
        let end = self.adapter.queues(side);
        end.sq.clear();
        end.rq.clear();
        end.completions.clear();
        end.events.clear();
        (end.sends_done, end.taken, end.recvs_done) = (0, 0, 0);
    }

    /// Moves both queue pairs from RESET to RTS, with new first PSNs.
    pub fn restart(&mut self, psns: [u32; 2]) {
        self.setup.psns = psns;
        for side in [PairSide::A, PairSide::B] {
            self.connect(side);
        }
    }

    /// Registers a buffer with all access rights.
    pub fn buffer(&mut self, side: PairSide, bytes: &[u8]) -> ArenaBuffer {
        self.adapter.buffer(side, bytes.to_vec())
    }

    /// Registers a buffer of zeros.
    pub fn zeros(&mut self, side: PairSide, len: usize) -> ArenaBuffer {
        self.adapter.buffer(side, vec![0; len])
    }

    /// Posts a send and rings the doorbell.
    pub fn post(&mut self, side: PairSide, post: SendPost) {
        let end = self.adapter.queues(side);
        end.sq.push(post);
        let producer = end.sq.len() as u32;
        self.qps[side as usize].handle_posts(self.now_ns, producer);
    }

    /// Posts a receive, without informing the queue pair.
    pub fn post_recv(&mut self, side: PairSide, wr_id: u64, sges: &[Sge]) {
        self.adapter.queues(side).rq.push(RecvPost {
            wr_id,
            sges: sges.to_vec(),
            malformed: None,
        });
    }

    /// Polls both queue pairs until they have nothing more to do, and puts their packets on the
    /// link.
    fn run(&mut self) {
        for side in [PairSide::A, PairSide::B] {
            loop {
                let mut budget = self.setup.budget;
                let more = self.qps[side as usize].poll(
                    &mut self.adapter.host(side),
                    self.now_ns,
                    &mut budget,
                );
                self.carry(side);
                if !more {
                    break;
                }
            }
        }
    }

    /// Puts the packets that a side has sent on the link.
    fn carry(&mut self, side: PairSide) {
        for packet in std::mem::take(&mut self.adapter.queues(side).out) {
            match self.link.mode {
                LinkMode::Local => self.carry_one(side, packet),
                LinkMode::Split | LinkMode::Wire => {
                    let mtu = self.setup.attr.path_mtu;
                    packet
                        .split(mtu)
                        .for_each(|packet| self.carry_one(side, packet));
                }
            }
        }
    }

    fn carry_one(&mut self, side: PairSide, mut packet: Packet) {
        packet.marked = self.link.is_marked(&packet);
        let lost = self.link.is_lost(side, &packet);
        if self.link.mode != LinkMode::Wire {
            if !lost {
                self.link.push(self.now_ns, side, LinkItem::Packet(packet));
            }
            return;
        }
        if !packet.payload.is_alive() || (lost && self.tap.is_none()) {
            return;
        }
        let mut bytes = Vec::new();
        let path = &self.setup.paths[side as usize];
        let mut host = self.adapter.host(side);
        let emitted = frame::emit(path, &packet, &mut bytes, |place| {
            if place.is_empty() {
                return Ok(());
            }
            host.copy(CopyTarget::Buffer(place), packet.payload.source())
        });
        match emitted {
            Ok(()) => {
                self.report_to_tap(side, &packet, &bytes, lost);
                if !lost {
                    self.link.push(self.now_ns, side, LinkItem::Frame(bytes));
                }
            }
            Err(CopyFault::Source(_) | CopyFault::Target(_)) if lost => {}
            Err(CopyFault::Source(cause) | CopyFault::Target(cause)) => {
                self.qps[side as usize].handle_source_fault(
                    &mut self.adapter.host(side),
                    self.now_ns,
                    &packet,
                    cause,
                );
            }
        }
    }

    fn report_to_tap(&mut self, from: PairSide, packet: &Packet, frame: &[u8], lost: bool) {
        let requester = if packet.kind.is_request() {
            from
        } else {
            from.peer()
        };
        let work = self.work_at(requester, packet.psn);
        if let Some(tap) = &mut self.tap {
            tap.on_frame(&TappedFrame {
                now_ns: self.now_ns,
                frame,
                packet,
                work,
                fate: if lost {
                    FrameFate::Lost
                } else {
                    FrameFate::Delivered
                },
                is_hollow: false,
            });
        }
    }

    /// Returns the work request of a side that has a PSN, counted from its first PSN over all
    /// posted work requests.
    pub fn work_at(&self, side: PairSide, at: u32) -> Option<WorkRequestInfo> {
        let mtu = self.setup.attr.path_mtu;
        let mut first_psn = self.setup.psns[side as usize];
        for post in &self.adapter.queues[side as usize].sq {
            let length = if post.inline.is_empty() {
                post.sges.iter().map(|sge| sge.length).sum()
            } else {
                post.inline.len() as u32
            };
            let psns = match post.wqe.opcode {
                WqeOpcode::LocalInv | WqeOpcode::FastReg => 0,
                WqeOpcode::CompareSwap
                | WqeOpcode::FetchAdd
                | WqeOpcode::AtomicWrite
                | WqeOpcode::Flush => 1,
                _ if self.setup.qp_type == QpType::Ud && length > mtu => 0,
                _ => length.div_ceil(mtu).max(1),
            };
            if psn::ahead(at, first_psn) < psns {
                return Some(WorkRequestInfo {
                    wr_id: post.wqe.wr_id,
                    opcode: post.wqe.opcode,
                    first_psn,
                    psns,
                    path_mtu: mtu,
                });
            }
            first_psn = psn::add(first_psn, psns);
        }
        None
    }

    /// Runs until no event is left, or until a time.
    pub fn run_until(&mut self, end: u64) {
        for _ in 0..10_000_000u32 {
            self.run();
            while let Some((side, carried)) = self.link.pop(self.now_ns) {
                let packet = match carried {
                    LinkItem::Packet(packet) => packet,
                    LinkItem::Frame(bytes) => {
                        let parse = match self.setup.paths[side as usize].local_route {
                            Some(_) => frame::parse_infiniband,
                            None => frame::parse,
                        };
                        parse(&bytes).expect("own frames are valid").packet
                    }
                };
                self.deliver(side, packet);
                self.run();
            }
            let deadline = self.qps.iter().filter_map(Qp::next_deadline).min();
            let next = match (self.link.next_arrival_ns(), deadline) {
                (Some(a), Some(b)) => a.min(b),
                (Some(at), None) | (None, Some(at)) => at,
                (None, None) => return,
            };
            if next > end {
                self.now_ns = end;
                return;
            }
            self.now_ns = self.now_ns.max(next);
        }
        panic!("the simulation does not settle");
    }

    /// Runs until no event is left, for at most a minute of virtual time.
    pub fn settle(&mut self) {
        self.run_until(self.now_ns + 60_000_000_000);
    }

    /// Hands a packet to a queue pair.
    pub fn deliver(&mut self, side: PairSide, packet: Packet) {
        self.qps[side as usize].handle_packet(&mut self.adapter.host(side), self.now_ns, packet);
        self.carry(side);
    }

    /// Removes and returns the completions of a side.
    pub fn completions(&mut self, side: PairSide) -> Vec<WorkCompletion> {
        std::mem::take(&mut self.adapter.queues(side).completions)
    }

    /// Removes and returns the completions of a side, as `wr_id` and status.
    pub fn statuses(&mut self, side: PairSide) -> Vec<(u64, WcStatus)> {
        self.completions(side)
            .iter()
            .map(|c| (c.wr_id, c.status))
            .collect()
    }

    /// Removes and returns the events of a side.
    pub fn events(&mut self, side: PairSide) -> Vec<EventType> {
        std::mem::take(&mut self.adapter.queues(side).events)
            .into_iter()
            .map(|(event, _)| event)
            .collect()
    }

    /// Returns the state of a queue pair.
    pub fn state(&self, side: PairSide) -> QpState {
        self.qps[side as usize].state()
    }
}
