// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Opcodes and statuses of commands.

codes! {
    /// Opcodes of commands.
    pub enum Opcode: u16 {
        /// Capabilities and identity.
        QueryDevice = 0x01,
        /// Gives the device a chunk of a context table.
        SetTableChunk = 0x02,
        /// Reads the counters of the port or of an object.
        QueryStats = 0x03,
        /// Sets or clears an entry of the GID table.
        SetGid = 0x04,
        /// Sets the state and the MTU of the port's net device.
        SetPort = 0x05,
        /// Reads the attributes of a port.
        QueryPort = 0x06,
        /// Reads an entry of a port's P_Key table.
        QueryPkey = 0x07,
        /// Changes the attributes of a port.
        ModifyPort = 0x08,
        /// Passes a management datagram to the agents of the device.
        ProcessMad = 0x09,
        /// Injects a fault.
        InjectFault = 0x0a,
        /// Reads an entry of a port's GID table.
        QueryGid = 0x0b,
        /// Sets the description of the node.
        SetNodeDescription = 0x0c,
        /// Creates a doorbell area.
        CreateUar = 0x10,
        /// Destroys an unused doorbell area.
        DestroyUar = 0x11,
        /// Creates an event queue.
        CreateEq = 0x20,
        /// Destroys an unused event queue.
        DestroyEq = 0x21,
        /// Creates a memory region.
        CreateMr = 0x30,
        /// Destroys a memory region. The device replies after its last access to the pages.
        DestroyMr = 0x31,
        /// Changes translation, PD or access of a memory region in one step.
        ModifyMr = 0x32,
        /// Ends a page fault: the pages for which a queue pair waits are present, or do not exist.
        ResumePageFault = 0x33,
        /// Allocates device memory.
        AllocDm = 0x34,
        /// Frees device memory that no memory region uses.
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
        /// Changes the state or attributes of a queue pair.
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
    /// Statuses of commands, with the errno of the driver. A command that fails changes nothing.
    pub enum CmdStatus: u32 {
        /// Success.
        Ok = 0,
        /// A field of the request is out of range or contradicts another (EINVAL).
        Invalid = 1,
        /// Another object still uses the object (EBUSY).
        Busy = 2,
        /// The object does not exist (EINVAL).
        NotFound = 3,
        /// The number or slot is in use already (EEXIST).
        Exists = 4,
        /// The device lacks resources (ENOMEM).
        NoResources = 5,
        /// The device does not know this command or option (EOPNOTSUPP).
        Unsupported = 6,
        /// The device cannot reach guest memory that the command names (EFAULT).
        BadAddress = 7,
        /// The device has failed (EIO).
        Fatal = 8,
        /// The host does not let this guest use a GID. The syndrome names the rule (EACCES).
        Denied = 9,
    }
}

layouts! {
    structs: [],
    codes: [Opcode, CmdStatus]
}
