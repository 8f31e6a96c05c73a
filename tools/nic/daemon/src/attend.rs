// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Serves QEMU at the sockets of all VMs, each on its own thread, until the last QEMU has
//! disconnected.
//!
//! A process with one VM serves one QEMU and no other. If there are several VMs and a QEMU
//! disconnects, the device of its VM returns to the state after power-on, and none of its guest's
//! memory stays mapped. Another QEMU can then connect to that socket, while the other VMs go on. A
//! client that connects to a socket in use waits until it is free.

use crate::front::Front;
use crate::shared::Shared;
use crate::{sharing, vfio_user};
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{mpsc, Arc};
use std::thread;
use std::time::Duration;

/// Pause after an error in accept.
const PAUSE: Duration = Duration::from_secs(1);

/// Reports of a VM's thread.
enum News {
    /// QEMU has connected.
    Came,
    /// QEMU has disconnected, or its messages cannot be understood.
    Gone(io::Result<()>),
}

/// Serves until every QEMU that has connected has disconnected; waits for the first.
///
/// # Errors
///
/// A thread cannot be started, or a message of a QEMU could not be understood.
pub fn serve(vms: Vec<(UnixListener, Arc<Shared>)>) -> io::Result<()> {
    let is_only = vms.len() == 1;
    let (tell, news) = mpsc::channel();
    for (n, (listener, shared)) in (1..).zip(vms) {
        let tell = tell.clone();
        let name = format!("vm{n}");
        thread::Builder::new().name(name).spawn(move || {
            let who = if is_only {
                String::new()
            } else {
                format!("VM {n}: ")
            };
            attend(&who, listener, &shared, &tell, is_only);
        })?;
    }
    let (mut here, mut result) = (0u32, Ok(()));
    for told in news {
        match told {
            News::Came => here += 1,
            News::Gone(how) => {
                here -= 1;
                result = result.and(how);
                if here == 0 {
                    break;
                }
            }
        }
    }
    result
}

/// Serves the QEMUs of one VM, one after the other; if the VM `is_only`, only the first.
fn attend(
    who: &str,
    listener: UnixListener,
    shared: &Arc<Shared>,
    tell: &mpsc::Sender<News>,
    is_only: bool,
) {
    let mut listener = Some(listener);
    while let Some(door) = &listener {
        let stream = match door.accept() {
            Ok((stream, _)) => stream,
            Err(e) => {
                log::error!("{who}{e}");
                thread::sleep(PAUSE);
                continue;
            }
        };
        if is_only {
            // The closed socket refuses a later client at once.
            listener = None;
        }
        let _ = tell.send(News::Came);
        log::info!("{who}QEMU is connected");
        let how = serve_one(stream, shared);
        match &how {
            Ok(()) => log::info!("{who}QEMU has disconnected"),
            Err(e) if is_only => log::debug!("{e}"),
            Err(e) => log::error!("{who}{e}"),
        }
        let _ = tell.send(News::Gone(how));
    }
}

fn serve_one(stream: UnixStream, shared: &Arc<Shared>) -> io::Result<()> {
    let qemu = sharing::peer(&stream);
    let mut front = Front::new(shared.clone(), qemu);
    let how = catch_unwind(AssertUnwindSafe(|| vfio_user::serve(stream, &mut front)));
    front.leave();
    how.unwrap_or_else(|_| Err(io::Error::other("the code that answers QEMU has panicked")))
}
