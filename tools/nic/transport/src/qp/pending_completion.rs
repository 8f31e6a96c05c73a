// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The completion that a work request is owed: exactly one, however the work request ends.

use crate::host::{Syndrome, WcOpcode, WcStatus, WorkCompletion, XrcSrq};

/// The completion that a work request is owed (IBTA 10.8.5). Code that takes a work request out of
/// its queue receives this value instead. Only consuming the value makes a completion, so none is
/// reported twice. Only RESET drops work requests without one.
#[derive(Debug)]
#[must_use = "a work request is owed a completion"]
pub(crate) struct PendingCompletion {
    wr_id: u64,
    wqe_index: u32,
    opcode: WcOpcode,
    xrc: XrcSrq,
}

impl PendingCompletion {
    /// Creates the value for the work request with this free-running index in its ring.
    #[inline]
    pub(super) fn new(wr_id: u64, wqe_index: u32, opcode: WcOpcode) -> Self {
        Self {
            wr_id,
            wqe_index,
            opcode,
            xrc: XrcSrq::default(),
        }
    }

    /// Sets the XRC SRQ that the receive was taken from.
    #[inline]
    pub(super) fn with_xrc_srq(self, xrc: XrcSrq) -> Self {
        Self { xrc, ..self }
    }

    /// Returns the free-running index and the `wr_id` of the work request.
    pub(super) fn ids(&self) -> (u32, u64) {
        (self.wqe_index, self.wr_id)
    }

    /// Returns a completion in success, with no bytes and not solicited.
    #[inline]
    pub(super) fn success(self) -> WorkCompletion {
        WorkCompletion {
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

    /// Returns a completion in error with status, queue and cause; the rest is empty. A completion
    /// in error always counts as solicited.
    pub(super) fn error(self, status: WcStatus, cause: Syndrome) -> WorkCompletion {
        WorkCompletion {
            status,
            syndrome: Some(cause),
            solicited: true,
            ..self.success()
        }
    }

    /// Ends a work request that succeeded and asked for no completion.
    #[inline]
    pub(super) fn unsignaled(self) {}
}
