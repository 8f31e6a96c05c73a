// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counters of one queue pair. The NIC adds them up for the port; a packet that reaches no queue pair is the NIC's to
//! count.

macro_rules! counters {
    ($(#[$about:meta])* $all:ident: $($(#[$doc:meta])* $name:ident,)*) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[repr(C)]
        pub struct $all {
            $( $(#[$doc])* pub $name: u64, )*
        }

        impl $all {
            /// Names and values, in order.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$( (stringify!($name), self.$name), )*].into_iter()
            }

            /// Adds another's values.
            pub fn add(&mut self, other: &Self) {
                $( self.$name = self.$name.wrapping_add(other.$name); )*
            }
        }
    };
}

counters! {
    /// What a queue pair has sent, received, dropped and repeated since it was created.
    Counters:
    // Those that count with every message come first: they share a cache line.
    /// Packets sent; a super-packet counts as the packets it stands for.
    tx_packets,
    /// Payload bytes sent.
    tx_bytes,
    /// Packets received.
    rx_packets,
    /// Payload bytes received.
    rx_bytes,
    /// Acknowledgements sent, positive.
    acks_sent,
    /// Work requests completed, of both queues, without those flushed.
    completed,
    /// Packets sent again.
    retransmitted,
    /// Times that the local ACK timer expired.
    timeouts,
    /// Times that something was sent again before the local ACK timer expired.
    probes,
    /// NAKs sent for a gap in the sequence.
    sequence_naks_sent,
    /// NAKs received for a gap in the sequence.
    sequence_naks_received,
    /// NAKs of other kinds sent.
    naks_sent,
    /// Those of them for an access that the key does not allow.
    access_naks_sent,
    /// NAKs of other kinds received.
    naks_received,
    /// RNR NAKs sent.
    rnr_naks_sent,
    /// RNR NAKs received.
    rnr_naks_received,
    /// Responses found missing by a later one.
    implied_naks,
    /// Requests that had been executed before.
    duplicates,
    /// Requests ahead of the sequence.
    out_of_sequence,
    /// Those of them that were kept until the gap before them closed.
    kept,
    /// Responses and acknowledgements that answer nothing outstanding, dropped.
    stale_responses,
    /// Packets whose payload died on the way (the sender's work request had ended), dropped.
    dead_payloads,
    /// Packets that the queue pair's state does not process, dropped.
    dropped_state,
    /// Packets of another transport service, dropped.
    dropped_transport,
    /// Packets with another partition key, dropped.
    dropped_pkey,
    /// Datagrams with another Q_Key, dropped.
    dropped_qkey,
    /// UC, UD: messages that no receive was posted for, dropped.
    dropped_no_receive,
    /// UC, UD: messages longer than the receive, dropped.
    dropped_too_long,
    /// UC, UD: messages that failed a check, dropped.
    dropped_invalid,
    /// UC: messages abandoned in the middle.
    aborted_messages,
    /// UD: messages over the MTU, of which nothing was sent.
    over_mtu,
    /// Work requests flushed.
    flushed,
}

counters! {
    /// What a queue pair has met of congestion and delay since it was created; of congestion by the names that RDMA drivers have for it.
    CongestionCounters:
    /// Packets received that routers have marked.
    np_ecn_marked_roce_packets,
    /// Congestion notifications (CNPs) sent, for requests that routers have marked.
    np_cnp_sent,
    /// CNPs received, on which fewer packets are under way.
    rp_cnp_handled,
    /// CNPs received, on which nothing is done.
    rp_cnp_ignored,
    /// Packets sent again by a timer although the peer answers their first copy too: spurious retransmissions (RFC 5682).
    spurious_retransmits,
}
