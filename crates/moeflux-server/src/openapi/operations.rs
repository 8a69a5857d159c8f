//! What each path of the API takes and gives.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value};

use crate::anthropic::{MessageReply, MessageRequest, TokenCount};
use crate::infill::{Filled, InfillRequest};
use crate::openai::models::{ModelCard, ModelList};
use crate::openai::{
    ChatCompletion, ChatRequest, Completion, CompletionRequest, Response, ResponseRequest,
};
use crate::prompt::{Content, DetokenizeRequest, PromptText, TokenizeRequest, Tokens};
use crate::reply::{AnthropicError, OpenAiError};
use crate::sampling::Sampled;
use crate::status::{Health, Status};

/// Makes the schema of a document.
type Document = fn(&mut SchemaGenerator) -> Schema;

const JSON: &str = "application/json";

/// What a path takes and gives.
pub(super) struct Operation {
    pub(super) path: &'static str,
    pub(super) id: &'static str,
    pub(super) summary: &'static str,
    /// The body of a request, for POST.
    pub(super) request: Option<Document>,
    pub(super) answer: Document,
    /// The type of the answer.
    pub(super) mime: &'static str,
    /// Whether answers may be sent as events.
    pub(super) streams: bool,
    pub(super) error: Document,
    /// Whether no key is ever needed.
    pub(super) is_public: bool,
}

pub(super) const OPERATIONS: &[Operation] = &[
    Operation {
        is_public: true,
        ..get::<Health>("/health", "health", "Whether the server answers")
    },
    Operation {
        mime: "text/plain; version=0.0.4; charset=utf-8",
        ..get::<String>("/metrics", "metrics", "Figures for Prometheus")
    },
    get::<Status>("/status", "status", "Facts of the model, memory and load"),
    get::<Map<String, Value>>("/openapi.json", "openapi", "This description"),
    get::<ModelList>("/v1/models", "listModels", "The models"),
    get::<ModelCard>("/v1/models/{model}", "getModel", "One model"),
    Operation {
        streams: true,
        ..post::<Sampled<ChatRequest>, ChatCompletion<'static>>(
            "/v1/chat/completions",
            "createChatCompletion",
            "Answers a conversation (OpenAI)",
        )
    },
    Operation {
        streams: true,
        ..post::<Sampled<CompletionRequest>, Completion<'static>>(
            "/v1/completions",
            "createCompletion",
            "Continues a text (OpenAI)",
        )
    },
    Operation {
        streams: true,
        ..post::<Sampled<InfillRequest>, Filled<'static>>(
            "/infill",
            "infill",
            "Fills the gap in a text (llama-server)",
        )
    },
    Operation {
        streams: true,
        ..post::<ResponseRequest, Response>(
            "/v1/responses",
            "createResponse",
            "Answers a conversation (OpenAI Responses)",
        )
    },
    Operation {
        streams: true,
        request: Some(limited_message),
        ..anthropic::<MessageReply<'static>>(
            "/v1/messages",
            "createMessage",
            "Answers a conversation (Anthropic)",
        )
    },
    anthropic::<TokenCount>(
        "/v1/messages/count_tokens",
        "countTokens",
        "Counts the tokens of a conversation (Anthropic)",
    ),
    post::<Sampled<ChatRequest>, PromptText>(
        "/apply-template",
        "applyTemplate",
        "The prompt that a chat request becomes",
    ),
    post::<TokenizeRequest, Tokens<'static>>("/tokenize", "tokenize", "Text as tokens"),
    post::<DetokenizeRequest, Content>("/detokenize", "detokenize", "Tokens as text"),
];

const fn get<A: JsonSchema>(
    path: &'static str,
    id: &'static str,
    summary: &'static str,
) -> Operation {
    Operation {
        path,
        id,
        summary,
        request: None,
        answer: document::<A>,
        mime: JSON,
        streams: false,
        error: document::<OpenAiError<'static>>,
        is_public: false,
    }
}

const fn post<R: JsonSchema, A: JsonSchema>(
    path: &'static str,
    id: &'static str,
    summary: &'static str,
) -> Operation {
    Operation { request: Some(document::<R>), ..get::<A>(path, id, summary) }
}

const fn anthropic<A: JsonSchema>(
    path: &'static str,
    id: &'static str,
    summary: &'static str,
) -> Operation {
    Operation { error: document::<AnthropicError>, ..post::<MessageRequest, A>(path, id, summary) }
}

/// A request for an answer needs a limit, unlike one for the number of tokens.
fn limited_message(generator: &mut SchemaGenerator) -> Schema {
    let request = generator.subschema_for::<MessageRequest>();
    json_schema!({"allOf": [
        request,
        {"properties": {"max_tokens": {"type": "integer"}}, "required": ["max_tokens"]},
    ]})
}

fn document<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

impl Operation {
    pub(super) fn method(&self) -> &'static str {
        if self.request.is_some() { "post" } else { "get" }
    }

    /// Errors by their status.
    pub(super) fn errors(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let (takes_body, names_model) = (self.request.is_some(), self.path.ends_with("{model}"));
        let all = [
            ("400", "A field makes no sense or asks for what the server cannot do", takes_body),
            ("401", "A key is needed", !self.is_public),
            ("403", "Pages of other origins are not answered", true),
            ("404", "There is no such model", takes_body || names_model),
            ("408", "The body did not arrive in time", takes_body),
            ("413", "The body is too large", takes_body),
            ("415", "The body is not JSON, or has an encoding that is not read", takes_body),
            ("429", "The queue is full, or a limit of the key is reached", takes_body),
            ("500", "The engine failed", takes_body),
            ("503", "The server is shutting down", takes_body || self.is_public),
        ];
        all.into_iter().filter(|(_, _, applies)| *applies).map(|(status, why, _)| (status, why))
    }
}
