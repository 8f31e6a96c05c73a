// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counters of one queue pair. The NIC adds them up for the port, and counts the packets that reach
//! no queue pair.

macro_rules! counters {
    ($(#[$about:meta])* $all:ident: $($(#[$doc:meta])* $name:ident,)*) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[repr(C)]
        pub struct $all {
            $( $(#[$doc])* pub $name: u64, )*
        }

        impl $all {
            /// Returns the names and values of the counters, in order.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$( (stringify!($name), self.$name), )*].into_iter()
            }

            /// Adds the values of other counters to these.
            pub fn add(&mut self, other: &Self) {
                $( self.$name = self.$name.wrapping_add(other.$name); )*
            }
        }
    };
}

counters! {
    /// Counters of packets, completions, drops and retransmissions of a queue pair since it was
    /// created.
    Counters:
    // The counters that change with every message come first, so that they share a cache line.
    /// Packets sent; a super-packet counts as the packets that it stands for.
    tx_packets,
    /// Payload bytes of sent packets.
    tx_bytes,
    /// Packets received; a super-packet counts as the packets that it stands for.
    rx_packets,
    /// Payload bytes of received packets.
    rx_bytes,
    /// Positive acknowledgements sent by the responder.
    acks_sent,
    /// Work requests completed on both queues, without those that were flushed.
    completed,
    /// Packets sent again by the requester.
    retransmitted,
    /// Number of times that the local ACK timer expired.
    timeouts,
    /// Number of times that the oldest unacknowledged packet was sent again before the local ACK
    /// timer expired.
    probes,
    /// NAKs sent for a gap in the sequence.
    sequence_naks_sent,
    /// NAKs received for a gap in the sequence.
    sequence_naks_received,
    /// NAKs of other kinds sent.
    naks_sent,
    /// NAKs in `naks_sent` for an access that the key does not allow.
    access_naks_sent,
    /// NAKs of other kinds received.
    naks_received,
    /// RNR NAKs sent by the responder.
    rnr_naks_sent,
    /// RNR NAKs received by the requester.
    rnr_naks_received,
    /// Gaps in the responses that the requester found from a later response.
    implied_naks,
    /// Duplicate request packets, whose PSN is before the expected one.
    duplicates,
    /// Request packets received with a PSN after the expected one; for UC, with any unexpected PSN.
    out_of_sequence,
    /// Requests and responses received out of order that were kept for the time when the gap
    /// closes.
    kept,
    /// Responses and acknowledgements that answer no outstanding request, dropped.
    stale_responses,
    /// Packets dropped because their payload had become unreadable: the sender's work request had
    /// ended, or the responder was reset.
    dead_payloads,
    /// Packets dropped because the state of the queue pair does not process them.
    dropped_state,
    /// Packets dropped because they belong to another transport service.
    dropped_transport,
    /// Packets dropped because they have another partition key.
    dropped_pkey,
    /// Datagrams dropped because they have another Q_Key.
    dropped_qkey,
    /// UC, UD: messages dropped because no receive was posted.
    dropped_no_receive,
    /// UC, UD: messages dropped because they are longer than the receive.
    dropped_too_long,
    /// UC, UD: messages dropped because they failed a check. UC: also later packets of a message
    /// that was abandoned.
    dropped_invalid,
    /// UC: messages abandoned before their last packet.
    aborted_messages,
    /// UD: messages over the MTU, of which nothing was sent.
    over_mtu,
    /// Work requests completed with a flush error.
    flushed,
}

counters! {
    /// Counters of congestion and delay of a queue pair since it was created. The counters of
    /// congestion have the names that RDMA drivers use.
    CongestionCounters:
    /// Packets received that routers have marked.
    np_ecn_marked_roce_packets,
    /// Congestion notification packets (CNPs) sent for requests that routers have marked.
    np_cnp_sent,
    /// CNPs received by a requester that controls congestion. It reduces its congestion window at
    /// most once per round trip.
    rp_cnp_handled,
    /// CNPs received without effect, because the queue pair does not control congestion or is not
    /// in RTS or SQD.
    rp_cnp_ignored,
    /// Packets that a timer sent again although the peer also answered their first copy: spurious
    /// retransmissions (RFC 5682).
    spurious_retransmits,
}
