// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Device, context, protection domain, asynchronous events, queries.
#![allow(unsafe_code)]

use super::bindings::*;
use super::domains::Td;
use super::sys::{readable, set_nonblocking, DeviceMapping, Errno};
use core::ffi::{c_int, c_void, CStr};
use std::fmt;
use std::mem::MaybeUninit;
use std::sync::Arc;

/// An open device.
pub struct Context {
    pub(super) raw: *mut ibv_context,
    /// Name of the device, such as `verbena0`.
    pub name: String,
}

/// Returns the names of all devices that libibverbs has a provider for.
pub fn device_names() -> Vec<String> {
    with_devices(|devices| devices.iter().map(|d| d.0.clone()).collect())
}

fn with_devices<R>(f: impl FnOnce(&[(String, *mut ibv_device)]) -> R) -> R {
    let mut num: c_int = 0;
    // SAFETY: `num` is a valid out pointer.
    let list = unsafe { ibv_get_device_list(&mut num) };
    let mut devices = Vec::new();
    if !list.is_null() {
        for i in 0..usize::try_from(num).unwrap_or(0) {
            // SAFETY: the list has `num` entries, so the pointer stays in it.
            let entry = unsafe { list.add(i) };
            // SAFETY: the pointer is that of an entry of the list.
            let device = unsafe { *entry };
            // SAFETY: the device is one of the list.
            let name = unsafe { ibv_get_device_name(device) };
            // SAFETY: the name is a C string that lives as long as the device.
            let name = unsafe { CStr::from_ptr(name) };
            devices.push((name.to_string_lossy().into_owned(), device));
        }
    }
    let r = f(&devices);
    if !list.is_null() {
        // SAFETY: the list is the one from above; opened devices keep their own reference.
        unsafe { ibv_free_device_list(list) };
    }
    r
}

impl Context {
    /// Opens the device with the given name.
    pub fn open(name: &str) -> Result<Arc<Context>, Errno> {
        Context::open_by(name, |open| open())
    }

    /// Opens the device with the given name when `by` calls the function that it is given. The
    /// search for devices is complete by then.
    pub fn open_by<T>(
        name: &str,
        by: impl FnOnce(&dyn Fn() -> Result<Arc<Context>, Errno>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        with_devices(|devices| {
            let (_, device) = devices.iter().find(|d| d.0 == name).ok_or(Errno::ENODEV)?;
            by(&|| {
                // SAFETY: the device is one of the list, which is freed only after this call.
                let raw = unsafe { ibv_open_device(*device) };
                if raw.is_null() {
                    return Err(Errno::last());
                }
                let ctx = Context {
                    raw,
                    name: name.to_owned(),
                };
                set_nonblocking(ctx.async_fd());
                Ok(Arc::new(ctx))
            })
        })
    }

    /// Ends this process with the status that `by` returns. `by` is given a function that closes
    /// the device's file while all objects of the process are alive, so that the kernel has to
    /// destroy them.
    pub fn close_under_all(&self, by: impl FnOnce(&dyn Fn()) -> c_int) -> ! {
        // A mapping keeps the file open, too.
        for mapping in DeviceMapping::find("/uverbs") {
            mapping.unmap();
        }
        // SAFETY: the object is valid while `self` lives; the field never changes.
        let fd = unsafe { (*self.raw).cmd_fd };
        let status = by(&|| {
            // SAFETY: the descriptor belongs to this process. The library does not use it any more,
            // because the process ends below without running any destructor.
            unsafe { libc::close(fd) };
        });
        // SAFETY: the call ends the process and has no pointers.
        unsafe { libc::_exit(status) }
    }

    pub(super) fn raw(&self) -> *mut ibv_context {
        self.raw
    }

    /// Returns the descriptor at which asynchronous events arrive.
    pub fn async_fd(&self) -> c_int {
        // SAFETY: `raw` is valid while `self` lives; the field never changes.
        unsafe { (*self.raw).async_fd }
    }

    pub fn num_comp_vectors(&self) -> c_int {
        // SAFETY: as in `async_fd`.
        unsafe { (*self.raw).num_comp_vectors }
    }

    pub fn query_device(&self) -> Result<ibv_device_attr, Errno> {
        let mut attr = MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: the context and the out pointer are valid.
        Errno::check(unsafe { ibv_query_device(self.raw, attr.as_mut_ptr()) })?;
        // SAFETY: all fields are integers, which were zeroed and then filled by the library.
        Ok(unsafe { attr.assume_init() })
    }

    /// Returns the maximum moderation of completion events: the number of completions and of
    /// microseconds that an event can wait for.
    pub fn cq_moderation(&self) -> Result<(u16, u16), Errno> {
        let mut attr = MaybeUninit::<ibv_device_attr_ex>::zeroed();
        let size = core::mem::size_of_val(&attr);
        let methods = later_methods(self.raw).ok_or(Errno::EOPNOTSUPP)?;
        // SAFETY: the pointer is the method table of a provider, which does not change any more.
        let op = unsafe { (*methods).query_device_ex }.ok_or(Errno::EOPNOTSUPP)?;
        let input = std::ptr::null();
        // SAFETY: the context is valid, there is no input, and the structure has the given size.
        Errno::check(unsafe { op(self.raw, input, attr.as_mut_ptr(), size) })?;
        // SAFETY: all fields are integers, which were zeroed and then filled by the library.
        let caps = unsafe { attr.assume_init() }.cq_mod_caps;
        Ok((caps.max_cq_count, caps.max_cq_period))
    }

    /// Queries a port by the exported function, which knows the fields up to `flags`; the later
    /// fields are 0.
    pub fn query_port(&self, port: u8) -> Result<ibv_port_attr, Errno> {
        let mut attr = ibv_port_attr::default();
        // SAFETY: the context is valid; the older structure that the function writes is the head of
        // this one.
        Errno::check(unsafe { ibv_query_port(self.raw, port, (&raw mut attr).cast()) })?;
        Ok(attr)
    }

    pub fn query_gid(&self, port: u8, index: u32) -> Result<GidEntry, Errno> {
        let mut entry = ibv_gid_entry::default();
        let size = core::mem::size_of_val(&entry);
        // SAFETY: the context is valid, and the out pointer has room for the given size.
        let ret = unsafe { _ibv_query_gid_ex(self.raw, port.into(), index, &mut entry, 0, size) };
        Errno::check(ret).map(|()| GidEntry {
            gid: entry.gid.into(),
            gid_index: entry.gid_index,
            port_num: entry.port_num,
            gid_type: entry.gid_type,
            ndev_ifindex: entry.ndev_ifindex,
        })
    }

    pub fn query_pkey(&self, port: u8, index: i32) -> Result<u16, Errno> {
        let mut pkey = 0u16;
        // SAFETY: the context and the out pointer are valid.
        Errno::check(unsafe { ibv_query_pkey(self.raw, port, index, &mut pkey) })?;
        Ok(u16::from_be(pkey))
    }

    /// Returns the next asynchronous event, or `None` after `ms` milliseconds without an event.
    pub fn async_event(self: &Arc<Self>, ms: i32) -> Option<AsyncEvent> {
        if !readable(self.async_fd(), ms) {
            return None;
        }
        let mut raw = ibv_async_event::default();
        // SAFETY: the context and the out pointer are valid.
        let ret = unsafe { ibv_get_async_event(self.raw, &mut raw) };
        (ret == 0).then(|| AsyncEvent {
            raw,
            _ctx: self.clone(),
        })
    }

    pub fn alloc_pd(self: &Arc<Self>) -> Result<Arc<Pd>, Errno> {
        // SAFETY: the context is valid.
        let raw = unsafe { ibv_alloc_pd(self.raw) };
        if raw.is_null() {
            return Err(Errno::last());
        }
        Ok(Arc::new(Pd {
            raw,
            ctx: self.clone(),
            _stands_on: None,
        }))
    }
}

/// A GID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gid {
    pub raw: [u8; 16],
}

impl From<ibv_gid> for Gid {
    fn from(gid: ibv_gid) -> Gid {
        // SAFETY: a GID may have any bytes.
        let raw = unsafe { gid.raw };
        Gid { raw }
    }
}

impl From<Gid> for ibv_gid {
    fn from(gid: Gid) -> ibv_gid {
        ibv_gid { raw: gid.raw }
    }
}

/// An entry of a port's GID table, `struct ibv_gid_entry`.
#[derive(Clone, Copy, Debug)]
pub struct GidEntry {
    pub gid: Gid,
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}

/// An asynchronous event, which is acknowledged when this value is dropped.
pub struct AsyncEvent {
    raw: ibv_async_event,
    _ctx: Arc<Context>,
}

// SAFETY: an event may be acknowledged by any thread.
unsafe impl Send for AsyncEvent {}

impl AsyncEvent {
    pub fn kind(&self) -> EventType {
        EventType(self.raw.event_type)
    }

    /// Returns the object of the event, to compare with `Cq::element`, `Qp::element`, or a port
    /// number.
    pub fn element(&self) -> EventElement {
        // SAFETY: no member of the union is longer than a pointer, and `async_event` had zeroed all
        // of it.
        EventElement(unsafe { self.raw.element.cq } as usize)
    }
}

impl Drop for AsyncEvent {
    fn drop(&mut self) {
        // SAFETY: `ibv_get_async_event` returned the event and no code has acknowledged it yet. Its
        // object still exists, because destroying it waits for this acknowledgement.
        unsafe { ibv_ack_async_event(&mut self.raw) };
    }
}

/// The identity of the object of an event.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EventElement(usize);

impl EventElement {
    pub(super) fn of(ptr: *mut c_void) -> EventElement {
        EventElement(ptr as usize)
    }
}

/// `enum ibv_event_type`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct EventType(pub u32);

impl EventType {
    pub const CQ_ERR: EventType = EventType(IBV_EVENT_CQ_ERR);
    pub const QP_FATAL: EventType = EventType(IBV_EVENT_QP_FATAL);
    pub const QP_REQ_ERR: EventType = EventType(IBV_EVENT_QP_REQ_ERR);
    pub const QP_ACCESS_ERR: EventType = EventType(IBV_EVENT_QP_ACCESS_ERR);
    pub const COMM_EST: EventType = EventType(IBV_EVENT_COMM_EST);
    pub const SQ_DRAINED: EventType = EventType(IBV_EVENT_SQ_DRAINED);
    pub const DEVICE_FATAL: EventType = EventType(IBV_EVENT_DEVICE_FATAL);
    pub const PORT_ACTIVE: EventType = EventType(IBV_EVENT_PORT_ACTIVE);
    pub const PORT_ERR: EventType = EventType(IBV_EVENT_PORT_ERR);
    pub const SRQ_ERR: EventType = EventType(IBV_EVENT_SRQ_ERR);
    pub const SRQ_LIMIT_REACHED: EventType = EventType(IBV_EVENT_SRQ_LIMIT_REACHED);
    pub const QP_LAST_WQE_REACHED: EventType = EventType(IBV_EVENT_QP_LAST_WQE_REACHED);
    pub const GID_CHANGE: EventType = EventType(IBV_EVENT_GID_CHANGE);
}

impl fmt::Debug for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 20] = [
            "CQ_ERR",
            "QP_FATAL",
            "QP_REQ_ERR",
            "QP_ACCESS_ERR",
            "COMM_EST",
            "SQ_DRAINED",
            "PATH_MIG",
            "PATH_MIG_ERR",
            "DEVICE_FATAL",
            "PORT_ACTIVE",
            "PORT_ERR",
            "LID_CHANGE",
            "PKEY_CHANGE",
            "SM_CHANGE",
            "SRQ_ERR",
            "SRQ_LIMIT_REACHED",
            "QP_LAST_WQE_REACHED",
            "CLIENT_REREGISTER",
            "GID_CHANGE",
            "WQ_FATAL",
        ];
        match NAMES.get(self.0 as usize) {
            Some(name) => f.write_str(name),
            None => write!(f, "event {}", self.0),
        }
    }
}

/// Returns the table of the methods that were added after those in `ibv_context`, like
/// `verbs_get_ctx()`.
pub(super) fn later_methods(context: *mut ibv_context) -> Option<*mut verbs_context> {
    // SAFETY: the context is open.
    let has_more = unsafe { (*context).abi_compat } as isize == -1;
    let offset = std::mem::offset_of!(verbs_context, context);
    has_more.then(|| context.cast::<u8>().wrapping_sub(offset).cast())
}

/// A protection domain.
pub struct Pd {
    pub(super) raw: *mut ibv_pd,
    pub ctx: Arc<Context>,
    /// Parent domain only: the protection domain and the thread domain that it joins.
    pub(super) _stands_on: Option<(Arc<Pd>, Arc<Td>)>,
}

impl Pd {
    pub(super) fn raw(&self) -> *mut ibv_pd {
        self.raw
    }
}
