//! What each path of the API takes and gives.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value};

use crate::anthropic::{MessageReply, MessageRequest, TokenCount};
use crate::infill::{Filled, InfillRequest};
use crate::openai::models::{ModelCard, ModelList};
use crate::openai::responses::kept::{DeletedResponse, InputItems};
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
    /// In lower case.
    pub(super) method: &'static str,
    /// The body of a request, for POST.
    pub(super) request: Option<Document>,
    /// Fields of a query.
    pub(super) query: &'static [Field],
    pub(super) answer: Document,
    /// The type of the answer.
    pub(super) mime: &'static str,
    /// Whether answers may be sent as events.
    pub(super) streams: bool,
    pub(super) error: Document,
    /// Whether no key is ever needed.
    pub(super) is_public: bool,
}

/// A field of a query.
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) summary: &'static str,
    pub(super) schema: fn() -> Schema,
}

/// Which items of a list are wanted.
const PAGE: &[Field] = &[
    Field {
        name: "limit",
        summary: "How many items are wanted; 20 where it is left out.",
        schema: || json_schema!({"type": "integer", "minimum": 1, "maximum": 100}),
    },
    Field {
        name: "order",
        summary: "`desc`, the last item first, or `asc`.",
        schema: || json_schema!({"type": "string", "enum": ["asc", "desc"]}),
    },
    Field {
        name: "after",
        summary: "The identifier of the item before those that are wanted.",
        schema: || json_schema!({"type": "string"}),
    },
];

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
    get::<Response>("/v1/responses/{id}", "getResponse", "A response that was kept"),
    Operation {
        method: "delete",
        ..get::<DeletedResponse>(
            "/v1/responses/{id}",
            "deleteResponse",
            "Deletes a response that was kept",
        )
    },
    Operation {
        query: PAGE,
        ..get::<InputItems>(
            "/v1/responses/{id}/input_items",
            "listInputItems",
            "The items of the request that made a response",
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
        method: "get",
        request: None,
        query: &[],
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
    Operation { method: "post", request: Some(document::<R>), ..get::<A>(path, id, summary) }
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
    /// The names of the path's parts that differ.
    pub(super) fn path_fields(&self) -> impl Iterator<Item = &'static str> {
        self.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
    }

    /// Errors by their status.
    pub(super) fn errors(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let takes_body = self.request.is_some();
        let (names_model, names_response) =
            (self.path.contains("{model}"), self.path.contains("{id}"));
        let takes_fields = takes_body || names_response;
        let all = [
            ("400", "A field makes no sense or asks for what the server cannot do", takes_fields),
            ("401", "A key is needed", !self.is_public),
            ("403", "Pages of other origins are not answered", true),
            ("404", "There is no such model", takes_body || names_model),
            ("404", "There is no such response of this key", names_response),
            ("408", "The body did not arrive in time", takes_body),
            ("413", "The body is too large", takes_body),
            ("415", "The body is not JSON, or has an encoding that is not read", takes_body),
            ("429", "The queue is full, or a limit of the key is reached", takes_body),
            ("500", "The engine failed", takes_body),
            ("500", "The response's file cannot be removed", names_response),
            ("503", "The server is shutting down", takes_body || self.is_public),
            ("503", "The system starts no thread", names_response),
        ];
        all.into_iter().filter(|(_, _, applies)| *applies).map(|(status, why, _)| (status, why))
    }
}
