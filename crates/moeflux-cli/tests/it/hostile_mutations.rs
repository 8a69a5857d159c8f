//! Random damage to chat templates and tokenizers: rendered, encoded or refused, never a panic,
//! an abort or a wait. `MOEFLUX_MUTATION_SECONDS` sets how long each test goes on.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::golden;
use moeflux_core::SplitMix64;
use moeflux_text::{
    ChatTemplate, Markup, MarkupText, Message, RenderRequest, Tokenizer, render_in_children,
};

/// Draws places in texts.
struct Damage(SplitMix64);

impl Damage {
    fn pick<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.0.below(all.len())]
    }

    fn boundary(&mut self, text: &str) -> usize {
        let mut at = self.0.below(text.len() + 1);
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        at
    }

    /// Cuts, repeats, moves and inserts parts of a text.
    fn apply(&mut self, text: &str, words: &[&str]) -> String {
        let mut text = text.to_owned();
        for _ in 0..=self.0.below(4) {
            let (a, b) = (self.boundary(&text), self.boundary(&text));
            let (start, end) = (a.min(b), a.max(b).min(a.min(b) + 200));
            let end = (start..=end).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(start);
            let part = text[start..end].to_owned();
            match self.0.below(6) {
                0 => text.replace_range(start..end, ""),
                1 => text.insert_str(start, &part.repeat(1 + self.0.below(3))),
                2 => text.insert_str(start, &part.repeat(self.0.below(200_000 / (part.len() + 1)))),
                3 => text.replace_range(start..end, self.pick(words)),
                _ => text.insert_str(start, self.pick(words)),
            }
            if text.len() > 1 << 20 {
                break;
            }
        }
        text
    }
}

fn time() -> Duration {
    let seconds = std::env::var("MOEFLUX_MUTATION_SECONDS");
    Duration::from_secs(seconds.ok().and_then(|second| second.parse().ok()).unwrap_or(5))
}

/// Runs `one` with ever new seeds; none may take long.
fn repeat(mut one: impl FnMut(&mut Damage) -> String) {
    let (started, mut n) = (Instant::now(), 0);
    while started.elapsed() < time() {
        let began = Instant::now();
        let what = one(&mut Damage(SplitMix64::new(n)));
        let head: String = what.chars().take(2000).collect();
        assert!(began.elapsed() < Duration::from_secs(8), "{n}: {:?} {head}", began.elapsed());
        n += 1;
    }
    assert!(n > 20, "{n} are too few to mean anything");
    eprintln_count(n);
}

#[expect(clippy::print_stderr, reason = "says how much a longer run tried")]
fn eprintln_count(n: u64) {
    eprintln!("{n} mutants");
}

fn renderer() -> io::Result<Command> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_moeflux"));
    command.arg("@render-chat-templates");
    Ok(command)
}

fn messages() -> Vec<Message> {
    vec![
        Message::new("system", "You are <helpful>."),
        Message::new("user", "Hello there </think> [x]"),
        Message::new("assistant", "<think>so</think>Well."),
        Message::new("user", "Go on"),
    ]
}

fn render(source: &str, messages: &[Message]) -> Result<usize, String> {
    let template = ChatTemplate::new(source, MarkupText::default());
    let request = RenderRequest { messages, add_generation_prompt: true, ..Default::default() };
    let rendered = template.and_then(|template| template.render(&request));
    rendered.map(|rendered| rendered.text().len()).map_err(|err| err.to_string())
}

const JINJA: [&str; 40] = [
    "{% set ns=namespace(s='x') %}",
    "{% set ns.s = ns.s ~ ns.s %}",
    "{% set ns.s = [ns.s, ns.s] %}",
    "{% set ns.s = ns %}",
    "{% for i in range(100000) %}",
    "{% for m in messages recursive %}{{ loop(messages) }}",
    "{% endfor %}",
    "{% if true %}",
    "{% endif %}",
    "{{ ns }}",
    "{{ ns|tojson(indent=64) }}",
    "{% macro m(a) %}{{ m(a ~ a) }}{% endmacro %}{{ m('x') }}",
    "{{ messages * 1000000 }}",
    "{{ 'x' * 100000000 }}",
    "{{ '%999999999d'|format(3) }}",
    "{{ '%*.*f'|format(99999999, 99999999, 1) }}",
    "{{ messages|batch(99999999, 1)|list }}",
    "{{ messages|slice(99999999)|list }}",
    "{{ 'x'|center(999999999) }}",
    "{{ 'a\nb'|indent(999999999) }}",
    "{{ messages[::-1]|list|sort|unique|list }}",
    "{{ messages[::-9223372036854775808] }}",
    "{{ 'é'[9223372036854775807:-9223372036854775808] }}",
    "{{ -9223372036854775808 // -1 }}",
    "{{ 2 ** 99999 }}",
    "{{ 1e308 * 1e308 }}",
    "{{ strftime_now('%Q%-%') }}",
    "{{ strftime_now('%Y' * 100000) }}",
    "{{ 'x'.replace('', 'yyyyyyyyyyyyyyyy' * 1000000) }}",
    "{{ dict(a=dict(a=ns)) == ns }}",
    "{{ range(0, 99999999999, 1)|list|length }}",
    "{{ range(-9223372036854775808, 9223372036854775807)|list }}",
    "{{ [[]]|sum(start=[]) }}",
    "{{ 1 if ",
    "|map('upper')|list",
    "|groupby('role')|tojson",
    "|round(-999999999)",
    ".split('')",
    "((((((((((((((((((((",
    "[1,[2,[3,{'a':[",
];

fn seeds() -> Vec<String> {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("demo/chat_template.jinja");
    let families = Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-model/src/families");
    let own = families.join("deepseek_v32/template.jinja");
    let deep = |n: usize| format!("{{{{ {}1 }}}}", "1+".repeat(n));
    let nest = "{% set ns=namespace(s=[]) %}{% for i in range(9000) %}{% set ns.s=[ns.s] %}\
                {% endfor %}{{ ns.s }}";
    [demo, own]
        .map(|path| fs::read_to_string(path).unwrap())
        .into_iter()
        .chain([deep(5000), nest.to_owned(), JINJA.concat()])
        .collect()
}

#[test]
fn mutated_templates_render_or_are_refused() {
    render_in_children(renderer);
    let (seeds, messages) = (seeds(), messages());
    repeat(|damage| {
        let seed = &seeds[damage.0.below(seeds.len())];
        let source = damage.apply(seed, &JINJA);
        if let Err(reason) = render(&source, &messages) {
            assert_eq!(reason.lines().count(), 1, "{reason:?}");
            assert!(reason.len() < 1000 && !reason.contains("does not start"), "{reason:?}");
        }
        source
    });
}

#[test]
fn long_conversations_render() {
    render_in_children(renderer);
    let seeds = seeds();
    // About 100,000 tokens each: many short turns, and a few long ones.
    for (n_turns, words) in [(4000, 20), (40, 2000)] {
        let turn = |i: usize| {
            let role = if i.is_multiple_of(2) { "user" } else { "assistant" };
            Message::new(role, "some words <b> ".repeat(words / 4))
        };
        let messages: Vec<Message> = (0..n_turns).map(turn).collect();
        let n_bytes: usize = n_turns * words / 4 * 15;
        for source in &seeds[..2] {
            let rendered = render(source, &messages).unwrap();
            assert!(rendered > n_bytes * 9 / 10, "{rendered} of {n_bytes}");
        }
    }
}

const TOKENIZER: [&str; 22] = [
    "0",
    "-1",
    "4294967295",
    "1e400",
    "null",
    "\"\"",
    "[]",
    "{}",
    "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"\"},\"content\":\"x\"},",
    "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"x*\"},\"content\":\"xy\"},",
    "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"(?=a)|$\"},\"content\":\"y\"},",
    "\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"BAAAAAAAAABh\"},",
    "\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"BAAAAP////8A\"},",
    "\"pre_tokenizer\":{\"type\":\"FixedLength\",\"length\":0},",
    "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a|aa)+(?=c)$\"},\
     \"behavior\":\"Isolated\",\"invert\":false},",
    "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?=a{999}){999}\"},\
     \"behavior\":\"Isolated\",\"invert\":false},",
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":\
     {\"id\":\"?\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{}},",
    "\"truncation\":{\"direction\":\"Right\",\"max_length\":1,\"strategy\":\"LongestFirst\",\
     \"stride\":99},",
    "\"padding\":{\"strategy\":{\"Fixed\":99999999999},\"direction\":\"Left\",\
     \"pad_to_multiple_of\":0,\"pad_id\":0,\"pad_type_id\":0,\"pad_token\":\"x\"},",
    "\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"\",-1e308],[\"a\",1e308]]},",
    "\"continuing_subword_prefix\":\"longer than any token\",",
    "\"end_of_word_suffix\":\"longer than any token\",",
];

#[test]
fn mutated_tokenizers_encode_or_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    let seed = fs::read_to_string(golden("hf-bf16").join("tokenizer.json")).unwrap();
    let mut n_open = 0;
    repeat(|damage| {
        let mut json = damage.apply(&seed, &TOKENIZER);
        if damage.0.below(2) == 0 {
            // A later key counts, and this one stays valid.
            let end = json.rfind('}').unwrap_or_default();
            let last = damage.pick(&TOKENIZER[8..20]);
            json.insert_str(end, &format!(",{}", last.trim_end_matches(',')));
        }
        fs::write(&path, &json).unwrap();
        match Tokenizer::from_file(&path) {
            Ok(tokenizer) => {
                n_open += 1;
                for text in ["", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", "<|im_start|> Hé 世界\n\n"]
                {
                    for markup in [Markup::Parse, Markup::Literal] {
                        let ids = tokenizer.encode(text, markup);
                        drop(ids.map(|ids| tokenizer.decode(&ids)));
                    }
                }
                tokenizer.markup_text();
            }
            Err(err) => assert!(err.to_string().contains("tokenizer.json"), "{err}"),
        }
        json
    });
    assert!(n_open > 0);
}
