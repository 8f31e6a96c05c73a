// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Errnos of verbs: the errnos of each verb, and errnos that any verb can have.

/// An errno: its number, its name, and its text from `strerror`.
pub(super) struct ErrnoExplanation {
    pub(super) number: u32,
    pub(super) name: &'static str,
    pub(super) text: &'static str,
    /// Meaning for a verb that has no cause of its own for this errno.
    pub(super) general: &'static str,
}

const fn errno(
    number: u32,
    name: &'static str,
    text: &'static str,
    general: &'static str,
) -> ErrnoExplanation {
    ErrnoExplanation {
        number,
        name,
        text,
        general,
    }
}

pub(super) static ERRNOS: [ErrnoExplanation; 14] = [
    errno(1, "EPERM", "Operation not permitted", "The process lacks a capability."),
    errno(2, "ENOENT", "No such file or directory", "The object, or the file of the device, does not exist."),
    errno(5, "EIO", "Input/output error", "The device is dead: close it, and open it again after it is registered again."),
    errno(11, "EAGAIN", "Resource temporarily unavailable", "There is nothing to read yet, and the file descriptor does not block."),
    errno(12, "ENOMEM", "Cannot allocate memory", "A limit is reached: memory, locked memory (ulimit -l), or a number of objects."),
    errno(13, "EACCES", "Permission denied", "The process, or the guest, does not have the permission."),
    errno(14, "EFAULT", "Bad address", "An address is not mapped in the process, or its mapping lacks the permission."),
    errno(16, "EBUSY", "Device or resource busy", "Another object still uses this one."),
    errno(19, "ENODEV", "No such device", "The device or its port does not exist: check that the module is loaded and the net device is up."),
    errno(22, "EINVAL", "Invalid argument", "An argument is out of range, or two contradict each other: compare them with ibv_query_device and ibv_query_port."),
    errno(24, "EMFILE", "Too many open files", "The process has no file descriptor left: each context and channel needs one."),
    errno(28, "ENOSPC", "No space left on device", "The device has no free number for such an object."),
    errno(95, "EOPNOTSUPP", "Operation not supported", "Verbena does not offer it: Documentation/exceptions.md lists what is not offered."),
    errno(110, "ETIMEDOUT", "Connection timed out", "The device did not answer: check that verbena-nic is running."),
];

/// An errno of one verb, with the likeliest causes first.
pub(super) struct VerbErrno {
    pub(super) verb: &'static str,
    pub(super) errno: &'static str,
    pub(super) causes: &'static [&'static str],
}

const fn verb_errno(
    verb: &'static str,
    errno: &'static str,
    causes: &'static [&'static str],
) -> VerbErrno {
    VerbErrno {
        verb,
        errno,
        causes,
    }
}

const LOCKED_MEMORY_LIMIT: &str =
    "The limit of locked memory is reached: `ulimit -l unlimited`, or LimitMEMLOCK of the service.";
const OBJECT_LIMIT: &str = "The device, or this process's share of it, has no object of the kind left: ibv_query_device has the limits.";
const MEMORY_CGROUP_LIMIT: &str =
    "The limit of the memory cgroup of the process leaves no memory for the queue.";
const DEVICE_DEAD: &str =
    "The device is dead (IBV_EVENT_DEVICE_FATAL): close it, and open it again after it is registered again.";

pub(super) static VERB_ERRNOS: [VerbErrno; 44] = [
    verb_errno("ibv_open_device", "EOPNOTSUPP", &[
        "libibverbs is older than rdma-core v45: the provider prints the version that it found to standard error.",
        "The versions of the module and the provider do not match: build both from one tree.",
    ]),
    verb_errno("ibv_open_device", "ENODEV", &["The device was removed: check that verbena.ko is loaded and bound."]),
    verb_errno("ibv_open_device", "EACCES", &["This user may not open /dev/infiniband/uverbs*."]),
    verb_errno("ibv_alloc_pd", "ENOMEM", &[OBJECT_LIMIT]),
    verb_errno("ibv_dealloc_pd", "EBUSY", &[
        "A queue pair, SRQ, memory region, window or address handle of the protection domain still exists.",
    ]),
    verb_errno("ibv_reg_mr", "EINVAL", &[
        "IBV_ACCESS_REMOTE_WRITE or IBV_ACCESS_REMOTE_ATOMIC without IBV_ACCESS_LOCAL_WRITE.",
        "The length is beyond max_mr_size, or address plus length wraps.",
        "The access flags have an unknown bit.",
    ]),
    verb_errno("ibv_reg_mr", "EFAULT", &[
        "A part of the range is not mapped, or is mapped read-only although the access flags allow local or remote writes.",
        "The address is NULL: a region of length 0 also needs a mapped page at its address.",
    ]),
    verb_errno("ibv_reg_mr", "ENOMEM", &[LOCKED_MEMORY_LIMIT, OBJECT_LIMIT]),
    verb_errno("ibv_reg_mr", "EOPNOTSUPP", &[
        "On-demand paging (IBV_ACCESS_ON_DEMAND) and FLUSH with persistence are not offered.",
    ]),
    verb_errno("ibv_reg_dmabuf_mr", "EOPNOTSUPP", &["dma-buf regions are not offered."]),
    verb_errno("ibv_rereg_mr", "EACCES", &[
        "New permissions for memory that was mapped elsewhere since, or that another process registered: pass the address too.",
    ]),
    verb_errno("ibv_rereg_mr", "EBUSY", &["A memory window is bound to the region."]),
    verb_errno("ibv_dereg_mr", "EBUSY", &["A memory window is bound to the region: deallocate it first."]),
    verb_errno("ibv_alloc_mw", "ENOMEM", &[OBJECT_LIMIT]),
    verb_errno("ibv_bind_mw", "EINVAL", &[
        "An address or a length without a region, or IBV_ACCESS_ZERO_BASED.",
        "The queue pair is not in RTS, or the window has type 2: bind it by a send work request.",
    ]),
    verb_errno("ibv_create_cq", "EINVAL", &[
        "`cqe` is 0 or beyond max_cqe.",
        "comp_vector is not less than num_comp_vectors of the context.",
    ]),
    verb_errno("ibv_create_cq", "EOPNOTSUPP", &[
        "ibv_create_cq_ex asks for a field of completions that is not offered (CVLAN, flow tag, tag matching).",
    ]),
    verb_errno("ibv_create_cq", "ENOMEM", &[MEMORY_CGROUP_LIMIT, OBJECT_LIMIT]),
    verb_errno("ibv_resize_cq", "EINVAL", &[
        "The new size is 0, less than the number of completions in the CQ, or beyond max_cqe.",
    ]),
    verb_errno("ibv_destroy_cq", "EBUSY", &["A queue pair, or an XRC SRQ, still uses the CQ: destroy it first."]),
    verb_errno("ibv_create_qp", "EINVAL", &[
        "A size in `cap` is beyond the limits of the device: max_qp_wr, max_sge, max_inline_data.",
        "send_cq or recv_cq is NULL, or belongs to another context.",
        "An SRQ with a type of queue pair that cannot use one.",
    ]),
    verb_errno("ibv_create_qp", "EOPNOTSUPP", &[
        "The type is not offered: RC, UC, UD and XRC are. RAW_PACKET and DRIVER are not.",
        "create_flags, max_tso_header or send_ops_flags ask for a feature that is not offered.",
    ]),
    verb_errno("ibv_create_qp", "ENOMEM", &[MEMORY_CGROUP_LIMIT, OBJECT_LIMIT]),
    verb_errno("ibv_modify_qp", "EINVAL", &[
        "The transition is not allowed: the order is RESET, INIT, RTR, RTS. `ibv_query_qp` returns the present state.",
        "attr_mask lacks an attribute that the transition needs, or has one that it does not allow: see the table in the manual page of ibv_modify_qp.",
        "ah_attr.is_global is 0: RoCE needs a GRH with dgid and sgid_index.",
        "The GID entry sgid_index is empty, or is not RoCE v2: see ibv_devinfo -v, $VERBENA_GID.",
        "path_mtu is larger than active_mtu of the port (ibv_devinfo).",
        "port_num is not 1, or max_rd_atomic or max_dest_rd_atomic is beyond the limit of the device.",
        "A CQ or the SRQ of the queue pair is in error, so only ERR and RESET are possible.",
    ]),
    verb_errno("ibv_modify_qp", "ETIMEDOUT", &["The device did not answer: check that verbena-nic is running."]),
    verb_errno("ibv_modify_qp", "EOPNOTSUPP", &["A rate limit, or an attribute of path migration, is not offered."]),
    verb_errno("ibv_destroy_qp", "EBUSY", &["The queue pair is still a member of a multicast group: call ibv_detach_mcast first."]),
    verb_errno("ibv_create_srq", "EINVAL", &["max_wr is 0 or beyond max_srq_wr, or max_sge is beyond max_srq_sge."]),
    verb_errno("ibv_create_srq", "EOPNOTSUPP", &["SRQs for tag matching are not offered."]),
    verb_errno("ibv_create_srq", "ENOMEM", &[MEMORY_CGROUP_LIMIT, OBJECT_LIMIT]),
    verb_errno("ibv_modify_srq", "EINVAL", &[
        "srq_limit is beyond max_wr of the SRQ.",
        "The new max_wr is beyond max_srq_wr, or less than the number of posted receives.",
    ]),
    verb_errno("ibv_destroy_srq", "EBUSY", &["A queue pair still uses the SRQ: destroy it first."]),
    verb_errno("ibv_create_ah", "EINVAL", &[
        "is_global is 0: RoCE needs a GRH.",
        "The GID entry sgid_index is empty, or port_num is not 1.",
    ]),
    verb_errno("ibv_create_ah", "ETIMEDOUT", &["No station answered for the address (ARP, neighbour discovery): ping the address."]),
    verb_errno("ibv_attach_mcast", "EINVAL", &["The queue pair is not UD, or the GID is not a multicast GID."]),
    verb_errno("ibv_detach_mcast", "EINVAL", &["The queue pair is not a member of this group."]),
    verb_errno("ibv_post_send", "EINVAL", &[
        "The queue pair is not in RTS (sends are refused in RESET, INIT and RTR): ibv_query_qp.",
        "num_sge is beyond cap.max_send_sge, or inline data are longer than cap.max_inline_data.",
        "The transport does not have the opcode, or send_flags has an unknown bit.",
        "IBV_SEND_INLINE with an operation that sends no data, such as a READ or an atomic.",
    ]),
    verb_errno("ibv_post_send", "ENOMEM", &[
        "The send queue is full: polling the completion of a send frees the places of this send and of all earlier ones. Sends without IBV_SEND_SIGNALED need a later signaled send.",
    ]),
    verb_errno("ibv_post_recv", "EINVAL", &[
        "The queue pair is in RESET: receives can be posted from INIT on.",
        "The queue pair has an SRQ: use ibv_post_srq_recv.",
        "num_sge is beyond cap.max_recv_sge.",
    ]),
    verb_errno("ibv_post_recv", "ENOMEM", &["The receive queue is full, or has no entries (cap.max_recv_wr 0)."]),
    verb_errno("ibv_post_srq_recv", "EINVAL", &["num_sge is beyond max_sge of the SRQ."]),
    verb_errno("ibv_post_srq_recv", "ENOMEM", &["The SRQ is full: max_wr receives are posted."]),
    verb_errno("ibv_get_async_event", "EAGAIN", &["There is no event, and async_fd does not block."]),
    verb_errno("ibv_query_qp", "EIO", &[DEVICE_DEAD]),
];

/// Verbs that have no errno of their own in [`VERB_ERRNOS`], but that people ask about.
pub(super) const VERBS_WITHOUT_ERRNO: [&str; 12] = [
    "ibv_poll_cq",
    "ibv_req_notify_cq",
    "ibv_query_device",
    "ibv_query_port",
    "ibv_query_gid",
    "ibv_query_pkey",
    "ibv_query_srq",
    "ibv_dealloc_mw",
    "ibv_destroy_ah",
    "ibv_create_comp_channel",
    "ibv_close_device",
    "ibv_open_xrcd",
];

/// Finds a verb by its name: with or without `ibv_`, in the extended form, or by its librdmacm
/// name.
pub(super) fn find_verb(word: &str) -> Option<&'static str> {
    let word = word.to_ascii_lowercase();
    let plain = word.strip_prefix("ibv_").or(word.strip_prefix("rdma_"));
    let plain = plain.unwrap_or(&word).trim_end_matches("()");
    let plain = plain.strip_suffix("_ex").unwrap_or(plain);
    let plain = match plain {
        "reg_mr_iova" | "reg_mr_iova2" | "reg_msgs" | "reg_read" | "reg_write" => "reg_mr",
        "wr_complete" => "post_send",
        plain => plain,
    };
    let all = VERB_ERRNOS
        .iter()
        .map(|known| known.verb)
        .chain(VERBS_WITHOUT_ERRNO);
    all.into_iter()
        .find(|verb| verb.strip_prefix("ibv_") == Some(plain))
}

/// Finds an errno by name, by number (also negative), or by its `strerror` text.
pub(super) fn find_errno(word: &str) -> Option<&'static ErrnoExplanation> {
    let number = super::names::number(word.strip_prefix('-').unwrap_or(word));
    let word = if word == "ENOTSUP" {
        "EOPNOTSUPP"
    } else {
        word
    };
    ERRNOS.iter().find(|errno| {
        Some(errno.number) == number
            || errno.name.eq_ignore_ascii_case(word)
            || errno.text.eq_ignore_ascii_case(word)
    })
}
