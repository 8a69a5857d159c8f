//! From a conversation to the prompt that the model reads.

use std::sync::Arc;

use moeflux_engine::SeenPicture;
use moeflux_text::{AnswerShape, Infill, Prepared, PromptError};

use crate::app::App;
use crate::ask::{PendingAnswers, PreparedRequest, submit};
use crate::conversation::ConversationRequest;
use crate::error::{ApiError, ApiResult, Overflow};
use crate::model::Model;
use crate::offload::offload;
use crate::pictures::{self, Looks};
use crate::settings::Settings;

/// Queues a conversation.
pub(crate) async fn ask(
    app: &Arc<App>,
    mut request: ConversationRequest,
) -> ApiResult<PendingAnswers> {
    let looks = open_pictures(app, &mut request).await?;
    let settings = request.settings.clone();
    let shared = Arc::clone(app);
    let prepared = offload(move || prepare(&shared, &request)).await??;
    let seen = looks.seen(app, &prepared.turn.pictures).await?;
    submit_prepared(app, prepared, seen, settings)
}

/// Opens the pictures of a request, and gives its conversation what stands for them in its prompt.
///
/// # Errors
/// Where one cannot be had or read, and where they are too many or too large together.
pub(crate) async fn open_pictures(
    app: &Arc<App>,
    request: &mut ConversationRequest,
) -> ApiResult<Looks> {
    let sources = std::mem::take(&mut request.pictures);
    let looks = pictures::open(app, sources).await?;
    request.conversation.pictures = looks.rows();
    Ok(looks)
}

/// Queues a conversation that has been read, with what the model has seen of its pictures.
pub(crate) fn submit_prepared(
    app: &Arc<App>,
    prepared: Prepared,
    pictures: Vec<Arc<SeenPicture>>,
    settings: Settings,
) -> ApiResult<PendingAnswers> {
    submit(app, PreparedRequest::of_one(prepared, pictures, settings))
}

/// Gives the conversation of a request as many rows as its pictures have; no picture is decoded.
///
/// # Errors
/// As [`open_pictures`], but for damaged pixels.
pub(crate) async fn count_pictures(
    app: &Arc<App>,
    request: &mut ConversationRequest,
) -> ApiResult<()> {
    let sources = std::mem::take(&mut request.pictures);
    request.conversation.pictures = pictures::count_rows(app, sources).await?;
    Ok(())
}

/// Tokens of a conversation, its answer not counted.
pub(crate) async fn count(app: &Arc<App>, mut request: ConversationRequest) -> ApiResult<usize> {
    count_pictures(app, &mut request).await?;
    let shared = Arc::clone(app);
    let counted = offload(move || prepare(&shared, &request)).await?;
    match counted.map(|prepared| prepared.turn.tokens.len()) {
        // It can be counted all the same.
        Err(ApiError { overflow: Some(Overflow { n_prompt, is_exact: true, .. }), .. }) => {
            Ok(n_prompt)
        }
        counted => counted,
    }
}

/// The text of the prompt that a conversation becomes.
pub(crate) fn prompt_text(model: &Model, request: &ConversationRequest) -> ApiResult<String> {
    let text = model.text.prompt_text(&request.conversation);
    text.map_err(|err| request.names.refusal(err))
}

/// Reads a conversation as the model does.
pub(crate) fn prepare(model: &Model, request: &ConversationRequest) -> ApiResult<Prepared> {
    let prepared = model.text.prepare(&request.conversation);
    let prepared = prepared.map_err(|err| request.names.refusal(err))?;
    if let Some(constraint) = &prepared.constraint {
        model.log_left_to_model(constraint.left_to_model());
    }
    Ok(prepared)
}

/// The fields with the two parts of a text with a gap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GapFields {
    before: &'static str,
    behind: &'static str,
}

impl GapFields {
    /// As OpenAI and Ollama call them.
    pub(crate) const SUFFIX: GapFields = GapFields { before: "prompt", behind: "suffix" };
    /// As llama-server calls them.
    pub(crate) const INPUT: GapFields =
        GapFields { before: "input_prefix", behind: "input_suffix" };
}

/// Reads a text with a gap.
pub(crate) fn prepare_infill(
    model: &Model,
    infill: &Infill,
    shape: &AnswerShape,
    fields: GapFields,
) -> ApiResult<Prepared> {
    model.text.prepare_infill(infill, shape).map_err(|err| match err {
        PromptError::NoInfill => ApiError::not_supported(fields.behind, &err.to_string()),
        PromptError::Text(err) => ApiError::text_of(fields.before, err),
        err => ApiError::field("format", err.to_string()),
    })
}

/// Refuses a conversation whose answer cannot be held to what was asked for.
pub(crate) fn check_constraint(model: &Model, request: &ConversationRequest) -> ApiResult<()> {
    let constraint = model.text.constraint(&request.conversation);
    let constraint = constraint.map_err(|err| request.names.refusal(err))?;
    if let Some(constraint) = &constraint {
        model.log_left_to_model(constraint.left_to_model());
    }
    Ok(())
}
