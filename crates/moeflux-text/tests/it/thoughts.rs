//! Thoughts that are ended: in every form of marks, and read by the parser as what they were.

use std::fs;
use std::path::Path;

use moeflux_core::{Dialects, TokenId};
use moeflux_text::{Delta, Markup, OutputFormat, OutputParser, Special, Thoughts, Tokenizer};

use crate::templates::write_tokenizer;

/// A tokenizer with a template of the tests, and its output format.
struct Subject {
    tokenizer: Tokenizer,
    format: OutputFormat,
}

impl Subject {
    /// The template with a name; of one with these words where none has it.
    fn of(name: &str) -> Subject {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/templates");
        let own = fs::read_to_string(folder.join(format!("{name}.jinja")));
        let source = own.unwrap_or_else(|_| {
            let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
            let mut all = files.map(|path| fs::read_to_string(path).unwrap());
            all.find(|source| source.contains(name)).unwrap()
        });
        let dir = tempfile::tempdir().unwrap();
        write_tokenizer(dir.path(), &source, &[]);
        let tokenizer = Tokenizer::from_dir(dir.path(), &Dialects::default()).unwrap();
        let format = OutputFormat::of(&tokenizer);
        Subject { tokenizer, format }
    }

    fn tokens(&self, text: &str) -> Vec<TokenId> {
        self.tokenizer.encode(text, Markup::Parse).unwrap()
    }

    fn text(&self, tokens: &[TokenId]) -> String {
        let mut stream = self.tokenizer.stream(Special::Show);
        tokens.iter().map(|token| stream.push(*token)).collect()
    }

    /// Goes on with what a model would say, until thoughts are ended. The tokens so far, those that end
    /// the thoughts included.
    fn until_closed(&self, thoughts: &mut Thoughts, said: &str) -> Vec<TokenId> {
        let mut all = Vec::new();
        for token in self.tokens(said) {
            thoughts.end_if_spent(true, |_| true);
            let forced: Vec<TokenId> = thoughts.forced().collect();
            if !forced.is_empty() {
                forced.iter().for_each(|token| thoughts.accept(*token, &self.tokenizer));
                all.extend(forced);
                return all;
            }
            thoughts.accept(token, &self.tokenizer);
            all.push(token);
        }
        all
    }

    /// What the parser makes of an answer: thoughts and text.
    fn parsed(&self, is_thinking: bool, text: &str) -> [String; 2] {
        let mut parser = OutputParser::new(&self.format, None, is_thinking);
        let mut deltas = parser.push(text);
        deltas.extend(parser.finish());
        let mut parts = [String::new(), String::new()];
        for delta in deltas {
            match delta {
                Delta::Reasoning(more) => parts[0] += &more,
                Delta::Content(more) => parts[1] += &more,
                Delta::Call { .. } | Delta::Arguments(_) => panic!("there are no tools"),
            }
        }
        parts
    }

    fn thoughts(&self, is_thinking: bool, may_call: bool, budget: usize) -> Thoughts {
        let thoughts = self.format.thoughts(is_thinking, may_call).unwrap();
        thoughts.within(Some(budget))
    }
}

const LONG: &str = "I think about it for a long while, and then for another one.";

#[test]
fn thoughts_of_every_form_end_after_their_tokens() {
    for (name, opens, closes) in [
        ("qwen_xml", "<think>\n", "\n</think>\n\n"),
        ("glm_4_5", "<think>", "</think>\n"),
        ("deepseek_v3_1", "<think>", "</think>"),
        ("minimax", "<think>\n", "\n</think>\n\n"),
        ("<|channel>thought", "<|channel>thought\n", "<channel|>"),
        (
            "harmony",
            "<|channel|>analysis<|message|>",
            "<|end|><|start|>assistant<|channel|>final<|message|>",
        ),
    ] {
        let it = Subject::of(name);
        let is_channels = name == "harmony";
        let n_before = it.tokens(opens).len();
        // Line ends behind a mark are tokens of the thought.
        let n_lines = usize::from(opens.ends_with(">\n"));
        for budget in [2, 5] {
            let mut thoughts = it.thoughts(false, false, budget);
            let got = it.until_closed(&mut thoughts, &format!("{opens}{LONG}"));
            let text = it.text(&got);
            let n_thought = budget - n_lines;
            assert!(text.ends_with(closes), "{name}: {text:?}");
            assert_eq!(thoughts.n_tokens(), budget, "{name}");
            assert_eq!(
                got.len(),
                n_before + n_thought + it.tokens(closes).len(),
                "{name} {text:?}"
            );
            let thought = it.text(&it.tokens(LONG)[..n_thought]);
            let [read, said] = it.parsed(false, &format!("{text}Yes."));
            assert_eq!((read.trim(), said.trim()), (thought.trim(), "Yes."), "{name}: {text:?}");
            // No more is thought.
            if is_channels {
                it.until_closed(&mut thoughts, "Yes.<|end|><|start|>assistant<|channel|>");
            }
            let open = it.tokens(if is_channels { "analysis" } else { opens })[0];
            assert!(thoughts.ruled_out().contains(&open), "{name}");
            assert!(thoughts.ruled_out().len() <= thoughts.most_ruled_out());
        }
    }
}

#[test]
fn a_prompt_that_opens_thoughts_begins_them() {
    let it = Subject::of("qwen_xml");
    let mut thoughts = it.thoughts(true, true, 3);
    let text = it.text(&it.until_closed(&mut thoughts, LONG));
    let thought = it.text(&it.tokens(LONG)[..3]);
    assert_eq!(text, format!("{thought}\n</think>\n\n"));
    assert_eq!(it.parsed(true, &format!("{text}Yes.")), [thought, "Yes.".to_owned()]);
    // Thoughts that end by themselves are left alone.
    let mut thoughts = it.thoughts(true, true, 30);
    let own = "Hm.\n</think>\n\nYes, and more than that, much more.";
    assert_eq!(it.text(&it.until_closed(&mut thoughts, own)), own);
    assert_eq!(thoughts.n_tokens(), it.tokens("Hm.\n").len());
}

#[test]
fn a_header_may_name_a_tool_once_before_the_answer_is_final() {
    let it = Subject::of("harmony");
    let mut thoughts = it.thoughts(false, true, 4);
    let opened = format!("<|channel|>analysis<|message|>{LONG}");
    let text = it.text(&it.until_closed(&mut thoughts, &opened));
    assert!(text.ends_with("<|end|><|start|>assistant"), "{text:?}");
    assert!(thoughts.ruled_out().is_empty());
    thoughts.accept(it.tokens("<|channel|>")[0], &it.tokenizer);
    for word in ["analysis", "an", "a"] {
        assert!(thoughts.ruled_out().contains(&it.tokens(word)[0]), "{word}");
    }
    for word in ["commentary", "final"] {
        assert!(!thoughts.ruled_out().contains(&it.tokens(word)[0]), "{word}");
    }
    // Words to the user in front of a call are thoughts, too, and end at once.
    let text = it.text(&it.until_closed(&mut thoughts, "commentary<|message|>I look it up."));
    assert!(text.ends_with("<|channel|>final<|message|>"), "{text:?}");
    assert_eq!(thoughts.n_tokens(), 4);
    // A call is no thought.
    let mut thoughts = it.thoughts(false, true, 4);
    let call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": 1}";
    assert_eq!(it.text(&it.until_closed(&mut thoughts, call)), call);
    assert_eq!(thoughts.n_tokens(), 0);
}

#[test]
fn a_grammar_and_a_character_may_put_the_end_off() {
    let it = Subject::of("qwen_xml");
    let mut thoughts = it.thoughts(true, false, 1);
    let [first, second] = [0, 1].map(|i| it.tokens(LONG)[i]);
    thoughts.accept(first, &it.tokenizer);
    thoughts.end_if_spent(false, |_| true);
    assert_eq!(thoughts.forced().count(), 0);
    thoughts.accept(second, &it.tokenizer);
    thoughts.end_if_spent(true, |_| false);
    assert_eq!(thoughts.forced().count(), 0);
    // The shortest form is the last that is tried.
    thoughts.end_if_spent(true, |tokens| tokens.len() == 1);
    assert_eq!(it.text(&thoughts.forced().collect::<Vec<_>>()), "</think>");
    // Bytes that become no character do not put it off for ever.
    let mut thoughts = it.thoughts(true, false, 0);
    for _ in 0..4 {
        thoughts.end_if_spent(false, |_| true);
    }
    assert!(thoughts.forced().count() > 0);
}

/// What ends thoughts is part of what is kept of an answer's tokens.
#[test]
fn few_tokens_leave_an_answer() {
    for (name, opens) in [
        ("qwen_xml", "<think>\n"),
        ("glm_4_5", "<think>"),
        ("harmony", "<|channel|>analysis<|message|>"),
    ] {
        let it = Subject::of(name);
        for max_tokens in 1..40 {
            let mut thoughts = it.format.thoughts(false, false).unwrap();
            thoughts.limit(max_tokens);
            let got = it.until_closed(&mut thoughts, &format!("{opens}{LONG}"));
            // The shortest way takes a token of tags, and of channels two and the role's.
            let least = it.tokens(opens).len() + if name == "harmony" { 8 } else { 2 };
            assert!(
                got.len() < max_tokens || max_tokens < least,
                "{name} {max_tokens}: {}",
                it.text(&got)
            );
        }
    }
}
