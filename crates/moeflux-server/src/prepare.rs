//! From a conversation to the prompt that the model reads.

use std::sync::Arc;

use moeflux_engine::{EngineError, TokenId};
use moeflux_text::{
    AnswerShape, ChatTemplate, Constraint, Grammar, Markup, NoCalls, OutputParser, RenderRequest,
    TextError, Turn,
};
use serde_json::Value;

use crate::app::App;
use crate::ask::{Answers, Ask, submit};
use crate::conversation::{Choice, Conversation};
use crate::error::{ApiError, ApiResult, Overflow};
use crate::model::Model;
use crate::offload::offload;
use crate::settings::Settings;
use crate::tool_names::ToolNames;

/// A conversation as the model reads it.
pub(crate) struct Prepared {
    pub(crate) turn: Turn,
    expected: Arc<[TokenId]>,
    parser: OutputParser,
    tool_names: ToolNames,
    /// Whether the answer is expected to begin with thoughts.
    may_think: bool,
    pub(crate) constraint: Option<Constraint>,
    /// Where the model may call no tool.
    pub(crate) no_calls: Option<NoCalls>,
}

/// Queues a conversation.
pub(crate) async fn ask(app: &Arc<App>, conversation: Conversation) -> ApiResult<Answers> {
    let settings = conversation.settings.clone();
    let shared = Arc::clone(app);
    let prepared = offload(move || prepare(&shared, &conversation)).await??;
    submit_prepared(app, prepared, settings)
}

/// Queues a conversation that has been read.
pub(crate) fn submit_prepared(
    app: &Arc<App>,
    prepared: Prepared,
    settings: Settings,
) -> ApiResult<Answers> {
    let Prepared { turn, expected, parser, tool_names, may_think, constraint, no_calls } = prepared;
    let (format, prompts) = (app.format.clone(), vec![turn]);
    submit(
        app,
        Ask {
            prompts,
            expected,
            settings,
            format,
            constraint,
            no_calls,
            parser,
            tool_names,
            may_think,
        },
    )
}

/// Tokens of a conversation, its answer not counted.
pub(crate) async fn count(app: &Arc<App>, conversation: Conversation) -> ApiResult<usize> {
    let shared = Arc::clone(app);
    let counted = offload(move || prepare(&shared, &conversation)).await?;
    match counted.map(|prepared| prepared.turn.tokens.len()) {
        // It can be counted all the same.
        Err(ApiError { overflow: Some(Overflow { n_prompt, is_exact: true, .. }), .. }) => {
            Ok(n_prompt)
        }
        counted => counted,
    }
}

/// The text of the prompt that a conversation becomes.
pub(crate) fn prompt_text(app: &Model, conversation: &Conversation) -> ApiResult<String> {
    let renamed = ToolNames::applied(conversation);
    let conversation = renamed.as_ref().map_or(conversation, |(changed, _)| changed);
    check_length(app, conversation)?;
    let rendered = render(app, conversation, |template, request| match conversation.continues {
        true => template.render_unfinished(request),
        false => template.render(request),
    })?;
    Ok(rendered.text().to_owned())
}

/// Refuses a conversation that is certain not to fit, before anything of it is copied.
fn check_length(app: &Model, conversation: &Conversation) -> ApiResult<()> {
    let Conversation { messages, tools, .. } = conversation;
    // A model without a template is refused when the conversation is rendered.
    let Ok(template) = app.template(!tools.is_empty()) else { return Ok(()) };
    let checked =
        template.check_length(&app.tokenizer, messages, &tools.functions, app.max_prompt());
    checked.map_err(refused)
}

/// Calls `work` with the template that a conversation needs and what it is rendered with.
fn render<T>(
    app: &Model,
    conversation: &Conversation,
    work: impl FnOnce(&ChatTemplate, &RenderRequest<'_>) -> Result<T, TextError>,
) -> ApiResult<T> {
    let tools = Value::from(conversation.tools.functions.clone());
    let tools = (!conversation.tools.is_empty()).then_some(&tools);
    if tools.is_some() && app.format.syntax().is_none() {
        return Err(ApiError::field("tools", "the model's chat template knows no tools"));
    }
    let template = app.template(tools.is_some())?;
    let mut extra = conversation.variables.clone();
    let is_decided = conversation.thinking.or(conversation.continues.then_some(false));
    if let Some(thinking) = is_decided {
        // Templates know it by two names.
        for name in ["enable_thinking", "thinking"] {
            extra.entry(name).or_insert(Value::from(thinking));
        }
    }
    let messages = &conversation.messages;
    let request = RenderRequest { messages, tools, add_generation_prompt: true, extra };
    work(template, &request).map_err(refused)
}

/// Reads a conversation as the model does.
pub(crate) fn prepare(app: &Model, conversation: &Conversation) -> ApiResult<Prepared> {
    check_length(app, conversation)?;
    let (renamed, tool_names) = ToolNames::applied(conversation).unzip();
    let conversation = renamed.as_ref().unwrap_or(conversation);
    let max_tokens = app.max_prompt();
    let turn = render(app, conversation, |template, request| match conversation.continues {
        true => Turn::continuing(&app.tokenizer, template, request, max_tokens),
        false => Turn::of(&app.tokenizer, template, request, max_tokens),
    })?;
    let is_thinking = app.format.prompt_opens_thinking(&turn.tokens, &app.tokenizer);
    let may_call = conversation.choice != Choice::Never && !conversation.tools.is_empty();
    let tools = may_call.then(|| Value::from(conversation.tools.functions.clone()));
    let parser = OutputParser::new(&app.format, tools.as_ref(), is_thinking);
    let parser = if conversation.continues { parser.continuing() } else { parser };
    let constraint = constraint(app, conversation, is_thinking)?;
    let expected = expected(app, conversation)?;
    let wants_thoughts = conversation.thinking == Some(true) && app.format.can_think();
    let may_think = is_thinking || wants_thoughts;
    let tool_names = tool_names.unwrap_or_default();
    let no_calls = match may_call {
        true => None,
        false => app.format.no_calls(&conversation.messages, &turn.tokens),
    };
    Ok(Prepared { turn, expected, parser, tool_names, may_think, constraint, no_calls })
}

/// What the client expects to be said, as far as any answer could.
fn expected(app: &Model, conversation: &Conversation) -> ApiResult<Arc<[TokenId]>> {
    let Some(text) = &conversation.settings.prediction else { return Ok(Arc::default()) };
    let tokens = app.tokenizer.encode_first(text, Markup::Literal, app.facts.ctx);
    let tokens = tokens.map_err(|err| ApiError::field("prediction", err.to_string()))?;
    Ok(tokens.into())
}

/// Refuses a conversation whose answer cannot be held to what was asked for.
pub(crate) fn check_constraint(app: &Model, conversation: &Conversation) -> ApiResult<()> {
    let renamed = ToolNames::applied(conversation);
    let conversation = renamed.as_ref().map_or(conversation, |(changed, _)| changed);
    constraint(app, conversation, false).map(drop)
}

/// What holds the answer to what was asked for; nothing where that is text.
fn constraint(
    app: &Model,
    conversation: &Conversation,
    is_thinking: bool,
) -> ApiResult<Option<Constraint>> {
    let Conversation { tools, choice, may_call_many, shape, .. } = conversation;
    let functions: Vec<Value> = match choice {
        Choice::Never => Vec::new(),
        Choice::Auto | Choice::Required => tools.functions.clone(),
        Choice::Named(name) => {
            let named = tools.functions.iter().filter(|tool| tool["function"]["name"] == **name);
            named.cloned().collect()
        }
    };
    let must_call = matches!(choice, Choice::Required | Choice::Named(_));
    if must_call && functions.is_empty() {
        return Err(ApiError::field("tool_choice", "there is no such tool in tools"));
    }
    if functions.is_empty() && *shape == AnswerShape::Text {
        return Ok(None);
    }
    let grammar = Grammar {
        format: app.format.clone(),
        is_thinking,
        shape: shape.clone(),
        tools: functions,
        must_call,
        may_call_many: *may_call_many,
    };
    let compiled = app.grammars()?.compile(&grammar).map_err(|err| {
        let is_shape = grammar.shape != AnswerShape::Text;
        ApiError::field(if is_shape { conversation.names.shape } else { "tools" }, err.to_string())
    })?;
    let left = compiled.left_to_model();
    if let Some(refused) = left.iter().find(|part| tools.strict.contains(&part.tool)) {
        let mut all = tools.functions.iter();
        let i = all.position(|tool| tool["function"]["name"] == *refused.tool).unwrap_or(0);
        let problem = format!("{refused}, which strict: true does not allow");
        return Err(ApiError::field(format!("tools[{i}]"), problem));
    }
    app.log_left_to_model(left);
    Ok(Some(compiled))
}

/// A template that refuses a conversation says why.
pub(crate) fn refused(err: TextError) -> ApiError {
    match err {
        TextError::NoRenderer(reason) => ApiError::overloaded(&reason),
        TextError::TooLong { n_tokens, is_exact, max_tokens } => {
            let ctx = max_tokens.saturating_add(1);
            ApiError::too_long(Overflow { n_prompt: n_tokens, is_exact, ctx })
        }
        TextError::TemplateSyntax(_) => ApiError::internal(EngineError::from(err).to_string()),
        _ => ApiError::field("messages", err.to_string()),
    }
}

/// A text that is refused, by the name of its field.
pub(crate) fn text_refused(field: &str, err: TextError) -> ApiError {
    match err {
        TextError::TooLong { .. } => refused(err),
        _ => ApiError::field(field, err.to_string()),
    }
}
