//! The sanitizer: only elements and attributes that the renderer generates.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use ammonia::{Builder, UrlRelative};

const TAGS: &[&str] = &[
    "a",
    "b",
    "blockquote",
    "br",
    "code",
    "del",
    "div",
    "em",
    "h3",
    "h4",
    "h5",
    "h6",
    "hr",
    "i",
    "ins",
    "kbd",
    "li",
    "mark",
    "ol",
    "p",
    "pre",
    "q",
    "s",
    "small",
    "span",
    "strong",
    "sub",
    "sup",
    "table",
    "tbody",
    "td",
    "th",
    "thead",
    "tr",
    "u",
    "ul",
];

/// Presentation MathML without links, actions, and elements that hold other markup.
const MATH_TAGS: &[&str] = &[
    "math",
    "menclose",
    "mfrac",
    "mi",
    "mmultiscripts",
    "mn",
    "mo",
    "mover",
    "mpadded",
    "mphantom",
    "mprescripts",
    "mroot",
    "mrow",
    "mspace",
    "msqrt",
    "mstyle",
    "msub",
    "msubsup",
    "msup",
    "mtable",
    "mtd",
    "mtext",
    "mtr",
    "munder",
    "munderover",
];

const MATH_ATTRIBUTES: &[&str] = &[
    "accent",
    "accentunder",
    "class",
    "columnspan",
    "depth",
    "display",
    "displaystyle",
    "fence",
    "form",
    "height",
    "largeop",
    "linethickness",
    "lspace",
    "mathcolor",
    "mathvariant",
    "maxsize",
    "minsize",
    "movablelimits",
    "notation",
    "rspace",
    "scriptlevel",
    "separator",
    "stretchy",
    "symmetric",
    "voffset",
    "width",
];

/// Elements with classes of the page's style sheets.
const CLASSED_TAGS: &[&str] =
    &["a", "blockquote", "code", "div", "p", "pre", "span", "sup", "td", "th"];

static CLEANER: LazyLock<Builder<'static>> = LazyLock::new(|| {
    let mut attributes: HashMap<&str, HashSet<&str>> = HashMap::new();
    for tag in MATH_TAGS {
        attributes.insert(tag, MATH_ATTRIBUTES.iter().copied().collect());
    }
    for tag in CLASSED_TAGS {
        attributes.entry(tag).or_default().insert("class");
    }
    attributes.entry("a").or_default().extend(["href", "title"]);
    attributes.entry("ol").or_default().insert("start");
    attributes.entry("code").or_default().insert("title");
    let mut builder = Builder::empty();
    builder
        .tags(TAGS.iter().chain(MATH_TAGS).copied().collect())
        .clean_content_tags(HashSet::from(["script", "style"]))
        .generic_attributes(HashSet::new())
        .tag_attributes(attributes)
        .set_tag_attribute_value("a", "target", "_blank")
        .url_schemes(HashSet::from(super::links::SCHEMES))
        .url_relative(UrlRelative::Deny)
        .link_rel(Some("noopener noreferrer"))
        .strip_comments(true);
    builder
});

/// HTML without anything that is not on the lists above.
pub(super) fn clean(html: &str) -> String {
    CLEANER.clean(html).to_string()
}
