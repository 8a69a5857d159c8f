//! Small helpers for messages: flags, near names, and texts that stay short.

use std::fmt;

use console::measure_text_width;
use moeflux_core::{OptionId, visible};

/// Writes the flag of an option, or the name of one that has none.
pub(crate) fn flag(option: OptionId, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let name = match option {
        OptionId::ApiKeys => "api_key_file",
        OptionId::CheckpointBytes => "checkpoint_memory",
        OptionId::CorsOrigins => "cors_origin",
        OptionId::Format => "schema",
        OptionId::KeysFile => "keys",
        OptionId::Expected
        | OptionId::Messages
        | OptionId::Thinking
        | OptionId::ToolChoice
        | OptionId::Tools => return f.write_str(option.name()),
        option => option.name(),
    };
    write!(f, "--{}", name.replace('_', "-"))
}

/// The name that is nearest to what was written, if one is near enough.
pub fn did_you_mean<'a>(written: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let written = written.to_lowercase();
    if written.is_empty() {
        return None;
    }
    let score = |name: &str| match name.to_lowercase() {
        name if name == written => 1.0,
        // The beginning of a name is often all that is written of it: likelier than another that is alike.
        name if name.starts_with(&written) => 0.999,
        name => strsim::jaro_winkler(&written, &name),
    };
    let scored = names.map(|name| (score(name), name));
    let near = scored.filter(|(score, _)| *score >= NEAR);
    near.max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, name)| name)
}

/// The least similarity (Jaro-Winkler, 0 to 1) of names that are taken for each other.
const NEAR: f64 = 0.8;

/// `text` in at most `most` characters: without its middle where it is longer.
pub(crate) fn shorten(text: &str, most: usize) -> String {
    let n = text.chars().count();
    if n <= most {
        return text.to_owned();
    }
    let n_head = (most - 1) / 2;
    let head: String = text.chars().take(n_head).collect();
    let tail: String = text.chars().skip(n - (most - 1 - n_head)).collect();
    format!("{head}…{tail}")
}

/// The longest message, in characters; with the program's name at most 300.
const MAX_MESSAGE: usize = 290;

/// The longest word of a message that is too long: the middle of longer ones, mostly paths, goes
/// first.
const MAX_WORD: usize = 90;

/// A message of one line and limited length. Long words lose their middle, then the
/// message does: its beginning names what is wrong, its end what to do.
pub(crate) fn one_line(message: &str) -> String {
    let line: String = message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let line = visible(&line).into_owned();
    if line.chars().count() <= MAX_MESSAGE {
        return line;
    }
    let words: Vec<String> = line.split(' ').map(|word| shorten(word, MAX_WORD)).collect();
    shorten(&words.join(" "), MAX_MESSAGE)
}

/// `text` in lines of at most `width` columns, broken between words; 0 is no limit.
pub(crate) fn wrapped(text: &str, width: usize) -> String {
    let mut out = String::with_capacity(text.len());
    let mut column = 0;
    for (i, word) in text.split(' ').enumerate() {
        let n = measure_text_width(word);
        if i > 0 && width > 0 && column + 1 + n > width {
            out.push('\n');
            column = 0;
        } else if i > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += n;
    }
    out
}

#[cfg(test)]
mod tests {
    use moeflux_core::call_options;

    use super::*;
    use crate::help;

    #[test]
    fn options_that_have_a_flag_are_called_by_it() {
        call_options(flag);
        let command = help::command();
        let flags = command.get_subcommands().flat_map(clap::Command::get_arguments);
        let flags: Vec<&str> = flags.filter_map(clap::Arg::get_long).collect();
        for option in OptionId::ALL {
            let called = option.to_string();
            match called.strip_prefix("--") {
                Some(name) => assert!(flags.contains(&name), "{called}"),
                None => {
                    let name = option.name().replace('_', "-");
                    assert!(!flags.contains(&name.as_str()), "{option:?} has the flag --{name}");
                }
            }
        }
    }

    #[test]
    fn near_names_are_found_and_far_ones_are_not() {
        let names = || ["scalar", "avx2", "avx512", "qwen3.5-397b-a17b"].into_iter();
        for (written, want) in [
            ("avx-512", Some("avx512")),
            ("AVX2", Some("avx2")),
            ("scaler", Some("scalar")),
            ("qwen3.5", Some("qwen3.5-397b-a17b")),
            ("huge", None),
            ("", None),
        ] {
            assert_eq!(did_you_mean(written, names()), want, "{written:?}");
        }
    }

    #[test]
    fn lines_break_between_words() {
        let text = "the demo model, context of 4096 tokens";
        assert_eq!(wrapped(text, 15), "the demo model,\ncontext of 4096\ntokens");
        assert_eq!(wrapped(text, 0), text);
        assert_eq!(wrapped("abcdefgh ij", 4), "abcdefgh\nij");
    }

    #[test]
    fn long_messages_keep_their_beginning_and_their_end() {
        let path = "x".repeat(5000);
        let line = one_line(&format!("cannot read /{path}:\nname another file"));
        assert!(line.chars().count() <= MAX_MESSAGE && line.starts_with("cannot read /x"));
        assert!(line.ends_with("name another file") && line.contains('…'), "{line}");
        let line = one_line(&("é ".repeat(500) + "remedy"));
        assert!(line.chars().count() == MAX_MESSAGE && line.ends_with("remedy"));
    }
}
