//! Grammars: what models of all families may write, and nothing else.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use moeflux_core::{Dialects, TokenId};
use moeflux_text::{AnswerShape, Constraint, Grammar, Grammars, Markup, OutputFormat, Tokenizer};
use serde_json::{Value, json};

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-cli/demo")
}

/// The demo model's tokenizer with further control tokens and another template.
fn tokenizer(tokens: &[&str], template: &str) -> Arc<Tokenizer> {
    let dir = tempfile::tempdir().unwrap();
    for file in ["generation_config.json", "config.json"] {
        fs::copy(demo().join(file), dir.path().join(file)).unwrap();
    }
    let read = |name: &str| -> Value {
        serde_json::from_slice(&fs::read(demo().join(name)).unwrap()).unwrap()
    };
    let mut json = read("tokenizer.json");
    let added = json["added_tokens"].as_array_mut().unwrap();
    for (token, id) in tokens.iter().zip(8192..) {
        let mut one = added[0].clone();
        (one["id"], one["content"]) = (json!(id), json!(token));
        added.push(one);
    }
    fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
    let mut config = read("tokenizer_config.json");
    config["chat_template"] = json!(template);
    fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    Arc::new(Tokenizer::from_dir(dir.path(), &Dialects::default()).unwrap())
}

struct Subject {
    tokenizer: Arc<Tokenizer>,
    grammars: Grammars,
    grammar: Grammar,
}

impl Subject {
    fn new(tokens: &[&str], template: &str) -> Subject {
        let tokenizer = tokenizer(tokens, template);
        let format = OutputFormat::of(&tokenizer);
        assert!(format.syntax().is_some(), "{template}");
        let grammar = Grammar {
            format,
            is_thinking: false,
            shape: AnswerShape::Text,
            tools: tools(),
            must_call: false,
            may_call_many: true,
        };
        Subject { grammars: Grammars::new(&tokenizer).unwrap(), tokenizer, grammar }
    }

    fn constraint(&self) -> Constraint {
        self.grammars.compile(&self.grammar).unwrap()
    }

    /// Bytes of a text up to where the grammar does not allow it; all of them
    /// and one more where the answer may end there.
    fn accepted(&self, text: &str) -> usize {
        let mut constraint = self.constraint();
        let mut n = 0;
        for token in self.tokenizer.encode(text, Markup::Parse).unwrap() {
            if !allows(&mut constraint, token) {
                return n;
            }
            n += self.tokenizer.token_bytes(token).len();
            if constraint.accept(token).unwrap() {
                return n + 1;
            }
        }
        let eos = self.tokenizer.eos_ids()[0];
        n + usize::from(allows(&mut constraint, eos))
    }

    #[track_caller]
    fn takes(&self, text: &str) {
        let n = self.accepted(text);
        assert_eq!(n, text.len() + 1, "stops before {:?}", text.get(n..));
    }

    #[track_caller]
    fn refuses(&self, text: &str) {
        assert!(self.accepted(text) <= text.len(), "{text:?}");
    }
}

fn allows(constraint: &mut Constraint, token: TokenId) -> bool {
    let mut logits = vec![0.0; 8300];
    constraint.restrict(&mut logits).unwrap();
    logits[token.0 as usize] == 0.0
}

fn tools() -> Vec<Value> {
    let tool = |name, parameters| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    let weather = json!({
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "unit": {"enum": ["C", "F"]},
        },
        "required": ["city"],
        "additionalProperties": false,
    });
    vec![tool("get_weather", weather), tool("now", json!({}))]
}

const HERMES: &str = "{{ tools }}<tool_call>";

#[test]
fn hermes() {
    let mut it = Subject::new(&[], HERMES);
    let call = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>";
    it.takes("Just text, even {\"name\": 1} or tool_call.");
    it.takes(call);
    it.takes(&format!("Let me see.\n{call}\n{call}"));
    it.refuses(
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": 3}}\n</tool_call>",
    );
    it.refuses("<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {}}\n</tool_call>");
    it.refuses("<tool_call>\n{\"name\": \"rm\", \"arguments\": {}}\n</tool_call>");
    it.refuses(&format!("{call} and more text"));
    it.refuses("</tool_call>");
    it.refuses("<|im_start|>user");
    it.grammar.may_call_many = false;
    it.takes(call);
    it.refuses(&format!("{call}\n{call}"));
    it.grammar.must_call = true;
    it.takes(call);
    it.refuses("Just text.");
}

#[test]
fn thinking_comes_first_and_is_free() {
    let mut it = Subject::new(&[], "{{ tools }}<tool_call></think>");
    let call = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    it.grammar.must_call = true;
    it.takes(&format!("<think>\nHm {{.\n</think>\n\n{call}"));
    it.takes(call);
    it.refuses("<think>Hm");
    it.grammar.is_thinking = true;
    it.takes(&format!("Hm.</think>\n\n{call}"));
    it.refuses(call);
    it.grammar.tools = Vec::new();
    it.grammar.must_call = false;
    it.grammar.shape = AnswerShape::Json(json!({"type": "integer"}));
    it.takes("Let me count.</think>\n\n42");
    it.refuses("Let me count.</think>\n\nforty-two");
}

#[test]
fn qwen_xml() {
    let it = Subject::new(&[], "{{ tools }}<tool_call>\n<function=");
    it.takes(
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nO\"s</b>lo\n</parameter>\n\
         <parameter=days>\n3\n</parameter>\n<parameter=unit>\nC\n</parameter>\n</function>\n</tool_call>",
    );
    it.takes("<tool_call>\n<function=now>\n</function>\n</tool_call>");
    it.refuses("<tool_call>\n<function=get_weather>\n</function>\n</tool_call>");
    it.refuses(
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nx\n</parameter>\n<parameter=days>\nmany",
    );
    it.refuses(
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nx\n</parameter>\n<parameter=unit>\nK",
    );
}

#[test]
fn glm() {
    let tokens = ["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"];
    let it = Subject::new(&tokens, "{{ tools }}<tool_call><arg_key>");
    it.takes(
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rio</arg_value>\n\
         <arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
    );
    it.takes("Now.\n<tool_call>now\n</tool_call>\n<tool_call>now\n</tool_call>");
    it.takes(
        "<tool_call>get_weather<arg_key>days</arg_key><arg_value>3</arg_value><arg_key>city</arg_key>\
         <arg_value>Rio</arg_value></tool_call><tool_call>now</tool_call>",
    );
    it.refuses(
        "<tool_call>get_weather\n<arg_key>days</arg_key>\n<arg_value>3</arg_value></tool_call>",
    );
}

#[test]
fn minimax() {
    let tokens = ["<minimax:tool_call>", "</minimax:tool_call>"];
    let it = Subject::new(&tokens, "{{ tools }}<minimax:tool_call>");
    it.takes(
        "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Bern</parameter>\n\
         </invoke>\n</minimax:tool_call>",
    );
    it.takes(
        "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Bern</parameter>\n\
         </invoke>\n<invoke name=\"now\">\n</invoke>\n</minimax:tool_call>",
    );
    it.refuses("<minimax:tool_call>\n<invoke name=\"get_weather\">\n</invoke>");
}

#[test]
fn deepseek() {
    let tokens = [
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
    ];
    let fenced = Subject::new(&tokens, "{{ tools }}<｜tool▁calls▁begin｜>```json");
    let call =
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜>";
    fenced.takes(&format!("<｜tool▁calls▁begin｜>{call}\n{call}<｜tool▁calls▁end｜>"));
    fenced.refuses(&format!("<｜tool▁calls▁begin｜>{call}"));
    let plain = Subject::new(&tokens, "{{ tools }}<｜tool▁calls▁begin｜>");
    plain.takes(
        "Hm.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Ulm\"}\
         <｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    );
    plain.refuses("<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>");
}

#[test]
fn dsml_of_other_tags() {
    let mut it = Subject::new(&["｜DSML｜"], "{{ tools }}<｜DSML｜tool_calls></think>");
    let one = "<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">\
               Ulm</｜DSML｜parameter>\n</｜DSML｜invoke>";
    let now = "<｜DSML｜invoke name=\"now\">\n\n</｜DSML｜invoke>";
    let section = |calls: &str| format!("<｜DSML｜tool_calls>\n{calls}\n</｜DSML｜tool_calls>");
    it.takes(&section(one));
    it.takes(&format!("Let me see.\n\n{}", section(&format!("{now}\n{one}"))));
    it.refuses(&section("<｜DSML｜invoke name=\"get_weather\">\n</｜DSML｜invoke>"));
    it.refuses(&section(one).replace("tool_calls", "function_calls"));
    it.grammar.must_call = true;
    it.grammar.is_thinking = true;
    it.takes(&format!("Hm.</think>\n\n{}", section(now)));
    it.refuses("Hm.</think>Just text.");
}

#[test]
fn dsml() {
    let mut it = Subject::new(&["｜DSML｜"], "{{ tools }}<｜DSML｜function_calls></think>");
    let one = "<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">\
               O\"s</b>lo\n</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">3\
               </｜DSML｜parameter>\n</｜DSML｜invoke>";
    let now = "<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>";
    let section =
        |calls: &str| format!("<｜DSML｜function_calls>\n{calls}\n</｜DSML｜function_calls>");
    it.takes("Just text, a < b even.");
    it.takes(&section(one));
    it.takes(&format!("Let me < see.\n\n{}", section(&format!("{one}\n{now}"))));
    it.takes(&section("<｜DSML｜invoke name=\"now\">\n\n</｜DSML｜invoke>"));
    it.refuses(&format!("{} and more", section(now)));
    it.refuses(&section(""));
    it.refuses(&section("<｜DSML｜invoke name=\"rm\">\n</｜DSML｜invoke>"));
    it.refuses(&section("<｜DSML｜invoke name=\"get_weather\">\n</｜DSML｜invoke>"));
    it.refuses(&section(&one.replace(">3", ">many")));
    it.refuses(&section(&one.replace("\"false\">3", "\"true\">3")));
    it.refuses("A ｜DSML｜ alone");
    it.grammar.may_call_many = false;
    it.refuses(&section(&format!("{one}\n{now}")));
    it.grammar.must_call = true;
    it.takes(&section(now));
    it.refuses("Just text.");
    it.grammar.is_thinking = true;
    it.takes(&format!("Hm <.</think>\n\n{}", section(now)));
    it.grammar.tools = vec![json!({"type": "function", "function": {"name": "put", "parameters": {
        "type": "object", "properties": {"any": {}, "maybe": {"type": ["string", "null"]}},
    }}})];
    it.grammar.is_thinking = false;
    let put = |arguments: &str| {
        section(&format!("<｜DSML｜invoke name=\"put\">\n{arguments}</｜DSML｜invoke>"))
    };
    it.takes(&put(
        "<｜DSML｜parameter name=\"any\" string=\"true\">as it is</｜DSML｜parameter>\n",
    ));
    it.takes(&put("<｜DSML｜parameter name=\"any\" string=\"false\">[1]</｜DSML｜parameter>\n"));
    it.takes(&put("<｜DSML｜parameter name=\"maybe\" string=\"false\">null</｜DSML｜parameter>\n"));
    it.refuses(&put("<｜DSML｜parameter name=\"maybe\" string=\"false\">7</｜DSML｜parameter>\n"));
}

#[test]
fn kimi() {
    let tokens = [
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
    ];
    let it = Subject::new(&tokens, "{{ tools }}<|tool_call_argument_begin|>");
    it.takes(
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>\
         {\"city\": \"Ulm\"}<|tool_call_end|><|tool_call_begin|>functions.now:1\
         <|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
    );
    it.refuses("<|tool_calls_section_begin|><|tool_call_begin|>functions.now:x");
}

#[test]
fn harmony() {
    let tokens =
        ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>"];
    let mut it = Subject::new(&tokens, "{{ tools }}<|channel|>commentary to=functions.");
    let thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant";
    let call = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Ulm\"}";
    it.takes(&format!("{thought}{call}"));
    it.takes(&format!("{thought}<|channel|>final<|message|>Yes."));
    it.takes(&format!(
        "{thought} to=functions.get_weather<|channel|>commentary json<|message|>{{\"city\":\"Ulm\"}}"
    ));
    it.refuses("Yes.");
    it.grammar.must_call = true;
    it.takes(call);
    it.refuses(&format!("{thought}<|channel|>final<|message|>"));
}

#[test]
fn schemas_that_cannot_be_enforced_are_refused() {
    let mut it = Subject::new(&[], HERMES);
    it.grammar.tools = Vec::new();
    for schema in [
        json!({"not": {}}),
        json!(false),
        json!({"if": {}, "then": {}}),
        json!({"type": "nonsense"}),
        json!({"$ref": "#/nowhere"}),
        json!({"type": "string", "pattern": "("}),
    ] {
        it.grammar.shape = AnswerShape::Json(schema.clone());
        let refused = it.grammars.compile(&it.grammar).err();
        let text = refused.unwrap_or_else(|| panic!("{schema} was taken")).to_string();
        assert!(!text.is_empty() && text.lines().count() == 1, "{text}");
    }
}

#[test]
fn whole_numbers_without_bounds_end() {
    let mut it = Subject::new(&[], HERMES);
    it.grammar.tools = Vec::new();
    let inner = json!({"type": "integer"});
    it.grammar.shape = AnswerShape::Json(json!({"type": "array", "items": {"anyOf": [inner]}}));
    it.takes("[9007199254740991, -9007199254740991, 0]");
    it.refuses("[9007199254740992]");
    it.refuses(&format!("[{}", "1".repeat(40)));
    it.grammar.shape = AnswerShape::Json(json!({"type": "integer", "minimum": 0}));
    it.takes(&"7".repeat(40));
}

#[test]
fn objects_have_the_properties_that_their_schemas_list() {
    let mut it = Subject::new(&[], HERMES);
    it.grammar.tools = Vec::new();
    let integer = || json!({"type": "integer"});
    let object = |properties: Value| json!({"type": "object", "properties": properties});
    let a = || object(json!({"a": integer()}));
    let b = || object(json!({"b": integer()}));
    let refer = || json!({"$ref": "#/$defs/A"});
    let defs = || json!({"A": {"type": "object", "properties": {"a": integer()}}});
    for (schema, taken, refused) in [
        (a(), "{\"a\": 1}", "{\"a\": 1, \"x\": 2}"),
        (object(json!({})), "{}", "{\"x\": 1}"),
        (object(json!({"in": a()})), "{\"in\": {\"a\": 1}}", "{\"in\": {\"x\": 1}}"),
        (json!({"type": "array", "items": a()}), "[{\"a\": 1}]", "[{\"x\": 1}]"),
        (json!({"anyOf": [a(), {"type": "null"}]}), "{\"a\": 1}", "{\"x\": 1}"),
        (json!({"anyOf": [a(), b()]}), "{\"b\": 1}", "{\"a\": 1, \"b\": 1}"),
        (json!({"allOf": [a(), b()]}), "{\"a\": 1, \"b\": 1}", "{\"a\": 1, \"x\": 1}"),
        (json!({"allOf": [refer()], "$defs": defs()}), "{\"a\": 1}", "{\"x\": 1}"),
        (
            json!({"allOf": [refer(), b()], "$defs": defs()}),
            "{\"a\": 1, \"b\": 2}",
            "{\"a\": 1, \"x\": 1}",
        ),
        (
            json!({"type": "object", "$defs": defs(), "properties": {
                "one": refer(), "two": {"allOf": [refer(), b()]}}}),
            "{\"one\": {\"a\": 1}, \"two\": {\"a\": 1, \"b\": 2}}",
            "{\"one\": {\"x\": 1}",
        ),
        (
            json!({"type": "object", "properties": {"a": integer()}, "oneOf": [b()]}),
            "{\"a\": 1, \"b\": 2}",
            "{\"a\": 1, \"x\": 2}",
        ),
        (
            json!({"type": "object", "properties": {"a": integer()}, "required": ["a", "z"]}),
            "{\"a\": 1, \"z\": [2]}",
            "{\"a\": 1, \"x\": 2}",
        ),
        (
            json!({"$ref": "#/$defs/N", "$defs": {"N": {"type": "object", "properties": {
                "next": {"anyOf": [{"$ref": "#/$defs/N"}, {"type": "null"}]}}}}}),
            "{\"next\": {\"next\": null}}",
            "{\"next\": {\"x\": null}}",
        ),
    ] {
        it.grammar.shape = AnswerShape::Json(schema);
        it.takes(taken);
        it.refuses(refused);
    }
    for open in [
        json!({"type": "object"}),
        json!({"type": "object", "properties": {"a": integer()}, "additionalProperties": true}),
        json!({"properties": {"a": integer()}, "additionalProperties": integer()}),
        json!({"allOf": [a(), {"additionalProperties": {}}]}),
        json!({"allOf": [{"properties": {"a": {}}, "additionalProperties": integer()}, b()]}),
    ] {
        it.grammar.shape = AnswerShape::Json(open);
        it.takes("{\"a\": 1, \"x\": 2}");
    }
}

#[test]
fn json_is_written_as_templates_write_it() {
    let mut it = Subject::new(&[], HERMES);
    it.grammar.tools = Vec::new();
    it.grammar.shape = AnswerShape::Json(json!({"type": "object"}));
    it.takes("{\"a\": [1, {\"b\": null}], \"c\": \"<|x|>\"}");
    it.refuses("{\"a\":1}");
    it.refuses("{ }");
    it.refuses("text");
    it.refuses("{\"a\": <tool_call>");
}

#[test]
fn a_vocabulary_without_an_end_cannot_be_constrained() {
    let dir = tempfile::tempdir().unwrap();
    let json = fs::read_to_string(demo().join("tokenizer.json")).unwrap();
    let json = json.replace("<|im_end|>", "<|im_done|>").replace("<|endoftext|>", "<|donetext|>");
    fs::write(dir.path().join("tokenizer.json"), json).unwrap();
    let tokenizer = Arc::new(Tokenizer::from_file(&dir.path().join("tokenizer.json")).unwrap());
    let refused = Grammars::new(&tokenizer).err().unwrap().to_string();
    assert!(refused.contains("no token ends an answer"), "{refused}");
}

/// Chains of definitions, each of which refers to the next.
fn chain(n: usize, link: impl Fn(Value) -> Value) -> Value {
    let defs = (0..n).map(|i| {
        let next = format!("#/$defs/d{}", (i + 1) % n);
        (format!("d{i}"), link(json!({"$ref": next})))
    });
    json!({"$ref": "#/$defs/d0", "$defs": defs.collect::<serde_json::Map<_, _>>()})
}

fn nested(n: usize, wrap: impl Fn(Value) -> Value) -> Value {
    (0..n).fold(json!({"type": "null"}), |inner, _| wrap(inner))
}

#[test]
fn schemas_that_hurt_are_compiled_or_refused_soon() {
    let mut it = Subject::new(&[], HERMES);
    let own = json!({"$ref": "#"});
    let schemas = [
        own.clone(),
        json!({"allOf": [own]}),
        json!({"anyOf": [own, own]}),
        json!({"oneOf": [own, {"type": "object", "properties": {"a": own}}]}),
        json!({"allOf": [own, {"type": "object"}], "properties": {"a": {"allOf": [own, own]}}}),
        json!({"type": "object", "properties": {"a": {"$ref": "#", "required": ["b"]}}}),
        json!({"not": own}),
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
        json!({"$ref": "http://localhost:1/x"}),
        json!({"$ref": "#/nowhere/at/all"}),
        json!({"$dynamicRef": "#", "$id": "#"}),
        chain(900, |next| next),
        chain(900, |next| json!({"allOf": [next, {"type": "object"}]})),
        chain(900, |next| json!({"type": "array", "items": next})),
        chain(20_000, |next| json!({"type": "array", "items": next})),
        nested(60, |inner| json!({"type": "array", "items": inner})),
        nested(60, |inner| json!({"anyOf": [inner, {"type": "string"}]})),
        nested(30, |inner| json!({"allOf": [inner, {"minLength": 1}]})),
        json!({"enum": (0..50_000).map(|i| format!("choice {i}")).collect::<Vec<_>>()}),
        json!({"type": "array", "items": {"type": "string"}, "minItems": 1_000_000_000}),
        json!({"type": "array", "maxItems": u64::MAX}),
        json!({"type": "array", "items": {"type": "integer"}, "maxItems": 1_000_000}),
        json!({"type": "string", "minLength": 1_000_000_000}),
        json!({"type": "string", "maxLength": u64::MAX}),
        json!({"type": "string", "maxLength": 10_000_000}),
        json!({"type": "string", "pattern": "(((((a{100}){100}){100}){100}){100})"}),
        json!({"type": "string", "pattern": "^(a|a)*(a|aa)+$"}),
        json!({"type": "string", "pattern": "(?=a)(?<!b)\\1"}),
        json!({"type": "string", "pattern": "(".repeat(100_000)}),
        json!({"type": "string", "pattern": "(a|b)*a(a|b){40}"}),
        json!({"type": "integer", "multipleOf": 1e-300}),
        json!({"type": "number", "minimum": 1e300, "maximum": 1.7e308}),
        json!({"type": "integer", "minimum": -1e18, "maximum": 9e18, "multipleOf": 7919}),
        json!({"type": "object", "patternProperties": {"^(a|b)*$": own, "^(b|c){500}$": own}}),
        json!({"type": "object", "properties": (0..3000).map(|i| (format!("p{i}"), own.clone()))
            .collect::<serde_json::Map<_, _>>()}),
    ];
    let mut kinds = [0, 0];
    for schema in schemas {
        let head: String = schema.to_string().chars().take(100).collect();
        let tool = json!({"function": {"name": "f", "parameters": schema}});
        for is_tool in [false, true] {
            it.grammar.tools = if is_tool { vec![tool.clone()] } else { Vec::new() };
            it.grammar.must_call = is_tool;
            it.grammar.shape =
                if is_tool { AnswerShape::Text } else { AnswerShape::Json(schema.clone()) };
            let started = std::time::Instant::now();
            let compiled = it.grammars.compile(&it.grammar);
            kinds[usize::from(compiled.is_ok())] += 1;
            match compiled {
                // A few tokens along what it allows.
                Ok(mut constraint) => {
                    for _ in 0..4 {
                        let mut logits = vec![0.0; 8300];
                        if constraint.restrict(&mut logits).is_err() {
                            break;
                        }
                        let Some(next) = logits.iter().position(|logit| *logit == 0.0) else {
                            break;
                        };
                        if constraint.accept(TokenId(next as u32)).unwrap_or(true) {
                            break;
                        }
                    }
                }
                Err(err) => assert_eq!(err.to_string().lines().count(), 1, "{err}"),
            }
            let took = started.elapsed();
            assert!(took < std::time::Duration::from_secs(10), "{took:?}: {head}");
        }
    }
    assert!(kinds.iter().all(|n| *n > 5), "refused and compiled: {kinds:?}");
}

#[test]
fn schemas_that_contain_themselves_work() {
    let mut it = Subject::new(&[], HERMES);
    it.grammar.tools = Vec::new();
    it.grammar.shape = AnswerShape::Json(json!({
        "type": "object",
        "properties": {"next": {"$ref": "#"}},
        "additionalProperties": false,
    }));
    it.takes("{\"next\": {\"next\": {}}}");
    it.refuses("{\"next\": 3}");
}
