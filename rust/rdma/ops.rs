// SPDX-License-Identifier: GPL-2.0

//! The ops table of a driver, `struct ib_device_ops`.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::{
    ah::Ah,
    bindings,
    cq::Cq,
    device::{
        Device,
        Operations, //
    },
    gid::Gid,
    mr::Mr,
    mw::Mw,
    object::no_udata,
    pd::Pd,
    qp::Qp,
    srq::Srq,
    ucontext::Ucontext,
    xrcd::Xrcd, //
};
use core::marker::PhantomData;
use kernel::{
    bindings as kbindings,
    error::from_result,
    prelude::*, //
};

/// Implements the ops of a device. Those of its objects are in the files of the objects.
pub(crate) struct Adapter<D: Operations>(PhantomData<D>);

impl<D: Operations> Adapter<D> {
    pub(crate) const OPS: bindings::ib_device_ops = {
        let mut ops: bindings::ib_device_ops = pin_init::zeroed();
        ops.driver_id = bindings::rdma_driver_id_RDMA_DRIVER_UNKNOWN;
        ops.uverbs_abi_ver = D::ABI_VERSION;
        ops.query_device = Some(Self::query_device);
        ops.query_port = Some(Self::query_port);
        ops.get_port_immutable = Some(Self::get_port_immutable);
        ops.get_link_layer = Some(Self::get_link_layer);
        ops.query_pkey = Some(Self::query_pkey);
        ops.dealloc_driver = Some(Self::dealloc_driver);
        if D::HAS_PORT_EVENT {
            ops.report_port_event = Some(Self::report_port_event);
        }
        if D::HAS_ADD_GID {
            ops.add_gid = Some(Self::add_gid);
        }
        if D::HAS_DEL_GID {
            ops.del_gid = Some(Self::del_gid);
        }
        Self::fill_stats_ops(&mut ops);
        if D::HAS_FW_VERSION {
            ops.get_dev_fw_str = Some(Self::get_dev_fw_str);
        }
        Ucontext::<D>::fill_ops(&mut ops);
        Pd::<D>::fill_ops(&mut ops);
        Cq::<D>::fill_ops(&mut ops);
        Qp::<D>::fill_ops(&mut ops);
        Srq::<D>::fill_ops(&mut ops);
        Ah::<D>::fill_ops(&mut ops);
        Mr::<D>::fill_ops(&mut ops);
        Mw::<D>::fill_ops(&mut ops);
        Xrcd::<D>::fill_ops(&mut ops);
        ops
    };

    /// # Safety
    ///
    /// Only the core may call this op, with a device of `D` and an `attr` to fill. `udata` must be
    /// `NULL` or valid.
    unsafe extern "C" fn query_device(
        dev: *mut bindings::ib_device,
        attr: *mut bindings::ib_device_attr,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the contract of this op `udata` is `NULL` or valid.
            unsafe { no_udata(udata) }?;
            // SAFETY: By the contract of this op `attr` is valid for writes, and all zeroes are a
            // valid value of it.
            unsafe { attr.write_bytes(0, 1) };
            // SAFETY: By the contract of this op `attr` is only the caller's, and it is initialized
            // above. `DeviceAttr` is `repr(transparent)`.
            let attr = unsafe { &mut *attr.cast() };
            // SAFETY: By the contract of this op `dev` is a device of `D`, alive during the call.
            let dev = unsafe { Device::from_raw(dev) };
            D::query_device(dev, attr)?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only the core may call this op, with a device of `D` and an initialized `attr` to fill.
    unsafe extern "C" fn query_port(
        dev: *mut bindings::ib_device,
        port: u32,
        attr: *mut bindings::ib_port_attr,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the contract of this op `attr` is initialized and only the caller's.
            // `PortAttr` is `repr(transparent)`.
            let attr = unsafe { &mut *attr.cast() };
            // SAFETY: By the contract of this op `dev` is a device of `D`, alive during the call.
            let dev = unsafe { Device::from_raw(dev) };
            D::query_port(dev, port, attr)?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only the core may call this op, with a device of `D` and an initialized `imm` to fill.
    unsafe extern "C" fn get_port_immutable(
        dev: *mut bindings::ib_device,
        port: u32,
        imm: *mut bindings::ib_port_immutable,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the contract of this op `imm` is initialized and only the caller's.
            // `PortImmutable` is `repr(transparent)`.
            let imm = unsafe { &mut *imm.cast() };
            // SAFETY: By the contract of this op `dev` is a device of `D`, alive during the call.
            let dev = unsafe { Device::from_raw(dev) };
            D::port_immutable(dev, port, imm)?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only the core may call this op, with a device of `D`.
    unsafe extern "C" fn get_link_layer(
        dev: *mut bindings::ib_device,
        port: u32,
    ) -> bindings::rdma_link_layer {
        // SAFETY: By the contract of this op `dev` is a device of `D`, alive during the call.
        D::link_layer(unsafe { Device::from_raw(dev) }, port).as_raw()
    }

    /// # Safety
    ///
    /// Only the core may call this op, with a device of `D` and a `pkey` to fill.
    unsafe extern "C" fn query_pkey(
        dev: *mut bindings::ib_device,
        port: u32,
        index: u16,
        pkey: *mut u16,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the contract of this op `dev` is a device of `D`, alive during the call.
            let dev = unsafe { Device::from_raw(dev) };
            let value = D::query_pkey(dev, port, index)?;
            // SAFETY: By the contract of this op `pkey` is valid for writes.
            unsafe { *pkey = value };
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only the core may call this op, with a registered device of `D` and the net device of the
    /// event.
    unsafe extern "C" fn report_port_event(
        dev: *mut bindings::ib_device,
        netdev: *mut kbindings::net_device,
        _event: c_ulong,
    ) {
        // SAFETY: By the contract of this op `dev` is a device of `D`, alive during the call.
        if D::port_event(unsafe { Device::from_raw(dev) }) {
            // SAFETY: By the contract of this op `dev` is registered and `netdev` is alive. The
            // core calls the function in the same way for devices without this op.
            unsafe { bindings::ib_dispatch_port_state_event(dev, netdev) };
        }
    }

    /// Returns the device that has an entry of a GID table, and a copy of the entry.
    ///
    /// # Safety
    ///
    /// `attr` must be a valid entry of a device of `D` that is alive for `'a`.
    unsafe fn entry<'a>(attr: *const bindings::ib_gid_attr) -> (&'a Device<D>, Gid) {
        // SAFETY: The caller promises that `attr` is valid.
        let dev = unsafe { (*attr).device };
        // SAFETY: The caller promises that the device is one of `D` and is alive for `'a`.
        let dev = unsafe { Device::from_raw(dev) };
        // SAFETY: The caller promises that `attr` is valid.
        let gid = unsafe { Gid::from_raw(attr) };
        (dev, gid)
    }

    /// # Safety
    ///
    /// Only the core may call this op, with a valid entry of a device of `D`.
    unsafe extern "C" fn add_gid(
        attr: *const bindings::ib_gid_attr,
        _context: *mut *mut c_void,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the contract of this op `attr` is a valid entry of a device of `D`.
            let (dev, gid) = unsafe { Self::entry(attr) };
            D::add_gid(dev, &gid)?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only the core may call this op, with a valid entry of a device of `D`.
    unsafe extern "C" fn del_gid(
        attr: *const bindings::ib_gid_attr,
        _context: *mut *mut c_void,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the contract of this op `attr` is a valid entry of a device of `D`.
            let (dev, gid) = unsafe { Self::entry(attr) };
            D::del_gid(dev, &gid)?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only the core may call this op, with a device of `D` and a `text` of IB_FW_VERSION_NAME_MAX
    /// bytes.
    unsafe extern "C" fn get_dev_fw_str(dev: *mut bindings::ib_device, text: *mut c_char) {
        // SAFETY: By the contract of this op `dev` is a device of `D`, alive during the call.
        let version = D::fw_version(unsafe { Device::from_raw(dev) });
        // The buffer has IB_FW_VERSION_NAME_MAX bytes. Three numbers of up to five digits, two dots
        // and the terminating zero fit into 18.
        let mut at = 0usize;
        let mut put = |byte: u8| {
            // SAFETY: By the contract of this op `text` has IB_FW_VERSION_NAME_MAX bytes, of which
            // up to 18 are written.
            let to = unsafe { text.add(at) };
            // SAFETY: The address is inside the buffer, which is valid for writes.
            unsafe { to.write(byte as c_char) };
            at += 1;
        };
        for (i, number) in version.into_iter().enumerate() {
            if i != 0 {
                put(b'.');
            }
            let mut rest = number;
            let mut scale = 10000u16;
            while scale > 1 && number < scale {
                scale /= 10;
            }
            while scale > 0 {
                // CAST: The value is one decimal digit.
                put(b'0' + (rest / scale) as u8);
                rest %= scale;
                scale /= 10;
            }
        }
        put(0);
    }

    /// # Safety
    ///
    /// Only the core may call this op, at most once for a device of `D`.
    unsafe extern "C" fn dealloc_driver(dev: *mut bindings::ib_device) {
        // SAFETY: All fields of a device with this op are initialized, and the core calls no other
        // op from here on. The C struct is `Opaque`, so this does not drop it.
        unsafe { core::ptr::drop_in_place(dev.cast::<Device<D>>()) };
    }
}
