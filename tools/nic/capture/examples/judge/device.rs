// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Captures the packets that two queue pairs of one device exchange by reference, as a tap on the
//! device sees them. These frames were never sent, but Wireshark has to read them like others.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use verbena_abi::wqe::WqeOpcode;
use verbena_capture::Capture;
use verbena_device::capture::capture_tap;
use verbena_device::mock::{Driver, SendWr};
use verbena_transport::frame;

/// Lengths of messages: each number of padding bytes, no bytes, one packet, and several packets.
const LENGTHS: [u32; 8] = [0, 1, 2, 3, 4, 1024, 1025, 4000];

/// Writes `DIR/device.pcapng`, and `DIR/device.jsonl` with the opcode of each packet.
pub fn generate(dir: &Path) -> io::Result<()> {
    let mut capture = Capture::create(dir.join("device.pcapng"))?;
    let mut expected = BufWriter::new(File::create(dir.join("device.jsonl"))?);
    let mut driver = Driver::new();
    let cq = driver.create_cq(8);
    let (mut a, mut b) = (driver.create_qp(&cq, &cq), driver.create_qp(&cq, &cq));
    driver.connect(&a, &b);
    let (to, watch) = capture_tap(1000, 1 << 20);
    assert!(driver.device.attach_capture(to));
    let (at, key) = driver.region(8192, 1);
    let there = at + 4096;
    for (n, length) in (0..).zip(LENGTHS) {
        for opcode in [WqeOpcode::RdmaWrite, WqeOpcode::RdmaRead, WqeOpcode::Send] {
            driver.post_recv(&mut b, n, &[(there, 4096, key)]);
            let request = SendWr::new(opcode, n, &[(at, length, key)]);
            driver.post_send(&mut a, &request.to(there, key));
            driver.run();
        }
    }
    while let Some(seen) = watch.try_next() {
        let packet = frame::parse(&seen.frame).map(|frame| frame.packet);
        let packet = packet.map_err(|e| io::Error::other(format!("{e:?}")))?;
        writeln!(expected, "{{\"opcode\": {}}}", packet.opcode())?;
        capture.write_with_direction(seen.time, &seen.frame, Some("local"), None)?;
    }
    let (seen, dropped) = watch.counts();
    assert!(
        seen > 50 && dropped == 0,
        "{seen} frames, {dropped} dropped"
    );
    capture.statistics(0, seen, dropped)?;
    capture.finish()?;
    expected.flush()
}
