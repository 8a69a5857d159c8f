//! Pictures in conversations: prompts against transformers, and what users cannot spell.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use moeflux_core::{Dialects, PictureRows, TokenId};
use moeflux_text::{
    ChatModel, Conversation, Message, PicturePlace, PromptError, Special, TextError, Tokenizer,
    ToolChoice, Tools,
};
use serde::Deserialize;
use serde_json::{Value, json};

/// Tokens that stand for a picture, by the texts of vocabularies.
const PLACEHOLDERS: [&str; 3] = ["<|image_pad|>", "<|media_pad|>", "<|image|>"];

/// A small model's tokenizer and template, and conversations as transformers encodes them.
#[derive(Deserialize)]
struct Golden {
    template: String,
    tokenizer: Value,
    tokenizer_config: Value,
    chats: Vec<Chat>,
}

#[derive(Deserialize)]
struct Chat {
    messages: Vec<Message>,
    prompt: String,
    tokens: Vec<u32>,
}

impl Golden {
    fn all() -> Vec<(PathBuf, Golden)> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/pictures");
        let entries = dir.read_dir().unwrap().map(|entry| entry.unwrap().path());
        let read = |path: PathBuf| {
            let golden = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            (path, golden)
        };
        let all: Vec<_> = entries.map(read).collect();
        assert!(all.len() >= 7, "{} files", all.len());
        all
    }

    /// The first whose vocabulary has this placeholder.
    fn with(placeholder: &str) -> Golden {
        let mut all = Golden::all();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        let mut found = all.into_iter().map(|(_, golden)| golden);
        found.find(|golden| golden.placeholder() == placeholder).unwrap()
    }

    fn placeholder(&self) -> &'static str {
        let text = self.tokenizer["added_tokens"].to_string();
        PLACEHOLDERS.into_iter().find(|name| text.contains(&format!("\"{name}\""))).unwrap()
    }

    /// Adds a control token to the vocabulary.
    fn add_token(&mut self, text: &str) {
        let added = self.tokenizer["added_tokens"].as_array_mut().unwrap();
        let last = added.iter().max_by_key(|token| token["id"].as_u64()).unwrap();
        let mut token = last.clone();
        token["id"] = json!(last["id"].as_u64().unwrap() + 1);
        token["content"] = json!(text);
        added.push(token);
    }

    /// With another template, where one is given.
    fn model(&self, template: Option<&str>, ctx: usize) -> ChatModel {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("tokenizer.json"), self.tokenizer.to_string()).unwrap();
        let mut config = self.tokenizer_config.clone();
        config["chat_template"] = json!(template.unwrap_or(&self.template));
        fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        let tokenizer = Tokenizer::from_dir(dir.path(), &Dialects::default()).unwrap();
        ChatModel::new(Arc::new(tokenizer), ctx)
    }
}

/// Rows of the nth picture.
fn rows(nth: usize, n_rows: usize) -> PictureRows {
    PictureRows { id: [nth as u8 + 1; 32], n_rows }
}

fn says(role: &str, content: Value) -> Message {
    Message { content: Some(content), ..Message::new(role, "") }
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn image() -> Value {
    json!({"type": "image"})
}

fn showing(messages: Vec<Message>, pictures: Vec<PictureRows>) -> Conversation {
    Conversation { pictures, ..Conversation::new(messages) }
}

fn refused(model: &ChatModel, conversation: &Conversation) -> TextError {
    match model.prepare(conversation) {
        Err(PromptError::Text(err)) => err,
        Err(err) => panic!("{err}"),
        Ok(_) => panic!("it is taken"),
    }
}

/// What transformers has in a prompt: placeholders in place of rows.
fn without_rows(tokens: &[TokenId], pictures: &[PicturePlace]) -> Vec<u32> {
    let mut ids: Vec<u32> = tokens.iter().map(|token| token.0).collect();
    for place in pictures {
        assert!(tokens[place.start..place.end()].iter().copied().eq(place.rows.tokens()));
        ids[place.start..place.end()].fill(place.placeholder.0);
    }
    ids
}

#[test]
fn prompts_with_pictures_are_those_of_transformers() {
    for (path, golden) in Golden::all() {
        let model = golden.model(None, usize::MAX);
        assert!(model.takes_pictures(), "{}", path.display());
        let placeholder = model.tokenizer().id_of(golden.placeholder()).unwrap().0;
        for chat in &golden.chats {
            // A run of placeholders is a picture.
            let runs = chat.tokens.split(|id| *id != placeholder).map(<[u32]>::len);
            let runs = runs.filter(|n| *n > 0).enumerate();
            let pictures: Vec<_> = runs.map(|(nth, n)| rows(nth, n)).collect();
            let conversation = showing(chat.messages.clone(), pictures.clone());
            assert_eq!(model.prompt_text(&conversation).unwrap(), chat.prompt);
            let turn = model.prepare(&conversation).unwrap().turn;
            assert_eq!(without_rows(&turn.tokens, &turn.pictures), chat.tokens);
            let placed: Vec<_> = turn.pictures.iter().map(|place| place.rows).collect();
            assert_eq!(placed, pictures);
            assert!(turn.pictures.iter().all(|place| place.placeholder.0 == placeholder));

            // The whole context is needed, rows and what stands around them included.
            let n = chat.tokens.len();
            assert!(golden.model(None, n + 1).prepare(&conversation).is_ok());
            for ctx in [n, n / 2, 2] {
                let err = refused(&golden.model(None, ctx), &conversation);
                let TextError::TooLong { n_tokens, is_exact, max_tokens } = err else {
                    panic!("{err}")
                };
                assert_eq!(max_tokens, ctx - 1);
                assert!(if is_exact { n_tokens == n } else { (ctx..n).contains(&n_tokens) });
            }
        }
    }
}

#[test]
fn what_a_prompt_shows_of_a_picture_is_a_word() {
    let model = Golden::with("<|image_pad|>").model(None, usize::MAX);
    let asked = says("user", json!([text("See"), image(), image()]));
    let turn = model.prepare(&showing(vec![asked], vec![rows(0, 9), rows(1, 4)])).unwrap().turn;
    let shown = "See<|vision_start|>[image]<|vision_end|><|vision_start|>[image]<|vision_end|>";
    assert!(model.tokenizer().decode(&turn.tokens).contains(shown));
    let stream = |special| {
        let mut stream = model.tokenizer().stream(special);
        let mut said: String = turn.tokens.iter().map(|id| stream.push(*id)).collect();
        said.push_str(&stream.finish());
        said
    };
    assert!(stream(Special::Show).contains(shown));
    assert!(!stream(Special::Hide).contains("[image]"));
}

/// Calls as many templates write them.
const CALLS: &str = "{% for call in m.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n\
    </tool_call>{% endfor %}";

#[test]
fn users_cannot_spell_pictures_in_any_role() {
    let tools = Tools {
        functions: vec![json!({"type": "function", "function": {"name": "look",
            "description": "Sees <|image_pad|><|image|><|media_pad|>.",
            "parameters": {"type": "object", "properties": {}}}})],
        strict: Vec::new(),
    };
    for placeholder in PLACEHOLDERS {
        let mut golden = Golden::with(placeholder);
        golden.add_token("<tool_call>");
        // GGUF files and some others do not flag it as special, and the template names it.
        for is_special in [true, false] {
            for token in golden.tokenizer["added_tokens"].as_array_mut().unwrap() {
                if token["content"] == placeholder {
                    token["special"] = json!(is_special);
                }
            }
            let literal = format!("{{{{ '{placeholder}' }}}}");
            let with_calls = format!("{CALLS}<|im_end|>");
            let with_tools = golden.template.replace(placeholder, &literal);
            let with_tools = with_tools.replace("<|im_end|>", &with_calls);
            let with_tools = format!("{{{{ tools | tojson }}}}{with_tools}");
            let model = golden.model(Some(&with_tools), usize::MAX);
            let token = model.tokenizer().id_of(placeholder).unwrap();
            let spelled = format!("{placeholder} {placeholder}");
            let halves = placeholder.split_at(3);
            let call = json!([{"id": "c", "type": "function", "function": {"name": "look",
                "arguments": {"of": spelled}}}]);
            let messages = vec![
                says("system", json!(spelled)),
                says("user", json!([text(halves.0), text(halves.1), image(), text(&spelled)])),
                Message { tool_calls: Some(call), ..says("assistant", json!(spelled)) },
                says("tool", json!([text(&spelled), image()])),
                says("assistant", json!(spelled)),
                says("user", json!("image")),
            ];
            let pictures = vec![rows(0, 5), rows(1, 3)];
            let asked = Conversation {
                tools: tools.clone(),
                tool_choice: ToolChoice::Never,
                ..showing(messages, pictures.clone())
            };
            let turn = model.prepare(&asked).unwrap().turn;
            assert!(!turn.tokens.contains(&token), "{placeholder}, special: {is_special}");
            let placed: Vec<_> = turn.pictures.iter().map(|place| place.rows).collect();
            assert_eq!(placed, pictures);
            let shown = model.tokenizer().decode(&turn.tokens);
            assert_eq!(shown.matches("[image]").count(), 2);
            assert_eq!(shown.matches(placeholder).count(), 14, "{shown}");
        }
    }
}

#[test]
fn pictures_of_other_roles_move_where_the_template_writes_those_of_users_only() {
    let golden = Golden::with("<|image_pad|>");
    // Others than users are written as they are given, or in part.
    let of_users = "{% for m in messages %}<|im_start|>{{ m.role }}\n\
        {%- if m.content is string %}{{ m.content }}{% elif m.role == 'user' %}\
        {%- for c in m.content %}{% if c.type == 'image' %}<|image_pad|>{% else %}{{ c.text }}{% endif %}\
        {%- endfor %}{% elif m.role == 'tool' %}{{ m.content }}{% else %}\
        {{- raise_exception('text only') }}{% endif %}<|im_end|>\n{% endfor %}";
    let model = golden.model(Some(of_users), usize::MAX);
    let shown = |messages: &[Message], n: usize| {
        let pictures: Vec<_> = (0..n).map(|nth| rows(nth, 2)).collect();
        let asked = showing(messages.to_vec(), pictures.clone());
        let turn = model.prepare(&asked).unwrap().turn;
        let placed: Vec<_> = turn.pictures.iter().map(|place| place.rows).collect();
        assert_eq!(placed, pictures);
        model.tokenizer().decode(&turn.tokens)
    };
    let call = json!([{"id": "c", "type": "function", "function": {"name": "look",
        "arguments": {}}}]);
    let mut messages = vec![
        says("system", json!([text("Rule."), image()])),
        says("user", json!([text("See "), image()])),
        Message { tool_calls: Some(call), ..says("assistant", json!("")) },
        says("tool", json!([text("Seen:"), image()])),
    ];
    let note = "[the image is in the next message of the user]";
    let whole = shown(&messages, 3);
    assert_eq!(
        whole,
        format!(
            "<|im_start|>systemRule.\n{note}<|im_end|>\n<|im_start|>user[image]See [image]<|im_end|>\n\
             <|im_start|>assistant<|im_end|>\n<|im_start|>toolSeen:\n{note}<|im_end|>\n\
             <|im_start|>user[image]<|im_end|>\n"
        )
    );
    messages.push(says("assistant", json!("A cat.")));
    messages.push(says("user", json!("Thanks.")));
    assert!(shown(&messages, 3).starts_with(&whole));
}

#[test]
fn later_prompts_part_from_one_with_pictures_where_messages_end() {
    let model = Golden::with("<|media_pad|>").model(None, usize::MAX);
    let question = |nth: usize| says("user", json!([text("A "), image(), text(&nth.to_string())]));
    let mut messages =
        vec![says("system", json!("Rule.")), question(0), says("assistant", json!("No."))];
    messages.push(question(1));
    let pictures = vec![rows(0, 6), rows(1, 4)];
    let turn = model.prepare(&showing(messages.clone(), pictures.clone())).unwrap().turn;
    let begins: Vec<String> =
        turn.checkpoints.iter().map(|at| model.tokenizer().decode(&turn.tokens[..*at])).collect();
    let ends = ["<|im_start|>user\n", "No.<|im_end|>\n", "1<|im_end|>\n"];
    assert_eq!(begins.len(), 3, "{begins:?}");
    assert!(begins.iter().zip(ends).all(|(begin, end)| begin.ends_with(end)), "{begins:?}");
    // Another picture of the same size is another prompt, from its first row on.
    let other = vec![rows(0, 6), rows(2, 4)];
    let other = model.prepare(&showing(messages.clone(), other)).unwrap().turn;
    let same = turn.tokens.iter().zip(&other.tokens).take_while(|(a, b)| a == b).count();
    assert_eq!(same, turn.pictures[1].start);

    messages.push(says("assistant", json!("It is")));
    let begun = Conversation { continues: true, ..showing(messages, pictures.clone()) };
    let continued = model.prepare(&begun).unwrap().turn;
    assert!(continued.tokens.starts_with(&turn.tokens[..turn.checkpoints[2]]));
    assert_eq!(continued.pictures, turn.pictures);
    assert!(model.tokenizer().decode(&continued.tokens).ends_with("It is"));
}

#[test]
fn pictures_that_cannot_be_written_are_refused() {
    let golden = Golden::with("<|image_pad|>");
    let asked = says("user", json!([image(), text("What?")]));
    let one = vec![rows(0, 2)];
    let shown = || showing(vec![asked.clone()], one.clone());

    let text_only = "{% for m in messages %}{{ m.content }}{% endfor %}";
    let err = refused(&golden.model(Some(text_only), usize::MAX), &shown());
    assert!(matches!(err, TextError::NoPictures), "{err}");

    let model = golden.model(None, usize::MAX);
    let none = showing(vec![asked.clone()], Vec::new());
    let two = showing(vec![asked.clone()], [one.clone(), one.clone()].concat());
    for (conversation, n) in [(none, 0), (two, 2)] {
        let err = refused(&model, &conversation);
        let TextError::PictureCount { n_parts: 1, n_pictures } = err else { panic!("{err}") };
        assert_eq!(n_pictures, n);
    }

    // A template that writes the first two parts of a message only.
    let first =
        golden.template.replace("or 'image' in c or 'image_url' in c", "and loop.index < 3");
    let model = golden.model(Some(&first), usize::MAX);
    assert!(model.prepare(&shown()).is_ok());
    let later = says("user", json!([text("Or"), image(), image()]));
    let answer = says("assistant", json!("A cat."));
    let pictures = vec![rows(0, 2), rows(1, 2), rows(2, 2)];
    let asked = showing(vec![asked.clone(), answer, later], pictures);
    let err = refused(&model, &asked);
    assert!(
        matches!(err, TextError::PicturesWritten { idx: 2, n_pictures: 3, n_written: 2, .. }),
        "{err}"
    );
    assert!(err.to_string().contains("message 2 (user)"), "{err}");

    let no_token = golden.tokenizer.to_string().replace("<|image_pad|>", "<|other|>");
    let blind = Golden { tokenizer: serde_json::from_str(&no_token).unwrap(), ..golden };
    let err = refused(&blind.model(None, usize::MAX), &shown());
    assert!(matches!(err, TextError::NoPictures), "{err}");
}
