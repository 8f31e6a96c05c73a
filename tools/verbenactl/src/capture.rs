// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `verbenactl capture`: captures the frames that the NIC sends and receives, for Wireshark,
//! which can show them while the capture goes on.
//!
//! The NIC sends records (`verbena_protocol::CaptureRecord`). This module turns them into pcapng
//! packets, each with a comment that names the guest and the QPs. After an interrupt the NIC ends
//! the capture; the number of dropped frames is then reported, also in the file.

use crate::client;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::signal::{SigSet, Signal};
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, IsTerminal, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use verbena_capture::{Capture, CaptureLink, InterfaceDirection};
use verbena_protocol::{CaptureLinkLayer, CaptureRecord, CaptureReply, FrameDirection};
use verbena_recorder::DeviceHistory;

/// The end of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CaptureEnd {
    /// The NIC ended the capture as requested: frames that passed, and dropped frames among them.
    Finished { seen: u64, dropped: u64 },
    /// The reader of standard output closed its pipe.
    ReaderClosed,
    /// The NIC closed the connection before the end of the capture.
    ConnectionLost,
}

/// Captures into a file, or to standard output if its name is `-`, until a signal ends the capture.
/// Returns the final message.
///
/// # Errors
///
/// There is no NIC, the NIC refuses, the connection breaks, or the file cannot be written.
pub fn run(socket: &Path, file: &Path) -> Result<String, String> {
    let to_stdout = file == Path::new("-");
    if to_stdout && io::stdout().is_terminal() {
        return Err(String::from(
            "a capture is binary: name a file, or pipe it: verbenactl capture - | wireshark -k -i -",
        ));
    }
    let signals = signals()?;
    let (reply, from): (CaptureReply, _) = client::query_stream(socket)?;
    let failed = |e| format!("cannot write {}: {e}", file.display());
    let to: Box<dyn Write> = if to_stdout {
        Box::new(io::stdout())
    } else {
        Box::new(File::create(file).map_err(failed)?)
    };
    end_by_signal(signals, from.get_ref())?;
    if to_stdout {
        end_with_reader(from.get_ref())?;
    }
    eprintln!("verbenactl: capturing; interrupt to end");
    let end = write_records(from, BufWriter::new(to), &reply).map_err(failed)?;
    match end {
        CaptureEnd::Finished { seen, dropped: 0 } => Ok(format!("{} captured", frames_text(seen))),
        CaptureEnd::Finished { seen, dropped } => Ok(format!(
            "{} captured, {} dropped because they came faster than they were written",
            frames_text(seen - dropped.min(seen)),
            frames_text(dropped)
        )),
        CaptureEnd::ReaderClosed => Ok(String::from(
            "the reader closed the pipe, which ended the capture",
        )),
        CaptureEnd::ConnectionLost => Err(String::from(
            "the NIC closed the connection: the frames that it sent before are written",
        )),
    }
}

fn frames_text(count: u64) -> String {
    format!("{count} {}", if count == 1 { "frame" } else { "frames" })
}

/// Writes the frames of a recording.
///
/// # Errors
///
/// The file cannot be written.
pub fn write_recording(history: &DeviceHistory, file: &Path) -> Result<String, String> {
    let frames = verbena_recorder::synthesize_frames(history);
    let to: Box<dyn Write> = if file == Path::new("-") {
        Box::new(io::stdout())
    } else {
        let created = File::create(file);
        Box::new(created.map_err(|e| format!("cannot write {}: {e}", file.display()))?)
    };
    let link = match history.recording.is_infiniband {
        true => CaptureLink::InfiniBand,
        false => CaptureLink::Ethernet,
    };
    let power_on_ns = history.recording.power_on_ns;
    write_frames(&frames, link, power_on_ns, BufWriter::new(to))
        .map_err(|e| format!("cannot write {}: {e}", file.display()))?;
    if file == Path::new("-") {
        return Ok(String::new());
    }
    let count = frames_text(frames.len() as u64);
    Ok(format!("{count}: {}\n", file.display()))
}

fn write_frames(
    frames: &[verbena_recorder::SyntheticFrame],
    link: CaptureLink,
    power_on_ns: u64,
    to: impl Write,
) -> io::Result<()> {
    let mut capture = Capture::of_link(to, "flight recorder", link)?;
    for frame in frames {
        let direction = match frame.direction {
            verbena_recorder::PacketDirection::Local => None,
            verbena_recorder::PacketDirection::Sent => Some(InterfaceDirection::Outbound),
            verbena_recorder::PacketDirection::Received => Some(InterfaceDirection::Inbound),
        };
        let time = power_on_ns.saturating_add(frame.time_ns);
        capture.write_with_direction(time, &frame.bytes, Some(&frame.comment), direction)?;
    }
    capture.finish().map(drop)
}

/// Blocks the signals that end a capture, so that only the thread that waits for them gets them.
pub(crate) fn signals() -> Result<SigSet, String> {
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]
        .into_iter()
        .collect();
    signals
        .thread_block()
        .map_err(|e| format!("cannot wait for signals: {e}"))?;
    Ok(signals)
}

/// Starts a thread in which the first signal ends the capture. The second signal ends this program.
pub(crate) fn end_by_signal(signals: SigSet, stream: &UnixStream) -> Result<(), String> {
    let stream = stream.try_clone().map_err(|e| e.to_string())?;
    std::thread::spawn(move || {
        if signals.wait().is_ok() {
            let _ = stream.shutdown(Shutdown::Write);
            let _ = signals.thread_unblock();
            std::thread::park();
        }
    });
    Ok(())
}

/// Ends the capture when the reader of standard output closes its pipe, even while there is nothing
/// to write.
fn end_with_reader(stream: &UnixStream) -> Result<(), String> {
    let stream = stream.try_clone().map_err(|e| e.to_string())?;
    std::thread::spawn(move || {
        let stdout = io::stdout();
        // Without requested events, poll reports only that the other end of the pipe is closed.
        let mut fds = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
        if poll(&mut fds, PollTimeout::NONE).is_ok() {
            let _ = stream.shutdown(Shutdown::Write);
        }
    });
    Ok(())
}

/// Converts records to packets until there are no more records.
fn write_records<W: Write>(
    from: BufReader<impl io::Read>,
    to: W,
    reply: &CaptureReply,
) -> io::Result<CaptureEnd> {
    match convert_records(from, to, reply) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(CaptureEnd::ReaderClosed),
        other => other,
    }
}

fn convert_records<W: Write>(
    mut from: BufReader<impl io::Read>,
    to: W,
    reply: &CaptureReply,
) -> io::Result<CaptureEnd> {
    let link = match reply.link_layer {
        CaptureLinkLayer::Ethernet => CaptureLink::Ethernet,
        CaptureLinkLayer::InfiniBand => CaptureLink::InfiniBand,
    };
    let mut capture = Capture::of_link(to, "verbena", link)?;
    let mut now = 0;
    let end = loop {
        if from.buffer().is_empty() {
            // Readers of a live capture get all packets so far before this thread waits for more.
            capture.flush()?;
            from.fill_buf().ok();
        }
        // A connection that breaks within a record is treated like one that ends between records.
        match CaptureRecord::read(&mut from) {
            Ok(Some(CaptureRecord::Frame {
                direction,
                src_qpn,
                dst_qpn,
                time_ns,
                frame,
                note,
            })) => {
                now = time_ns;
                let mut comment = comment(&reply.guest, direction, src_qpn, dst_qpn);
                if let Some(note) = note {
                    comment.push_str(", ");
                    comment.push_str(&note);
                }
                capture.write_with_direction(
                    time_ns,
                    &frame,
                    Some(&comment),
                    interface_direction(direction),
                )?;
            }
            Ok(Some(CaptureRecord::End { seen, dropped })) => {
                capture.statistics(now, seen, dropped)?;
                break CaptureEnd::Finished { seen, dropped };
            }
            Err(e) if e.kind() == io::ErrorKind::InvalidData => return Err(e),
            Ok(None) | Err(_) => break CaptureEnd::ConnectionLost,
        }
    };
    capture.finish()?;
    Ok(end)
}

/// Returns the direction of a frame. A frame that stays in the device has none.
fn interface_direction(direction: FrameDirection) -> Option<InterfaceDirection> {
    match direction {
        FrameDirection::Local | FrameDirection::Lost => None,
        FrameDirection::Sent => Some(InterfaceDirection::Outbound),
        FrameDirection::Received => Some(InterfaceDirection::Inbound),
    }
}

/// Returns the comment of a packet, for example `guest 52:54:00:12:34:56, QP 0x10 -> 0x11, local`.
fn comment(
    guest: &str,
    direction: FrameDirection,
    src_qpn: Option<u32>,
    dst_qpn: Option<u32>,
) -> String {
    let qp = |qpn: Option<u32>| qpn.map_or_else(|| String::from("?"), |qpn| format!("{qpn:#x}"));
    let path = match direction {
        FrameDirection::Local => "local",
        FrameDirection::Lost => "local, lost on purpose",
        FrameDirection::Sent => "sent",
        FrameDirection::Received => "received",
    };
    format!(
        "guest {guest}, QP {} -> {}, {path}",
        qp(src_qpn),
        qp(dst_qpn)
    )
}

#[cfg(test)]
mod tests;
