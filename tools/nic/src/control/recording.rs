// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The flight recorder: switched, and asked for what it has.

use super::ask;
use crate::recording::recording;
use crate::shared::{Question, Shared, Switch};
use verbena_control::{ToldRecorder, ToldRecording};
use verbena_record::MAX_ENTRIES;

/// Entries that the engine hands out at once.
const PORTION: usize = 4096;

/// Switches the recorder, or leaves it as it is.
pub(super) fn switch(shared: &Shared, entries: Option<u64>) -> Result<ToldRecorder, String> {
    let switch = match entries {
        None => Switch::Stay,
        Some(0) => Switch::Off,
        Some(n) if n > MAX_ENTRIES as u64 => {
            return Err(format!("{n} entries, {MAX_ENTRIES} are possible"));
        }
        Some(n) => Switch::On(n as usize),
    };
    let recorded = ask(shared, |to| Question::Recorder(switch, to))?;
    let dump = shared.dump.get().map(|path| path.display().to_string());
    let (entries, total) = recorded.map_or((0, 0), |r| (r.capacity as u64, r.total));
    Ok(ToldRecorder {
        entries,
        total,
        dump,
    })
}

/// What was recorded, taken bit by bit: what is overwritten meanwhile is left out.
pub(super) fn taken(shared: &Shared) -> Result<ToldRecording, String> {
    let next = |from| ask(shared, |to| Question::Recorded(from, PORTION, to));
    let mut all = next(0)?.ok_or("nothing is recorded: verbenactl record on")?;
    let end = all.total;
    loop {
        let from = all.first + all.entries.len() as u64;
        if from >= end {
            break;
        }
        let Some(more) = next(from)? else {
            break;
        };
        if more.first != from {
            // The oldest went while they were taken.
            all.entries.clear();
            all.first = more.first;
        }
        if more.entries.is_empty() {
            break;
        }
        all.entries.extend(more.entries);
        all.rules = more.rules;
    }
    let port = ask(shared, Question::Port);
    let mac = port.map_or([0; 6], |port| port.mac);
    let file = recording(&all, shared, mac, "asked for").to_bytes();
    Ok(ToldRecording::new(&file))
}
