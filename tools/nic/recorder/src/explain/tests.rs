// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;
use verbena_abi::eqe::EventType;

fn found(words: &[&str]) -> CodeExplanation {
    let words: Vec<String> = words.iter().map(|word| String::from(*word)).collect();
    explain(&words).unwrap().explanations.swap_remove(0)
}

fn refused(words: &[&str]) -> String {
    let words: Vec<String> = words.iter().map(|word| String::from(*word)).collect();
    explain(&words).unwrap_err()
}

#[test]
fn a_status_is_found_by_each_of_its_spellings() {
    for word in [
        "12",
        "0xc",
        "RETRY_EXC_ERR",
        "IBV_WC_RETRY_EXC_ERR",
        "IB_WC_RETRY_EXC_ERR",
        "RetryExcErr",
        "retry_exc_err",
        "transport retry counter exceeded",
    ] {
        let explanation = found(&[word]);
        assert_eq!(
            (explanation.kind, explanation.name.as_str()),
            (CodeKind::Status, "IBV_WC_RETRY_EXC_ERR"),
            "{word}"
        );
        assert_eq!(explanation.clause, Some("11.6.2, 9.7.6.1.3"));
        assert!(explanation.causes[0].contains("gone"));
    }
}

#[test]
fn an_event_is_found_by_each_of_its_spellings() {
    for word in [
        "QP_FATAL",
        "IBV_EVENT_QP_FATAL",
        "IB_EVENT_QP_FATAL",
        "QpFatal",
    ] {
        let explanation = found(&[word]);
        assert_eq!(
            (explanation.kind, explanation.name.as_str()),
            (CodeKind::Event, "IBV_EVENT_QP_FATAL"),
            "{word}"
        );
    }
}

#[test]
fn a_number_of_several_codes_is_explained_as_each() {
    let words = [String::from("1")];
    let answer = explain(&words).unwrap();
    assert_eq!(answer.explanations[0].name, "IBV_WC_LOC_LEN_ERR");
    let others = answer.others.join("\n");
    for other in ["Flushed", "IBV_EVENT_QP_FATAL", "EPERM"] {
        assert!(others.contains(other), "{other}: {others}");
    }
    assert_eq!(found(&["0x1"]).name, "Flushed");
    assert_eq!(found(&["0x2003"]).name, "RkeyBounds");
    assert_eq!(found(&["8195"]).name, "RkeyBounds");
}

#[test]
fn an_errno_is_explained_for_its_verb() {
    for words in [
        ["ibv_create_qp", "EINVAL"],
        ["EINVAL", "ibv_create_qp"],
        ["ibv_create_qp_ex", "22"],
        ["create_qp", "-22"],
        ["rdma_create_qp", "Invalid argument"],
    ] {
        let explanation = found(&words);
        assert_eq!(explanation.name, "ibv_create_qp: EINVAL", "{words:?}");
        assert!(
            explanation.causes[0].contains("max_qp_wr"),
            "{explanation:?}"
        );
    }
    assert!(found(&["ibv_post_send"])
        .name
        .starts_with("ibv_post_send: "));
    // An errno without causes of its own for this verb has the general meaning.
    assert!(found(&["ibv_poll_cq", "EIO"]).causes[0].contains("dead"));
}

#[test]
fn unknown_codes_are_refused_with_similar_names() {
    assert!(refused(&["RETRY_EXEC_ERR"]).contains("did you mean IBV_WC_RETRY_EXC_ERR"));
    assert!(refused(&["nonsense"]).contains("explain all"));
    assert!(refused(&["99999"]).contains("no such code: 99999"));
    assert!(refused(&["EINVAL"]).contains("explain VERB EINVAL"));
    assert!(refused(&["22"]).contains("explain VERB EINVAL"));
    assert!(refused(&["ibv_create_qp", "EWHAT"]).contains("ENOMEM"));
    assert!(refused(&["a", "b"]).contains("neither is a verb"));
    assert!(refused(&["a", "b", "c"]).contains("quote"));
    assert!(refused(&["ibv_poll_cq"]).contains("ibv_poll_cq EINVAL"));
}

#[test]
fn every_code_of_the_contract_is_explained() {
    for (number, known) in statuses::STATUSES.iter().enumerate() {
        assert_eq!(usize::from(known.status.to_raw()), number);
    }
    for (number, known) in events::EVENTS.iter().enumerate() {
        assert_eq!(known.number as usize, number);
    }
    for event in EventType::ALL {
        let name = event.verbs_name();
        let known = events::EVENTS.iter().any(|known| known.name == name);
        assert!(known || *event == EventType::Completion, "{name}");
    }
    for known in &verbs::VERB_ERRNOS {
        assert!(verbs::find_errno(known.errno).is_some(), "{}", known.errno);
        assert_eq!(verbs::find_verb(known.verb), Some(known.verb));
        assert!(!known.causes.is_empty());
    }
    for explanation in all_codes() {
        let name = &explanation.name;
        let no_error = ["IBV_WC_SUCCESS", "IBV_EVENT_PATH_MIG"].contains(&name.as_str());
        let not_here = explanation.remedy.contains("never reports");
        assert!(
            no_error || not_here || !explanation.causes.is_empty(),
            "{name}"
        );
        assert!(
            !explanation.meaning.is_empty() && !explanation.remedy.is_empty(),
            "{name}"
        );
    }
}

#[test]
fn each_name_is_found_again() {
    for explanation in all_codes()
        .iter()
        .filter(|explanation| explanation.kind != CodeKind::Errno)
    {
        let found = found(&[&explanation.name]);
        assert_eq!(&found, explanation, "{}", explanation.name);
    }
    // This name is that of a syndrome and of an event, and the spelling decides.
    assert_eq!(found(&["DeviceFatal"]).kind, CodeKind::VendorErr);
    assert_eq!(found(&["DEVICE_FATAL"]).kind, CodeKind::Event);
}
