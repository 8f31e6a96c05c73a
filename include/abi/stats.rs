// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The port's counters, with the names that `rdma statistic` shows: those of mlx5 where it counts the same. They count from
//! reset on and never wrap; queue pairs have the same ones, from their creation on.

codes! {
    /// Index into [`super::cmd::Stats::counters`].
    pub enum Counter: u8 {
        /// tx_packets: RoCE packets sent, those to local queue pairs included.
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
        /// duplicate_request: requests received again.
        DuplicateRequest = 8,
        /// out_of_sequence: requests beyond the PSN expected.
        OutOfSequence = 9,
        /// packet_seq_err: NAKs received for a sequence error.
        PacketSeqErr = 10,
        /// local_ack_timeout_err: local ACK timeouts.
        LocalAckTimeoutErr = 11,
        /// rnr_nak_sent: RNR NAKs sent.
        RnrNakSent = 12,
        /// rnr_nak_retry_err: RNR NAKs received.
        RnrNakRetryErr = 13,
        /// retransmits: packets sent again.
        Retransmits = 14,
        /// req_transport_retries_exceeded: queue pairs that gave up after retry_cnt retries.
        ReqTransportRetriesExceeded = 15,
        /// req_rnr_retries_exceeded: queue pairs that gave up after rnr_retry retries.
        ReqRnrRetriesExceeded = 16,
        /// req_cqe_error: send completions in error, flushes not counted.
        ReqCqeError = 17,
        /// resp_cqe_error: receive completions in error, flushes not counted.
        RespCqeError = 18,
        /// req_cqe_flush_error: sends flushed.
        ReqCqeFlush = 19,
        /// resp_cqe_flush_error: receives flushed.
        RespCqeFlush = 20,
        /// rx_icrc_encapsulated: packets dropped for a wrong ICRC.
        RxIcrcEncapsulated = 21,
        /// rx_malformed: packets dropped because they cannot be parsed.
        RxMalformed = 22,
        /// rx_drops_ud: datagrams dropped (no receive, Q_Key, P_Key, length).
        RxDropsUd = 23,
        /// cq_overflow: completion queues that overflowed.
        CqOverflow = 24,
        /// doorbells: writes to the doorbell BAR.
        Doorbells = 25,
        /// posts: send WQEs taken.
        Posts = 26,
        /// recvs: receive WQEs taken.
        Recvs = 27,
        /// interrupts: interrupts raised.
        Interrupts = 28,
        /// commands: commands executed.
        Commands = 29,
        /// out_of_buffer: messages that found no receive: RNR NAKs sent, and messages of UC and UD dropped.
        OutOfBuffer = 30,
        /// implied_nak_seq_err: responses found missing by a later one.
        ImpliedNakSeqErr = 31,
        /// resp_local_length_error: receives completed with LOC_LEN_ERR.
        RespLocalLengthError = 32,
        /// req_remote_invalid_request: sends completed with REM_INV_REQ_ERR.
        ReqRemoteInvalidRequest = 33,
        /// req_remote_access_errors: sends completed with REM_ACCESS_ERR.
        ReqRemoteAccessErrors = 34,
        /// resp_remote_access_errors: NAKs sent for an access that the key does not allow.
        RespRemoteAccessErrors = 35,
        /// tx_multicast_packets: packets sent to multicast groups.
        TxMulticastPackets = 36,
        /// rx_multicast_packets: packets received of multicast groups, one for each queue pair that is a member.
        RxMulticastPackets = 37,
        /// rp_cnp_ignored: congestion notifications (CNPs) received, on which nothing is done.
        RpCnpIgnored = 38,
        /// tx_over_mtu: packets that did not leave, since the port's MTU is below that of their path by now.
        TxOverMtu = 39,
        /// link_downed: times that the port went down.
        LinkDowned = 40,
        /// rx_atomic_write_requests: ATOMIC WRITE requests received.
        RxAtomicWriteRequests = 41,
        /// rx_flush_requests: FLUSH requests received.
        RxFlushRequests = 42,
        /// rx_no_qp: packets dropped because their queue pair is not there, or hears another peer.
        RxNoQp = 43,
        /// spurious_retransmits: packets sent again by a timer although the peer answered their first copy too.
        SpuriousRetransmits = 44,
    }
}

/// How many counters there are.
pub const NUM_COUNTERS: usize = Counter::ALL.len();

layouts! {
    structs: [],
    codes: [Counter]
}
