// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Explains the codes that programs print: completion statuses, asynchronous events, `vendor_err`,
//! and errnos of verbs. Each comes with its meaning, the clause of the specification, the likely
//! causes in order, and the remedy.
//!
//! | file | contents |
//! | --- | --- |
//! | `statuses.rs`, `events.rs`, `syndromes.rs`, `verbs.rs` | the tables |
//! | `remedy.rs` | the remedies for a program |
//! | `names.rs` | the ways in which people write codes |

mod events;
mod names;
mod remedy;
mod statuses;
mod syndromes;
#[cfg(test)]
mod tests;
mod verbs;

use crate::why::clause;
use verbena_abi::cqe::WcStatus;
use verbena_abi::syndrome::Syndrome;

/// The kind of a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A code in `ibv_wc.status`.
    Status,
    /// A code in `ibv_async_event.event_type`.
    Event,
    /// A code in `ibv_wc.vendor_err`, or a syndrome of an event or a command.
    VendorErr,
    /// An errno with which a verb fails.
    Errno,
}

impl Kind {
    /// Returns the name of the kind.
    pub fn name(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Event => "event",
            Self::VendorErr => "vendor_err",
            Self::Errno => "errno",
        }
    }
}

/// The explanation of a code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained {
    /// Kind of this code.
    pub kind: Kind,
    /// Number of this code.
    pub code: u32,
    /// Name of this code, in the spelling of C if there is one.
    pub name: String,
    /// Meaning of this code.
    pub meaning: String,
    /// Clause of the InfiniBand Architecture Specification, volume 1.
    pub clause: Option<&'static str>,
    /// Place where a program sees the code, if the kind does not make it clear.
    pub seen: Option<String>,
    /// Causes of this code, the likeliest first.
    pub causes: Vec<&'static str>,
    /// Action that a program takes.
    pub remedy: &'static str,
}

/// The answer to a question: the most likely meaning, and other meanings of the same number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Most likely meaning: one code, or each errno of a verb.
    pub told: Vec<Explained>,
    /// Other meanings of the same number, each with the words to ask for it.
    pub others: Vec<String>,
}

fn of_status(status: WcStatus) -> Option<Explained> {
    let known = statuses::of(status)?;
    Some(Explained {
        kind: Kind::Status,
        code: status.to_raw().into(),
        name: status.verbs_name().into(),
        meaning: known.meaning.into(),
        clause: Some(known.clause),
        seen: None,
        causes: known.causes.to_vec(),
        remedy: known.remedy,
    })
}

fn of_event(known: &events::Known) -> Explained {
    Explained {
        kind: Kind::Event,
        code: known.number,
        name: known.name.into(),
        meaning: known.meaning.into(),
        clause: Some(known.clause),
        seen: None,
        causes: known.causes.to_vec(),
        remedy: known.remedy,
    }
}

fn of_syndrome(cause: Syndrome) -> Explained {
    Explained {
        kind: Kind::VendorErr,
        code: cause.to_raw().into(),
        name: cause.name().into(),
        meaning: cause.explain().trim().into(),
        clause: clause(cause),
        seen: Some(syndromes::seen(cause)),
        causes: syndromes::causes(cause).to_vec(),
        remedy: syndromes::remedy(cause),
    }
}

fn of_errno(verb: &str, errno: &verbs::Errno) -> Explained {
    let case = verbs::CASES
        .iter()
        .find(|case| case.verb == verb && case.errno == errno.name);
    Explained {
        kind: Kind::Errno,
        code: errno.number,
        name: format!("{verb}: {}", errno.name),
        meaning: format!("{verb} fails: {}.", errno.text),
        clause: None,
        seen: None,
        causes: case.map_or_else(|| vec![errno.general], |case| case.causes.to_vec()),
        remedy: "mend the cause and call the verb again: a verb that fails has changed nothing, \
                 but for a list of work requests, of which those before bad_wr are posted.",
    }
}

/// Returns all statuses, events and codes of `vendor_err`, and each errno that a verb is known to
/// have.
pub fn all() -> Vec<Explained> {
    let syndromes = Syndrome::ALL.iter().map(|cause| of_syndrome(*cause));
    let statuses = WcStatus::ALL.iter().filter_map(|status| of_status(*status));
    let events = events::ALL.iter().map(of_event);
    let errnos = verbs::CASES
        .iter()
        .filter_map(|case| Some(of_errno(case.verb, verbs::find(case.errno)?)));
    syndromes
        .chain(statuses)
        .chain(events)
        .chain(errnos)
        .collect()
}

/// Explains a number, a name in any spelling, a verb, or a verb and an errno in either order.
///
/// # Errors
///
/// The words name no known code; the error lists similar names.
pub fn explain(words: &[String]) -> Result<Answer, String> {
    match words {
        [word] => one(word),
        [one, other] => match (verbs::verb(one), verbs::verb(other)) {
            (Some(verb), _) => errno(verb, other),
            (None, Some(verb)) => errno(verb, one),
            (None, None) => Err(format!(
                "{one} {other}: neither is a verb. Give one code, or a verb and its errno: \
                 verbenactl explain ibv_create_qp EINVAL"
            )),
        },
        _ => Err(String::from(
            "give one code, or a verb and its errno; quote a text that has blanks",
        )),
    }
}

fn errno(verb: &'static str, word: &str) -> Result<Answer, String> {
    let Some(errno) = verbs::find(word) else {
        let all = verbs::ERRNOS.iter().map(|errno| errno.name);
        return Err(format!(
            "no verb fails with the errno {word}; the errnos of verbs are {}",
            all.collect::<Vec<_>>().join(", ")
        ));
    };
    Ok(Answer {
        told: vec![of_errno(verb, errno)],
        others: Vec::new(),
    })
}

/// Returns the text that lists the verbs with this errno.
fn verbs_with(errno: &verbs::Errno) -> String {
    let with = verbs::CASES.iter().filter(|case| case.errno == errno.name);
    let with: Vec<_> = with.map(|case| case.verb).collect();
    format!(
        "{} is errno {}, {}; its meaning depends on the verb: verbenactl explain VERB {0}, where \
         VERB is {}",
        errno.name,
        errno.number,
        errno.text,
        with.join(", ")
    )
}

fn one(word: &str) -> Result<Answer, String> {
    if let Some(number) = names::number(word) {
        return by_number(word, number);
    }
    if let Some(verb) = verbs::verb(word) {
        let cases = verbs::CASES.iter().filter(|case| case.verb == verb);
        let told = cases.filter_map(|case| Some(of_errno(verb, verbs::find(case.errno)?)));
        let told: Vec<_> = told.collect();
        if told.is_empty() {
            return Err(format!(
                "{verb} has no errno with causes of its own: give the errno of the failure, as in \
                 verbenactl explain {verb} EINVAL"
            ));
        }
        let others = Vec::new();
        return Ok(Answer { told, others });
    }
    let all = all().into_iter().filter(|known| known.kind != Kind::Errno);
    let mut all: Vec<Explained> = all.collect();
    // Statuses and events have underscores in their names, codes of `vendor_err` have none.
    if word.contains('_') {
        all.sort_by_key(|known| known.kind == Kind::VendorErr);
    }
    let wanted = names::plain(word);
    let exact = all.iter().find(|known| known.name == word);
    let alike = || all.iter().find(|known| names::plain(&known.name) == wanted);
    if let Some(told) = exact.or_else(alike) {
        let told = vec![told.clone()];
        let others = Vec::new();
        return Ok(Answer { told, others });
    }
    let by_text = statuses::ALL
        .iter()
        .find(|known| names::plain(known.text) == wanted);
    if let Some(told) = by_text.and_then(|known| of_status(known.status)) {
        let told = vec![told];
        let others = Vec::new();
        return Ok(Answer { told, others });
    }
    if let Some(errno) = verbs::find(word) {
        return Err(verbs_with(errno));
    }
    let near = names::near(word, all.iter().map(|known| known.name.as_str()));
    let near = match near.as_slice() {
        [] => String::from("verbenactl explain all lists the codes"),
        near => format!("did you mean {}?", near.join(", ")),
    };
    Err(format!("no such code: {word}; {near}"))
}

/// Explains a number, which may be of several kinds. A decimal number is a status first, since
/// programs print statuses in decimal; a hexadecimal number is a `vendor_err` first.
fn by_number(word: &str, number: u32) -> Result<Answer, String> {
    let status = u8::try_from(number).ok().and_then(WcStatus::from_raw);
    let status = status.and_then(of_status);
    let syndrome = u16::try_from(number).ok().and_then(Syndrome::from_raw);
    let syndrome = syndrome.map(of_syndrome);
    let event = events::ALL.iter().find(|event| event.number == number);
    let is_hexadecimal = word.starts_with("0x") || word.starts_with("0X");
    let mut found: Vec<Explained> = status.into_iter().chain(syndrome).collect();
    if is_hexadecimal {
        found.reverse();
    }
    found.extend(event.map(of_event));
    let errno = verbs::find(word);
    if found.is_empty() {
        return Err(match errno {
            Some(errno) => verbs_with(errno),
            None => {
                format!("no such code: {word} (verbenactl explain all lists the codes)")
            }
        });
    }
    let rest = found.split_off(1);
    let mut others: Vec<String> = rest
        .iter()
        .map(|other| {
            let (kind, name) = (other.kind.name(), &other.name);
            format!("As {kind}, {word} is {name}: verbenactl explain {name}")
        })
        .collect();
    others.extend(errno.map(|errno| {
        let name = errno.name;
        format!("As errno, {word} is {name}: verbenactl explain VERB {name}")
    }));
    Ok(Answer {
        told: found,
        others,
    })
}
