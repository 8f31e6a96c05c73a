// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The messages between ibsim and its client library umad2sim, as C structures in the byte order of
//! the machine. Each message is one datagram of a UNIX socket.

use verbena_fabric::mad::{Mad, MAD_LEN};

/// First word of a control message.
const MAGIC: u32 = 0xdead_beef;
/// Number of bytes of the data of a control message.
pub const CONTROL_DATA_LEN: usize = 64;
/// Number of bytes of a control message: four words and the data.
pub const CONTROL_LEN: usize = 16 + CONTROL_DATA_LEN;
/// Number of bytes of a message with a MAD: five words, four bytes of padding, the length, the MAD.
pub const PACKET_LEN: usize = 32 + MAD_LEN;

/// Types of control messages.
pub mod control {
    pub const ERROR: u32 = 0;
    pub const CONNECT: u32 = 1;
    pub const DISCONNECT: u32 = 2;
    pub const GET_PORT: u32 = 3;
    pub const GET_VENDOR: u32 = 4;
    pub const GET_GID: u32 = 5;
    pub const GET_GUID: u32 = 6;
    pub const GET_NODE_INFO: u32 = 7;
    pub const GET_PORT_INFO: u32 = 8;
    pub const SET_IS_SM: u32 = 9;
    pub const GET_P_KEYS: u32 = 10;
}

/// A control message.
#[derive(Clone, Debug)]
pub struct ControlMessage {
    pub client: u32,
    pub kind: u32,
    len: u32,
    pub data: [u8; CONTROL_DATA_LEN],
}

impl ControlMessage {
    /// Reads a message. None: it is none of umad2sim.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let data = bytes.get(16..CONTROL_LEN)?.try_into().ok()?;
        let message = Self {
            client: word(bytes, 4)?,
            kind: word(bytes, 8)?,
            len: word(bytes, 12)?,
            data,
        };
        (word(bytes, 0)? == MAGIC && bytes.len() == CONTROL_LEN).then_some(message)
    }

    /// Writes the message.
    pub fn encode(&self) -> Vec<u8> {
        let words = [MAGIC, self.client, self.kind, self.len];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.extend(self.data);
        bytes
    }

    /// Returns a word of the data.
    pub fn word(&self, at: usize) -> u32 {
        word(&self.data, at).unwrap_or(0)
    }

    /// Replaces the first bytes of the data.
    pub fn put(&mut self, at: usize, bytes: &[u8]) {
        for (place, byte) in self.data.iter_mut().skip(at).zip(bytes) {
            *place = *byte;
        }
    }

    /// Returns the name of the node that a CONNECT asks for. It is empty if the client has no wish.
    pub fn node_name(&self) -> String {
        let name: Vec<u8> = self.data[12..44]
            .iter()
            .copied()
            .take_while(|byte| *byte != 0)
            .collect();
        String::from_utf8_lossy(&name).into_owned()
    }

    /// Stores the name of the node to which the client is attached, up to 31 bytes and a zero.
    pub fn set_node_name(&mut self, name: &str) {
        self.data[12..44].fill(0);
        self.put(12, &name.as_bytes()[..name.len().min(31)]);
    }
}

/// A MAD with its addresses. LIDs and queue pairs are in network byte order, each in a word.
#[derive(Clone, Debug)]
pub struct PacketMessage {
    pub destination_lid: u16,
    pub source_lid: u16,
    pub destination_qp: u32,
    pub source_qp: u32,
    /// The error number of a request that failed.
    pub status: u32,
    pub mad: Mad,
}

impl PacketMessage {
    /// Reads a message. None: its length is wrong.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mad = bytes.get(32..PACKET_LEN)?.try_into().ok()?;
        Some(Self {
            destination_lid: u16::from_be(word(bytes, 0)? as u16),
            source_lid: u16::from_be(word(bytes, 4)? as u16),
            destination_qp: u32::from_be(word(bytes, 8)?),
            source_qp: u32::from_be(word(bytes, 12)?),
            status: u32::from_be(word(bytes, 16)?),
            mad: Mad(mad),
        })
    }

    /// Writes the message.
    pub fn encode(&self) -> Vec<u8> {
        let lid = |lid: u16| u32::from(lid.to_be());
        let words = [
            lid(self.destination_lid),
            lid(self.source_lid),
            self.destination_qp.to_be(),
            self.source_qp.to_be(),
            self.status.to_be(),
            0,
        ];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.extend((MAD_LEN as u64).to_be_bytes());
        bytes.extend(self.mad.0);
        bytes
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_layout_of_the_c_structures() {
        let message = PacketMessage {
            destination_lid: 0x1234,
            source_lid: 0xffff,
            destination_qp: 1,
            source_qp: 0,
            status: 110,
            mad: Mad([7; MAD_LEN]),
        };
        let bytes = message.encode();
        assert_eq!(
            (bytes.len(), &bytes[..2], &bytes[8..12], &bytes[16..20]),
            (
                PACKET_LEN,
                &[0x12, 0x34][..],
                &[0, 0, 0, 1][..],
                &[0, 0, 0, 110][..]
            )
        );
        assert_eq!(
            (&bytes[24..32], bytes[32]),
            (&[0, 0, 0, 0, 0, 0, 1, 0][..], 7)
        );
        let again = PacketMessage::decode(&bytes).unwrap();
        assert_eq!(
            (again.destination_lid, again.status, again.mad),
            (0x1234, 110, message.mad)
        );
    }

    #[test]
    fn a_control_message_needs_its_magic_and_its_length() {
        let mut message = ControlMessage {
            client: 3,
            kind: control::CONNECT,
            len: 44,
            data: [0; CONTROL_DATA_LEN],
        };
        message.set_node_name(&"n".repeat(40));
        let mut bytes = message.encode();
        assert_eq!(
            ControlMessage::decode(&bytes).unwrap().node_name(),
            "n".repeat(31)
        );
        assert!(ControlMessage::decode(&bytes[1..]).is_none());
        bytes[0] = 0;
        assert!(ControlMessage::decode(&bytes).is_none());
    }
}
