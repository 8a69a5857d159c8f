//! Rewrites a template's source where minijinja's syntax or operators differ from those of jinja2.
//!
//! Everything outside of tags and all white space stays as it is, so that trimming does not change. In tags
//! - line ends become `\n` (jinja2 does that to the whole source),
//! - `generation`, a tag of `transformers`, becomes `if true`,
//! - `a % b`, `a * b` and `a ~ b` become calls of [`MODULO`], [`MULTIPLY`] and [`CONCAT`], and slices with a step
//!   calls of [`SLICE`]: the operators of minijinja format no strings, repeat nothing a negative number of times,
//!   write floats without exponents and count slices differently when they go backwards,
//! - defaults of macros that name earlier parameters become assignments, since minijinja evaluates them first,
//! - macros that use `varargs` or `kwargs` get them as parameters, and their calls pass arguments
//!   through [`BIND`],
//! - `set` passes what it assigns through the filter [`ASSIGNED`], which bounds how deeply it nests.
//!
//! A source that does not split into tags stays as it is: minijinja then says what is wrong with it.

mod assignments;
mod limits;
mod macros;
mod names;
mod nodes;
mod operators;

use assignments::Assignment;
use macros::{bind_macros, move_defaults};
use nodes::{Node, Part, Tag, split, write};
use operators::rewrite;

pub(super) use limits::check;
pub(super) use names::{ASSIGNED, BIND, CONCAT, MODULO, MULTIPLY, SLICE};

/// The source as minijinja has to get it.
pub(super) fn for_minijinja(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let Some(mut parts) = split(&source) else { return source };
    bind_macros(&mut parts);
    let parts = parts.into_iter().flat_map(move_defaults);
    let mut out = String::with_capacity(source.len() + source.len() / 8);
    for part in parts {
        match part {
            Part::Verbatim(text) => out.push_str(text),
            Part::Made(tags) => out.push_str(&tags),
            Part::Tag(mut tag) => {
                replace_generation(&mut tag);
                out.push_str(tag.open);
                let assignment = assignments::find(&tag);
                let len = assignment.as_ref().map_or(len_of_name(&tag), Assignment::len_of_target);
                let expressions = rewrite(tag.code.split_off(len));
                write(&mut out, &tag.code);
                match assignment {
                    Some(assignment) => write(&mut out, &assignment.filtered(expressions)),
                    None => write(&mut out, &expressions),
                }
                out.push_str(tag.close);
            }
        }
    }
    out
}

/// How many nodes at the beginning of a tag say which it is: `{{ … }}` has none.
fn len_of_name(tag: &Tag<'_>) -> usize {
    let has_name = tag.open.starts_with("{%");
    let name = tag.code.iter().position(|node| has_name && !node.is_space());
    name.map_or(0, |at| at + 1)
}

/// Only a tag of one word; a block of that name is something else.
fn replace_generation(tag: &mut Tag<'_>) {
    let n_words = tag.code.iter().filter(|node| !node.is_space()).count();
    if !tag.open.starts_with("{%") || n_words != 1 {
        return;
    }
    for node in &mut tag.code {
        if node.is_word("generation") {
            *node = Node::Word("if true");
        } else if node.is_word("endgeneration") {
            *node = Node::Word("endif");
        }
    }
}
