//! `prompt` of `/v1/completions`: texts or tokens.

use std::borrow::Cow;
use std::fmt;

use moeflux_engine::TokenId;
use moeflux_text::{AnswerShape, Infill, Prepared};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, IntoDeserializer, SeqAccess, Visitor};
use serde_json::{Value, json};

use crate::app::App;
use crate::error::{ApiError, ApiResult};
use crate::prepare::{GapFields, prepare_infill};
use crate::request::TokenNumber;

/// Prompts of a request at most.
const MAX_PROMPTS: usize = 16;

const EXPECTED: &str = "text, tokens, or a list of these";

/// Prompts as a request has them: a text, a list of texts, a list of tokens, or a list of those.
#[derive(Clone, Debug)]
pub(crate) struct Prompts(Vec<Given>);

/// A prompt of a request.
#[derive(Clone, Debug)]
enum Given {
    Text(String),
    Tokens(Vec<u32>),
}

/// A prompt, and its text where that is to be repeated.
pub(super) struct Prompt {
    pub(super) prepared: Prepared,
    pub(super) echo: String,
}

impl Prompts {
    /// What the model reads. With a suffix, prompts are texts that end where a gap begins.
    pub(super) fn read(
        self,
        app: &App,
        suffix: Option<&str>,
        echo: bool,
    ) -> ApiResult<Vec<Prompt>> {
        let read = |prompt: Given| match suffix {
            Some(suffix) => prompt.read_before(app, suffix, echo),
            None => prompt.read(app, echo),
        };
        self.0.into_iter().map(read).collect()
    }
}

impl Given {
    fn read(self, app: &App, echo: bool) -> ApiResult<Prompt> {
        let vocab = app.facts.n_logits;
        let tokens = match &self {
            Given::Text(text) => {
                let tokens = app.text.tokenizer().encode_prompt(text, app.text.max_prompt());
                tokens.map_err(|err| ApiError::text_of("prompt", err))?
            }
            Given::Tokens(ids) if ids.iter().all(|id| (*id as usize) < vocab) => {
                ids.iter().copied().map(TokenId).collect()
            }
            Given::Tokens(_) => {
                let problem = format!("tokens are whole numbers below {vocab}");
                return Err(ApiError::field("prompt", problem));
            }
        };
        if tokens.is_empty() {
            return Err(ApiError::field("prompt", "it is empty"));
        }
        let echo = match (echo, self) {
            (false, _) => String::new(),
            (true, Given::Text(text)) => text,
            (true, Given::Tokens(_)) => app.text.tokenizer().decode(&tokens),
        };
        // The text may offer tools in the client's own words: calls are not ruled out.
        Ok(Prompt { prepared: Prepared::of_tokens(tokens), echo })
    }

    /// A text with a gap between this and `suffix`.
    fn read_before(self, app: &App, suffix: &str, echo: bool) -> ApiResult<Prompt> {
        let Given::Text(text) = self else {
            let problem = "it goes with prompts of text: leave it out, or send no tokens";
            return Err(ApiError::field("suffix", problem));
        };
        let infill = Infill { prefix: text, suffix: suffix.to_owned(), ..Infill::default() };
        let prepared = prepare_infill(app, &infill, &AnswerShape::Text, GapFields::SUFFIX)?;
        let echo = if echo { infill.prefix } else { String::new() };
        Ok(Prompt { prepared, echo })
    }
}

impl JsonSchema for Prompts {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        Cow::Borrowed("Prompts")
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let tokens = json!({
            "type": "array",
            "items": generator.subschema_for::<TokenNumber>(),
            "minItems": 1,
        });
        let text = json!({"type": "string", "minLength": 1});
        let list = |item: &Value| json!({"type": "array", "items": item, "minItems": 1, "maxItems": MAX_PROMPTS});
        json_schema!({"anyOf": [text, list(&text), tokens, list(&tokens)]})
    }
}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(PromptsVisitor)
    }
}

struct PromptsVisitor;

impl<'de> Visitor<'de> for PromptsVisitor {
    type Value = Prompts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Prompts, E> {
        Ok(Prompts(vec![Given::Text(text.to_owned())]))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Prompts, E> {
        Ok(Prompts(vec![Given::Text(text)]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Prompts, A::Error> {
        let (mut prompts, mut tokens) = (Vec::new(), Vec::new());
        while let Some(item) = items.next_element()? {
            match item {
                Item::Token(TokenNumber(token)) => tokens.push(token),
                Item::Prompt(prompt) => prompts.push(prompt),
            }
            if !tokens.is_empty() && !prompts.is_empty() {
                return Err(A::Error::custom(format_args!("it must be {EXPECTED}")));
            }
            if prompts.len() > MAX_PROMPTS {
                return Err(A::Error::custom(format_args!("it may hold at most {MAX_PROMPTS}")));
            }
        }
        if !tokens.is_empty() {
            prompts.push(Given::Tokens(tokens));
        }
        if prompts.is_empty() { Err(A::Error::custom("it is empty")) } else { Ok(Prompts(prompts)) }
    }
}

/// An item of a list of prompts.
enum Item {
    Token(TokenNumber),
    Prompt(Given),
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ItemVisitor)
    }
}

struct ItemVisitor;

impl<'de> Visitor<'de> for ItemVisitor {
    type Value = Item;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a token, or a list of tokens")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Item, E> {
        Ok(Item::Prompt(Given::Text(text.to_owned())))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Item, E> {
        Ok(Item::Prompt(Given::Text(text)))
    }

    fn visit_u64<E: Error>(self, token: u64) -> Result<Item, E> {
        TokenNumber::deserialize(token.into_deserializer()).map(Item::Token)
    }

    fn visit_i64<E: Error>(self, token: i64) -> Result<Item, E> {
        TokenNumber::deserialize(token.into_deserializer()).map(Item::Token)
    }

    fn visit_f64<E: Error>(self, token: f64) -> Result<Item, E> {
        TokenNumber::deserialize(token.into_deserializer()).map(Item::Token)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Item, A::Error> {
        let tokens = Vec::<TokenNumber>::deserialize(SeqAccessDeserializer::new(items))?;
        let tokens = tokens.into_iter().map(|TokenNumber(token)| token).collect();
        Ok(Item::Prompt(Given::Tokens(tokens)))
    }
}
