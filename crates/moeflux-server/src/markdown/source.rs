//! A text before it is parsed: formulas in the ways that models write them, and the end of a
//! text that is still being written.

use std::ops::Range;

use pulldown_cmark::{Event, Options, Parser, Tag};

use super::unfinished;

/// Syntax beyond CommonMark.
pub(super) const OPTIONS: Options = Options::ENABLE_TABLES
    .union(Options::ENABLE_FOOTNOTES)
    .union(Options::ENABLE_STRIKETHROUGH)
    .union(Options::ENABLE_TASKLISTS)
    .union(Options::ENABLE_MATH)
    .union(Options::ENABLE_GFM);

/// Longer ones are no formulas: a stray mark would take all that follows.
const MAX_FORMULA_BYTES: usize = 8 << 10;

/// Environments that are formulas without marks around them.
const ENVIRONMENTS: [&str; 10] = [
    "equation",
    "equation*",
    "align",
    "align*",
    "gather",
    "gather*",
    "multline",
    "multline*",
    "alignat",
    "alignat*",
];

/// The text for the parser.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) text: String,
    copies: Vec<Copied>,
    /// Whether the text ends inside a fenced code block.
    pub(super) is_code_open: bool,
}

/// A part of the text that is the original's.
#[derive(Debug)]
struct Copied {
    /// Where it begins in the text.
    start: usize,
    original: Range<usize>,
}

impl Source {
    pub(super) fn new(original: &str, is_unfinished: bool) -> Source {
        let mut source = Source { text: String::new(), copies: Vec::new(), is_code_open: false };
        let has_formulas =
            ["$$", "\\(", "\\[", "\\begin{"].iter().any(|mark| original.contains(mark));
        let code =
            if has_formulas || is_unfinished { Code::find(original) } else { Code::default() };
        let mut from = 0;
        if has_formulas {
            for formula in Formulas::new(original, &code, is_unfinished) {
                source.copy(original, from..formula.outer.start);
                source.text.push_str(&formula.rewritten(original));
                from = formula.outer.end;
            }
        }
        source.copy(original, from..original.len());
        source.is_code_open = is_unfinished && code.is_open;
        if is_unfinished && !code.is_open {
            unfinished::complete(&mut source.text);
        } else if is_unfinished {
            unfinished::hold_fence(&mut source.text);
        }
        source
    }

    fn copy(&mut self, original: &str, range: Range<usize>) {
        self.copies.push(Copied { start: self.text.len(), original: range.clone() });
        self.text.push_str(&original[range]);
    }

    /// Where a position of `text` that begins a line is in the original. What was rewritten or
    /// added is where the copy before it ends.
    pub(super) fn original(&self, position: usize) -> usize {
        let i = self.copies.partition_point(|copied| copied.start <= position);
        let Copied { start, original } = &self.copies[i.saturating_sub(1)];
        original.end.min(original.start + (position - start))
    }
}

/// Where code is, which means nothing else.
#[derive(Debug, Default)]
struct Code {
    ranges: Vec<Range<usize>>,
    /// Whether the text ends inside a fenced block.
    is_open: bool,
}

impl Code {
    fn find(text: &str) -> Code {
        let options = OPTIONS.difference(Options::ENABLE_MATH);
        let mut code = Code::default();
        for (event, range) in Parser::new_ext(text, options).into_offset_iter() {
            let is_block = matches!(event, Event::Start(Tag::CodeBlock(_)));
            if is_block {
                code.is_open = is_unclosed_fence(text, &range);
            } else if !matches!(event, Event::Code(_)) {
                continue;
            }
            // Blocks come in order; what a container repeats is left out.
            if code.ranges.last().is_none_or(|last| last.end <= range.start) {
                code.ranges.push(range);
            }
        }
        code
    }

    fn containing(&self, position: usize) -> Option<&Range<usize>> {
        let i = self.ranges.partition_point(|range| range.end <= position);
        self.ranges.get(i).filter(|range| range.start <= position)
    }
}

/// Whether a code block has a fence at its beginning and reaches the end of the text without one.
fn is_unclosed_fence(text: &str, range: &Range<usize>) -> bool {
    if !text[range.end.min(text.len())..].trim().is_empty() {
        return false;
    }
    let block = &text[range.clone()];
    let Some(mark) = block.chars().next().filter(|char| "`~".contains(*char)) else { return false };
    let n_marks = block.chars().take_while(|char| *char == mark).count();
    let mut lines = block.lines();
    lines.next();
    let last = lines.next_back().unwrap_or_default();
    let last = last.trim_start_matches(|char: char| char.is_whitespace() || char == '>').trim_end();
    !(last.chars().all(|char| char == mark) && last.chars().count() >= n_marks)
}

/// Finds the formulas of a text from its beginning to its end.
#[derive(Debug)]
struct Formulas<'a> {
    text: &'a str,
    code: &'a Code,
    is_unfinished: bool,
    at: usize,
    /// Where the line of `at` begins.
    line_start: usize,
    /// Bytes that may still be searched for closing marks, so that a text of opening marks
    /// takes no quadratic time.
    n_left: usize,
}

/// A formula between marks that Markdown does not know, or over several lines.
#[derive(Debug)]
struct Formula {
    /// With its marks.
    outer: Range<usize>,
    inner: Range<usize>,
    is_block: bool,
    is_quoted: bool,
    is_closed: bool,
}

impl<'a> Formulas<'a> {
    fn new(text: &'a str, code: &'a Code, is_unfinished: bool) -> Formulas<'a> {
        let n_left = 4 * text.len() + 8 * MAX_FORMULA_BYTES;
        Formulas { text, code, is_unfinished, at: 0, line_start: 0, n_left }
    }

    fn advance(&mut self, to: usize) {
        if let Some(at) = self.text[self.at..to].rfind('\n') {
            self.line_start = self.at + at + 1;
        }
        self.at = to;
    }

    fn read(&mut self, mark: &Mark<'_>) -> Option<Formula> {
        let before = &self.text[self.line_start..self.at];
        let begins_line = before.chars().all(|char| " \t>".contains(char));
        let start = self.at + mark.open.len();
        let rest = &self.text[start..];
        let limit = rest.len().min(MAX_FORMULA_BYTES).min(self.n_left);
        let end = mark.end(rest, limit);
        self.n_left -= end.unwrap_or(limit);
        // A formula that is being written ends where the text does.
        let is_last = self.is_unfinished && rest.len() <= MAX_FORMULA_BYTES;
        let closed = end.map(|end| (end, mark.close.len()));
        let (len, close_len) = closed.or_else(|| is_last.then_some((rest.trim_end().len(), 0)))?;
        let inner = start..start + len;
        let tex = &self.text[inner.clone()];
        // Empty lines are allowed only where the formula begins a line.
        let is_one = (mark.is_block && begins_line) || !tex.contains("\n\n");
        let is_formula =
            is_one && !tex.trim().is_empty() && (mark.open == "$$" || !has_dollar(tex));
        if !is_formula {
            return None;
        }
        let outer = self.at..inner.end + close_len;
        let inner = if mark.is_environment { outer.clone() } else { inner };
        let is_quoted = before.contains('>');
        Some(Formula { outer, inner, is_block: mark.is_block, is_quoted, is_closed: end.is_some() })
    }
}

impl Iterator for Formulas<'_> {
    type Item = Formula;

    fn next(&mut self) -> Option<Formula> {
        while let Some(found) = self.text[self.at..].find(['\\', '$']) {
            self.advance(self.at + found);
            if let Some(range) = self.code.containing(self.at) {
                self.advance(range.end.max(self.at + 1));
                continue;
            }
            let rest = &self.text[self.at..];
            if let Some(formula) = Mark::of(rest).and_then(|mark| self.read(&mark)) {
                self.advance(formula.outer.end);
                return Some(formula);
            }
            // A command or an escaped character; two marks of a display are one.
            let n = if rest.starts_with("$$") || rest.starts_with('\\') { 2 } else { 1 };
            self.advance(self.at + rest.chars().take(n).map(char::len_utf8).sum::<usize>());
        }
        None
    }
}

impl Formula {
    /// On one line, so that none of its lines begins a block, and between dollars.
    fn rewritten(&self, text: &str) -> String {
        let mut tex = String::new();
        for line in text[self.inner.clone()].lines() {
            let quoted = line.trim_start().trim_start_matches(['>', ' ']);
            let line = without_comment(if self.is_quoted { quoted } else { line }).trim();
            if !tex.is_empty() && !line.is_empty() {
                tex.push(' ');
            }
            tex.push_str(line);
        }
        if !self.is_closed {
            return as_code(&tex);
        }
        let mark = if self.is_block { "$$" } else { "$" };
        format!("{mark}{tex}{mark}")
    }
}

/// A formula that is being written, as its source.
fn as_code(tex: &str) -> String {
    let mut n_marks = 1;
    while tex.contains(&"`".repeat(n_marks)) {
        n_marks += 1;
    }
    let marks = "`".repeat(n_marks);
    format!("{marks} {tex} {marks}")
}

fn without_comment(line: &str) -> &str {
    let at = line.match_indices('%').find(|(at, _)| !line[..*at].ends_with('\\'));
    at.map_or(line, |(at, _)| &line[..at])
}

/// What a formula begins with.
#[derive(Debug)]
struct Mark<'a> {
    open: &'a str,
    close: String,
    is_block: bool,
    /// Whether the marks are part of the formula.
    is_environment: bool,
}

impl<'a> Mark<'a> {
    /// The mark that `rest` begins with.
    fn of(rest: &'a str) -> Option<Mark<'a>> {
        let mark = |open, close: &str, is_block| {
            Some(Mark { open, close: close.to_string(), is_block, is_environment: false })
        };
        if rest.starts_with("$$") {
            return mark("$$", "$$", true);
        }
        if rest.starts_with("\\(") {
            return mark("\\(", "\\)", false);
        }
        if rest.starts_with("\\[") {
            return mark("\\[", "\\]", true);
        }
        let after = rest.strip_prefix("\\begin{")?;
        let name = ENVIRONMENTS
            .into_iter()
            .find(|name| after.strip_prefix(name).is_some_and(|after| after.starts_with('}')))?;
        Some(Mark {
            open: &rest[..rest.len() - after.len() + name.len() + 1],
            close: format!("\\end{{{name}}}"),
            is_block: true,
            is_environment: true,
        })
    }

    /// Where the closing mark is: not after a backslash, which makes it a line's end in a formula.
    fn end(&self, rest: &str, limit: usize) -> Option<usize> {
        let mut at = 0;
        while at < limit {
            let tail = &rest[at..];
            if tail.starts_with(&self.close) {
                return Some(at);
            }
            let n = if tail.starts_with('\\') { 2 } else { 1 };
            at += tail.chars().take(n).map(char::len_utf8).sum::<usize>();
        }
        None
    }
}

/// Whether a formula holds a dollar that would end it.
fn has_dollar(tex: &str) -> bool {
    tex.match_indices('$').any(|(at, _)| !tex[..at].ends_with('\\'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(text: &str) -> String {
        Source::new(text, false).text
    }

    #[test]
    fn formulas_of_latex_get_dollars() {
        assert_eq!(rewritten(r"so \( a^2 \) is"), "so $a^2$ is");
        assert_eq!(rewritten("\\[\na\n- b\n\\]\nx"), "$$a - b$$\nx");
        assert_eq!(rewritten("$$\na \\\\[2pt] % c\n= b\n$$"), "$$a \\\\[2pt] = b$$");
        assert_eq!(rewritten("> $$\n> a\n> - b\n> $$"), "> $$a - b$$");
        let aligned = "\\begin{align}\na &= b \\\\\n&= c\n\\end{align}";
        assert_eq!(rewritten(aligned), "$$\\begin{align} a &= b \\\\ &= c \\end{align}$$");
        assert_eq!(rewritten("$$a$$ and $$\nb\n$$"), "$$a$$ and $$b$$");
    }

    #[test]
    fn what_is_no_formula_stays() {
        for text in [
            r"`\( a \)`",
            "```\n\\[ a \\]\n$$\n\nx\n$$\n```",
            "    \\( a \\)",
            r"\\(a\\) [x]\(y",
            r"\( a",
            "\\( a\n\nb \\)",
            "$$",
            "costs $5 and $6",
            r"\begin{verbatim} \end{verbatim}",
            "",
        ] {
            assert_eq!(rewritten(text), text);
        }
    }

    #[test]
    fn positions_are_those_of_the_original() {
        let text = "\\( a \\)\n\nsecond\n\n\\[\nb\n\\]\n\nthird é\n\nfourth";
        let source = Source::new(text, false);
        for word in ["second", "third", "fourth"] {
            let position = source.text.find(word).unwrap();
            assert_eq!(source.original(position), text.find(word).unwrap());
        }
    }

    #[test]
    fn positions_of_what_was_added_are_in_the_original() {
        let text = "    |<$\\begin{align}$$\\]<b>[^1]\\]\\frac{é</b>\\";
        let source = Source::new(text, true);
        for (position, _) in source.text.char_indices() {
            assert!(text.get(source.original(position)..).is_some(), "{position}");
        }
    }

    #[test]
    fn open_fences_are_known() {
        for (text, is_open) in [
            ("```rust\nlet", true),
            ("a\n\n```", true),
            ("```\na\n```", false),
            ("```\na\n```\n\nb", false),
            ("- x\n  ```\n  a", true),
            ("````\n```\n", true),
            ("~~~\na\n```", true),
            ("    code", false),
            ("a `b", false),
        ] {
            assert_eq!(Source::new(text, true).is_code_open, is_open, "{text:?}");
        }
    }
}
