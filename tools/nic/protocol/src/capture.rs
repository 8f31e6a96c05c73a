// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The protocol of captures over the control socket.
//!
//! The answer to [`ControlRequest::Capture`] is a line, [`CaptureReply`], and then
//! [`CaptureRecord`]s in bytes, until the client closes its sending half or the connection. The
//! last record is [`CaptureRecord::End`].
//!
//! With [`ControlRequest::CaptureBegin`] the NIC keeps the records, and the answer to
//! [`ControlRequest::CaptureEnd`] has all of them in hexadecimal. This also works over a port of a
//! guest, which stays open when its user is gone. Numbers are little-endian:
//!
//! | record | bytes |
//! | --- | --- |
//! | frame | 1, direction (1), sender's QPN (4), receiver's QPN (4), length (4), time (8), the frame |
//! | frame with a note | 3, the same, then length of the note (2) and the note in UTF-8 |
//! | end | 2, frames seen (8), frames dropped (8) |

use crate::{hex, ControlRequest, QueryReply};
use serde::{Deserialize, Serialize};
use std::io::{self, Read};

/// Length of the longest frame, in bytes.
pub const MAX_FRAME_BYTES: usize = 68 << 10;

/// Value that stands for an unknown QPN.
const NO_QPN: u32 = u32::MAX;
const FRAME: u8 = 1;
const END_OF_CAPTURE: u8 = 2;
const FRAME_WITH_NOTE: u8 = 3;
const FRAME_HEADER_BYTES: usize = 21;

/// The link layer of a captured port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CaptureLinkLayer {
    /// Frames begin with an Ethernet header and end with the ICRC.
    #[default]
    Ethernet,
    /// Frames are InfiniBand packets from the LRH to the VCRC.
    InfiniBand,
}

/// The answer to [`ControlRequest::Capture`], before the records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureReply {
    /// MAC address of the guest to which the NIC belongs.
    pub guest: String,
    /// Link layer of the port. A NIC without InfiniBand ports may leave it out.
    #[serde(default)]
    pub link_layer: CaptureLinkLayer,
}

impl QueryReply for CaptureReply {
    const REQUEST: ControlRequest = ControlRequest::Capture;
}

/// The answer to [`ControlRequest::CaptureEnd`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureEndReply {
    /// MAC address of the guest to which the NIC belongs.
    pub guest: String,
    /// Link layer of the port. A NIC without InfiniBand ports may leave it out.
    #[serde(default)]
    pub link_layer: CaptureLinkLayer,
    /// The records in hexadecimal, up to [`CaptureRecord::End`].
    pub records: String,
}

impl QueryReply for CaptureEndReply {
    const REQUEST: ControlRequest = ControlRequest::CaptureEnd;
}

impl CaptureEndReply {
    /// Creates the answer with these records of a capture that began with a reply.
    pub fn new(begun: CaptureReply, records: &[u8]) -> Self {
        Self {
            guest: begun.guest,
            link_layer: begun.link_layer,
            records: hex::encode(records),
        }
    }

    /// Returns the bytes of the records.
    ///
    /// # Errors
    ///
    /// The text is not hexadecimal.
    pub fn bytes(&self) -> Result<Vec<u8>, String> {
        hex::decode(&self.records).ok_or_else(|| {
            String::from(
                "the records of the answer are not hexadecimal: is the NIC of another version?",
            )
        })
    }
}

/// The direction of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameDirection {
    /// The frame went from one QP of the device to another.
    Local,
    /// The frame went between QPs of the device and was dropped on purpose.
    Lost,
    /// The frame left the device.
    Sent,
    /// The frame came from outside.
    Received,
}

const FRAME_DIRECTIONS: [FrameDirection; 4] = [
    FrameDirection::Local,
    FrameDirection::Lost,
    FrameDirection::Sent,
    FrameDirection::Received,
];

/// A record of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CaptureRecord {
    /// A frame that the NIC saw.
    Frame {
        /// Direction of the frame.
        direction: FrameDirection,
        /// QPN of the sender, if it is known.
        src_qpn: Option<u32>,
        /// QPN of the receiver, if it is known.
        dst_qpn: Option<u32>,
        /// Time of day in nanoseconds since 1970.
        time_ns: u64,
        /// Bytes of the frame, as [`CaptureLinkLayer`] says.
        frame: Vec<u8>,
        /// Action of a rule on this frame, or of rules since the previous one.
        note: Option<String>,
    },
    /// The end of the capture.
    End {
        /// Number of frames that passed during the capture.
        seen: u64,
        /// Number of those frames that were dropped because the reader was slow.
        dropped: u64,
    },
}

fn invalid_data(what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("{what}: is the NIC of another version?"),
    )
}

/// Returns `N` bytes from an offset that lies within a header.
fn array_at<const N: usize>(bytes: &[u8], from: usize) -> [u8; N] {
    let mut out = [0; N];
    if let Some(part) = bytes.get(from..from + N) {
        out.copy_from_slice(part);
    }
    out
}

impl CaptureRecord {
    /// Appends the bytes of the record. A frame that is longer than [`MAX_FRAME_BYTES`] is cut
    /// there.
    pub fn put(&self, to: &mut Vec<u8>) {
        match self {
            Self::Frame {
                direction,
                src_qpn,
                dst_qpn,
                time_ns,
                frame,
                note,
            } => {
                let frame = frame.get(..MAX_FRAME_BYTES).unwrap_or(frame);
                let kind = if note.is_some() {
                    FRAME_WITH_NOTE
                } else {
                    FRAME
                };
                to.extend_from_slice(&[kind, *direction as u8]);
                to.extend_from_slice(&src_qpn.unwrap_or(NO_QPN).to_le_bytes());
                to.extend_from_slice(&dst_qpn.unwrap_or(NO_QPN).to_le_bytes());
                to.extend_from_slice(&(frame.len() as u32).to_le_bytes());
                to.extend_from_slice(&time_ns.to_le_bytes());
                to.extend_from_slice(frame);
                if let Some(note) = note {
                    let length = u16::try_from(note.len()).unwrap_or(0);
                    to.extend_from_slice(&length.to_le_bytes());
                    to.extend_from_slice(&note.as_bytes()[..length.into()]);
                }
            }
            Self::End { seen, dropped } => {
                to.push(END_OF_CAPTURE);
                to.extend_from_slice(&seen.to_le_bytes());
                to.extend_from_slice(&dropped.to_le_bytes());
            }
        }
    }

    /// Reads the next record. None if the sender has closed the connection.
    ///
    /// # Errors
    ///
    /// The read fails, the data ends within a record, or the data is not a record.
    pub fn read(from: &mut impl Read) -> io::Result<Option<Self>> {
        let mut kind = [0];
        if from.read(&mut kind)? == 0 {
            return Ok(None);
        }
        match kind[0] {
            kind @ (FRAME | FRAME_WITH_NOTE) => {
                let mut head = [0; FRAME_HEADER_BYTES];
                from.read_exact(&mut head)?;
                let direction = FRAME_DIRECTIONS.get(usize::from(head[0]));
                let direction =
                    *direction.ok_or_else(|| invalid_data("a frame has an unknown path"))?;
                let length = u32::from_le_bytes(array_at(&head, 9)) as usize;
                if length > MAX_FRAME_BYTES {
                    return Err(invalid_data("a frame is too long"));
                }
                let mut frame = vec![0; length];
                from.read_exact(&mut frame)?;
                let mut note = None;
                if kind == FRAME_WITH_NOTE {
                    let mut length = [0; 2];
                    from.read_exact(&mut length)?;
                    let mut text = vec![0; u16::from_le_bytes(length).into()];
                    from.read_exact(&mut text)?;
                    note = Some(String::from_utf8_lossy(&text).into_owned());
                }
                let qpn = |place| {
                    Some(u32::from_le_bytes(array_at(&head, place))).filter(|q| *q != NO_QPN)
                };
                Ok(Some(Self::Frame {
                    direction,
                    src_qpn: qpn(1),
                    dst_qpn: qpn(5),
                    time_ns: u64::from_le_bytes(array_at(&head, 13)),
                    frame,
                    note,
                }))
            }
            END_OF_CAPTURE => {
                let mut rest = [0; 16];
                from.read_exact(&mut rest)?;
                Ok(Some(Self::End {
                    seen: u64::from_le_bytes(array_at(&rest, 0)),
                    dropped: u64::from_le_bytes(array_at(&rest, 8)),
                }))
            }
            _ => Err(invalid_data("this is not a record of a capture")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Vec<CaptureRecord> {
        let frame = |direction, src_qpn, dst_qpn, length| CaptureRecord::Frame {
            direction,
            src_qpn,
            dst_qpn,
            time_ns: 0x0123_4567_89ab_cdef,
            frame: vec![7; length],
            note: (length == 70).then(|| String::from("rule \"ä\": drop")),
        };
        vec![
            frame(FrameDirection::Local, Some(16), Some(17), 70),
            frame(FrameDirection::Lost, Some(16), Some(17), 70),
            frame(
                FrameDirection::Sent,
                Some(0),
                Some(0xff_ffff),
                MAX_FRAME_BYTES,
            ),
            frame(FrameDirection::Received, None, None, 0),
            CaptureRecord::End {
                seen: u64::MAX,
                dropped: 5,
            },
        ]
    }

    #[test]
    fn records_are_read_back_unchanged() {
        let mut bytes = vec![];
        records().iter().for_each(|record| record.put(&mut bytes));
        let mut rest = &bytes[..];
        for record in records() {
            assert_eq!(CaptureRecord::read(&mut rest).unwrap(), Some(record));
        }
        assert_eq!(CaptureRecord::read(&mut rest).unwrap(), None);
    }

    #[test]
    fn records_of_a_capture_end_reply_are_read_back_unchanged() {
        let mut bytes = vec![];
        records().iter().for_each(|record| record.put(&mut bytes));
        let begun = CaptureReply {
            guest: String::from("52:54:00:12:34:56"),
            link_layer: CaptureLinkLayer::InfiniBand,
        };
        let reply = CaptureEndReply::new(begun, &bytes);
        assert_eq!(reply.bytes(), Ok(bytes));
        assert_eq!(reply.link_layer, CaptureLinkLayer::InfiniBand);
        let odd = CaptureEndReply {
            records: String::from("0"),
            ..CaptureEndReply::default()
        };
        assert!(odd.bytes().is_err());
    }

    #[test]
    fn a_reply_without_a_link_layer_is_of_an_ethernet_port() {
        let parse = |text| {
            serde_json::from_str::<CaptureReply>(text)
                .unwrap()
                .link_layer
        };
        let old = parse("{\"guest\":\"x\"}");
        let new = parse("{\"guest\":\"x\",\"link_layer\":\"infiniband\"}");
        assert_eq!(
            (old, new),
            (CaptureLinkLayer::Ethernet, CaptureLinkLayer::InfiniBand)
        );
    }

    #[test]
    fn malformed_records_are_refused() {
        for (bytes, what) in [
            (vec![9], "not a record"),
            ([vec![1, 4], vec![0; 20]].concat(), "unknown path"),
            ([vec![1, 0], vec![0xff; 20]].concat(), "too long"),
        ] {
            let error = CaptureRecord::read(&mut &bytes[..])
                .unwrap_err()
                .to_string();
            assert!(error.contains(what), "{error}");
        }
        let mut bytes = vec![];
        records()[0].put(&mut bytes);
        for end in 1..bytes.len() {
            let error = CaptureRecord::read(&mut &bytes[..end]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{end}");
        }
    }
}
