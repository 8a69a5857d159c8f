//! Markdown on its way to a terminal. Plain text passes at once; what may be markup waits until
//! it is known to be: a span until it closes, a table until its last row. Markup that never
//! closes is printed as it was written, and so is code, which stays as it can be copied.

use std::mem;

use console::measure_text_width;

const BOLD: [&str; 2] = ["\x1b[1m", "\x1b[22m"];
const DIM: [&str; 2] = ["\x1b[2m", "\x1b[22m"];
const ITALIC: [&str; 2] = ["\x1b[3m", "\x1b[23m"];
const UNDERLINE: [&str; 2] = ["\x1b[4m", "\x1b[24m"];
/// Magenta: of the 16 colours one that can be read on black and on white.
const CODE: [&str; 2] = ["\x1b[35m", "\x1b[39m"];

/// The longest span that is waited for, in bytes.
const MAX_SPAN: usize = 400;
/// The longest table that is waited for, in rows.
const MAX_ROWS: usize = 100;

const FENCE: &str = "```";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The beginning of a line, not yet known to be text.
    Start,
    Text,
    Code,
    /// A line that is kept until it ends.
    Row,
    Fence,
}

/// A renderer that takes text in pieces of any size.
pub(super) struct Markdown {
    place: Place,
    in_code: bool,
    in_heading: bool,
    /// The beginning of a line, or all of a row or a fence.
    held: String,
    /// A span that has begun.
    span: String,
    rows: Vec<String>,
    /// The last character that was printed.
    before: char,
    width: usize,
}

impl Markdown {
    /// For a terminal of `width` columns; wider tables are printed as they are written.
    pub(super) fn new(width: usize) -> Markdown {
        Markdown {
            place: Place::Start,
            in_code: false,
            in_heading: false,
            held: String::new(),
            span: String::new(),
            rows: Vec::new(),
            before: '\n',
            width,
        }
    }

    /// What can be printed now.
    pub(super) fn feed(&mut self, piece: &str) -> String {
        let mut out = String::new();
        for c in piece.chars() {
            self.push(c, &mut out);
        }
        out
    }

    /// All that was still held.
    pub(super) fn finish(&mut self) -> String {
        let mut out = String::new();
        match self.place {
            Place::Row => self.rows.push(mem::take(&mut self.held)),
            Place::Fence => self.end_fence(&mut out),
            _ => {}
        }
        self.end_table(&mut out);
        out.push_str(&mem::take(&mut self.held));
        self.end_line(&mut out);
        out
    }

    fn push(&mut self, c: char, out: &mut String) {
        match self.place {
            Place::Text => self.text(c, out),
            Place::Code => {
                out.push(c);
                if c == '\n' {
                    self.place = Place::Start;
                }
            }
            Place::Start | Place::Row | Place::Fence => {
                self.held.push(c);
                match self.place {
                    Place::Row if c == '\n' => {
                        self.rows.push(mem::take(&mut self.held));
                        self.place = Place::Start;
                        if self.rows.len() > MAX_ROWS {
                            self.end_table(out);
                        }
                    }
                    Place::Fence if c == '\n' => self.end_fence(out),
                    Place::Start => self.decide(out),
                    _ => {}
                }
            }
        }
    }

    /// Finds out what a line is, as soon as its beginning says so.
    fn decide(&mut self, out: &mut String) {
        let line = self.held.trim_start_matches(' ');
        let is_open = !line.ends_with('\n');
        if is_open && FENCE.starts_with(line) {
            return;
        }
        if line.starts_with(FENCE) {
            self.end_table(out);
            if is_open {
                self.place = Place::Fence;
            } else {
                self.end_fence(out);
            }
            return;
        }
        if self.in_code {
            out.push_str(&mem::take(&mut self.held));
            self.place = if is_open { Place::Code } else { Place::Start };
            return;
        }
        if line.starts_with('|') && is_open {
            self.place = Place::Row;
            return;
        }
        self.end_table(out);
        let text = self.held.trim_start_matches(' ').trim_start_matches('#');
        let n_hashes = self.held.trim_start_matches(' ').len() - text.len();
        if (1..=6).contains(&n_hashes) && text.is_empty() {
            return;
        }
        self.place = Place::Text;
        let held = mem::take(&mut self.held);
        if (1..=6).contains(&n_hashes) && held.ends_with(' ') {
            self.in_heading = true;
            out.push_str(BOLD[0]);
        } else {
            held.chars().for_each(|c| self.text(c, out));
        }
    }

    fn text(&mut self, c: char, out: &mut String) {
        if c == '\n' {
            self.end_line(out);
            self.print(c, out);
            self.place = Place::Start;
        } else if self.span.is_empty() {
            let may_open = match c {
                '`' | '[' => true,
                '*' | '_' => !self.before.is_alphanumeric(),
                _ => false,
            };
            if may_open {
                self.span.push(c);
            } else {
                self.print(c, out);
            }
        } else {
            self.continue_span(c, out);
        }
    }

    fn continue_span(&mut self, c: char, out: &mut String) {
        // Underscores inside of words are no markup: what follows decides.
        if self.span.starts_with('_')
            && !c.is_alphanumeric()
            && c != '_'
            && let Some(shown) = styled(&self.span)
        {
            self.close(&shown, out);
            return self.text(c, out);
        }
        self.span.push(c);
        if is_no_span(&self.span) || self.span.len() > MAX_SPAN {
            let text = mem::take(&mut self.span);
            text.chars().for_each(|c| self.print(c, out));
        } else if !self.span.starts_with('_')
            && let Some(shown) = styled(&self.span)
        {
            self.close(&shown, out);
        }
    }

    fn close(&mut self, shown: &str, out: &mut String) {
        out.push_str(shown);
        if self.in_heading {
            out.push_str(BOLD[0]);
        }
        self.before = self.span.pop().unwrap_or(' ');
        self.span.clear();
    }

    fn print(&mut self, c: char, out: &mut String) {
        out.push(c);
        self.before = c;
    }

    fn end_line(&mut self, out: &mut String) {
        let span = mem::take(&mut self.span);
        match styled(&span) {
            Some(shown) => out.push_str(&shown),
            None => out.push_str(&span),
        }
        if mem::take(&mut self.in_heading) {
            out.push_str(BOLD[1]);
        }
    }

    fn end_fence(&mut self, out: &mut String) {
        let line = mem::take(&mut self.held);
        let text = line.trim_end_matches('\n');
        out.push_str(&format!("{}{text}{}{}", DIM[0], DIM[1], &line[text.len()..]));
        self.in_code = !self.in_code;
        self.place = Place::Start;
    }

    fn end_table(&mut self, out: &mut String) {
        let rows = mem::take(&mut self.rows);
        match aligned(&rows, self.width) {
            Some(table) => out.push_str(&table),
            None => rows.iter().for_each(|row| out.push_str(row)),
        }
    }
}

/// A whole span in its style; `None` where it is not whole.
fn styled(span: &str) -> Option<String> {
    let marker = span.chars().next()?;
    if marker == '[' {
        let (text, address) = span.strip_prefix('[')?.strip_suffix(')')?.split_once("](")?;
        let [on, off] = UNDERLINE;
        return (!text.is_empty()).then(|| format!("{on}{text}{off} ({address})"));
    }
    let n = span.len() - span.trim_start_matches(marker).len();
    let inner = span.get(n..span.len().checked_sub(n)?)?;
    let is_whole = !inner.is_empty()
        && span[n + inner.len()..].chars().all(|c| c == marker)
        && !inner.ends_with(marker);
    let has_edges = inner.starts_with(char::is_whitespace) || inner.ends_with(char::is_whitespace);
    if !is_whole || (marker != '`' && has_edges) {
        return None;
    }
    let [on, off] = match (marker, n) {
        ('`', _) => CODE,
        (_, 1) => ITALIC,
        (_, 2) => BOLD,
        _ => return Some(format!("{}{}{inner}{}{}", BOLD[0], ITALIC[0], ITALIC[1], BOLD[1])),
    };
    Some(format!("{on}{inner}{off}"))
}

/// Whether a beginning can become no span.
fn is_no_span(span: &str) -> bool {
    let marker = span.chars().next().unwrap_or(' ');
    match marker {
        '[' => {
            let after = span.split_once(']').map(|(_, after)| after);
            after.is_some_and(|after| !after.is_empty() && !after.starts_with('('))
        }
        '*' | '_' => {
            let rest = span.trim_start_matches(marker);
            rest.starts_with(char::is_whitespace) || span.len() - rest.len() > 3
        }
        _ => false,
    }
}

/// A table whose columns are as wide as their widest cell; `None` where it is no table, or has no
/// room.
fn aligned(rows: &[String], width: usize) -> Option<String> {
    let is_plain = rows.iter().all(|row| !row.contains(['\\', '`']));
    let cells: Vec<Vec<&str>> = rows
        .iter()
        .map(|row| row.trim().trim_start_matches('|').trim_end_matches('|'))
        .map(|row| row.split('|').map(str::trim).collect())
        .collect();
    let n = cells.first()?.len();
    let is_rule = |row: &[&str]| {
        row.iter().all(|cell| cell.contains('-') && cell.chars().all(|c| "-: ".contains(c)))
    };
    if !is_plain
        || !cells.get(1).is_some_and(|row| is_rule(row))
        || cells.iter().any(|row| row.len() != n)
    {
        return None;
    }
    let column = |i: usize| {
        let texts = cells.iter().enumerate().filter(|(k, _)| *k != 1).map(|(_, row)| row[i]);
        texts.map(measure_text_width).max().unwrap_or(0).max(3)
    };
    let widths: Vec<usize> = (0..n).map(column).collect();
    if widths.iter().map(|w| w + 3).sum::<usize>() + 1 > width {
        return None;
    }
    let mut out = String::new();
    for (k, row) in cells.iter().enumerate() {
        let mut line = String::from("|");
        for (cell, w) in row.iter().zip(&widths) {
            let pad = w - measure_text_width(cell).min(*w);
            let text = if k == 1 { "-".repeat(*w) } else { format!("{cell}{}", " ".repeat(pad)) };
            line.push_str(&format!(" {text} |"));
        }
        out.push_str(&if k == 0 { format!("{}{line}{}", BOLD[0], BOLD[1]) } else { line });
        if rows[k].ends_with('\n') {
            out.push('\n');
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use moeflux_core::SplitMix64;

    use super::*;

    /// Rendered at once, and a character at a time, which must be the same.
    fn shown(text: &str) -> String {
        let mut whole = Markdown::new(80);
        let once = whole.feed(text) + &whole.finish();
        let mut parts = Markdown::new(80);
        let pieces: String = text.chars().map(|c| parts.feed(&c.to_string())).collect();
        assert_eq!(pieces + &parts.finish(), once, "{text:?}");
        once
    }

    #[test]
    fn markup_becomes_styles() {
        for (text, want) in [
            ("a **b** c", "a \x1b[1mb\x1b[22m c"),
            ("*b* _c_", "\x1b[3mb\x1b[23m \x1b[3mc\x1b[23m"),
            ("use `Vec::push`.", "use \x1b[35mVec::push\x1b[39m."),
            ("## Title\nx", "\x1b[1mTitle\x1b[22m\nx"),
            ("[a](http://b)", "\x1b[4ma\x1b[24m (http://b)"),
            ("- one\n* two\n1. three", "- one\n* two\n1. three"),
            (
                "```rust\n**a** | `b`\n```\nz",
                "\x1b[2m```rust\x1b[22m\n**a** | `b`\n\x1b[2m```\x1b[22m\nz",
            ),
        ] {
            assert_eq!(shown(text), want, "{text:?}");
        }
        let table = "| a | bcde |\n|---|---|\n| xyz1 | 2 |\nend";
        let want = "\x1b[1m| a    | bcde |\x1b[22m\n| ---- | ---- |\n| xyz1 | 2    |\nend";
        assert_eq!(shown(table), want);
    }

    /// Adjacent pieces of markup at random, with characters of several bytes between.
    #[test]
    fn any_text_is_rendered_alike_whole_and_by_characters() {
        const PIECES: [&str; 20] = [
            "*", "**", "_", "`", "```", "[", "]", "(", ")", "|", "-", "#", "\\", ":", " ", "\n",
            "a", "\u{e9}", "\u{fffd}", "\u{4ed6}",
        ];
        let mut random = SplitMix64::new(1);
        for _ in 0..20_000 {
            let text: String = (0..24).map(|_| PIECES[random.below(PIECES.len())]).collect();
            shown(&text);
        }
    }

    #[test]
    fn what_is_no_markup_loses_no_character() {
        for text in [
            "2 * 3 * 4 and 2*3*4",
            "snake_case_name and _private_name",
            "**never closed\nnext",
            "an `open code\nnext",
            "a [list] of [x](y",
            "#hashtag and #",
            "| half a row",
            "| a |\n| b | c |\nend",
            "  indented\n\n\ntext  \n",
            "``",
            "*",
            "日本 **",
            "<think>",
            "a|b",
            "`",
        ] {
            assert_eq!(shown(text), text);
        }
    }
}
