// SPDX-License-Identifier: GPL-2.0

//! Interrupts: all MSI-X vectors of a device, each with its own handler.
//!
//! C headers: [`include/linux/interrupt.h`](srctree/include/linux/interrupt.h),
//! [`include/linux/pci.h`](srctree/include/linux/pci.h)
//!
//! `kernel::pci` gives access only to the first and the last vector of a range.

use crate::{
    bind::Binding,
    bindings,
    compat, //
};
use kernel::{
    bindings as kbindings,
    error::to_result,
    prelude::*,
    str::CString,
    sync::Arc, //
};

/// A handler of an interrupt.
pub trait Handler: Send + Sync + 'static {
    /// Handles the interrupt, in interrupt context or in a thread: see [`Vectors::request`] and
    /// [`Vectors::request_threaded`]. The handler of one vector never runs concurrently with
    /// itself.
    fn handle(&self);
}

struct Inner {
    binding: Binding,
    count: u32,
}

/// The vectors of a device. They are freed after this, its clones and all their [`Irq`]s are
/// dropped.
///
/// # Examples
///
/// ```
/// use base::{
///     bind::Binding,
///     irq::{
///         Handler,
///         Irq,
///         Vectors, //
///     }, //
/// };
/// use kernel::sync::Arc;
///
/// struct Events;
///
/// impl Handler for Events {
///     fn handle(&self) {
///         pr_info!("the device raised an interrupt\n");
///     }
/// }
///
/// /// Handles the first vector until the result is dropped.
/// fn listen(binding: &Binding) -> Result<Irq> {
///     let vectors = Vectors::alloc(binding, 1, 1)?;
///     vectors.request(0, c"events", Arc::new(Events, GFP_KERNEL)?)
/// }
/// ```
#[derive(Clone)]
pub struct Vectors {
    inner: Arc<Inner>,
}

impl Vectors {
    /// Allocates between `min` and `max` vectors. A device can have only one allocation at a time.
    pub fn alloc(binding: &Binding, min: u32, max: u32) -> Result<Self> {
        let n = binding
            .with(|| {
                // SAFETY: `with` keeps the device bound during the call.
                unsafe {
                    kbindings::pci_alloc_irq_vectors(
                        binding.raw_pci(),
                        min,
                        max,
                        kbindings::PCI_IRQ_MSIX,
                    )
                }
            })
            .ok_or(ENODEV)?;
        to_result(n.min(0))?;
        let inner = Inner {
            binding: binding.clone(),
            count: n.try_into()?,
        };
        Ok(Self {
            inner: Arc::new(inner, GFP_KERNEL)?,
        })
    }

    /// Returns the number of vectors.
    pub fn count(&self) -> u32 {
        self.inner.count
    }

    /// Runs `handler` in interrupt context when vector `index` fires. The CPU is chosen by the
    /// index, so that the vectors spread over the CPUs.
    pub fn request<H: Handler>(&self, index: u32, name: &CStr, handler: Arc<H>) -> Result<Irq> {
        Irq::new(&self.inner, index, name, handler, false)
    }

    /// Does the same as [`request`](Self::request), but runs `handler` in a thread, where it may
    /// sleep.
    pub fn request_threaded<H: Handler>(
        &self,
        index: u32,
        name: &CStr,
        handler: Arc<H>,
    ) -> Result<Irq> {
        Irq::new(&self.inner, index, name, handler, true)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let freed = self.binding.with(|| {
            // SAFETY: `with` keeps the device bound. Each `Irq` holds a reference to this, so no
            // vector is requested.
            unsafe { kbindings::pci_free_irq_vectors(self.binding.raw_pci()) }
        });
        if freed.is_none() {
            pr_err!("interrupt vectors were in use when the driver was unbound: never freed\n");
        }
    }
}

/// A requested interrupt with its handler. Its drop waits until the handler does not run.
///
/// Must not be dropped by the handler itself.
///
/// # Invariants
///
/// `irq` is requested with `cookie`, which comes from `KBox::into_raw` of the `Cookie` type that
/// `free` frees. `_vectors` keeps the vector to which `irq` belongs.
pub struct Irq {
    irq: c_uint,
    index: u32,
    cookie: *mut c_void,
    /// Function that frees the cookie.
    free: unsafe fn(*mut c_void),
    /// Keeps the vectors until the interrupt is freed.
    _vectors: Arc<Inner>,
}

// SAFETY: An interrupt may be freed from any thread, and the handler is `Send + Sync`.
unsafe impl Send for Irq {}
// SAFETY: Code with a shared reference does not use the cookie.
unsafe impl Sync for Irq {}

struct Cookie<H> {
    handler: Arc<H>,
    /// Name that `/proc/interrupts` shows until the interrupt is freed.
    name: CString,
}

impl<H: Handler> Cookie<H> {
    /// # Safety
    ///
    /// Only the interrupt core may call this, with a live cookie of this type.
    unsafe extern "C" fn run(_irq: c_int, cookie: *mut c_void) -> kbindings::irqreturn_t {
        // SAFETY: By the contract of this function `cookie` is of this type, and it lives until the
        // interrupt is freed, which waits for this handler.
        let cookie = unsafe { &*cookie.cast::<Self>() };
        cookie.handler.handle();
        compat::IRQ_HANDLED
    }

    /// # Safety
    ///
    /// `cookie` must come from `KBox::into_raw` of this type, and the caller must not use it
    /// afterwards.
    unsafe fn free(cookie: *mut c_void) {
        // SAFETY: The caller promises that `cookie` comes from `KBox::into_raw` and is not used
        // afterwards.
        drop(unsafe { KBox::from_raw(cookie.cast::<Self>()) });
    }
}

impl Irq {
    fn new<H: Handler>(
        vectors: &Arc<Inner>,
        index: u32,
        name: &CStr,
        handler: Arc<H>,
        threaded: bool,
    ) -> Result<Self> {
        if index >= vectors.count {
            return Err(EINVAL);
        }
        let cookie = KBox::new(
            Cookie {
                handler,
                name: CString::try_from(name)?,
            },
            GFP_KERNEL,
        )?;
        let raw: *const Cookie<H> = &*cookie;
        let request = || {
            // SAFETY: `with` keeps the device bound, and `index` is below the number of its
            // vectors.
            let irq = unsafe { kbindings::pci_irq_vector(vectors.binding.raw_pci(), index) };
            let irq = c_uint::try_from(irq)?;
            let run: unsafe extern "C" fn(c_int, *mut c_void) -> kbindings::irqreturn_t =
                Cookie::<H>::run;
            let (hard, thread, flags) = if threaded {
                // CAST: The value is a flag.
                (None, Some(run), kbindings::IRQF_ONESHOT as c_ulong)
            } else {
                (Some(run), None, 0)
            };
            // SAFETY: The cookie, which contains the name, lives until the interrupt is freed, and
            // is of the type that `run` expects.
            to_result(unsafe {
                kbindings::request_threaded_irq(
                    irq,
                    hard,
                    thread,
                    flags,
                    cookie.name.as_char_ptr(),
                    raw.cast_mut().cast(),
                )
            })?;
            Ok::<_, Error>(irq)
        };
        let irq = vectors.binding.with(request).ok_or(ENODEV)??;
        if !threaded {
            // The affinity is only an optimization, so an error is ignored.
            //
            // SAFETY: The interrupt was requested above.
            let _ = unsafe { bindings::base_helper_irq_spread(irq, index) };
        }
        // INVARIANT: The interrupt was requested with this cookie, and `free` is the function of
        // its type.
        Ok(Self {
            irq,
            index,
            cookie: KBox::into_raw(cookie).cast(),
            free: Cookie::<H>::free,
            _vectors: vectors.clone(),
        })
    }

    /// Returns the index of the vector.
    pub fn index(&self) -> u32 {
        self.index
    }
}

impl Drop for Irq {
    fn drop(&mut self) {
        // SAFETY: By the type invariant `irq` is requested, and `_vectors` keeps it valid.
        unsafe { bindings::base_helper_irq_unspread(self.irq) };
        // SAFETY: By the type invariant `irq` is requested with `cookie`, and `_vectors` keeps it
        // valid.
        unsafe { kbindings::free_irq(self.irq, self.cookie) };
        // SAFETY: After `free_irq()` no handler runs, so the cookie is unused. By the type
        // invariant it comes from `KBox::into_raw`, and `free` is the function of its type.
        unsafe { (self.free)(self.cookie) };
    }
}
