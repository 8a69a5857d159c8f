//! Splits a template into text and tags, and the code of tags into nodes.

/// Brackets in brackets that are followed; minijinja refuses more than 150.
const MAX_DEPTH: usize = 200;

/// Words that end an operand to their left and begin one to their right. Names of tags, such as `call`,
/// may be names of variables too.
pub(super) const KEYWORDS: [&str; 6] = ["and", "or", "not", "in", "if", "else"];

/// A part of a template.
pub(super) enum Part<'a> {
    /// Text, a comment or a raw block.
    Verbatim(&'a str),
    Tag(Tag<'a>),
    /// Tags that were rewritten.
    Made(String),
}

pub(super) struct Tag<'a> {
    /// `{%` or `{{`, with a sign that controls white space.
    pub(super) open: &'a str,
    pub(super) code: Vec<Node<'a>>,
    pub(super) close: &'a str,
}

/// What a tag consists of.
pub(super) enum Node<'a> {
    Space(&'a str),
    /// A name or a number.
    Word(&'a str),
    Text(&'a str),
    Operator(&'a str),
    /// What is in brackets, and which.
    Group(&'static str, Vec<Node<'a>>),
    /// Code that was rewritten, an operand.
    Done(String),
    /// Rewritten code that an operand or an argument follows.
    Opening(String),
}

/// The parts of a source; nothing if a tag or a comment does not end.
pub(super) fn split(source: &str) -> Option<Vec<Part<'_>>> {
    let mut parts = Vec::new();
    let mut rest = source;
    while let Some(start) = next_opening(rest) {
        parts.push(Part::Verbatim(&rest[..start]));
        rest = &rest[start..];
        if rest.starts_with("{#") {
            let end = 2 + rest[2..].find("#}")? + 2;
            parts.push(Part::Verbatim(&rest[..end]));
            rest = &rest[end..];
            continue;
        }
        let (tag, len) = read_tag(rest)?;
        rest = &rest[len..];
        let is_raw = tag.open.starts_with("{%") && first_word(&tag) == Some("raw");
        let trims_nothing = !tag.close.starts_with('-');
        parts.push(Part::Tag(tag));
        if is_raw {
            // jinja2 keeps the line end after this tag, which minijinja drops: of two it drops one.
            if trims_nothing && rest.starts_with('\n') {
                parts.push(Part::Verbatim("\n"));
            }
            let end = end_of_raw(rest)?;
            parts.push(Part::Verbatim(&rest[..end]));
            rest = &rest[end..];
        }
    }
    parts.push(Part::Verbatim(rest));
    Some(parts)
}

fn next_opening(text: &str) -> Option<usize> {
    let at = |(at, _): (usize, &str)| {
        matches!(text.as_bytes().get(at + 1), Some(b'%' | b'{' | b'#')).then_some(at)
    };
    text.match_indices('{').find_map(at)
}

/// Where the tag `endraw` begins.
fn end_of_raw(text: &str) -> Option<usize> {
    text.match_indices("{%").map(|(at, _)| at).find(|&at| {
        let inner = text[at + 2..].trim_start_matches(['-', '+']).trim_start();
        inner
            .strip_prefix("endraw")
            .is_some_and(|rest| rest.trim_start().trim_start_matches(['-', '+']).starts_with("%}"))
    })
}

/// The tag at the beginning of `text`, and its length.
pub(super) fn read_tag(text: &str) -> Option<(Tag<'_>, usize)> {
    let end = if text.starts_with("{%") { "%}" } else { "}}" };
    let signed = matches!(text.as_bytes().get(2), Some(b'-' | b'+'));
    let open = &text[..2 + usize::from(signed)];
    let mut reader = Reader { text, at: open.len(), end };
    let code = reader.nodes(None, 0)?;
    let close = &text[reader.at..];
    let len = if close.starts_with(end) { 2 } else { 3 };
    Some((Tag { open, code, close: &close[..len] }, reader.at + len))
}

/// Splits the code of a tag into nodes.
struct Reader<'a> {
    text: &'a str,
    at: usize,
    /// What ends the tag.
    end: &'static str,
}

impl<'a> Reader<'a> {
    /// Nodes up to a closing bracket, or to the end of the tag, which is left.
    fn nodes(&mut self, closing: Option<char>, depth: usize) -> Option<Vec<Node<'a>>> {
        if depth > MAX_DEPTH {
            return None;
        }
        let mut nodes = Vec::new();
        loop {
            let rest = &self.text[self.at..];
            let c = rest.chars().next()?;
            if closing == Some(c) {
                self.at += 1;
                return Some(nodes);
            }
            if closing.is_none() && self.is_end(rest) {
                return Some(nodes);
            }
            let node = match c {
                '(' => self.group("()", depth)?,
                '[' => self.group("[]", depth)?,
                '{' => self.group("{}", depth)?,
                ')' | ']' | '}' => return None,
                '\'' | '"' => Node::Text(self.take(end_of_text(rest, c)?)),
                c if c.is_whitespace() => Node::Space(self.take_while(char::is_whitespace)),
                c if c.is_ascii_digit() => Node::Word(self.take(end_of_number(rest))),
                c if is_word(c) => Node::Word(self.take_while(is_word)),
                _ => Node::Operator(self.take(operator_len(rest, c))),
            };
            nodes.push(node);
        }
    }

    fn is_end(&self, rest: &str) -> bool {
        rest.starts_with(self.end)
            || (rest.starts_with(['-', '+']) && rest[1..].starts_with(self.end))
    }

    fn group(&mut self, brackets: &'static str, depth: usize) -> Option<Node<'a>> {
        self.at += 1;
        Some(Node::Group(brackets, self.nodes(brackets.chars().nth(1), depth + 1)?))
    }

    fn take(&mut self, len: usize) -> &'a str {
        let taken = &self.text[self.at..self.at + len];
        self.at += len;
        taken
    }

    fn take_while(&mut self, is_part: impl Fn(char) -> bool) -> &'a str {
        let rest = &self.text[self.at..];
        self.take(rest.find(|c| !is_part(c)).unwrap_or(rest.len()))
    }
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

/// Length of a literal with its quotes; nothing if it does not end.
fn end_of_text(text: &str, quote: char) -> Option<usize> {
    let mut chars = text.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => {
                chars.next();
            }
            c if c == quote => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// Length of a number, with its fraction and exponent.
fn end_of_number(text: &str) -> usize {
    let bytes = text.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let mut at = 0;
    while at < bytes.len() {
        let is_part = match bytes[at] {
            b'.' => is_digit(at + 1),
            b'+' | b'-' => {
                matches!(bytes[at - 1], b'e' | b'E') && is_digit(at + 1) && !text.starts_with("0x")
            }
            byte => byte == b'_' || byte.is_ascii_alphanumeric(),
        };
        if !is_part {
            break;
        }
        at += 1;
    }
    at
}

fn operator_len(text: &str, first: char) -> usize {
    let two =
        ["**", "//", "==", "!=", "<=", ">="].iter().any(|operator| text.starts_with(operator));
    if two { 2 } else { first.len_utf8() }
}

pub(super) fn write(out: &mut String, nodes: &[Node<'_>]) {
    for node in nodes {
        match node {
            Node::Space(text) | Node::Word(text) | Node::Text(text) | Node::Operator(text) => {
                out.push_str(text);
            }
            Node::Group(brackets, inner) => {
                out.push_str(&brackets[..1]);
                write(out, inner);
                out.push_str(&brackets[1..]);
            }
            Node::Done(code) | Node::Opening(code) => out.push_str(code),
        }
    }
}

pub(super) fn to_text(nodes: &[Node<'_>]) -> String {
    let mut out = String::new();
    write(&mut out, nodes);
    out
}

impl Node<'_> {
    pub(super) fn is_space(&self) -> bool {
        matches!(self, Node::Space(_))
    }

    pub(super) fn is_operator(&self, wanted: &str) -> bool {
        matches!(self, Node::Operator(operator) if *operator == wanted)
    }

    pub(super) fn is_word(&self, wanted: &str) -> bool {
        matches!(self, Node::Word(word) if *word == wanted)
    }

    /// Whether an operand can end with it.
    pub(super) fn ends_operand(&self) -> bool {
        match self {
            Node::Word(word) => !KEYWORDS.contains(word) && *word != "is",
            Node::Text(_) | Node::Group(..) | Node::Done(_) => true,
            Node::Space(_) | Node::Operator(_) | Node::Opening(_) => false,
        }
    }
}

pub(super) fn first_word<'a>(tag: &Tag<'a>) -> Option<&'a str> {
    tag.code.iter().find(|node| !node.is_space()).and_then(|node| match node {
        Node::Word(word) => Some(*word),
        _ => None,
    })
}

/// The nearest node before `at` that is no white space.
pub(super) fn before(nodes: &[Node<'_>], at: usize) -> Option<usize> {
    nodes[..at].iter().rposition(|node| !node.is_space())
}

/// The nearest node from `at` on that is no white space.
pub(super) fn after(nodes: &[Node<'_>], at: usize) -> Option<usize> {
    nodes[at..].iter().position(|node| !node.is_space()).map(|found| at + found)
}

/// Whether a word is a name after a dot.
pub(super) fn is_attribute(nodes: &[Node<'_>], at: usize) -> bool {
    before(nodes, at).is_some_and(|prev| nodes[prev].is_operator("."))
}
