// SPDX-License-Identifier: GPL-2.0

//! GIDs of a port, as the core manages them for RoCE.
//!
//! C headers: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h),
//! [`include/rdma/ib_cache.h`](srctree/include/rdma/ib_cache.h)

use crate::{
    bindings,
    enums::GidType, //
};
use kernel::{
    error::to_result,
    fmt, //
};

/// An entry of the GID table.
#[derive(Clone, Copy)]
pub struct Gid {
    /// Port that has the entry.
    pub port_num: u32,
    /// Index in the port's table.
    pub index: u16,
    /// The GID in wire byte order.
    pub gid: [u8; 16],
    /// Type of the GID.
    pub gid_type: GidType,
    /// MAC address of the net device, if the net device exists.
    pub mac: Option<[u8; 6]>,
    /// VLAN of the net device, if it has one.
    pub vlan_id: Option<u16>,
}

impl Gid {
    /// # Safety
    ///
    /// `raw` must be valid.
    pub(crate) unsafe fn from_raw(raw: *const bindings::ib_gid_attr) -> Self {
        let mut mac = [0u8; 6];
        let mut vlan = 0xffff;
        // SAFETY: The caller promises that `raw` is valid. The function writes six bytes and a
        // `u16`.
        let l2 = to_result(unsafe {
            bindings::rdma_read_gid_l2_fields(raw, &mut vlan, mac.as_mut_ptr())
        });
        // SAFETY: The caller promises that `raw` is valid.
        let raw = unsafe { &*raw };
        Self {
            port_num: raw.port_num,
            index: raw.index,
            // SAFETY: Any 16 bytes are a GID.
            gid: unsafe { *raw.gid.raw },
            gid_type: GidType::from_raw(raw.gid_type).unwrap_or(GidType::Ib),
            mac: l2.is_ok().then_some(mac),
            vlan_id: (l2.is_ok() && vlan < 4096).then_some(vlan),
        }
    }
}

impl fmt::Display for Gid {
    /// Writes the address in the format of the kernel's GIDs: eight groups for IPv6, four decimal
    /// numbers for IPv4.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] = self.gid {
            return write!(f, "{a}.{b}.{c}.{d}");
        }
        for (n, group) in self.gid.chunks_exact(2).enumerate() {
            if n != 0 {
                f.write_str(":")?;
            }
            for byte in group {
                write!(f, "{byte:02x}")?;
            }
        }
        Ok(())
    }
}
