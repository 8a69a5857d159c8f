//! Tells code, comments and strings apart, so that a check looks at one of them.

use std::iter::repeat_n;

/// One line of a source file. Strings are emptied and comments taken out of `code`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) code: String,
    pub(crate) comment: String,
    /// What its strings hold, as written, each behind a quote; empty in Python.
    pub(crate) strings: String,
}

/// Splits Rust or WGSL, which write comments alike.
pub(crate) fn split(text: &str) -> Vec<Line> {
    let mut lexer = Lexer { chars: text.chars().collect(), at: 0, lines: vec![Line::default()] };
    while let Some(c) = lexer.peek(0) {
        match (c, lexer.peek(1)) {
            ('/', Some('/')) => lexer.line_comment(),
            ('/', Some('*')) => lexer.block_comment(),
            ('"', _) => lexer.string(),
            ('\'', _) => lexer.quote(),
            ('r', _) if lexer.raw_hashes().is_some() => lexer.raw_string(),
            _ => lexer.code(),
        }
    }
    lexer.lines
}

/// Splits Python, whose strings of one line are emptied and whose docstrings stay with the code.
pub(crate) fn split_python(text: &str) -> Vec<Line> {
    text.lines().map(python_line).collect()
}

fn python_line(line: &str) -> Line {
    let mut quote = None;
    let mut escaped = false;
    for (i, c) in line.char_indices() {
        match quote {
            None if c == '#' => {
                return Line {
                    code: line[..i].into(),
                    comment: line[i + 1..].into(),
                    ..Line::default()
                };
            }
            None if c == '"' || c == '\'' => quote = Some(c),
            Some(open) if c == open && !escaped => quote = None,
            _ => {}
        }
        escaped = c == '\\' && !escaped;
    }
    Line { code: line.into(), ..Line::default() }
}

struct Lexer {
    chars: Vec<char>,
    at: usize,
    lines: Vec<Line>,
}

impl Lexer {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn line(&mut self) -> &mut Line {
        self.lines.last_mut().expect("there is always a last line")
    }

    /// Steps over `n` characters that are neither code nor comment, but counts their lines.
    fn skip(&mut self, n: usize) {
        for _ in 0..n {
            if self.peek(0) == Some('\n') {
                self.lines.push(Line::default());
            }
            self.at += 1;
        }
    }

    fn code(&mut self) {
        if let Some(c) = self.peek(0).filter(|c| *c != '\n') {
            self.line().code.push(c);
        }
        self.skip(1);
    }

    fn comment(&mut self) {
        if let Some(c) = self.peek(0).filter(|c| *c != '\n') {
            self.line().comment.push(c);
        }
        self.skip(1);
    }

    /// Steps over `n` characters of a string.
    fn text(&mut self, n: usize) {
        for _ in 0..n {
            if let Some(c) = self.peek(0).filter(|c| *c != '\n') {
                self.line().strings.push(c);
            }
            self.skip(1);
        }
    }

    fn line_comment(&mut self) {
        while self.peek(0).is_some_and(|c| c != '\n') {
            self.comment();
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0;
        while let Some(c) = self.peek(0) {
            let ends = match (c, self.peek(1)) {
                ('/', Some('*')) => {
                    depth += 1;
                    false
                }
                ('*', Some('/')) => {
                    depth -= 1;
                    true
                }
                _ => {
                    self.comment();
                    continue;
                }
            };
            self.comment();
            self.comment();
            if ends && depth == 0 {
                return;
            }
        }
    }

    fn string(&mut self) {
        self.line().code.push_str("\"\"");
        self.text(1);
        while let Some(c) = self.peek(0).filter(|c| *c != '"') {
            self.text(if c == '\\' { 2 } else { 1 });
        }
        self.skip(1);
    }

    /// A character between quotes, or the quote that begins a lifetime.
    fn quote(&mut self) {
        if self.peek(1) == Some('\\') {
            self.skip(3);
            while self.peek(0).is_some_and(|c| c != '\'') {
                self.skip(1);
            }
            self.skip(1);
        } else if self.peek(2) == Some('\'') {
            self.skip(3);
        } else {
            self.code();
        }
    }

    /// How many `#` a raw string that begins here has, if one begins here.
    fn raw_hashes(&self) -> Option<usize> {
        let before = |back: usize| self.at.checked_sub(back).map(|i| self.chars[i]);
        let prefix = if matches!(before(1), Some('b' | 'c')) { 2 } else { 1 };
        if before(prefix).is_some_and(is_word) {
            return None;
        }
        let hashes = self.chars[self.at + 1..].iter().take_while(|c| **c == '#').count();
        (self.peek(1 + hashes) == Some('"')).then_some(hashes)
    }

    fn raw_string(&mut self) {
        let hashes = self.raw_hashes().expect("a raw string begins here");
        let end: Vec<char> = ['"'].into_iter().chain(repeat_n('#', hashes)).collect();
        self.line().code.push_str("\"\"");
        self.skip(hashes + 1);
        self.text(1);
        while self.at < self.chars.len() && !self.chars[self.at..].starts_with(&end) {
            self.text(1);
        }
        self.skip(end.len());
    }
}

pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[track_caller]
fn check(line: Line, code: &str, comment: &str) {
    assert_eq!((line.code.as_str(), line.comment.as_str()), (code, comment));
}

#[test]
fn tells_code_comments_and_strings_apart() {
    for (text, code, comment) in [
        ("let a = 1; // one", "let a = 1; ", "// one"),
        ("a /* b /* c */ d */ e", "a  e", "/* b /* c */ d */"),
        (r#"f("// \" no") // yes"#, "f(\"\") ", "// yes"),
        (r##"f(r#"a " // b"#, 2)"##, "f(\"\", 2)", ""),
        (r#"f(br"\", b"\\") // c"#, "f(b\"\", b\"\") ", "// c"),
        (r#"for"x";r#type"#, "for\"\";r#type", ""),
        (r#"f('"', '\'', b'\\', '\u{22}') // c"#, "f(, , b, ) ", "// c"),
        ("fn f<'a>(x: &'a str) {} // 'a", "fn f<'a>(x: &'a str) {} ", "// 'a"),
    ] {
        let mut lines = split(text);
        assert_eq!(lines.len(), 1, "{text}");
        check(lines.remove(0), code, comment);
    }
}

#[test]
fn keeps_the_lines_of_what_spans_several() {
    let lines = split("a \"b\nc\" d\n/* e\nf */ g");
    let code: Vec<&str> = lines.iter().map(|line| line.code.as_str()).collect();
    assert_eq!(code, ["a \"\"", " d", "", " g"]);
    assert_eq!(lines[3].comment, "f */");
}

#[test]
fn keeps_what_strings_hold() {
    for (text, strings) in [
        (r#"f("a", 'b', "c\"d") // "e""#, r#""a"c\"d"#),
        (r##"f(r#"a " b"#)"##, r#""a " b"#),
        ("f()", ""),
    ] {
        assert_eq!(split(text)[0].strings, strings, "{text}");
    }
    let strings: Vec<String> =
        split("\"a \\\n  b\"").into_iter().map(|line| line.strings).collect();
    assert_eq!(strings, ["\"a \\", "  b"]);
}

#[test]
fn survives_text_that_ends_early() {
    for text in ["", "'", "'\\", "\"", "\"\\", "/*", "r#\"", "r", "br#", "b'"] {
        assert_eq!(split(text).len(), 1, "{text}");
    }
}

#[test]
fn finds_python_comments() {
    let lines = split_python("a = '#'  # b\nc");
    check(lines[0].clone(), "a = '#'  ", " b");
    check(lines[1].clone(), "c", "");
}
