// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The objects of the device: the contents of their contexts (`include/abi/ctx.rs`), as plain data.

use crate::{ControlRequest, QueryReply};
use serde::{Deserialize, Serialize};

/// The objects that exist.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextsReply {
    /// The objects, each as it was when the engine read it.
    pub contexts: Vec<ObjectContext>,
}

impl QueryReply for ContextsReply {
    const REQUEST: ControlRequest = ControlRequest::Contexts;
}

/// One object of the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectContext {
    /// Number of the object, such as QPN or CQN; for a memory region the index of its key.
    pub number: u32,
    /// Kind of the object, and its fields.
    #[serde(flatten)]
    pub fields: ContextFields,
}

/// The fields of an object, by its kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "fields", rename_all = "lowercase")]
pub enum ContextFields {
    /// A queue pair of the device.
    Qp(Qp),
    /// A completion queue of the device.
    Cq(Cq),
    /// A shared receive queue of the device.
    Srq(Srq),
    /// A memory region of the device.
    Mr(Mr),
    /// An event queue of the device.
    Eq(Eq),
}

impl ContextFields {
    /// All possible values of [`ContextFields::kind`].
    pub const KINDS: [&'static str; 5] = ["qp", "cq", "srq", "mr", "eq"];

    /// Returns the name of the kind.
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

/// The fields of a queue pair.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Qp {
    /// State of the QP: Reset, Init, ...
    pub state: String,
    /// Type of the QP: Rc, Uc, ...
    #[serde(rename = "type")]
    pub qp_type: String,
    /// QPN of the destination.
    pub dest_qpn: u32,
    /// Cause of the error state, or 0.
    pub syndrome: u32,
    /// Number of the protection domain.
    pub pdn: u32,
    /// Number of the completion queue for sends.
    pub send_cqn: u32,
    /// Number of the completion queue for receives.
    pub recv_cqn: u32,
    /// Producer index of the send queue.
    pub sq_pi: u32,
    /// Index of the next work request to send.
    pub sq_next: u32,
    /// Consumer index of the send queue.
    pub sq_ci: u32,
    /// Consumer index of the receive queue.
    pub rq_ci: u32,
    /// PSN of the next request.
    pub next_psn: u32,
    /// Oldest PSN that is not acknowledged.
    pub una_psn: u32,
    /// PSN that is expected next.
    pub expected_psn: u32,
}

/// The fields of a completion queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cq {
    /// State of the CQ: 0 for operational, otherwise in error.
    pub state: u8,
    /// Number of entries of the ring.
    pub entries: u64,
    /// Number of entries that were written.
    pub producer_index: u32,
    /// Number of entries that were consumed, as last seen.
    pub consumer_index: u32,
    /// Cause of the error state, or 0.
    pub syndrome: u32,
    /// Number of the event queue.
    pub eqn: u32,
    /// Number of queues that complete to this CQ.
    pub users: u32,
}

/// The fields of a shared receive queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Srq {
    /// State of the SRQ: 0 for operational, otherwise in error.
    pub state: u8,
    /// Number of receives that were taken.
    pub consumer_index: u32,
    /// Armed limit of the SRQ, or 0.
    pub limit: u32,
}

/// The fields of a memory region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mr {
    /// Key of the memory region.
    pub key: u32,
    /// Validity of the key, as text.
    pub state: String,
    /// Number of the protection domain.
    pub pdn: u32,
    /// Access flags of the region.
    pub access: u32,
    /// Address of the beginning of the region at the device.
    pub iova: u64,
    /// Length of the region in bytes.
    pub length: u64,
}

/// The fields of an event queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Eq {
    /// Number of the interrupt vector.
    pub vector: u16,
    /// Number of entries that were written.
    pub producer_index: u32,
    /// Number of entries that were consumed, as last seen.
    pub consumer_index: u32,
    /// Number of events that wait for room.
    pub waiting: u32,
}
