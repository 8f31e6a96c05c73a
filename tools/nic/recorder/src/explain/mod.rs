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

use crate::diagnosis::clause;
use verbena_abi::cqe::WcStatus;
use verbena_abi::syndrome::Syndrome;

/// The kind of a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeKind {
    /// A code in `ibv_wc.status`.
    Status,
    /// A code in `ibv_async_event.event_type`.
    Event,
    /// A code in `ibv_wc.vendor_err`, or a syndrome of an event or a command.
    VendorErr,
    /// An errno with which a verb fails.
    Errno,
}

impl CodeKind {
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
pub struct CodeExplanation {
    /// Kind of this code.
    pub kind: CodeKind,
    /// Number of this code.
    pub code: u32,
    /// Name of this code, in the spelling of C if there is one.
    pub name: String,
    /// Meaning of this code.
    pub meaning: String,
    /// Clause of the InfiniBand Architecture Specification, volume 1.
    pub clause: Option<&'static str>,
    /// Place where a program sees the code, if the kind does not make it clear.
    pub reported_as: Option<String>,
    /// Causes of this code, the likeliest first.
    pub causes: Vec<&'static str>,
    /// Action that a program takes.
    pub remedy: &'static str,
}

/// The answer to a question: the most likely meaning, and other meanings of the same number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeLookup {
    /// Most likely meaning: one code, or each errno of a verb.
    pub explanations: Vec<CodeExplanation>,
    /// Other meanings of the same number, each with the words to ask for it.
    pub others: Vec<String>,
}

fn explain_status(status: WcStatus) -> Option<CodeExplanation> {
    let found = statuses::find(status)?;
    Some(CodeExplanation {
        kind: CodeKind::Status,
        code: status.to_raw().into(),
        name: status.verbs_name().into(),
        meaning: found.meaning.into(),
        clause: Some(found.clause),
        reported_as: None,
        causes: found.causes.to_vec(),
        remedy: found.remedy,
    })
}

fn explain_event(event: &events::EventExplanation) -> CodeExplanation {
    CodeExplanation {
        kind: CodeKind::Event,
        code: event.number,
        name: event.name.into(),
        meaning: event.meaning.into(),
        clause: Some(event.clause),
        reported_as: None,
        causes: event.causes.to_vec(),
        remedy: event.remedy,
    }
}

fn explain_syndrome(cause: Syndrome) -> CodeExplanation {
    CodeExplanation {
        kind: CodeKind::VendorErr,
        code: cause.to_raw().into(),
        name: cause.name().into(),
        meaning: cause.explain().trim().into(),
        clause: clause(cause),
        reported_as: Some(syndromes::reported_as(cause)),
        causes: syndromes::causes(cause).to_vec(),
        remedy: syndromes::remedy(cause),
    }
}

fn explain_errno(verb: &str, errno: &verbs::ErrnoExplanation) -> CodeExplanation {
    let known = verbs::VERB_ERRNOS
        .iter()
        .find(|known| known.verb == verb && known.errno == errno.name);
    CodeExplanation {
        kind: CodeKind::Errno,
        code: errno.number,
        name: format!("{verb}: {}", errno.name),
        meaning: format!("{verb} fails: {}.", errno.text),
        clause: None,
        reported_as: None,
        causes: known.map_or_else(|| vec![errno.general], |known| known.causes.to_vec()),
        remedy: "mend the cause and call the verb again: a verb that fails has changed nothing, \
                 but for a list of work requests, of which those before bad_wr are posted.",
    }
}

/// Returns all statuses, events and codes of `vendor_err`, and each errno that a verb is known to
/// have.
pub fn all_codes() -> Vec<CodeExplanation> {
    let syndromes = Syndrome::ALL.iter().map(|cause| explain_syndrome(*cause));
    let statuses = WcStatus::ALL
        .iter()
        .filter_map(|status| explain_status(*status));
    let events = events::EVENTS.iter().map(explain_event);
    let errnos = verbs::VERB_ERRNOS
        .iter()
        .filter_map(|known| Some(explain_errno(known.verb, verbs::find_errno(known.errno)?)));
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
pub fn explain(words: &[String]) -> Result<CodeLookup, String> {
    match words {
        [word] => explain_word(word),
        [one, other] => match (verbs::find_verb(one), verbs::find_verb(other)) {
            (Some(verb), _) => explain_verb_errno(verb, other),
            (None, Some(verb)) => explain_verb_errno(verb, one),
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

fn explain_verb_errno(verb: &'static str, word: &str) -> Result<CodeLookup, String> {
    let Some(errno) = verbs::find_errno(word) else {
        let all = verbs::ERRNOS.iter().map(|errno| errno.name);
        return Err(format!(
            "no verb fails with the errno {word}; the errnos of verbs are {}",
            all.collect::<Vec<_>>().join(", ")
        ));
    };
    Ok(CodeLookup {
        explanations: vec![explain_errno(verb, errno)],
        others: Vec::new(),
    })
}

/// Returns the text that lists the verbs with this errno.
fn verbs_with_errno(errno: &verbs::ErrnoExplanation) -> String {
    let with = verbs::VERB_ERRNOS
        .iter()
        .filter(|known| known.errno == errno.name);
    let with: Vec<_> = with.map(|known| known.verb).collect();
    format!(
        "{} is errno {}, {}; its meaning depends on the verb: verbenactl explain VERB {0}, where \
         VERB is {}",
        errno.name,
        errno.number,
        errno.text,
        with.join(", ")
    )
}

fn explain_word(word: &str) -> Result<CodeLookup, String> {
    if let Some(number) = names::number(word) {
        return explain_number(word, number);
    }
    if let Some(verb) = verbs::find_verb(word) {
        let errnos = verbs::VERB_ERRNOS.iter().filter(|known| known.verb == verb);
        let explanations =
            errnos.filter_map(|known| Some(explain_errno(verb, verbs::find_errno(known.errno)?)));
        let explanations: Vec<_> = explanations.collect();
        if explanations.is_empty() {
            return Err(format!(
                "{verb} has no errno with causes of its own: give the errno of the failure, as in \
                 verbenactl explain {verb} EINVAL"
            ));
        }
        let others = Vec::new();
        return Ok(CodeLookup {
            explanations,
            others,
        });
    }
    let all = all_codes()
        .into_iter()
        .filter(|known| known.kind != CodeKind::Errno);
    let mut all: Vec<CodeExplanation> = all.collect();
    // Statuses and events have underscores in their names, codes of `vendor_err` have none.
    if word.contains('_') {
        all.sort_by_key(|known| known.kind == CodeKind::VendorErr);
    }
    let wanted = names::normalized(word);
    let exact = all.iter().find(|known| known.name == word);
    let alike = || {
        all.iter()
            .find(|known| names::normalized(&known.name) == wanted)
    };
    if let Some(explanation) = exact.or_else(alike) {
        let explanations = vec![explanation.clone()];
        let others = Vec::new();
        return Ok(CodeLookup {
            explanations,
            others,
        });
    }
    let by_text = statuses::STATUSES
        .iter()
        .find(|known| names::normalized(known.text) == wanted);
    if let Some(explanation) = by_text.and_then(|known| explain_status(known.status)) {
        let explanations = vec![explanation];
        let others = Vec::new();
        return Ok(CodeLookup {
            explanations,
            others,
        });
    }
    if let Some(errno) = verbs::find_errno(word) {
        return Err(verbs_with_errno(errno));
    }
    let near = names::similar_names(word, all.iter().map(|known| known.name.as_str()));
    let near = match near.as_slice() {
        [] => String::from("verbenactl explain all lists the codes"),
        near => format!("did you mean {}?", near.join(", ")),
    };
    Err(format!("no such code: {word}; {near}"))
}

/// Explains a number, which may be of several kinds. A decimal number is a status first, since
/// programs print statuses in decimal; a hexadecimal number is a `vendor_err` first.
fn explain_number(word: &str, number: u32) -> Result<CodeLookup, String> {
    let status = u8::try_from(number).ok().and_then(WcStatus::from_raw);
    let status = status.and_then(explain_status);
    let syndrome = u16::try_from(number).ok().and_then(Syndrome::from_raw);
    let syndrome = syndrome.map(explain_syndrome);
    let event = events::EVENTS.iter().find(|event| event.number == number);
    let is_hexadecimal = word.starts_with("0x") || word.starts_with("0X");
    let mut found: Vec<CodeExplanation> = status.into_iter().chain(syndrome).collect();
    if is_hexadecimal {
        found.reverse();
    }
    found.extend(event.map(explain_event));
    let errno = verbs::find_errno(word);
    if found.is_empty() {
        return Err(match errno {
            Some(errno) => verbs_with_errno(errno),
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
    Ok(CodeLookup {
        explanations: found,
        others,
    })
}
