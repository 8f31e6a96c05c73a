// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Makes the input for `scripts/judges`.
//!
//! `judge generate DIR` makes queue pairs send packets with every opcode and syndrome over each
//! kind of path. For each path it writes `DIR/PATH.pcapng`, and `DIR/PATH.jsonl` with a line for
//! each packet that the engine meant to send. `DIR/opcodes.jsonl` has the table of opcodes.
//! `DIR/device.pcapng` and `DIR/device.jsonl` have the packets inside a device, and `DIR/mads.pcapng`
//! and `DIR/mads.jsonl` the management datagrams of an InfiniBand link.
//!
//! `judge parse` reads frames in hexadecimal, one a line, and prints the result of the parser for
//! each.

mod device;
mod json;
mod mads;
mod scenes;

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufRead, BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use verbena_capture::{Capture, CaptureLink};
use verbena_lab_transport::tap::{FrameTap, TappedFrame};
use verbena_transport::wire::opcode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["generate", dir] => generate(Path::new(dir)),
        ["parse"] => parse(),
        _ => Err(io::Error::other("usage: judge generate DIR | parse")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("judge: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A capture, and the lines about the packets that it should have.
#[derive(Debug)]
pub struct ExpectedCapture {
    capture: Capture<BufWriter<File>>,
    expected: BufWriter<File>,
    paths: [verbena_transport::wire::Path; 2],
    /// Time of the last frame.
    pub now: u64,
    /// Opcodes and AETH syndromes that were sent.
    pub sent_codes: [Vec<u8>; 2],
}

impl FrameTap for ExpectedCapture {
    fn on_frame(&mut self, sight: &TappedFrame<'_>) {
        self.now = sight.now_ns;
        self.sent_codes[0].push(sight.packet.opcode());
        self.sent_codes[1].extend(json::syndrome(sight.packet));
        let [a, b] = &self.paths;
        let path = if sight.packet.src_qpn == scenes::QPN_A {
            a
        } else {
            b
        };
        let line = json::packet(path, sight.packet, sight.now_ns);
        writeln!(self.expected, "{line}").expect("the line of a packet cannot be written");
        self.capture.on_frame(sight);
    }

    fn on_connect(&mut self, qpn: u32) {
        self.capture.on_connect(qpn);
    }
}

fn generate(dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    let mut table = BufWriter::new(File::create(dir.join("opcodes.jsonl"))?);
    for code in 0..=0xff {
        if let Some((service, row)) = opcode::lookup(code) {
            let served = opcode::is_served(code);
            let line = json::opcode(code, service.name, row.name, served);
            writeln!(table, "{line}")?;
        }
    }
    table.flush()?;
    for (name, paths) in scenes::paths() {
        let expected_capture = Rc::new(RefCell::new(ExpectedCapture {
            capture: create_capture(dir, name, &paths[0])?,
            expected: BufWriter::new(File::create(dir.join(format!("{name}.jsonl")))?),
            paths,
            now: 0,
            sent_codes: Default::default(),
        }));
        scenes::all(paths, &expected_capture);
        let mut expected_capture = Rc::into_inner(expected_capture)
            .ok_or_else(|| io::Error::other("a pair still refers to the capture"))?
            .into_inner();
        for seen in &mut expected_capture.sent_codes {
            seen.sort_unstable();
            seen.dedup();
        }
        let served: Vec<u8> = (0..=0xff).filter(|code| opcode::is_served(*code)).collect();
        assert_eq!(
            expected_capture.sent_codes[0], served,
            "opcodes that were sent"
        );
        expected_capture.capture.finish()?;
        expected_capture.expected.flush()?;
    }
    mads::generate(dir)?;
    device::generate(dir)
}

/// Creates `DIR/NAME.pcapng` for the frames of a path.
fn create_capture(
    dir: &Path,
    name: &str,
    path: &verbena_transport::wire::Path,
) -> io::Result<Capture<BufWriter<File>>> {
    let file = File::create(dir.join(format!("{name}.pcapng")))?;
    let link = match path.local_route {
        Some(_) => CaptureLink::InfiniBand,
        None => CaptureLink::Ethernet,
    };
    Capture::of_link(BufWriter::new(file), "verbena", link)
}

fn parse() -> io::Result<()> {
    for line in io::stdin().lock().lines() {
        let line = line?;
        let hex = line.as_bytes().chunks(2);
        let bytes: Vec<u8> = hex
            .filter_map(|pair| std::str::from_utf8(pair).ok())
            .filter_map(|pair| u8::from_str_radix(pair, 16).ok())
            .collect();
        println!("{}", json::frame(&bytes));
    }
    Ok(())
}
