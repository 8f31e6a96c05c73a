// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Remedies for a program after an error, each in a sentence; `Documentation/recovery.md` has each
//! flow in full.

pub(super) const CONNECTION: &str =
    "remove the cause; poll the CQs until each work request has its completion; then move both \
     ends to RESET and back to RTS by ibv_modify_qp, with PSNs that match, or destroy the queue \
     pair and create it again. The CQs can stay, unless one of them is in error. `verbenactl why \
     QPN` shows which cause it was.";

pub(super) const SQE_OR_CONNECTION: &str =
    "correct the work request. UC and UD: poll until the last send has its completion, then move \
     the queue pair from SQE to RTS by ibv_modify_qp. RC: poll until each work request has its \
     completion, then move both ends to RESET and back to RTS. `verbenactl why QPN` shows which \
     cause it was.";

pub(super) const READ_FIRST: &str =
    "look for the first completion of the queue pair with another status, and for asynchronous \
     events; `verbenactl why QPN` shows both. Flushed work requests may be posted again \
     after the queue pair has returned to RTS.";

pub(super) const DEVICE: &str =
    "poll the remaining completions, acknowledge the events, destroy the objects and close the \
     device; open it again after ibv_get_device_list lists it again. `verbenactl status` shows \
     the cause.";

pub(super) const CQ: &str =
    "poll the completions that the CQ has, acknowledge the events, destroy the queue pairs that \
     use it, then the CQ; create them again, the CQ with more entries. A CQ in error stays so, \
     also after ibv_resize_cq.";

pub(super) const SRQ: &str =
    "acknowledge the events, destroy the queue pairs that use the SRQ, then the SRQ; create them \
     again.";

pub(super) const NOTHING: &str = "nothing: this is not an error. Acknowledge the event.";

pub(super) const DATAGRAM_ONLY: &str =
    "check where the number comes from: without a fault rule, no work request of this device has \
     this status.";

pub(super) const COMMAND: &str =
    "correct the arguments of the verb; existing objects have not changed. `verbenactl explain VERB \
     ERRNO` lists what each verb refuses, and the guest's kernel log names the command.";
