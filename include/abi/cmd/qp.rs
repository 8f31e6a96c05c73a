// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Queue pairs.

use super::super::ctx::{AddressVector, QpAttr, Translation};
use super::{Command, Empty, Le16, Le32, Le64, Opcode, Quiesced, PAYLOAD_SIZE};

codes! {
    /// Types of queue pairs, with the numbers of `enum ib_qp_type`.
    pub enum QpType: u8 {
        /// Subnet management interface (QPN 0), of InfiniBand ports only.
        Smi = 0,
        /// General services interface (QPN 1).
        Gsi = 1,
        /// Reliable connection.
        Rc = 2,
        /// Unreliable connection.
        Uc = 3,
        /// Unreliable datagram.
        Ud = 4,
        /// Initiator of an extended reliable connection (XRC).
        XrcIni = 9,
        /// Target of an extended reliable connection (XRC).
        XrcTgt = 10,
    }
}

/// Lowest QPN of ordinary queue pairs. The QPN of a special queue pair is its [`QpType`]. Other
/// QPNs below this are reserved.
pub const FIRST_QPN: u32 = 8;

/// [`CreateQp::flags`]: the queue pair is privileged. It may use the local DMA key, fast
/// registration, and local invalidate of keys for fast registration. Only for queue pairs of the
/// kernel.
pub const QP_PRIVILEGED: u8 = 1 << 0;
/// [`CreateQp::flags`]: every send completes with a CQE, also sends that are not signaled.
pub const QP_SIGNAL_ALL: u8 = 1 << 1;
/// [`CreateQp::flags`]: receives are taken from the SRQ [`CreateQp::srqn`].
pub const QP_HAS_SRQ: u8 = 1 << 2;

layout! {
    /// Creates a queue pair in RESET.
    pub struct CreateQp: 96 {
        0 => qpn: Le32,
        4 => pdn: Le32,
        8 => send_cqn: Le32,
        12 => recv_cqn: Le32,
        16 => srqn: Le32,
        /// Doorbell area of the producer indexes and the watch word. The next field is their slot
        /// in the area.
        20 => uar: Le32,
        24 => slot: Le16,
        /// [`QpType`].
        26 => qp_type: u8,
        /// `QP_*`.
        27 => flags: u8,
        /// The send ring has 2^log_sq_size entries of 2^log_sq_stride bytes.
        28 => log_sq_size: u8,
        29 => log_sq_stride: u8,
        /// The receive ring has 2^log_rq_size entries of 2^log_rq_stride bytes. With [`QP_HAS_SRQ`]
        /// there is none.
        30 => log_rq_size: u8,
        31 => log_rq_stride: u8,
        32 => sq: Translation,
        48 => rq: Translation,
        /// Largest number of SGEs of a send WQE, and of a receive WQE, and of bytes of inline data.
        64 => max_send_sge: u8,
        65 => max_recv_sge: u8,
        66 => max_inline: Le16,
        /// XRC targets: XRC domain; else 0. An XRC target has no PD, CQs, SRQ or queues, and an XRC
        /// initiator has no receive queue. The fields that describe these are 0.
        68 => xrcdn: Le32,
        /// `enum ib_qp_create_flags`. The device accepts only flags that it announces.
        72 => create_flags: Le32,
        /// Port of a special queue pair; else 0.
        76 => port: u8,
        77 => reserved0: [u8; 3],
        80 => reserved1: [Le64; 2],
    }
}
command!(CreateQp, CreateQp, Empty);
object_command!(
    /// Quiesces and destroys a queue pair. After the reply it causes no DMA, no CQE and no event.
    DestroyQp, DestroyQp, Quiesced
);
layout! {
    /// Reply of QUERY_QP. It contains the state, although the device also publishes the context. A
    /// reader of the context may find it half written for as long as the device's thread has no
    /// CPU.
    pub struct QueriedQp: 8 {
        /// [`super::super::ctx::QpAttr::qp_state`].
        0 => qp_state: u8,
        1 => reserved: [u8; 7],
    }
}
object_command!(
    /// Publishes a queue pair's context.
    QueryQp, QueryQp, QueriedQp
);

layout! {
    /// Changes the state or attributes of a queue pair. Attributes that are not in `mask` do not
    /// change.
    pub struct ModifyQp: 192 {
        0 => qpn: Le32,
        /// [`super::super::ctx::qp_mask`].
        4 => mask: Le32,
        8 => attr: QpAttr,
        88 => reserved: Le64,
        96 => av: AddressVector,
        /// Alternate path.
        144 => alt_av: AddressVector,
    }
}
command!(ModifyQp, ModifyQp, Quiesced);

layouts! {
    structs: [CreateQp, DestroyQp, QueryQp, QueriedQp, ModifyQp],
    codes: [QpType]
}
