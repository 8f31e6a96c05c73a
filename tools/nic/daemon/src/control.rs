// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The control socket for `verbenactl`: the client sends one JSON object a line, and gets one a
//! line (`verbena_protocol`).
//!
//! Each VM has its own control socket, whose answers are about that VM; the uplinks and the switch
//! are common to all VMs. The user who started the NIC and root may connect, over a few connections
//! at a time. A capture occupies its connection. The only requests that change anything are those
//! for impairments of uplinks, fault rules and the recorder.

mod capture;
mod connection_rules;
mod peers;
mod port;
mod recording;

use crate::peer_process;
use crate::vm_state::{EngineRequest, VmState};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{mpsc, Arc};
use std::time::Duration;
use verbena_abi::cmd::QpType;
use verbena_abi::ctx::{MrState, QpState};
use verbena_abi::stats::Counter;
use verbena_abi::syndrome::Syndrome;
use verbena_abi::{regs, ABI_VERSION};
use verbena_device::{Cursor, Snapshot};
use verbena_protocol::{
    self as protocol, ContextFields, ContextsReply, ControlRequest, Impairment, ImpairmentsReply,
    NicStats, ObjectContext, ReplyEnvelope, StatsReply, StatusReply,
};

/// Longest time that the engine may take for an answer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest time that a client may leave an answer unread before its connection ends, because other
/// clients need the place. A client may be idle for any time: QEMU connects for its guest before
/// the guest boots, and programs hold rules by their connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Factor by which a capture and a full recording may wait longer for their reader.
const STREAM_TIMEOUT_FACTOR: u32 = 20;

/// Largest number of connections at a time.
const MAX_CONNECTIONS: usize = 16;

/// Serves connections for ever, each on its own thread.
pub fn serve(listener: &UnixListener, shared: &Arc<VmState>) {
    // Each connection holds a clone, so that the reference count is the number of connections.
    let connections = Arc::new(());
    for stream in listener.incoming() {
        if let Err(e) = stream.and_then(|stream| admit(stream, &connections, shared)) {
            log::warn!("control: {e}");
        }
    }
}

fn admit(stream: UnixStream, connections: &Arc<()>, shared: &Arc<VmState>) -> io::Result<()> {
    let refusal = if !peer_process::is_trusted(&stream) {
        String::from("only root and the user who started the NIC may ask")
    } else if Arc::strong_count(connections) > MAX_CONNECTIONS {
        format!("too many connections: end one of the {MAX_CONNECTIONS} that are open")
    } else {
        let (connections, shared) = (connections.clone(), shared.clone());
        let name = String::from("control");
        std::thread::Builder::new().name(name).spawn(move || {
            if let Err(e) = serve_connection(&stream, &shared, IDLE_TIMEOUT) {
                log::debug!("control: {e}");
            }
            drop(connections);
        })?;
        return Ok(());
    };
    let refused = ReplyEnvelope::<StatusReply>::from(Err(refusal));
    (&stream).write_all(refused.to_line().as_bytes())
}

/// Serves a connection until the client closes it, or leaves an answer unread for `idle`.
fn serve_connection(stream: &UnixStream, shared: &VmState, idle: Duration) -> io::Result<()> {
    stream.set_write_timeout(Some(idle))?;
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    let mut rules = connection_rules::ConnectionRules::new(shared);
    let mut kept_capture = capture::ConnectionCapture::default();
    loop {
        line.clear();
        let length = (&mut reader)
            .take(protocol::MAX_REQUEST_BYTES)
            .read_until(b'\n', &mut line)?;
        if length == 0 {
            return Ok(());
        }
        // A request that was cut off, or is too long, is not handled.
        if line.last() != Some(&b'\n') {
            let cut = format!(
                "the request was cut off or is too long: a request is a line of at most {} bytes",
                protocol::MAX_REQUEST_BYTES
            );
            let refused = ReplyEnvelope::<StatusReply>::from(Err(cut));
            return (&mut &*stream).write_all(refused.to_line().as_bytes());
        }
        let request = ControlRequest::from_line(&line);
        if matches!(
            request,
            Ok(ControlRequest::Capture | ControlRequest::RecordFull)
        ) {
            // A user who reads the output page by page takes longer.
            stream.set_write_timeout(Some(STREAM_TIMEOUT_FACTOR * idle))?;
        }
        let reply = match request {
            Ok(ControlRequest::Capture) => return capture::stream_capture(stream, shared),
            Ok(ControlRequest::RecordFull) => {
                return recording::stream_full_recording(stream, shared)
            }
            Ok(request) => {
                let of_connection = kept_capture.answer(&request, shared);
                let of_connection = of_connection.or_else(|| rules.answer(&request));
                of_connection.unwrap_or_else(|| answer(request, shared))
            }
            Err(error) => ReplyEnvelope::<StatusReply>::from(Err(error)).to_line(),
        };
        (&mut &*stream).write_all(reply.as_bytes())?;
    }
}

/// Returns the answer to a request that does not occupy its connection.
fn answer(request: ControlRequest, shared: &VmState) -> String {
    match request {
        ControlRequest::Stats => ReplyEnvelope::from(stats(shared)).to_line(),
        ControlRequest::Contexts => ReplyEnvelope::from(contexts(shared)).to_line(),
        ControlRequest::Status => ReplyEnvelope::from(Ok(status(shared))).to_line(),
        ControlRequest::Port => ReplyEnvelope::from(port::port(shared)).to_line(),
        ControlRequest::Peers => ReplyEnvelope::from(peers::peers(shared)).to_line(),
        // `ConnectionCapture::answer` and `serve_connection` handle these requests before.
        ControlRequest::Capture | ControlRequest::CaptureBegin | ControlRequest::CaptureEnd => {
            ReplyEnvelope::<StatusReply>::from(Err(String::from("a capture needs a connection")))
                .to_line()
        }
        ControlRequest::RecordFull => ReplyEnvelope::<StatusReply>::from(Err(String::from(
            "a full recording needs a connection",
        )))
        .to_line(),
        ControlRequest::Impairments => {
            ReplyEnvelope::from(Ok(shared.process.impairments.report())).to_line()
        }
        ControlRequest::Impair { uplink, with } => {
            ReplyEnvelope::from(impair(shared, uplink, with)).to_line()
        }
        ControlRequest::Qp { number } => ReplyEnvelope::from(port::qp(shared, number)).to_line(),
        ControlRequest::Recorder => {
            ReplyEnvelope::from(recording::set_recorder(shared, None)).to_line()
        }
        ControlRequest::Record { entries } => {
            ReplyEnvelope::from(recording::set_recorder(shared, Some(entries))).to_line()
        }
        ControlRequest::Recording => {
            ReplyEnvelope::from(recording::read_recording(shared)).to_line()
        }
        // `ConnectionRules::answer` handles these requests before (`connection_rules.rs`).
        ControlRequest::Faults
        | ControlRequest::FaultAdd { .. }
        | ControlRequest::FaultRemove { .. }
        | ControlRequest::FaultClear => {
            ReplyEnvelope::<StatusReply>::from(Err(String::from("rules need a connection")))
                .to_line()
        }
    }
}

fn request<T>(
    shared: &VmState,
    request: impl FnOnce(mpsc::Sender<T>) -> EngineRequest,
) -> Result<T, String> {
    let (to, from) = mpsc::channel();
    if !shared.post_request(request(to)) {
        return Err(String::from("too many requests are waiting: try again"));
    }
    from.recv_timeout(REPLY_TIMEOUT).map_err(|_| {
        let limit = REPLY_TIMEOUT.as_secs();
        format!("the engine has not answered within {limit} s: see the log of the NIC")
    })
}

/// Returns a counter's name, with which its description begins.
fn name(counter: Counter) -> &'static str {
    let text = counter.explain().trim_start();
    text.split_once(':').map_or(text, |(name, _)| name)
}

fn stats(shared: &VmState) -> Result<StatsReply, String> {
    let port = request(shared, EngineRequest::Stats)?;
    let names = Counter::ALL.iter().map(|&counter| name(counter).into());
    let (counts, all) = (&shared.counts, &shared.process.counters);
    let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let stats = NicStats {
        engine: protocol::EngineCounters {
            ethernet_frames: load(&counts.ethernet_frames),
            ethernet_dropped: load(&counts.ethernet_dropped),
            uplink_sent: load(&all.uplink_sent),
            uplink_received: load(&all.uplink_received),
            uplink_dropped: load(&all.uplink_dropped),
            inbox_dropped: load(&counts.inbox_dropped),
            switch_flooded: load(&all.switch_flooded),
            switch_refused: load(&all.switch_refused),
            switch_unlearned: load(&all.switch_unlearned),
            subnet_refused: load(&all.subnet_refused),
            interrupts_lost: load(&counts.interrupts_lost),
            engine_slices: load(&counts.slices),
            engine_sleeps: load(&counts.sleeps),
        },
        port: names.zip(port).collect(),
    };
    Ok(StatsReply { stats })
}

fn impair(
    shared: &VmState,
    uplink: Option<u8>,
    with: Option<Impairment>,
) -> Result<ImpairmentsReply, String> {
    shared.process.impairments.set(uplink, with)?;
    // A frame that was delayed may be due now.
    shared.process.waker.wake();
    let named = uplink.map_or_else(|| String::from("all uplinks"), |n| format!("uplink {n}"));
    match with {
        Some(how) => log::info!("{named}: {how:?}"),
        None => log::info!("{named}: not impaired any more"),
    }
    Ok(shared.process.impairments.report())
}

/// Collects all contexts. The engine returns a portion at a time, with the state at that time, and
/// works for the guest in between.
fn contexts(shared: &VmState) -> Result<ContextsReply, String> {
    let mut list = ContextsReply::default();
    let mut next = Some(Cursor::default());
    while let Some(from) = next {
        let portion = request(shared, |to| EngineRequest::ContextPortion(from, to))?;
        list.contexts.extend(portion.contexts.iter().map(context));
        next = portion.next;
    }
    Ok(list)
}

/// Returns the reply's entry for an object.
fn context(snapshot: &Snapshot) -> ObjectContext {
    let fields = match snapshot {
        Snapshot::Qp(c) => ContextFields::Qp(protocol::Qp {
            state: QpState::from_raw(c.attr.qp_state)
                .map_or("?", QpState::name)
                .into(),
            qp_type: QpType::from_raw(c.qp_type).map_or("?", QpType::name).into(),
            dest_qpn: c.attr.dest_qpn.get(),
            syndrome: c.syndrome.get(),
            pdn: c.pdn.get(),
            send_cqn: c.send_cqn.get(),
            recv_cqn: c.recv_cqn.get(),
            sq_pi: c.sq_pi.get(),
            sq_next: c.sq_next.get(),
            sq_ci: c.sq_ci.get(),
            rq_ci: c.rq_ci.get(),
            next_psn: c.next_psn.get(),
            una_psn: c.una_psn.get(),
            expected_psn: c.expected_psn.get(),
        }),
        Snapshot::Cq(c) => ContextFields::Cq(protocol::Cq {
            state: c.state,
            entries: 1 << c.log_size.min(63),
            producer_index: c.producer_index.get(),
            consumer_index: c.consumer_index.get(),
            syndrome: c.syndrome.get(),
            eqn: c.eqn.get(),
            users: c.users.get(),
        }),
        Snapshot::Srq(c) => ContextFields::Srq(protocol::Srq {
            state: c.state,
            consumer_index: c.consumer_index.get(),
            limit: c.limit.get(),
        }),
        Snapshot::Mr(c) => ContextFields::Mr(protocol::Mr {
            key: c.key.get(),
            state: MrState::from_raw(c.state).map_or("?", MrState::name).into(),
            pdn: c.pdn.get(),
            access: c.access.get(),
            iova: c.iova.get(),
            length: c.length.get(),
        }),
        Snapshot::Eq(c) => ContextFields::Eq(protocol::Eq {
            vector: c.vector.get(),
            producer_index: c.producer_index.get(),
            consumer_index: c.consumer_index.get(),
            waiting: c.waiting.get(),
        }),
    };
    ObjectContext {
        number: snapshot.number(),
        fields,
    }
}

fn status(shared: &VmState) -> StatusReply {
    let status = shared.regs.read(regs::STATUS);
    let fatal = shared.regs.read(regs::FATAL_SYNDROME);
    let cause = u16::try_from(fatal).ok().and_then(Syndrome::from_raw);
    StatusReply {
        version: env!("CARGO_PKG_VERSION").into(),
        abi_version: ABI_VERSION.into(),
        ready: status & regs::STATUS_READY != 0,
        fatal: status & regs::STATUS_FATAL != 0,
        resetting: status & regs::STATUS_RESETTING != 0,
        fatal_syndrome: cause.map(|cause| cause.name().into()),
        bus_master: shared.is_gate_open(),
        guest_ram: shared.ram().size(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{json, Value};

    #[test]
    fn counter_names_are_lower_case_words() {
        for &counter in Counter::ALL {
            let name = name(counter);
            let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
            assert!(name.len() > 3 && name.bytes().all(plain), "{name:?}");
        }
    }

    #[test]
    fn the_driver_has_the_same_counter_names() {
        let source = include_str!("../../../../rust/verbena/verbs/counters.rs");
        let names = source.split("StatDesc::new(c\"").skip(1);
        let names: Vec<&str> = names.filter_map(|rest| rest.split('"').next()).collect();
        let own: Vec<&str> = Counter::ALL.iter().map(|&counter| name(counter)).collect();
        assert_eq!(names, own);
    }

    /// Requests the status over a connection, and returns the reply.
    fn reply(mut stream: &UnixStream) -> Value {
        // The NIC may refuse the connection and close it before it reads the request.
        let _ = writeln!(stream, "{{\"command\":\"status\"}}");
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    #[test]
    fn the_number_of_connections_is_limited() {
        let shared = Arc::new(VmState::new().unwrap());
        let connections = Arc::new(());
        let connect = || {
            let (ours, theirs) = UnixStream::pair().unwrap();
            admit(ours, &connections, &shared).unwrap();
            theirs
        };
        let mut all: Vec<_> = (0..MAX_CONNECTIONS).map(|_| connect()).collect();
        for stream in &all {
            assert_eq!(reply(stream)["ok"], true);
        }
        let error = reply(&connect())["error"].to_string();
        assert!(error.contains("too many connections"), "{error}");
        all.pop();
        while Arc::strong_count(&connections) > MAX_CONNECTIONS {
            std::thread::yield_now();
        }
        assert_eq!(reply(&connect())["ok"], true);
    }

    #[test]
    fn requests_are_answered_line_by_line() {
        let shared = Arc::new(VmState::new().unwrap());
        let (ours, theirs) = UnixStream::pair().unwrap();
        (&theirs)
            .write_all(b"{\"command\":\"status\"}\nnonsense\n{\"command\":1}\n")
            .unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        serve_connection(&ours, &shared, IDLE_TIMEOUT).unwrap();
        drop(ours);
        let replies: Vec<Value> = BufReader::new(theirs)
            .lines()
            .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
            .collect();
        assert_eq!(replies.len(), 3);
        assert_eq!(
            (&replies[0]["ok"], &replies[0]["ready"]),
            (&json!(true), &json!(false))
        );
        assert_eq!(
            (&replies[1]["ok"], &replies[2]["ok"]),
            (&json!(false), &json!(false))
        );
    }

    #[test]
    fn a_client_that_reads_no_reply_is_disconnected_and_an_idle_client_is_not() {
        let shared = Arc::new(VmState::new().unwrap());
        let idle = Duration::from_millis(20);
        // The replies to these requests are longer than the buffer of a socket.
        let many = "{\"command\":\"status\"}\n".repeat(50_000);
        let (ours, theirs) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _ = (&theirs).write_all(many.as_bytes());
            });
            assert!(serve_connection(&ours, &shared, idle).is_err());
            drop(ours);
        });
        // An idle client keeps its connection, before its first request and afterwards.
        let (ours, theirs) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            let served = scope.spawn(|| serve_connection(&ours, &shared, idle));
            std::thread::sleep(5 * idle);
            assert_eq!(reply(&theirs)["ok"], true);
            std::thread::sleep(5 * idle);
            assert_eq!(reply(&theirs)["ok"], true);
            theirs.shutdown(std::net::Shutdown::Both).unwrap();
            served.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_request_that_is_cut_off_or_too_long_is_refused() {
        for half in [&b"{\"command\":\"status\"}"[..], &[b' '; 70000], b"{"] {
            let shared = Arc::new(VmState::new().unwrap());
            let (ours, theirs) = UnixStream::pair().unwrap();
            let client = std::thread::spawn(move || {
                let _ = (&theirs).write_all(half);
                theirs.shutdown(std::net::Shutdown::Write).unwrap();
                let mut line = String::new();
                BufReader::new(&theirs).read_line(&mut line).unwrap();
                line
            });
            serve_connection(&ours, &shared, IDLE_TIMEOUT).unwrap();
            drop(ours);
            let reply = client.join().unwrap();
            assert!(reply.contains("a line of at most 65536 bytes"), "{reply}");
        }
    }

    #[test]
    fn the_reply_to_stats_has_the_counters_of_the_engine() {
        let shared = Arc::new(VmState::new().unwrap());
        let engine = std::thread::spawn({
            let shared = shared.clone();
            move || loop {
                if let Some(EngineRequest::Stats(to)) = shared.take_mail(0, true).request {
                    to.send(std::array::from_fn(|i| i as u64)).unwrap();
                    return;
                }
                std::thread::yield_now();
            }
        });
        let reply = answer(ControlRequest::Stats, &shared);
        let reply: Value = serde_json::from_str(&reply).unwrap();
        assert_eq!(reply["stats"]["rx_packets"], 1);
        assert_eq!(reply["stats"]["posts"], Counter::Posts as u8);
        // The names of the port's counters differ from the NIC's own.
        let of_the_nic = 13;
        assert_eq!(
            reply["stats"].as_object().unwrap().len(),
            Counter::ALL.len() + of_the_nic
        );
        engine.join().unwrap();
    }

    #[test]
    fn the_context_of_an_object_has_its_fields() {
        let mut qp = verbena_abi::ctx::QpContext {
            qpn: 17.into(),
            syndrome: 0x401.into(),
            ..Default::default()
        };
        qp.attr.qp_state = QpState::Rts.to_raw();
        let object = context(&Snapshot::Qp(Box::new(qp)));
        let value = serde_json::to_value(&object).unwrap();
        assert_eq!(
            (&value["kind"], &value["number"]),
            (&json!("qp"), &json!(17))
        );
        assert_eq!(value["fields"]["state"], "Rts");
        assert_eq!(value["fields"]["syndrome"], 0x401);
        assert_eq!(
            serde_json::from_value::<ObjectContext>(value).unwrap(),
            object
        );
    }
}
