//! `/v1/messages` and its `count_tokens`: the request.

use std::sync::Arc;

use hyper::StatusCode;
use moeflux_engine::AnswerShape;
use moeflux_engine::text::Message;
use serde_json::{Value, json};

use super::blocks;
use super::reply::{MessageStream, whole};
use crate::app::App;
use crate::ask::collect;
use crate::conversation::{Choice, Conversation, Names, Settings, ask, count};
use crate::error::{ApiError, ApiResult};
use crate::events::EventStream;
use crate::fields::Fields;
use crate::openai::sampling::{self, MAX_STOPS};
use crate::reply::{self, Reply};
use crate::tools::Tools;

pub(crate) async fn handle(app: Arc<App>, body: Value) -> ApiResult<Reply> {
    let mut fields = Fields::of_request(body)?;
    let model = fields.require_string("model")?;
    app.check_model(&model)?;
    let mut settings = Settings::of(&app);
    let missing = fields.refuse("max_tokens", "it is missing");
    settings.max_tokens = Some(fields.integer("max_tokens", 1, usize::MAX)?.ok_or(missing)?);
    settings.stop = fields.strings("stop_sequences", MAX_STOPS)?;
    sampling::sampler(&mut settings, &mut fields)?;
    let is_stream = fields.bool("stream")?.unwrap_or(false);
    let conversation = conversation(&app, &mut fields, settings)?;
    fields.ignore(&["metadata", "service_tier"]);
    fields.finish()?;
    let answers = ask(&app, conversation).await?;
    if is_stream {
        let encoder = MessageStream::new(app, answers.n_prompt(), answers.may_think());
        return Ok(reply::stream(EventStream::new(answers, Box::new(encoder))));
    }
    let all = collect(answers).await?;
    let one = all.into_iter().next().unwrap_or_default();
    Ok(reply::json(StatusCode::OK, &whole(&app, one)))
}

pub(crate) async fn count_tokens(app: Arc<App>, body: Value) -> ApiResult<Reply> {
    let mut fields = Fields::of_request(body)?;
    let model = fields.require_string("model")?;
    app.check_model(&model)?;
    let settings = Settings::of(&app);
    let conversation = conversation(&app, &mut fields, settings)?;
    fields.finish()?;
    let n = count(&app, conversation).await?;
    Ok(reply::json(StatusCode::OK, &json!({"input_tokens": n})))
}

fn conversation(app: &App, fields: &mut Fields, settings: Settings) -> ApiResult<Conversation> {
    let missing = fields.refuse("messages", "it is missing");
    let turns = fields.list("messages")?.ok_or(missing)?;
    let mut messages = Vec::new();
    if let Some(system) = fields.take("system") {
        messages.push(Message::new("system", blocks::text(system, "system")?));
    }
    let turns = blocks::parse(turns)?;
    let continues = turns.continues;
    messages.extend(turns.messages);
    let tools = tools(fields.list("tools")?.unwrap_or_default())?;
    let (choice, may_call_many) = choice(fields, !tools.is_empty())?;
    let thinking = thinking(app, fields)?;
    let shape = shape(fields)?;
    for field in ["mcp_servers", "container"] {
        if fields.take(field).is_some_and(|value| value != json!([])) {
            return Err(ApiError::not_supported(field, "this server runs no tools: leave it out"));
        }
    }
    fields.ignore(&["cache_control"]);
    let variables = serde_json::Map::new();
    let conversation = Conversation {
        messages,
        tools,
        choice,
        may_call_many,
        shape,
        thinking,
        variables,
        continues,
        names: Names { shape: "output_config.format", thinking: "thinking" },
        settings,
    };
    conversation.check_continued(app)?;
    Ok(conversation)
}

fn tools(list: Vec<Value>) -> ApiResult<Tools> {
    let mut tools = Tools::default();
    for (i, tool) in list.into_iter().enumerate() {
        let at = format!("tools[{i}]");
        let mut tool = Fields::of(tool, &at)?;
        if tool.string("type")?.is_some_and(|kind| kind != "custom") {
            return Err(tool.refuse("type", "only tools of the client's own are supported"));
        }
        let missing = tool.refuse("input_schema", "it is missing");
        let schema = tool.object("input_schema")?.ok_or(missing)?.rest();
        tool.ignore(&["cache_control", "eager_input_streaming"]);
        let mut plain = tool.rest();
        plain.insert("parameters".into(), Value::Object(schema));
        tools.add_fields(Fields::of(Value::Object(plain), &at)?)?;
    }
    Ok(tools)
}

fn choice(fields: &mut Fields, has_tools: bool) -> ApiResult<(Choice, bool)> {
    let Some(mut choice) = fields.object("tool_choice")? else { return Ok((Choice::Auto, true)) };
    if !has_tools {
        return Err(fields.refuse("tool_choice", "it needs tools"));
    }
    let one_at_a_time = choice.bool("disable_parallel_tool_use")?.unwrap_or(false);
    let which = match choice.require_string("type")?.as_str() {
        "auto" => Choice::Auto,
        "none" => Choice::Never,
        "any" => Choice::Required,
        "tool" => Choice::Named(choice.require_string("name")?),
        _ => return Err(choice.refuse("type", "choose auto, any, tool or none")),
    };
    choice.finish()?;
    Ok((which, !one_at_a_time))
}

fn thinking(app: &App, fields: &mut Fields) -> ApiResult<Option<bool>> {
    let Some(mut thinking) = fields.object("thinking")? else { return Ok(None) };
    let is_on = match thinking.require_string("type")?.as_str() {
        "enabled" => {
            let missing = thinking.refuse("budget_tokens", "it is missing");
            thinking.integer("budget_tokens", 1, usize::MAX)?.ok_or(missing)?;
            true
        }
        "adaptive" => true,
        "disabled" => false,
        _ => return Err(thinking.refuse("type", "choose enabled, adaptive or disabled")),
    };
    if is_on && !app.format.can_think() {
        return Err(thinking.refuse("type", "this model does not think: choose disabled"));
    }
    thinking.finish()?;
    Ok(Some(is_on))
}

fn shape(fields: &mut Fields) -> ApiResult<AnswerShape> {
    let Some(mut config) = fields.object("output_config")? else { return Ok(AnswerShape::Text) };
    let shape = match config.object("format")? {
        None => AnswerShape::Text,
        Some(mut format) => {
            if format.require_string("type")? != "json_schema" {
                return Err(format.refuse("type", "choose json_schema"));
            }
            let missing = format.refuse("schema", "it is missing");
            let schema = format.object("schema")?.ok_or(missing)?.rest();
            format.finish()?;
            AnswerShape::Json(Value::Object(schema))
        }
    };
    config.finish()?;
    Ok(shape)
}
