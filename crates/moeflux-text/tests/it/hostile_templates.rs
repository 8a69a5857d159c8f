//! Chat templates that are rendered in the process that opens them: whatever they nest, they are
//! rendered or refused, and the stack lasts. An overflow would end the whole test.

use moeflux_text::{ChatTemplate, MarkupText, Message, RenderRequest, TextError};
use serde_json::{Value, json};

fn render(source: &str) -> Result<String, TextError> {
    render_messages(source, &[Message::new("user", "hello")])
}

fn render_messages(source: &str, messages: &[Message]) -> Result<String, TextError> {
    let template = ChatTemplate::new(source, MarkupText::default())?;
    let request = RenderRequest { messages, ..RenderRequest::default() };
    Ok(template.render(&request)?.text().to_owned())
}

/// The largest sources that are accepted of each kind that nests.
#[test]
fn the_deepest_sources_that_are_accepted_fit_the_stack() {
    let chains = [
        format!("{{{{ {}1 }}}}", "1+".repeat(990)),
        format!("{{{{ x{} }}}}", ".a".repeat(990)),
        format!("{{{{ x{} }}}}", "|abs".repeat(990)),
        format!("{{{{ x{} }}}}", "()".repeat(1900)),
        format!("{{{{ {}1{} }}}}", "[".repeat(140), "]".repeat(140)),
        format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(9_900)),
        "{% if 1 %}".repeat(140) + &"{% endif %}".repeat(140),
    ];
    for source in chains {
        // Most are no use as templates; they are read all the same.
        drop(render(&source));
    }
    let once = format!("{{{{ {}1 }}}}", "1+".repeat(990));
    assert_eq!(render(&once).unwrap(), "991");
}

/// A macro that calls itself as often as it may, and nests its argument in each call.
#[test]
fn recursion_nests_data_as_deep_as_it_may() {
    let batches = "|batch(1)".repeat(380);
    let brackets = format!("{}a{}", "[".repeat(130), "]".repeat(130));
    for step in [format!("a{batches}"), brackets.clone(), format!("{brackets}{batches}")] {
        for last in ["{{ a == a }}", "{{ [a, a]|unique|list|length }}", "{{ {(a,): 1} }}", "x"] {
            let source = format!(
                "{{% macro m(a, n) %}}{{% if n > 0 %}}{{{{ m({step}, n - 1) }}}}{{% else %}}{last}\
                 {{% endif %}}{{% endmacro %}}"
            );
            for n in [20, 80, 100_000] {
                // Refused where the recursion limit is met.
                drop(render(&format!("{source}{{{{ m([], {n}) }}}}")));
            }
        }
    }
    let nested = "{% for a in [a] recursive %}{{ loop([[[[a]]]]) }}{% endfor %}";
    assert!(render(&format!("{{% set a = [] %}}{nested}")).is_err());
}

#[test]
fn loops_do_not_nest_data_without_bound() {
    let rounds = |change: &str, last: &str| {
        format!(
            "{{% set ns = namespace(s=[]) %}}{{% for i in range(90000) %}}{change}{{% endfor %}}{last}"
        )
    };
    for change in [
        "{% set ns.s = [ns.s] %}",
        "{% set ns.s = {'a': ns.s} %}",
        "{% set ns.s = [[[[[[[[ns.s]]]]]]]] %}",
        "{% set ns.s = [ns.s, ns.s] %}",
        "{% set ns.s = ns %}",
        "{% set q = ns.s %}{% macro m() %}{{ q }}{% endmacro %}{% set ns.s = m %}",
        "{% set ns.s = cycler(ns.s) %}",
    ] {
        for last in ["{{ ns.s }}", "{{ ns.s|tojson }}", "{{ ns.s|pprint }}", "{{ ns.s == ns.s }}"] {
            let refused = render(&rounds(change, last));
            assert!(matches!(refused, Err(TextError::Render(_))), "{change}: {refused:?}");
        }
    }
    // A loop is kept as data.
    let looped = rounds("{% for x in [ns.s] %}{% set ns.s = [loop] %}{% endfor %}", "{{ ns.s }}");
    assert!(render(&looped).unwrap().starts_with("[{'index0': 0, "));
    // Kept lists are what they were when they were assigned.
    let tail = rounds("{% set ns.s = (ns.s + [i])[-2:] %}", "{{ ns.s }}");
    assert_eq!(render(&tail).unwrap(), "[89998, 89999]");
}

#[test]
fn nested_conversations_are_refused_by_position() {
    let nested = |depth: usize| {
        (0..depth).fold(json!("x"), |inner, i| match i % 2 {
            0 => Value::Array(vec![inner]),
            _ => Value::Object([(String::from("a"), inner)].into_iter().collect()),
        })
    };
    let source = "{% for m in messages %}{{ m.content }}{% endfor %}";
    let messages = |depth| {
        let content = Some(nested(depth));
        [Message::new("user", "a"), Message { content, ..Message::new("user", "") }]
    };
    let text = render_messages(source, &messages(100)).unwrap();
    assert!(text.starts_with("a{'a': [{") && text.ends_with("}]}"), "{text}");
    for depth in [101, 5_000] {
        let refused = render_messages(source, &messages(depth)).unwrap_err().to_string();
        assert!(refused.starts_with("message 1 is nested in more than 100 levels"), "{refused}");
    }
}
