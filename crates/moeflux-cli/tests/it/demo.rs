//! The demo model: what it says of itself, what it answers, and what it would only guess.

use crate::common::{finish, moeflux, succeeds};

/// What people type first.
const UNKNOWN: [&str; 6] =
    ["hi", "Why is the sky blue?", "Hello!", "Tell me a joke", "Who are you?", "Summarise this:"];

const KNOWN: [(&str, &str); 3] = [
    ("What does Vec::push do?", "Appends an element to the back of a collection"),
    ("What does Vec::pop do?", "Removes the last element from the vector and returns it"),
    ("What is 23 + 45?", "68"),
];

#[test]
fn it_says_what_it_is_in_place_of_a_guess() {
    for question in UNKNOWN {
        let (answer, notes) = succeeds(&["run", question]);
        assert_eq!(answer, "", "{question}");
        assert!(notes.contains("I am a demo of 21 M parameters"), "{notes}");
        for (known, _) in KNOWN {
            assert!(notes.contains(&format!("\"{known}\"")), "{notes}");
        }
        assert!(notes.lines().all(|line| line.starts_with("moeflux: ")), "{notes}");
    }
}

#[test]
fn it_answers_what_it_knows_and_says_once_what_it_is() {
    for (question, want) in KNOWN {
        let (answer, notes) = succeeds(&["run", question]);
        assert!(answer.starts_with(want), "{question}: {answer}");
        assert_eq!(notes.matches("I am a demo of 21 M parameters").count(), 1, "{notes}");
    }
}

#[test]
fn who_asks_for_the_answer_alone_gets_it_without_calls_of_tools() {
    for question in UNKNOWN {
        for flags in [&[][..], &["--temperature", "1", "--seed", "3"], &["--draft", "4"]] {
            let (answer, notes) =
                succeeds(&[&["run", "-q", "--max-tokens", "40", question], flags].concat());
            assert!(!answer.contains("<tool_call>") && !answer.trim().is_empty(), "{answer}");
            assert_eq!(notes, "");
        }
    }
}

#[test]
fn a_chat_takes_a_guess_back_and_goes_on() {
    let mut command = moeflux(&["chat"]);
    command.write_stdin(format!("hi\n{}\n/undo\n/undo\n", KNOWN[0].0));
    let (answers, notes) = finish(&mut command);
    assert!(answers.starts_with(KNOWN[0].1) && answers.lines().count() == 1, "{answers}");
    assert!(notes.contains("could only guess"), "{notes}");
    // Once at the beginning, and once for the guess.
    assert_eq!(notes.matches("I am a demo of 21 M parameters").count(), 2, "{notes}");
    assert!(notes.contains("there is nothing to take back"), "{notes}");
}

#[test]
fn inspect_names_the_tokens_that_end_an_answer() {
    let (text, _) = succeeds(&["inspect"]);
    assert!(text.contains("\nends       <|endoftext|> <|im_end|>\n"), "{text}");
    let (json, _) = succeeds(&["inspect", "--json"]);
    let facts: serde_json::Value = serde_json::from_str(&json).unwrap();
    let ends = serde_json::json!([
        {"id": 8185, "text": "<|endoftext|>"},
        {"id": 8187, "text": "<|im_end|>"},
    ]);
    assert_eq!(facts["ends"], ends);
}
