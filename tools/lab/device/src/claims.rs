// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The memory that pending requests claim, so that no two requests access the same bytes in an order
//! that the rules leave open.

use crate::memory::{Domain, MemoryAccess, Piece};
use crate::objects::{DataSegment, PostedRecv, PostedSend};
use crate::simulation::DeviceSimulation;
use verbena_abi::wqe::WqeOpcode;

/// Memory that a request reads or writes until it completes.
#[derive(Clone, Copy, Debug)]
pub struct MemoryClaim {
    piece: Piece,
    writes: bool,
    /// QP whose message accesses the piece at the peer, and true if all later messages of this QP
    /// access memory after it.
    remote: Option<(usize, bool)>,
}

impl MemoryClaim {
    fn clashes(&self, later: &Self) -> bool {
        let apart = self.piece.0 + self.piece.1 <= later.piece.0
            || later.piece.0 + later.piece.1 <= self.piece.0;
        let ordered =
            matches!((self.remote, later.remote), (Some((a, true)), Some((b, _))) if a == b);
        !apart && (self.writes || later.writes) && !ordered
    }
}

impl DeviceSimulation {
    /// Returns the memory that pending requests claim.
    pub fn claims(&self) -> Vec<MemoryClaim> {
        let mut out = Vec::new();
        for (at, qp) in self.qps.iter().enumerate() {
            for wr in &qp.sends {
                out.extend(self.claims_of(at, wr));
            }
            for wr in &qp.recvs {
                out.extend(self.claims_of_recv(wr, qp.pd));
            }
        }
        for srq in &self.srqs {
            for wr in &srq.posted {
                out.extend(self.claims_of_recv(wr, srq.domain(true)));
            }
        }
        out
    }

    pub fn claims_of_recv(&self, wr: &PostedRecv, pd: Domain) -> Vec<MemoryClaim> {
        let piece = |sge: &DataSegment| self.keys.reachable_pieces(*sge, pd, MemoryAccess::Write);
        let claim = |piece| MemoryClaim {
            piece,
            writes: true,
            remote: None,
        };
        wr.sges.iter().flat_map(piece).map(claim).collect()
    }

    pub fn claims_of(&self, at: usize, wr: &PostedSend) -> Vec<MemoryClaim> {
        use WqeOpcode::*;
        let qp = &self.qps[at];
        let fetches = matches!(wr.opcode, RdmaRead | CompareSwap | FetchAdd);
        let want = if fetches {
            MemoryAccess::Write
        } else {
            MemoryAccess::Read
        };
        let mut out = Vec::new();
        for sge in &wr.sges {
            let pieces = self.keys.resolve(*sge, qp.pd, want).unwrap_or_default();
            out.extend(pieces.into_iter().map(|piece| MemoryClaim {
                piece,
                writes: fetches,
                remote: None,
            }));
        }
        if let Some(want) = MemoryAccess::of(wr.opcode) {
            let to = (wr.remote.0, wr.length(), wr.remote.1);
            let pieces = self
                .keys
                .resolve(to, self.qps[qp.peer].pd, want)
                .unwrap_or_default();
            out.extend(pieces.into_iter().map(|piece| MemoryClaim {
                piece,
                writes: wr.opcode != RdmaRead,
                remote: Some((at, !fetches)),
            }));
        }
        out
    }

    pub fn is_unclaimed(&self, claims: &[MemoryClaim], own: &[MemoryClaim]) -> bool {
        let clash = |new: &MemoryClaim| claims.iter().any(|old| old.clashes(new));
        let inside = own
            .iter()
            .enumerate()
            .any(|(i, new)| own[..i].iter().any(|old| old.clashes(new)));
        !inside && !own.iter().any(clash)
    }
}
