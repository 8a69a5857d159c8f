//! How families write the calls of tools.

use std::borrow::Cow;

/// The token inside the tags of calls in the syntax that is named after it.
pub(crate) const DSML: &str = "｜DSML｜";

/// Calls whose arguments are JSON text, or the same with other quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JsonCalls {
    /// Around all calls.
    pub(crate) section: Option<[Cow<'static, str>; 2]>,
    /// Begins a call.
    pub(crate) open: Cow<'static, str>,
    /// Between that and the name.
    pub(crate) before_name: Cow<'static, str>,
    /// Between the name and the arguments. A `#` stands for the number of the call.
    pub(crate) after_name: Cow<'static, str>,
    /// The last part of that, which ends a name whatever stands between.
    pub(crate) name_ends: Cow<'static, str>,
    /// What stands at both ends of a string, in notations without JSON's quotes and escapes, where
    /// the names of members have no quotes at all. `name_ends` is `{` there.
    pub(crate) quote: Option<Cow<'static, str>>,
    /// Whether templates write the call's identifier after its arguments; models may leave it out.
    pub(crate) has_id: bool,
    /// Between the arguments and the end.
    pub(crate) after_arguments: Cow<'static, str>,
    /// Ends a call.
    pub(crate) close: Cow<'static, str>,
    /// Between two calls.
    pub(crate) between: Cow<'static, str>,
}

/// Calls whose arguments are between tags, one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TaggedCalls {
    /// Around all calls.
    pub(crate) section: Option<[Cow<'static, str>; 2]>,
    /// Begins a call.
    pub(crate) open: Cow<'static, str>,
    /// Between that and the name.
    pub(crate) before_name: Cow<'static, str>,
    /// After the name.
    pub(crate) after_name: Cow<'static, str>,
    /// Before the name of an argument.
    pub(crate) key: Cow<'static, str>,
    /// Between it and its value.
    pub(crate) value: Cow<'static, str>,
    /// Between an argument's name and a value that is JSON, in syntaxes that mark it.
    pub(crate) json_value: Option<Cow<'static, str>>,
    /// After the value.
    pub(crate) value_end: Cow<'static, str>,
    /// After the last argument.
    pub(crate) end: Cow<'static, str>,
    /// Ends a call.
    pub(crate) close: Cow<'static, str>,
    /// Between two calls.
    pub(crate) between: Cow<'static, str>,
}

impl TaggedCalls {
    /// What ends the arguments of a call: the first tag after them.
    pub(crate) fn end_marker(&self) -> &str {
        let end = self.close.trim();
        if end.is_empty() { self.end.trim() } else { end }
    }
}

/// How calls are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Calls {
    /// With JSON text.
    Json(JsonCalls),
    /// With tagged arguments.
    Tagged(TaggedCalls),
    /// As messages of the harmony format, to a recipient in a channel.
    Channels,
}

impl Calls {
    /// Around all calls.
    pub(crate) fn section(&self) -> Option<[&str; 2]> {
        let section = match self {
            Calls::Json(calls) => calls.section.as_ref(),
            Calls::Tagged(calls) => calls.section.as_ref(),
            Calls::Channels => None,
        };
        section.map(|[open, close]| [&**open, &**close])
    }

    /// Begins a call.
    pub(crate) fn open(&self) -> &str {
        match self {
            Calls::Json(calls) => &calls.open,
            Calls::Tagged(calls) => &calls.open,
            Calls::Channels => "<|channel|>",
        }
    }

    /// Ends a call.
    pub(crate) fn close(&self) -> &str {
        match self {
            Calls::Json(calls) => &calls.close,
            Calls::Tagged(calls) => &calls.close,
            Calls::Channels => "<|call|>",
        }
    }

    /// Between two calls.
    pub(crate) fn between(&self) -> &str {
        match self {
            Calls::Json(calls) => &calls.between,
            Calls::Tagged(calls) => &calls.between,
            Calls::Channels => "",
        }
    }

    /// All markup, in the order in which it is written.
    pub(crate) fn parts(&self) -> Vec<&str> {
        let [section, section_end] = self.section().unwrap_or_default();
        let inside: Vec<&str> = match self {
            Calls::Json(calls) => vec![
                &calls.open,
                &calls.before_name,
                &calls.after_name,
                calls.quote.as_deref().unwrap_or_default(),
                &calls.after_arguments,
                &calls.close,
            ],
            Calls::Tagged(calls) => vec![
                &calls.open,
                &calls.before_name,
                &calls.after_name,
                &calls.key,
                &calls.value,
                calls.json_value.as_deref().unwrap_or_default(),
                &calls.value_end,
                &calls.end,
                &calls.close,
            ],
            Calls::Channels => vec![
                "<|start|>",
                "<|channel|>",
                "<|constrain|>",
                "<|message|>",
                "<|end|>",
                "<|call|>",
            ],
        };
        [vec![section], inside, vec![section_end]].concat()
    }

    /// The markup that calls begin with.
    pub(crate) fn begins(&self) -> &str {
        self.section().map_or(self.open(), |[open, _]| open)
    }

    /// Whether two ways to write calls differ in white space at most.
    pub(crate) fn is_like(&self, other: &Calls) -> bool {
        let text = |calls: &Calls| -> String {
            calls.parts().join("\0").chars().filter(|c| !c.is_whitespace()).collect()
        };
        text(self) == text(other)
    }

    /// One call as it is written, with names for what a model fills in.
    pub(crate) fn example(&self) -> String {
        let [open, close] = self.section().unwrap_or_default();
        let call = match self {
            Calls::Json(calls) => format!(
                "{}{}NAME{}{{ARGUMENTS}}{}{}",
                calls.open,
                calls.before_name,
                calls.after_name.replace('#', "0"),
                calls.after_arguments,
                calls.close
            ),
            Calls::Tagged(calls) => format!(
                "{}{}NAME{}{}KEY{}VALUE{}{}{}",
                calls.open,
                calls.before_name,
                calls.after_name,
                calls.key,
                calls.value,
                calls.value_end,
                calls.end,
                calls.close
            ),
            Calls::Channels => String::from(
                "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>\
                 {ARGUMENTS}<|call|>",
            ),
        };
        format!("{open}{call}{close}")
    }
}

/// Parts of a markup that may be tokens of their own.
pub(super) fn marks_in(text: &str) -> Vec<&str> {
    let mut marks = Vec::new();
    for (open, close) in [('<', '>'), ('[', ']')] {
        for (at, _) in text.match_indices(open) {
            let end = text[at..].find(close).map(|len| at + len + 1);
            marks.extend(end.map(|end| &text[at..end]));
        }
    }
    marks.extend(text.contains(DSML).then_some(DSML));
    marks
}
