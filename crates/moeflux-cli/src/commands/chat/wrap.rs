//! Lines of a terminal that break between words.
//!
//! A word is printed as it comes. One that does not fit its line is taken away again and printed
//! on the next. Code stays as it can be copied.

use console::measure_text_width;

/// What begins and ends code.
const FENCE: &str = "```";

/// Text on its way to a terminal, in pieces of any size.
#[derive(Debug, Default)]
pub(super) struct Wrap {
    /// Columns of the cursor's line that are written.
    column: usize,
    /// The last word so far, with the commands in it, and its columns.
    word: String,
    n_word: usize,
    /// The styles that are on: here, and where the word began.
    style: String,
    word_style: String,
    /// The first characters of the line, up to a fence.
    head: String,
    in_code: bool,
    /// Whether the line ended here, in place of a space.
    is_broken: bool,
}

impl Wrap {
    /// Columns of the cursor's line that are written.
    pub(super) fn column(&self) -> usize {
        self.column
    }

    /// `text`, which may hold commands for styles, for a terminal of `width` columns; 0 where that
    /// is not known.
    pub(super) fn add(&mut self, text: &str, width: usize) -> String {
        let mut out = String::with_capacity(text.len());
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            match c {
                '\x1b' => {
                    let mut command = String::from(c);
                    command.push_str(&take_through(&mut chars, |c| c.is_ascii_alphabetic()));
                    self.restyle(&command);
                    out.push_str(&command);
                }
                '\n' => self.end_line(&mut out),
                ' ' | '\t' => self.space(c, width, &mut out),
                c => self.print(c, width, &mut out),
            }
        }
        out
    }

    fn restyle(&mut self, command: &str) {
        self.word.push_str(command);
        let is_end =
            ["[0m", "[22m", "[23m", "[24m", "[39m"].iter().any(|end| command.ends_with(end));
        if is_end {
            self.style.clear();
        } else {
            self.style.push_str(command);
        }
    }

    fn end_line(&mut self, out: &mut String) {
        if !std::mem::take(&mut self.is_broken) {
            out.push('\n');
        }
        self.column = 0;
        self.head.clear();
        self.begin_word();
    }

    fn space(&mut self, c: char, width: usize, out: &mut String) {
        if c == ' ' && self.column >= width && width > 0 && !self.in_code {
            out.push('\n');
            self.column = 0;
            self.is_broken = true;
        } else {
            out.push(c);
            self.column = match c {
                // Terminals stop at their last column.
                '\t' if width > 0 => ((self.column / 8 + 1) * 8).min(width - 1),
                '\t' => (self.column / 8 + 1) * 8,
                _ if width > 0 && self.column >= width => 1,
                _ => self.column + 1,
            };
        }
        self.begin_word();
    }

    fn print(&mut self, c: char, width: usize, out: &mut String) {
        let n = measure_text_width(c.encode_utf8(&mut [0; 4]));
        // Scripts of wide characters have no spaces, and break anywhere.
        if n > 1 {
            self.begin_word();
        }
        self.is_broken = false;
        self.look_for_fence(c);
        let is_over = self.column + n > width;
        let can_move = self.n_word > 0 && self.n_word < self.column && self.n_word + n <= width;
        if is_over && can_move && !self.in_code {
            let start = self.column - self.n_word + 1;
            out.push_str(&format!("\x1b[{start}G\x1b[K\n\x1b[0m{}{}", self.word_style, self.word));
            self.column = self.n_word;
        } else if is_over {
            // Terminals differ in what they do with a wide character in their last column.
            if n > 1 && self.column < width {
                out.push('\n');
            }
            self.column = 0;
        }
        out.push(c);
        self.column += n;
        self.word.push(c);
        self.n_word += n;
        if n > 1 {
            self.begin_word();
        }
    }

    fn begin_word(&mut self) {
        self.word.clear();
        self.n_word = 0;
        self.word_style.clone_from(&self.style);
    }

    fn look_for_fence(&mut self, c: char) {
        if self.head.len() < FENCE.len() {
            self.head.push(c);
            if self.head == FENCE {
                self.in_code = !self.in_code;
            }
        }
    }
}

/// The next characters up to the first that `is_last`.
fn take_through(chars: &mut std::str::Chars<'_>, is_last: impl Fn(char) -> bool) -> String {
    let mut taken = String::new();
    for c in chars.by_ref() {
        taken.push(c);
        if is_last(c) {
            break;
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a terminal of `width` columns shows of a text that comes in pieces of `n` characters.
    fn screen(text: &str, width: usize, n: usize) -> Vec<String> {
        let mut wrap = Wrap::default();
        let chars: Vec<char> = text.chars().collect();
        let sent: String = chars
            .chunks(n)
            .map(|piece| wrap.add(&piece.iter().collect::<String>(), width))
            .collect();
        let mut lines = vec![String::new()];
        let mut chars = sent.chars();
        while let Some(c) = chars.next() {
            let line = lines.last_mut().unwrap();
            match c {
                '\n' => lines.push(String::new()),
                '\x1b' => {
                    let command = take_through(&mut chars, |c| c.is_ascii_alphabetic());
                    if let Some(column) =
                        command.strip_prefix('[').and_then(|rest| rest.strip_suffix('G'))
                    {
                        line.truncate(column.parse::<usize>().unwrap() - 1);
                    }
                }
                c if line.chars().count() == width => lines.push(String::from(c)),
                c => line.push(c),
            }
        }
        lines.iter().map(|line| line.trim_end().to_owned()).collect()
    }

    #[test]
    fn lines_break_between_words() {
        let text = "The quick brown fox jumps over\nthe-laziest-dog-of-all dogs\n\nend";
        let want = [
            "The quick",
            "brown fox",
            "jumps over",
            "the-laziest",
            "-dog-of-all",
            "dogs",
            "",
            "end",
        ];
        for n in [1, 2, 3, 7, 100] {
            assert_eq!(screen(text, 11, n), want, "{n}");
        }
        assert_eq!(screen("abcde fghij\nk", 5, 1), ["abcde", "fghij", "k"]);
        assert_eq!(screen("abcde \nk", 5, 1), ["abcde", "k"]);
    }

    #[test]
    fn code_stays_in_its_lines() {
        let text = "a b\n```\nlet x = a + b;\n```\nlet x = a";
        let want = ["a b", "```", "let x =", "a + b;", "```", "let x =", "a"];
        assert_eq!(screen(text, 8, 1), want);
        let text = "```\nlet long = a;\n```";
        assert_eq!(screen(text, 8, 1), ["```", "let long", " = a;", "```"]);
    }

    #[test]
    fn columns_are_counted_as_terminals_count_them() {
        let mut wrap = Wrap::default();
        assert_eq!(wrap.add("abcde\u{30d5}", 6), "abcde\n\u{30d5}");
        assert_eq!(wrap.column(), 2);
        assert_eq!(wrap.add("\tx", 6), "\tx");
        assert_eq!(wrap.column(), 6);
        let mut code = Wrap::default();
        code.add("```\nlet long ", 8);
        assert_eq!(code.column(), 1);
    }

    #[test]
    fn a_word_that_moves_keeps_its_style() {
        let mut wrap = Wrap::default();
        assert_eq!(wrap.add("abc \x1b[1mde fg\x1b[22m", 9), "abc \x1b[1mde fg\x1b[22m");
        assert_eq!(wrap.add(".", 9), "\x1b[8G\x1b[K\n\x1b[0m\x1b[1mfg\x1b[22m.");
        assert_eq!(wrap.column(), 3);
    }
}
