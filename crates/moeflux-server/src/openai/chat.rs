//! `/v1/chat/completions`: the request.

use std::sync::Arc;

use moeflux_engine::AnswerShape;
use moeflux_engine::text::Message;
use serde_json::{Map, Value, json};

use super::chat_reply::{ChatStream, Head, whole};
use super::sampling::{self, MAX_TOP};
use crate::app::App;
use crate::ask::collect;
use crate::conversation::{Choice, Conversation, Names, ask};
use crate::error::{ApiError, ApiResult};
use crate::events::EventStream;
use crate::fields::Fields;
use crate::messages;
use crate::model::Model;
use crate::reply::{self, Reply};
use crate::tools::Tools;

/// How an answer is sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Streaming {
    pub(crate) is_on: bool,
    pub(crate) with_usage: bool,
    /// Whether the client wants to know how far its prompt is read.
    pub(crate) with_progress: bool,
}

pub(crate) async fn handle(app: Arc<App>, body: Value) -> ApiResult<Reply> {
    let mut fields = Fields::of_request(body)?;
    let model = fields.require_string("model")?;
    app.check_model(&model)?;
    let streaming = streaming(&mut fields)?;
    let conversation = conversation(&app, &mut fields)?;
    fields.finish()?;
    let n = conversation.settings.n;
    let with_logprobs = conversation.settings.top_logprobs.is_some();
    let answers = ask(&app, conversation).await?;
    let head = Head::new(&app, "chatcmpl-", n, with_logprobs);
    if streaming.is_on {
        let encoder = ChatStream::new(app, head, streaming);
        return Ok(reply::stream(EventStream::new(answers, Box::new(encoder))));
    }
    let all = collect(answers).await?;
    Ok(reply::json(hyper::StatusCode::OK, &whole(&app, &head, all)))
}

pub(crate) fn streaming(fields: &mut Fields) -> ApiResult<Streaming> {
    let is_on = fields.bool("stream")?.unwrap_or(false);
    let mut streaming = Streaming { is_on, ..Streaming::default() };
    if let Some(mut options) = fields.object("stream_options")? {
        if !is_on {
            return Err(fields.refuse("stream_options", "it needs stream: true"));
        }
        streaming.with_usage = options.bool("include_usage")?.unwrap_or(false);
        options.ignore(&["include_obfuscation"]);
        options.finish()?;
    }
    streaming.with_progress = fields.bool("return_progress")?.unwrap_or(false);
    Ok(streaming)
}

/// Reads what a request says of its answer, but for how it is sent.
pub(crate) fn conversation(app: &Model, fields: &mut Fields) -> ApiResult<Conversation> {
    let mut settings = sampling::parse(app, fields)?;
    settings.max_tokens = max_tokens(fields)?;
    settings.top_logprobs = top_logprobs(fields)?;
    settings.prediction = prediction(fields)?;
    let missing = fields.refuse("messages", "it is missing");
    let messages = messages::parse(fields.list("messages")?.ok_or(missing)?)?;
    let (thinking, mut variables) = reasoning_effort(app, fields, "reasoning_effort")?;
    variables.extend(template_variables(fields)?);
    modalities(fields)?;
    // These change nothing on a machine of one's own.
    fields.ignore(&[
        "user",
        "metadata",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "verbosity",
    ]);
    if fields.bool("store")? == Some(true) {
        return Err(ApiError::unsupported("store"));
    }
    let tools = Tools::of_chat(fields.list("tools")?.unwrap_or_default())?;
    let choice = choice(fields, !tools.is_empty())?;
    let may_call_many = fields.bool("parallel_tool_calls")?.unwrap_or(true);
    let shape = response_format(fields)?;
    let continues = continues(fields, &messages)?;
    let conversation = Conversation {
        messages,
        tools,
        choice,
        may_call_many,
        shape,
        thinking,
        variables,
        continues,
        names: Names { shape: "response_format", thinking: "reasoning_effort" },
        settings,
    };
    conversation.check_continued(app)?;
    Ok(conversation)
}

/// `prediction`: text that the answer is expected to hold much of.
fn prediction(fields: &mut Fields) -> ApiResult<Option<String>> {
    let Some(mut prediction) = fields.object("prediction")? else { return Ok(None) };
    if prediction.require_string("type")? != "content" {
        return Err(prediction.refuse("type", "it must be content"));
    }
    let content = prediction.take("content").unwrap_or_default();
    let text = messages::text(content, &prediction.name("content"))?;
    prediction.finish()?;
    if text.is_empty() {
        return Err(fields.refuse("prediction", "its content is empty"));
    }
    Ok(Some(text))
}

/// Whether the last message is the beginning of the answer, by the fields that
/// other servers have for it.
fn continues(fields: &mut Fields, messages: &[Message]) -> ApiResult<bool> {
    let continues = fields.bool("continue_final_message")?.unwrap_or(false);
    let opens = fields.bool("add_generation_prompt")?;
    if opens.is_some_and(|it| it == continues) {
        let problem = "it must be the opposite of continue_final_message";
        return Err(fields.refuse("add_generation_prompt", problem));
    }
    let is_begun = messages.last().is_some_and(|it| {
        it.role == "assistant"
            && it.tool_calls.is_none()
            && it.content.as_ref().and_then(Value::as_str).is_some_and(|it| !it.is_empty())
    });
    if continues && !is_begun {
        let problem = "the last message must be text of the assistant";
        return Err(fields.refuse("continue_final_message", problem));
    }
    Ok(continues)
}

/// `tool_choice`.
fn choice(fields: &mut Fields, has_tools: bool) -> ApiResult<Choice> {
    let problem = "choose none, auto, required, or a function";
    let choice = match fields.take("tool_choice") {
        None => return Ok(Choice::Auto),
        Some(Value::String(text)) => match text.as_str() {
            "none" => return Ok(Choice::Never),
            "auto" => return Ok(Choice::Auto),
            "required" => Choice::Required,
            _ => return Err(fields.refuse("tool_choice", problem)),
        },
        Some(value @ Value::Object(_)) => {
            let mut choice = Fields::of(value, "tool_choice")?;
            if choice.require_string("type")? != "function" {
                return Err(choice.refuse("type", "only functions are supported"));
            }
            let missing = choice.refuse("function", "it is missing");
            let mut function = choice.object("function")?.ok_or(missing)?;
            let name = function.require_string("name")?;
            function.finish()?;
            choice.finish()?;
            Choice::Named(name)
        }
        Some(_) => return Err(fields.refuse("tool_choice", problem)),
    };
    if !has_tools {
        return Err(fields.refuse("tool_choice", "it needs tools"));
    }
    Ok(choice)
}

fn response_format(fields: &mut Fields) -> ApiResult<AnswerShape> {
    let Some(mut format) = fields.object("response_format")? else { return Ok(AnswerShape::Text) };
    let kind = format.require_string("type")?;
    if kind != "json_schema" {
        return shape_of(&kind, format);
    }
    let missing = format.refuse("json_schema", "it is missing");
    let mut named = format.object("json_schema")?.ok_or(missing)?;
    named.require_string("name")?;
    // Answers always follow the schema.
    named.bool("strict")?;
    named.ignore(&["description"]);
    let schema = named.object("schema")?.map_or_else(|| json!({}), |it| Value::Object(it.rest()));
    named.finish()?;
    format.finish()?;
    Ok(AnswerShape::Json(schema))
}

/// A format without a schema.
pub(super) fn shape_of(kind: &str, format: Fields) -> ApiResult<AnswerShape> {
    let shape = match kind {
        "text" => AnswerShape::Text,
        "json_object" => AnswerShape::Json(json!({"type": "object"})),
        _ => return Err(format.refuse("type", "choose text, json_object or json_schema")),
    };
    format.finish()?;
    Ok(shape)
}

fn max_tokens(fields: &mut Fields) -> ApiResult<Option<usize>> {
    let old = fields.integer("max_tokens", 1, usize::MAX)?;
    Ok(fields.integer("max_completion_tokens", 1, usize::MAX)?.or(old))
}

fn top_logprobs(fields: &mut Fields) -> ApiResult<Option<usize>> {
    let is_wanted = fields.bool("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0, MAX_TOP)?;
    match (is_wanted, top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None) => Ok(None),
        (false, Some(_)) => Err(fields.refuse("top_logprobs", "it needs logprobs: true")),
    }
}

/// Whether to think, and what the template is told of it.
pub(super) fn reasoning_effort(
    app: &Model,
    fields: &mut Fields,
    field: &str,
) -> ApiResult<(Option<bool>, Map<String, Value>)> {
    let mut variables = Map::new();
    let Some(effort) = fields.string(field)? else { return Ok((None, variables)) };
    match effort.as_str() {
        "none" => return Ok((Some(false), variables)),
        "minimal" | "low" | "medium" | "high" | "xhigh" => {}
        _ => {
            let problem = "choose none, minimal, low, medium, high or xhigh";
            return Err(fields.refuse(field, problem));
        }
    }
    if !app.format.can_think() {
        return Err(fields.refuse(field, "this model does not think: choose none"));
    }
    variables.insert("reasoning_effort".into(), Value::from(effort));
    Ok((Some(true), variables))
}

/// Variables that are the request's own business.
const RESERVED: [&str; 5] =
    ["messages", "tools", "add_generation_prompt", "documents", "strftime_now"];

fn template_variables(fields: &mut Fields) -> ApiResult<Map<String, Value>> {
    let Some(variables) = fields.object("chat_template_kwargs")? else { return Ok(Map::new()) };
    match RESERVED.iter().find(|it| variables.has(it)) {
        Some(name) => Err(variables.refuse(name, "the template has it from the request itself")),
        None => Ok(variables.rest()),
    }
}

fn modalities(fields: &mut Fields) -> ApiResult<()> {
    match fields.strings("modalities", 4)?.iter().all(|it| it == "text") {
        true => Ok(()),
        false => Err(fields.refuse("modalities", "this model writes text only")),
    }
}
