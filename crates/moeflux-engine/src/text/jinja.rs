//! Jinja as chat templates expect it: the dialect of Hugging Face `transformers`.

use std::fmt::Write;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{Environment, Error, ErrorKind};
use minijinja_contrib::pycompat;
use serde_json::Map;

use super::json::{Style, to_python_json};

/// The name under which the template is kept.
const NAME: &str = "chat_template";

/// Instructions that one rendering may spend: an endless loop ends after about a second.
const FUEL: u64 = 20_000_000;

/// An environment that holds `source`.
pub(super) fn environment(source: &str) -> Result<Environment<'static>, Error> {
    let mut env = Environment::new();
    env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    env.set_unknown_method_callback(pycompat::unknown_method_callback);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_fuel(Some(FUEL));
    env.add_filter("tojson", tojson);
    env.add_filter("escape", escape);
    env.add_filter("e", escape);
    env.add_function("raise_exception", raise_exception);
    env.add_template_owned(NAME, without_generation_tags(source))?;
    Ok(env)
}

/// The template of an environment, rendered with `variables` at the moment `now`.
pub(super) fn render(
    env: &Environment<'_>,
    variables: &Map<String, serde_json::Value>,
    now: chrono::NaiveDateTime,
) -> Result<String, Error> {
    let variables = Value::from(Serde(variables));
    let context = minijinja::context! { strftime_now => clock(now), ..variables };
    env.get_template(NAME)?.render(context)
}

/// `strftime_now` frozen at `now`, so that two renderings of one request agree.
fn clock(now: chrono::NaiveDateTime) -> Value {
    Value::from_function(move |format: &str| -> Result<String, Error> {
        let mut text = String::new();
        write!(text, "{}", now.format(format)).map_err(|_| {
            Error::new(ErrorKind::InvalidOperation, format!("bad time format {format:?}"))
        })?;
        Ok(text)
    })
}

fn raise_exception(message: &str) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.to_owned()))
}

/// HTML escapes as Python's `markupsafe` writes them.
fn escape(value: &Value) -> Value {
    if value.is_safe() {
        return value.clone();
    }
    let mut out = String::new();
    for c in value.to_string().chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    Value::from_safe_string(out)
}

/// `json.dumps` with `ensure_ascii=False`, as `transformers` defines this filter.
fn tojson(value: Value, kwargs: Kwargs) -> Result<Value, Error> {
    let indent: Option<Value> = kwargs.get("indent")?;
    let indent = match indent.filter(|v| !v.is_none()) {
        None => None,
        Some(v) => Some(match v.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(v)?.min(64)),
        }),
    };
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => {
            return Err(Error::new(ErrorKind::InvalidOperation, "separators must be two strings"));
        }
        None if indent.is_some() => (",".into(), ": ".into()),
        None => (", ".into(), ": ".into()),
    };
    let style = Style {
        indent,
        item,
        key,
        ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sorted: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    let json = serde_json::to_value(&value)
        .map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))?;
    Ok(Value::from(to_python_json(&json, &style)))
}

/// Turns the `generation` tags that `transformers` adds to Jinja into `if true`, which keeps
/// their effect on white space.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        // Behind the opening, so that `{%}` is not taken for a whole tag.
        let Some(end) = tag[2..].find("%}").map(|it| it + 2) else {
            rest = tag;
            break;
        };
        let inner = &tag[2..end];
        let word = inner.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        let replaced = match word {
            "generation" => inner.replacen("generation", "if true", 1),
            "endgeneration" => inner.replacen("endgeneration", "endif", 1),
            _ => inner.to_owned(),
        };
        out.push_str("{%");
        out.push_str(&replaced);
        out.push_str("%}");
        rest = &tag[end + 2..];
    }
    out + rest
}

/// The string literals of a template that contain no white space and no escapes: candidates for
/// text that content is compared with.
pub(super) fn string_literals(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = source;
    while let Some(start) = rest.find('{') {
        rest = &rest[start + 1..];
        let close = match rest.as_bytes().first() {
            Some(b'%') => "%}",
            Some(b'{') => "}}",
            _ => continue,
        };
        let code = &rest[..rest.find(close).unwrap_or(rest.len())];
        let mut chars = code.char_indices();
        while let Some((at, quote)) = chars.next() {
            if quote != '\'' && quote != '"' {
                continue;
            }
            let Some((end, _)) = chars.find(|&(_, c)| c == quote) else { break };
            let text = &code[at + 1..end];
            if text.len() > 1 && !text.contains(|c: char| c.is_whitespace() || c == '\\') {
                found.push(text.to_owned());
            }
        }
        rest = &rest[code.len()..];
    }
    found.sort_unstable();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: &str, want: &str) {
        let env = environment(source).unwrap();
        let context = minijinja::context! {
            x => minijinja::value::Serde(serde_json::json!({"b": [1, 2.5, null], "a": "<é>"})),
        };
        assert_eq!(env.get_template(NAME).unwrap().render(context).unwrap(), want, "{source}");
    }

    #[test]
    fn tojson_writes_as_python_does() {
        check("{{ x | tojson }}", r#"{"b": [1, 2.5, null], "a": "<é>"}"#);
        check(
            "{{ x | tojson(ensure_ascii=True, sort_keys=true) }}",
            r#"{"a": "<\u00e9>", "b": [1, 2.5, null]}"#,
        );
        check("{{ x | tojson(separators=(',', ':')) }}", r#"{"b":[1,2.5,null],"a":"<é>"}"#);
        check("{{ x.b | tojson(indent=2) }}", "[\n  1,\n  2.5,\n  null\n]");
    }

    #[test]
    fn generation_tags_leave_their_content_and_white_space() {
        check("a\n{% generation %}\nb\n{% endgeneration %}\nc", "a\nb\nc");
        check("a\n{%- generation -%}\nb\n{%- endgeneration -%}\nc", "abc");
        check("{{ 'generation' }}{% set generation = 1 %}{{ generation }}", "generation1");
    }

    #[test]
    fn an_endless_loop_ends_with_an_error() {
        let env = environment(
            "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        );
        assert!(env.unwrap().get_template(NAME).unwrap().render(()).is_err());
    }

    #[test]
    fn string_literals_are_those_in_tags() {
        let source =
            "it's {{ 'a>' }} {%- if \"</think>\" in x and 'b c' == '\\n' %}'no'{% endif %}";
        assert_eq!(string_literals(source), ["</think>", "a>"]);
    }

    #[test]
    fn the_clock_writes_dates_and_refuses_bad_formats() {
        let now =
            chrono::NaiveDate::from_ymd_opt(2024, 7, 6).unwrap().and_hms_opt(5, 4, 3).unwrap();
        let env = environment("{{ strftime_now(f) }}").unwrap();
        let run = |format: &str| {
            let context = minijinja::context! { strftime_now => clock(now), f => format };
            env.get_template(NAME).unwrap().render(context)
        };
        assert_eq!(run("%d %b %Y, %-d %H:%M").unwrap(), "06 Jul 2024, 6 05:04");
        assert!(run("%!").is_err());
    }
}
