//! How an answer is made.

use std::sync::Arc;

use moeflux_engine::sampler::SamplerOptions as Sampling;
use moeflux_engine::{Bias, SeenPicture};
use moeflux_text::{AnswerShape, Conversation, Message, Tokenizer, ToolChoice, Tools};
use serde_json::Value;

use crate::pictures::rows;

/// The form of an answer's text.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Format {
    /// Any text.
    #[default]
    Text,
    /// JSON that follows this JSON schema.
    Json(Value),
}

impl Format {
    pub(crate) fn shape(&self) -> AnswerShape {
        match self {
            Format::Text => AnswerShape::Text,
            Format::Json(schema) => AnswerShape::Json(schema.clone()),
        }
    }
}

/// How tokens are chosen, and where the answer ends.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Tokens at most; where absent, as many as the context has room for.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer; they are not part of it.
    pub stop: Vec<String>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Changes of the logits before that.
    pub bias: Bias,
    /// How many of the likeliest tokens are reported with the probability of each token; where
    /// absent, no probabilities are reported.
    pub top_logprobs: Option<usize>,
}

/// How an answer is made. The default is what the makers of the model recommend.
///
/// ```
/// use moeflux::Request;
///
/// let request = Request::default().max_tokens(200).stop(["\n\n"]);
/// assert_eq!(request.max_tokens, Some(200));
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Request {
    /// Tokens at most; where absent, as many as the context has room for.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer; they are not part of it.
    pub stop: Vec<String>,
    /// How tokens are chosen; where absent, as the model's files say, else as
    /// llama.cpp does ([`Sampling::USUAL`]).
    pub sampling: Option<Sampling>,
    /// Whether the model thinks before it answers, for models that can be asked to; as its chat
    /// template has it where absent.
    pub thinking: Option<bool>,
    /// Tokens that the model thinks at most; then its thoughts are ended, and the answer goes on. 0 asks
    /// for no thoughts. Where absent, thoughts leave a quarter of `max_tokens`, or 512 tokens, to the
    /// answer.
    pub thinking_budget: Option<usize>,
    /// The form of the text.
    pub format: Format,
    /// Tools that the model may call, each as `{"type": "function", "function": {…}}`.
    pub tools: Vec<Value>,
    /// Names of tools whose arguments must follow their schema in every respect: a schema that
    /// cannot be enforced is refused.
    pub strict: Vec<String>,
    /// Whether the model may, or must, call a tool; as it sees fit where absent.
    pub tool_choice: Option<ToolChoice>,
    /// Whether the model calls at most one tool.
    pub one_call: bool,
    /// Whether the last message is the beginning of the answer.
    pub continues: bool,
    /// Text that the answer is expected to repeat in large parts, such as a file that it edits. It
    /// makes the answer faster and changes no token.
    pub expected: Option<String>,
    /// Pictures of the messages ([`picture_message`](crate::picture_message)), in any order.
    pub pictures: Vec<Arc<SeenPicture>>,
    /// Changes of the logits before a token is chosen.
    pub bias: Bias,
    /// How many of the likeliest tokens [`Answer::logprobs`](crate::Answer::logprobs) has with
    /// each token; where absent, it has none.
    pub top_logprobs: Option<usize>,
}

impl Request {
    /// Sets [`max_tokens`](Request::max_tokens).
    #[must_use]
    pub fn max_tokens(mut self, n: usize) -> Request {
        self.max_tokens = Some(n);
        self
    }

    /// Sets [`stop`](Request::stop).
    #[must_use]
    pub fn stop<T: Into<String>>(mut self, texts: impl IntoIterator<Item = T>) -> Request {
        self.stop = texts.into_iter().map(Into::into).collect();
        self
    }

    /// Sets [`sampling`](Request::sampling).
    #[must_use]
    pub fn sampling(mut self, sampling: Sampling) -> Request {
        self.sampling = Some(sampling);
        self
    }

    /// Sets [`thinking`](Request::thinking).
    #[must_use]
    pub fn thinking(mut self, thinks: bool) -> Request {
        self.thinking = Some(thinks);
        self
    }

    /// Sets [`thinking_budget`](Request::thinking_budget).
    #[must_use]
    pub fn thinking_budget(mut self, n: usize) -> Request {
        self.thinking_budget = Some(n);
        self
    }

    /// Has the answer be JSON that follows `schema`.
    #[must_use]
    pub fn json(mut self, schema: Value) -> Request {
        self.format = Format::Json(schema);
        self
    }

    /// Sets [`tools`](Request::tools).
    #[must_use]
    pub fn tools(mut self, tools: impl IntoIterator<Item = Value>) -> Request {
        self.tools = tools.into_iter().collect();
        self
    }

    /// Sets [`tool_choice`](Request::tool_choice).
    #[must_use]
    pub fn tool_choice(mut self, choice: ToolChoice) -> Request {
        self.tool_choice = Some(choice);
        self
    }

    /// Sets [`bias`](Request::bias).
    #[must_use]
    pub fn bias(mut self, bias: Bias) -> Request {
        self.bias = bias;
        self
    }

    /// Sets [`top_logprobs`](Request::top_logprobs).
    #[must_use]
    pub fn top_logprobs(mut self, n: usize) -> Request {
        self.top_logprobs = Some(n);
        self
    }

    /// Has the answer go on with the last message, which is its beginning.
    #[must_use]
    pub fn continuing(mut self) -> Request {
        self.continues = true;
        self
    }

    /// Sets [`expected`](Request::expected).
    #[must_use]
    pub fn expecting(mut self, text: impl Into<String>) -> Request {
        self.expected = Some(text.into());
        self
    }

    /// Sets [`pictures`](Request::pictures).
    #[must_use]
    pub fn pictures(mut self, pictures: impl IntoIterator<Item = Arc<SeenPicture>>) -> Request {
        self.pictures = pictures.into_iter().collect();
        self
    }

    /// A conversation that is answered so, with the pictures of its messages.
    pub(crate) fn conversation(
        &self,
        messages: &[Message],
        pictures: &[Arc<SeenPicture>],
    ) -> Conversation {
        let conversation = Conversation {
            pictures: rows(pictures),
            tools: Tools { functions: self.tools.clone(), strict: self.strict.clone() },
            tool_choice: self.tool_choice.clone().unwrap_or(ToolChoice::Auto),
            may_call_many: !self.one_call,
            shape: self.format.shape(),
            thinking: self.thinking,
            thinking_budget: self.thinking_budget,
            continues: self.continues,
            expected: self.expected.clone(),
            ..Conversation::new(messages.to_vec())
        };
        conversation.within(self.max_tokens)
    }

    /// How its tokens are chosen by the model of a tokenizer.
    pub fn settings(&self, tokenizer: &Tokenizer) -> Settings {
        let advised = || Sampling::recommended(tokenizer.generation_defaults());
        Settings {
            max_tokens: self.max_tokens,
            stop: self.stop.clone(),
            sampling: self.sampling.clone().unwrap_or_else(advised),
            bias: self.bias.clone(),
            top_logprobs: self.top_logprobs,
        }
    }
}
