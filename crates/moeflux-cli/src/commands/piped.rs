//! Text that standard input brings to a prompt.

use std::io::{self, IsTerminal, Read};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use moeflux_engine::explain_thread_error;

use crate::error::UsageError;
use crate::report;

/// Bytes at most. No context holds the tokens of more.
const MAX_BYTES: u64 = 64 << 20;

/// How long a prompt waits for the first byte. A program that inherits a pipe without a
/// writer, from a service or a script, would wait for ever.
const PATIENCE: Duration = Duration::from_secs(5);

/// How text is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// As people mean it: line ends are `\n`, those at the end and a byte order mark go.
    Text,
    /// As it is.
    Raw,
}

/// How far reading has come.
enum Progress {
    Begun,
    Done(io::Result<Vec<u8>>),
}

/// Reads standard input to its end.
///
/// # Errors
/// Where it cannot be read, is too long, or is no text.
pub(super) fn whole(form: Form, is_quiet: bool) -> Result<String> {
    if io::stdin().is_terminal() {
        let key = if cfg!(windows) { "Ctrl-Z and Enter" } else { "Ctrl-D on a new line" };
        report::aside(is_quiet, &format!("write the prompt; {key} ends it"));
    }
    text(read(|| {})?, form)
}

/// What standard input brings to a prompt of the command line, if it is no terminal. A pipe that
/// brings nothing in time is left alone.
///
/// # Errors
/// As [`whole`].
pub(super) fn beside_a_prompt(form: Form, is_quiet: bool) -> Result<Option<String>> {
    if io::stdin().is_terminal() {
        return Ok(None);
    }
    let progress = match read_aside() {
        Ok(progress) => progress,
        Err(err) => {
            report::note(is_quiet, &format!("warning: {err:#}: the prompt is answered without it"));
            return Ok(None);
        }
    };
    let done = match progress.recv_timeout(PATIENCE) {
        Ok(Progress::Begun) => progress.recv().ok(),
        Ok(done) => Some(done),
        Err(RecvTimeoutError::Timeout) => {
            let seconds = PATIENCE.as_secs();
            let note = format!(
                "warning: standard input brought nothing in {seconds} s, the prompt is answered \
                 without it: < /dev/null says so at once, run - waits for all of a prompt"
            );
            report::note(is_quiet, &note);
            None
        }
        Err(RecvTimeoutError::Disconnected) => None,
    };
    let Some(Progress::Done(bytes)) = done else { return Ok(None) };
    let text = text(bytes.context(UNREADABLE)?, form)?;
    Ok(Some(text).filter(|text| !text.trim().is_empty()))
}

/// A prompt and what standard input brought.
pub(super) fn joined(prompt: &str, input: &str) -> String {
    if prompt.trim().is_empty() {
        input.to_owned()
    } else {
        format!("{}\n\n{input}", prompt.trim_end_matches('\n'))
    }
}

const UNREADABLE: &str = "cannot read standard input";

/// Reads on a thread of its own, which ends with the program.
fn read_aside() -> Result<Receiver<Progress>> {
    let (sender, progress) = mpsc::channel();
    let reading = thread::Builder::new().name(String::from("stdin")).spawn(move || {
        let begun = || drop(sender.send(Progress::Begun));
        let bytes = read_bytes(begun);
        // The receiver is gone where it took too long.
        let _ = sender.send(Progress::Done(bytes));
    });
    reading.map_err(explain_thread_error).context("cannot start a thread for standard input")?;
    Ok(progress)
}

fn read(begun: impl Fn()) -> Result<Vec<u8>> {
    read_bytes(begun).context(UNREADABLE)
}

/// Reads until the end, until there is too much, or until it is certain that it is no text: devices
/// such as /dev/zero never end.
fn read_bytes(begun: impl Fn()) -> io::Result<Vec<u8>> {
    let mut input = io::stdin().lock().take(MAX_BYTES + 1);
    let mut bytes = Vec::new();
    let mut part = [0; 1 << 16];
    loop {
        let n = match input.read(&mut part) {
            Ok(0) => return Ok(bytes),
            Ok(n) => n,
            Err(err) if err.kind() == io::ErrorKind::Interrupted => continue,
            Err(err) => return Err(err),
        };
        if bytes.is_empty() {
            begun();
        }
        bytes.extend_from_slice(&part[..n]);
        if part[..n].contains(&0) {
            return Ok(bytes);
        }
    }
}

fn text(bytes: Vec<u8>, form: Form) -> Result<String> {
    let refuse = |problem: String| Err(UsageError(format!("standard input {problem}")).into());
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return refuse(String::from(
            "is UTF-16: send UTF-8, as iconv -f UTF-16 -t UTF-8 writes it",
        ));
    }
    if let Some(at) = bytes.iter().position(|byte| *byte == 0) {
        return refuse(format!("is no text, it has a zero at byte {at}: send text in UTF-8"));
    }
    if bytes.len() as u64 > MAX_BYTES {
        let most = MAX_BYTES >> 20;
        return refuse(format!("has more than {most} MiB, which no context holds: send a part"));
    }
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(err) => {
            let at = err.utf8_error().valid_up_to();
            return refuse(format!("is not UTF-8 at byte {at}: send text in UTF-8"));
        }
    };
    if form == Form::Raw {
        return Ok(text);
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    Ok(text.replace("\r\n", "\n").trim_end_matches('\n').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_taken_as_people_mean_it_and_raw_text_as_it_is() {
        let bytes = "\u{feff}a\r\nb\r\n\n".as_bytes();
        assert_eq!(text(bytes.to_vec(), Form::Text).unwrap(), "a\nb");
        assert_eq!(text(bytes.to_vec(), Form::Raw).unwrap().as_bytes(), bytes);
    }

    #[test]
    fn what_is_no_text_is_refused_by_its_kind() {
        for (bytes, want) in [
            (&b"ab\xffc"[..], "not UTF-8 at byte 2"),
            (b"ab\0c", "no text, it has a zero at byte 2"),
            (b"\xff\xfeh\0i\0", "UTF-16"),
            (b"\x7fELF\0", "no text"),
        ] {
            let problem = text(bytes.to_vec(), Form::Raw).unwrap_err().to_string();
            assert!(problem.contains(want), "{problem}");
        }
        let long = text(vec![b'a'; (MAX_BYTES + 1) as usize], Form::Text).unwrap_err();
        assert!(long.to_string().contains("more than 64 MiB"), "{long}");
    }

    #[test]
    fn a_blank_line_stands_between_the_prompt_and_the_input() {
        assert_eq!(joined("Summarise this:\n", "a\nb"), "Summarise this:\n\na\nb");
        assert_eq!(joined("  ", "a"), "a");
    }
}
