// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Codes of `vendor_err`: the places where they are seen, their causes, and the remedies for a
//! program.

use super::remedy::{COMMAND, CONNECTION, CQ, DEVICE, READ_FIRST, SRQ};
use super::{events, statuses};
use verbena_abi::cqe::WcStatus;
use verbena_abi::syndrome::Syndrome;

/// Returns the status of completions with this code as `vendor_err`. None if completions never have
/// it.
pub(super) fn status(cause: Syndrome) -> Option<WcStatus> {
    if cause == Syndrome::Flushed {
        return Some(WcStatus::WrFlushErr);
    }
    // The high byte is the status (`include/abi/syndrome.rs`).
    let high = u8::try_from(cause.to_raw() >> 8).ok()?;
    WcStatus::from_raw(high).filter(|status| *status != WcStatus::Success)
}

/// Returns the place where this code is seen, and the effects at the program or the peer.
pub(super) fn reported_as(cause: Syndrome) -> String {
    if let Some(status) = status(cause) {
        let (name, number) = (status.verbs_name(), status.to_raw());
        return format!("vendor_err of a completion with {name} ({number})");
    }
    let place = match cause.to_raw() {
        0x2000..=0x20ff => {
            "the cause of IBV_EVENT_QP_ACCESS_ERR here; the peer's completion has \
             IBV_WC_REM_ACCESS_ERR (10)"
        }
        0x2100..=0x21ff => {
            "the cause of IBV_EVENT_QP_REQ_ERR here; the peer's completion has \
             IBV_WC_REM_INV_REQ_ERR (9)"
        }
        0x2200..=0x22ff => {
            "the cause for which the queue pair is in ERR; the peer's completion has \
             IBV_WC_REM_OP_ERR (11)"
        }
        0x3003 | 0x3103 | 0x3202 => "the cause of IBV_EVENT_QP_FATAL",
        0x3000..=0x30ff => "the cause of IBV_EVENT_CQ_ERR",
        0x3100..=0x31ff => "the cause of IBV_EVENT_SRQ_ERR",
        0x3200..=0x32ff => "the cause for which the queue pair is in ERR, without an event",
        0x4000..=0x40ff => {
            "the cause for which the device refused a command: the verb fails with an errno, and \
             the guest's kernel log has the line"
        }
        _ => "the cause of IBV_EVENT_DEVICE_FATAL",
    };
    String::from(place)
}

/// Returns causes that are more exact than those of the status or event.
fn specific_causes(cause: Syndrome) -> Option<&'static [&'static str]> {
    use Syndrome::*;
    Some(match cause {
        RkeyUnknown | LkeyUnknown => &[
            "The region was deregistered, or the key was invalidated, before the access.",
            "The key is not one that ibv_reg_mr returned: it was sent in another byte order, \
             truncated, or never set.",
            "The window of the key is not bound.",
        ],
        RkeyPd | LkeyPd => &["The region and the queue pair belong to different protection domains."],
        RkeyBounds | LkeyBounds => &[
            "Address plus length reaches beyond the region that ibv_reg_mr registered.",
            "The program passed an offset for an address, or an address for an offset: only \
             zero-based regions and windows use offsets.",
            "The address was sent in another byte order or truncated to 32 bits.",
        ],
        RkeyAccess => &[
            "The region was registered without IBV_ACCESS_REMOTE_WRITE, REMOTE_READ or \
             REMOTE_ATOMIC, whichever the operation needs.",
        ],
        LkeyAccess => &["The region was registered without IBV_ACCESS_LOCAL_WRITE."],
        OperationDisabled => &["qp_access_flags, set on the transition to INIT, lack the operation: \
             IBV_ACCESS_REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC."],
        TooManyReads => &["The peer's max_rd_atomic is greater than max_dest_rd_atomic here."],
        AtomicMisaligned => &["The remote address of the atomic is not a multiple of 8."],
        RecvSge => &["The posted receive has a bad L_Key, or its address and length do not fit the region."],
        CqOverflow => &[
            "The program polls too slowly, or waits for events and does not drain the CQ.",
            "`cqe` is less than the number of sends and receives of all queue pairs of the CQ.",
        ],
        ModifiedToErr => &[
            "The program called ibv_modify_qp to ERR.",
            "The connection ended: rdma_disconnect, or the process at one of the ends ended.",
        ],
        Injected => &["A fault rule, or the driver's INJECT_FAULT: verbenactl fault summary."],
        AddressHandleGid => &["The source address of the address handle was removed."],
        NoReadResources => &["max_rd_atomic was 0 on the transition to RTS."],
        RecvTooSmall => &["The peer's SEND is longer than the next posted receive."],
        GidMacNotAllowed | GidNotAllowed | GidReserved | GidInUse | GidMacInUse => &[
            "Two guests, or two machines, have the same address.",
            "The host's policy does not allow the guest this address: see --mac, --ip and --gid of \
             verbena-nic; `verbenactl port` lists the refused addresses.",
        ],
        _ => return None,
    })
}

/// Returns the causes of the code, the likeliest first.
pub(super) fn causes(cause: Syndrome) -> &'static [&'static str] {
    if let Some(causes) = specific_causes(cause) {
        return causes;
    }
    if let Some(explanation) = status(cause).and_then(statuses::find) {
        return explanation.causes;
    }
    let event = match cause.to_raw() {
        0x2000..=0x20ff => 3,
        0x2100..=0x21ff => 2,
        0x2200..=0x22ff => {
            return &["The posted receive is malformed: its memory was overwritten."]
        }
        0x3003 | 0x3103 | 0x3202 => 1,
        0x3000..=0x30ff => 0,
        0x3100..=0x31ff => 14,
        0x4000..=0x40ff => {
            return &[
                "An argument of the verb is out of range, or an object that it names does not \
                 exist or is in use.",
                "If the arguments are valid: a defect of the driver.",
            ]
        }
        _ => 8,
    };
    events::EVENTS[event].causes
}

/// Returns the remedy for the code.
pub(super) fn remedy(cause: Syndrome) -> &'static str {
    if let Some(explanation) = status(cause).and_then(statuses::find) {
        return explanation.remedy;
    }
    match cause.to_raw() {
        0x3000..=0x3003 => CQ,
        0x3100..=0x3103 => SRQ,
        0x3201 => READ_FIRST,
        0x4000..=0x40ff => COMMAND,
        0x4100..=0x43ff => DEVICE,
        _ => CONNECTION,
    }
}
