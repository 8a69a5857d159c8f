//! From events of the parser to the HTML of each top-level block.

use std::ops::Range;

use super::links::{self, Part};
use super::source::{OPTIONS, Source};
use super::{clean, code, math};
use crate::markdown::budget::{Budget, escaped};
use pulldown_cmark::{
    Alignment, CodeBlockKind, CowStr, Event, HeadingLevel, LinkType, Parser, Tag, TagEnd,
    TextMergeWithOffset, html,
};

/// Events of one block at most: a larger one is shown as its source. The sanitizer takes some
/// hundreds of bytes for each.
const MAX_EVENTS: usize = 40_000;

/// Elements in elements at most; what is deeper stands at this depth.
const MAX_DEPTH: usize = 32;

/// Tags of the text's own that may be open at a time.
const MAX_OPEN_TAGS: usize = 16;

/// Elements without attributes that a text may use.
const KEPT_TAGS: [&str; 15] = [
    "b", "br", "del", "em", "i", "ins", "kbd", "mark", "q", "s", "small", "strong", "sub", "sup",
    "u",
];

/// A block at the top level.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) html: String,
    /// Where its first line begins in the source.
    pub(super) start: usize,
}

/// Renders all blocks.
pub(super) fn render(source: &Source, budget: Budget) -> Vec<Block> {
    let parser = Parser::new_ext(&source.text, OPTIONS).into_offset_iter();
    let mut writer = Writer::new(&source.text, budget);
    for (event, range) in TextMergeWithOffset::new(parser) {
        writer.push(event, range);
    }
    writer.blocks
}

struct Writer<'a> {
    text: &'a str,
    budget: Budget,
    blocks: Vec<Block>,
    /// Of the block that is being read.
    events: Vec<Event<'a>>,
    start: usize,
    end: usize,
    depth: usize,
    /// Elements of links, in which addresses stay text.
    n_links: usize,
    alignments: Vec<Alignment>,
    column: usize,
    is_head: bool,
    /// The language and the text of the code block that is being read.
    code: Option<(String, String)>,
    /// Raw HTML that is being read.
    raw: Option<String>,
    /// Tags of the text's own that are open in the block.
    n_open_tags: usize,
    /// For each link and image that is open: whether it leads anywhere.
    open_links: Vec<bool>,
}

impl<'a> Writer<'a> {
    fn new(text: &'a str, budget: Budget) -> Writer<'a> {
        Writer {
            text,
            budget,
            blocks: Vec::new(),
            events: Vec::new(),
            start: 0,
            end: 0,
            depth: 0,
            n_links: 0,
            alignments: Vec::new(),
            column: 0,
            is_head: false,
            code: None,
            raw: None,
            n_open_tags: 0,
            open_links: Vec::new(),
        }
    }

    fn push(&mut self, event: Event<'a>, range: Range<usize>) {
        if self.depth == 0 {
            self.start = self.text[..range.start].rfind('\n').map_or(0, |at| at + 1);
            self.end = range.end;
        }
        if self.events.len() > MAX_EVENTS {
            self.skip(&event);
            return;
        }
        match event {
            Event::Start(tag) => {
                self.depth += 1;
                if self.depth <= MAX_DEPTH || is_leaf(&tag) {
                    self.start_tag(tag);
                }
            }
            Event::End(tag) => {
                if self.depth <= MAX_DEPTH || is_leaf_end(tag) {
                    self.end_tag(tag);
                }
                self.depth -= 1;
            }
            Event::Text(text) => self.push_text(text),
            Event::Code(_) | Event::SoftBreak | Event::HardBreak | Event::Rule => {
                self.events.push(event);
            }
            Event::InlineMath(tex) => self.inline_math(&tex, range),
            Event::DisplayMath(tex) => self.push_html(math::render(&tex, true, self.budget)),
            Event::Html(html) => match &mut self.raw {
                Some(raw) => raw.push_str(&html),
                None => self.push_html(escaped(&html)),
            },
            Event::InlineHtml(html) => self.inline_html(&html),
            Event::FootnoteReference(name) => {
                self.push_html(format!("<sup class=\"note\">{}</sup>", escaped(&name)));
            }
            Event::TaskListMarker(is_done) => {
                let class = if is_done { "box done" } else { "box" };
                let mark = if is_done { "☑" } else { "☐" };
                self.push_html(format!("<span class=\"{class}\">{mark}</span> "));
            }
        }
        if self.depth == 0 {
            self.end_block();
        }
    }

    /// Passes over the rest of a block that is too large.
    fn skip(&mut self, event: &Event<'a>) {
        match event {
            Event::Start(_) => self.depth += 1,
            Event::End(_) => self.depth -= 1,
            _ => {}
        }
        if self.depth == 0 {
            let source = escaped(&self.text[self.start..self.end]);
            self.events.clear();
            self.open_links.clear();
            (self.code, self.raw, self.n_links, self.is_head) = (None, None, 0, false);
            self.push_html(format!("<p class=\"raw\">{source}</p>"));
            self.end_block();
        }
    }

    fn end_block(&mut self) {
        self.n_open_tags = 0;
        let mut html = String::new();
        html::push_html(&mut html, self.events.drain(..));
        let html = clean::clean(&html);
        if !html.trim().is_empty() {
            self.blocks.push(Block { html: html.trim_end().to_string(), start: self.start });
        }
    }

    fn push_html(&mut self, html: impl Into<CowStr<'a>>) {
        self.events.push(Event::InlineHtml(html.into()));
    }

    fn push_text(&mut self, text: CowStr<'a>) {
        if let Some((_, code)) = &mut self.code {
            code.push_str(&text);
            return;
        }
        if self.n_links > 0 || !text.contains("://") {
            self.events.push(Event::Text(text));
            return;
        }
        for part in links::split(&text) {
            match part {
                Part::Text(text) => self.events.push(Event::Text(text.to_string().into())),
                Part::Address(address) => {
                    let address = escaped(address);
                    self.push_html(format!("<a href=\"{address}\">{address}</a>"));
                }
            }
        }
    }

    fn inline_math(&mut self, tex: &str, range: Range<usize>) {
        // "from $5 to$6" speaks of money.
        if self.text[range.end..].starts_with(|char: char| char.is_ascii_digit()) {
            self.events.push(Event::Text(self.text[range].into()));
        } else {
            self.push_html(math::render(tex, false, self.budget));
        }
    }

    /// A tag that stands for nothing but itself, or text.
    fn inline_html(&mut self, html: &str) {
        if html.starts_with("</") {
            self.n_open_tags = self.n_open_tags.saturating_sub(1);
        } else if !html.starts_with("<br") {
            self.n_open_tags += 1;
        }
        if is_kept(html) && self.n_open_tags <= MAX_OPEN_TAGS {
            self.push_html(html.to_string())
        } else {
            self.events.push(Event::Text(html.to_string().into()))
        }
    }

    fn start_tag(&mut self, tag: Tag<'a>) {
        match tag {
            Tag::Heading { level, .. } => self.events.push(Event::Start(Tag::Heading {
                level: lowered(level),
                id: None,
                classes: Vec::new(),
                attrs: Vec::new(),
            })),
            Tag::CodeBlock(kind) => {
                let language = match &kind {
                    CodeBlockKind::Fenced(info) => code::language(info).to_string(),
                    CodeBlockKind::Indented => String::new(),
                };
                self.code = Some((language, String::new()));
            }
            Tag::HtmlBlock => self.raw = Some(String::new()),
            Tag::FootnoteDefinition(name) => {
                let name = escaped(&name);
                self.push_html(format!("<div class=\"footnote\"><sup class=\"note\">{name}</sup>"));
            }
            Tag::Table(alignments) => {
                self.alignments = alignments;
                self.push_html("<div class=\"table\"><table>");
            }
            Tag::TableHead => {
                (self.is_head, self.column) = (true, 0);
                self.push_html("<thead><tr>");
            }
            Tag::TableRow => {
                self.column = 0;
                self.push_html("<tr>");
            }
            Tag::TableCell => self.start_cell(),
            Tag::Link { dest_url, title, .. } => self.start_link(dest_url, title),
            Tag::Image { dest_url, .. } => {
                // The page asks for nothing from elsewhere.
                self.start_link(dest_url, CowStr::from(""));
                self.push_html("<span class=\"image\">");
            }
            tag => self.events.push(Event::Start(tag)),
        }
    }

    fn start_cell(&mut self) {
        let class = match self.alignments.get(self.column) {
            Some(Alignment::Right) => " class=\"right\"",
            Some(Alignment::Center) => " class=\"center\"",
            _ => "",
        };
        self.column += 1;
        self.push_html(format!("<{}{class}>", if self.is_head { "th" } else { "td" }));
    }

    fn start_link(&mut self, dest_url: CowStr<'a>, title: CowStr<'a>) {
        // A link in a link is none in HTML.
        let is_kept = self.n_links == 0 && links::is_allowed(&dest_url);
        self.open_links.push(is_kept);
        self.n_links += usize::from(is_kept);
        if is_kept {
            let tag =
                Tag::Link { link_type: LinkType::Inline, dest_url, title, id: CowStr::from("") };
            self.events.push(Event::Start(tag));
        }
    }

    fn end_link(&mut self) {
        if self.open_links.pop() == Some(true) {
            self.n_links -= 1;
            self.events.push(Event::End(TagEnd::Link));
        }
    }

    fn end_tag(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Heading(level) => {
                self.events.push(Event::End(TagEnd::Heading(lowered(level))));
            }
            TagEnd::CodeBlock => self.end_code(),
            TagEnd::HtmlBlock => {
                let raw = self.raw.take().unwrap_or_default();
                let raw = raw.trim();
                if is_kept(raw) {
                    self.push_html(raw.to_string())
                } else {
                    self.push_html(format!("<p class=\"raw\">{}</p>", escaped(raw)))
                }
            }
            TagEnd::FootnoteDefinition => self.push_html("</div>"),
            TagEnd::Table => self.push_html("</tbody></table></div>"),
            TagEnd::TableHead => {
                self.is_head = false;
                self.push_html("</tr></thead><tbody>");
            }
            TagEnd::TableRow => self.push_html("</tr>"),
            TagEnd::TableCell => self.push_html(if self.is_head { "</th>" } else { "</td>" }),
            TagEnd::Link => self.end_link(),
            TagEnd::Image => {
                self.push_html("</span>");
                self.end_link();
            }
            tag => self.events.push(Event::End(tag)),
        }
    }

    fn end_code(&mut self) {
        let Some((language, code)) = self.code.take() else { return };
        let html = code::highlight(&code, &language, self.budget);
        self.push_html(format!(
            "<div class=\"code\"><div class=\"code-head\"><span>{}</span></div><pre><code>{}</code></pre></div>",
            escaped(&language),
            html.trim_end_matches('\n'),
        ));
    }
}

/// Whether HTML is one tag without attributes that is harmless.
fn is_kept(html: &str) -> bool {
    let name = html.trim_start_matches('<').trim_end_matches('>').trim_matches('/').trim();
    KEPT_TAGS.contains(&name.to_ascii_lowercase().as_str())
}

/// Elements that are read as a whole, whatever their depth.
fn is_leaf(tag: &Tag<'_>) -> bool {
    matches!(tag, Tag::CodeBlock(_) | Tag::HtmlBlock | Tag::Link { .. } | Tag::Image { .. })
}

fn is_leaf_end(tag: TagEnd) -> bool {
    matches!(tag, TagEnd::CodeBlock | TagEnd::HtmlBlock | TagEnd::Link | TagEnd::Image)
}

/// The page has headings of its own above those of answers.
fn lowered(level: HeadingLevel) -> HeadingLevel {
    match level {
        HeadingLevel::H1 => HeadingLevel::H3,
        HeadingLevel::H2 => HeadingLevel::H4,
        HeadingLevel::H3 => HeadingLevel::H5,
        _ => HeadingLevel::H6,
    }
}
