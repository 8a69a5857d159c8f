//! Regular expressions of JSON Schema, which are those of ECMAScript, in the dialect of the
//! grammar library, which is that of Rust without look-around.
//!
//! What the library lacks is left out where the rest then allows more texts and never fewer: a
//! look-around matches no text of its own, and text that was captured before is some text.
//! Whether the library takes the result is for it to say.

/// A pattern in the library's dialect.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Translated {
    /// Nothing where all of it was left out.
    pub(super) pattern: Option<String>,
    /// What was left out.
    pub(super) lost: Vec<&'static str>,
}

/// Translates a pattern.
pub(super) fn translate(pattern: &str) -> Translated {
    let mut translator = Translator {
        rest: pattern.chars().collect(),
        at: 0,
        out: String::new(),
        can_repeat: false,
        lost: Vec::new(),
    };
    let done = translator.run();
    let Translator { out, mut lost, .. } = translator;
    let pattern = match done {
        Ok(()) => Some(out),
        Err(problem) => {
            lost.push(problem);
            None
        }
    };
    let all = std::mem::take(&mut lost);
    for what in all {
        if !lost.contains(&what) {
            lost.push(what);
        }
    }
    Translated { pattern, lost }
}

/// Any text, where the original has text that it does not say.
const ANY_TEXT: &str = "(?s:.*)";
const UNKNOWN_ESCAPE: &str = "an escape is unknown";
const UNKNOWN_GROUP: &str = "a kind of group is unknown";
const BACKREFERENCE: &str = "no grammar has backreferences";

struct Translator {
    rest: Vec<char>,
    at: usize,
    out: String,
    /// Whether there is something that may be repeated.
    can_repeat: bool,
    lost: Vec<&'static str>,
}

impl Translator {
    fn peek(&self, offset: usize) -> Option<char> {
        self.rest.get(self.at + offset).copied()
    }

    fn starts_with(&self, text: &str) -> bool {
        text.chars().enumerate().all(|(i, c)| self.peek(i) == Some(c))
    }

    fn run(&mut self) -> Result<(), &'static str> {
        while let Some(c) = self.peek(0) {
            match c {
                '\\' => self.escape()?,
                '[' => self.class()?,
                '(' => self.group()?,
                '{' => self.brace()?,
                '*' | '+' | '?' if !self.can_repeat => return Err("it repeats nothing"),
                _ => {
                    self.at += 1;
                    match c {
                        ']' | '}' => self.out.extend(['\\', c]),
                        _ => self.out.push(c),
                    }
                    self.can_repeat = !"^|".contains(c);
                }
            }
        }
        Ok(())
    }

    /// Leaves out what matches no text, and its repetition.
    fn leave_out(&mut self, what: &'static str) {
        self.lost.push(what);
        let is_counted = self.count().is_some();
        if is_counted || matches!(self.peek(0), Some('*' | '+' | '?')) {
            self.at += self.count().map_or(1, |n| n);
            self.at += usize::from(self.peek(0) == Some('?'));
        }
    }

    fn escape(&mut self) -> Result<(), &'static str> {
        let Some(c) = self.peek(1) else { return Err("it ends with a backslash") };
        self.at += 2;
        match c {
            'b' | 'B' => {
                self.leave_out("no grammar has word boundaries");
                return Ok(());
            }
            '1'..='9' => {
                while self.peek(0).is_some_and(|c| c.is_ascii_digit()) {
                    self.at += 1;
                }
                self.lost.push(BACKREFERENCE);
                self.out.push_str(ANY_TEXT);
            }
            'k' => {
                let end = (self.peek(0) == Some('<')).then(|| self.find('>')).flatten();
                self.at = end.ok_or(UNKNOWN_ESCAPE)? + 1;
                self.lost.push(BACKREFERENCE);
                self.out.push_str(ANY_TEXT);
            }
            'A' => self.out.push('^'),
            'z' | 'Z' => self.out.push('$'),
            _ => self.escaped(c)?,
        }
        self.can_repeat = c != 'A';
        Ok(())
    }

    /// What an escape stands for in and outside of classes, `c` being behind the backslash.
    fn escaped(&mut self, c: char) -> Result<(), &'static str> {
        let code = match c {
            'd' | 'D' | 'w' | 'W' | 's' | 'S' | 'n' | 'r' | 't' | 'f' | 'v' => {
                self.out.extend(['\\', c]);
                return Ok(());
            }
            'p' | 'P' => {
                let end = (self.peek(0) == Some('{')).then(|| self.find('}')).flatten();
                let end = end.ok_or(UNKNOWN_ESCAPE)?;
                self.out.extend(['\\', c]);
                self.out.extend(&self.rest[self.at..=end]);
                self.at = end + 1;
                return Ok(());
            }
            '0' if !self.peek(0).is_some_and(|c| c.is_ascii_digit()) => 0,
            'e' => 0x1b,
            'a' => 0x07,
            'c' => {
                let letter =
                    self.peek(0).filter(char::is_ascii_alphabetic).ok_or(UNKNOWN_ESCAPE)?;
                self.at += 1;
                letter as u32 % 32
            }
            'x' => self.hex(2)?,
            'u' => self.unicode()?,
            c if c.is_ascii_alphanumeric() => return Err(UNKNOWN_ESCAPE),
            c => c as u32,
        };
        let is_character = char::from_u32(code).is_some();
        if !is_character {
            return Err("half of a surrogate pair is no character");
        }
        self.out.push_str(&format!("\\x{{{code:X}}}"));
        Ok(())
    }

    /// `1F600` of `\u{1F600}`, `D83D\uDE00` and the like.
    fn unicode(&mut self) -> Result<u32, &'static str> {
        if self.peek(0) == Some('{') {
            let end = self.find('}').ok_or(UNKNOWN_ESCAPE)?;
            let digits: String = self.rest[self.at + 1..end].iter().collect();
            self.at = end + 1;
            return u32::from_str_radix(&digits, 16).map_err(|_| UNKNOWN_ESCAPE);
        }
        let first = self.hex(4)?;
        if (0xD800..0xDC00).contains(&first) && self.starts_with("\\u") {
            self.at += 2;
            let second = self.hex(4)?;
            if (0xDC00..0xE000).contains(&second) {
                return Ok(0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00));
            }
        }
        Ok(first)
    }

    fn hex(&mut self, n: usize) -> Result<u32, &'static str> {
        let digits: Option<String> = (0..n).map(|i| self.peek(i)).collect();
        let digits = digits.filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
        self.at += n;
        let code = digits.and_then(|digits| u32::from_str_radix(&digits, 16).ok());
        code.ok_or(UNKNOWN_ESCAPE)
    }

    /// A class such as `[^a-z]`; brackets in it stand for themselves.
    fn class(&mut self) -> Result<(), &'static str> {
        if self.starts_with("[^]") {
            self.at += 3;
            self.out.push_str("(?s:.)");
            self.can_repeat = true;
            return Ok(());
        }
        if self.starts_with("[]") {
            return Err("an empty class matches nothing");
        }
        self.at += 1;
        self.out.push('[');
        if self.peek(0) == Some('^') {
            self.at += 1;
            self.out.push('^');
        }
        loop {
            let c = self.peek(0).ok_or("a class has no end")?;
            self.at += 1;
            match c {
                ']' => break,
                '\\' => {
                    let c = self.peek(0).ok_or("a class has no end")?;
                    self.at += 1;
                    match c {
                        'b' => self.out.push_str("\\x08"),
                        c => self.escaped(c)?,
                    }
                }
                // These have a meaning in classes of Rust's dialect.
                '[' | '&' | '~' => self.out.extend(['\\', c]),
                '-' if self.out.ends_with('-') => self.out.push_str("\\-"),
                c => self.out.push(c),
            }
        }
        self.out.push(']');
        self.can_repeat = true;
        Ok(())
    }

    fn group(&mut self) -> Result<(), &'static str> {
        self.can_repeat = false;
        if !self.starts_with("(?") {
            self.at += 1;
            self.out.push('(');
            return Ok(());
        }
        for (open, what) in [
            ("(?=", "no grammar has look-ahead"),
            ("(?!", "no grammar has look-ahead"),
            ("(?<=", "no grammar has look-behind"),
            ("(?<!", "no grammar has look-behind"),
        ] {
            if self.starts_with(open) {
                self.at = self.group_end().ok_or("a group has no end")?;
                self.leave_out(what);
                return Ok(());
            }
        }
        if self.starts_with("(?#") || self.starts_with("(?P=") {
            let is_comment = self.starts_with("(?#");
            self.at = self.find(')').ok_or("a group has no end")? + 1;
            if !is_comment {
                self.lost.push(BACKREFERENCE);
                self.out.push_str(ANY_TEXT);
                self.can_repeat = true;
            }
            return Ok(());
        }
        if self.starts_with("(?>") {
            self.lost.push("no grammar has atomic groups");
            self.at += 3;
            self.out.push_str("(?:");
            return Ok(());
        }
        if self.starts_with("(?<") || self.starts_with("(?P<") {
            self.at = self.find('>').ok_or(UNKNOWN_GROUP)? + 1;
            self.out.push_str("(?:");
            return Ok(());
        }
        // Flags, or none.
        let end = (2..).find(|i| !self.peek(*i).is_some_and(|c| "imsux-".contains(c))).unwrap_or(2);
        let flags: String = self.rest[self.at..self.at + end].iter().collect();
        match self.peek(end) {
            Some(c @ (':' | ')')) if !flags.contains(['x', 'm']) => {
                self.out.push_str(&flags);
                self.out.push(c);
                self.at += end + 1;
                Ok(())
            }
            _ => Err(UNKNOWN_GROUP),
        }
    }

    /// A brace: a count where it can be one, else itself.
    fn brace(&mut self) -> Result<(), &'static str> {
        let counted = self.count();
        match counted {
            Some(n) if self.can_repeat => {
                self.out.extend(&self.rest[self.at..self.at + n]);
                self.at += n;
            }
            Some(_) => return Err("it repeats nothing"),
            None if self.peek(1) == Some(',') => return Err("a count has no beginning"),
            None => {
                self.at += 1;
                self.out.push_str("\\{");
                self.can_repeat = true;
            }
        }
        Ok(())
    }

    /// Characters of a count such as `{2,5}` that comes next.
    fn count(&self) -> Option<usize> {
        (self.peek(0) == Some('{')).then_some(())?;
        let digits = |from: usize| {
            let is_digit = |i: &usize| self.peek(*i).is_some_and(|c| c.is_ascii_digit());
            (from..).take_while(is_digit).count()
        };
        let n_least = digits(1);
        let mut end = 1 + n_least;
        if self.peek(end) == Some(',') {
            end += 1;
            end += digits(end);
        }
        (n_least > 0 && self.peek(end) == Some('}')).then_some(end + 1)
    }

    /// Where a character comes next.
    fn find(&self, c: char) -> Option<usize> {
        (self.at..self.rest.len()).find(|i| self.rest[*i] == c)
    }

    /// Where the group ends that begins here, past its parenthesis.
    fn group_end(&self) -> Option<usize> {
        let (mut depth, mut is_class, mut i) = (0, false, self.at);
        while let Some(c) = self.rest.get(i) {
            match c {
                '\\' => i += 1,
                '[' => is_class = true,
                ']' => is_class = false,
                '(' if !is_class => depth += 1,
                ')' if !is_class => {
                    depth -= 1;
                    if depth == 0 {
                        return Some(i + 1);
                    }
                }
                _ => {}
            }
            i += 1;
        }
        None
    }
}
