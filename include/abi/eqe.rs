// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Event queue entries. Device specification, "Event queues".
//!
//! The ring works like the ring of a CQ: the last word of an entry contains the phase
//! ([`super::cqe::phase`]). The driver takes an entry, stores its consumer index, executes a full
//! fence, and then handles the entry. The device executes a full fence before it reads the consumer
//! index. Therefore it can do the following:
//!
//! * It merges a further event of a CQ into one that the driver has not taken from the ring: the
//!   handler of that one runs later.
//! * It raises the interrupt only if the driver has taken all earlier entries.

use super::Le32;

codes! {
    /// Type of an event. The abbreviation in brackets is the kind of object that [`Eqe::number`]
    /// names.
    pub enum EventType: u8 {
        /// A CQ has an entry for which it was armed (CQN).
        Completion = 1,
        /// A CQ overflowed, or its ring cannot be written (CQN).
        CqErr = 2,
        /// A queue pair went to ERR because its CQ or SRQ is in error, or a ring or index of it is
        /// corrupt (QPN).
        QpFatal = 3,
        /// The peer sent an invalid request (QPN).
        QpReqErr = 4,
        /// The peer accessed memory that it may not access (QPN).
        QpAccessErr = 5,
        /// A packet arrived while the queue pair was in RTR (QPN).
        CommEst = 6,
        /// The send queue of a queue pair in SQD is drained (QPN).
        SqDrained = 7,
        /// A queue pair on an SRQ is in ERR and has taken its last WQE (QPN).
        QpLastWqeReached = 8,
        /// The number of receives in an SRQ fell below the armed limit (SRQN).
        SrqLimitReached = 9,
        /// An SRQ is in error, for example because its ring cannot be read (SRQN).
        SrqErr = 10,
        /// The device has failed, until it is reset (number 0).
        DeviceFatal = 11,
        /// An InfiniBand port went to the state ACTIVE (number 0).
        PortActive = 12,
        /// An InfiniBand port left the state ACTIVE (number 0).
        PortErr = 13,
        /// The LID or the LMC of an InfiniBand port has changed (number 0).
        LidChange = 14,
        /// The P_Key table of an InfiniBand port has changed (number 0).
        PkeyChange = 15,
        /// The LID or the SL of the subnet manager has changed (number 0).
        SmChange = 16,
        /// The subnet manager asks its clients to register again (number 0).
        ClientReregister = 17,
        /// The GID table of an InfiniBand port has changed (number 0).
        GidChange = 18,
    }
}

impl EventType {
    /// Returns the name in `enum ibv_event_type`. Verbs have no asynchronous event for completions,
    /// so `COMPLETION` is a name of this contract.
    pub const fn verbs_name(self) -> &'static str {
        match self {
            Self::Completion => "COMPLETION",
            Self::CqErr => "IBV_EVENT_CQ_ERR",
            Self::QpFatal => "IBV_EVENT_QP_FATAL",
            Self::QpReqErr => "IBV_EVENT_QP_REQ_ERR",
            Self::QpAccessErr => "IBV_EVENT_QP_ACCESS_ERR",
            Self::CommEst => "IBV_EVENT_COMM_EST",
            Self::SqDrained => "IBV_EVENT_SQ_DRAINED",
            Self::QpLastWqeReached => "IBV_EVENT_QP_LAST_WQE_REACHED",
            Self::SrqLimitReached => "IBV_EVENT_SRQ_LIMIT_REACHED",
            Self::SrqErr => "IBV_EVENT_SRQ_ERR",
            Self::DeviceFatal => "IBV_EVENT_DEVICE_FATAL",
            Self::PortActive => "IBV_EVENT_PORT_ACTIVE",
            Self::PortErr => "IBV_EVENT_PORT_ERR",
            Self::LidChange => "IBV_EVENT_LID_CHANGE",
            Self::PkeyChange => "IBV_EVENT_PKEY_CHANGE",
            Self::SmChange => "IBV_EVENT_SM_CHANGE",
            Self::ClientReregister => "IBV_EVENT_CLIENT_REREGISTER",
            Self::GidChange => "IBV_EVENT_GID_CHANGE",
        }
    }
}

layout! {
    /// An event.
    pub struct Eqe: 16 {
        /// CQN, QPN or SRQN, depending on the type.
        0 => number: Le32,
        /// [`super::syndrome::Syndrome`] of the cause, or 0.
        4 => syndrome: Le32,
        /// Port, for events of a port; else 0.
        8 => port: u8,
        9 => reserved: [u8; 3],
        /// [`EventType`] in bits 7:0, phase in bit 31. Written last, with release order.
        12 => tail: Le32,
    }
}

/// Size of an entry in bytes.
pub const EQE_SIZE: usize = 1 << LOG_EQE_SIZE;
/// Binary logarithm of [`EQE_SIZE`].
pub const LOG_EQE_SIZE: u8 = 4;
/// Offset of [`Eqe::tail`].
pub const TAIL_OFFSET: usize = 12;

/// Returns the value of [`Eqe::tail`].
#[inline]
pub const fn pack_tail(event: EventType, phase: bool) -> u32 {
    event as u32 | (phase as u32) << 31
}

layouts! {
    structs: [Eqe],
    codes: [EventType]
}
