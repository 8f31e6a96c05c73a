// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The counters of the port and of queue pairs, with the names that `rdma statistic` shows.
//! Counters that mlx5 has too have their names from mlx5.
//!
//! The port counts since reset, and a queue pair since its creation. Counters have 64 bits. Some
//! count only for the port, and are 0 for a queue pair.

codes! {
    /// Index of a counter in the array that QUERY_STATS writes ([`super::cmd::QueryStats`]). The
    /// doc comment of each counter begins with its name.
    pub enum Counter: u8 {
        /// tx_packets: RoCE packets sent, also to queue pairs of the same device.
        TxPackets = 0,
        /// rx_packets: RoCE packets received.
        RxPackets = 1,
        /// tx_bytes: payload bytes sent.
        TxBytes = 2,
        /// rx_bytes: payload bytes received.
        RxBytes = 3,
        /// rx_write_requests: RDMA WRITE messages received.
        RxWriteRequests = 4,
        /// rx_read_requests: RDMA READ requests received.
        RxReadRequests = 5,
        /// rx_atomic_requests: atomic requests received.
        RxAtomicRequests = 6,
        /// rx_sends: SEND messages received.
        RxSends = 7,
        /// duplicate_request: duplicate request packets received.
        DuplicateRequest = 8,
        /// out_of_sequence: request packets received with a PSN after the expected one; for UC,
        /// with any unexpected PSN.
        OutOfSequence = 9,
        /// packet_seq_err: NAKs received for a PSN sequence error.
        PacketSeqErr = 10,
        /// local_ack_timeout_err: expirations of the local ACK timer.
        LocalAckTimeoutErr = 11,
        /// rnr_nak_sent: RNR NAKs sent.
        RnrNakSent = 12,
        /// rnr_nak_retry_err: RNR NAKs received.
        RnrNakRetryErr = 13,
        /// retransmits: request packets sent again.
        Retransmits = 14,
        /// req_transport_retries_exceeded: sends completed because retry_cnt was exceeded.
        ReqTransportRetriesExceeded = 15,
        /// req_rnr_retries_exceeded: sends completed because rnr_retry was exceeded.
        ReqRnrRetriesExceeded = 16,
        /// req_cqe_error: send completions in error, without flushed ones.
        ReqCqeError = 17,
        /// resp_cqe_error: receive completions in error, without flushed ones.
        RespCqeError = 18,
        /// req_cqe_flush_error: sends flushed.
        ReqCqeFlush = 19,
        /// resp_cqe_flush_error: receives flushed.
        RespCqeFlush = 20,
        /// rx_icrc_encapsulated: packets dropped because their ICRC is wrong.
        RxIcrcEncapsulated = 21,
        /// rx_malformed: packets dropped because they cannot be parsed.
        RxMalformed = 22,
        /// rx_drops_ud: UD and UC messages dropped (no receive, Q_Key, length, failed check), and
        /// packets of any service dropped because of their P_Key.
        RxDropsUd = 23,
        /// cq_overflow: completion queues that overflowed.
        CqOverflow = 24,
        /// doorbells: writes to the doorbell BAR.
        Doorbells = 25,
        /// posts: send WQEs that the device has taken.
        Posts = 26,
        /// recvs: receive WQEs that the device has taken.
        Recvs = 27,
        /// interrupts: interrupts raised.
        Interrupts = 28,
        /// commands: commands executed.
        Commands = 29,
        /// out_of_buffer: messages for which no receive was posted: RNR NAKs sent, and UC and UD
        /// messages dropped.
        OutOfBuffer = 30,
        /// implied_nak_seq_err: gaps in the responses that a later response has shown.
        ImpliedNakSeqErr = 31,
        /// resp_local_length_error: receives completed with LOC_LEN_ERR.
        RespLocalLengthError = 32,
        /// req_remote_invalid_request: sends completed with REM_INV_REQ_ERR.
        ReqRemoteInvalidRequest = 33,
        /// req_remote_access_errors: sends completed with REM_ACCESS_ERR.
        ReqRemoteAccessErrors = 34,
        /// resp_remote_access_errors: NAKs sent because the key does not allow an access.
        RespRemoteAccessErrors = 35,
        /// tx_multicast_packets: packets sent to multicast groups.
        TxMulticastPackets = 36,
        /// rx_multicast_packets: packets received from multicast groups, counted once for each
        /// queue pair that is a member.
        RxMulticastPackets = 37,
        /// rp_cnp_ignored: congestion notification packets (CNPs) received by queue pairs that do
        /// not control congestion, or are not in RTS or SQD.
        RpCnpIgnored = 38,
        /// tx_over_mtu: packets dropped because they are longer than the present MTU of the port.
        TxOverMtu = 39,
        /// link_downed: number of times that the port went down.
        LinkDowned = 40,
        /// rx_atomic_write_requests: ATOMIC WRITE requests received.
        RxAtomicWriteRequests = 41,
        /// rx_flush_requests: FLUSH requests received.
        RxFlushRequests = 42,
        /// rx_no_qp: packets dropped because their queue pair does not exist, or because they do
        /// not come from its peer.
        RxNoQp = 43,
        /// spurious_retransmits: packets that a timer sent again although the peer also answered
        /// their first copy.
        SpuriousRetransmits = 44,
    }
}

/// Number of counters.
pub const NUM_COUNTERS: usize = Counter::ALL.len();

layouts! {
    structs: [],
    codes: [Counter]
}
