// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Syndromes: one code for each cause of an error. They appear as `vendor_err` of completions, in
//! replies to commands, in events and in contexts. A code never changes its meaning, and a new
//! cause gets a new code.

codes! {
    /// Causes of errors. `verbenactl` and the recorder print the comments. Up to 0x15ff, the high
    /// byte of a code is the status of the completions that have it ([`super::cqe::WcStatus`]),
    /// except for [`Flushed`](Self::Flushed) and [`Injected`](Self::Injected).
    pub enum Syndrome: u16 {
        /// The work request was flushed because its queue pair is in ERR.
        Flushed = 0x0001,
        /// A message is longer than the buffers of the receive WQE.
        RecvTooSmall = 0x0101,
        /// The message is longer than max_msg_sz.
        MessageTooLong = 0x0102,
        /// The response to a READ has more or fewer bytes than the READ has requested.
        ResponseLength = 0x0103,
        /// The SGEs of an atomic, or the data of an ATOMIC WRITE, do not have 8 bytes.
        AtomicLength = 0x0104,
        /// The send WQE has an unknown opcode.
        WqeOpcodeUnknown = 0x0201,
        /// The transport service does not support the send WQE's opcode.
        WqeOpcodeTransport = 0x0202,
        /// The send WQE has unknown flags.
        WqeFlags = 0x0203,
        /// The send WQE has more SGEs than the queue was created for.
        WqeSgeCount = 0x0204,
        /// The send WQE has more inline data than the queue was created for, or its opcode cannot
        /// have inline data.
        WqeInline = 0x0205,
        /// The producer index is ahead of the consumer index by more than the size of the ring.
        ProducerIndex = 0x0206,
        /// The ring's memory cannot be read.
        RingUnreadable = 0x0207,
        /// Only privileged queue pairs, which belong to the kernel, may execute the operation.
        Privilege = 0x0208,
        /// The address handle belongs to another PD.
        AddressHandlePd = 0x0209,
        /// The address handle's source GID is not set.
        AddressHandleGid = 0x020a,
        /// The operation needs a response, and max_rd_atomic of the queue pair is 0.
        NoReadResources = 0x020b,
        /// The P_Key index of a work request of the GSI names no valid P_Key.
        PkeyIndex = 0x020c,
        /// A local key is unknown, free or has another tag.
        LkeyUnknown = 0x0401,
        /// A local key belongs to another PD.
        LkeyPd = 0x0402,
        /// An SGE is outside of its memory region.
        LkeyBounds = 0x0403,
        /// The memory region does not allow local writes.
        LkeyAccess = 0x0404,
        /// The pages of the memory region cannot be reached by DMA.
        LkeyUnreachable = 0x0405,
        /// A fast registration or local invalidate is not allowed for the key that it names, or the
        /// registration's terms are invalid.
        KeyManagement = 0x0601,
        /// A bind names a key that is no memory window, a window of type 2 that is bound already,
        /// or a window of another PD.
        BindWindow = 0x0603,
        /// A bind names a memory region that is unknown, belongs to another PD, or does not allow
        /// binds.
        BindRegion = 0x0604,
        /// A bind names memory outside of the memory region, or binds a window of type 2 to 0
        /// bytes.
        BindBounds = 0x0605,
        /// A bind requests rights that memory windows or this memory region cannot grant.
        BindAccess = 0x0606,
        /// The peer requested the invalidation of a key that it may not invalidate.
        RemoteInvalidate = 0x0602,
        /// A response has an opcode that does not answer the request.
        ResponseOpcode = 0x0701,
        /// The RDMA WRITE with immediate data that consumed this receive was refused.
        WriteImmAccess = 0x0801,
        /// The peer answered: invalid request (NAK code 1).
        NakInvalidRequest = 0x0901,
        /// The peer answered: remote access error (NAK code 2).
        NakRemoteAccess = 0x0a01,
        /// The peer answered: remote operational error (NAK code 3).
        NakRemoteOperational = 0x0b01,
        /// No acknowledgement within retry_cnt retries.
        RetryExceeded = 0x0c01,
        /// The peer requested the same PSN again (NAK sequence error) after retry_cnt retries.
        SequenceRetryExceeded = 0x0c02,
        /// The peer still had no receive posted after rnr_retry retries.
        RnrRetryExceeded = 0x0d01,
        /// The message that consumed this receive did not arrive completely.
        Aborted = 0x1001,
        /// The device has failed.
        DeviceFatal = 0x1301,
        /// A fault rule or INJECT_FAULT has requested this error.
        Injected = 0x1302,
        /// A remote key is unknown, free or has another tag.
        RkeyUnknown = 0x2001,
        /// A remote key belongs to another PD.
        RkeyPd = 0x2002,
        /// A remote access is outside of its memory region.
        RkeyBounds = 0x2003,
        /// The memory region does not allow this remote access.
        RkeyAccess = 0x2004,
        /// The pages of a remote key cannot be reached by DMA.
        RkeyUnreachable = 0x2005,
        /// A remote key is that of a memory window that belongs to another queue pair.
        RkeyQp = 0x2006,
        /// qp_access_flags of the queue pair do not allow the operation.
        OperationDisabled = 0x2101,
        /// More READs, atomics, ATOMIC WRITEs or FLUSHes arrived than max_dest_rd_atomic allows.
        TooManyReads = 0x2102,
        /// The address of an atomic or ATOMIC WRITE is not a multiple of 8.
        AtomicMisaligned = 0x2103,
        /// A request has an unknown opcode, or one that cannot follow that of the request before
        /// it.
        RequestOpcode = 0x2104,
        /// The payload of a packet does not match its opcode and the path MTU, or a message does
        /// not match its announced length.
        RequestLength = 0x2105,
        /// A request of an XRC connection names an SRQ that does not exist, is not an XRC SRQ, or
        /// is not the SRQ of the message's earlier packets.
        XrcSrq = 0x2106,
        /// A request of an XRC connection names an SRQ of another XRC domain.
        XrcDomain = 0x2107,
        /// A FLUSH has no placement, or a reserved placement or selectivity.
        FlushType = 0x2108,
        /// A receive WQE is malformed.
        RecvWqeMalformed = 0x2201,
        /// An SGE of a receive WQE cannot be used. The completion of the receive has the cause.
        RecvSge = 0x2202,
        /// The CQ was full.
        CqOverflow = 0x3001,
        /// The ring of the CQ cannot be written.
        CqUnwritable = 0x3002,
        /// A CQ of the queue pair is in error.
        CqDied = 0x3003,
        /// An SRQ's WQE is malformed.
        SrqWqeMalformed = 0x3101,
        /// The ring of the SRQ cannot be read.
        SrqUnreadable = 0x3102,
        /// The SRQ of the queue pair is in error.
        SrqDied = 0x3103,
        /// The driver moved the queue pair to ERR.
        ModifiedToErr = 0x3201,
        /// The doorbell area of the queue pair cannot be reached.
        DoorbellUnreachable = 0x3202,
        /// The command's opcode is unknown.
        CmdOpcode = 0x4001,
        /// A number of the command is out of range, or a limit of the device is reached.
        CmdNumber = 0x4002,
        /// A size of the command is out of range.
        CmdSize = 0x4003,
        /// A translation of the command is malformed.
        CmdTranslation = 0x4004,
        /// The context table has no memory for this number.
        CmdTableSlot = 0x4005,
        /// The object that the command names does not exist.
        CmdNoObject = 0x4006,
        /// The number or slot is in use.
        CmdInUse = 0x4007,
        /// The object is still in use.
        CmdBusy = 0x4008,
        /// The transition between these states is not allowed.
        CmdTransition = 0x4009,
        /// An attribute is missing, not allowed, or out of range.
        CmdAttribute = 0x400a,
        /// The host does not let this guest use the MAC address of a GID.
        GidMacNotAllowed = 0x4010,
        /// The host does not let this guest use the IP address of a GID.
        GidNotAllowed = 0x4011,
        /// The GID belongs to another guest: the host has assigned it to that guest, or it is the
        /// link-local address of that guest's MAC address.
        GidReserved = 0x4012,
        /// Another guest uses the GID.
        GidInUse = 0x4013,
        /// The MAC address of a GID belongs to another guest, or another station has sent with it
        /// recently.
        GidMacInUse = 0x4014,
        /// The host does not let this guest be a subnet manager.
        SmiNotAllowed = 0x4015,
        /// The memory of the command queue cannot be reached, or the number of slots or the base
        /// address is invalid.
        CmdQueueUnreachable = 0x4101,
        /// The device does not support the ABI version that the driver has chosen.
        CmdVersion = 0x4102,
        /// The memory of an event queue cannot be written.
        EqUnwritable = 0x4201,
        /// The engine failed because of a defect of the device.
        EngineFailure = 0x4301,
    }
}

layouts! {
    structs: [],
    codes: [Syndrome]
}
