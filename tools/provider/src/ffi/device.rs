// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Registration with libibverbs, opening a device, and the table of operations.
#![allow(unsafe_code)]
// The head of `verbs` states the preconditions of all verbs.
#![allow(clippy::missing_safety_doc)]

use super::memory::DoorbellMapping;
use super::object::Zeroed;
use super::pabi::*;
use super::{commands, data, domains, poll_ex, queues, srqs, verbs, windows, xrc};
use crate::errno::Errno;
use crate::release;
use crate::wall_clock::{ClockComparison, WallClock};
use core::ffi::{c_char, c_int, c_void, CStr};
use core::mem::{offset_of, size_of};
use core::ptr::{null, null_mut};
use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use verbena_abi::uverbs::{AllocUcontextReq, AllocUcontextResp, AreaInfo, UVERBS_ABI_VERSION};
use verbena_abi::{regs, Le16, ABI_VERSION, ABI_VERSION_MIN};
use zerocopy::FromZeros;

// The symbols have the version node of the libibverbs that this library is linked against, which
// binds the library to it.
#[link(name = "ibverbs")]
extern "C" {}

extern "C" {
    fn calloc(count: usize, size: usize) -> *mut c_void;
    fn free(memory: *mut c_void);
    fn dladdr(address: *const c_void, info: *mut DlInfo) -> c_int;
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlclose(library: *mut c_void) -> c_int;
}

/// `Dl_info` of dladdr(3).
#[repr(C)]
struct DlInfo {
    file: *const c_char,
    base: *mut c_void,
    symbol: *const c_char,
    address: *mut c_void,
}

/// Returns the file of the libibverbs that this provider is bound to, and for each of
/// [`release::MARKS`] whether that library has the symbol.
fn libibverbs() -> (PathBuf, release::Marks) {
    /// dlopen(3): do not load the library, which is loaded already.
    const RTLD_NOLOAD: c_int = 4;
    const RTLD_LAZY: c_int = 1;
    let mut info = DlInfo {
        file: null(),
        base: null_mut(),
        symbol: null(),
        address: null_mut(),
    };
    let function = verbs_set_ops as *const c_void;
    // SAFETY: dladdr accepts any address, and `info` is a local variable.
    if unsafe { dladdr(function, &mut info) } == 0 || info.file.is_null() {
        return (PathBuf::new(), release::Marks::default());
    }
    // SAFETY: dladdr gives a string that lives as long as the library is loaded.
    let name = unsafe { CStr::from_ptr(info.file) };
    let file = Path::new(OsStr::from_bytes(name.to_bytes()));
    // The name that the dynamic linker uses is usually a symbolic link to the file.
    let file = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    // SAFETY: `name` is a valid string.
    let library = unsafe { dlopen(name.as_ptr(), RTLD_LAZY | RTLD_NOLOAD) };
    if library.is_null() {
        return (file, release::Marks::default());
    }
    let marks = release::MARKS.map(|(_, symbol)| {
        // SAFETY: the handle and the string are valid.
        !unsafe { dlsym(library, symbol.as_ptr()) }.is_null()
    });
    // SAFETY: the handle is closed once; the library stays loaded, because this file needs it.
    unsafe { dlclose(library) };
    (file, marks)
}

/// True if the libibverbs of this process has the layouts of this provider. If it does not have
/// them, the first call writes the reason to standard error.
fn has_known_layouts() -> bool {
    static FITS: OnceLock<bool> = OnceLock::new();
    *FITS.get_or_init(|| {
        let (file, marks) = libibverbs();
        let why = release::refusal(&file, marks);
        if let Some(why) = &why {
            // A process without standard error gets no message.
            let _ = writeln!(std::io::stderr(), "{why}");
        }
        why.is_none()
    })
}

/// Command or response: the core's part, then the driver's part.
#[repr(C)]
pub struct DriverMessage<C, D> {
    pub core: C,
    pub driver: D,
}

impl<C: Zeroed, D: FromZeros> DriverMessage<C, D> {
    /// Returns a message whose core's part is zeroed.
    pub fn new(driver: D) -> Self {
        // The kernel expects the driver's part immediately after the core's part.
        const { assert!(offset_of!(Self, driver) == size_of::<C>()) };
        Self {
            // SAFETY: the trait promises that zeroes are a valid value.
            core: unsafe { core::mem::zeroed() },
            driver,
        }
    }

    /// Returns a message with both parts zeroed.
    pub fn zeroed() -> Self {
        Self::new(D::new_zeroed())
    }
}

/// Converts the return value of an `ibv_cmd_*` function to a result.
pub fn check(returned: c_int) -> Result<(), Errno> {
    match returned {
        0 => Ok(()),
        // Old functions return -1 and set errno.
        -1 => Err(std::io::Error::last_os_error().into()),
        errno => Err(Errno(errno.abs())),
    }
}

/// Open device: libibverbs' part, then the provider's part.
#[repr(C)]
pub struct ProviderContext {
    verbs: verbs_context,
    inner: ContextData,
}

/// The provider's part of a context.
pub struct ContextData {
    fd: c_int,
    /// Doorbell areas that are mapped. Each one is mapped once and stays mapped until the context
    /// is closed.
    areas: Mutex<Vec<Arc<DoorbellMapping>>>,
    wall_clock: Mutex<WallClock>,
}

impl ContextData {
    /// Returns the provider's part of a context of C.
    ///
    /// # Safety
    ///
    /// `context` is an open context of this provider.
    pub unsafe fn of<'a>(context: *mut ibv_context) -> &'a Self {
        let verbs = context
            .cast::<u8>()
            .wrapping_sub(offset_of!(verbs_context, context));
        // SAFETY: the caller meets the conditions; `alloc_context` has initialised it.
        unsafe { &(*verbs.cast::<ProviderContext>()).inner }
    }

    /// Returns the file descriptor for mappings.
    pub fn fd(&self) -> c_int {
        self.fd
    }

    /// Returns the doorbell area that a response describes, and maps the area if it is new.
    pub fn area(&self, info: &AreaInfo) -> Result<Arc<DoorbellMapping>, Errno> {
        let mut areas = self.areas.lock().unwrap_or_else(PoisonError::into_inner);
        let uar = info.uar.get();
        if let Some(area) = areas.iter().find(|area| area.uar == uar) {
            return Ok(area.clone());
        }
        let area = Arc::new(DoorbellMapping::map(self.fd, info)?);
        areas.push(area.clone());
        Ok(area)
    }

    /// Returns the device clock in nanoseconds.
    ///
    /// # Errors
    ///
    /// Returns EIO if the device is dead, and EOPNOTSUPP while an imported context has no doorbell
    /// area yet.
    pub fn clock(&self) -> Result<u64, Errno> {
        let areas = self.areas.lock().unwrap_or_else(PoisonError::into_inner);
        let area = areas.first().ok_or(Errno::OPNOTSUPP)?;
        area.clock().ok_or(Errno::IO)
    }

    /// Returns the time of the system clock (nanoseconds since 1970) when the device clock showed
    /// `timestamp`.
    pub fn wall_clock(&self, timestamp: u64) -> u64 {
        let clock = self.wall_clock.lock();
        let mut clock = clock.unwrap_or_else(PoisonError::into_inner);
        clock.at(timestamp, || ClockComparison::make(|| self.clock().ok()))
    }

    /// Records in all areas that the device is dead. The contents of the mappings are then ignored.
    pub fn mark_dead(&self) {
        let areas = self.areas.lock().unwrap_or_else(PoisonError::into_inner);
        for area in areas.iter() {
            area.mark_dead();
        }
    }
}

unsafe extern "C" fn alloc_context(
    device: *mut ibv_device,
    fd: c_int,
    _private: *mut c_void,
) -> *mut verbs_context {
    // SAFETY: libibverbs hands over a valid device and an open file.
    unsafe { new_context(device, fd, alloc_inner) }
}

unsafe extern "C" fn import_context(device: *mut ibv_device, fd: c_int) -> *mut verbs_context {
    // SAFETY: as above.
    unsafe { new_context(device, fd, import_inner) }
}

/// # Safety
///
/// `device` is a device of this provider, and `fd` an open file of it, which is closed if this
/// function fails.
unsafe fn new_context(
    device: *mut ibv_device,
    fd: c_int,
    begin: unsafe fn(*mut verbs_context, c_int) -> Result<ContextData, Errno>,
) -> *mut verbs_context {
    const UNKNOWN_DRIVER: u32 = 0;
    let offset = offset_of!(ProviderContext, verbs) as *mut verbs_context;
    // SAFETY: libibverbs hands over a valid device, and allocates zeroed memory for a whole
    // `ProviderContext`.
    let context = unsafe {
        _verbs_init_and_alloc_context(
            device,
            fd,
            size_of::<ProviderContext>(),
            offset,
            UNKNOWN_DRIVER,
        )
    }
    .cast::<ProviderContext>();
    if context.is_null() {
        return null_mut();
    }
    let verbs = context.cast::<verbs_context>();
    let begun = if has_known_layouts() {
        // SAFETY: the context was just allocated.
        unsafe { begin(verbs, fd) }
    } else {
        Err(Errno::OPNOTSUPP)
    };
    match begun {
        Ok(inner) => {
            // SAFETY: the context was just allocated.
            let place = unsafe { &raw mut (*context).inner };
            // SAFETY: as above, and the place is not initialised yet.
            unsafe { place.write(inner) };
            // SAFETY: the context is valid, and the table lives for ever.
            unsafe { verbs_set_ops(verbs, &OPS) };
            verbs
        }
        Err(errno) => {
            // SAFETY: libibverbs has initialised the context, and nothing of that is used after
            // this call.
            unsafe { verbs_uninit_context(verbs) };
            // SAFETY: libibverbs has allocated the context with calloc.
            unsafe { free(context.cast()) };
            super::object::set_errno(errno);
            null_mut()
        }
    }
}

/// # Safety
///
/// `verbs` is a context that libibverbs has initialised.
unsafe fn alloc_inner(verbs: *mut verbs_context, fd: c_int) -> Result<ContextData, Errno> {
    let mut request = DriverMessage::<ibv_get_context, _>::new(AllocUcontextReq {
        abi_version: Le16::new(ABI_VERSION),
        abi_version_min: Le16::new(ABI_VERSION_MIN),
        ..AllocUcontextReq::default()
    });
    let mut response = DriverMessage::<ib_uverbs_get_context_resp, AllocUcontextResp>::zeroed();
    // SAFETY: the sizes are those of the structures; the caller vouches for the context.
    check(unsafe {
        commands::get_context(
            verbs,
            &mut request.core,
            size_of_val(&request),
            &mut response.core,
            size_of_val(&response),
        )
    })?;
    let version = response.driver.abi_version.get();
    if !(ABI_VERSION_MIN..=ABI_VERSION).contains(&version) {
        return Err(Errno::OPNOTSUPP);
    }
    let inner = ContextData {
        fd,
        areas: Mutex::default(),
        wall_clock: Mutex::default(),
    };
    inner.area(&response.driver.area)?;
    Ok(inner)
}

/// Returns the provider's part of an imported context. Its doorbell areas become known when objects
/// are created in it.
///
/// # Safety
///
/// The conditions are those of `alloc_inner`.
unsafe fn import_inner(verbs: *mut verbs_context, fd: c_int) -> Result<ContextData, Errno> {
    // SAFETY: the caller meets the conditions of this function.
    let context = unsafe { &raw mut (*verbs).context };
    // SAFETY: as above. The driver adds nothing to the answer.
    check(unsafe { ibv_cmd_query_context(context, null_mut()) })?;
    Ok(ContextData {
        fd,
        areas: Mutex::default(),
        wall_clock: Mutex::default(),
    })
}

unsafe extern "C" fn free_context(context: *mut ibv_context) {
    let verbs = context
        .cast::<u8>()
        .wrapping_sub(offset_of!(verbs_context, context))
        .cast::<ProviderContext>();
    // SAFETY: the context comes from `alloc_context` or `import_context`.
    let inner = unsafe { &raw mut (*verbs).inner };
    // SAFETY: as above, and libibverbs closes the context now.
    unsafe { inner.drop_in_place() };
    // SAFETY: as above.
    unsafe { verbs_uninit_context(verbs.cast()) };
    // SAFETY: libibverbs has allocated the context with calloc.
    unsafe { free(verbs.cast()) };
}

unsafe extern "C" fn alloc_device(_sysfs: *mut verbs_sysfs_dev) -> *mut verbs_device {
    // SAFETY: calloc has no preconditions. libibverbs fills the memory.
    unsafe { calloc(1, size_of::<verbs_device>()) }.cast()
}

unsafe extern "C" fn uninit_device(device: *mut verbs_device) {
    // SAFETY: the object comes from `alloc_device`.
    unsafe { free(device.cast()) };
}

static OPS: verbs_context_ops = {
    // SAFETY: null function pointers are `None`.
    let mut ops: verbs_context_ops = unsafe { core::mem::zeroed() };
    ops.alloc_parent_domain = Some(domains::alloc_parent_domain);
    ops.alloc_mw = Some(windows::alloc_mw);
    ops.bind_mw = Some(windows::bind_mw);
    ops.dealloc_mw = Some(windows::dealloc_mw);
    ops.alloc_pd = Some(domains::alloc_pd);
    ops.alloc_td = Some(domains::alloc_td);
    ops.async_event = Some(verbs::async_event);
    ops.attach_mcast = Some(ibv_cmd_attach_mcast);
    ops.create_ah = Some(verbs::create_ah);
    ops.create_cq = Some(queues::create_cq);
    ops.create_cq_ex = Some(poll_ex::create_cq_ex);
    ops.create_qp = Some(queues::create_qp);
    ops.create_qp_ex = Some(queues::create_qp_ex);
    ops.close_xrcd = Some(xrc::close_xrcd);
    ops.create_srq = Some(srqs::create_srq);
    ops.create_srq_ex = Some(xrc::create_srq_ex);
    ops.open_qp = Some(xrc::open_qp);
    ops.open_xrcd = Some(xrc::open_xrcd);
    ops.import_mr = Some(verbs::import_mr);
    ops.import_pd = Some(domains::import_pd);
    ops.unimport_mr = Some(verbs::unimport_mr);
    ops.unimport_pd = Some(domains::unimport_pd);
    ops.modify_cq = Some(queues::modify_cq);
    ops.resize_cq = Some(queues::resize_cq);
    ops.dealloc_pd = Some(domains::dealloc_pd);
    ops.dealloc_td = Some(domains::dealloc_td);
    ops.dereg_mr = Some(verbs::dereg_mr);
    ops.destroy_ah = Some(verbs::destroy_ah);
    ops.destroy_cq = Some(queues::destroy_cq);
    ops.destroy_qp = Some(queues::destroy_qp);
    ops.destroy_srq = Some(srqs::destroy_srq);
    ops.detach_mcast = Some(ibv_cmd_detach_mcast);
    ops.free_context = Some(free_context);
    ops.get_srq_num = Some(srqs::get_srq_num);
    ops.modify_qp = Some(queues::modify_qp);
    ops.modify_srq = Some(srqs::modify_srq);
    ops.poll_cq = Some(data::poll_cq);
    ops.post_recv = Some(data::post_recv);
    ops.post_send = Some(data::post_send);
    ops.post_srq_recv = Some(data::post_srq_recv);
    ops.query_ece = Some(verbs::query_ece);
    ops.query_device_ex = Some(verbs::query_device_ex);
    ops.query_port = Some(verbs::query_port);
    ops.query_qp = Some(queues::query_qp);
    ops.query_rt_values = Some(verbs::query_rt_values);
    ops.query_srq = Some(srqs::query_srq);
    ops.reg_dmabuf_mr = Some(verbs::reg_dmabuf_mr);
    ops.reg_mr = Some(verbs::reg_mr);
    ops.req_notify_cq = Some(data::req_notify_cq);
    ops.rereg_mr = Some(verbs::rereg_mr);
    ops.set_ece = Some(verbs::set_ece);
    ops
};

/// Constant structure that contains pointers.
#[repr(transparent)]
struct Constant<T>(T);

// SAFETY: the structure is constant, and the memory that it points to is constant too.
unsafe impl<T> Sync for Constant<T> {}

static MATCHES: Constant<[verbs_match_ent; 2]> = Constant([
    verbs_match_ent {
        driver_data: null_mut(),
        u: verbs_match_ent__bindgen_ty_1 { driver_id: 0 },
        vendor: regs::PCI_VENDOR_ID,
        device: regs::PCI_DEVICE_ID,
        kind: VERBS_MATCH_PCI as u8,
    },
    verbs_match_ent {
        driver_data: null_mut(),
        u: verbs_match_ent__bindgen_ty_1 { driver_id: 0 },
        vendor: 0,
        device: 0,
        kind: VERBS_MATCH_SENTINEL as u8,
    },
]);

static DEVICE_OPS: Constant<verbs_device_ops> = Constant(verbs_device_ops {
    name: c"verbena".as_ptr(),
    match_min_abi_version: UVERBS_ABI_VERSION,
    match_max_abi_version: UVERBS_ABI_VERSION,
    match_table: (&raw const MATCHES).cast(),
    static_providers: null::<*const verbs_device_ops>().cast_mut(),
    match_device: None,
    alloc_context: Some(alloc_context),
    import_context: Some(import_context),
    alloc_device: Some(alloc_device),
    uninit_device: Some(uninit_device),
});

extern "C" fn register() {
    // SAFETY: the structure lives for ever.
    unsafe { verbs_register_driver(&DEVICE_OPS.0) };
}

/// Constructor of this library: libibverbs opens the file and expects that it registers by itself.
#[used]
#[link_section = ".init_array"]
static REGISTER: extern "C" fn() = register;
