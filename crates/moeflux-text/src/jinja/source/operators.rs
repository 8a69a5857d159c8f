//! Operators and slices become calls of functions.

use super::nodes::{KEYWORDS, Node, after, before, is_attribute, read_tag, to_text};
use super::{CONCAT, MODULO, MULTIPLY, SLICE};

/// An expression as minijinja has to get it.
pub(super) fn for_expression(code: &str) -> String {
    let text = format!("{{{{{code}}}}}");
    match read_tag(&text) {
        Some((tag, _)) => to_text(&rewrite(tag.code)),
        None => code.to_owned(),
    }
}

pub(super) fn rewrite(nodes: Vec<Node<'_>>) -> Vec<Node<'_>> {
    let inner = |node| match node {
        Node::Group(brackets, nodes) => Node::Group(brackets, rewrite(nodes)),
        node => node,
    };
    let nodes: Vec<Node<'_>> = nodes.into_iter().map(inner).collect();
    rewrite_concat(rewrite_products(rewrite_slices(nodes)))
}

/// `value[start:stop:step]`
fn rewrite_slices(nodes: Vec<Node<'_>>) -> Vec<Node<'_>> {
    let mut out = Vec::with_capacity(nodes.len());
    for node in nodes {
        let Some(bounds) = stepped_slice(&out, &node) else {
            out.push(node);
            continue;
        };
        let operand = out.split_off(start_of_operand(&out));
        out.push(Node::Done(format!("{SLICE}({}, {bounds})", to_text(&operand))));
    }
    out
}

/// The bounds and the step of a subscript with two colons, as arguments.
fn stepped_slice(preceding: &[Node<'_>], node: &Node<'_>) -> Option<String> {
    let Node::Group("[]", inner) = node else { return None };
    let is_subscript = is_binary(preceding, preceding.len());
    let bounds: Vec<_> = inner.split(|node| node.is_operator(":")).collect();
    if !is_subscript || bounds.len() != 3 {
        return None;
    }
    let bound = |nodes: &&[Node<'_>]| {
        let text = to_text(nodes);
        if text.trim().is_empty() { String::from("none") } else { text }
    };
    Some(bounds.iter().map(bound).collect::<Vec<_>>().join(", "))
}

/// Where the operand begins that a subscript after these nodes belongs to.
fn start_of_operand(nodes: &[Node<'_>]) -> usize {
    let mut start = before(nodes, nodes.len()).unwrap_or(0);
    while let Some(prev) = before(nodes, start) {
        if nodes[prev].is_operator(".") {
            start = before(nodes, prev).unwrap_or(prev);
        } else if matches!(nodes[start], Node::Group("()" | "[]", _)) && nodes[prev].ends_operand()
        {
            start = prev;
        } else {
            break;
        }
    }
    start
}

/// Whether an operator is between two operands rather than before one.
fn is_binary(nodes: &[Node<'_>], at: usize) -> bool {
    before(nodes, at).is_some_and(|prev| nodes[prev].ends_operand())
}

/// Whether the operand of `%` or, which binds less tightly than `%`, of `~` ends before this node.
fn separates(nodes: &[Node<'_>], at: usize) -> bool {
    match &nodes[at] {
        Node::Operator("+" | "-") => is_binary(nodes, at),
        Node::Operator(operator) => {
            matches!(*operator, "," | ":" | "=" | "==" | "!=" | "<" | ">" | "<=" | ">=" | "~")
        }
        Node::Word("recursive") => is_binary(nodes, at),
        Node::Word(word) => {
            KEYWORDS.contains(word) && !is_attribute(nodes, at) && !is_negated_test(nodes, at)
        }
        _ => false,
    }
}

/// `is not`, or a test that is called like an operator.
fn is_negated_test(nodes: &[Node<'_>], at: usize) -> bool {
    let Some(prev) = before(nodes, at) else { return false };
    nodes[prev].is_word("is")
        || (nodes[prev].is_word("not")
            && before(nodes, prev).is_some_and(|first| nodes[first].is_word("is")))
}

/// Where the last operand of these nodes begins.
fn left_bound(nodes: &[Node<'_>]) -> usize {
    let last = (0..nodes.len()).rev().find(|&i| separates(nodes, i));
    let start = last.map_or(0, |separator| separator + 1);
    after(nodes, start).unwrap_or(start)
}

/// `a % b` and `a * b`, and `+a`, which minijinja does not know.
fn rewrite_products(mut nodes: Vec<Node<'_>>) -> Vec<Node<'_>> {
    let mut out = Vec::with_capacity(nodes.len());
    let mut at = 0;
    while at < nodes.len() {
        let function = match &nodes[at] {
            Node::Operator("%") => Some(MODULO),
            Node::Operator("*") => Some(MULTIPLY),
            Node::Operator("+") if !is_binary(&out, out.len()) => {
                at += 1;
                continue;
            }
            _ => None,
        };
        if let Some(function) = function.filter(|_| is_binary(&out, out.len()))
            && let Some(end) = end_of_power(&nodes, at + 1)
        {
            let left = out.split_off(left_bound(&out));
            let (left, right) = (to_text(&left), to_text(&nodes[at + 1..end]));
            out.push(Node::Done(format!("{function}({left},{right})")));
            at = end;
            continue;
        }
        out.push(std::mem::replace(&mut nodes[at], Node::Space("")));
        at += 1;
    }
    out
}

/// Where the operand of `%` that begins at `at` ends: signs, a value, its subscripts, calls,
/// attributes, filters and tests, and a power.
fn end_of_power(nodes: &[Node<'_>], at: usize) -> Option<usize> {
    let mut end = end_of_unary(nodes, at)?;
    while let Some(next) = after(nodes, end)
        && nodes[next].is_operator("**")
    {
        end = end_of_unary(nodes, next + 1)?;
    }
    Some(end)
}

fn end_of_unary(nodes: &[Node<'_>], mut at: usize) -> Option<usize> {
    at = after(nodes, at)?;
    while nodes[at].is_operator("-") || nodes[at].is_operator("+") {
        at = after(nodes, at + 1)?;
    }
    if !nodes[at].ends_operand() {
        return None;
    }
    let mut end = at + 1;
    while let Some(next) = after(nodes, end) {
        end = match &nodes[next] {
            Node::Group("()" | "[]", _) => next + 1,
            Node::Text(_) if matches!(nodes[end - 1], Node::Text(_)) => next + 1,
            Node::Operator("." | "|") => after(nodes, next + 1)? + 1,
            Node::Word("is") => end_of_test(nodes, next + 1)?,
            _ => return Some(end),
        };
    }
    Some(end)
}

/// The end of a test that begins after `is`.
fn end_of_test(nodes: &[Node<'_>], at: usize) -> Option<usize> {
    let mut name = after(nodes, at)?;
    if nodes[name].is_word("not") {
        name = after(nodes, name + 1)?;
    }
    let end = name + 1;
    // An argument needs no brackets.
    match after(nodes, end) {
        Some(next) if nodes[next].ends_operand() => Some(next + 1),
        _ => Some(end),
    }
}

fn rewrite_concat(nodes: Vec<Node<'_>>) -> Vec<Node<'_>> {
    let ends: Vec<bool> =
        (0..nodes.len()).map(|at| separates(&nodes, at) && !nodes[at].is_operator("~")).collect();
    let mut out = Vec::with_capacity(nodes.len());
    let mut chain = Vec::new();
    for (node, is_end) in nodes.into_iter().zip(ends) {
        if is_end {
            push_chain(&mut out, std::mem::take(&mut chain));
            out.push(node);
        } else {
            chain.push(node);
        }
    }
    push_chain(&mut out, chain);
    out
}

/// Adds the operands of `~`, or a single one.
fn push_chain<'a>(out: &mut Vec<Node<'a>>, mut chain: Vec<Node<'a>>) {
    let is_empty = |nodes: &[Node<'_>]| nodes.iter().all(Node::is_space);
    let mut operands = chain.split(|node| node.is_operator("~"));
    // Where an operand is missing minijinja says so.
    if !chain.iter().any(|node| node.is_operator("~")) || operands.any(is_empty) {
        out.append(&mut chain);
        return;
    }
    let start = chain.iter().take_while(|node| node.is_space()).count();
    let end = before(&chain, chain.len()).map_or(chain.len(), |last| last + 1);
    let operands = chain[start..end].split(|node| node.is_operator("~"));
    let operands = operands.map(to_text).collect::<Vec<_>>().join(",");
    let tail = chain.split_off(end);
    chain.truncate(start);
    out.append(&mut chain);
    out.push(Node::Done(format!("{CONCAT}({operands})")));
    out.extend(tail);
}
