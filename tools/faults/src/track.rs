// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Messages of a queue pair in one direction: which of them a packet belongs to, also when it is sent again.

use std::collections::VecDeque;
use verbena_roce::psn;

/// So many of the last messages are known.
const KNOWN: usize = 64;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Track {
    /// First PSN and number, oldest first.
    starts: VecDeque<(u32, u64)>,
    last: u64,
}

impl Track {
    /// Number of a packet's message, and of the packet in it, both from 1 on. None: it began before this was looked at.
    pub(crate) fn place(&mut self, at: u32, first: bool) -> Option<(u64, u64)> {
        let known = self.starts.iter().rev();
        let known = known.filter(|(start, _)| !psn::is_behind(at, *start));
        let nearest = known
            .min_by_key(|(start, _)| psn::ahead(at, *start))
            .copied();
        let (start, number) = match nearest {
            Some((start, number)) if start == at || !first => (start, number),
            _ if first => {
                self.last += 1;
                if self.starts.len() == KNOWN {
                    self.starts.pop_front();
                }
                self.starts.push_back((at, self.last));
                (at, self.last)
            }
            _ => return None,
        };
        Some((number, u64::from(psn::ahead(at, start)) + 1))
    }

    /// The queue pair begins anew: a PSN that was there before is of another message. Messages are counted on.
    pub(crate) fn begin_anew(&mut self) {
        self.starts.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_that_is_sent_again_keeps_its_place() {
        let mut track = Track::default();
        assert_eq!(track.place(5, false), None);
        let top = psn::PSN_COUNT - 2;
        assert_eq!(track.place(top, true), Some((1, 1)));
        assert_eq!(track.place(psn::PSN_MASK, false), Some((1, 2)));
        assert_eq!(track.place(0, false), Some((1, 3)));
        assert_eq!(track.place(1, true), Some((2, 1)));
        assert_eq!(track.place(psn::PSN_MASK, false), Some((1, 2)));
        assert_eq!(track.place(top, true), Some((1, 1)));
        assert_eq!(track.place(2, false), Some((2, 2)));
        assert_eq!(track.place(3, true), Some((3, 1)));
    }

    #[test]
    fn a_queue_pair_that_begins_anew_has_other_messages() {
        let mut track = Track::default();
        assert_eq!(track.place(7, true), Some((1, 1)));
        assert_eq!(track.place(8, true), Some((2, 1)));
        track.begin_anew();
        assert_eq!(track.place(8, false), None);
        assert_eq!(track.place(7, true), Some((3, 1)));
        assert_eq!(track.place(8, true), Some((4, 1)));
    }

    #[test]
    fn what_is_known_is_bounded() {
        let mut track = Track::default();
        for psn in 0..1000 {
            assert_eq!(track.place(psn, true), Some((u64::from(psn) + 1, 1)));
        }
        assert_eq!(track.starts.len(), KNOWN);
    }
}
