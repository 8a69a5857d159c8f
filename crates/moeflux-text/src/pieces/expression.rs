//! Which characters a regular expression can take or look at one after the other.
//!
//! Of two characters that never follow each other in a match, nor in what a match looks ahead to,
//! the first ends all that the expression does with the text before, and the second begins all
//! that it does with the text after.

use fancy_regex::{Expr, LookAround};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, HirKind};

/// Above this an expression is not analysed.
const MAX_PAIRS: usize = 2048;

/// What is known of an expression that never matches the empty text.
#[derive(Debug)]
pub(super) struct Expression {
    shape: Shape,
}

#[derive(Clone, Debug)]
struct Shape {
    /// It can match the empty text.
    is_nullable: bool,
    /// Its matches are not given back character by character.
    is_atomic: bool,
    /// It takes no text.
    is_look: bool,
    first: ClassUnicode,
    last: ClassUnicode,
    /// All characters that it can take or look at.
    any: ClassUnicode,
    /// Characters that can follow each other in a match.
    pairs: Vec<(ClassUnicode, ClassUnicode)>,
    /// Characters that are matched wherever a match is looked for in front of them.
    alone: ClassUnicode,
}

impl Expression {
    /// `None` where the expression looks back, is bound to places, can match the empty text, or is
    /// too large.
    pub(super) fn of_regex(regex: &str) -> Option<Expression> {
        let tree = Expr::parse_tree(regex).ok()?;
        let shape = Shape::of(&tree.expr)?;
        (!shape.is_nullable).then_some(Expression { shape })
    }

    /// The expression that matches this text.
    pub(super) fn of_text(text: &str) -> Option<Expression> {
        let shape = Shape::of(&Expr::Literal { val: text.to_owned(), casei: false })?;
        (!shape.is_nullable).then_some(Expression { shape })
    }

    /// Whether something that the expression does with a text can reach over the place between
    /// `before` and `after`.
    pub(super) fn joins(&self, before: char, after: char) -> bool {
        let pairs = &self.shape.pairs;
        pairs.iter().any(|(first, second)| has(first, before) && has(second, after))
    }

    /// Whether every match takes this character, or ends before it.
    pub(super) fn always_takes(&self, c: char) -> bool {
        has(&self.shape.alone, c)
    }

    /// Whether a match can hold, or look at, this character.
    pub(super) fn mentions(&self, c: char) -> bool {
        has(&self.shape.any, c)
    }
}

impl Shape {
    fn of(expr: &Expr) -> Option<Shape> {
        match expr {
            Expr::Empty => Some(Shape::empty()),
            Expr::Any { newline } => {
                let mut set = everything();
                if !newline {
                    set.difference(&one('\n'));
                }
                Some(Shape::class(set))
            }
            Expr::Literal { val, casei } => {
                let chars = val.chars().map(|c| Some(Shape::class(literal(c, *casei)?)));
                Shape::concat(chars)
            }
            Expr::Delegate { inner, casei, .. } => Some(Shape::class(class_of(inner, *casei)?)),
            Expr::Group(inner) => Shape::of(inner),
            Expr::AtomicGroup(inner) => Some(Shape { is_atomic: true, ..Shape::of(inner)? }),
            Expr::Concat(parts) => Shape::concat(parts.iter().map(Shape::of)),
            Expr::Alt(ways) => {
                let mut all = Shape { is_nullable: false, ..Shape::empty() };
                for way in ways {
                    all.add(Shape::of(way)?)?;
                }
                Some(all)
            }
            Expr::Repeat { child, lo, hi, .. } => Shape::of(child)?.repeated(*lo, *hi),
            Expr::LookAround(inner, LookAround::LookAhead | LookAround::LookAheadNeg) => {
                let inner = Shape::of(inner)?;
                Some(Shape {
                    is_nullable: true,
                    is_look: true,
                    last: ClassUnicode::empty(),
                    alone: ClassUnicode::empty(),
                    ..inner
                })
            }
            // What is bound to a place, refers back, or looks back.
            _ => None,
        }
    }

    fn empty() -> Shape {
        let none = ClassUnicode::empty;
        Shape {
            is_nullable: true,
            is_atomic: false,
            is_look: false,
            first: none(),
            last: none(),
            any: none(),
            pairs: Vec::new(),
            alone: none(),
        }
    }

    /// One character of a set.
    fn class(set: ClassUnicode) -> Shape {
        Shape {
            is_nullable: false,
            first: set.clone(),
            last: set.clone(),
            any: set.clone(),
            alone: set,
            ..Shape::empty()
        }
    }

    /// Adds another way to match.
    fn add(&mut self, way: Shape) -> Option<()> {
        self.is_nullable |= way.is_nullable;
        // A way that looks ahead may not match where it is alone.
        self.is_look |= way.is_look;
        self.is_atomic |= way.is_atomic;
        self.first.union(&way.first);
        self.last.union(&way.last);
        self.any.union(&way.any);
        self.alone.union(&way.alone);
        self.pairs.extend(way.pairs);
        (self.pairs.len() <= MAX_PAIRS).then_some(())
    }

    fn concat(parts: impl Iterator<Item = Option<Shape>>) -> Option<Shape> {
        let parts: Vec<Shape> = parts.collect::<Option<_>>()?;
        let mut whole = Shape::empty();
        whole.is_atomic = parts.iter().any(|part| part.is_atomic);
        whole.is_look = parts.iter().any(|part| part.is_look);
        for (i, part) in parts.iter().enumerate() {
            if !is_empty(&whole.last) && !is_empty(&part.first) {
                whole.pairs.push((whole.last.clone(), part.first.clone()));
            }
            whole.pairs.extend(part.pairs.iter().cloned());
            if whole.is_nullable {
                whole.first.union(&part.first);
            }
            if part.is_nullable {
                whole.last.union(&part.last);
            } else {
                whole.last = part.last.clone();
            }
            whole.is_nullable &= part.is_nullable;
            whole.any.union(&part.any);
            whole.alone.union(&alone_among(&parts, i));
        }
        (whole.pairs.len() <= MAX_PAIRS).then_some(whole)
    }

    fn repeated(mut self, lo: usize, hi: usize) -> Option<Shape> {
        if self.is_look {
            return None;
        }
        if hi > 1 && !is_empty(&self.last) && !is_empty(&self.first) {
            self.pairs.push((self.last.clone(), self.first.clone()));
        }
        if lo > 1 || hi == 0 {
            self.alone = ClassUnicode::empty();
        }
        self.is_nullable |= lo == 0;
        (self.pairs.len() <= MAX_PAIRS).then_some(self)
    }
}

/// The characters that part `i` matches alone while all other parts match nothing.
fn alone_among(parts: &[Shape], i: usize) -> ClassUnicode {
    let mut alone = parts[i].alone.clone();
    for (k, other) in parts.iter().enumerate().filter(|(k, _)| *k != i) {
        if !other.is_nullable || other.is_look {
            return ClassUnicode::empty();
        }
        if k < i && other.is_atomic {
            // It would take the character, and not give it back.
            alone.difference(&other.first);
        }
    }
    alone
}

fn is_empty(set: &ClassUnicode) -> bool {
    set.ranges().is_empty()
}

fn has(set: &ClassUnicode, c: char) -> bool {
    let ranges = set.ranges();
    let i = ranges.partition_point(|range| range.end() < c);
    ranges.get(i).is_some_and(|range| range.start() <= c)
}

fn everything() -> ClassUnicode {
    ClassUnicode::new([ClassUnicodeRange::new('\0', char::MAX)])
}

fn one(c: char) -> ClassUnicode {
    ClassUnicode::new([ClassUnicodeRange::new(c, c)])
}

fn literal(c: char, any_case: bool) -> Option<ClassUnicode> {
    let mut set = one(c);
    if any_case {
        set.try_case_fold_simple().ok()?;
    }
    Some(set)
}

/// The characters of a class such as `\p{L}` or `[^a-z]`.
fn class_of(text: &str, any_case: bool) -> Option<ClassUnicode> {
    let hir = ParserBuilder::new().case_insensitive(any_case).build().parse(text).ok()?;
    match hir.kind() {
        HirKind::Class(Class::Unicode(set)) => Some(set.clone()),
        // A class of bytes here is one of ASCII.
        HirKind::Class(Class::Bytes(set)) => set.to_unicode_class(),
        HirKind::Literal(text) => {
            let text = std::str::from_utf8(&text.0).ok()?;
            let mut chars = text.chars();
            let c = chars.next()?;
            chars.next().is_none().then(|| one(c))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QWEN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

    #[test]
    fn words_part_before_spaces() {
        // The second way to write it has possessive repetitions.
        for regex in [QWEN, r"[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++|\s++"] {
            let expression = Expression::of_regex(regex).unwrap();
            for (before, after) in [('a', ' '), ('a', '.'), ('世', '，'), ('a', '1'), ('1', 'a')]
            {
                assert!(!expression.joins(before, after), "{before}|{after} in {regex}");
                assert!(expression.always_takes(before), "{before} in {regex}");
            }
            for (before, after) in [(' ', 'a'), ('a', 'b'), ('.', '.'), (' ', ' '), ('.', 'a')] {
                assert!(expression.joins(before, after), "{before}|{after} in {regex}");
            }
        }
    }

    #[test]
    fn what_is_looked_at_counts_as_joined() {
        let expression = Expression::of_regex(r"a(?=\d+x)|\w|\d").unwrap();
        assert!(expression.joins('a', '1'));
        assert!(expression.joins('1', 'x'));
        assert!(!expression.joins('a', 'a'));
        assert!(expression.always_takes('a'));
        let expression = Expression::of_regex(r"a(?=\d)|b+c?|d{2}").unwrap();
        assert!(!expression.always_takes('a'));
        assert!(expression.always_takes('b'));
        assert!(!expression.always_takes('c'));
        assert!(!expression.always_takes('d'));
        assert!(expression.mentions('d') && !expression.mentions('e'));
    }

    #[test]
    fn what_is_kept_from_later_parts_is_not_matched_alone() {
        assert!(!Expression::of_regex("a?+ab*").unwrap().always_takes('a'));
        assert!(Expression::of_regex("a?ab*").unwrap().always_takes('a'));
    }

    #[test]
    fn expressions_that_depend_on_places_are_not_analysed() {
        for regex in [r"^a", r"a$", r"\ba", r"(?<=a)b", r"(a)\1", "a*", "a|", r"(?:(?=a))+b"] {
            assert!(Expression::of_regex(regex).is_none(), "{regex}");
        }
    }
}
