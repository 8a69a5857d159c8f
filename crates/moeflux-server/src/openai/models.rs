//! `/v1/models`: the list that clients of OpenAI and of Anthropic read, with the fields by which
//! other servers name the context and the abilities of a model.

use serde_json::{Value, json};

use crate::app::App;
use crate::error::ApiResult;

fn model(app: &App, name: &str) -> Value {
    let (shape, ctx) = (app.loaded.engine().shape(), app.loaded.engine().plan().ctx);
    let max_tokens = app.options.max_tokens.map_or(ctx, |n| n.min(ctx));
    json!({
        "id": name,
        "object": "model",
        "created": app.created,
        "owned_by": "moeflux",
        // Anthropic's.
        "type": "model",
        "display_name": name,
        "created_at": "1970-01-01T00:00:00Z",
        "max_input_tokens": ctx,
        "max_tokens": max_tokens,
        "capabilities": capabilities(app),
        // OpenRouter's, vLLM's, and llama-server's.
        "context_length": ctx,
        "max_model_len": ctx,
        "supported_parameters": supported_parameters(app),
        "architecture": {
            "modality": "text->text",
            "input_modalities": ["text"],
            "output_modalities": ["text"],
        },
        "top_provider": {"context_length": ctx, "max_completion_tokens": max_tokens},
        "meta": {
            "n_ctx": ctx,
            "n_ctx_train": shape.max_positions,
            "n_vocab": shape.vocab,
            "n_embd": shape.hidden,
        },
    })
}

fn capabilities(app: &App) -> Value {
    let thinks = app.text.format().can_think();
    let calls_tools = app.text.format().syntax().is_some();
    let supported = |is_supported: bool| json!({"supported": is_supported});
    json!({
        // Anthropic's.
        "batch": supported(false),
        "citations": supported(false),
        "code_execution": supported(false),
        "image_input": supported(false),
        "pdf_input": supported(false),
        "structured_outputs": supported(true),
        "thinking": {
            "supported": thinks,
            "types": {"enabled": supported(thinks), "adaptive": supported(thinks)},
        },
        // Mistral's.
        "completion_chat": app.text.tokenizer().chat_template_source(false).is_some(),
        "function_calling": calls_tools,
        "vision": false,
    })
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
pub(crate) fn list(app: &App) -> Value {
    let names = &app.options.model_names;
    let data: Vec<Value> = names.iter().map(|name| model(app, name)).collect();
    let mut abilities = vec!["completion"];
    if app.text.format().syntax().is_some() {
        abilities.push("tools");
    }
    if app.text.format().can_think() {
        abilities.push("thinking");
    }
    let models = names.iter().map(
        |name| json!({"name": name, "model": name, "type": "model", "capabilities": abilities}),
    );
    let models: Vec<Value> = models.collect();
    json!({
        "object": "list",
        "data": data,
        "models": models,
        "has_more": false,
        "first_id": names.first(),
        "last_id": names.last(),
    })
}

pub(crate) fn one(app: &App, name: &str) -> ApiResult<Value> {
    app.check_model(name)?;
    Ok(model(app, name))
}
