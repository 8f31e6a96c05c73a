// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Captures in pcapng: the frames of a link, for Wireshark, with a comment on each packet that
//! names the QP that sent it and the work request. The link is Ethernet, or InfiniBand, whose
//! packets are ERF records (`erf.rs`).
//!
//! [`Capture`] takes frames with their times and comments from any source, such as
//! `verbenactl capture`. With the feature `simulation` it is also a `Tap`: a simulation passes each
//! sent frame to it, including lost frames, and the capture makes the comments itself (`comment`).
//! Times are nanoseconds of the clock of the source. The clock of a simulation begins at 0, so the
//! dates of its captures are in 1970.
//!
//! ```
//! # #[cfg(feature = "simulation")] {
//! use std::{cell::RefCell, rc::Rc};
//! use verbena_capture::Capture;
//! use verbena_lab_transport::{LinkMode, PairSide, QpPair, SendPost};
//!
//! let capture = Rc::new(RefCell::new(Capture::new(Vec::new(), "link")?));
//! let mut pair = QpPair::rc(LinkMode::Wire);
//! pair.tap = Some(Box::new(Rc::clone(&capture)));
//! let (from, to) = (pair.buffer(PairSide::A, &[7; 600]), pair.zeros(PairSide::B, 600));
//! pair.post(PairSide::A, SendPost::write(5, &[from.sge()], to));
//! pair.settle();
//! drop(pair);
//! let bytes = Rc::into_inner(capture).unwrap().into_inner().finish()?;
//! # let text = String::from_utf8_lossy(&bytes).into_owned();
//! # assert!(text.contains("QP 0x10 -> 0x11, WR 5 (RDMA WRITE), PSN 16777201, packet 2 of 3"), "{text}");
//! # assert!(text.contains("QP 0x11 -> 0x10, acknowledges WR 5 (RDMA WRITE), PSN 16777202"), "{text}");
//! # }
//! # Ok::<(), std::io::Error>(())
//! ```

#![forbid(unsafe_code)]

#[cfg(feature = "simulation")]
pub mod comment;
mod erf;

#[cfg(feature = "simulation")]
use comment::PacketCommenter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::interface_statistics::{
    InterfaceStatisticsBlock, InterfaceStatisticsOption,
};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::{DataLink, PcapError};
use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Duration;
#[cfg(feature = "simulation")]
use verbena_lab_transport::tap::{FrameTap, TappedFrame};

/// Value of `if_tsresol`: times are in units of 10^-9 s.
const NANOSECONDS: u8 = 9;

/// InterfaceDirection of a frame, as the flags of a packet encode it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterfaceDirection {
    /// The interface received the frame.
    Inbound = 1,
    /// The interface sent the frame.
    Outbound = 2,
}

/// Link of a captured interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CaptureLink {
    /// Frames begin with an Ethernet header.
    #[default]
    Ethernet,
    /// Frames are InfiniBand packets from the LRH to the VCRC.
    InfiniBand,
}

/// A capture in progress: one section, one interface.
pub struct Capture<W: Write> {
    writer: PcapNgWriter<W>,
    link: CaptureLink,
    #[cfg(feature = "simulation")]
    commenter: PacketCommenter,
    /// First write error of the tap, which has no caller to return it to.
    failure: Option<io::Error>,
}

impl Capture<BufWriter<File>> {
    /// Creates a capture in a new file.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::new(BufWriter::new(File::create(path)?), "verbena")
    }
}

impl<W: Write> Capture<W> {
    /// Creates a capture of an Ethernet interface with this name.
    pub fn new(to: W, interface: &str) -> io::Result<Self> {
        Self::of_link(to, interface, CaptureLink::Ethernet)
    }

    /// Creates a capture of an interface with this name on a link.
    pub fn of_link(to: W, interface: &str, link: CaptureLink) -> io::Result<Self> {
        let mut writer = PcapNgWriter::new(to).map_err(io_error)?;
        writer
            .write_pcapng_block(InterfaceDescriptionBlock {
                linktype: match link {
                    CaptureLink::Ethernet => DataLink::ETHERNET,
                    CaptureLink::InfiniBand => DataLink::ERF,
                },
                snaplen: 0,
                options: vec![
                    InterfaceDescriptionOption::IfName(Cow::Borrowed(interface)),
                    InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
                ],
            })
            .map_err(io_error)?;
        Ok(Self {
            writer,
            link,
            #[cfg(feature = "simulation")]
            commenter: PacketCommenter::default(),
            failure: None,
        })
    }

    /// Writes a frame that was seen at a time, with a comment if there is one.
    pub fn write(&mut self, time_ns: u64, frame: &[u8], comment: Option<&str>) -> io::Result<()> {
        self.write_with_direction(time_ns, frame, comment, None)
    }

    /// Writes a frame with its direction, if it has one.
    pub fn write_with_direction(
        &mut self,
        time_ns: u64,
        frame: &[u8],
        comment: Option<&str>,
        direction: Option<InterfaceDirection>,
    ) -> io::Result<()> {
        let comment = comment.map(|text| EnhancedPacketOption::Comment(Cow::Borrowed(text)));
        let flags = direction.map(|direction| EnhancedPacketOption::Flags(direction as u32));
        let options = comment.into_iter().chain(flags).collect();
        let data = match self.link {
            CaptureLink::Ethernet => Cow::Borrowed(frame),
            CaptureLink::InfiniBand => Cow::Owned(erf::record(time_ns, frame)),
        };
        self.writer
            .write_pcapng_block(EnhancedPacketBlock {
                interface_id: 0,
                timestamp: Duration::from_nanos(time_ns),
                original_len: u32::try_from(data.len()).unwrap_or(u32::MAX),
                data,
                options,
            })
            .map_err(io_error)?;
        Ok(())
    }

    /// Writes the statistics of the interface at a time: frames seen, and frames among them that
    /// are not in the capture.
    pub fn statistics(&mut self, time_ns: u64, seen: u64, dropped: u64) -> io::Result<()> {
        // The block has the high half of the time first, but the crate writes 64 bits in the byte
        // order of this machine.
        let timestamp = if cfg!(target_endian = "little") {
            time_ns.rotate_left(32)
        } else {
            time_ns
        };
        self.writer
            .write_pcapng_block(InterfaceStatisticsBlock {
                interface_id: 0,
                timestamp,
                options: vec![
                    InterfaceStatisticsOption::IsbIfRecv(seen),
                    InterfaceStatisticsOption::IsbIfDrop(dropped),
                ],
            })
            .map_err(io_error)?;
        Ok(())
    }

    /// Flushes the written packets for readers of a live capture.
    pub fn flush(&mut self) -> io::Result<()> {
        self.writer.get_mut().flush()
    }

    /// Ends the capture. Fails if a packet could not be written.
    pub fn finish(self) -> io::Result<W> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let mut to = self.writer.into_inner();
        to.flush()?;
        Ok(to)
    }
}

impl<W: Write> std::fmt::Debug for Capture<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Capture").finish_non_exhaustive()
    }
}

#[cfg(feature = "simulation")]
impl<W: Write> FrameTap for Capture<W> {
    fn on_frame(&mut self, sight: &TappedFrame<'_>) {
        let comment = self.commenter.comment(sight);
        if let Err(failure) = self.write(sight.now_ns, sight.frame, Some(&comment)) {
            self.failure.get_or_insert(failure);
        }
    }

    fn on_connect(&mut self, qpn: u32) {
        self.commenter.forget_qp(qpn);
    }
}

fn io_error(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}

#[cfg(all(test, feature = "simulation"))]
mod tests;
