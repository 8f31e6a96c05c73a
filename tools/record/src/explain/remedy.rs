// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Remedies for a program after an error, each in a sentence; `Documentation/recovery.md` has each
//! flow in full.

pub(super) const CONNECTION: &str =
    "mend the cause; poll the CQs until each work request has its completion; then ibv_modify_qp \
     to RESET at both ends and up to RTS with PSNs that both agree on, or destroy the queue pair \
     and create it anew. Its CQs need nothing, unless one of them died. `verbenactl why QPN` tells \
     which cause it was.";

pub(super) const SQE_OR_CONNECTION: &str =
    "mend the work request. UC and UD: poll the sends until the last has come, then ibv_modify_qp \
     from SQE to RTS. RC: poll until each work request has its completion, then ibv_modify_qp to \
     RESET and up to RTS at both ends. `verbenactl why QPN` tells which cause it was.";

pub(super) const READ_FIRST: &str =
    "look for the first completion of the queue pair with another status, and for asynchronous \
     events; `verbenactl why QPN` finds both. What was flushed may be posted again once the queue \
     pair is in RTS again.";

pub(super) const DEVICE: &str =
    "poll what there is, acknowledge the events, destroy the objects and close the device; open \
     it again once ibv_get_device_list has it again. `verbenactl status` tells the cause.";

pub(super) const CQ: &str =
    "poll what is in the CQ, acknowledge the events, destroy the queue pairs that use it, then \
     the CQ; create them anew, the CQ with more entries. Nothing revives it, a resize neither.";

pub(super) const SRQ: &str =
    "acknowledge the events, destroy the queue pairs that use the SRQ, then the SRQ; create them \
     anew.";

pub(super) const NOTHING: &str = "nothing: this is no error. Acknowledge the event.";

pub(super) const DATAGRAM_ONLY: &str =
    "look at where the number comes from: no work request of this device ends so by itself.";

pub(super) const COMMAND: &str =
    "mend the arguments of the verb; the objects that exist are as they were. `verbenactl explain \
     VERB ERRNO` tells what each verb refuses, and the guest's kernel log names the command.";
