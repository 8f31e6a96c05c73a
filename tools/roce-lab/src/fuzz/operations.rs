// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Two or four queue pairs, connected in pairs, and whatever may happen to them.
//!
//! The first bytes choose the setup; each operation after that is a byte with its operands behind it. At the end all
//! queue pairs go to ERR, and everything posted must have completed, once. [`NodeHost`](super::node::NodeHost) asserts
//! the rest, and [`Lab::settle`] that a queue pair comes to rest and does not want to be woken in the past.

use super::node::{pd, Recv, Region, Send, World, REGIONS};
use super::Input;
use std::rc::Rc;
use verbena_abi::ctx::access;
use verbena_roce::host::{
    AtomicOp, CopyFault, DatagramDest, EventType, SendWqe, Sge, Syndrome, Target, WcStatus,
    WqeError, WqeOpcode,
};
use verbena_roce::packet::{
    Aeth, AethSyndrome, Datagram, Kind, NakCode, Packet, Payload, Reth, Transport,
};
use verbena_roce::wire::opcode::{self, op, Header};
use verbena_roce::wire::{
    atomic_ack_eth, atomic_eth, deth, extensions, frame, ieth, imm_dt, ipv4_to_gid, Path,
};
use verbena_roce::{psn, Attr, Budget, Config, Host, Qp, QpState, QpType};

/// Polls after which a queue pair that has more to do is taken for one that hangs.
const MAX_POLLS: u32 = 20_000;
/// Packets under way; the oldest are lost beyond that.
const MAX_FLIGHT: usize = 256;
/// Posts of one life of a queue pair.
const MAX_POSTS: usize = 64;
/// Time is not moved beyond this.
const MAX_TIME: u64 = 1 << 62;
const QKEY: u32 = 0x1234;
const OPCODES: [WqeOpcode; 10] = [
    WqeOpcode::RdmaWrite,
    WqeOpcode::RdmaWriteImm,
    WqeOpcode::Send,
    WqeOpcode::SendImm,
    WqeOpcode::RdmaRead,
    WqeOpcode::CompareSwap,
    WqeOpcode::FetchAdd,
    WqeOpcode::LocalInv,
    WqeOpcode::SendInv,
    WqeOpcode::FastReg,
];
const STATES: [QpState; 8] = [
    QpState::Rts,
    QpState::Sqd,
    QpState::Rts,
    QpState::Reset,
    QpState::Init,
    QpState::Rtr,
    QpState::Sqe,
    QpState::Err,
];

/// How packets travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// As they are: super-packets by reference.
    Local,
    /// Split into single packets, by reference.
    Split,
    /// As frames.
    Wire,
}

/// The whole scene.
struct Lab {
    qps: Vec<Qp>,
    world: World,
    /// Packets under way, with where they go.
    flight: Vec<(usize, Packet)>,
    mode: Mode,
    attr: Attr,
    psns: [u32; 2],
    now: u64,
    wr_id: u64,
    /// What payloads of forged packets are cut from.
    junk: Rc<Vec<u8>>,
}

/// Runs a sequence of operations.
pub fn operations(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut lab = Lab::new(&mut input);
    while !input.is_empty() {
        lab.operation(&mut input);
    }
    lab.finish();
}

fn path(from: usize) -> Path {
    let gid = |node: usize| ipv4_to_gid([10, 0, 0, node as u8 + 1]);
    Path {
        sgid: gid(from),
        dgid: gid(from ^ 1),
        ..Path::default()
    }
}

/// Lengths around what matters: single bytes, MTUs, a whole region.
fn length(input: &mut Input<'_>) -> u32 {
    match input.u8() {
        small @ 0..=63 => u32::from(small),
        mtu @ 64..=191 => (u32::from((mtu - 64) / 8) * 128 + u32::from(mtu % 8)).saturating_sub(3),
        big @ 192..=253 => u32::from(big - 191) * 33,
        254 => 8,
        255 => input.u32(),
    }
}

fn sges(input: &mut Input<'_>, own: usize, count: u8) -> Vec<Sge> {
    (0..count % 4)
        .map(|_| {
            let (kind, offset) = (input.u8(), u64::from(input.u8()) * 8);
            // Mostly a region of its own.
            let index = match kind & 0x1f {
                0 => usize::from(kind >> 5),
                _ => own * (REGIONS / 2) + usize::from(kind >> 5) % (REGIONS / 2),
            };
            Sge {
                addr: Region::addr(index).wrapping_add(if kind & 0x1e == 2 { offset } else { 0 }),
                length: length(input),
                lkey: Region::key(index),
            }
        })
        .collect()
}

/// An address and a key at the other end, mostly valid.
fn remote(input: &mut Input<'_>, peer: usize) -> (u64, u32) {
    let kind = input.u8();
    let index = match kind & 0x1f {
        0 => usize::from(kind >> 5),
        _ => peer * (REGIONS / 2) + usize::from(kind >> 5) % (REGIONS / 2),
    };
    let offset = match kind & 0x1f {
        1..=8 => u64::from(input.u8()) * 8,
        9 => u64::from(input.u16()),
        10 => 0u64.wrapping_sub(u64::from(input.u8())),
        _ => 0,
    };
    let key = if kind & 0x1f == 11 {
        input.u32()
    } else {
        Region::key(index)
    };
    (Region::addr(index).wrapping_add(offset), key)
}

impl Lab {
    fn new(input: &mut Input<'_>) -> Self {
        let (kind, shape) = (input.u8(), input.u8());
        let qp_type = match kind % 8 {
            0..=3 => QpType::Rc,
            4 | 5 => QpType::Uc,
            6 => QpType::Ud,
            _ => QpType::Gsi,
        };
        let mode = match kind >> 3 & 3 {
            0 | 1 => Mode::Local,
            2 => Mode::Split,
            _ => Mode::Wire,
        };
        let has_srq = kind & 0x20 != 0;
        let count = if kind & 0x40 != 0 { 4 } else { 2 };
        let limits = input.u8();
        let attr = Attr {
            path_mtu: [256, 256, 512, 1024][usize::from(shape & 3)],
            access_flags: access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC,
            qkey: QKEY,
            max_rd_atomic: limits & 3,
            max_dest_rd_atomic: limits >> 2 & 3,
            min_rnr_timer: 1,
            timeout: [8, 0, 1, 14][usize::from(limits >> 4 & 3)],
            retry_cnt: [7, 1][usize::from(limits >> 6 & 1)],
            rnr_retry: [7, 1][usize::from(limits >> 7)],
            sqd_notify: shape & 4 != 0,
            local_peer: mode == Mode::Local,
            ..Attr::default()
        };
        let psns = match shape >> 3 & 3 {
            0 => [0, 0],
            1 => [0xff_fffe, 0xff_ffff],
            2 => [0x7f_fff8, 0x80_0000],
            _ => [input.u32() & 0xff_ffff, input.u32() & 0xff_ffff],
        };
        let config = |node: usize| {
            let mut config = Config::new(0x10 + node as u32, qp_type, pd(node));
            config.has_srq = has_srq;
            config.window = [64, 4, 1, 2048][usize::from(shape >> 5 & 3)];
            config.wire_window = config.window.min(128);
            config.super_bytes = if shape & 0x80 != 0 { 4096 } else { 1024 };
            config.max_outstanding = if kind & 0x80 != 0 { 2 } else { 64 };
            config.max_msg_size = if shape & 0x80 != 0 { 1 << 31 } else { 4000 };
            config.min_timeout_ns = 100_000;
            config.credits = (kind & 8 != 0) == (limits & 0x80 != 0);
            config
        };
        let mut lab = Self {
            qps: (0..count).map(|node| Qp::new(config(node))).collect(),
            world: World::new(count, has_srq, kind & 0x10 != 0),
            flight: Vec::with_capacity(32),
            mode,
            attr,
            psns,
            now: 0,
            wr_id: 1,
            junk: Rc::new(vec![0x5a; 1100]),
        };
        (0..count).for_each(|node| lab.connect(node));
        lab
    }

    fn attr(&self, node: usize) -> Attr {
        Attr {
            dest_qpn: 0x10 + (node ^ 1) as u32,
            sq_psn: self.psns[node & 1],
            rq_psn: self.psns[node & 1 ^ 1],
            ..self.attr
        }
    }

    fn modify(&mut self, node: usize, to: QpState, attr: &Attr) -> Result<(), Syndrome> {
        // The driver empties the rings of a queue pair in RESET, and nothing is reported from there.
        let was = self.world.nodes[node].idle;
        if to == QpState::Init {
            self.world.nodes[node].idle = false;
        }
        let result = self.qps[node].handle_modify(&mut self.world.host(node), self.now, to, attr);
        match result {
            Ok(()) if to == QpState::Reset => self.world.nodes[node].clear(),
            Ok(()) => {}
            Err(_) => self.world.nodes[node].idle = was,
        }
        self.carry(node);
        result
    }

    fn connect(&mut self, node: usize) {
        let attr = self.attr(node);
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let result = self.modify(node, to, &attr);
            assert_eq!(result, Ok(()), "to {to:?}");
        }
    }

    fn operation(&mut self, input: &mut Input<'_>) {
        let code = input.u8();
        let node = usize::from(code >> 6) % self.qps.len();
        match code & 0x3f {
            0..=15 => self.post_send(node, code & 8 != 0, input),
            16..=21 => self.post_recv(node, input),
            22 => self.tell(node),
            23..=26 => self.deliver(0),
            27 | 28 => self.deliver(usize::from(input.u8())),
            29 | 30 => drop(self.take(input)),
            31 => self.duplicate(input),
            32..=34 => {
                let packets = u32::from(code & 3) * 3 + 1;
                self.poll(node, &mut Budget::new(packets, 3000));
            }
            35..=39 => self.run(usize::from(code & 7) * 16),
            40..=42 => self.wait_for_deadline(),
            43 => {
                self.now = self
                    .now
                    .saturating_add(1 << (input.u8() & 0x3f))
                    .min(MAX_TIME)
            }
            44..=49 => self.forge(node, input),
            50 | 51 => self.change_state(node, input),
            52 => self.fail(node, input),
            53 | 54 => self.source_fault(input),
            55 | 56 => self.change_region(input),
            57 | 58 => self.tamper(input),
            59 => self.revive(node),
            60 => self.replace(node),
            61 => self.kill_ring(node, input),
            62 => {
                self.tell_receives(node);
                self.qps[node].prefetch();
                self.qps[node].prefetch_work();
                self.qps[node].prefetch_buffers();
            }
            _ => self.settle_all(),
        }
    }

    fn post_send(&mut self, node: usize, tell: bool, input: &mut Input<'_>) {
        let (opcode, flags) = (input.u8(), input.u8());
        let opcode = OPCODES[usize::from(opcode) % OPCODES.len()];
        let has = |bit: u8| flags & bit != 0;
        let mut wqe = SendWqe {
            wr_id: self.wr_id,
            opcode,
            signaled: has(1),
            solicited: has(2),
            fence: has(4),
            imm: [1, 2, 3, 4],
            compare_add: u64::from(has(8)),
            swap: 7,
            ..SendWqe::default()
        };
        match opcode {
            WqeOpcode::LocalInv | WqeOpcode::SendInv => {
                wqe.imm = remote(input, node & 1 ^ 1).1.to_le_bytes();
            }
            WqeOpcode::FastReg => wqe.rkey = u32::from(has(8)),
            WqeOpcode::Send | WqeOpcode::SendImm => {}
            _ => (wqe.remote_addr, wqe.rkey) = remote(input, node & 1 ^ 1),
        }
        if matches!(self.qps[node].config().qp_type, QpType::Ud | QpType::Gsi) && !has(8) {
            wqe.set_datagram(DatagramDest {
                path: path(node),
                qpn: 0x10 + (node ^ 1) as u32,
                qkey: match flags >> 6 {
                    0 | 1 => self.gsi_or(node, QKEY),
                    2 => 1 << 31,
                    _ => input.u32(),
                },
            });
        }
        let mut send = Send {
            wqe,
            sges: Vec::new(),
            inline: Vec::new(),
            malformed: None,
        };
        if has(0x10)
            && !matches!(
                opcode,
                WqeOpcode::RdmaRead | WqeOpcode::CompareSwap | WqeOpcode::FetchAdd
            )
        {
            send.inline = vec![3; usize::from(input.u8()) * 2];
        } else if matches!(opcode, WqeOpcode::CompareSwap | WqeOpcode::FetchAdd) && !has(0x20) {
            let index = (node & 1) * (REGIONS / 2);
            let (addr, lkey) = (Region::addr(index), Region::key(index));
            send.sges.push(Sge {
                addr,
                length: 8,
                lkey,
            });
        } else {
            send.sges = sges(input, node & 1, flags >> 5);
        }
        if flags == 0xff {
            send.malformed = Some(WqeError::new(WcStatus::LocQpOpErr, Syndrome::WqeFlags));
        }
        let ring = &mut self.world.nodes[node];
        if ring.idle || ring.sends.len() >= MAX_POSTS {
            return;
        }
        ring.sends.push(send);
        self.wr_id += 1;
        if tell {
            self.tell(node);
        }
    }

    /// Rings the doorbell.
    fn tell(&mut self, node: usize) {
        let ring = &mut self.world.nodes[node];
        ring.producer = ring.sends.len();
        self.qps[node].handle_posts(self.now, ring.producer as u32);
    }

    fn gsi_or(&self, node: usize, qkey: u32) -> u32 {
        match self.qps[node].config().qp_type {
            QpType::Gsi => 0x8001_0000,
            _ => qkey,
        }
    }

    fn tell_receives(&mut self, node: usize) {
        self.qps[node].handle_receives_posted(&mut self.world.host(node), self.now);
        self.carry(node);
    }

    fn post_recv(&mut self, at: usize, input: &mut Input<'_>) {
        let flags = input.u8();
        let recv = Recv {
            wr_id: self.wr_id,
            sges: sges(input, at & 1, flags),
            malformed: (flags >> 3 == 0x1f).then_some(Syndrome::RecvWqeMalformed),
        };
        let World { nodes, srq, .. } = &mut self.world;
        let node = &mut nodes[at];
        let ring = if node.has_srq { srq } else { &mut node.recvs };
        if node.idle || ring.posts.len() >= MAX_POSTS {
            return;
        }
        ring.posts.push(recv);
        self.wr_id += 1;
        if flags & 4 == 0 {
            self.tell_receives(at);
        }
    }

    fn take(&mut self, input: &mut Input<'_>) -> Option<(usize, Packet)> {
        let at = usize::from(input.u8());
        (!self.flight.is_empty()).then(|| self.flight.remove(at % self.flight.len()))
    }

    fn duplicate(&mut self, input: &mut Input<'_>) {
        let at = usize::from(input.u8());
        if !self.flight.is_empty() && self.flight.len() < MAX_FLIGHT {
            let copy = self.flight[at % self.flight.len()].clone();
            self.flight.push(copy);
        }
    }

    /// Delivers a packet that is under way.
    fn deliver(&mut self, at: usize) {
        if self.flight.is_empty() {
            return;
        }
        let (to, packet) = self.flight.remove(at % self.flight.len());
        self.give(to, packet);
    }

    fn give(&mut self, to: usize, packet: Packet) {
        self.qps[to].handle_packet(&mut self.world.host(to), self.now, packet);
        self.carry(to);
    }

    /// What a queue pair has sent goes on its way.
    fn carry(&mut self, node: usize) {
        if self.world.nodes[node].out.is_empty() {
            return;
        }
        let mut out = std::mem::take(&mut self.world.nodes[node].out);
        let mtu = self.qps[node].attr().path_mtu;
        for packet in out.drain(..) {
            match self.mode {
                Mode::Local => self.launch(node, packet),
                Mode::Split => packet
                    .split(mtu)
                    .for_each(|packet| self.launch(node, packet)),
                Mode::Wire => packet
                    .split(mtu)
                    .for_each(|packet| self.transmit(node, &packet)),
            }
        }
        if self.world.nodes[node].out.is_empty() {
            self.world.nodes[node].out = out;
        }
    }

    fn launch(&mut self, from: usize, packet: Packet) {
        if self.flight.len() >= MAX_FLIGHT {
            self.flight.remove(0);
        }
        self.flight.push((from ^ 1, packet));
    }

    /// Makes a frame of a packet, and a packet of that.
    fn transmit(&mut self, node: usize, packet: &Packet) {
        if !packet.payload.is_alive() {
            return;
        }
        let mut bytes = Vec::with_capacity(packet.payload.len() as usize + 96);
        let mut host = self.world.host(node);
        let emitted = frame::emit(&path(node), packet, &mut bytes, |place| match place {
            [] => Ok(()),
            _ => host.copy(Target::Buffer(place), packet.payload.source()),
        });
        match emitted {
            Ok(()) => {
                let frame = frame::parse(&bytes).expect("own frames are valid");
                self.launch(node, frame.packet);
            }
            Err(CopyFault::Source(cause) | CopyFault::Target(cause)) => {
                self.qps[node].handle_source_fault(
                    &mut self.world.host(node),
                    self.now,
                    packet,
                    cause,
                );
            }
        }
    }

    fn poll(&mut self, node: usize, budget: &mut Budget) -> bool {
        let more = self.qps[node].poll(&mut self.world.host(node), self.now, budget);
        self.carry(node);
        more
    }

    /// Polls until there is no more to do now.
    fn settle(&mut self, node: usize) {
        let mut polls = 0;
        while self.poll(node, &mut Budget::new(16, 64 << 10)) {
            polls += 1;
            assert!(polls < MAX_POLLS, "a queue pair does not come to rest");
        }
        if let Some(deadline) = self.qps[node].next_deadline() {
            assert!(
                deadline > self.now,
                "a deadline that has passed: {deadline} at {}",
                self.now
            );
        }
    }

    fn settle_all(&mut self) {
        (0..self.qps.len()).for_each(|node| self.settle(node));
    }

    /// Delivers in order, up to so many packets.
    fn run(&mut self, packets: usize) {
        self.settle_all();
        for _ in 0..packets {
            let Some((to, _)) = self.flight.first() else {
                return;
            };
            let to = *to;
            self.deliver(0);
            self.settle(to);
        }
    }

    fn wait_for_deadline(&mut self) {
        if let Some(next) = self.qps.iter().filter_map(Qp::next_deadline).min() {
            self.now = self.now.max(next.min(MAX_TIME));
        }
    }

    fn change_state(&mut self, node: usize, input: &mut Input<'_>) {
        let (to, fields) = (input.pick(&STATES), input.u8());
        let mut attr = *self.qps[node].attr();
        if self.qps[node].state() == QpState::Reset || self.qps[node].state() == QpState::Init {
            attr = self.attr(node);
        }
        let has = |bit: u8| fields & bit != 0;
        if has(1) {
            attr.access_flags = u32::from(input.u8()) & access::ALL;
        }
        if has(2) {
            (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (input.u8(), input.u8());
        }
        if has(4) {
            (attr.min_rnr_timer, attr.timeout) = (input.u8(), input.u8());
        }
        if has(8) {
            (attr.retry_cnt, attr.rnr_retry) = (input.u8(), input.u8());
        }
        if has(0x10) {
            (attr.qkey, attr.pkey) = (input.u32(), input.u16());
        }
        if has(0x20) {
            attr.sqd_notify = !attr.sqd_notify;
        }
        // Whatever the owner lets through: these are of one transition only, but nothing may depend on that.
        if has(0x40) {
            (attr.sq_psn, attr.rq_psn, attr.dest_qpn) = (input.u32(), input.u32(), input.u32());
        }
        if has(0x80) {
            attr.path_mtu = input.pick(&[256, 512, 1024, 2048, 4096, 0, 1500]);
        }
        let _ = self.modify(node, to, &attr);
    }

    fn fail(&mut self, node: usize, input: &mut Input<'_>) {
        let event = (input.u8() & 1 != 0).then_some(EventType::QpFatal);
        self.qps[node].handle_failure(
            &mut self.world.host(node),
            self.now,
            event,
            Syndrome::CqDied,
        );
        self.carry(node);
    }

    /// Tells the sender of a packet that is under way that its payload could not be read.
    fn source_fault(&mut self, input: &mut Input<'_>) {
        if let Some((to, mut packet)) = self.take(input) {
            let from = to ^ 1;
            // Only of what a queue pair of this kind may have sent.
            let is_reliable = self.qps[from].config().qp_type == QpType::Rc;
            if is_reliable != (packet.transport == Transport::Rc) {
                return;
            }
            let flags = input.u8();
            if flags & 1 != 0 {
                packet.psn = psn::add(packet.psn, u32::from(flags));
            }
            let cause = Syndrome::LkeyUnreachable;
            self.qps[from].handle_source_fault(
                &mut self.world.host(from),
                self.now,
                &packet,
                cause,
            );
            self.carry(from);
        }
    }

    fn change_region(&mut self, input: &mut Input<'_>) {
        let what = input.u8();
        let index = usize::from(what & 7) % REGIONS;
        let region = &mut self.world.regions[index];
        match what >> 3 & 7 {
            0..=2 => region.valid = false,
            3 => region.access = u32::from(input.u8()) & access::ALL,
            4 => region.pd ^= 1,
            _ => *region = Region::new(index),
        }
    }

    /// Changes a packet that is under way as a peer in the same engine or a link may do.
    fn tamper(&mut self, input: &mut Input<'_>) {
        let (what, value) = (input.u8(), input.u8());
        if self.flight.is_empty() {
            return;
        }
        let at = usize::from(what >> 3) % self.flight.len();
        let (to, packet) = &mut self.flight[at];
        let mtu = self.qps[*to ^ 1].attr().path_mtu;
        match what & 7 {
            0 | 1 if packet.psns > 1 => {
                let (to, front) = (*to, packet.split_front(u32::from(value).max(1), mtu));
                self.flight.insert(at, (to, front));
            }
            2 if packet.psns > 1 => packet.trim_front(u32::from(value), mtu),
            3 => packet.ack_req = !packet.ack_req,
            4 => packet.psn = psn::add(packet.psn, u32::from(value)),
            5 => packet.psn = psn::add(packet.psn, 0xff_ffff - u32::from(value)),
            6 => packet.dst_qpn ^= u32::from(value),
            _ => packet.solicited = !packet.solicited,
        }
    }

    /// A queue pair is reset and connected again; its peer is not told.
    fn revive(&mut self, node: usize) {
        let attr = self.attr(node);
        let reset = self.modify(node, QpState::Reset, &attr);
        assert_eq!(reset, Ok(()));
        self.connect(node);
    }

    /// A queue pair is destroyed, and another one takes its place.
    fn replace(&mut self, node: usize) {
        self.qps[node] = Qp::new(self.qps[node].config().clone());
        self.world.nodes[node].clear();
        self.connect(node);
    }

    fn kill_ring(&mut self, node: usize, input: &mut Input<'_>) {
        if input.u8() & 7 == 0 {
            self.world.srq.dead = true;
            self.world.nodes[node].recvs.dead = true;
        }
    }

    /// A packet of any opcode with any fields, as a stranger may send it.
    fn forge(&mut self, node: usize, input: &mut Input<'_>) {
        let (code, flags) = (input.u8(), input.u8());
        let mtu = self.qps[node].attr().path_mtu;
        // Mostly of the service that the queue pair has.
        let code = match self.qps[node].config().qp_type {
            _ if flags & 0xc0 == 0xc0 => code,
            QpType::Rc => code & 0x1f,
            QpType::Uc => code & 0x1f | 0x20,
            QpType::Ud | QpType::Gsi => code & 0x1f | 0x60,
        };
        // Of what is refused for its opcode nothing else counts.
        let refused = opcode::is_refused(code);
        let shape = if refused { op::ACKNOWLEDGE } else { code };
        let Some((service, row)) = opcode::lookup(shape) else {
            return;
        };
        let Some(transport) = service.transport else {
            return;
        };
        let mut headers = extensions::Repr::default();
        for header in service.headers.iter().chain(row.headers) {
            let (addr, rkey) = match header {
                Header::Reth | Header::AtomicEth | Header::Ieth => remote(input, node & 1),
                _ => (0, 0),
            };
            match header {
                Header::Deth => {
                    let qkey = match flags & 3 {
                        0 => input.u32(),
                        _ => self.gsi_or(node, QKEY),
                    };
                    headers.deth = Some(deth::Repr { qkey, src_qpn: 9 });
                }
                Header::Reth => {
                    let length = length(input);
                    headers.reth = Some(Reth { addr, rkey, length });
                }
                Header::AtomicEth => {
                    let op = AtomicOp::FetchAdd { add: 1 };
                    headers.atomic_eth = Some(atomic_eth::Repr::new(addr, rkey, op));
                }
                Header::Aeth => headers.aeth = Some(aeth(input)),
                Header::AtomicAckEth => {
                    headers.atomic_ack_eth = Some(atomic_ack_eth::Repr { original: 5 })
                }
                Header::ImmDt => headers.imm_dt = Some(imm_dt::Repr { data: [9; 4] }),
                Header::Ieth => headers.ieth = Some(ieth::Repr { rkey }),
                Header::Xrceth | Header::Feth => return,
            }
        }
        let Ok(mut kind) = headers.kind(row) else {
            return;
        };
        if refused {
            kind = Kind::Unknown(code);
        }
        let snapshot = self.qps[node].snapshot();
        let near = if kind.is_request() {
            snapshot.expected_psn
        } else {
            snapshot.una_psn
        };
        let psn = match flags >> 2 & 3 {
            0 => psn::add(near, u32::from(input.u8())),
            1 => psn::add(near, 0xff_ffff - u32::from(input.u8())),
            2 => near,
            _ => input.u32() & 0xff_ffff,
        };
        let payload = match row.payload {
            false => 0,
            true if flags & 0x10 != 0 => mtu.min(1024),
            true => length(input).min(self.junk.len() as u32),
        };
        let packet = Packet {
            transport,
            kind,
            first: row.first,
            last: row.last,
            solicited: flags & 0x20 != 0,
            ack_req: flags & 0x40 != 0,
            pkey: if flags & 0xe0 == 0xe0 { 0x7fff } else { 0xffff },
            dst_qpn: 0x10 + node as u32,
            src_qpn: headers.deth.map_or(0, |deth| deth.src_qpn),
            psn,
            psns: 1,
            datagram: headers.deth.map(|deth| {
                Rc::new(Datagram {
                    path: path(node ^ 1),
                    qkey: deth.qkey,
                    grh: [0; 40],
                })
            }),
            payload: match payload {
                0 => Payload::None,
                length => Payload::Bytes {
                    bytes: Rc::clone(&self.junk),
                    offset: 0,
                    length,
                },
            },
        };
        debug_assert!(transport != Transport::Ud || packet.datagram.is_some());
        if flags & 0x80 != 0 {
            self.launch(node ^ 1, packet);
        } else {
            self.give(node, packet);
        }
    }

    /// Everything ends in ERR: what was posted completes, once, and what is still under way touches nothing.
    fn finish(&mut self) {
        for node in 0..self.qps.len() {
            if self.qps[node].state() == QpState::Reset {
                continue;
            }
            if !self.world.nodes[node].recvs.dead {
                self.tell(node);
            }
            let attr = *self.qps[node].attr();
            let result = self.modify(node, QpState::Err, &attr);
            assert_eq!(result, Ok(()), "to ERR from {:?}", self.qps[node].state());
            self.settle(node);
            let ring = &self.world.nodes[node];
            let silent = ring.sends[ring.done..ring.producer].iter();
            assert!(
                silent.clone().all(|send| !send.wqe.signaled),
                "a send never completed"
            );
            let consumer = self.qps[node].snapshot().sq_consumer as usize;
            assert_eq!(
                consumer, ring.producer,
                "a send is still outstanding in ERR"
            );
            assert!(
                ring.held.is_empty(),
                "a receive that was taken never completed"
            );
            if !ring.has_srq && !ring.recvs.dead {
                assert_eq!(
                    ring.recvs.taken,
                    ring.recvs.posts.len(),
                    "a receive was not flushed"
                );
            }
        }
        while !self.flight.is_empty() {
            self.deliver(0);
            if self.flight.len() > MAX_FLIGHT / 2 {
                self.flight.clear();
            }
        }
        self.settle_all();
    }
}

fn aeth(input: &mut Input<'_>) -> Aeth {
    let (byte, msn) = (input.u8(), u32::from(input.u8()));
    let value = byte & 0x1f;
    let syndrome = match byte >> 5 {
        0..=2 => AethSyndrome::Ack { credits: value },
        3 => AethSyndrome::Rnr { timer: value },
        _ => AethSyndrome::Nak(match value % 5 {
            0 => NakCode::Sequence,
            1 => NakCode::InvalidRequest,
            2 => NakCode::RemoteAccess,
            3 => NakCode::RemoteOperational,
            _ => NakCode::InvalidRd,
        }),
    };
    Aeth { syndrome, msn }
}
