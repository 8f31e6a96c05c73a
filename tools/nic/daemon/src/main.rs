// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `verbena-nic`: opens the sockets, starts the threads and serves QEMU until the last QEMU process
//! has disconnected. See the library.

use clap::Parser;
use nix::sys::signal::{raise, SigSet, Signal};
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use verbena_nic::args::NicArgs;
use verbena_nic::bound_sockets::BoundSockets;
use verbena_nic::engine::Engine;
use verbena_nic::flight_recording::ExitRecordings;
use verbena_nic::full_recording::{self, FullRecordings};
use verbena_nic::network::Network;
use verbena_nic::process_state::ProcessState;
use verbena_nic::switch::MAX_WIRES;
use verbena_nic::vm_state::VmState;
use verbena_nic::{control, netdev, vm_server};

fn main() -> ExitCode {
    let args = NicArgs::parse();
    env_logger::Builder::new()
        .filter_level(args.log_level)
        .format_target(false)
        .init();
    // The umask gives each socket mode 0600 from the moment when it is created.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let sockets = Arc::new(BoundSockets::default());
    let full_recordings = Arc::new(FullRecordings::default());
    let exit_recordings = Arc::new(ExitRecordings::default());
    let result = handle_signals(&sockets, &full_recordings, &exit_recordings);
    let result = result.and_then(|()| run(&args, &sockets, &full_recordings, &exit_recordings));
    sockets.remove_all();
    exit_recordings.write();
    full_recordings.end();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            log::error!("{e}");
            ExitCode::FAILURE
        }
    }
}

/// Starts a thread that waits for the signals that end the process, removes the sockets and
/// finishes the recordings. The process is then ended by the same signal.
fn handle_signals(
    sockets: &Arc<BoundSockets>,
    full_recordings: &Arc<FullRecordings>,
    exit_recordings: &Arc<ExitRecordings>,
) -> io::Result<()> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        // nohup(1) and shells have a background process ignore signals, which stay ignored.
        if !is_ignored(signal) {
            signals.add(signal);
        }
    }
    // The threads that are spawned later inherit the mask.
    signals.thread_block()?;
    let (sockets, full_recordings, exit_recordings) = (
        sockets.clone(),
        full_recordings.clone(),
        exit_recordings.clone(),
    );
    spawn("signals", move || {
        let Ok(signal) = signals.wait() else {
            return;
        };
        log::info!("{signal}: the NIC ends");
        sockets.remove_all();
        exit_recordings.write();
        full_recordings.end();
        let _ = signals.thread_unblock();
        let _ = raise(signal);
    })
}

/// True if this process was started with `signal` ignored.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal as u32 - 1) & 1 != 0)
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.into()).spawn(body)?;
    Ok(())
}

fn run(
    args: &NicArgs,
    sockets: &BoundSockets,
    full_recordings: &FullRecordings,
    exit_recordings: &ExitRecordings,
) -> io::Result<()> {
    let vms = args.vms().map_err(io::Error::other)?;
    // All sockets are opened before anything is served: if one fails, the NIC does not start.
    let listen = |paths: &[PathBuf]| {
        let all = paths.iter().map(|path| sockets.listen(path));
        all.collect::<io::Result<Vec<_>>>()
    };
    let listeners = listen(&args.socket)?;
    let (for_netdev, for_control) = (listen(&args.netdev_socket)?, listen(&args.control)?);
    let wires = args.uplink.iter().map(|kind| kind.open(sockets));
    let wires = wires.collect::<io::Result<Vec<_>>>()?;
    let wires: Vec<_> = wires.into_iter().flatten().collect();
    if wires.len() > MAX_WIRES.into() {
        return Err(io::Error::other(format!(
            "{} uplinks (--uplink): at most {MAX_WIRES} are possible",
            wires.len()
        )));
    }
    let macs: Vec<_> = vms.iter().map(|(config, _)| config.mac).collect();
    let subnet = args.subnet(&macs, wires.len()).map_err(io::Error::other)?;
    let process = Arc::new(ProcessState::new()?);
    let vms = (0..).zip(vms).map(|(n, (mut config, policy))| {
        config.guid = subnet.as_ref().and_then(|subnet| subnet.node_guid(n));
        let shared = VmState::with_process(&process, config.misbehave.clone());
        let shared = Arc::new(shared);
        let station = (shared.clone(), config.mac, policy);
        ((shared, config), station)
    });
    let (vms, stations): (Vec<_>, Vec<_>) = vms.unzip();
    for ((shared, _), path) in vms.iter().zip(&args.record_dump) {
        let _ = shared.dump.set(path.clone());
    }
    for ((shared, config), path) in vms.iter().zip(&args.record_end) {
        exit_recordings.add(shared, config.mac, path);
    }
    for ((shared, _), path) in vms.iter().zip(&args.record_full) {
        full_recordings.add(full_recording::into_file(path, shared)?);
    }
    let network = Network::with_policies(&process, stations, wires).with_subnet(subnet);
    let network = Arc::new(network);
    for (listener, (shared, _)) in for_control.into_iter().zip(&vms) {
        let shared = shared.clone();
        spawn("control", move || control::serve(&listener, &shared))?;
    }
    for (vm, listener) in (0..).zip(for_netdev) {
        let to_guest = network.clone();
        spawn("outlet", move || {
            if let Some(queue) = to_guest.netdev_queue(vm) {
                queue.drain();
            }
        })?;
        let network = network.clone();
        spawn("netdev", move || netdev::serve(&listener, &network, vm))?;
    }
    let all = vms.iter().map(|(shared, _)| shared.clone());
    let served = listeners.into_iter().zip(all).collect();
    spawn("engine", move || Engine::new(vms, network).run())?;
    let paths = [&args.socket, &args.netdev_socket, &args.control];
    let paths = paths.into_iter().flatten();
    let paths: Vec<_> = paths.map(|p| p.display().to_string()).collect();
    log::info!(
        "QEMU can neither migrate nor save this device; Documentation/snapshots.md names a second device with which QEMU refuses to"
    );
    log::info!(
        "verbena-nic {} listens at {}",
        env!("CARGO_PKG_VERSION"),
        paths.join(", ")
    );
    vm_server::serve(served)
}
