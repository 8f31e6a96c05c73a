// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Asynchronous events: their meanings, their causes, and the remedies for a program.

use super::remedy::{CONNECTION, CQ, DEVICE, NOTHING, SRQ};

/// The explanation of an event.
pub(super) struct EventExplanation {
    pub(super) name: &'static str,
    /// Number in `enum ibv_event_type`.
    pub(super) number: u32,
    pub(super) meaning: &'static str,
    pub(super) clause: &'static str,
    /// Causes of the event, the likeliest first.
    pub(super) causes: &'static [&'static str],
    pub(super) remedy: &'static str,
}

const fn event(
    number: u32,
    name: &'static str,
    clause: &'static str,
    meaning: &'static str,
    causes: &'static [&'static str],
    remedy: &'static str,
) -> EventExplanation {
    EventExplanation {
        name,
        number,
        meaning,
        clause,
        causes,
        remedy,
    }
}

const NOT_SUPPORTED: &str =
    "nothing: Verbena never reports this event, because RoCE does not have it.";

pub(super) static EVENTS: [EventExplanation; 19] = [
    event(
        0,
        "IBV_EVENT_CQ_ERR",
        "11.6.3",
        "A CQ is in error. Its queue pairs go to ERR, with IBV_EVENT_QP_FATAL each.",
        &[
            "The CQ overflowed: the program polls too slowly, or `cqe` is less than the number \
             of work requests that its queue pairs can have outstanding.",
            "The memory of the CQ cannot be written.",
            "A fault rule with `cq_overflow` fired.",
        ],
        CQ,
    ),
    event(
        1,
        "IBV_EVENT_QP_FATAL",
        "11.6.3",
        "A queue pair went to ERR, and a work request is not the cause.",
        &[
            "Its CQ (IBV_EVENT_CQ_ERR) or its SRQ (IBV_EVENT_SRQ_ERR) is in error.",
            "The memory of its queues was overwritten or cannot be read.",
            "A fault rule with `qp_error` fired.",
        ],
        CONNECTION,
    ),
    event(
        2,
        "IBV_EVENT_QP_REQ_ERR",
        "11.6.3, 9.7.4.1",
        "The peer sent a request that this queue pair does not execute; the queue pair is in \
         ERR. The peer's completion has IBV_WC_REM_INV_REQ_ERR.",
        &[
            "qp_access_flags, set on the transition to INIT, do not allow the operation.",
            "The peer has more READs and atomics outstanding than max_dest_rd_atomic.",
            "The address of an atomic is not a multiple of 8, or a packet is malformed.",
        ],
        CONNECTION,
    ),
    event(
        3,
        "IBV_EVENT_QP_ACCESS_ERR",
        "11.6.3, 9.7.4.1",
        "The peer accessed memory without permission; the queue pair is in ERR. The peer's \
         completion has IBV_WC_REM_ACCESS_ERR.",
        &[
            "The peer used a wrong or old R_Key, or the region was deregistered.",
            "The access reaches beyond the memory region.",
            "The region was registered without the IBV_ACCESS_REMOTE_ flag of the operation.",
            "The region and the queue pair belong to different protection domains.",
        ],
        CONNECTION,
    ),
    event(
        4,
        "IBV_EVENT_COMM_EST",
        "11.6.3",
        "A packet arrived while the queue pair was in RTR, so the peer is already connected.",
        &["The peer sent a packet before this side's ibv_modify_qp to RTS."],
        NOTHING,
    ),
    event(
        5,
        "IBV_EVENT_SQ_DRAINED",
        "11.6.3",
        "The send queue is drained: the queue pair is in SQD and its last send is complete.",
        &["The program moved it to SQD with en_sqd_async_notify."],
        NOTHING,
    ),
    event(
        6,
        "IBV_EVENT_PATH_MIG",
        "11.6.3",
        "A connection migrated to its alternate path.",
        &[],
        NOT_SUPPORTED,
    ),
    event(
        7,
        "IBV_EVENT_PATH_MIG_ERR",
        "11.6.3",
        "A connection could not migrate to its alternate path.",
        &[],
        NOT_SUPPORTED,
    ),
    event(
        8,
        "IBV_EVENT_DEVICE_FATAL",
        "11.6.3",
        "The device is dead until its driver has reset it; all outstanding work is flushed.",
        &[
            "The driver was unbound, or the device was removed.",
            "The NIC's process ended or its device model failed: see its log.",
            "A fault rule with `fatal`, or `verbena-nic --misbehave`, caused it.",
        ],
        DEVICE,
    ),
    event(
        9,
        "IBV_EVENT_PORT_ACTIVE",
        "11.6.3",
        "The port is up.",
        &["The net device came up (ip link set up)."],
        NOTHING,
    ),
    event(
        10,
        "IBV_EVENT_PORT_ERR",
        "11.6.3",
        "The port is down. Packets sent meanwhile are lost, and are sent again.",
        &["The net device went down (ip link set down)."],
        "bring the net device up again. A connection whose retries run out before that fails \
         with IBV_WC_RETRY_EXC_ERR.",
    ),
    event(
        11,
        "IBV_EVENT_LID_CHANGE",
        "11.6.3",
        "The LID of the port changed.",
        &[],
        NOT_SUPPORTED,
    ),
    event(
        12,
        "IBV_EVENT_PKEY_CHANGE",
        "11.6.3",
        "The table of P_Keys changed.",
        &[],
        NOT_SUPPORTED,
    ),
    event(
        13,
        "IBV_EVENT_SM_CHANGE",
        "11.6.3",
        "The subnet manager changed.",
        &[],
        NOT_SUPPORTED,
    ),
    event(
        14,
        "IBV_EVENT_SRQ_ERR",
        "11.6.3",
        "An SRQ is in error: no receive is taken from it any more.",
        &[
            "The memory of the SRQ was overwritten or cannot be read.",
            "A fault rule with `kill_srq` fired.",
        ],
        SRQ,
    ),
    event(
        15,
        "IBV_EVENT_SRQ_LIMIT_REACHED",
        "11.6.3",
        "The SRQ has fewer receives than the limit that was armed; the limit is 0 now.",
        &["Receives are taken faster than the program posts them."],
        "post receives, and arm the limit again with ibv_modify_srq.",
    ),
    event(
        16,
        "IBV_EVENT_QP_LAST_WQE_REACHED",
        "11.6.3",
        "A queue pair on an SRQ is in ERR and takes no receive from the SRQ any more.",
        &["The queue pair entered ERR: `verbenactl why QPN` shows the cause."],
        "poll its CQs; after that the queue pair may be destroyed or reset.",
    ),
    event(
        17,
        "IBV_EVENT_CLIENT_REREGISTER",
        "11.6.3",
        "The subnet manager asks its clients to register again.",
        &[],
        NOT_SUPPORTED,
    ),
    event(
        18,
        "IBV_EVENT_GID_CHANGE",
        "11.6.3",
        "The table of GIDs changed.",
        &["An address of the net device was added or removed (ip address)."],
        "look up sgid_index again, because entries may have moved.",
    ),
];
