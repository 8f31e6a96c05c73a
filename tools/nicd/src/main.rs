// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `verbena-nic`: opens the sockets, starts the threads and serves QEMU until it goes away. See the library.

use clap::Parser;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use verbena_nic::args::Args;
use verbena_nic::engine::Engine;
use verbena_nic::front::Front;
use verbena_nic::shared::Shared;
use verbena_nic::uplink::Uplink;
use verbena_nic::{control, netdev, sharing, vfio_user};

fn main() -> ExitCode {
    let args = Args::parse();
    env_logger::Builder::new()
        .filter_level(args.log_level)
        .format_target(false)
        .init();
    let result = run(&args);
    for path in sockets(&args) {
        let _ = std::fs::remove_file(path);
    }
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            log::error!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn sockets(args: &Args) -> impl Iterator<Item = &PathBuf> {
    [
        Some(&args.socket),
        args.netdev_socket.as_ref(),
        args.control.as_ref(),
    ]
    .into_iter()
    .flatten()
}

/// Listens at `path`. What a NIC that has ended left behind is replaced; a socket that somebody serves is not.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let explain =
        |e: io::Error| io::Error::other(format!("cannot listen at {}: {e}", path.display()));
    if UnixStream::connect(path).is_ok() {
        return Err(explain(io::ErrorKind::AddrInUse.into()));
    }
    if std::fs::symlink_metadata(path).is_ok_and(|m| {
        use std::os::unix::fs::FileTypeExt;
        m.file_type().is_socket()
    }) {
        std::fs::remove_file(path).map_err(explain)?;
    }
    UnixListener::bind(path).map_err(explain)
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.into()).spawn(body)?;
    Ok(())
}

fn run(args: &Args) -> io::Result<()> {
    let config = args.device_config();
    let shared = Arc::new(Shared::misbehaving(config.misbehave.clone())?);
    let uplink = Uplink::new(shared.clone());
    if let Some(path) = &args.control {
        let (listener, shared) = (listen(path)?, shared.clone());
        spawn("control", move || control::serve(&listener, &shared))?;
    }
    if let Some(path) = &args.netdev_socket {
        let (listener, shared, uplink) = (listen(path)?, shared.clone(), uplink.clone());
        spawn("netdev", move || netdev::serve(&listener, &shared, &uplink))?;
    }
    spawn("engine", {
        let shared = shared.clone();
        move || Engine::new(shared, config, uplink).run()
    })?;
    let listener = listen(&args.socket)?;
    let paths: Vec<_> = sockets(args).map(|p| p.display().to_string()).collect();
    log::info!(
        "verbena-nic {} listens at {}",
        env!("CARGO_PKG_VERSION"),
        paths.join(", ")
    );
    let (stream, _) = listener.accept()?;
    log::info!("QEMU is connected");
    let qemu = sharing::peer(&stream);
    vfio_user::serve(stream, &mut Front::new(shared, qemu))?;
    log::info!("QEMU is gone");
    Ok(())
}
