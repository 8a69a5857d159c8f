//! `/v1/responses`: the request.

use std::sync::Arc;

use hyper::StatusCode;
use moeflux_engine::AnswerShape;
use moeflux_engine::text::Message;
use serde_json::{Map, Value, json};

use super::format::ResponseFormat;
use super::responses_reply::{ResponseHead, ResponseStream, whole};
use super::sampling::{self, MAX_TOP};
use super::thinking::Wish;
use crate::app::App;
use crate::ask::collect;
use crate::conversation::{Choice, Conversation, Names, Settings, ask};
use crate::error::{ApiError, ApiResult};
use crate::events::EventStream;
use crate::fields::Fields;
use crate::messages;
use crate::reply::{self, Reply};
use crate::request::read_part;
use crate::tools::Tools;

pub(crate) async fn handle(app: Arc<App>, body: Value) -> ApiResult<Reply> {
    let echo = body.clone();
    let mut fields = Fields::of_request(body)?;
    let model = fields.require_string("model")?;
    app.check_model(&model)?;
    let is_stream = fields.bool("stream")?.unwrap_or(false);
    let conversation = conversation(&app, &mut fields)?;
    unsupported(&mut fields)?;
    fields.finish()?;
    let head = ResponseHead::new(&app, &echo, &conversation.settings);
    let answers = ask(&app, conversation).await?;
    if is_stream {
        let encoder = ResponseStream::new(app, head);
        return Ok(reply::stream(EventStream::new(answers, Box::new(encoder))));
    }
    let all = collect(answers).await?;
    let one = all.into_iter().next().unwrap_or_default();
    Ok(reply::json(StatusCode::OK, &whole(&app, &head, one)))
}

/// Fields that change nothing here, and some that would.
fn unsupported(fields: &mut Fields) -> ApiResult<()> {
    fields.ignore(&[
        "metadata",
        "user",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
    ]);
    for field in ["previous_response_id", "conversation", "prompt"] {
        if fields.take(field).is_some() {
            return Err(ApiError::not_supported(field, "nothing is kept here: leave it out"));
        }
    }
    for field in ["store", "background"] {
        if fields.bool(field)? == Some(true) {
            return Err(fields.refuse(field, "nothing is kept here: leave it out"));
        }
    }
    if fields.string("truncation")?.is_some_and(|it| it != "disabled") {
        return Err(fields.refuse("truncation", "choose disabled"));
    }
    if let Some(mut options) = fields.object("stream_options")? {
        options.ignore(&["include_obfuscation"]);
        options.finish()?;
    }
    Ok(())
}

fn conversation(app: &App, fields: &mut Fields) -> ApiResult<Conversation> {
    let mut settings = Settings::of(app);
    settings.max_tokens = fields.integer("max_output_tokens", 1, usize::MAX)?;
    settings.top_logprobs = top_logprobs(fields)?;
    sampling::sampler(&mut settings, fields)?;
    let mut messages = Vec::new();
    if let Some(text) = fields.string("instructions")? {
        messages.push(Message::new("system", text));
    }
    let missing = fields.refuse("input", "it is missing");
    messages.extend(input(fields.take("input").ok_or(missing)?)?);
    let tools = tools(fields.list("tools")?.unwrap_or_default())?;
    let choice = choice(fields, !tools.is_empty())?;
    let may_call_many = fields.bool("parallel_tool_calls")?.unwrap_or(true);
    let shape = match fields.object("text")? {
        Some(mut text) => {
            let format = text.object("format")?;
            text.ignore(&["verbosity"]);
            text.finish()?;
            format.map_or(Ok(AnswerShape::Text), flat_format)?
        }
        None => AnswerShape::Text,
    };
    let (thinking, variables) = match fields.object("reasoning")? {
        Some(mut reasoning) => {
            reasoning.ignore(&["summary", "generate_summary"]);
            let effort = reasoning.string("effort")?;
            reasoning.finish()?;
            let wish = effort.map(|effort| Wish::of_effort(&effort, "reasoning.effort"));
            let wish = wish.transpose()?.unwrap_or_default().of(app);
            (wish.thinks, wish.variables)
        }
        None => (None, Map::new()),
    };
    Ok(Conversation {
        messages,
        tools,
        choice,
        may_call_many,
        shape,
        thinking,
        variables,
        continues: false,
        names: Names { shape: "text.format", thinking: "reasoning.effort" },
        settings,
    })
}

/// `text.format`, whose schema is not nested.
fn flat_format(mut format: Fields) -> ApiResult<AnswerShape> {
    let kind = format.require_string("type")?;
    if kind != "json_schema" {
        let format = ResponseFormat { r#type: kind, json_schema: None, schema: None };
        return format.shape("text.format");
    }
    format.require_string("name")?;
    format.bool("strict")?;
    format.ignore(&["description"]);
    let missing = format.refuse("schema", "it is missing");
    let schema = format.object("schema")?.ok_or(missing)?.rest();
    format.finish()?;
    Ok(AnswerShape::Json(Value::Object(schema)))
}

fn top_logprobs(fields: &mut Fields) -> ApiResult<Option<usize>> {
    let mut is_wanted = false;
    for item in fields.strings("include", 16)? {
        match item.as_str() {
            "message.output_text.logprobs" => is_wanted = true,
            // What the model thinks is always included, and never encrypted.
            "reasoning.encrypted_content" => {}
            _ => return Err(fields.refuse("include", "choose message.output_text.logprobs")),
        }
    }
    let top = fields.integer("top_logprobs", 0, MAX_TOP as usize)?;
    Ok(if is_wanted { Some(top.unwrap_or(0)) } else { top.filter(|it| *it > 0) })
}

fn tools(list: Vec<Value>) -> ApiResult<Tools> {
    let mut tools = Tools::default();
    for (i, tool) in list.into_iter().enumerate() {
        let at = format!("tools[{i}]");
        let mut tool = Fields::of(tool, &at)?;
        if tool.require_string("type")? != "function" {
            return Err(tool.refuse("type", "only functions are supported"));
        }
        tools.add_fields(Fields::of(Value::Object(tool.rest()), &at)?)?;
    }
    Ok(tools)
}

fn choice(fields: &mut Fields, has_tools: bool) -> ApiResult<Choice> {
    let choice = match fields.take("tool_choice") {
        None => return Ok(Choice::Auto),
        Some(Value::String(text)) => match text.as_str() {
            "none" => return Ok(Choice::Never),
            "auto" => return Ok(Choice::Auto),
            "required" => Choice::Required,
            _ => return Err(fields.refuse("tool_choice", "choose none, auto or required")),
        },
        Some(value) => {
            let mut choice = Fields::of(value, "tool_choice")?;
            if choice.require_string("type")? != "function" {
                return Err(choice.refuse("type", "only functions are supported"));
            }
            let name = choice.require_string("name")?;
            choice.finish()?;
            Choice::Named(name)
        }
    };
    match has_tools {
        true => Ok(choice),
        false => Err(fields.refuse("tool_choice", "it needs tools")),
    }
}

/// Text, or a list of messages, calls, and what these gave.
fn input(value: Value) -> ApiResult<Vec<Message>> {
    let items = match value {
        Value::String(text) => return Ok(vec![Message::new("user", text)]),
        Value::Array(items) => items,
        _ => return Err(ApiError::field("input", "it must be a string or a list")),
    };
    let mut messages: Vec<Message> = Vec::new();
    let mut thought = None;
    for (i, item) in items.into_iter().enumerate() {
        let mut item = Fields::of(item, &format!("input[{i}]"))?;
        let kind = item.string("type")?.unwrap_or_else(|| String::from("message"));
        item.ignore(&["id", "status"]);
        match kind.as_str() {
            "message" => messages.push(message(item, &mut thought)?),
            "function_call" => call(item, &mut messages, &mut thought)?,
            "function_call_output" => messages.push(output(item)?),
            "reasoning" => thought = reasoning(item)?,
            _ => return Err(item.refuse("type", "this kind of item is not supported")),
        }
    }
    match messages.is_empty() {
        true => Err(ApiError::field("input", "it is empty")),
        false => Ok(messages),
    }
}

fn message(mut item: Fields, thought: &mut Option<Value>) -> ApiResult<Message> {
    let role = item.require_string("role")?;
    let missing = item.refuse("content", "it is missing");
    let content = item.take("content").ok_or(missing)?;
    let text = content_text(content, &item.name("content"))?;
    let role = match role.as_str() {
        "developer" => "system",
        role @ ("system" | "user" | "assistant") => role,
        _ => return Err(item.refuse("role", "choose system, developer, user or assistant")),
    };
    item.ignore(&["phase"]);
    item.finish()?;
    let mut message = Message::new(role, text);
    if role == "assistant" {
        message.reasoning_content = thought.take();
    }
    Ok(message)
}

/// Calls that follow one another are of one turn.
fn call(
    mut item: Fields,
    messages: &mut Vec<Message>,
    thought: &mut Option<Value>,
) -> ApiResult<()> {
    let id = item.require_string("call_id")?;
    let name = item.require_string("name")?;
    let arguments = item.require_string("arguments")?;
    item.finish()?;
    let call = json!({
        "id": id, "type": "function", "function": {"name": name, "arguments": arguments},
    });
    if messages.last().is_none_or(|it| it.role != "assistant") {
        messages.push(Message::new("assistant", ""));
    }
    if let Some(last) = messages.last_mut() {
        if let Some(thought) = thought.take() {
            last.reasoning_content = Some(thought);
        }
        match last.tool_calls.as_mut().and_then(Value::as_array_mut) {
            Some(calls) => calls.push(call),
            None => last.tool_calls = Some(json!([call])),
        }
        last.parse_arguments();
    }
    Ok(())
}

/// Text, or parts of text.
fn content_text(content: Value, at: &str) -> ApiResult<String> {
    messages::text(read_part(content, at)?, at)
}

fn output(mut item: Fields) -> ApiResult<Message> {
    let id = item.require_string("call_id")?;
    let missing = item.refuse("output", "it is missing");
    let output = item.take("output").ok_or(missing)?;
    let text = content_text(output, &item.name("output"))?;
    item.finish()?;
    Ok(Message { tool_call_id: Some(Value::from(id)), ..Message::new("tool", text) })
}

fn reasoning(mut item: Fields) -> ApiResult<Option<Value>> {
    let mut text = String::new();
    let at = item.name("content");
    for (i, part) in item.list("content")?.unwrap_or_default().into_iter().enumerate() {
        let mut part = Fields::of(part, &format!("{at}[{i}]"))?;
        text.push_str(&part.string("text")?.unwrap_or_default());
    }
    item.ignore(&["summary", "encrypted_content"]);
    item.finish()?;
    Ok((!text.is_empty()).then(|| Value::from(text)))
}
