//! `/v1/chat/completions`: what a request asks for.

use std::sync::Arc;

use moeflux_text::{Conversation, Message, ToolChoice as Choice, Tools};
use serde_json::{Map, Value};

use super::chat_reply::{CallShape, ChatStream, Head, whole};
use super::chat_request::{
    AllowedTool, AllowedTools, ChatRequest, NamedFunction, Prediction, ToolChoice,
};
use super::format::FormatFields;
use crate::app::App;
use crate::ask::collect;
use crate::conversation::{ConversationRequest, Names};
use crate::error::{ApiError, ApiResult};
use crate::events::EventStream;
use crate::model::Model;
use crate::openai::chat_reply::Streaming;
use crate::pictures::Pictures;
use crate::prepare::ask;
use crate::reply::{self, Reply};
use crate::request::{Ignored, Integer, Limit, List, Request, StringOr, read};
use crate::sampling::{Sampled, Sampling};
use crate::tools::{self, Function, MAX_TOOLS};
use crate::{events, messages};

pub(crate) async fn handle(app: Arc<App>, body: Value) -> ApiResult<Reply> {
    let Request { body, mut ignored } = read::<Sampled<ChatRequest>>(body)?;
    let Sampled { request: body, sampling } = body;
    let streaming = Streaming::of(body.stream, body.stream_options.as_ref(), body.return_progress);
    let calls = if body.has_functions() { CallShape::Function } else { CallShape::Tools };
    let conversation = conversation(&app, body, sampling, &mut ignored)?;
    let ignored = ignored.accept(&app)?;
    let n = conversation.settings.n;
    let with_logprobs = conversation.settings.top_logprobs.is_some();
    let answers = ask(&app, conversation).await?;
    let head = Head { calls, ..Head::new(&app, "chatcmpl-", n, with_logprobs) };
    if streaming.is_on {
        let encoder = ChatStream::new(app, head, streaming);
        return Ok(ignored.mark(events::stream(EventStream::new(answers, Box::new(encoder)))));
    }
    let all = collect(answers).await?;
    Ok(ignored.mark(reply::json(hyper::StatusCode::OK, &whole(&app, &head, all))))
}

/// What a request asks for, but for how the answer is sent. Tools that are left out are added to
/// the ignored fields.
pub(crate) fn conversation(
    model: &Model,
    mut body: ChatRequest,
    sampling: Sampling,
    ignored: &mut Ignored,
) -> ApiResult<ConversationRequest> {
    model.check_name(body.model.as_deref())?;
    if let Some((name, why)) = body.refused().next() {
        return Err(ApiError::not_supported(name, why));
    }
    let mut settings = sampling.settings(model)?;
    settings.max_tokens = max_tokens(&body);
    settings.top_logprobs = top_logprobs(&body)?;
    let expected = body.prediction.take().map(prediction).transpose()?;
    check_modalities(&body)?;
    let thinking = body.thinking().request()?.of(model);
    let variables = template_variables(body.chat_template_kwargs.take())?;
    let wanted = FormatFields {
        response_format: body.response_format.take(),
        json_schema: body.json_schema.take(),
        guided_json: body.guided_json.take(),
        structured_outputs: body.structured_outputs.take(),
    };
    let wanted = wanted.wanted()?;
    // The older shape of an answer has room for one call.
    let may_call_many = body.parallel_tool_calls.unwrap_or(true) && !body.has_functions();
    let (tools, choice) = match body.tools.take() {
        Some(List(tools)) => {
            let mut tools = tools::of_chat(tools, ignored)?;
            let choice = tool_choice(body.tool_choice, &mut tools)?;
            (tools, choice)
        }
        None => functions(body.functions.take(), body.tool_choice, body.function_call)?,
    };
    if tools.is_empty() && !matches!(choice, Choice::Auto | Choice::Never) {
        return Err(ApiError::field("tool_choice", "it needs tools"));
    }
    let mut pictures = Pictures::of(model);
    let messages = messages::read(body.messages.0, &mut pictures)?;
    let continues = continues(body.continue_final_message, body.add_generation_prompt, &messages)?;
    let conversation = Conversation {
        messages,
        pictures: Vec::new(),
        tools,
        tool_choice: choice,
        may_call_many,
        shape: wanted.shape,
        thinking: thinking.thinks,
        thinking_budget: thinking.thinking_budget(),
        effort: thinking.effort,
        variables,
        continues,
        expected,
    };
    let names = Names { shape: wanted.field, thinking: "reasoning_effort" };
    let request = ConversationRequest::new(conversation, names, settings, pictures);
    request.check_continued(model)?;
    Ok(request)
}

/// `prediction`: text that the answer is expected to hold much of.
fn prediction(prediction: Prediction) -> ApiResult<String> {
    if prediction.r#type != "content" {
        return Err(ApiError::field("prediction.type", "it must be content"));
    }
    let text = messages::text(prediction.content, "prediction.content")?;
    if text.is_empty() {
        Err(ApiError::field("prediction", "its content is empty"))
    } else {
        Ok(text)
    }
}

/// Whether the last message is the beginning of the answer, by the fields that
/// other servers have for it.
fn continues(
    continues: Option<bool>,
    opens: Option<bool>,
    messages: &[Message],
) -> ApiResult<bool> {
    let continues = continues.unwrap_or(false);
    if opens.is_some_and(|opens| opens == continues) {
        let problem = "it must be the opposite of continue_final_message";
        return Err(ApiError::field("add_generation_prompt", problem));
    }
    let is_begun = messages.last().is_some_and(|last| {
        last.role == "assistant"
            && last.tool_calls.is_none()
            && last.content.as_ref().and_then(Value::as_str).is_some_and(|text| !text.is_empty())
    });
    if continues && !is_begun {
        let problem = "the last message must be text of the assistant";
        return Err(ApiError::field("continue_final_message", problem));
    }
    Ok(continues)
}

/// `tool_choice`. Where it allows some of the tools alone, the others are left out.
fn tool_choice(field: Option<StringOr<ToolChoice>>, tools: &mut Tools) -> ApiResult<Choice> {
    let choice = match field {
        None => return Ok(Choice::Auto),
        Some(StringOr::String(word)) => {
            return word_choice(&word).ok_or_else(|| {
                ApiError::field("tool_choice", "choose none, auto, required, or a function")
            });
        }
        Some(StringOr::Other(choice)) => choice,
    };
    let named = |named: Option<NamedFunction>, field: &str| {
        let name = named.map(|named| named.name).or(choice.name);
        let missing = || ApiError::field(format!("tool_choice.{field}"), "it is missing");
        name.map(Choice::Named).ok_or_else(missing)
    };
    match choice.r#type.as_str() {
        "function" => named(choice.function, "function"),
        "custom" => named(choice.custom, "custom"),
        "allowed_tools" => allowed_tools(choice.allowed_tools, tools),
        word => word_choice(word).ok_or_else(|| {
            let words = "choose function, custom, allowed_tools, none, auto or required";
            ApiError::field("tool_choice.type", words)
        }),
    }
}

/// `tool_choice.allowed_tools`.
fn allowed_tools(field: Option<AllowedTools>, tools: &mut Tools) -> ApiResult<Choice> {
    const FIELD: &str = "tool_choice.allowed_tools";
    let AllowedTools { mode, tools: List(allowed) } =
        field.ok_or_else(|| ApiError::field(FIELD, "it is missing"))?;
    let choice = match mode.as_str() {
        "auto" => Choice::Auto,
        "required" => Choice::Required,
        _ => return Err(ApiError::field(format!("{FIELD}.mode"), "choose auto or required")),
    };
    let mut names = Vec::with_capacity(allowed.len());
    for (i, AllowedTool { function, custom, .. }) in allowed.into_iter().enumerate() {
        let at = || format!("{FIELD}.tools[{i}]");
        let named = function.or(custom);
        let name = named.ok_or_else(|| ApiError::field(at(), "it names no tool"))?.name;
        if !tools.functions.iter().any(|tool| tool["function"]["name"] == *name) {
            return Err(ApiError::field(at(), "there is no such tool in tools"));
        }
        names.push(name);
    }
    let is_allowed = |name: &Value| names.iter().any(|allowed| name == allowed);
    tools.functions.retain(|tool| is_allowed(&tool["function"]["name"]));
    Ok(choice)
}

fn word_choice(word: &str) -> Option<Choice> {
    match word {
        "none" => Some(Choice::Never),
        "auto" => Some(Choice::Auto),
        "required" | "any" => Some(Choice::Required),
        _ => None,
    }
}

/// `functions` and `function_call`, which were there before `tools`.
fn functions(
    functions: Option<List<Function, MAX_TOOLS>>,
    tool_choice: Option<StringOr<ToolChoice>>,
    call: Option<StringOr<NamedFunction>>,
) -> ApiResult<(Tools, Choice)> {
    let mut tools = Tools::default();
    let Some(List(functions)) = functions else {
        let choice = self::tool_choice(tool_choice, &mut tools)?;
        return Ok((tools, choice));
    };
    for (i, function) in functions.into_iter().enumerate() {
        tools::add(&mut tools, function, &format!("functions[{i}]"))?;
    }
    let choice = match call {
        None => Choice::Auto,
        Some(StringOr::Other(NamedFunction { name })) => Choice::Named(name),
        Some(StringOr::String(word)) => match word.as_str() {
            "none" => Choice::Never,
            "auto" => Choice::Auto,
            _ => {
                return Err(ApiError::field("function_call", "choose none, auto, or a function"));
            }
        },
    };
    Ok((tools, choice))
}

fn max_tokens(body: &ChatRequest) -> Option<usize> {
    let fields = [body.max_completion_tokens, body.max_tokens, body.n_predict];
    fields.into_iter().flatten().next().and_then(|Limit(limit)| limit)
}

fn top_logprobs(body: &ChatRequest) -> ApiResult<Option<usize>> {
    let top = body.top_logprobs.map(|Integer(top)| top);
    match (body.logprobs.unwrap_or(false), top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::field("top_logprobs", "it needs logprobs: true")),
    }
}

/// Bytes of variables of the chat template: switches and texts, of which it makes values once more.
const MAX_KWARGS: usize = 64 << 10;

/// Variables that are the request's own business.
const RESERVED: [&str; 5] =
    ["messages", "tools", "add_generation_prompt", "documents", "strftime_now"];

fn template_variables(field: Option<Map<String, Value>>) -> ApiResult<Map<String, Value>> {
    let variables = field.unwrap_or_default();
    let n_bytes = serde_json::to_string(&variables).map_or(0, |json| json.len());
    if n_bytes > MAX_KWARGS {
        let rule = format!("it has {n_bytes} bytes, and {MAX_KWARGS} are taken");
        return Err(ApiError::field("chat_template_kwargs", rule));
    }
    let is_given = |name: &&&str| variables.get(**name).is_some_and(|value| !value.is_null());
    match RESERVED.iter().find(is_given) {
        Some(name) => {
            let at = format!("chat_template_kwargs.{name}");
            Err(ApiError::field(at, "the template has it from the request itself"))
        }
        None => Ok(variables),
    }
}

fn check_modalities(body: &ChatRequest) -> ApiResult<()> {
    let mut all = body.modalities.iter().flatten();
    if all.all(|kind| kind == "text") {
        Ok(())
    } else {
        Err(ApiError::field("modalities", "this model writes text only"))
    }
}
