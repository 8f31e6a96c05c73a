// SPDX-License-Identifier: GPL-2.0

//! Enumerations of ports.

use crate::bindings;

verbs_enum! {
    /// Link layer that carries the packets of a port.
    LinkLayer {
        /// InfiniBand.
        Infiniband = rdma_link_layer_IB_LINK_LAYER_INFINIBAND,
        /// Ethernet, which carries RoCE.
        Ethernet = rdma_link_layer_IB_LINK_LAYER_ETHERNET,
    }
}

verbs_enum! {
    /// Logical state of a port.
    PortState {
        /// The state is not known.
        Nop = ib_port_state_IB_PORT_NOP,
        /// Down.
        Down = ib_port_state_IB_PORT_DOWN,
        /// Initializing.
        Init = ib_port_state_IB_PORT_INIT,
        /// Armed.
        Armed = ib_port_state_IB_PORT_ARMED,
        /// Active.
        Active = ib_port_state_IB_PORT_ACTIVE,
    }
}

verbs_enum! {
    /// Physical state of a port.
    PhysState {
        /// Sleep.
        Sleep = ib_port_phys_state_IB_PORT_PHYS_STATE_SLEEP,
        /// Polling.
        Polling = ib_port_phys_state_IB_PORT_PHYS_STATE_POLLING,
        /// Disabled.
        Disabled = ib_port_phys_state_IB_PORT_PHYS_STATE_DISABLED,
        /// Port configuration training.
        Training = ib_port_phys_state_IB_PORT_PHYS_STATE_PORT_CONFIGURATION_TRAINING,
        /// Link up.
        LinkUp = ib_port_phys_state_IB_PORT_PHYS_STATE_LINK_UP,
        /// Link error recovery.
        LinkErrorRecovery = ib_port_phys_state_IB_PORT_PHYS_STATE_LINK_ERROR_RECOVERY,
        /// Test of the physical layer.
        PhyTest = ib_port_phys_state_IB_PORT_PHYS_STATE_PHY_TEST,
    }
}

verbs_enum! {
    /// Number of lanes of a port.
    PortWidth {
        /// One lane.
        X1 = ib_port_width_IB_WIDTH_1X,
        /// Two lanes.
        X2 = ib_port_width_IB_WIDTH_2X,
        /// Four lanes.
        X4 = ib_port_width_IB_WIDTH_4X,
        /// Eight lanes.
        X8 = ib_port_width_IB_WIDTH_8X,
        /// Twelve lanes.
        X12 = ib_port_width_IB_WIDTH_12X,
    }
}

verbs_enum! {
    /// Data rate of one lane.
    PortSpeed {
        /// 2.5 Gb/s.
        Sdr = ib_port_speed_IB_SPEED_SDR,
        /// 5 Gb/s.
        Ddr = ib_port_speed_IB_SPEED_DDR,
        /// 10 Gb/s.
        Qdr = ib_port_speed_IB_SPEED_QDR,
        /// 10 Gb/s with the encoding of FDR.
        Fdr10 = ib_port_speed_IB_SPEED_FDR10,
        /// 14 Gb/s.
        Fdr = ib_port_speed_IB_SPEED_FDR,
        /// 25 Gb/s.
        Edr = ib_port_speed_IB_SPEED_EDR,
        /// 50 Gb/s.
        Hdr = ib_port_speed_IB_SPEED_HDR,
        /// 100 Gb/s.
        Ndr = ib_port_speed_IB_SPEED_NDR,
    }
}

verbs_enum! {
    /// Asynchronous event of an InfiniBand port.
    PortEvent {
        /// The port went to the state ACTIVE.
        Active = ib_event_type_IB_EVENT_PORT_ACTIVE,
        /// The port left the state ACTIVE.
        Err = ib_event_type_IB_EVENT_PORT_ERR,
        /// The LID or the LMC of the port has changed.
        LidChange = ib_event_type_IB_EVENT_LID_CHANGE,
        /// The P_Key table of the port has changed.
        PkeyChange = ib_event_type_IB_EVENT_PKEY_CHANGE,
        /// The LID or the SL of the subnet manager has changed.
        SmChange = ib_event_type_IB_EVENT_SM_CHANGE,
        /// The subnet manager asks its clients to register again.
        ClientReregister = ib_event_type_IB_EVENT_CLIENT_REREGISTER,
        /// The GID table of the port has changed.
        GidChange = ib_event_type_IB_EVENT_GID_CHANGE,
    }
}

verbs_flags! {
    /// Capabilities of a port that consumers announce (`enum ib_port_capability_mask_bits`). Only
    /// those that a driver needs by name are listed.
    PortCaps {
        /// A subnet manager runs on the port.
        SM = ib_port_capability_mask_bits_IB_PORT_SM,
        /// The connection manager runs on the port.
        CM = ib_port_capability_mask_bits_IB_PORT_CM_SUP,
        /// The port has SNMP tunneling.
        SNMP_TUNNEL = ib_port_capability_mask_bits_IB_PORT_SNMP_TUNNEL_SUP,
        /// The port has device management.
        DEVICE_MGMT = ib_port_capability_mask_bits_IB_PORT_DEVICE_MGMT_SUP,
        /// The port has a vendor class.
        VENDOR_CLASS = ib_port_capability_mask_bits_IB_PORT_VENDOR_CLASS_SUP,
        /// Clients of the port register again when the subnet manager asks for it.
        CLIENT_REG = ib_port_capability_mask_bits_IB_PORT_CLIENT_REG_SUP,
    }
}

verbs_flags! {
    /// Checks that the agents of a device leave out for a management datagram
    /// (`enum ib_process_mad_flags`).
    MadFlags {
        /// The M_Key is not checked.
        IGNORE_MKEY = ib_process_mad_flags_IB_MAD_IGNORE_MKEY,
        /// The B_Key is not checked.
        IGNORE_BKEY = ib_process_mad_flags_IB_MAD_IGNORE_BKEY,
    }
}
