// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Delivery of packets: inside the device, through the bytes of a frame, or to the uplink.

use crate::capture::CaptureDirection;
use crate::device::sched::{ELEMENT_BYTES, SLICE_BYTES, SLICE_STEPS};
use crate::device::Device;
use crate::execution::host::QpHost;
use crate::memory::GuestMemory;
use crate::objects::infiniband::{self, InfiniBandPort};
use crate::objects::mcast;
use crate::objects::port::Outgoing;
use crate::observation::event::{DeviceEvent, DropReason, QpEvent};
use std::rc::Rc;
use verbena_abi::cmd::FIRST_QPN;
use verbena_abi::syndrome::Syndrome;
use verbena_transport::frame::{self, Frame};
use verbena_transport::host::CopyFault;
use verbena_transport::wire::bth::MULTICAST_QPN;
use verbena_transport::wire::{lrh, Malformed, Path};
use verbena_transport::Packet;

/// Most packets that one call hands to a QP.
const MAX_RUN: u32 = 32;

/// Number and payload of the packets that one call delivered.
#[derive(Default)]
pub(crate) struct Delivered {
    pub packets: u32,
    pub bytes: u64,
}

impl Delivered {
    pub(super) fn count(&mut self, out: &Outgoing) {
        self.packets += 1;
        self.bytes += u64::from(out.packet.payload.len());
    }
}

/// Prefixes of MAC addresses that routers share: VRRP over IPv4 and IPv6 (RFC 5798 7.3), HSRP of
/// both versions, GLBP.
const SHARED_BY_ROUTERS: [&[u8]; 5] = [
    &[0, 0, 0x5e, 0, 1],
    &[0, 0, 0x5e, 0, 2],
    &[0, 0, 0x0c, 0x07, 0xac],
    &[0, 0, 0x0c, 0x9f],
    &[0, 0x07, 0xb4],
];

/// True if the source address of a frame is the address that a QP sends to. The GID alone does not
/// prove that, because any host on the link can name it. The check replaces that of the SLID, which
/// has to be the SLID of the path (IBTA 9.6.1.5). Routers that share an address send with their own
/// addresses.
fn is_from(dmac: &[u8; 6], smac: &[u8; 6]) -> bool {
    dmac == smac || SHARED_BY_ROUTERS.iter().any(|oui| dmac.starts_with(oui))
}

/// Hands a packet to a QP if it is a datagram or comes from the peer of the QP. Other packets are
/// dropped and counted as [`QpEvent::PacketRefused`].
pub(super) fn take_in<M: GuestMemory>(
    transport: &mut verbena_transport::Qp,
    host: &mut QpHost<'_, M>,
    now: u64,
    path: Option<&Path>,
    packet: Packet,
) {
    let expected = match (path, &host.env.path) {
        _ if packet.datagram.is_some() => true,
        (Some(path), Some(own)) if own.local_route.is_some() => infiniband::is_from_peer(own, path),
        // A connected QP accepts packets only from its peer, in the VLAN of their path.
        (Some(path), Some(own)) if own.vlan == path.vlan => {
            let port = &host.shared.port;
            // Any net device of the port may send in the name of another one, as it may answer in
            // its name.
            let is_own = |mac| port.has_mac(mac, own.vlan);
            let is_from =
                || is_from(&own.dmac, &path.smac) || is_own(&own.dmac) && is_own(&path.smac);
            let is_to = own.sgid == path.dgid && own.dgid == path.sgid;
            is_to && (host.shared.config().asymmetric_routes || is_from())
        }
        _ => false,
    };
    if !expected {
        host.shared.report_of_qp(host.env, QpEvent::PacketRefused);
        return;
    }
    let received = QpEvent::PacketReceived {
        packet: &packet,
        multicast: path.is_some_and(|path| mcast::is_group(&path.dgid)),
    };
    host.shared.report_of_qp(host.env, received);
    transport.handle_packet(host, now, packet);
}

impl Device {
    /// Delivers a packet that was sent, and the packets after it in the queue that are for the same
    /// QP, up to [`MAX_RUN`] in all. Returns their number and their bytes.
    #[inline]
    pub(crate) fn deliver<M: GuestMemory>(&mut self, mem: &M, out: Outgoing) -> Delivered {
        match self.shared.faults {
            None => self.deliver_freely(mem, out),
            Some(_) => self.deliver_by_rules(mem, out),
        }
    }

    /// Delivers a packet as [`Device::deliver`] does, without asking any rules.
    pub(super) fn deliver_freely<M: GuestMemory>(&mut self, mem: &M, out: Outgoing) -> Delivered {
        let mut delivered = Delivered::default();
        delivered.count(&out);
        if !self.shared.port.sends(out.packet.src_qpn) {
            return delivered;
        }
        if out.packet.dst_qpn == MULTICAST_QPN {
            self.deliver_to_group(mem, out, &mut delivered);
        } else if out.local && !self.shared.config().wire_local {
            self.deliver_run(mem, out, &mut delivered);
        } else if self.shared.config().neighbours && !out.local {
            self.offer(out);
        } else {
            self.deliver_frames(mem, out);
        }
        delivered
    }

    /// Delivers packets from one QP of the device to another.
    fn deliver_run<M: GuestMemory>(&mut self, mem: &M, first: Outgoing, all: &mut Delivered) {
        let (now, qpn) = (self.shared.clock.now(), first.packet.dst_qpn);
        // Only the first packet may be lost: with rules on packets a run is a single packet.
        let lost = self.is_lost(&first.packet);
        let mut next = Some(first);
        let found = self.with_qp(mem, qpn, |transport, host| {
            let state = transport.state();
            while let Some(out) = next.take() {
                all.bytes += host.shared.show_local(mem, &out, lost);
                if !lost {
                    take_in(transport, host, now, out.path.as_deref(), out.packet);
                }
                all.bytes += host.shared.lookups.take_sought() * ELEMENT_BYTES;
                // The run ends with the first packet that changes the state of the QP or puts a CQ
                // or an SRQ in error. With rules each run is a single packet.
                let is_last = transport.state() != state
                    || !host.shared.witnesses.are_none()
                    || host
                        .shared
                        .faults
                        .as_ref()
                        .is_some_and(|faults| !faults.is_plain());
                if is_last || all.packets >= MAX_RUN || all.bytes >= SLICE_BYTES {
                    break;
                }
                next = host.shared.outgoing.pop_local_to(qpn);
                next.iter().for_each(|out| all.count(out));
            }
        });
        match found {
            Some(()) => self.make_ready(qpn),
            None => self.shared.drop_packet(DropReason::NoQp),
        }
    }

    /// Delivers a packet to a multicast group: to the members in this device, which may include the
    /// sender, and to the uplink. The copy for each member counts as a packet.
    fn deliver_to_group<M: GuestMemory>(&mut self, mem: &M, out: Outgoing, all: &mut Delivered) {
        let path = out
            .path()
            .copied()
            .filter(|path| mcast::is_group(&path.dgid));
        let Some(path) = path else {
            return;
        };
        let members = self.addressing.groups().members(&path.dgid);
        let members = members.map_or(0, |members| members.len());
        self.shared.report(DeviceEvent::MulticastSent);
        all.packets += members as u32;
        all.bytes += members as u64 * u64::from(out.packet.payload.len());
        if members > 0 && !self.is_lost(&out.packet) {
            if !self.shared.config().wire_local {
                self.hand_to_group(mem, &path, &out.packet);
            } else if let Some(bytes) = self.frame(mem, &path, &out.packet) {
                self.parse_frame(mem, bytes);
            }
        }
        self.deliver_frames(mem, out);
    }

    /// Hands a packet to each member of its group.
    fn hand_to_group<M: GuestMemory>(&mut self, mem: &M, path: &Path, packet: &Packet) {
        let Some(members) = self.addressing.copy_to(&path.dgid) else {
            return;
        };
        for &qpn in members.iter() {
            let own = Packet {
                dst_qpn: qpn,
                ..packet.clone()
            };
            self.hand_over(mem, path, own);
        }
    }

    /// Delivers a packet as frames, to a QP of this device or to the uplink.
    pub(super) fn deliver_frames<M: GuestMemory>(&mut self, mem: &M, out: Outgoing) {
        let Some(path) = out.path().copied() else {
            return;
        };
        for packet in out.packet.split(out.mtu) {
            // The wire would not carry the packet either: the QP finds that its retries are
            // exceeded.
            if !out.local && self.shared.port.is_over_mtu(&packet) {
                self.shared.drop_packet(DropReason::OverMtu);
                continue;
            }
            // A sender that reacts to congestion notifications lets routers mark its packets.
            let controls = self.shared.config().congestion_control && !out.local;
            let path = match controls && packet.transport.is_reliable() {
                true => path.with_ect(),
                false => path,
            };
            let Some(bytes) = self.frame(mem, &path, &packet) else {
                return;
            };
            if out.local {
                let lost = self.is_lost(&packet);
                self.show(
                    if lost {
                        CaptureDirection::Lost
                    } else {
                        CaptureDirection::Local
                    },
                    &packet,
                    &bytes,
                );
                if !lost {
                    self.parse_frame(mem, bytes);
                }
            } else {
                if self.egress.has_room() {
                    self.show(CaptureDirection::Sent, &packet, &bytes);
                }
                self.egress.push(bytes);
            }
        }
    }

    /// Makes the frame of a packet. None if the payload is gone. If the payload could not be read,
    /// the QP that sent the packet is informed. If the payload went with its work request, the QP
    /// knows that.
    pub(super) fn frame<M: GuestMemory>(
        &mut self,
        mem: &M,
        path: &Path,
        packet: &Packet,
    ) -> Option<Rc<Vec<u8>>> {
        if !packet.payload.is_alive() {
            return None;
        }
        let mut bytes = self.shared.pool.buffer(packet.payload.len() as usize);
        let room = Rc::get_mut(&mut bytes)?;
        room.clear();
        match self.shared.emit(mem, path, packet, room) {
            Ok(()) => {
                self.shared.pool.keep_buffer(&bytes);
                Some(bytes)
            }
            Err(CopyFault::Source(cause) | CopyFault::Target(cause)) => {
                self.source_fault(mem, packet, cause);
                None
            }
        }
    }

    /// Shows a frame to the tap, if there is a tap.
    #[inline]
    fn show(&mut self, way: CaptureDirection, packet: &Packet, bytes: &[u8]) {
        if self.shared.observers.capture().has_tap() {
            let qpns = [packet.src_qpn, packet.dst_qpn].map(Some);
            self.shared.show_frame(way, qpns, bytes);
        }
    }

    /// Shows a received frame to the tap. On the wire only datagrams name the QP that sent them;
    /// other packets come from the peer of the QP.
    #[cold]
    fn show_received(&mut self, bytes: &[u8]) {
        let parsed = match self.shared.port.as_infiniband() {
            None => frame::parse(bytes),
            Some(_) => frame::parse_infiniband(bytes),
        };
        let packet = parsed.ok().map(|frame| frame.packet);
        let qpns = packet.map_or([None; 2], |packet| {
            let own = || self.qps.get(packet.dst_qpn);
            let peer = match packet.datagram {
                Some(_) => Some(packet.src_qpn),
                None => own().map(|qp| qp.env.attr.dest_qpn.get()),
            };
            [peer, Some(packet.dst_qpn)]
        });
        self.shared
            .show_frame(CaptureDirection::Received, qpns, bytes);
    }

    fn source_fault<M: GuestMemory>(&mut self, mem: &M, packet: &Packet, cause: Syndrome) {
        let (now, qpn) = (self.shared.clock.now(), packet.src_qpn);
        self.with_qp(mem, qpn, |transport, host| {
            transport.handle_source_fault(host, now, packet, cause);
        });
        self.make_ready(qpn);
    }

    /// Hands a packet to its QP unless a rule prevents that.
    fn hand_over<M: GuestMemory>(&mut self, mem: &M, path: &Path, packet: Packet) {
        match self.shared.faults {
            None => self.hand_over_freely(mem, path, packet),
            Some(_) => self.hand_over_by_rules(mem, path, packet),
        }
    }

    /// Hands a packet to its QP without asking any rules.
    pub(super) fn hand_over_freely<M: GuestMemory>(
        &mut self,
        mem: &M,
        path: &Path,
        packet: Packet,
    ) {
        let (now, qpn) = (self.shared.clock.now(), packet.dst_qpn);
        let found = self.with_qp(mem, qpn, |transport, host| {
            take_in(transport, host, now, Some(path), packet);
        });
        match found {
            Some(()) => self.make_ready(qpn),
            None => self.shared.drop_packet(DropReason::NoQp),
        }
    }

    /// Parses a frame, or the packet of an InfiniBand link.
    pub(super) fn parse(&mut self, bytes: &Rc<Vec<u8>>) -> Result<Frame, Malformed> {
        match self.shared.port.as_infiniband() {
            None => frame::parse_in(bytes, &mut self.shared.pool),
            Some(_) => frame::parse_infiniband_in(bytes, &mut self.shared.pool),
        }
    }

    /// Parses a frame and hands its packet to the QP or the group that it is for.
    pub(super) fn parse_frame<M: GuestMemory>(&mut self, mem: &M, bytes: Rc<Vec<u8>>) {
        match self.parse(&bytes) {
            Ok(frame) if frame.packet.dst_qpn == MULTICAST_QPN => {
                self.hand_to_group(mem, &frame.path, &frame.packet);
            }
            // Only the multicast QPN can have the GID of a group.
            Ok(frame) if mcast::is_group(&frame.path.dgid) => {
                self.shared.drop_packet(DropReason::Malformed);
            }
            Ok(frame) => self.hand_over(mem, &frame.path, frame.packet),
            Err(Malformed::Icrc | Malformed::Vcrc) => self.shared.drop_packet(DropReason::Icrc),
            Err(_) => self.shared.drop_packet(DropReason::Malformed),
        }
    }

    /// True if a frame is for the RDMA engine: RoCE v2, either to a GID of this port in its VLAN,
    /// at one of the MAC addresses of the port there, or to a multicast group with a member here,
    /// in a VLAN of one of the GIDs.
    ///
    /// On an InfiniBand link: true if a packet has a LID of this port, or is for a multicast group
    /// with a member here, and the state of the port lets it pass.
    pub fn wants_frame(&self, bytes: &[u8]) -> bool {
        if let Some(port) = self.shared.port.as_infiniband() {
            return self.wants_packet(port, bytes);
        }
        frame::peek(bytes).is_some_and(|path| {
            let is_ours = self.shared.port.is_for(&path);
            let has_members = || self.addressing.groups().members(&path.dgid).is_some();
            let is_heard = || self.shared.port.is_in(path.vlan) && has_members();
            is_ours || path.dmac == mcast::mac(&path.dgid) && is_heard()
        })
    }

    fn wants_packet(&self, port: &InfiniBandPort, bytes: &[u8]) -> bool {
        let Some(path) = frame::peek_infiniband(bytes) else {
            return false;
        };
        let Some(route) = path.local_route else {
            return false;
        };
        // Only subnet management uses VL 15 (IBTA 3.5.3).
        let is_management = lrh::View::new(bytes).is_ok_and(|lrh| lrh.vl() == lrh::MANAGEMENT_VL);
        let qpn = if is_management { 0 } else { FIRST_QPN };
        let has_members = || self.addressing.groups().members(&path.dgid).is_some();
        port.receives(qpn)
            && port.is_for(&route)
            && (!infiniband::is_multicast_lid(route.dlid) || has_members())
    }

    /// Receives frames from the uplink. Frames that [`Device::wants_frame`] does not accept are
    /// dropped. Returns the number of copies made for members of multicast groups.
    pub fn receive_frames<'a, M: GuestMemory>(
        &mut self,
        mem: &M,
        frames: impl Iterator<Item = &'a [u8]>,
        now: u64,
    ) -> u32 {
        let before = self.addressing.copies();
        match self.is_recorded() {
            true => self.receive_recorded_frames(mem, frames, now),
            false => self.take_frames(mem, frames, now),
        }
        self.addressing.copies().wrapping_sub(before)
    }

    pub(super) fn take_frames<'a, M: GuestMemory>(
        &mut self,
        mem: &M,
        frames: impl Iterator<Item = &'a [u8]>,
        now: u64,
    ) {
        self.shared.clock.begin(now);
        let waiting = self.shared.outgoing.len();
        for bytes in frames {
            // An earlier frame may have changed any of this.
            let may_receive = self.shared.port.may_receive();
            if !self.shared.regs().is_fatal() && may_receive && self.wants_frame(bytes) {
                self.take_frame(mem, bytes);
            }
        }
        self.deliver_answers(mem, waiting);
        self.shared.notify_written(mem);
        self.shared.observers.capture_mut().show_last();
    }

    /// Receives a frame from the uplink that [`Device::wants_frame`] has accepted.
    pub fn receive_frame<M: GuestMemory>(&mut self, mem: &M, bytes: &[u8], now: u64) {
        if self.shared.regs().is_fatal() || !self.shared.port.may_receive() {
            return;
        }
        if self.is_recorded() {
            return self.receive_recorded_frames(mem, std::iter::once(bytes), now);
        }
        self.shared.clock.begin(now);
        let waiting = self.shared.outgoing.len();
        self.take_frame(mem, bytes);
        self.deliver_answers(mem, waiting);
        self.shared.notify_written(mem);
        self.shared.observers.capture_mut().show_last();
    }

    /// Delivers as many packets as were queued in answer to the received ones, within the bounds of
    /// a slice. If the answers were left to the slices, they would take the turns of QPs, and would
    /// pile up if they came faster. `waiting` is the number of packets that were in the queue
    /// before. A packet has up to two answers.
    pub(super) fn deliver_answers<M: GuestMemory>(&mut self, mem: &M, waiting: usize) {
        let (mut bytes, mut steps) = (0, 0);
        let is_dead = self.shared.regs().is_fatal();
        while !is_dead
            && self.shared.outgoing.len() > waiting
            && bytes < SLICE_BYTES
            && steps < 2 * SLICE_STEPS
        {
            let Some(out) = self.shared.outgoing.pop() else {
                break;
            };
            let delivered = self.deliver(mem, out);
            steps += delivered.packets;
            bytes += delivered.bytes;
            bytes += self.shared.lookups.take_sought() * ELEMENT_BYTES;
            self.follow_deaths(mem);
        }
    }

    fn take_frame<M: GuestMemory>(&mut self, mem: &M, bytes: &[u8]) {
        if self.shared.observers.capture().has_tap() {
            self.show_received(bytes);
        }
        // One short copy lets the packet outlive the caller's buffer.
        let mut frame = self.shared.pool.buffer(bytes.len());
        if let Some(room) = Rc::get_mut(&mut frame) {
            room.clear();
            room.extend_from_slice(bytes);
        }
        self.shared.pool.keep_buffer(&frame);
        self.parse_frame(mem, frame);
        self.follow_deaths(mem);
    }
}
