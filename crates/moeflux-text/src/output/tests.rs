//! What models of all families write, taken apart wherever its pieces end.

use moeflux_core::SplitMix64;
use serde_json::{Value, json};

use super::*;

fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "get_weather", "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"}, "days": {"type": "integer"}, "tags": {"type": "array"},
            },
        }}},
        {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}},
    ])
}

/// Deltas of one kind joined, so that only what they say counts.
fn joined(deltas: Vec<Delta>) -> Vec<Delta> {
    let mut all: Vec<Delta> = Vec::new();
    for delta in deltas {
        match (all.last_mut(), delta) {
            (Some(Delta::Content(a)), Delta::Content(b))
            | (Some(Delta::Reasoning(a)), Delta::Reasoning(b))
            | (Some(Delta::Arguments(a)), Delta::Arguments(b)) => a.push_str(&b),
            (_, delta) => all.push(delta),
        }
    }
    all
}

fn parse(format: &OutputFormat, is_thinking: bool, pieces: &[&str]) -> Vec<Delta> {
    let mut parser = OutputParser::new(format, Some(&tools()), is_thinking);
    let mut deltas: Vec<Delta> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    deltas.extend(parser.finish());
    joined(deltas)
}

fn format(tools: ToolSyntax) -> OutputFormat {
    let thinking = match tools {
        ToolSyntax::Harmony => Thinking::Channels,
        _ => Thinking::Tags,
    };
    let calls = Ok(KnownCalls::of(tools));
    OutputFormat { calls, thinking, ..OutputFormat::plain() }
}

#[track_caller]
fn check(syntax: ToolSyntax, text: &str, want: &[Delta]) {
    let format = format(syntax);
    assert_eq!(parse(&format, false, &[text]), want, "{syntax:?}");
    for at in (1..text.len()).filter(|at| text.is_char_boundary(*at)) {
        let (a, b) = text.split_at(at);
        assert_eq!(parse(&format, false, &[a, b]), want, "{syntax:?} {a:?} {b:?}");
    }
    let chars: Vec<String> = text.chars().map(String::from).collect();
    let chars: Vec<&str> = chars.iter().map(String::as_str).collect();
    assert_eq!(parse(&format, false, &chars), want, "{syntax:?}");
}

fn call(name: &str) -> Delta {
    Delta::Call { name: name.to_owned() }
}

fn arguments(text: &str) -> Delta {
    Delta::Arguments(text.to_owned())
}

fn content(text: &str) -> Delta {
    Delta::Content(text.to_owned())
}

fn reasoning(text: &str) -> Delta {
    Delta::Reasoning(text.to_owned())
}

const NESTED: &str = r#"{"city": "a \"}\\{", "tags": [{"x": "]"}]}"#;

#[test]
fn calls_of_channels_are_read_whatever_is_known_of_thoughts() {
    for thinking in [Thinking::Never, Thinking::Tags, Thinking::Channels] {
        let format = OutputFormat { thinking, ..format(ToolSyntax::Harmony) };
        let text = "<|channel|>commentary to=functions.f<|message|>{}<|call|>";
        let want = [call("f"), arguments("{}")];
        assert_eq!(parse(&format, thinking != Thinking::Never, &[text]), want, "{thinking:?}");
    }
}

#[test]
fn hermes_calls() {
    let text = format!(
        "<think>\nHm.\n</think>\n\nLet me see.\n<tool_call>\n{{\"name\": \"get_weather\", \
         \"arguments\": {NESTED}}}\n</tool_call>\n<tool_call>\n{{\"name\": \"now\", \
         \"arguments\": {{}}}}\n</tool_call>"
    );
    check(
        ToolSyntax::Hermes,
        &text,
        &[
            reasoning("Hm."),
            content("Let me see."),
            call("get_weather"),
            arguments(NESTED),
            call("now"),
            arguments("{}"),
        ],
    );
}

#[test]
fn qwen_xml_calls() {
    check(
        ToolSyntax::QwenXml,
        "Well.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nO\"slo\n</x>\n</parameter>\n\
         <parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n\
         </function>\n</tool_call>",
        &[
            content("Well."),
            call("get_weather"),
            arguments(r#"{"city": "O\"slo\n</x>", "days": 3}"#),
            call("now"),
            arguments("{}"),
        ],
    );
}

#[test]
fn glm_calls() {
    check(
        ToolSyntax::Glm,
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rio</arg_value>\n\
         <arg_key>tags</arg_key>\n<arg_value>[\"a\", 1]</arg_value>\n</tool_call>\n\
         <tool_call>now\n</tool_call>",
        &[
            call("get_weather"),
            arguments(r#"{"city": "Rio", "tags": ["a",1]}"#),
            call("now"),
            arguments("{}"),
        ],
    );
}

#[test]
fn minimax_calls() {
    check(
        ToolSyntax::MiniMax,
        "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Bern</parameter>\n\
         </invoke>\n</minimax:tool_call>",
        &[call("get_weather"), arguments(r#"{"city": "Bern"}"#)],
    );
}

#[test]
fn deepseek_calls() {
    check(
        ToolSyntax::DeepSeekFenced,
        &format!(
            "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n\
             {NESTED}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{{}}\n\
             ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
        &[content("I look."), call("get_weather"), arguments(NESTED), call("now"), arguments("{}")],
    );
    check(
        ToolSyntax::DeepSeek,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        &[call("now"), arguments("{}")],
    );
}

#[test]
fn dsml_calls() {
    check(
        ToolSyntax::Dsml,
        "I look.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n\
         <｜DSML｜parameter name=\"city\" string=\"true\">O\"s</b>lo\n</｜DSML｜parameter>\n\
         <｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n\
         <｜DSML｜parameter name=\"tags\" string=\"false\">[\"a\", 1]</｜DSML｜parameter>\n\
         </｜DSML｜invoke>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        &[
            content("I look."),
            call("get_weather"),
            arguments(r#"{"city": "O\"s</b>lo\n", "days": 3, "tags": ["a",1]}"#),
            call("now"),
            arguments("{}"),
        ],
    );
    // What the model says of a value counts, not what the schema does.
    check(
        ToolSyntax::Dsml,
        "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n\
         <｜DSML｜parameter name=\"days\" string=\"true\">3</｜DSML｜parameter>\n\
         <｜DSML｜parameter name=\"city\" string=\"false\">null</｜DSML｜parameter></｜DSML｜invoke>\n\
         </｜DSML｜function_calls>",
        &[call("get_weather"), arguments(r#"{"days": "3", "city": null}"#)],
    );
    // Around the calls DeepSeek-V4 has another tag, and nothing on the line of no argument.
    check(
        ToolSyntax::DsmlToolCalls,
        "So.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"now\">\n\n</｜DSML｜invoke>\n\
         <｜DSML｜invoke name=\"get_weather\">\n\
         <｜DSML｜parameter name=\"city\" string=\"true\">Ulm</｜DSML｜parameter>\n\
         </｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        &[
            content("So."),
            call("now"),
            arguments("{}"),
            call("get_weather"),
            arguments(r#"{"city": "Ulm"}"#),
        ],
    );
}

#[test]
fn kimi_calls() {
    check(
        ToolSyntax::Kimi,
        "So.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0\
         <|tool_call_argument_begin|>{\"city\": \"Ulm\"}<|tool_call_end|><|tool_call_begin|>\
         functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        &[
            content("So."),
            call("get_weather"),
            arguments(r#"{"city": "Ulm"}"#),
            call("now"),
            arguments("{}"),
        ],
    );
}

#[test]
fn harmony_calls() {
    check(
        ToolSyntax::Harmony,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.\
         get_weather <|constrain|>json<|message|>{\"city\": \"Ulm\"}<|call|>",
        &[reasoning("Hm."), call("get_weather"), arguments(r#"{"city": "Ulm"}"#)],
    );
    check(
        ToolSyntax::Harmony,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
        &[reasoning("Hm."), content("Yes.")],
    );
}

#[test]
fn calls_are_text_where_there_are_no_tools() {
    let format = format(ToolSyntax::Hermes);
    let text = "a <tool_call>\n{}\n</tool_call> \n";
    let mut parser = OutputParser::new(&format, None, false);
    let mut deltas = parser.push(text);
    deltas.extend(parser.finish());
    assert_eq!(joined(deltas), [content(text)]);
}

#[test]
fn thinking_that_the_prompt_began_goes_on() {
    let format = format(ToolSyntax::Hermes);
    let want = [reasoning("Hm."), content("Yes. <b> ")];
    assert_eq!(parse(&format, true, &["Hm.\n</thi", "nk>\n\nYes. <b> "]), want);
    assert_eq!(parse(&format, true, &["Hm."]), [reasoning("Hm.")]);
}

#[test]
fn what_is_cut_off_comes_as_far_as_it_goes() {
    let hermes = format(ToolSyntax::Hermes);
    let text = "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": \"b";
    assert_eq!(parse(&hermes, false, &[text]), [call("now"), arguments("{\"a\": \"b")]);
    let xml = format(ToolSyntax::QwenXml);
    let text = "<tool_call>\n<function=get_weather>\n<parameter=city>\nOs";
    assert_eq!(parse(&xml, false, &[text]), [call("get_weather"), arguments("{\"city\": \"Os")]);
}

#[test]
fn templates_tell_the_syntax() {
    for (template, want) in [
        ("{{ tools }}<tool_call>{\"name\"", Some(ToolSyntax::Hermes)),
        ("{{ tools }}<tool_call>\n<function=", Some(ToolSyntax::QwenXml)),
        ("{{ tools }}<tool_call>{{name}}<arg_key>", Some(ToolSyntax::Glm)),
        ("{{ tools }}<｜tool▁calls▁begin｜>```json", Some(ToolSyntax::DeepSeekFenced)),
        ("{{ tools }}<｜tool▁calls▁begin｜>", Some(ToolSyntax::DeepSeek)),
        ("{{ tools }}<|tool_call_argument_begin|>", Some(ToolSyntax::Kimi)),
        ("{{ tools }}<|channel|>commentary to=functions.", Some(ToolSyntax::Harmony)),
        ("{{ tools }}<minimax:tool_call>", Some(ToolSyntax::MiniMax)),
        ("{{ tools }}<｜DSML｜function_calls>", Some(ToolSyntax::Dsml)),
        ("{{ tools }}<｜DSML｜tool_calls>", Some(ToolSyntax::DsmlToolCalls)),
        ("{{ tools }}", None),
    ] {
        assert_eq!(ToolSyntax::described(template), want, "{template}");
    }
}

#[test]
fn null_is_no_text_where_the_schema_has_both() {
    for schema in [
        json!({"type": "string", "nullable": true}),
        json!({"type": ["string", "null"]}),
        json!({"anyOf": [{"type": "string"}, {"type": "null"}]}),
    ] {
        let tools = json!([{"type": "function", "function": {"name": "f", "parameters":
            {"type": "object", "properties": {"a": schema}}}}]);
        let parse = |value: &str| {
            let format = format(ToolSyntax::QwenXml);
            let mut parser = OutputParser::new(&format, Some(&tools), false);
            let mut deltas = parser.push(&format!(
                "<tool_call>\n<function=f>\n<parameter=a>\n{value}\n</parameter>\n</function>\n\
                 </tool_call>"
            ));
            deltas.extend(parser.finish());
            joined(deltas)
        };
        assert_eq!(parse("null"), [call("f"), arguments("{\"a\": null}")]);
        assert_eq!(parse("no"), [call("f"), arguments("{\"a\": \"no\"}")]);
    }
}

/// Text of markup, of its parts, and of what stands around it.
fn fragments(syntax: ToolSyntax) -> Vec<String> {
    let calls = syntax.calls();
    let mut all: Vec<String> = calls.parts().into_iter().map(str::to_owned).collect();
    let halves: Vec<String> =
        all.iter().filter_map(|part| Some(part.get(part.len() / 2..)?.to_owned())).collect();
    all.extend(halves);
    let others = [
        "<think>",
        "</think>",
        "now",
        "get_weather",
        "city",
        "{}",
        "{\"city\": \"Oslo\"}",
        "text",
        "3",
        " ",
        "\n",
        "\n\n",
        "<",
        "\"",
        "}",
        "<|message|>",
        "final",
        "analysis",
        " to=functions.now",
    ];
    all.extend(others.map(String::from));
    all.retain(|text| !text.is_empty());
    all
}

/// Whatever a model writes, where its pieces end does not matter.
#[test]
fn pieces_may_end_anywhere() {
    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};

    for syntax in ToolSyntax::ALL {
        let text = prop::collection::vec(prop::sample::select(fragments(syntax)), 0..14)
            .prop_map(|parts| parts.concat());
        let input = (text, any::<bool>(), any::<u64>());
        let mut runner =
            TestRunner::new(Config { cases: 200, failure_persistence: None, ..Config::default() });
        let format = format(syntax);
        let checked = runner.run(&input, |(text, is_thinking, seed)| {
            let whole = parse(&format, is_thinking, &[&text]);
            let mut random = SplitMix64::new(seed);
            let (mut pieces, mut rest) = (Vec::new(), text.as_str());
            while let Some(c) = rest.chars().next() {
                let want = 1 + random.below(16);
                let ends = rest.char_indices().map(|(at, c)| at + c.len_utf8());
                let end = ends.take(want).last().unwrap_or(c.len_utf8());
                pieces.push(&rest[..end]);
                rest = &rest[end..];
            }
            prop_assert_eq!(whole, parse(&format, is_thinking, &pieces), "{:?}", pieces);
            Ok(())
        });
        checked.unwrap_or_else(|err| panic!("{syntax:?}: {err}"));
    }
}

#[test]
fn thoughts_in_a_channel_that_two_tokens_mark() {
    let format = OutputFormat {
        calls: Err(String::new()),
        thinking: Thinking::Thought,
        ..OutputFormat::plain()
    };
    let text = "<|channel>thought\nHm.\n<channel|>Yes.";
    let want = parse(&format, false, &[text]);
    assert_eq!(want.last(), Some(&Delta::Content(String::from("Yes."))));
    assert!(
        want.iter().any(|delta| matches!(delta, Delta::Reasoning(said) if said.contains("Hm.")))
    );
    for at in 1..text.len() {
        let (a, b) = text.split_at(at);
        assert_eq!(parse(&format, false, &[a, b]), want, "{a:?} {b:?}");
    }
}
