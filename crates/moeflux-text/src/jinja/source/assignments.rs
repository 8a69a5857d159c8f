//! Assignments pass what they assign through a filter that bounds its nesting.

use super::ASSIGNED;
use super::nodes::{Node, Tag};

/// Where the parts of a tag `set` are.
pub(super) struct Assignment {
    /// Where the assigned expression begins; the end of the tag where a block is assigned.
    value: usize,
    has_value: bool,
    /// Whether a field of a namespace is assigned.
    in_namespace: bool,
}

/// The parts of a tag that assigns something; nothing for other tags, and for a block that is
/// assigned as it is, which is a text.
pub(super) fn find(tag: &Tag<'_>) -> Option<Assignment> {
    let is_set = |node: &Node<'_>| tag.open.starts_with("{%") && node.is_word("set");
    tag.code.iter().find(|node| !node.is_space()).filter(|node| is_set(node))?;
    let operator = |wanted: &str| tag.code.iter().position(|node| node.is_operator(wanted));
    let value = operator("=");
    let end_of_target = value.or_else(|| operator("|"))?;
    let in_namespace = tag.code[..end_of_target].iter().any(|node| node.is_operator("."));
    let begin = value.map_or(tag.code.len(), |at| at + 1);
    // Where no expression follows minijinja says so.
    let is_empty = tag.code[begin..].iter().all(Node::is_space);
    if value.is_some() && is_empty {
        return None;
    }
    Some(Assignment { value: begin, has_value: value.is_some(), in_namespace })
}

impl Assignment {
    /// How many nodes stand before the expression.
    pub(super) fn len_of_target(&self) -> usize {
        self.value
    }

    /// The expression, filtered. Several values become a tuple, as they would without brackets.
    pub(super) fn filtered<'a>(&self, expression: Vec<Node<'a>>) -> Vec<Node<'a>> {
        let argument = if self.in_namespace { "true" } else { "false" };
        let filter = Node::Done(format!("|{ASSIGNED}({argument}) "));
        if self.has_value { vec![Node::Group("()", expression), filter] } else { vec![filter] }
    }
}
