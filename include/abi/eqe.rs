// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Event queue entries. Device specification, "Event queues".
//!
//! The ring works as that of CQEs does (phase in the last word, [`super::cqe::phase`]). The driver takes an entry,
//! stores its consumer index, executes a full fence, and only then handles the entry: the device, which looks at the
//! consumer index after a full fence, may thus drop an event of a CQ that is still waiting in the ring, because its
//! handler has yet to run; and it raises the interrupt only when the driver had consumed all earlier entries.

use super::Le32;

codes! {
    /// What happened, and to which kind of object [`Eqe::number`] belongs.
    pub enum EventType: u8 {
        /// A CQ that was armed has something to poll (CQN).
        Completion = 1,
        /// A CQ overflowed or its memory cannot be written (CQN).
        CqErr = 2,
        /// A queue pair went to ERR for no WR's fault (QPN).
        QpFatal = 3,
        /// The peer asked for what the queue pair cannot do (QPN).
        QpReqErr = 4,
        /// The peer accessed what it may not (QPN).
        QpAccessErr = 5,
        /// A packet came while the queue pair was in RTR (QPN).
        CommEst = 6,
        /// SQD is reached (QPN).
        SqDrained = 7,
        /// A queue pair on an SRQ is in ERR and has taken its last WQE (QPN).
        QpLastWqeReached = 8,
        /// Receives fell below the armed limit (SRQN).
        SrqLimitReached = 9,
        /// An SRQ cannot be read (SRQN).
        SrqErr = 10,
        /// The device is dead until reset.
        DeviceFatal = 11,
    }
}

impl EventType {
    /// The name that programs know it by: that of `enum ibv_event_type`. A completion is no asynchronous event of verbs, so it has a
    /// name of ours.
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
        }
    }
}

layout! {
    /// An event.
    pub struct Eqe: 16 {
        /// CQN, QPN or SRQN, as the type says.
        0 => number: Le32,
        /// [`super::syndrome::Syndrome`], where there is one.
        4 => syndrome: Le32,
        /// The port of an event that is one's; else 0.
        8 => port: u8,
        9 => reserved: [u8; 3],
        /// [`EventType`] in bits 7:0, phase in bit 31. Written last, with release order.
        12 => tail: Le32,
    }
}

/// Size of an entry in bytes.
pub const EQE_SIZE: usize = 1 << LOG_EQE_SIZE;
/// The same as a power of two.
pub const LOG_EQE_SIZE: u8 = 4;
/// Offset of [`Eqe::tail`].
pub const TAIL_OFFSET: usize = 12;

/// Packs [`Eqe::tail`].
#[inline]
pub const fn pack_tail(event: EventType, phase: bool) -> u32 {
    event as u32 | (phase as u32) << 31
}

layouts! {
    structs: [Eqe],
    codes: [EventType]
}
