//! `/v1/models`: the list that clients of OpenAI and of Anthropic read, with the fields by which
//! other servers name the context and the abilities of a model.

use schemars::JsonSchema;
use serde::Serialize;

use crate::app::App;
use crate::error::ApiResult;

/// A model.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ModelCard<'a> {
    /// Its name.
    id: &'a str,
    /// `model`.
    object: &'static str,
    /// Seconds since 1970.
    created: u64,
    /// Who made it available.
    owned_by: &'static str,

    /// Anthropic's: `model`.
    r#type: &'static str,
    /// Anthropic's: its name.
    display_name: &'a str,
    /// Anthropic's: when it appeared.
    created_at: &'static str,
    /// Anthropic's: tokens of a prompt at most.
    max_input_tokens: usize,
    /// Anthropic's: tokens of an answer at most.
    max_tokens: usize,
    /// Anthropic's and Mistral's: what it can do.
    capabilities: Capabilities,

    /// Tokens of a conversation at most.
    context_length: usize,
    /// vLLM's: tokens of a conversation at most.
    max_model_len: usize,
    /// OpenRouter's: fields of requests that are used.
    supported_parameters: Vec<&'static str>,
    /// OpenRouter's: what it reads and writes.
    architecture: Architecture,
    /// OpenRouter's: its limits.
    top_provider: TopProvider,
    /// llama-server's: its sizes.
    meta: Meta,
}

/// What a model can do.
#[derive(Debug, Serialize, JsonSchema)]
struct Capabilities {
    /// Batches of requests.
    batch: Support,
    /// Citations.
    citations: Support,
    /// Code that a server runs.
    code_execution: Support,
    /// Images.
    image_input: Support,
    /// PDF files.
    pdf_input: Support,
    /// Answers that follow a JSON schema.
    structured_outputs: Support,
    /// Thinking.
    thinking: ThinkingSupport,
    /// Mistral's: conversations.
    completion_chat: bool,
    /// Mistral's: calls of tools.
    function_calling: bool,
    /// Mistral's: images.
    vision: bool,
}

/// Whether something is supported.
#[derive(Debug, Serialize, JsonSchema)]
struct Support {
    /// Whether it is.
    supported: bool,
}

/// Whether a model can think.
#[derive(Debug, Serialize, JsonSchema)]
struct ThinkingSupport {
    /// Whether it can.
    supported: bool,
    /// By what a request asks for.
    types: ThinkingTypes,
}

/// Ways to ask for thoughts.
#[derive(Debug, Serialize, JsonSchema)]
struct ThinkingTypes {
    /// Always.
    enabled: Support,
    /// As the model sees fit.
    adaptive: Support,
}

/// What a model reads and writes.
#[derive(Debug, Serialize, JsonSchema)]
struct Architecture {
    /// `text->text`.
    modality: &'static str,
    /// `text`.
    input_modalities: [&'static str; 1],
    /// `text`.
    output_modalities: [&'static str; 1],
}

/// Limits of a model.
#[derive(Debug, Serialize, JsonSchema)]
struct TopProvider {
    /// Tokens of a conversation at most.
    context_length: usize,
    /// Tokens of an answer at most.
    max_completion_tokens: usize,
}

/// Sizes of a model.
#[derive(Debug, Serialize, JsonSchema)]
struct Meta {
    /// Tokens of a conversation at most.
    n_ctx: usize,
    /// Tokens that the model was made for.
    n_ctx_train: usize,
    /// Tokens that there are.
    n_vocab: usize,
    /// Values of a hidden state.
    n_embd: usize,
}

/// The models.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ModelList<'a> {
    /// `list`.
    object: &'static str,
    /// The models: one, under each of its names.
    data: Vec<ModelCard<'a>>,
    /// The models as llama-server and Ollama list them.
    models: Vec<ListedModel<'a>>,
    /// Anthropic's: always false.
    has_more: bool,
    /// Anthropic's: the first name.
    first_id: Option<&'a str>,
    /// Anthropic's: the last name.
    last_id: Option<&'a str>,
}

/// A model as llama-server and Ollama list it.
#[derive(Debug, Serialize, JsonSchema)]
struct ListedModel<'a> {
    /// Its name.
    name: &'a str,
    /// Its name.
    model: &'a str,
    /// `model`.
    r#type: &'static str,
    /// What it can do.
    capabilities: Vec<&'static str>,
}

fn model<'a>(app: &App, name: &'a str) -> ModelCard<'a> {
    let (shape, ctx) = (app.loaded.engine().shape(), app.loaded.engine().plan().ctx);
    let max_tokens = app.options.max_tokens.map_or(ctx, |n| n.min(ctx));
    ModelCard {
        id: name,
        object: "model",
        created: app.created,
        owned_by: "moeflux",
        r#type: "model",
        display_name: name,
        created_at: "1970-01-01T00:00:00Z",
        max_input_tokens: ctx,
        max_tokens,
        capabilities: capabilities(app),
        context_length: ctx,
        max_model_len: ctx,
        supported_parameters: supported_parameters(app),
        architecture: Architecture {
            modality: "text->text",
            input_modalities: ["text"],
            output_modalities: ["text"],
        },
        top_provider: TopProvider { context_length: ctx, max_completion_tokens: max_tokens },
        meta: Meta {
            n_ctx: ctx,
            n_ctx_train: shape.max_positions,
            n_vocab: shape.vocab,
            n_embd: shape.hidden,
        },
    }
}

fn capabilities(app: &App) -> Capabilities {
    let thinks = app.text.format().can_think();
    let support = |supported| Support { supported };
    Capabilities {
        batch: support(false),
        citations: support(false),
        code_execution: support(false),
        image_input: support(false),
        pdf_input: support(false),
        structured_outputs: support(true),
        thinking: ThinkingSupport {
            supported: thinks,
            types: ThinkingTypes { enabled: support(thinks), adaptive: support(thinks) },
        },
        completion_chat: app.text.tokenizer().chat_template_source(false).is_some(),
        function_calling: app.text.format().syntax().is_some(),
        vision: false,
    }
}

fn supported_parameters(app: &App) -> Vec<&'static str> {
    let mut names = vec![
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "max_tokens",
        "min_p",
        "presence_penalty",
        "repetition_penalty",
        "response_format",
        "seed",
        "stop",
        "structured_outputs",
        "temperature",
        "top_k",
        "top_logprobs",
        "top_p",
    ];
    if app.text.format().syntax().is_some() {
        names.extend(["tool_choice", "tools"]);
    }
    if app.text.format().can_think() {
        names.extend(["include_reasoning", "reasoning"]);
    }
    names
}

/// The list, also in the form of llama-server and Ollama.
pub(crate) fn list(app: &App) -> ModelList<'_> {
    let names = &app.options.model_names;
    let mut capabilities = vec!["completion"];
    if app.text.format().syntax().is_some() {
        capabilities.push("tools");
    }
    if app.text.format().can_think() {
        capabilities.push("thinking");
    }
    if app.text.can_infill() {
        capabilities.push("insert");
    }
    let listed = |name| ListedModel {
        name,
        model: name,
        r#type: "model",
        capabilities: capabilities.clone(),
    };
    ModelList {
        object: "list",
        data: names.iter().map(|name| model(app, name)).collect(),
        models: names.iter().map(|name| listed(name.as_str())).collect(),
        has_more: false,
        first_id: names.first().map(String::as_str),
        last_id: names.last().map(String::as_str),
    }
}

pub(crate) fn one<'a>(app: &App, name: &'a str) -> ApiResult<ModelCard<'a>> {
    app.check_model(name)?;
    Ok(model(app, name))
}
