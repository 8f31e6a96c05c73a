// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `verbenactl explain`: explains a code that a program printed.

use serde_json::{json, Value};
use verbena_recorder::{CodeExplanation, CodeKind, CodeLookup};

/// Formats the code as programs print it, a `vendor_err` in hexadecimal.
fn head(explanation: &CodeExplanation) -> String {
    let clause = explanation
        .clause
        .map_or_else(String::new, |c| format!(" [IBTA {c}]"));
    let (code, name, meaning) = (explanation.code, &explanation.name, &explanation.meaning);
    match explanation.kind {
        CodeKind::VendorErr => format!("{code:#06x} {name}: {meaning}{clause}\n"),
        CodeKind::Status | CodeKind::Event => format!("{code} {name}: {meaning}{clause}\n"),
        CodeKind::Errno => format!("{name} ({code}). {meaning}\n"),
    }
}

fn text(answer: &CodeLookup) -> String {
    let mut out = String::new();
    for explanation in &answer.explanations {
        out += &head(explanation);
        if let Some(place) = &explanation.reported_as {
            out += &format!("Seen as: {place}.\n");
        }
        if !explanation.causes.is_empty() {
            out += "Likely causes, the likeliest first:\n";
        }
        for (n, cause) in (1..).zip(&explanation.causes) {
            out += &format!("  {n}. {cause}\n");
        }
        out += &format!("What to do: {}\n", explanation.remedy);
    }
    for other in &answer.others {
        out += &format!("{other}\n");
    }
    out
}

fn data(explanation: &CodeExplanation) -> Value {
    json!({
        "kind": explanation.kind.name(),
        "code": explanation.code,
        "name": explanation.name,
        "explanation": explanation.meaning,
        "clause": explanation.clause,
        "seen": explanation.reported_as,
        "causes": explanation.causes,
        "what_to_do": explanation.remedy,
    })
}

/// Explains the words: one code, a verb, or a verb and its errno. The word `all` lists every code.
///
/// # Errors
///
/// The words name no known code.
pub fn run(words: &[String], json: bool) -> Result<String, String> {
    if words == ["all"] {
        let all = verbena_recorder::all_codes();
        return Ok(if json {
            let all: Vec<Value> = all.iter().map(data).collect();
            format!("{:#}\n", Value::from(all))
        } else {
            all.iter().map(head).collect()
        });
    }
    let answer = verbena_recorder::explain(words)?;
    if !json {
        return Ok(text(&answer));
    }
    let all: Vec<Value> = answer.explanations.iter().map(data).collect();
    let explanation = match all.as_slice() {
        [one] => one.clone(),
        _ => all.into(),
    };
    Ok(format!("{explanation:#}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(words: &[&str], json: bool) -> Result<String, String> {
        let words: Vec<String> = words.iter().map(|word| String::from(*word)).collect();
        run(&words, json)
    }

    #[test]
    fn an_answer_has_meaning_clause_causes_in_order_and_what_to_do() {
        let text = output(&["12"], false).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("12 IBV_WC_RETRY_EXC_ERR: "), "{text}");
        assert!(lines[0].ends_with("[IBTA 11.6.2, 9.7.6.1.3]"), "{text}");
        assert!(lines[2].starts_with("  1. "), "{text}");
        assert!(text.contains("\nWhat to do: "), "{text}");
        assert!(text.contains("As errno, 12 is ENOMEM"), "{text}");
        let text = output(&["0x2003"], false).unwrap();
        assert!(text.starts_with("0x2003 RkeyBounds: "), "{text}");
        assert!(text.contains("IBV_WC_REM_ACCESS_ERR (10)"), "{text}");
        let text = output(&["ibv_create_qp", "EINVAL"], false).unwrap();
        assert!(text.starts_with("ibv_create_qp: EINVAL (22). "), "{text}");
    }

    /// Returns the arguments of each `verbenactl explain` in a page. The arguments have no quotes.
    fn commands_of(page: &str) -> Vec<Vec<&str>> {
        let lines = page.lines().map(|line| line.trim_start_matches("$ "));
        let commands = lines.filter_map(|line| {
            let line = line.strip_prefix("scripts/in-root ").unwrap_or(line);
            line.strip_prefix("verbenactl explain ")
        });
        commands.map(|words| words.split(' ').collect()).collect()
    }

    #[test]
    fn examples_of_the_pages_are_explained() {
        let quickstart = commands_of(include_str!("../../../Documentation/quickstart.md"));
        assert_eq!(quickstart.len(), 4, "{quickstart:?}");
        for words in quickstart {
            output(&words, false).unwrap();
        }
        let page = include_str!("../../../Documentation/verbenactl.md");
        let (_, page) = page.split_once("## explain CODE").unwrap();
        let (example, page) = page.split_once("The code may be written").unwrap();
        let text = output(&commands_of(example)[0], false).unwrap();
        let lines = example
            .lines()
            .filter(|line| !line.starts_with(['$', '`', '#']));
        for line in lines.filter(|line| !line.contains("...")) {
            assert!(text.contains(line), "{line}");
        }
        let rows = page
            .lines()
            .skip_while(|line| !line.starts_with("| a completion"));
        let rows = rows.take_while(|line| line.starts_with('|'));
        let examples = rows.filter_map(|row| row.split('|').nth(2));
        let examples: Vec<&str> = examples
            .flat_map(|cell| cell.split('`').skip(1).step_by(2))
            .collect();
        assert!(examples.len() > 10, "{examples:?}");
        for example in examples {
            // A text with blanks is quoted, and comes last.
            let (plain, quoted) = example.split_once('\'').unwrap_or((example, ""));
            let mut words: Vec<&str> = plain.split_whitespace().collect();
            words.extend(quoted.strip_suffix('\''));
            output(&words, false).unwrap_or_else(|e| panic!("{example}: {e}"));
        }
    }

    #[test]
    fn json_is_one_object_or_a_list() {
        let value: Value = serde_json::from_str(&output(&["LkeyUnknown"], true).unwrap()).unwrap();
        assert_eq!(value["code"], 0x401);
        assert_eq!(value["kind"], "vendor_err");
        let all: Value = serde_json::from_str(&output(&["all"], true).unwrap()).unwrap();
        let count = all.as_array().unwrap().len();
        assert_eq!(output(&["all"], false).unwrap().lines().count(), count);
        assert!(output(&["ibv_post_send"], true).unwrap().starts_with('['));
    }
}
