// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Packets as lines of JSON: flat objects that have only the fields of the packet.

use std::fmt::Write;
use verbena_transport::frame;
use verbena_transport::host::CopySource;
use verbena_transport::packet::{
    Aeth, AethSyndrome, NakCode, Packet, PacketKind, SendTail, Transport,
};
use verbena_transport::wire::{atomic_eth, LocalRoute, Path};

/// A line that is not complete.
struct JsonLine(String);

impl JsonLine {
    fn new() -> Self {
        Self(String::from("{"))
    }

    fn key(&mut self, key: &str) {
        if self.0.len() > 1 {
            self.0.push_str(", ");
        }
        let _ = write!(self.0, "\"{key}\": ");
    }

    fn number(mut self, key: &str, value: impl Into<u64>) -> Self {
        self.key(key);
        let _ = write!(self.0, "{}", value.into());
        self
    }

    /// Adds text that needs no escapes.
    fn text(mut self, key: &str, value: &str) -> Self {
        self.key(key);
        let _ = write!(self.0, "\"{value}\"");
        self
    }

    fn hex(self, key: &str, bytes: &[u8]) -> Self {
        let text = bytes.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        });
        self.text(key, &text)
    }

    fn aeth(self, aeth: &Aeth) -> Self {
        self.number("syndrome", byte_of(aeth.syndrome))
            .number("msn", aeth.msn)
    }

    fn reth(self, addr: u64, rkey: u32) -> Self {
        self.number("va", addr).number("rkey", rkey)
    }

    fn path(self, path: &Path) -> Self {
        if let Some(route) = path.local_route {
            return self.infiniband_path(path, route);
        }
        self.hex("smac", &path.smac)
            .hex("dmac", &path.dmac)
            .number("vlan", path.vlan.unwrap_or(0))
            .number("priority", path.sl)
            .hex("sgid", &path.sgid)
            .hex("dgid", &path.dgid)
            .number("tclass", path.traffic_class)
            .number("hops", path.hop_limit)
            .number("flow", path.flow_label)
            .number("sport", path.udp_sport)
    }

    fn infiniband_path(self, path: &Path, route: LocalRoute) -> Self {
        let line = self
            .number("slid", route.slid)
            .number("dlid", route.dlid)
            .number("sl", path.sl);
        if !route.has_grh {
            return line;
        }
        line.hex("sgid", &path.sgid)
            .hex("dgid", &path.dgid)
            .number("tclass", path.traffic_class)
            .number("hops", path.hop_limit)
            .number("flow", path.flow_label)
    }

    fn packet(self, packet: &Packet) -> Self {
        let mut line = self
            .number("opcode", packet.opcode())
            .number("se", packet.solicited)
            .number("pad", packet.payload.len().wrapping_neg() & 3)
            .number("pkey", packet.pkey)
            .number("dqpn", packet.dst_qpn)
            .number("ackreq", packet.ack_req)
            .number("psn", packet.psn)
            .number("length", packet.payload.len());
        if packet.transport == Transport::Xrc && packet.kind.is_request() {
            line = line.number("srqn", packet.srqn);
        }
        if let Some(datagram) = &packet.datagram {
            line = line
                .number("qkey", datagram.qkey)
                .number("srcqp", packet.src_qpn);
        }
        match &packet.kind {
            PacketKind::Send(SendTail::None) | PacketKind::ReadResponse(None) => line,
            PacketKind::Send(SendTail::Imm(imm)) => line.hex("imm", imm),
            PacketKind::Send(SendTail::Invalidate(key)) => line.number("ieth", *key),
            PacketKind::Write { reth, imm } => {
                if let Some(reth) = reth {
                    line = line.reth(reth.addr, reth.rkey);
                    line = line.number("dmalen", reth.length);
                }
                match imm {
                    Some(imm) => line.hex("imm", imm),
                    None => line,
                }
            }
            PacketKind::Flush(feth, reth) => line
                .number("placement", feth.placement)
                .number("level", feth.level)
                .reth(reth.addr, reth.rkey)
                .number("dmalen", reth.length),
            PacketKind::ReadRequest(reth) | PacketKind::AtomicWrite(reth) => line
                .reth(reth.addr, reth.rkey)
                .number("dmalen", reth.length),
            PacketKind::ReadResponse(Some(aeth)) | PacketKind::Ack(aeth) => line.aeth(aeth),
            PacketKind::AtomicResponse(aeth, original) => {
                line.aeth(aeth).number("original", *original)
            }
            PacketKind::Atomic { addr, rkey, op } => {
                let header = atomic_eth::Repr::new(*addr, *rkey, *op);
                line.reth(*addr, *rkey)
                    .number("swap_add", header.swap_add)
                    .number("compare", header.compare)
            }
            PacketKind::Cnp | PacketKind::Unknown(_) => line,
        }
    }

    fn end(mut self) -> String {
        self.0.push('}');
        self.0
    }
}

/// Returns the syndrome byte of an AETH, with the numbers of the specification rather than those of
/// the code under test.
fn byte_of(syndrome: AethSyndrome) -> u8 {
    match syndrome {
        AethSyndrome::Ack { credits } => credits,
        AethSyndrome::Rnr { timer } => 0x20 + timer,
        AethSyndrome::Nak(NakCode::Sequence) => 0x60,
        AethSyndrome::Nak(NakCode::InvalidRequest) => 0x61,
        AethSyndrome::Nak(NakCode::RemoteAccess) => 0x62,
        AethSyndrome::Nak(NakCode::RemoteOperational) => 0x63,
        AethSyndrome::Nak(NakCode::InvalidRd) => 0x64,
        AethSyndrome::Nak(NakCode::SourceFault) => unreachable!("never on a wire"),
    }
}

/// Returns the kind of an acknowledgement: a NAK with its code, others without their value.
pub fn syndrome(packet: &Packet) -> Option<u8> {
    let PacketKind::Ack(aeth) = packet.kind else {
        return None;
    };
    let byte = byte_of(aeth.syndrome);
    Some(if byte < 0x60 { byte & 0x60 } else { byte })
}

/// Returns the line of a sent packet.
pub fn packet(path: &Path, packet: &Packet, now: u64) -> String {
    let line = JsonLine::new()
        .number("time", now)
        .path(path)
        .packet(packet);
    line.number("from", packet.src_qpn).end()
}

/// Returns the line of a parsed frame.
pub fn frame(bytes: &[u8]) -> String {
    match frame::parse(bytes) {
        Ok(frame) => {
            let CopySource::Bytes(payload) = frame.packet.payload.source() else {
                unreachable!("a frame's payload is bytes");
            };
            let line = JsonLine::new().path(&frame.path).packet(&frame.packet);
            line.hex("payload", payload).end()
        }
        Err(error) => JsonLine::new().text("error", &format!("{error:?}")).end(),
    }
}

/// Returns the line of a MAD with the name that tshark gives it.
pub fn mad(path: &Path, qpn: u32, name: &str) -> String {
    JsonLine::new()
        .infiniband_path(path, path.local_route.expect("an InfiniBand path"))
        .number("dqpn", qpn)
        .text("name", name)
        .end()
}

/// Returns the line of an opcode.
pub fn opcode(code: u8, service: &str, name: &str, served: bool) -> String {
    JsonLine::new()
        .number("opcode", code)
        .text("service", service)
        .text("name", name)
        .number("served", served)
        .end()
}
