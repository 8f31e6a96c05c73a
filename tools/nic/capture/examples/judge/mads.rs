// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Management datagrams (MADs) on an InfiniBand link: subnet management packets to QP0, by LID and
//! by directed route, and general management packets to QP1.

use crate::{create_capture, json, scenes};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::rc::Rc;
use verbena_transport::frame;
use verbena_transport::packet::{
    DatagramHeaders, Packet, PacketKind, Payload, SendTail, Transport,
};
use verbena_transport::wire::lrh::PERMISSIVE_LID;
use verbena_transport::wire::{self, LocalRoute};

/// Q_Key of QP1 (IBTA 3.5.3).
const GSI_QKEY: u32 = 0x8001_0000;
/// Number of bytes of a MAD.
const MAD: usize = 256;
const SUBNET_BY_LID: u8 = 0x01;
const SUBNET_BY_DIRECTED_ROUTE: u8 = 0x81;
const SUBNET_ADMINISTRATION: u8 = 0x03;
const PERFORMANCE: u8 = 0x04;

/// Management class, class version, method and attribute of a MAD, and the name that tshark gives
/// it.
type MadSample = (u8, u8, u8, u16, &'static str);

const MADS: [MadSample; 8] = [
    (SUBNET_BY_LID, 1, 1, 0x11, "SubnGet(NodeInfo)"),
    (SUBNET_BY_LID, 1, 0x81, 0x15, "SubnGetResp(PortInfo)"),
    (SUBNET_BY_LID, 1, 2, 0x19, "SubnSet(LinearForwardingTable)"),
    (SUBNET_BY_DIRECTED_ROUTE, 1, 1, 0x11, "SubnGet(NodeInfo)"),
    (SUBNET_BY_DIRECTED_ROUTE, 1, 2, 0x15, "SubnSet(PortInfo)"),
    (SUBNET_ADMINISTRATION, 2, 1, 0x35, "SubnAdmGet(PathRecord)"),
    (PERFORMANCE, 1, 1, 0x12, "PERF (PortCounters)"),
    (PERFORMANCE, 1, 0x81, 0x1d, "PERF (PortCountersExtended)"),
];

/// Writes `DIR/mads.pcapng`, and `DIR/mads.jsonl` with the path and the name of each MAD.
pub fn generate(dir: &Path) -> io::Result<()> {
    let mut capture = create_capture(dir, "mads", &scenes::infiniband_paths(false)[0])?;
    let mut expected = BufWriter::new(File::create(dir.join("mads.jsonl"))?);
    for (time, sample) in (1..).zip(MADS) {
        for path in paths(sample.0) {
            let packet = packet(&path, &sample);
            let bytes = bytes_of(&path, &packet);
            let parsed = frame::parse_infiniband(&bytes);
            assert_eq!(parsed.map(|frame| frame.path), Ok(path));
            writeln!(expected, "{}", json::mad(&path, packet.dst_qpn, sample.4))?;
            capture.write(time, &bytes, None)?;
        }
    }
    capture.finish()?;
    expected.flush()
}

/// Returns the paths on which MADs of a class are sent. Packets to QP0 have no GRH.
fn paths(class: u8) -> Vec<wire::Path> {
    let [local, global] = [false, true].map(|has_grh| scenes::infiniband_paths(has_grh)[0]);
    match class {
        SUBNET_BY_LID => vec![local],
        SUBNET_BY_DIRECTED_ROUTE => vec![wire::Path {
            local_route: Some(LocalRoute {
                slid: PERMISSIVE_LID,
                dlid: PERMISSIVE_LID,
                has_grh: false,
            }),
            ..local
        }],
        _ => vec![local, global],
    }
}

fn packet(path: &wire::Path, sample: &MadSample) -> Packet {
    let is_smp = matches!(sample.0, SUBNET_BY_LID | SUBNET_BY_DIRECTED_ROUTE);
    let qpn = if is_smp { 0 } else { 1 };
    Packet {
        transport: Transport::Ud,
        kind: PacketKind::Send(SendTail::None),
        first: true,
        last: true,
        solicited: false,
        ack_req: false,
        pkey: 0xffff,
        dst_qpn: qpn,
        src_qpn: qpn,
        psn: 0,
        psns: 1,
        srqn: 0,
        marked: false,
        datagram: Some(Rc::new(DatagramHeaders {
            path: *path,
            qkey: if is_smp { 0 } else { GSI_QKEY },
            grh: [0; 40],
        })),
        payload: Payload::from_bytes(&mad(sample)),
    }
}

/// Returns the bytes of a MAD: its common header, and zeros.
fn mad(&(class, version, method, attribute, _): &MadSample) -> [u8; MAD] {
    let mut mad = [0; MAD];
    mad[..4].copy_from_slice(&[1, class, version, method]);
    // The transaction ID.
    mad[15] = 7;
    mad[16..18].copy_from_slice(&attribute.to_be_bytes());
    mad
}

fn bytes_of(path: &wire::Path, packet: &Packet) -> Vec<u8> {
    let verbena_transport::host::CopySource::Bytes(payload) = packet.payload.source() else {
        unreachable!("the payload is bytes");
    };
    let mut bytes = vec![];
    let emitted: Result<(), ()> = frame::emit(path, packet, &mut bytes, |place| {
        place.copy_from_slice(payload);
        Ok(())
    });
    emitted.expect("the payload fits");
    bytes
}
