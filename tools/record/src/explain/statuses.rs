// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Completion statuses: their meanings, their causes, and the remedies for a program.

use super::remedy::{CONNECTION, DATAGRAM_ONLY, DEVICE, READ_FIRST, SQE_OR_CONNECTION};
use verbena_abi::cqe::WcStatus;

/// The explanation of a status.
pub(super) struct Known {
    pub(super) status: WcStatus,
    /// Text from `ibv_wc_status_str`.
    pub(super) text: &'static str,
    pub(super) meaning: &'static str,
    pub(super) clause: &'static str,
    /// Causes of the status, the likeliest first.
    pub(super) causes: &'static [&'static str],
    pub(super) remedy: &'static str,
}

/// Makes the explanation of a status of reliable datagrams, which RoCE does not have.
const fn of_reliable_datagrams(status: WcStatus, text: &'static str) -> Known {
    Known {
        status,
        text,
        meaning: "This status belongs to reliable datagrams, which RoCE does not have.",
        clause: "11.6.2",
        causes: &[
            "A fault rule with `complete` asked for this status (verbenactl fault summary).",
            "The program printed another number, for example an errno or an opcode.",
        ],
        remedy: DATAGRAM_ONLY,
    }
}

use WcStatus::*;

pub(super) static ALL: [Known; 22] = [
    Known {
        status: Success,
        text: "success",
        meaning: "The work request is done; its buffers may be used again.",
        clause: "11.6.2",
        causes: &[],
        remedy: "nothing: this is no error.",
    },
    Known {
        status: LocLenErr,
        text: "local length error",
        meaning: "The length of the work request's data does not fit.",
        clause: "11.6.2",
        causes: &[
            "A SEND was longer than the buffer of the receive that it took.",
            "The message is longer than max_msg_sz of ibv_query_port.",
            "An atomic's data are not 8 bytes, or a READ was answered with another length.",
        ],
        remedy: CONNECTION,
    },
    Known {
        status: LocQpOpErr,
        text: "local QP operation error",
        meaning: "The queue pair cannot execute the work request as it was posted.",
        clause: "11.6.2",
        causes: &[
            "The opcode is not one for this transport, such as an RDMA WRITE on UD.",
            "The address handle is of another protection domain than the queue pair, or its \
             GID is gone.",
            "A READ or an atomic was posted although max_rd_atomic is 0.",
            "The entry was overwritten: the program wrote to the queue's memory.",
        ],
        remedy: SQE_OR_CONNECTION,
    },
    of_reliable_datagrams(LocEecOpErr, "local EE context operation error"),
    Known {
        status: LocProtErr,
        text: "local protection error",
        meaning: "An SGE of the work request names memory that it may not use.",
        clause: "11.6.2",
        causes: &[
            "The L_Key is not one: ibv_dereg_mr came before the completion, or the field \
             was never set.",
            "Address and length reach beyond the memory region.",
            "The region belongs to another protection domain.",
            "A receive or a READ writes to a region without IBV_ACCESS_LOCAL_WRITE.",
        ],
        remedy: SQE_OR_CONNECTION,
    },
    Known {
        status: WrFlushErr,
        text: "Work Request Flushed Error",
        meaning: "The work request was not executed: its queue pair was in ERR, or its send \
                  queue in SQE. That is never the first error.",
        clause: "11.6.2, 10.3.1",
        causes: &[
            "An earlier work request of this queue pair failed: the first completion of it \
             with another status tells.",
            "The program or its library moved the queue pair to ERR: ibv_modify_qp, \
             rdma_disconnect, or the peer disconnected.",
            "A CQ or the SRQ of the queue pair died, or the device did: \
             IBV_EVENT_CQ_ERR, IBV_EVENT_SRQ_ERR, IBV_EVENT_DEVICE_FATAL.",
            "The peer's request was refused: IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR.",
        ],
        remedy: READ_FIRST,
    },
    Known {
        status: MwBindErr,
        text: "memory management operation error",
        meaning: "A bind, a fast registration or an invalidate named a key that it may not.",
        clause: "11.6.2",
        causes: &[
            "The memory region was registered without IBV_ACCESS_MW_BIND.",
            "The window reaches beyond the region, or asks for rights that the region lacks.",
            "Window, region and queue pair are not of one protection domain.",
            "The peer sent a SEND with invalidate that named a key it may not invalidate.",
        ],
        remedy: CONNECTION,
    },
    Known {
        status: BadRespErr,
        text: "bad response error",
        meaning: "The response that came cannot answer the request.",
        clause: "11.6.2, 9.9.2",
        causes: &[
            "A fault rule or an impairment changed a packet.",
            "The peer's device has a defect: a capture shows its response.",
        ],
        remedy: CONNECTION,
    },
    Known {
        status: LocAccessErr,
        text: "local access error",
        meaning: "The RDMA WRITE with immediate that took this receive was refused.",
        clause: "11.6.2",
        causes: &[
            "The peer used a wrong R_Key or address; its completion has \
             IBV_WC_REM_ACCESS_ERR.",
            "The region was registered without IBV_ACCESS_REMOTE_WRITE, or is gone.",
        ],
        remedy: CONNECTION,
    },
    Known {
        status: RemInvReqErr,
        text: "remote invalid request error",
        meaning: "The peer refused the request as invalid (NAK code 1).",
        clause: "11.6.2, 9.7.5.2",
        causes: &[
            "A SEND was longer than the receive that the peer had posted.",
            "The peer's qp_access_flags do not allow the operation: they are set at the \
             way to INIT.",
            "More READs and atomics are under way than the peer's max_dest_rd_atomic.",
            "The address of an atomic is not a multiple of 8.",
        ],
        remedy: CONNECTION,
    },
    Known {
        status: RemAccessErr,
        text: "remote access error",
        meaning: "The peer refused the remote key or address (NAK code 2).",
        clause: "11.6.2, 9.7.5.2",
        causes: &[
            "The R_Key is not the one of the peer's region: it was sent in another byte \
             order, is an old one, or the region was deregistered.",
            "Address and length reach beyond the peer's region.",
            "The region was registered without IBV_ACCESS_REMOTE_WRITE, REMOTE_READ or \
             REMOTE_ATOMIC.",
            "Region and queue pair of the peer are not of one protection domain.",
        ],
        remedy: CONNECTION,
    },
    Known {
        status: RemOpErr,
        text: "remote operation error",
        meaning: "The peer could not execute the request for a reason of its own (NAK code 3).",
        clause: "11.6.2, 9.7.5.2",
        causes: &[
            "The receive that the peer had posted has a bad SGE: its completion there has \
             IBV_WC_LOC_PROT_ERR.",
            "The peer's SRQ or CQ died.",
        ],
        remedy: CONNECTION,
    },
    Known {
        status: RetryExcErr,
        text: "transport retry counter exceeded",
        meaning: "The peer did not acknowledge a packet within retry_cnt retries.",
        clause: "11.6.2, 9.7.6.1.3",
        causes: &[
            "The peer's queue pair is gone, in ERR, or never came to RTR: its process ended, \
             or it failed first.",
            "dest_qp_num or a PSN is not the peer's: rq_psn has to be the sq_psn of the other \
             end, dest_qp_num its qp_num.",
            "The GID is not the peer's, or sgid_index is of another network or address \
             family: ping the address.",
            "The way loses packets: link or port down, a fault rule, an impairment, a path \
             MTU that does not pass.",
            "timeout is too short for a busy peer: the wait is 4.096 us times 2^timeout.",
        ],
        remedy: CONNECTION,
    },
    Known {
        status: RnrRetryExcErr,
        text: "RNR retry counter exceeded",
        meaning: "The peer had no receive posted for rnr_retry retries.",
        clause: "11.6.2, 9.7.5.2.8",
        causes: &[
            "The receiving program posts receives too late or too few: the first have to be \
             there before the queue pair goes to RTR.",
            "rnr_retry is below 7, which waits without end, and the peer is slower than \
             min_rnr_timer allows.",
            "The peer's SRQ is empty: all of its queue pairs take from it.",
        ],
        remedy: CONNECTION,
    },
    of_reliable_datagrams(LocRddViolErr, "local RDD violation error"),
    of_reliable_datagrams(RemInvRdReqErr, "remote invalid RD request"),
    Known {
        status: RemAbortErr,
        text: "aborted error",
        meaning: "The message was abandoned before its end.",
        clause: "11.6.2",
        causes: &[
            "A packet in the middle of a UC message was lost, and its receive came from an SRQ.",
        ],
        remedy: "post the receive again; the queue pair goes on. UC repairs no loss: where \
                 every message counts, use RC.",
    },
    of_reliable_datagrams(InvEecnErr, "invalid EE context number"),
    of_reliable_datagrams(InvEecStateErr, "invalid EE context state"),
    Known {
        status: FatalErr,
        text: "fatal error",
        meaning: "The device failed.",
        clause: "11.6.2",
        causes: &[
            "The device is dead: IBV_EVENT_DEVICE_FATAL, and `verbenactl status` tells of what.",
            "A fault rule with `complete` asked for this status.",
        ],
        remedy: DEVICE,
    },
    Known {
        status: RespTimeoutErr,
        text: "response timeout error",
        meaning: "No response came in time. Verbena gives this status by fault rules alone.",
        clause: "11.6.2",
        causes: &["A fault rule with `complete` asked for this status."],
        remedy: CONNECTION,
    },
    Known {
        status: GeneralErr,
        text: "general error",
        meaning: "An error that no other status names. Verbena gives it by fault rules alone.",
        clause: "11.6.2",
        causes: &["A fault rule with `complete` asked for this status."],
        remedy: CONNECTION,
    },
];

/// Returns the explanation of a status.
pub(super) fn of(status: WcStatus) -> Option<&'static Known> {
    ALL.iter().find(|known| known.status == status)
}
