// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The control socket, for `verbenactl`: one JSON object a line in, one a line out.
//!
//! `{"command": "stats"}`, `"contexts"` or `"status"`; the answer has `"ok": true` and what was asked for, or
//! `"ok": false` and an `"error"`. The user who started the NIC and root may ask, over a few connections at a time; there
//! is nothing here yet that changes anything.

use crate::shared::{Question, Shared};
use crate::sharing;
use serde_json::{json, Map, Value};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{mpsc, Arc};
use std::time::Duration;
use verbena_abi::stats::Counter;
use verbena_abi::syndrome::Syndrome;
use verbena_abi::{regs, ABI_VERSION};
use verbena_device::shared::OwnCounters;
use verbena_device::Cursor;

/// The longest request.
const MAX_LINE: u64 = 4096;
/// So long the engine may take for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The most connections at a time.
const MAX_CONNECTIONS: usize = 16;

/// Serves connections, each on a thread of its own, for ever.
pub fn serve(listener: &UnixListener, shared: &Arc<Shared>) {
    // Each connection holds a copy.
    let seats = Arc::new(());
    for stream in listener.incoming() {
        if let Err(e) = stream.and_then(|stream| admit(stream, &seats, shared)) {
            log::warn!("control: {e}");
        }
    }
}

fn admit(stream: UnixStream, seats: &Arc<()>, shared: &Arc<Shared>) -> io::Result<()> {
    let refusal = if !sharing::is_trusted(&stream) {
        "only root and the user who started the NIC may ask"
    } else if Arc::strong_count(seats) > MAX_CONNECTIONS {
        "too many connections"
    } else {
        let (seat, shared) = (seats.clone(), shared.clone());
        let name = String::from("control");
        std::thread::Builder::new().name(name).spawn(move || {
            if let Err(e) = converse(&stream, &shared) {
                log::debug!("control: {e}");
            }
            drop(seat);
        })?;
        return Ok(());
    };
    writeln!(&stream, "{}", json!({ "ok": false, "error": refusal }))
}

fn converse(stream: &UnixStream, shared: &Shared) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        let length = (&mut reader).take(MAX_LINE).read_until(b'\n', &mut line)?;
        if length == 0 {
            return Ok(());
        }
        let mut reply = answer(&line, shared).to_string();
        reply.push('\n');
        (&mut &*stream).write_all(reply.as_bytes())?;
        if line.last() != Some(&b'\n') {
            return Ok(());
        }
    }
}

fn answer(line: &[u8], shared: &Shared) -> Value {
    let result = match serde_json::from_slice::<Value>(line) {
        Err(e) => Err(format!("not JSON: {e}")),
        Ok(request) => match request["command"].as_str() {
            Some("stats") => stats(shared),
            Some("contexts") => contexts(shared),
            Some("status") => Ok(status(shared)),
            _ => Err(String::from(
                "\"command\" must be \"stats\", \"contexts\" or \"status\"",
            )),
        },
    };
    match result {
        Ok(mut value) => {
            value["ok"] = true.into();
            value
        }
        Err(error) => json!({ "ok": false, "error": error }),
    }
}

fn ask<T>(
    shared: &Shared,
    question: impl FnOnce(mpsc::Sender<T>) -> Question,
) -> Result<T, String> {
    let (to, from) = mpsc::channel();
    if !shared.ask(question(to)) {
        return Err(String::from("too many ask"));
    }
    from.recv_timeout(PATIENCE)
        .map_err(|_| String::from("the engine gives no answer"))
}

/// A counter's name: its description begins with it.
fn name(counter: Counter) -> &'static str {
    let text = counter.explain().trim_start();
    text.split_once(':').map_or(text, |(name, _)| name)
}

fn stats(shared: &Shared) -> Result<Value, String> {
    let values = ask(shared, Question::Stats)?;
    let mut stats = Map::new();
    let told = Counter::ALL.iter().map(|&counter| name(counter));
    let own = OwnCounters::default().each().map(|(name, _)| name);
    for (name, value) in told.chain(own).zip(values) {
        stats.insert(name.into(), value.into());
    }
    let counts = &shared.counts;
    let own: [(&str, &AtomicU64); 6] = [
        ("ethernet_frames", &counts.ethernet_frames),
        ("uplink_dropped", &counts.uplink_dropped),
        ("inbox_dropped", &counts.inbox_dropped),
        ("interrupts_lost", &counts.interrupts_lost),
        ("engine_slices", &counts.slices),
        ("engine_sleeps", &counts.sleeps),
    ];
    for (name, value) in own {
        stats.insert(name.into(), value.load(Ordering::Relaxed).into());
    }
    Ok(json!({ "stats": stats }))
}

/// The engine hands out a portion at a time, as it is then, and works for the guest in between.
fn contexts(shared: &Shared) -> Result<Value, String> {
    let mut list = Vec::new();
    let mut next = Some(Cursor::default());
    while let Some(from) = next {
        let portion = ask(shared, |to| Question::Contexts(from, to))?;
        list.extend(portion.contexts.iter().map(|context| {
            let fields: Map<String, Value> = context
                .fields()
                .into_iter()
                .map(|(k, v)| (k.into(), v.into()))
                .collect();
            json!({ "kind": context.kind(), "number": context.number(), "fields": fields })
        }));
        next = portion.next;
    }
    Ok(json!({ "contexts": list }))
}

fn status(shared: &Shared) -> Value {
    let status = shared.regs.read(regs::STATUS);
    let fatal = shared.regs.read(regs::FATAL_SYNDROME);
    let cause = u16::try_from(fatal).ok().and_then(Syndrome::from_raw);
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "abi_version": ABI_VERSION,
        "ready": status & regs::STATUS_READY != 0,
        "fatal": status & regs::STATUS_FATAL != 0,
        "resetting": status & regs::STATUS_RESETTING != 0,
        "fatal_syndrome": cause.map(Syndrome::name),
        "bus_master": shared.gate_open(),
        "guest_ram": shared.ram().size(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_has_a_plain_name() {
        for &counter in Counter::ALL {
            let name = name(counter);
            let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
            assert!(name.len() > 3 && name.bytes().all(plain), "{name:?}");
        }
    }

    /// The answer to a question over a connection.
    fn reply(mut stream: &UnixStream) -> Value {
        // It may be refused before it is read.
        let _ = writeln!(stream, "{{\"command\":\"status\"}}");
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    #[test]
    fn connections_are_few_at_a_time() {
        let shared = Arc::new(Shared::new().unwrap());
        let seats = Arc::new(());
        let connect = || {
            let (ours, theirs) = UnixStream::pair().unwrap();
            admit(ours, &seats, &shared).unwrap();
            theirs
        };
        let mut all: Vec<_> = (0..MAX_CONNECTIONS).map(|_| connect()).collect();
        for stream in &all {
            assert_eq!(reply(stream)["ok"], true);
        }
        assert_eq!(reply(&connect())["error"], "too many connections");
        all.pop();
        while Arc::strong_count(&seats) > MAX_CONNECTIONS {
            std::thread::yield_now();
        }
        assert_eq!(reply(&connect())["ok"], true);
    }

    #[test]
    fn requests_are_answered_line_by_line() {
        let shared = Arc::new(Shared::new().unwrap());
        let (ours, theirs) = UnixStream::pair().unwrap();
        (&theirs)
            .write_all(b"{\"command\":\"status\"}\nnonsense\n{\"command\":1}\n")
            .unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        converse(&ours, &shared).unwrap();
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
    fn the_engine_is_asked_for_counters() {
        let shared = Arc::new(Shared::new().unwrap());
        let engine = std::thread::spawn({
            let shared = shared.clone();
            move || loop {
                if let Some(Question::Stats(to)) = shared.mail(0, true).question {
                    to.send((0..2 + Counter::ALL.len() as u64).collect())
                        .unwrap();
                    return;
                }
                shared.park(PATIENCE);
            }
        });
        let reply = answer(b"{\"command\":\"stats\"}", &shared);
        assert_eq!(reply["stats"]["rx_packets"], 1);
        assert_eq!(reply["stats"]["posts"], Counter::Posts as u8);
        assert_eq!(reply["stats"]["rx_cnps"], Counter::ALL.len());
        assert_eq!(reply["stats"]["tx_over_mtu"], Counter::ALL.len() + 1);
        engine.join().unwrap();
    }
}
