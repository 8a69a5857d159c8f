//! `/v1/models`: the list that clients of OpenAI and of Anthropic read, with the fields by which
//! other servers name the context and the abilities of a model.

use schemars::JsonSchema;
use serde::Serialize;

use crate::fleet::{About, Fleet};
use crate::library::LibraryModel;

/// A model.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ModelCard {
    /// Its name.
    id: String,
    /// `model`.
    object: &'static str,
    /// Seconds since 1970.
    created: u64,
    /// Who made it available.
    owned_by: &'static str,

    /// Anthropic's: `model`.
    r#type: &'static str,
    /// Anthropic's: its name.
    display_name: String,
    /// Anthropic's: when it appeared.
    created_at: &'static str,
    /// What is known of it: all of a model that has been loaded.
    #[serde(flatten)]
    facts: Option<CardFacts>,
    /// OpenRouter's: what it reads and writes.
    architecture: Architecture,
    /// llama-server's: whether it is loaded.
    status: CardStatus,
}

/// What is known of a model.
#[derive(Debug, Serialize, JsonSchema)]
struct CardFacts {
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
    /// OpenRouter's: its limits.
    top_provider: TopProvider,
    /// llama-server's: its sizes.
    meta: Meta,
}

/// Whether a model is loaded.
#[derive(Debug, Serialize, JsonSchema)]
struct CardStatus {
    /// `loaded`, or `unloaded`: it is loaded by the first request for it.
    value: &'static str,
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
    /// `text->text`, or `text+image->text`.
    modality: &'static str,
    /// `text`, and `image` where the model sees.
    input_modalities: &'static [&'static str],
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
pub(crate) struct ModelList {
    /// `list`.
    object: &'static str,
    /// The models, each under each of its names.
    data: Vec<ModelCard>,
    /// The models as llama-server and Ollama list them.
    models: Vec<ListedModel>,
    /// Anthropic's: always false.
    has_more: bool,
    /// Anthropic's: the first name.
    first_id: Option<String>,
    /// Anthropic's: the last name.
    last_id: Option<String>,
}

/// A model as llama-server and Ollama list it.
#[derive(Debug, Serialize, JsonSchema)]
struct ListedModel {
    /// Its name.
    name: String,
    /// Its name.
    model: String,
    /// `model`.
    r#type: &'static str,
    /// What it can do.
    capabilities: Vec<&'static str>,
}

/// Writes cards of the models of a server.
struct Cards<'a> {
    fleet: &'a Fleet,
    max_tokens: Option<usize>,
    created: u64,
}

impl Cards<'_> {
    fn of(fleet: &Fleet) -> Cards<'_> {
        let (max_tokens, created) = (fleet.common.options.max_tokens, fleet.common.created);
        Cards { fleet, max_tokens, created }
    }

    /// The card of a model under one of its names.
    fn card(&self, model: &LibraryModel, name: &str) -> ModelCard {
        let about = self.fleet.catalog.known(model.name());
        let sees = about.as_ref().is_some_and(|about| about.sees);
        let value = if self.fleet.roster.is_loaded(model.name()) { "loaded" } else { "unloaded" };
        ModelCard {
            id: name.to_owned(),
            object: "model",
            created: model.modified_at().unwrap_or(self.created),
            owned_by: "moeflux",
            r#type: "model",
            display_name: name.to_owned(),
            created_at: "1970-01-01T00:00:00Z",
            facts: about.map(|about| CardFacts::of(&about, self.max_tokens)),
            architecture: Architecture::of(sees),
            status: CardStatus { value },
        }
    }
}

impl Architecture {
    fn of(sees: bool) -> Architecture {
        let (modality, input_modalities): (_, &[_]) =
            if sees { ("text+image->text", &["text", "image"]) } else { ("text->text", &["text"]) };
        Architecture { modality, input_modalities, output_modalities: ["text"] }
    }
}

impl CardFacts {
    fn of(about: &About, most: Option<usize>) -> CardFacts {
        let (shape, ctx) = (&about.shape, about.ctx);
        let max_tokens = most.map_or(ctx, |n| n.min(ctx));
        CardFacts {
            max_input_tokens: ctx,
            max_tokens,
            capabilities: capabilities(about),
            context_length: ctx,
            max_model_len: ctx,
            supported_parameters: supported_parameters(about),
            top_provider: TopProvider { context_length: ctx, max_completion_tokens: max_tokens },
            meta: Meta {
                n_ctx: ctx,
                n_ctx_train: shape.max_positions,
                n_vocab: shape.vocab,
                n_embd: shape.hidden,
            },
        }
    }
}

fn capabilities(about: &About) -> Capabilities {
    let support = |supported| Support { supported };
    Capabilities {
        batch: support(false),
        citations: support(false),
        code_execution: support(false),
        image_input: support(about.sees),
        pdf_input: support(false),
        structured_outputs: support(true),
        thinking: ThinkingSupport {
            supported: about.thinks,
            types: ThinkingTypes {
                enabled: support(about.thinks),
                adaptive: support(about.thinks),
            },
        },
        completion_chat: about.chats,
        function_calling: about.calls_tools,
        vision: about.sees,
    }
}

fn supported_parameters(about: &About) -> Vec<&'static str> {
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
    if about.calls_tools {
        names.extend(["tool_choice", "tools"]);
    }
    if about.thinks {
        names.extend(["include_reasoning", "reasoning"]);
    }
    names
}

/// The list, also in the form of llama-server and Ollama.
pub(crate) fn list(fleet: &Fleet) -> ModelList {
    let cards = Cards::of(fleet);
    let models = fleet.catalog.models();
    let named =
        || models.iter().flat_map(|model| model.names.iter().map(move |name| (model, name)));
    let listed = |(model, name): (&LibraryModel, &String)| {
        let about = fleet.catalog.known(model.name());
        let capabilities = about.map_or_else(|| vec!["completion"], |about| about.capabilities());
        ListedModel { name: name.clone(), model: name.clone(), r#type: "model", capabilities }
    };
    ModelList {
        object: "list",
        data: named().map(|(model, name)| cards.card(model, name)).collect(),
        models: named().map(listed).collect(),
        has_more: false,
        first_id: named().next().map(|(_, name)| name.clone()),
        last_id: named().last().map(|(_, name)| name.clone()),
    }
}

/// One model, under the name that is asked for.
pub(crate) fn one(fleet: &Fleet, model: &LibraryModel, name: &str) -> ModelCard {
    Cards::of(fleet).card(model, name)
}
