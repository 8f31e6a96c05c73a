// SPDX-License-Identifier: GPL-2.0

//! Interrupts: all MSI-X vectors of a device, each with a handler of its own.
//!
//! `kernel::pci` reaches the first and the last vector of a range only.

use crate::{
    base::{
        bind::Binding,
        compat, //
    },
    bindings, //
};
use kernel::{
    bindings as kbindings,
    error::to_result,
    prelude::*,
    str::CString,
    sync::Arc, //
};

/// What an interrupt does.
pub trait Handler: Send + Sync + 'static {
    /// Runs in interrupt context, or in a thread: see [`Vectors::request`] and
    /// [`Vectors::request_threaded`]. Never concurrently with itself for one vector.
    fn handle(&self);
}

struct Inner {
    binding: Binding,
    count: u32,
}

/// The vectors of a device. They are freed when this, its clones and all their [`Irq`]s are gone.
#[derive(Clone)]
pub struct Vectors {
    inner: Arc<Inner>,
}

impl Vectors {
    /// Allocates between `min` and `max` vectors. Once at a time for a device.
    pub fn alloc(binding: &Binding, min: u32, max: u32) -> Result<Self> {
        let n = binding
            .with(|| {
                // SAFETY: The device is bound.
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

    /// Number of vectors.
    pub fn count(&self) -> u32 {
        self.inner.count
    }

    /// Lets `handler` run in interrupt context when vector `index` fires. It runs on a CPU chosen by
    /// the index, so that vectors spread.
    pub fn request<H: Handler>(&self, index: u32, name: &CStr, handler: Arc<H>) -> Result<Irq> {
        Irq::new(&self.inner, index, name, handler, false)
    }

    /// As [`request`](Self::request), but `handler` runs in a thread, where it may sleep.
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
            // SAFETY: The device is bound; each handler holds a reference to this, so none is left.
            unsafe { kbindings::pci_free_irq_vectors(self.binding.raw_pci()) }
        });
        if freed.is_none() {
            pr_err!("interrupt vectors outlived the driver's binding\n");
        }
    }
}

/// A handler at work; dropping it waits until the handler does not run.
///
/// Must not be dropped by the handler itself.
pub struct Irq {
    irq: c_uint,
    index: u32,
    cookie: *mut c_void,
    /// Frees the cookie.
    free: unsafe fn(*mut c_void),
    /// Keeps the vectors until the interrupt is freed.
    _vectors: Arc<Inner>,
}

// SAFETY: An interrupt may be freed from any thread; the handler is `Send + Sync`.
unsafe impl Send for Irq {}
// SAFETY: By shared reference the cookie is not used.
unsafe impl Sync for Irq {}

struct Cookie<H> {
    handler: Arc<H>,
    /// `/proc/interrupts` shows it as long as the interrupt is requested.
    name: CString,
}

impl<H: Handler> Cookie<H> {
    /// # Safety
    ///
    /// Only for the interrupt core, with a cookie of this type.
    unsafe extern "C" fn run(_irq: c_int, cookie: *mut c_void) -> kbindings::irqreturn_t {
        // SAFETY: The cookie lives until the interrupt is freed.
        let cookie = unsafe { &*cookie.cast::<Self>() };
        cookie.handler.handle();
        compat::IRQ_HANDLED
    }

    /// # Safety
    ///
    /// `cookie` must be one of this type from `KBox::into_raw`; nobody uses it afterwards.
    unsafe fn free(cookie: *mut c_void) {
        // SAFETY: See above.
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
            // SAFETY: The device is bound, and has the vector.
            let irq = unsafe { kbindings::pci_irq_vector(vectors.binding.raw_pci(), index) };
            let irq = c_uint::try_from(irq)?;
            let run: unsafe extern "C" fn(c_int, *mut c_void) -> kbindings::irqreturn_t =
                Cookie::<H>::run;
            let (hard, thread, flags) = if threaded {
                // CAST: A flag.
                (None, Some(run), kbindings::IRQF_ONESHOT as c_ulong)
            } else {
                (Some(run), None, 0)
            };
            // SAFETY: The cookie and the name live until the interrupt is freed.
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
            // Only a wish: it does not matter if it is not granted.
            //
            // SAFETY: A requested interrupt.
            let _ = unsafe { bindings::rdma_helper_irq_spread(irq, index) };
        }
        Ok(Self {
            irq,
            index,
            cookie: KBox::into_raw(cookie).cast(),
            free: Cookie::<H>::free,
            _vectors: vectors.clone(),
        })
    }

    /// Index of the vector.
    pub fn index(&self) -> u32 {
        self.index
    }
}

impl Drop for Irq {
    fn drop(&mut self) {
        // SAFETY: Requested with this cookie; afterwards no handler runs any more, so the cookie can
        // go, by the function that goes with it. The vectors, and with them the number, are kept by
        // `_vectors`.
        unsafe {
            bindings::rdma_helper_irq_unspread(self.irq);
            kbindings::free_irq(self.irq, self.cookie);
            (self.free)(self.cookie);
        }
    }
}
