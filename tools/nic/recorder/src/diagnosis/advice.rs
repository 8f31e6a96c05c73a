// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Advice for programs (`Documentation/recovery.md`), and the clauses of the checks
//! (`Documentation/rules.md`).

use verbena_abi::ctx::QpState;
use verbena_abi::syndrome::Syndrome;

/// Returns the clause of the InfiniBand Architecture Specification, volume 1, that has the check,
/// if there is one.
pub(crate) fn clause(cause: Syndrome) -> Option<&'static str> {
    use Syndrome::*;
    Some(match cause {
        RkeyUnknown | RkeyPd | RkeyBounds | RkeyAccess | RkeyQp | OperationDisabled
        | TooManyReads | RequestOpcode | RequestLength => "9.7.4.1",
        AtomicMisaligned => "9.4.5",
        XrcSrq | XrcDomain => "A14",
        FlushType => "A19",
        NakInvalidRequest | NakRemoteAccess | NakRemoteOperational => "9.7.5.2, 9.9.2",
        RetryExceeded => "9.7.6.1.3",
        SequenceRetryExceeded => "9.7.6.1",
        RnrRetryExceeded => "9.7.5.2.8",
        RecvSge | RecvWqeMalformed => "9.9.3.1.1",
        RemoteInvalidate => "9.9.3.1",
        Flushed | ModifiedToErr => "10.3.1",
        _ => return None,
    })
}

/// Returns the advice for a device that is dead.
pub(super) fn dead_device_advice() -> &'static str {
    "What to do: poll what there is, acknowledge the events, close the device and open it again once it is registered anew; all of its \
     objects are gone."
}

/// Returns the advice for a state and its cause.
pub(super) fn qp_advice(state: QpState, cause: Option<Syndrome>) -> Option<&'static str> {
    use Syndrome::*;
    Some(match (state, cause) {
        (QpState::Err, Some(CqDied | CqOverflow | CqUnwritable)) => {
            "poll what is in the CQ, acknowledge the events, destroy the queue pairs that use it and the CQ, and create them anew, the CQ with \
             more entries if it overflowed; nothing revives it, a resize neither."
        }
        (QpState::Err, Some(SrqDied)) => {
            "acknowledge the events, destroy the queue pairs that use the SRQ, then the SRQ, and create them anew."
        }
        (QpState::Err, Some(DeviceFatal)) => dead_device_advice(),
        (QpState::Err, _) => {
            "poll its CQs until each work request has its completion, in error or flushed; then ibv_modify_qp to RESET at both ends and up to \
             RTS with PSNs that both agree on, or destroy and create it. The CQs are fine."
        }
        (QpState::Sqe, _) => {
            "poll the sends until the last has come, then ibv_modify_qp with IBV_QP_STATE | IBV_QP_CUR_STATE from SQE to RTS; receives went on."
        }
        _ => return None,
    })
}
