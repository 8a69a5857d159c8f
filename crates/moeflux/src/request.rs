//! How an answer is made.

use moeflux_engine::sampler::SamplerOptions as Sampling;
use serde_json::Value;

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
    /// How tokens are chosen; where absent, as `generation_config.json` says, else greedily.
    pub sampling: Option<Sampling>,
    /// Whether the model thinks before it answers, for models that can be asked to; as its chat
    /// template has it where absent.
    pub thinking: Option<bool>,
    /// The form of the text.
    pub format: Format,
    /// Tools that the model may call, each as `{"type": "function", "function": {…}}`.
    pub tools: Vec<Value>,
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
}
