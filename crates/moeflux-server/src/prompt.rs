//! Prompts to look at: what a chat request becomes, and text as tokens.

use std::sync::Arc;

use hyper::StatusCode;
use moeflux_engine::{EngineError, PictureReader, TokenId};
use moeflux_text::{
    ChatModel, LeftToModel, Markup, OutputFormat, Prepared, Tokenizer, ToolSyntax, Turn,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use crate::app::App;
use crate::conversation::ConversationRequest;
use crate::error::{ApiError, ApiResult};
use crate::model::{Model, ModelFacts};
use crate::offload::offload;
use crate::openai::{ChatRequest, chat};
use crate::pictures::rows_of;
use crate::prepare::{check_constraint, count_pictures, prepare, prompt_text};
use crate::reply::{self, Reply};
use crate::request::{self, Accepted, Body, Request, TokenNumber, object};
use crate::sampling::Sampled;

/// Tokens that a reply may list, where the context is smaller.
const MAX_TOKENIZED: usize = 65_536;

/// What a chat request becomes. As JSON: `prompt`, `tokens` of `id`, `piece` and `control`, `syntax`,
/// `grammar`, `left_to_model`.
#[derive(Clone, Debug)]
pub struct ChatPrompt {
    /// The text that the template writes.
    pub text: String,
    /// What the model reads.
    pub tokens: Vec<TokenId>,
    /// How the model writes thoughts and calls.
    pub format: OutputFormat,
    /// What the answer is held to, in the notation of the grammar library; `None` where it may be
    /// any text.
    pub grammar: Option<String>,
    /// Parts of tools' schemas that the grammar does not hold the model to.
    pub left_to_model: Vec<LeftToModel>,
    tokenizer: Arc<Tokenizer>,
}

/// A token of a prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PromptToken<'a> {
    /// Its number.
    pub id: u32,
    /// Its text.
    pub piece: Piece<'a>,
    /// Whether it is a control token, which no text of a client becomes.
    #[serde(rename = "control")]
    pub is_control: bool,
}

/// What a token adds to a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "PieceText")]
pub enum Piece<'a> {
    /// Text.
    Text(&'a str),
    /// Bytes that are not UTF-8 by themselves.
    Bytes(&'a [u8]),
}

impl Piece<'_> {
    fn of(bytes: &[u8]) -> Piece<'_> {
        std::str::from_utf8(bytes).map_or(Piece::Bytes(bytes), Piece::Text)
    }
}

/// How a model takes pictures; `None` where it takes none.
pub type PicturesOfModel = Result<Option<PictureReader>, EngineError>;

/// Why a chat request is refused.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct RequestError(String);

impl ChatPrompt {
    /// Reads the body of a chat request as the server does, for the model of a tokenizer, which takes pictures
    /// where it has a reader. The rows of a picture are placeholders among the tokens.
    ///
    /// # Errors
    /// Where the server would refuse it; only a request that is too long is not refused, and pictures are not
    /// decoded. Where it has pictures, and how the model takes them could not be read.
    pub fn of(
        tokenizer: Tokenizer,
        pictures: &PicturesOfModel,
        request: Value,
    ) -> Result<ChatPrompt, RequestError> {
        let (model, request) = ChatPrompt::read(tokenizer, pictures, request)?;
        let refuse = |err: ApiError| RequestError(err.message);
        let text = prompt_text(&model, &request).map_err(refuse)?;
        let Prepared { turn, constraint, .. } = prepare(&model, &request).map_err(refuse)?;
        Ok(ChatPrompt {
            text,
            tokens: with_placeholders(turn),
            format: model.text.format().clone(),
            grammar: constraint.as_ref().map(|constraint| constraint.text().to_owned()),
            left_to_model: constraint
                .map_or_else(Vec::new, |constraint| constraint.left_to_model().to_vec()),
            tokenizer: Arc::clone(model.text.tokenizer()),
        })
    }

    /// The text alone, without the time and the memory that its tokens take.
    ///
    /// # Errors
    /// As [`ChatPrompt::of`], but for a text that has no tokens.
    pub fn text_of(
        tokenizer: Tokenizer,
        pictures: &PicturesOfModel,
        request: Value,
    ) -> Result<String, RequestError> {
        let (model, request) = ChatPrompt::read(tokenizer, pictures, request)?;
        let refuse = |err: ApiError| RequestError(err.message);
        check_constraint(&model, &request).map_err(refuse)?;
        prompt_text(&model, &request).map_err(refuse)
    }

    /// The model of a tokenizer, which reads prompts of any length, and a request to it.
    fn read(
        tokenizer: Tokenizer,
        pictures: &PicturesOfModel,
        request: Value,
    ) -> Result<(Model, ConversationRequest), RequestError> {
        let refuse = |err: ApiError| RequestError(err.message);
        let facts = ModelFacts {
            names: Vec::new(),
            any_name: true,
            n_logits: tokenizer.vocab_size(),
            thinking_budget: None,
            sees: !matches!(pictures, Ok(None)),
            fetches_pictures: false,
        };
        let text = Arc::new(ChatModel::new(Arc::new(tokenizer), usize::MAX));
        text.read_templates().map_err(|err| RequestError(err.to_string()))?;
        let model = Model::new(text, facts, Arc::default());
        let (mut request, _) = read(&model, request).map_err(refuse)?;
        let sources = std::mem::take(&mut request.pictures);
        request.conversation.pictures = match pictures {
            Ok(Some(reader)) => rows_of(reader, sources).map_err(refuse)?,
            Err(err) if !sources.is_empty() => return Err(RequestError(err.to_string())),
            Ok(None) | Err(_) => Vec::new(),
        };
        Ok((model, request))
    }

    /// The tokens with their texts.
    pub fn pieces(&self) -> impl Iterator<Item = PromptToken<'_>> {
        self.tokens.iter().map(|id| {
            let bytes = self.tokenizer.token_bytes(*id);
            PromptToken {
                id: id.0,
                piece: Piece::of(bytes),
                is_control: self.tokenizer.is_control(*id),
            }
        })
    }
}

impl Serialize for ChatPrompt {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let shown = Shown {
            prompt: &self.text,
            tokens: Pieces(self),
            syntax: Syntax {
                calls: self.format.syntax().map(ToolSyntax::name),
                example: self.format.call_example().ok(),
                missing: self.format.call_example().err(),
                thinks: self.format.can_think(),
            },
            grammar: self.grammar.as_deref(),
            left_to_model: &self.left_to_model,
        };
        shown.serialize(serializer)
    }
}

/// What a chat request becomes, as JSON.
#[derive(Serialize)]
struct Shown<'a> {
    prompt: &'a str,
    tokens: Pieces<'a>,
    syntax: Syntax<'a>,
    grammar: Option<&'a str>,
    left_to_model: &'a [LeftToModel],
}

/// How the model writes.
#[derive(Serialize)]
struct Syntax<'a> {
    /// The name of the syntax of calls.
    calls: Option<&'static str>,
    /// A call.
    example: Option<String>,
    /// Why the syntax of calls is not known.
    missing: Option<&'a str>,
    /// Whether it can think.
    thinks: bool,
}

/// Written one by one: a prompt can have millions.
struct Pieces<'a>(&'a ChatPrompt);

impl Serialize for Pieces<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.pieces())
    }
}

/// The tokens of a prompt with its vocabulary's placeholders in place of pictures' rows.
fn with_placeholders(turn: Turn) -> Vec<TokenId> {
    let Turn { mut tokens, pictures, .. } = turn;
    for place in pictures {
        tokens[place.start..place.start + place.rows.n_rows].fill(place.placeholder);
    }
    tokens
}

/// A chat request, whose answer is not wanted.
fn read(model: &Model, body: Value) -> ApiResult<(ConversationRequest, Accepted)> {
    let Request { body, mut ignored } = request::read::<Sampled<ChatRequest>>(body)?;
    let Sampled { request, sampling } = body;
    let body = chat::conversation(model, request, sampling, &mut ignored)?;
    Ok((body, ignored.accept(model)?))
}

/// The prompt that a chat request becomes.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Prompt", deny_unknown_fields)]
pub(crate) struct PromptText {
    /// Its text.
    prompt: String,
}

/// `/apply-template`
pub(crate) async fn apply_template(app: Arc<App>, body: Value) -> ApiResult<Reply> {
    let (mut request, ignored) = read(&app, body)?;
    count_pictures(&app, &mut request).await?;
    let prompt = offload(move || prompt_text(&app, &request)).await??;
    Ok(ignored.mark(reply::json(StatusCode::OK, &PromptText { prompt })))
}

/// A text to be made tokens.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct TokenizeRequest {
    /// The text.
    content: String,
    /// Whether the tokens that begin every prompt are added.
    add_special: Option<bool>,
    /// Whether text that looks like a control token becomes one; it does where this is left out.
    parse_special: Option<bool>,
    /// Whether the texts of the tokens are wanted, too.
    with_pieces: Option<bool>,
}

/// Tokens to be made text.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct DetokenizeRequest {
    /// Their numbers.
    tokens: Vec<TokenNumber>,
}

object!(TokenizeRequest, DetokenizeRequest);

impl Body for TokenizeRequest {
    const HINTS: &'static [&'static [&'static str]] = &[&["model"]];
}

impl Body for DetokenizeRequest {
    const HINTS: &'static [&'static [&'static str]] = &[&["model"]];
}

/// Tokens of a text.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct Tokens<'a> {
    /// Their numbers, or objects with numbers and texts.
    tokens: Vec<Token<'a>>,
}

/// A token.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
enum Token<'a> {
    /// Its number.
    Number(u32),
    /// Its number and its text.
    Piece(TokenPiece<'a>),
}

/// A token with its text.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Piece", deny_unknown_fields)]
struct TokenPiece<'a> {
    /// Its number.
    id: u32,
    /// Its text, or a list of its bytes where these are not UTF-8 by themselves.
    piece: Piece<'a>,
}

/// The text of tokens.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct Content {
    /// The text.
    content: String,
}

/// `/tokenize`
pub(crate) async fn tokenize(app: Arc<App>, body: Value) -> ApiResult<Reply> {
    let Request { body, ignored } = request::read::<TokenizeRequest>(body)?;
    let ignored = ignored.accept(&app)?;
    let with_prefix = body.add_special.unwrap_or(false);
    let with_pieces = body.with_pieces.unwrap_or(false);
    let markup = if body.parse_special.unwrap_or(true) { Markup::Parse } else { Markup::Literal };
    let shared = Arc::clone(&app);
    let max_tokens = app.text.ctx().max(MAX_TOKENIZED);
    let tokens = offload(move || {
        let tokenizer = shared.text.tokenizer();
        if with_prefix && markup == Markup::Parse {
            return tokenizer.encode_prompt(&body.content, max_tokens);
        }
        let of_text = tokenizer.encode_within(&body.content, markup, max_tokens)?;
        let begin = if with_prefix { tokenizer.prefix() } else { &[] };
        Ok([begin, &of_text].concat())
    });
    let tokens = tokens.await?.map_err(|err| ApiError::field("content", err.to_string()))?;
    let token = |id: &TokenId| {
        if with_pieces {
            let piece = Piece::of(app.text.tokenizer().token_bytes(*id));
            Token::Piece(TokenPiece { id: id.0, piece })
        } else {
            Token::Number(id.0)
        }
    };
    let tokens = Tokens { tokens: tokens.iter().map(token).collect() };
    Ok(ignored.mark(reply::json(StatusCode::OK, &tokens)))
}

/// `/detokenize`
pub(crate) fn detokenize(app: &App, body: Value) -> ApiResult<Reply> {
    let Request { body, ignored } = request::read::<DetokenizeRequest>(body)?;
    let ignored = ignored.accept(app)?;
    let n = app.facts.n_logits;
    let is_known = |TokenNumber(id): &TokenNumber| (*id as usize) < n;
    if let Some(i) = body.tokens.iter().position(|token| !is_known(token)) {
        let problem = format!("tokens are numbers from 0 to {}", n.saturating_sub(1));
        return Err(ApiError::field(format!("tokens[{i}]"), problem));
    }
    let ids: Vec<TokenId> = body.tokens.iter().map(|TokenNumber(id)| TokenId(*id)).collect();
    let text = app.text.tokenizer().decode(&ids);
    Ok(ignored.mark(reply::json(StatusCode::OK, &Content { content: text })))
}
