// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counters: the port has what its queue pairs have counted, those that are gone too, and what the program knows of.

use crate::lab::Lab;
use crate::settle::FLUSH;
use verbena_abi::stats::Counter::{self, *};
use verbena_abi::syndrome::Syndrome;

/// What queue pairs count.
const OF_QPS: [Counter; 12] = [
    TxPackets,
    RxPackets,
    TxBytes,
    RxBytes,
    DuplicateRequest,
    OutOfSequence,
    PacketSeqErr,
    LocalAckTimeoutErr,
    RnrNakSent,
    RnrNakRcvd,
    Retransmits,
    RxDropsUd,
];

/// What counters are known to have.
#[derive(Debug, Default)]
pub struct Tally {
    known: [u64; 30],
    gone: [u64; 30],
}

impl Tally {
    /// Notes what was met.
    pub fn add(&mut self, counter: Counter) {
        self.known[counter as usize] += 1;
    }

    /// Notes a completion, of a send or of a receive.
    pub fn complete(&mut self, recv: bool, status: u8, cause: u32) {
        self.add(match (recv, status) {
            (false, FLUSH) => ReqCqeFlush,
            (true, FLUSH) => RespCqeFlush,
            (false, 0) => return self.add(Posts),
            (true, 0) => return self.add(Recvs),
            (false, _) => ReqCqeError,
            (true, _) => RespCqeError,
        });
        for (syndrome, counter) in [
            (Syndrome::RetryExceeded, RetryExceeded),
            (Syndrome::SequenceRetryExceeded, RetryExceeded),
            (Syndrome::RnrRetryExceeded, RnrRetryExceeded),
        ] {
            if cause == u32::from(syndrome.to_raw()) {
                self.add(counter);
            }
        }
    }
}

impl Lab {
    fn query_counters(&mut self, qpn: Option<u32>) -> [u64; 30] {
        let told = self.d.query_stats(qpn, 30);
        match told.map(<[u64; 30]>::try_from) {
            Ok(Ok(counters)) => counters,
            other => self.broken(&format!("counters of {qpn:?}: {other:?}")),
        }
    }

    /// A queue pair is to go: its counters stay the port's.
    pub fn keep_counters(&mut self, qpn: u32) {
        let counters = self.query_counters(Some(qpn));
        for (gone, count) in self.tally.gone.iter_mut().zip(counters) {
            *gone += count;
        }
    }

    /// Compares the counters.
    pub fn balance_counters(&mut self) {
        let qpns: Vec<u32> = self.qps.iter().map(|qp| qp.qpn).collect();
        self.check_counters(&qpns);
    }

    /// Compares the counters, with these queue pairs alive.
    pub fn check_counters(&mut self, qpns: &[u32]) {
        let mut sum = self.tally.gone;
        for qpn in qpns {
            let counters = self.query_counters(Some(*qpn));
            for (sum, count) in sum.iter_mut().zip(counters) {
                *sum += count;
            }
        }
        let port = self.query_counters(None);
        // Completions that found no room are counted, and nobody has seen them.
        let whole = !self.met.contains_key("a CQ overflows");
        let exact = [
            ReqCqeError,
            RespCqeError,
            ReqCqeFlush,
            RespCqeFlush,
            RetryExceeded,
            RnrRetryExceeded,
        ];
        for &counter in Counter::ALL {
            let (found, known) = (port[counter as usize], self.tally.known[counter as usize]);
            let right = match counter {
                _ if OF_QPS.contains(&counter) => found == sum[counter as usize],
                _ if exact.contains(&counter) && whole => found == known,
                CqOverflow => found == known,
                Doorbells => found == self.rings,
                RxIcrcErrors => found == 0,
                Commands => found == u64::from(self.d.commands()),
                _ => found >= known,
            };
            if !right {
                self.broken(&format!(
                    "{counter:?} is {found}; known are {known}, {} of the queue pairs, {} rung",
                    sum[counter as usize], self.rings
                ));
            }
        }
    }
}
