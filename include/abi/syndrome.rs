// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Syndromes: one code for each distinct cause of an error. They appear as `vendor_err` of completions, in replies to
//! commands, in events and contexts. A code keeps its meaning for ever; new causes get new codes.

codes! {
    /// Why something failed.
    pub enum Syndrome: u16 {
        /// The work request was flushed because its queue pair is in ERR.
        Flushed = 0x0001,
        /// A packet needed a bigger receive buffer than the receive WQE offered.
        RecvTooSmall = 0x0101,
        /// The message is longer than max_msg_sz.
        MessageTooLong = 0x0102,
        /// The response carried more or fewer bytes than the READ asked for.
        ResponseLength = 0x0103,
        /// An atomic's SGEs, or the data of an ATOMIC WRITE, do not add up to 8 bytes.
        AtomicLength = 0x0104,
        /// The send WQE has an unknown opcode.
        WqeOpcodeUnknown = 0x0201,
        /// The send WQE's opcode is not for this transport service.
        WqeOpcodeTransport = 0x0202,
        /// The send WQE has unknown flags set.
        WqeFlags = 0x0203,
        /// The WQE has more SGEs than the queue was created for.
        WqeSgeCount = 0x0204,
        /// The WQE's inline data is longer than the queue was created for, or inline is not for this opcode.
        WqeInline = 0x0205,
        /// The producer index is more than the ring's size ahead.
        ProducerIndex = 0x0206,
        /// The ring's memory cannot be read.
        RingUnreadable = 0x0207,
        /// The operation is for privileged (kernel) queue pairs only.
        Privilege = 0x0208,
        /// The address handle belongs to another PD.
        AddressHandlePd = 0x0209,
        /// The address handle's source GID is not set.
        AddressHandleGid = 0x020a,
        /// Nothing may be sent with max_rd_atomic 0 that needs a response.
        NoReadResources = 0x020b,
        /// A local key is unknown, free or has another tag.
        LkeyUnknown = 0x0401,
        /// A local key belongs to another PD.
        LkeyPd = 0x0402,
        /// An SGE is outside of its memory region.
        LkeyBounds = 0x0403,
        /// The memory region does not allow local writes.
        LkeyAccess = 0x0404,
        /// The memory region's pages cannot be reached by DMA.
        LkeyUnreachable = 0x0405,
        /// A fast registration or local invalidate named a key that cannot be used so.
        KeyManagement = 0x0601,
        /// A bind named a window that is not one, is not free, or belongs to another PD.
        BindWindow = 0x0603,
        /// A bind named a memory region that is unknown, of another PD or without the right to be bound to.
        BindRegion = 0x0604,
        /// A bind reaches beyond the memory region.
        BindBounds = 0x0605,
        /// A bind asks for rights that windows, or this memory region, cannot give.
        BindAccess = 0x0606,
        /// The peer invalidated a key that it may not.
        RemoteInvalidate = 0x0602,
        /// A response's opcode cannot answer the request.
        ResponseOpcode = 0x0701,
        /// The RDMA WRITE whose immediate took this receive was refused.
        WriteImmAccess = 0x0801,
        /// The peer answered: invalid request (NAK code 1).
        NakInvalidRequest = 0x0901,
        /// The peer answered: remote access error (NAK code 2).
        NakRemoteAccess = 0x0a01,
        /// The peer answered: remote operational error (NAK code 3).
        NakRemoteOperational = 0x0b01,
        /// No acknowledgement within retry_cnt retries.
        RetryExceeded = 0x0c01,
        /// The peer kept asking for the same PSN (NAK sequence error) beyond retry_cnt.
        SequenceRetryExceeded = 0x0c02,
        /// The peer had no receive for rnr_retry retries.
        RnrRetryExceeded = 0x0d01,
        /// The message was abandoned in the middle.
        Aborted = 0x1001,
        /// The device is dead.
        DeviceFatal = 0x1301,
        /// Somebody who may do so has asked for this fault.
        Injected = 0x1302,
        /// A remote key is unknown, free or has another tag.
        RkeyUnknown = 0x2001,
        /// A remote key belongs to another PD.
        RkeyPd = 0x2002,
        /// A remote access is outside of its memory region.
        RkeyBounds = 0x2003,
        /// The memory region does not allow this remote access.
        RkeyAccess = 0x2004,
        /// A remote key's pages cannot be reached by DMA.
        RkeyUnreachable = 0x2005,
        /// A remote key is of a memory window that is bound to another queue pair.
        RkeyQp = 0x2006,
        /// The queue pair's qp_access_flags do not allow the operation.
        OperationDisabled = 0x2101,
        /// More READs or atomics came than max_dest_rd_atomic allows.
        TooManyReads = 0x2102,
        /// The address of an atomic or ATOMIC WRITE is not a multiple of 8.
        AtomicMisaligned = 0x2103,
        /// A request's opcode is unknown, or does not follow from the one before it.
        RequestOpcode = 0x2104,
        /// A packet's payload does not fit its opcode and the path MTU, or the message its announced length.
        RequestLength = 0x2105,
        /// A request of an extended connection names an SRQ that is not there, is not for them, or changed within the message.
        XrcSrq = 0x2106,
        /// A request of an extended connection names an SRQ of another XRC domain.
        XrcDomain = 0x2107,
        /// A FLUSH asks for no placement, or has a reserved placement or selectivity.
        FlushType = 0x2108,
        /// A receive WQE is malformed.
        RecvWqeMalformed = 0x2201,
        /// A receive WQE's SGE cannot be used; the receive's own completion tells why.
        RecvSge = 0x2202,
        /// The CQ was full.
        CqOverflow = 0x3001,
        /// The CQ's ring cannot be written.
        CqUnwritable = 0x3002,
        /// A CQ of the queue pair is in error.
        CqDied = 0x3003,
        /// An SRQ's WQE is malformed.
        SrqWqeMalformed = 0x3101,
        /// The SRQ's ring cannot be read.
        SrqUnreadable = 0x3102,
        /// The SRQ of the queue pair is in error.
        SrqDied = 0x3103,
        /// The driver moved the queue pair to ERR.
        ModifiedToErr = 0x3201,
        /// The doorbell area of the queue pair cannot be reached.
        DoorbellUnreachable = 0x3202,
        /// The command's opcode is unknown.
        CmdOpcode = 0x4001,
        /// A number of the command is out of range.
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
        /// The object is still used.
        CmdBusy = 0x4008,
        /// The transition between these states is not allowed.
        CmdTransition = 0x4009,
        /// An attribute is missing, surplus or out of range.
        CmdAttribute = 0x400a,
        /// The MAC address of a GID is not one that the host lets this guest use.
        GidMacNotAllowed = 0x4010,
        /// The host does not let this guest use the IP address of a GID.
        GidNotAllowed = 0x4011,
        /// The GID belongs to another guest: the host has given it the address, or it is the link-local address of that guest's MAC
        /// address.
        GidReserved = 0x4012,
        /// Another guest uses the GID.
        GidInUse = 0x4013,
        /// The MAC address of a GID is another guest's, or another station spoke with it a moment ago.
        GidMacInUse = 0x4014,
        /// The command queue's memory cannot be reached.
        CmdQueueUnreachable = 0x4101,
        /// The ABI version that the driver chose is not one that the device speaks.
        CmdVersion = 0x4102,
        /// An event queue's memory cannot be written.
        EqUnwritable = 0x4201,
        /// The engine failed (a defect of the device).
        EngineFailure = 0x4301,
    }
}

layouts! {
    structs: [],
    codes: [Syndrome]
}
