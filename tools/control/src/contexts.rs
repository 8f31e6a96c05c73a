// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The objects of the device: what their contexts say (`include/abi/ctx.rs`), as plain data.

use serde::{Deserialize, Serialize};

/// An object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Context {
    /// QPN, CQN, ...; of a memory region the index of its key.
    pub number: u32,
    /// Of which kind it is, and its fields.
    #[serde(flatten)]
    pub fields: Fields,
}

/// The fields of an object, by kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "fields", rename_all = "lowercase")]
pub enum Fields {
    /// A queue pair.
    Qp(Qp),
    /// A completion queue.
    Cq(Cq),
    /// A shared receive queue.
    Srq(Srq),
    /// A memory region.
    Mr(Mr),
    /// An event queue.
    Eq(Eq),
}

impl Fields {
    /// All that [`Fields::kind`] may be.
    pub const KINDS: [&'static str; 5] = ["qp", "cq", "srq", "mr", "eq"];

    /// The kind, as it is said.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Qp(_) => "qp",
            Self::Cq(_) => "cq",
            Self::Srq(_) => "srq",
            Self::Mr(_) => "mr",
            Self::Eq(_) => "eq",
        }
    }
}

/// A queue pair.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Qp {
    /// Reset, Init, ...
    pub state: String,
    /// Rc, Uc, ...
    #[serde(rename = "type")]
    pub qp_type: String,
    /// Destination's QPN.
    pub dest_qpn: u32,
    /// Why it is in ERR, or 0.
    pub syndrome: u32,
    /// Protection domain.
    pub pdn: u32,
    /// Completion queue of sends.
    pub send_cqn: u32,
    /// Completion queue of receives.
    pub recv_cqn: u32,
    /// Producer index of the send queue.
    pub sq_pi: u32,
    /// The work request that is sent next.
    pub sq_next: u32,
    /// Consumer index of the send queue.
    pub sq_ci: u32,
    /// Consumer index of the receive queue.
    pub rq_ci: u32,
    /// PSN that is sent next.
    pub next_psn: u32,
    /// Oldest PSN that is not acknowledged.
    pub una_psn: u32,
    /// PSN that is expected next.
    pub expected_psn: u32,
}

/// A completion queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cq {
    /// 0: it works; else it is in error.
    pub state: u8,
    /// Entries of its ring.
    pub entries: u64,
    /// Entries written.
    pub producer_index: u32,
    /// Entries taken, as last seen.
    pub consumer_index: u32,
    /// Why it is in error, or 0.
    pub syndrome: u32,
    /// Event queue.
    pub eqn: u32,
    /// Queues that complete there.
    pub users: u32,
}

/// A shared receive queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Srq {
    /// 0: it works; else it is in error.
    pub state: u8,
    /// Receives taken.
    pub consumer_index: u32,
    /// Armed limit, or 0.
    pub limit: u32,
}

/// A memory region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mr {
    /// Its key.
    pub key: u32,
    /// Whether the key is valid.
    pub state: String,
    /// Protection domain.
    pub pdn: u32,
    /// Access flags.
    pub access: u32,
    /// Address by which the device knows its beginning.
    pub iova: u64,
    /// Length in bytes.
    pub length: u64,
}

/// An event queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Eq {
    /// Interrupt vector.
    pub vector: u16,
    /// Entries written.
    pub producer_index: u32,
    /// Entries taken, as last seen.
    pub consumer_index: u32,
    /// Events that wait for room.
    pub waiting: u32,
}
