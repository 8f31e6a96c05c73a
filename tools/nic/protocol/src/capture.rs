// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The protocol of captures over the control socket.
//!
//! The answer to [`Request::Capture`] is a line, [`ToldCapture`], and then [`Record`]s in bytes,
//! until the client closes its sending half or the connection. The last record is [`Record::End`].
//!
//! With [`Request::CaptureBegin`] the NIC keeps the records, and the answer to
//! [`Request::CaptureEnd`] has all of them in hexadecimal. This also works over a port of a guest,
//! which stays open when its user is gone. Numbers are little-endian:
//!
//! | record | bytes |
//! | --- | --- |
//! | frame | 1, way (1), sender's QPN (4), receiver's QPN (4), length (4), time (8), the frame |
//! | frame with a note | 3, the same, then length of the note (2) and the note in UTF-8 |
//! | end | 2, frames seen (8), frames dropped (8) |

use crate::{hex, Question, Request};
use serde::{Deserialize, Serialize};
use std::io::{self, Read};

/// Length of the longest frame, in bytes.
pub const MAX_FRAME: usize = 68 << 10;

/// Value that stands for an unknown QPN.
const NO_QPN: u32 = u32::MAX;
const FRAME: u8 = 1;
const END: u8 = 2;
const NOTED: u8 = 3;
const FRAME_REST: usize = 21;

/// The answer to [`Request::Capture`], before the records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToldCapture {
    /// MAC address of the guest to which the NIC belongs.
    pub guest: String,
}

impl Question for ToldCapture {
    const REQUEST: Request = Request::Capture;
}

/// The answer to [`Request::CaptureEnd`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToldKept {
    /// MAC address of the guest to which the NIC belongs.
    pub guest: String,
    /// The records in hexadecimal, up to [`Record::End`].
    pub records: String,
}

impl Question for ToldKept {
    const REQUEST: Request = Request::CaptureEnd;
}

impl ToldKept {
    /// Creates the answer with these records.
    pub fn new(guest: String, records: &[u8]) -> Self {
        Self {
            guest,
            records: hex::write(records),
        }
    }

    /// Returns the bytes of the records.
    ///
    /// # Errors
    ///
    /// The text is not hexadecimal.
    pub fn bytes(&self) -> Result<Vec<u8>, String> {
        hex::read(&self.records).ok_or_else(|| {
            String::from(
                "the records of the answer are not hexadecimal: is the NIC of another version?",
            )
        })
    }
}

/// The path of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The frame went from one QP of the device to another.
    Local,
    /// The frame went between QPs of the device and was dropped on purpose.
    Lost,
    /// The frame left the device.
    Sent,
    /// The frame came from outside.
    Received,
}

const WAYS: [Way; 4] = [Way::Local, Way::Lost, Way::Sent, Way::Received];

/// A record of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A frame that the NIC saw.
    Frame {
        /// Path of the frame.
        way: Way,
        /// QPN of the sender, if it is known.
        src_qpn: Option<u32>,
        /// QPN of the receiver, if it is known.
        dst_qpn: Option<u32>,
        /// Time of day in nanoseconds since 1970.
        time_ns: u64,
        /// Bytes of the frame, with the ICRC.
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

fn bad(what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("{what}: is the NIC of another version?"),
    )
}

/// Returns `N` bytes from an offset that lies within a header.
fn at<const N: usize>(bytes: &[u8], from: usize) -> [u8; N] {
    let mut out = [0; N];
    if let Some(part) = bytes.get(from..from + N) {
        out.copy_from_slice(part);
    }
    out
}

impl Record {
    /// Appends the bytes of the record. A frame that is longer than [`MAX_FRAME`] is cut there.
    pub fn put(&self, to: &mut Vec<u8>) {
        match self {
            Self::Frame {
                way,
                src_qpn,
                dst_qpn,
                time_ns,
                frame,
                note,
            } => {
                let frame = frame.get(..MAX_FRAME).unwrap_or(frame);
                let kind = if note.is_some() { NOTED } else { FRAME };
                to.extend_from_slice(&[kind, *way as u8]);
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
                to.push(END);
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
            kind @ (FRAME | NOTED) => {
                let mut head = [0; FRAME_REST];
                from.read_exact(&mut head)?;
                let way = WAYS.get(usize::from(head[0]));
                let way = *way.ok_or_else(|| bad("a frame has an unknown path"))?;
                let length = u32::from_le_bytes(at(&head, 9)) as usize;
                if length > MAX_FRAME {
                    return Err(bad("a frame is too long"));
                }
                let mut frame = vec![0; length];
                from.read_exact(&mut frame)?;
                let mut note = None;
                if kind == NOTED {
                    let mut length = [0; 2];
                    from.read_exact(&mut length)?;
                    let mut text = vec![0; u16::from_le_bytes(length).into()];
                    from.read_exact(&mut text)?;
                    note = Some(String::from_utf8_lossy(&text).into_owned());
                }
                let qpn =
                    |place| Some(u32::from_le_bytes(at(&head, place))).filter(|q| *q != NO_QPN);
                Ok(Some(Self::Frame {
                    way,
                    src_qpn: qpn(1),
                    dst_qpn: qpn(5),
                    time_ns: u64::from_le_bytes(at(&head, 13)),
                    frame,
                    note,
                }))
            }
            END => {
                let mut rest = [0; 16];
                from.read_exact(&mut rest)?;
                Ok(Some(Self::End {
                    seen: u64::from_le_bytes(at(&rest, 0)),
                    dropped: u64::from_le_bytes(at(&rest, 8)),
                }))
            }
            _ => Err(bad("this is not a record of a capture")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Vec<Record> {
        let frame = |way, src_qpn, dst_qpn, length| Record::Frame {
            way,
            src_qpn,
            dst_qpn,
            time_ns: 0x0123_4567_89ab_cdef,
            frame: vec![7; length],
            note: (length == 70).then(|| String::from("rule \"ä\": drop")),
        };
        vec![
            frame(Way::Local, Some(16), Some(17), 70),
            frame(Way::Lost, Some(16), Some(17), 70),
            frame(Way::Sent, Some(0), Some(0xff_ffff), MAX_FRAME),
            frame(Way::Received, None, None, 0),
            Record::End {
                seen: u64::MAX,
                dropped: 5,
            },
        ]
    }

    #[test]
    fn records_survive_the_wire() {
        let mut bytes = vec![];
        records().iter().for_each(|record| record.put(&mut bytes));
        let mut rest = &bytes[..];
        for record in records() {
            assert_eq!(Record::read(&mut rest).unwrap(), Some(record));
        }
        assert_eq!(Record::read(&mut rest).unwrap(), None);
    }

    #[test]
    fn kept_records_survive_the_wire() {
        let mut bytes = vec![];
        records().iter().for_each(|record| record.put(&mut bytes));
        let told = ToldKept::new(String::from("52:54:00:12:34:56"), &bytes);
        assert_eq!(told.bytes(), Ok(bytes));
        let records = String::from("0");
        let guest = String::new();
        assert!(ToldKept { guest, records }.bytes().is_err());
    }

    #[test]
    fn malformed_records_are_refused() {
        for (bytes, what) in [
            (vec![9], "not a record"),
            ([vec![1, 4], vec![0; 20]].concat(), "unknown path"),
            ([vec![1, 0], vec![0xff; 20]].concat(), "too long"),
        ] {
            let error = Record::read(&mut &bytes[..]).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
        let mut bytes = vec![];
        records()[0].put(&mut bytes);
        for end in 1..bytes.len() {
            let error = Record::read(&mut &bytes[..end]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{end}");
        }
    }
}
