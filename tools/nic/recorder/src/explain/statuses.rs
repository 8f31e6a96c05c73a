// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Completion statuses: their meanings, their causes, and the remedies for a program.

use super::remedy::{CONNECTION, DATAGRAM_ONLY, DEVICE, READ_FIRST, SQE_OR_CONNECTION};
use verbena_abi::cqe::WcStatus;

/// The explanation of a status.
pub(super) struct StatusExplanation {
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
const fn reliable_datagram_status(status: WcStatus, text: &'static str) -> StatusExplanation {
    StatusExplanation {
        status,
        text,
        meaning: "This status belongs to reliable datagrams, which RoCE does not have.",
        clause: "11.6.2",
        causes: &[
            "A fault rule with `complete` set this status (verbenactl fault summary).",
            "The program printed another number, for example an errno or an opcode.",
        ],
        remedy: DATAGRAM_ONLY,
    }
}

use WcStatus::*;

pub(super) static STATUSES: [StatusExplanation; 22] = [
    StatusExplanation {
        status: Success,
        text: "success",
        meaning: "The work request is complete; its buffers may be used again.",
        clause: "11.6.2",
        causes: &[],
        remedy: "nothing: this is not an error.",
    },
    StatusExplanation {
        status: LocLenErr,
        text: "local length error",
        meaning: "The length of the work request's data does not fit.",
        clause: "11.6.2",
        causes: &[
            "A SEND was longer than the buffer of the receive that it took.",
            "The message is longer than max_msg_sz of ibv_query_port.",
            "The buffer of an atomic is not 8 bytes long, or the response to a READ had another \
             length.",
        ],
        remedy: CONNECTION,
    },
    StatusExplanation {
        status: LocQpOpErr,
        text: "local QP operation error",
        meaning: "The queue pair cannot execute the work request as it was posted.",
        clause: "11.6.2",
        causes: &[
            "The transport does not have the opcode, such as an RDMA WRITE on UD.",
            "The address handle belongs to another protection domain than the queue pair, or its \
             GID was removed.",
            "A READ or an atomic was posted although max_rd_atomic is 0.",
            "The entry was overwritten: the program wrote to the memory of the queue.",
        ],
        remedy: SQE_OR_CONNECTION,
    },
    reliable_datagram_status(LocEecOpErr, "local EE context operation error"),
    StatusExplanation {
        status: LocProtErr,
        text: "local protection error",
        meaning: "An SGE of the work request names memory that the work request may not use.",
        clause: "11.6.2",
        causes: &[
            "The L_Key is not valid: the program called ibv_dereg_mr before the completion, or \
             never set the field.",
            "Address and length reach beyond the memory region.",
            "The region belongs to another protection domain.",
            "A receive or a READ writes to a region without IBV_ACCESS_LOCAL_WRITE.",
        ],
        remedy: SQE_OR_CONNECTION,
    },
    StatusExplanation {
        status: WrFlushErr,
        text: "Work Request Flushed Error",
        meaning: "The work request was not executed: its queue pair was in ERR, or its send \
                  queue in SQE. Another error always precedes this status.",
        clause: "11.6.2, 10.3.1",
        causes: &[
            "An earlier work request of this queue pair failed: see its first completion with \
             another status.",
            "The program or its library moved the queue pair to ERR: ibv_modify_qp, \
             rdma_disconnect, or the peer disconnected.",
            "A CQ or the SRQ of the queue pair, or the device, is in error: \
             IBV_EVENT_CQ_ERR, IBV_EVENT_SRQ_ERR, IBV_EVENT_DEVICE_FATAL.",
            "The peer's request was refused: IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR.",
        ],
        remedy: READ_FIRST,
    },
    StatusExplanation {
        status: MwBindErr,
        text: "memory management operation error",
        meaning: "A bind, a fast registration or an invalidate named a key that it may not use.",
        clause: "11.6.2",
        causes: &[
            "The memory region was registered without IBV_ACCESS_MW_BIND.",
            "The window reaches beyond the region, or asks for rights that the region lacks.",
            "The window, the region and the queue pair belong to different protection domains.",
            "The peer sent a SEND with invalidate for a key that it may not invalidate.",
        ],
        remedy: CONNECTION,
    },
    StatusExplanation {
        status: BadRespErr,
        text: "bad response error",
        meaning: "The response does not fit the request.",
        clause: "11.6.2, 9.9.2",
        causes: &[
            "A fault rule or an impairment changed a packet.",
            "The peer's device has a defect: a capture shows its response.",
        ],
        remedy: CONNECTION,
    },
    StatusExplanation {
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
    StatusExplanation {
        status: RemInvReqErr,
        text: "remote invalid request error",
        meaning: "The peer refused the request as invalid (NAK code 1).",
        clause: "11.6.2, 9.7.5.2",
        causes: &[
            "A SEND was longer than the receive that the peer had posted.",
            "The peer's qp_access_flags, set on the transition to INIT, do not allow the \
             operation.",
            "More READs and atomics are outstanding than the peer's max_dest_rd_atomic.",
            "The address of an atomic is not a multiple of 8.",
        ],
        remedy: CONNECTION,
    },
    StatusExplanation {
        status: RemAccessErr,
        text: "remote access error",
        meaning: "The peer refused the remote key or address (NAK code 2).",
        clause: "11.6.2, 9.7.5.2",
        causes: &[
            "The R_Key is not that of the peer's region: it was sent in another byte order, is \
             an old one, or the region was deregistered.",
            "Address and length reach beyond the peer's region.",
            "The region was registered without IBV_ACCESS_REMOTE_WRITE, REMOTE_READ or \
             REMOTE_ATOMIC.",
            "The region and the queue pair of the peer belong to different protection domains.",
        ],
        remedy: CONNECTION,
    },
    StatusExplanation {
        status: RemOpErr,
        text: "remote operation error",
        meaning: "The peer could not execute the request because of an error on its side (NAK code 3).",
        clause: "11.6.2, 9.7.5.2",
        causes: &[
            "The receive that the peer had posted has a bad SGE: its completion there has \
             IBV_WC_LOC_PROT_ERR.",
            "The peer's SRQ or CQ is in error.",
        ],
        remedy: CONNECTION,
    },
    StatusExplanation {
        status: RetryExcErr,
        text: "transport retry counter exceeded",
        meaning: "The peer did not acknowledge a packet within retry_cnt retries.",
        clause: "11.6.2, 9.7.6.1.3",
        causes: &[
            "The peer's queue pair is gone, in ERR, or has not reached RTR: its process ended, \
             or it had an error before.",
            "dest_qp_num or a PSN does not match the peer: rq_psn must be the peer's sq_psn, and \
             dest_qp_num the peer's qp_num.",
            "The GID is not the peer's, or sgid_index belongs to another network or address \
             family: ping the address.",
            "The path loses packets: the link or port is down, a fault rule or an impairment \
             drops them, or the path MTU is too large.",
            "timeout is too short for a busy peer: the ACK timer is 4.096 us times 2^timeout.",
        ],
        remedy: CONNECTION,
    },
    StatusExplanation {
        status: RnrRetryExcErr,
        text: "RNR retry counter exceeded",
        meaning: "The peer had no receive posted for rnr_retry retries.",
        clause: "11.6.2, 9.7.5.2.8",
        causes: &[
            "The receiving program posts receives too late or too few: post the first ones before \
             the queue pair enters RTR.",
            "rnr_retry is below 7 (7 retries for ever), and the peer is slower than \
             min_rnr_timer and the retries allow.",
            "The peer's SRQ is empty: all queue pairs of the SRQ take receives from it.",
        ],
        remedy: CONNECTION,
    },
    reliable_datagram_status(LocRddViolErr, "local RDD violation error"),
    reliable_datagram_status(RemInvRdReqErr, "remote invalid RD request"),
    StatusExplanation {
        status: RemAbortErr,
        text: "aborted error",
        meaning: "The message was abandoned before its end.",
        clause: "11.6.2",
        causes: &[
            "A packet in the middle of a UC message was lost, and its receive came from an SRQ.",
        ],
        remedy: "post the receive again; the queue pair still works. UC does not recover \
                 from loss: use RC if every message has to arrive.",
    },
    reliable_datagram_status(InvEecnErr, "invalid EE context number"),
    reliable_datagram_status(InvEecStateErr, "invalid EE context state"),
    StatusExplanation {
        status: FatalErr,
        text: "fatal error",
        meaning: "The device failed.",
        clause: "11.6.2",
        causes: &[
            "The device is dead: IBV_EVENT_DEVICE_FATAL, and `verbenactl status` shows the cause.",
            "A fault rule with `complete` set this status.",
        ],
        remedy: DEVICE,
    },
    StatusExplanation {
        status: RespTimeoutErr,
        text: "response timeout error",
        meaning: "No response arrived in time. Only fault rules cause this status in Verbena.",
        clause: "11.6.2",
        causes: &["A fault rule with `complete` set this status."],
        remedy: CONNECTION,
    },
    StatusExplanation {
        status: GeneralErr,
        text: "general error",
        meaning: "An error that no other status describes. Only fault rules cause this status in Verbena.",
        clause: "11.6.2",
        causes: &["A fault rule with `complete` set this status."],
        remedy: CONNECTION,
    },
];

/// Returns the explanation of a status.
pub(super) fn find(status: WcStatus) -> Option<&'static StatusExplanation> {
    STATUSES
        .iter()
        .find(|explanation| explanation.status == status)
}
