//! Jinja as chat templates expect it: jinja2 with the settings of Hugging Face `transformers`.
//!
//! minijinja parses and runs a template. What jinja2 does otherwise is in the modules here: [`source`] rewrites
//! the source where syntax and operators differ, the others define filters, methods, tests and functions.
//! `tools/templates/check_expressions.py` compares with jinja2; `docs/reference/chat-templates.md` lists what still differs.

mod args;
mod characters;
mod clock;
mod filter_args;
mod filters;
mod format;
mod globals;
mod markup;
mod methods;
mod nesting;
mod operators;
mod predicates;
mod python;
mod source;
#[cfg(test)]
mod tests;
mod tojson;
mod wrap;

pub(super) use characters::is_space;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, Error, ErrorKind};
use serde_json::Map;

/// The name under which the template is kept.
const NAME: &str = "chat_template";

/// Instructions that one rendering may spend: an endless loop ends after about a second.
const FUEL: u64 = 20_000_000;

/// An environment that holds `source`.
pub(super) fn environment(source: &str) -> Result<Environment<'static>, Error> {
    let mut env = Environment::new();
    env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    env.set_unknown_method_callback(methods::call);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_formatter(python::write_output);
    env.set_fuel(Some(FUEL));
    filters::add(&mut env);
    predicates::add(&mut env);
    globals::add(&mut env);
    env.add_function(source::MODULO, operators::modulo);
    env.add_function(source::MULTIPLY, operators::multiply);
    env.add_function(source::CONCAT, operators::concat);
    env.add_function(source::SLICE, operators::slice);
    env.add_function(source::BIND, python::bind);
    env.add_filter(source::ASSIGNED, nesting::assigned);
    // jinja2 has none of these, and what they give refers to what they were given, however often.
    env.remove_filter("chain");
    env.remove_filter("zip");
    env.add_function("raise_exception", raise_exception);
    source::check(source)?;
    env.add_template_owned(NAME, source::for_minijinja(source))?;
    Ok(env)
}

/// The variables of a template.
pub(super) fn values(variables: &Map<String, serde_json::Value>) -> Value {
    Value::from(Serde(variables))
}

/// The template of an environment, rendered with `variables` at the moment `now`.
pub(super) fn render(
    env: &Environment<'_>,
    variables: Value,
    now: chrono::NaiveDateTime,
) -> Result<String, Error> {
    let context = minijinja::context! { strftime_now => clock::clock(now), ..variables };
    env.get_template(NAME)?.render(context)
}

fn raise_exception(message: &str) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.to_owned()))
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
mod unit {
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
}
