//! The last exchange of a conversation that goes on.

use moeflux_text::Message;
use serde_json::Value;

use crate::report;

/// Lines of a question and of an answer that are shown, at most.
const MAX_LINES: [usize; 2] = [6, 20];

/// Shows the last question and its answer.
pub(super) fn show(messages: &[Message], is_quiet: bool) {
    for line in lines(messages) {
        report::aside(is_quiet, &line);
    }
}

fn lines(messages: &[Message]) -> Vec<String> {
    let Some(at) = messages.iter().rposition(|message| message.role == "user") else {
        return Vec::new();
    };
    let question = text(&messages[at]);
    let answers = messages[at + 1..].iter().filter(|message| message.role == "assistant");
    let answer: Vec<String> = answers.map(text).collect();
    let mut lines = head(&question, MAX_LINES[0]);
    if let Some(first) = lines.first_mut() {
        first.insert_str(0, "you> ");
    }
    lines.extend(tail(&answer.join("\n"), MAX_LINES[1]));
    lines
}

/// The text of a message; parts that are no text are left out.
fn text(message: &Message) -> String {
    match &message.content {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
            texts.join("\n")
        }
        _ => String::new(),
    }
}

fn head(text: &str, most: usize) -> Vec<String> {
    let all: Vec<&str> = text.trim_end().lines().collect();
    let mut shown: Vec<String> = all.iter().take(most).map(|line| (*line).to_owned()).collect();
    if all.len() > most {
        shown.push(String::from("…"));
    }
    shown
}

fn tail(text: &str, most: usize) -> Vec<String> {
    let all: Vec<&str> = text.trim_end().lines().collect();
    let n_left_out = all.len().saturating_sub(most);
    let dots = (n_left_out > 0).then(|| String::from("…"));
    dots.into_iter().chain(all[n_left_out..].iter().map(|line| (*line).to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_exchange_shows_the_beginning_of_the_question_and_the_end_of_the_answer() {
        let numbered = |n: usize| -> String { (0..n).map(|i| format!("{i}\n")).collect() };
        let messages = [
            Message::new("user", "first"),
            Message::new("assistant", "other"),
            Message::new("user", numbered(8)),
            Message::new("assistant", numbered(30)),
        ];
        let shown = lines(&messages);
        assert_eq!((&*shown[0], &*shown[5], &*shown[6]), ("you> 0", "5", "…"));
        assert_eq!((&*shown[7], &*shown[8], &*shown[27]), ("…", "10", "29"));
        assert_eq!(shown.len(), 28);
        assert_eq!(lines(&messages[..2]), ["you> first", "other"]);
        assert!(lines(&[Message::new("system", "x")]).is_empty());
    }
}
