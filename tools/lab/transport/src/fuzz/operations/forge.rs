// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A stranger's packets, of any opcode and with any fields.

use super::posts::{length, remote};
use super::{path, FuzzRun, QKEY};
use crate::fuzz::FuzzInput;
use std::rc::Rc;
use verbena_transport::host::AtomicOp;
use verbena_transport::packet::{
    Aeth, AethSyndrome, DatagramHeaders, Feth, NakCode, Packet, PacketKind, Payload, Reth,
    Transport,
};
use verbena_transport::wire::opcode::{self, op, ExtensionHeader};
use verbena_transport::wire::{atomic_ack_eth, atomic_eth, deth, extensions, ieth, imm_dt, xrceth};
use verbena_transport::{psn, QpType};

impl FuzzRun {
    /// Makes a packet of any opcode with any fields, as a stranger may send it.
    pub(super) fn forge(&mut self, node: usize, input: &mut FuzzInput<'_>) {
        let (code, flags) = (input.u8(), input.u8());
        let mtu = self.qps[node].attr().path_mtu;
        // Most packets are of the service that the queue pair has.
        let code = match self.qps[node].config().qp_type {
            _ if flags & 0xc0 == 0xc0 => code,
            QpType::Rc => code & 0x1f,
            QpType::Uc => code & 0x1f | 0x20,
            QpType::Ud | QpType::Gsi | QpType::Smi => code & 0x1f | 0x60,
            QpType::XrcIni | QpType::XrcTgt => code & 0x1f | 0xa0,
        };
        // For a packet that is refused because of its opcode, no other field counts.
        let refused = opcode::is_refused(code);
        let shape = if refused { op::ACKNOWLEDGE } else { code };
        let Some((service, row)) = opcode::lookup(shape) else {
            return;
        };
        let Some(transport) = service.transport else {
            return;
        };
        let mut headers = extensions::Repr::default();
        for header in service.headers_of(row).iter().chain(row.headers) {
            let (addr, rkey) = match header {
                ExtensionHeader::Reth | ExtensionHeader::AtomicEth | ExtensionHeader::Ieth => {
                    remote(input, node & 1)
                }
                _ => (0, 0),
            };
            match header {
                ExtensionHeader::Deth => {
                    let qkey = match flags & 3 {
                        0 => input.u32(),
                        _ => self.gsi_or(node, QKEY),
                    };
                    headers.deth = Some(deth::Repr { qkey, src_qpn: 9 });
                }
                ExtensionHeader::Reth => {
                    let length = length(input);
                    headers.reth = Some(Reth { addr, rkey, length });
                }
                ExtensionHeader::AtomicEth => {
                    let op = AtomicOp::FetchAdd { add: 1 };
                    headers.atomic_eth = Some(atomic_eth::Repr::new(addr, rkey, op));
                }
                ExtensionHeader::Aeth => headers.aeth = Some(aeth(input)),
                ExtensionHeader::AtomicAckEth => {
                    headers.atomic_ack_eth = Some(atomic_ack_eth::Repr { original: 5 })
                }
                ExtensionHeader::ImmDt => headers.imm_dt = Some(imm_dt::Repr { data: [9; 4] }),
                ExtensionHeader::Ieth => headers.ieth = Some(ieth::Repr { rkey }),
                ExtensionHeader::Xrceth => {
                    let srqn = u32::from(input.u8());
                    headers.xrceth = Some(xrceth::Repr { srqn });
                }
                ExtensionHeader::Feth => {
                    let (placement, level) = (flags & 0xf, flags >> 4 & 3);
                    headers.feth = Some(Feth { placement, level });
                }
            }
        }
        let Ok(mut kind) = headers.kind(row) else {
            return;
        };
        if refused {
            kind = PacketKind::Unknown(code);
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
            srqn: headers.xrceth.map_or(0, |xrceth| xrceth.srqn),
            marked: flags & 0x80 != 0,
            datagram: headers.deth.map(|deth| {
                Rc::new(DatagramHeaders {
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
}

fn aeth(input: &mut FuzzInput<'_>) -> Aeth {
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
