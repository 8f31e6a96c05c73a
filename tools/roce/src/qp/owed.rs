// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a work request is owed: one completion, however it ends.

use crate::host::{Completion, Syndrome, WcOpcode, WcStatus, XrcSrq};

/// The completion that a work request is owed (IBTA 10.8.5). Whoever takes a work request out of its queue has this instead, and
/// only by giving it away makes a completion, so that none is told twice. RESET alone cancels it.
#[derive(Debug)]
#[must_use = "a work request is owed a completion"]
pub(crate) struct Owed {
    wr_id: u64,
    wqe_index: u32,
    opcode: WcOpcode,
    xrc: XrcSrq,
}

impl Owed {
    /// Of the work request with this free-running index in its ring.
    #[inline]
    pub(super) fn new(wr_id: u64, wqe_index: u32, opcode: WcOpcode) -> Self {
        Self {
            wr_id,
            wqe_index,
            opcode,
            xrc: XrcSrq::default(),
        }
    }

    /// Of a receive of this queue.
    #[inline]
    pub(super) fn of(self, xrc: XrcSrq) -> Self {
        Self { xrc, ..self }
    }

    /// Free-running index and `wr_id` of the work request.
    pub(super) fn names(&self) -> (u32, u64) {
        (self.wqe_index, self.wr_id)
    }

    /// In success: no bytes yet, and not solicited.
    #[inline]
    pub(super) fn succeeded(self) -> Completion {
        Completion {
            wr_id: self.wr_id,
            wqe_index: self.wqe_index,
            status: WcStatus::Success,
            syndrome: None,
            opcode: self.opcode,
            byte_len: 0,
            imm: None,
            invalidated: None,
            solicited: false,
            source: None,
            xrc: self.xrc,
        }
    }

    /// In error: status, queue and cause, all else empty. It always counts as solicited.
    pub(super) fn failed(self, status: WcStatus, cause: Syndrome) -> Completion {
        Completion {
            status,
            syndrome: Some(cause),
            solicited: true,
            ..self.succeeded()
        }
    }

    /// In success, of a work request that asked for no completion.
    #[inline]
    pub(super) fn unsignaled(self) {}
}
