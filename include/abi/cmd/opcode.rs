// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The numbers of commands, and how commands end.

codes! {
    /// What a command does.
    pub enum Opcode: u16 {
        /// Capabilities and identity.
        QueryDevice = 0x01,
        /// Gives the device a chunk of a context table.
        SetTableChunk = 0x02,
        /// Reads the counters of the port or of an object.
        QueryStats = 0x03,
        /// Sets or clears an entry of the GID table.
        SetGid = 0x04,
        /// Tells the device what the port's netdev is like.
        SetPort = 0x05,
        /// Reads the attributes of a port.
        QueryPort = 0x06,
        /// Reads an entry of a port's P_Key table.
        QueryPkey = 0x07,
        /// Changes the attributes of a port.
        ModifyPort = 0x08,
        /// Hands a management datagram to the device's agents.
        ProcessMad = 0x09,
        /// Injects a fault.
        InjectFault = 0x0a,
        /// Creates a doorbell area.
        CreateUar = 0x10,
        /// Destroys a doorbell area that nothing uses.
        DestroyUar = 0x11,
        /// Creates an event queue.
        CreateEq = 0x20,
        /// Destroys an event queue that nothing uses.
        DestroyEq = 0x21,
        /// Creates a memory region.
        CreateMr = 0x30,
        /// Destroys a memory region; replies when the device has let go of its pages.
        DestroyMr = 0x31,
        /// Changes translation, PD or access of a memory region in one step.
        ModifyMr = 0x32,
        /// The pages that a queue pair waits for are there, or never will be.
        ResumePageFault = 0x33,
        /// Allocates memory of the device.
        AllocDm = 0x34,
        /// Frees memory of the device that no memory region uses.
        FreeDm = 0x35,
        /// Creates a completion queue.
        CreateCq = 0x40,
        /// Destroys a completion queue that no queue pair uses.
        DestroyCq = 0x41,
        /// Sets the moderation of a completion queue.
        ModifyCq = 0x42,
        /// Publishes a completion queue's context.
        QueryCq = 0x43,
        /// Moves a completion queue to another ring.
        ResizeCq = 0x44,
        /// Creates a shared receive queue.
        CreateSrq = 0x50,
        /// Destroys a shared receive queue that no queue pair uses.
        DestroySrq = 0x51,
        /// Arms the limit of a shared receive queue.
        ModifySrq = 0x52,
        /// Publishes a shared receive queue's context.
        QuerySrq = 0x53,
        /// Moves a shared receive queue to another ring.
        ResizeSrq = 0x54,
        /// Creates a queue pair in RESET.
        CreateQp = 0x60,
        /// Quiesces and destroys a queue pair.
        DestroyQp = 0x61,
        /// Changes state or attributes of a queue pair.
        ModifyQp = 0x62,
        /// Publishes a queue pair's context.
        QueryQp = 0x63,
        /// Attaches a queue pair to a multicast group.
        AttachMcast = 0x70,
        /// Detaches a queue pair from a multicast group.
        DetachMcast = 0x71,
    }
}

codes! {
    /// How a command ended. A command that failed changed nothing.
    pub enum CmdStatus: u32 {
        /// Done.
        Ok = 0,
        /// A field of the request is out of range or contradicts another (EINVAL).
        Invalid = 1,
        /// The object is still used by another (EBUSY).
        Busy = 2,
        /// No such object (EINVAL).
        NotFound = 3,
        /// The number is taken already (EEXIST).
        Exists = 4,
        /// The device has no room for it (ENOMEM).
        NoResources = 5,
        /// The device does not know this command or option (EOPNOTSUPP).
        Unsupported = 6,
        /// Guest memory that the command names cannot be reached (EFAULT).
        BadAddress = 7,
        /// The device is in a fatal error (EIO).
        Fatal = 8,
        /// The host does not let this guest have what the command asks for; the syndrome names the rule (EACCES).
        Denied = 9,
    }
}

layouts! {
    structs: [],
    codes: [Opcode, CmdStatus]
}
