//! Macros that use `varargs`, `kwargs`, or earlier parameters in defaults.

use std::collections::HashMap;

use super::BIND;
use super::nodes::{Node, Part, Tag, before, first_word, is_attribute, to_text};
use super::operators::{for_expression, rewrite};

/// A tag that declares a macro, followed by assignments for the defaults that name other parameters.
pub(super) fn move_defaults(part: Part<'_>) -> Vec<Part<'_>> {
    let Part::Tag(mut tag) = part else { return vec![part] };
    let Some((_, parameters)) = declaration(&tag) else { return vec![Part::Tag(tag)] };
    let mut inner = tag.code.iter_mut().find_map(|node| match node {
        Node::Group("()", inner) => Some(inner),
        _ => None,
    });
    let mut assignments = String::new();
    let mut kept = Vec::new();
    for parameter in inner.iter_mut().flat_map(|inner| inner.split(|node| node.is_operator(","))) {
        let mut sides = parameter.splitn(2, |node| node.is_operator("="));
        let name = to_text(sides.next().unwrap_or_default());
        let default = sides.next().unwrap_or_default();
        if parameters.iter().any(|earlier| mentions(default, earlier)) {
            let (name, default) = (name.trim(), for_expression(&to_text(default)));
            assignments +=
                &format!("{{% set {name} = ({default}) if {name} is undefined else {name} %}}");
            // It is optional all the same, and so are those after it.
            kept.push(format!("{name}=__undefined"));
        } else {
            kept.push(to_text(parameter));
        }
    }
    let Some(inner) = inner.filter(|_| !assignments.is_empty()) else {
        return vec![Part::Tag(tag)];
    };
    *inner = vec![Node::Done(kept.join(", "))];
    // The last tag has the sign that controls white space.
    let open = format!("{}{}%}}", tag.open, to_text(&rewrite(tag.code)));
    let last = assignments.len() - 2;
    let close = tag.close;
    vec![Part::Made(open + &assignments[..last] + close)]
}

/// The parameters of a macro, and whether it takes `varargs` and `kwargs` in addition.
struct Macro<'a> {
    parameters: Vec<&'a str>,
    varargs: bool,
    kwargs: bool,
}

/// Gives macros that use `varargs` or `kwargs` these as parameters, and binds them where they are called.
pub(super) fn bind_macros(parts: &mut [Part<'_>]) {
    let macros = find_macros(parts);
    if macros.is_empty() {
        return;
    }
    for part in parts {
        let Part::Tag(tag) = part else { continue };
        let declared = declaration(tag).map(|(name, _)| name);
        match declared.and_then(|name| macros.get(name)) {
            Some(found) => declare(&mut tag.code, found),
            None => bind_calls(&mut tag.code, &macros),
        }
    }
}

fn find_macros<'a>(parts: &[Part<'a>]) -> HashMap<&'a str, Macro<'a>> {
    let mut macros = HashMap::new();
    // A macro in a macro is counted as a part of it.
    let mut open: Vec<(&str, Macro<'a>)> = Vec::new();
    for part in parts {
        let Part::Tag(tag) = part else { continue };
        if let Some((name, parameters)) = declaration(tag) {
            open.push((name, Macro { parameters, varargs: false, kwargs: false }));
        } else if tag.open.starts_with("{%") && first_word(tag) == Some("endmacro") {
            if let Some((name, done)) = open.pop()
                && (done.varargs || done.kwargs)
            {
                macros.insert(name, done);
            }
        } else if let Some((_, current)) = open.last_mut() {
            current.varargs |= mentions(&tag.code, "varargs");
            current.kwargs |= mentions(&tag.code, "kwargs");
        }
    }
    macros
}

/// The name and the parameters, if the tag declares a macro.
fn declaration<'a>(tag: &Tag<'a>) -> Option<(&'a str, Vec<&'a str>)> {
    let mut nodes = tag.code.iter().filter(|node| !node.is_space());
    let (Node::Word("macro"), Node::Word(name), Node::Group("()", inner)) =
        (nodes.next()?, nodes.next()?, nodes.next()?)
    else {
        return None;
    };
    let parameters = inner.split(|node| node.is_operator(",")).filter_map(|parameter| {
        match parameter.iter().find(|node| !node.is_space())? {
            Node::Word(name) => Some(*name),
            _ => None,
        }
    });
    Some((name, parameters.collect()))
}

fn mentions(nodes: &[Node<'_>], name: &str) -> bool {
    nodes.iter().enumerate().any(|(at, node)| match node {
        Node::Group(_, inner) => mentions(inner, name),
        node => node.is_word(name) && !is_attribute(nodes, at),
    })
}

fn declare(code: &mut [Node<'_>], found: &Macro<'_>) {
    let parameters = code.iter_mut().find_map(|node| match node {
        Node::Group("()", inner) => Some(inner),
        _ => None,
    });
    let Some(inner) = parameters else { return };
    let wanted = [(found.varargs, "varargs=()"), (found.kwargs, "kwargs={}")];
    for (_, parameter) in wanted.into_iter().filter(|(is_used, _)| *is_used) {
        if inner.iter().any(|node| !node.is_space()) {
            inner.push(Node::Operator(", "));
        }
        inner.push(Node::Done(parameter.to_owned()));
    }
}

fn bind_calls(nodes: &mut [Node<'_>], macros: &HashMap<&str, Macro<'_>>) {
    for at in 0..nodes.len() {
        if let Node::Group(_, inner) = &mut nodes[at] {
            bind_calls(inner, macros);
        }
        let callee = before(nodes, at).filter(|&prev| !is_attribute(nodes, prev));
        let found = callee.and_then(|prev| match nodes[prev] {
            Node::Word(name) => macros.get(name),
            _ => None,
        });
        let (Some(found), Node::Group("()", inner)) = (found, &mut nodes[at]) else { continue };
        let quoted = found.parameters.iter().map(|name| format!("'{name}'"));
        let names = quoted.collect::<Vec<_>>().join(", ");
        let flags = format!("{}, {}", found.varargs, found.kwargs);
        let comma = if inner.iter().any(|node| !node.is_space()) { ", " } else { "" };
        inner.insert(0, Node::Opening(format!("**{BIND}([{names}], {flags}{comma}")));
        inner.push(Node::Done(String::from(")")));
    }
}
