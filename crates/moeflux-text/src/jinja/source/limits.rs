//! Bounds on a template's source: minijinja goes through what it parses recursively.
//!
//! Its parser refuses 150 brackets or blocks in one another, but chains such as `1 + 1 + 1` and
//! `x.a.a` nest as deep as they are long, and so do the branches of an `if`.

use minijinja::{Error, ErrorKind};

use super::nodes::{Node, Part, split};

/// Most tags. The largest published templates have a few hundred.
const MAX_TAGS: usize = 10_000;

/// Most names, literals, operators and brackets of one tag.
const MAX_NODES: usize = 2_000;

/// Longest source, in bytes, of which minijinja has to say why it does not split into tags.
const MAX_UNSPLIT: usize = 32 << 10;

/// Refuses a source that is too long or nested too deeply for minijinja.
///
/// # Errors
/// A syntax error that says what there is too much of.
pub(in crate::jinja) fn check(source: &str) -> Result<(), Error> {
    let refused = |what: String| Err(Error::new(ErrorKind::SyntaxError, what));
    let Some(parts) = split(source) else {
        return match source.len() {
            ..=MAX_UNSPLIT => Ok(()),
            _ => refused(String::from("a tag, a comment, a text or a bracket does not end")),
        };
    };
    let tags = parts.iter().filter_map(|part| match part {
        Part::Tag(tag) => Some(tag),
        Part::Verbatim(_) | Part::Made(_) => None,
    });
    let mut n_tags = 0;
    for tag in tags {
        n_tags += 1;
        let n_nodes = count(&tag.code);
        if n_nodes > MAX_NODES {
            return refused(format!("a tag of {n_nodes} words and signs, at most {MAX_NODES}"));
        }
    }
    if n_tags > MAX_TAGS {
        return refused(format!("a template of {n_tags} tags, at most {MAX_TAGS}"));
    }
    Ok(())
}

fn count(nodes: &[Node<'_>]) -> usize {
    let len = |node: &Node<'_>| match node {
        Node::Space(_) => 0,
        Node::Group(_, inner) => 1 + count(inner),
        _ => 1,
    };
    nodes.iter().map(len).sum()
}
