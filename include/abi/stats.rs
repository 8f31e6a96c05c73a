// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The port's counters, with the names that `rdma statistic` shows. They count from reset on and never wrap.

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
        /// rnr_nak_rcvd: RNR NAKs received.
        RnrNakRcvd = 13,
        /// retransmits: packets sent again.
        Retransmits = 14,
        /// retry_exceeded: queue pairs that gave up after retry_cnt retries.
        RetryExceeded = 15,
        /// rnr_retry_exceeded: queue pairs that gave up after rnr_retry retries.
        RnrRetryExceeded = 16,
        /// req_cqe_error: send completions in error, flushes not counted.
        ReqCqeError = 17,
        /// resp_cqe_error: receive completions in error, flushes not counted.
        RespCqeError = 18,
        /// req_cqe_flush_error: sends flushed.
        ReqCqeFlush = 19,
        /// resp_cqe_flush_error: receives flushed.
        RespCqeFlush = 20,
        /// rx_icrc_errors: packets dropped for a wrong ICRC.
        RxIcrcErrors = 21,
        /// rx_malformed: packets dropped because they cannot be parsed or have no queue pair.
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
    }
}

layouts! {
    structs: [],
    codes: [Counter]
}
