// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Assigns the packets of a QP in one direction to messages, including retransmissions.

use crate::table::PacketAtHook;
use std::collections::VecDeque;
use verbena_transport::psn;

/// Number of the last messages that a tracker knows.
const MAX_MESSAGES: usize = 64;

/// The known messages of one QP in one sequence.
#[derive(Clone, Debug, Default)]
pub(crate) struct MessageTracker {
    /// The known messages, the oldest first.
    messages: VecDeque<TrackedMessage>,
    last: u64,
}

/// A message of a tracker.
#[derive(Clone, Copy, Debug)]
struct TrackedMessage {
    start: u32,
    number: u64,
    /// Number of PSNs from the start that the message is known to have.
    psns: u32,
    /// True if the message has no more PSNs.
    whole: bool,
}

/// Opcodes, without the transport, that may begin in the middle of a message: a READ request for
/// the rest of a READ, and the responses to it (RDMA READ response First and Only).
const RESUMING: [u8; 3] = [0x0c, 0x0d, 0x10];

impl TrackedMessage {
    /// True if a packet, whose PSN is not before the start, belongs to this message.
    fn has(&self, packet: &PacketAtHook) -> bool {
        let offset = psn::ahead(packet.psn, self.start);
        let is_within = offset < self.psns;
        match packet.first {
            false => is_within || !self.whole,
            // The packet is a retransmission, or resumes where responses were lost.
            true if RESUMING.contains(&(packet.opcode & 0x1f)) => {
                is_within || offset == self.psns && !self.whole
            }
            true => offset == 0,
        }
    }
}

impl MessageTracker {
    /// Returns the number of the message of a packet, and of the packet within it, both from 1.
    /// None if the message began before the tracker existed, or if its first packet was lost.
    pub(crate) fn place(&mut self, packet: &PacketAtHook) -> Option<(u64, u64)> {
        let at = packet.psn;
        let known = self.messages.iter_mut().rev();
        let known = known.filter(|message| !psn::is_behind(at, message.start));
        let nearest = known.min_by_key(|message| psn::ahead(at, message.start));
        if let Some(message) = nearest.filter(|message| message.has(packet)) {
            let offset = psn::ahead(at, message.start);
            let end = offset.saturating_add(packet.psns);
            message.psns = match packet.last {
                true => end,
                false => message.psns.max(end),
            };
            message.whole |= packet.last;
            return Some((message.number, u64::from(offset) + 1));
        }
        if !packet.first {
            return None;
        }
        self.last += 1;
        if self.messages.len() == MAX_MESSAGES {
            self.messages.pop_front();
        }
        self.messages.push_back(TrackedMessage {
            start: at,
            number: self.last,
            psns: packet.psns,
            whole: packet.last,
        });
        Some((self.last, 1))
    }

    /// Forgets all messages because the QP begins anew, so that an earlier PSN belongs to another
    /// message. The numbers of messages go on.
    pub(crate) fn begin_anew(&mut self) {
        self.messages.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::Direction;
    use crate::table::{QpIdentity, Sequence};

    /// Places a packet with this opcode, PSN, first and last flags, and number of PSNs.
    fn place_of(
        tracker: &mut MessageTracker,
        opcode: u8,
        psn: u32,
        (first, last): (bool, bool),
        psns: u32,
    ) -> Option<(u64, u64)> {
        tracker.place(&PacketAtHook {
            direction: Direction::Out,
            qp: QpIdentity::default(),
            opcode,
            psn,
            first_psn: 0,
            sequence: Some(Sequence::Requests),
            first,
            last,
            psns,
            mtu: 1024,
            bytes: 0,
        })
    }

    /// Places a packet of a SEND.
    fn place(
        tracker: &mut MessageTracker,
        psn: u32,
        how: (bool, bool),
        psns: u32,
    ) -> Option<(u64, u64)> {
        place_of(tracker, 0, psn, how, psns)
    }

    /// Places a packet of a READ.
    fn read(
        tracker: &mut MessageTracker,
        psn: u32,
        how: (bool, bool),
        psns: u32,
    ) -> Option<(u64, u64)> {
        place_of(tracker, RESUMING[0], psn, how, psns)
    }

    const FIRST: (bool, bool) = (true, false);
    const MIDDLE: (bool, bool) = (false, false);
    const LAST: (bool, bool) = (false, true);
    const ONLY: (bool, bool) = (true, true);

    #[test]
    fn a_packet_that_is_sent_again_keeps_its_place() {
        let mut tracker = MessageTracker::default();
        let mut place = |psn, how| place(&mut tracker, psn, how, 1);
        assert_eq!(place(5, MIDDLE), None);
        let top = psn::PSN_COUNT - 2;
        assert_eq!(place(top, FIRST), Some((1, 1)));
        assert_eq!(place(psn::PSN_MASK, MIDDLE), Some((1, 2)));
        assert_eq!(place(0, LAST), Some((1, 3)));
        assert_eq!(place(1, FIRST), Some((2, 1)));
        assert_eq!(place(psn::PSN_MASK, MIDDLE), Some((1, 2)));
        assert_eq!(place(top, FIRST), Some((1, 1)));
        assert_eq!(place(2, LAST), Some((2, 2)));
        assert_eq!(place(3, ONLY), Some((3, 1)));
    }

    #[test]
    fn a_read_repeated_from_a_lost_response_on_keeps_its_place() {
        let mut tracker = MessageTracker::default();
        assert_eq!(read(&mut tracker, 10, ONLY, 4), Some((1, 1)));
        assert_eq!(read(&mut tracker, 12, ONLY, 2), Some((1, 3)));
        assert_eq!(read(&mut tracker, 14, ONLY, 1), Some((2, 1)));
        // The responses: the repetition from the second one on begins with a FIRST.
        let mut tracker = MessageTracker::default();
        assert_eq!(read(&mut tracker, 10, FIRST, 1), Some((1, 1)));
        assert_eq!(read(&mut tracker, 11, FIRST, 1), Some((1, 2)));
        assert_eq!(read(&mut tracker, 13, LAST, 1), Some((1, 4)));
        assert_eq!(read(&mut tracker, 12, FIRST, 1), Some((1, 3)));
        assert_eq!(read(&mut tracker, 14, ONLY, 1), Some((2, 1)));
    }

    #[test]
    fn packets_after_a_lost_first_packet_have_no_place() {
        let mut tracker = MessageTracker::default();
        let mut place = |psn, how| place(&mut tracker, psn, how, 1);
        assert_eq!(place(0, FIRST), Some((1, 1)));
        assert_eq!(place(1, LAST), Some((1, 2)));
        assert_eq!(place(3, MIDDLE), None);
        assert_eq!(place(4, LAST), None);
        assert_eq!(place(2, FIRST), Some((2, 1)));
        assert_eq!(place(3, MIDDLE), Some((2, 2)));
        // The next message does not continue one that was cut short.
        assert_eq!(place(4, FIRST), Some((3, 1)));
    }

    #[test]
    fn a_queue_pair_that_begins_anew_has_other_messages() {
        let mut tracker = MessageTracker::default();
        assert_eq!(place(&mut tracker, 7, ONLY, 1), Some((1, 1)));
        assert_eq!(place(&mut tracker, 8, ONLY, 1), Some((2, 1)));
        tracker.begin_anew();
        assert_eq!(place(&mut tracker, 8, LAST, 1), None);
        assert_eq!(place(&mut tracker, 7, ONLY, 1), Some((3, 1)));
        assert_eq!(place(&mut tracker, 8, ONLY, 1), Some((4, 1)));
    }

    #[test]
    fn the_number_of_tracked_messages_is_limited() {
        let mut tracker = MessageTracker::default();
        for psn in 0..1000 {
            let expected = (u64::from(psn) + 1, 1);
            assert_eq!(place(&mut tracker, psn, ONLY, 1), Some(expected));
        }
        assert_eq!(tracker.messages.len(), MAX_MESSAGES);
    }
}
