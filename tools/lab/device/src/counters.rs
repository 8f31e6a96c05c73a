// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counters: those of the port are the sums of those of its QPs, including destroyed QPs, and agree
//! with the events that the program knows of.

use crate::completions::FLUSH;
use crate::simulation::DeviceSimulation;
use verbena_abi::cqe::WcStatus;
use verbena_abi::stats::Counter::{self, *};
use verbena_abi::stats::NUM_COUNTERS;
use verbena_abi::syndrome::Syndrome;

/// Counters that no QP counts, or that QPs count only in part.
const OF_DEVICE: [Counter; 11] = [
    RxIcrcEncapsulated,
    RxMalformed,
    CqOverflow,
    Doorbells,
    Interrupts,
    Commands,
    TxMulticastPackets,
    RpCnpIgnored,
    TxOverMtu,
    LinkDowned,
    RxNoQp,
];

/// Counter values that the model knows.
#[derive(Debug)]
pub struct CounterModel {
    known: [u64; NUM_COUNTERS],
    destroyed: [u64; NUM_COUNTERS],
}

impl Default for CounterModel {
    fn default() -> Self {
        Self {
            known: [0; NUM_COUNTERS],
            destroyed: [0; NUM_COUNTERS],
        }
    }
}

impl CounterModel {
    /// Counts one occurrence.
    pub fn add(&mut self, counter: Counter) {
        self.known[counter as usize] += 1;
    }

    /// Counts a completion of a send or of a receive.
    pub fn complete(&mut self, recv: bool, status: u8, cause: u32) {
        self.add(match (recv, status) {
            (false, FLUSH) => ReqCqeFlush,
            (true, FLUSH) => RespCqeFlush,
            (false, 0) => return self.add(Posts),
            (true, 0) => return self.add(Recvs),
            (false, _) => ReqCqeError,
            (true, _) => RespCqeError,
        });
        for (of_recv, of_status, counter) in [
            (true, WcStatus::LocLenErr, RespLocalLengthError),
            (false, WcStatus::RemInvReqErr, ReqRemoteInvalidRequest),
            (false, WcStatus::RemAccessErr, ReqRemoteAccessErrors),
        ] {
            if (recv, status) == (of_recv, of_status.to_raw()) {
                self.add(counter);
            }
        }
        for (syndrome, counter) in [
            (Syndrome::RetryExceeded, ReqTransportRetriesExceeded),
            (Syndrome::SequenceRetryExceeded, ReqTransportRetriesExceeded),
            (Syndrome::RnrRetryExceeded, ReqRnrRetriesExceeded),
        ] {
            if cause == u32::from(syndrome.to_raw()) {
                self.add(counter);
            }
        }
    }
}

impl DeviceSimulation {
    fn query_counters(&mut self, qpn: Option<u32>) -> [u64; NUM_COUNTERS] {
        let told = self.driver.query_stats(qpn, NUM_COUNTERS as u32);
        match told.map(<[u64; NUM_COUNTERS]>::try_from) {
            Ok(Ok(counters)) => counters,
            other => self.fail_rule(&format!("counters of {qpn:?}: {other:?}")),
        }
    }

    /// Keeps the counters of a QP that is about to be destroyed, because the counters of the port
    /// still include them.
    pub fn add_destroyed_counters(&mut self, qpn: u32) {
        let counters = self.query_counters(Some(qpn));
        for (gone, count) in self.counters.destroyed.iter_mut().zip(counters) {
            *gone += count;
        }
    }

    /// Compares the counters while the QPs of the run exist.
    pub fn compare_counters(&mut self) {
        let qpns: Vec<u32> = self.qps.iter().map(|qp| qp.qpn).collect();
        self.check_counters(&qpns);
    }

    /// Compares the counters of the port with the sums of those of the given QPs and of destroyed
    /// QPs.
    pub fn check_counters(&mut self, qpns: &[u32]) {
        let mut sum = self.counters.destroyed;
        for qpn in qpns {
            let counters = self.query_counters(Some(*qpn));
            for (sum, count) in sum.iter_mut().zip(counters) {
                *sum += count;
            }
        }
        let port = self.query_counters(None);
        // Completions that found no room in their CQ are counted, but the program has not seen
        // them.
        let whole = !self.coverage.contains_key("a CQ overflows");
        let exact = [
            ReqCqeError,
            RespCqeError,
            ReqCqeFlush,
            RespCqeFlush,
            RespLocalLengthError,
            ReqRemoteInvalidRequest,
            ReqRemoteAccessErrors,
            ReqTransportRetriesExceeded,
            ReqRnrRetriesExceeded,
        ];
        for &counter in Counter::ALL {
            let (found, known) = (
                port[counter as usize],
                self.counters.known[counter as usize],
            );
            let right = match counter {
                _ if !OF_DEVICE.contains(&counter) && found != sum[counter as usize] => false,
                _ if exact.contains(&counter) && whole => found == known,
                CqOverflow => found == known,
                Doorbells => found == self.doorbells,
                RxIcrcEncapsulated => found == 0,
                Commands => found == u64::from(self.driver.commands()),
                _ => found >= known,
            };
            if !right {
                self.fail_rule(&format!(
                    "{counter:?} is {found}; known are {known}, {} of the queue pairs, {} rung",
                    sum[counter as usize], self.doorbells
                ));
            }
        }
    }
}
