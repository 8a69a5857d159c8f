//! Conversations to text by the model's own template, with content kept apart from markup.
//!
//! What is rendered is what the reference renders, always: a plain rendering gives the text.
//! Where content could be taken for control tokens, the conversation is rendered once more with
//! marks in the content (see `fence`). If that gives the same text apart from the marks, their
//! places are the fences. Templates do look at content, though: many test assistant turns for
//! `</think>`, some test other turns for tags of their own. So:
//! 1. In assistant turns, what the template tests for stays unmarked: such tags are the model's own
//!    output. Special tokens, such as the end of a turn, are marked there too.
//! 2. Should the text differ, what the template tests for stays unmarked everywhere, and what was
//!    spared outside of assistant turns is looked up in the text, every copy of it being fenced.
//! 3. Should it still differ, all marked content is looked up in that way.
//!
//! Content that cannot be found is refused with [`TextError::Ambiguous`]; it never passes
//! unfenced. Roles become markup in most templates, so a role must be a plain word.
//!
//! What this does not cover: a template that builds control tokens itself from pieces that it
//! cuts out of content, which no known template does.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::error::{TextError, excerpt, one_line};
use super::fence::{Leniency, Mark, MarkupText, Rendered, is_word, map_leaves};
use super::history::HistoryShape;
use super::jinja;
use super::learned::Learned;
use super::length::Written;
use super::message::Message;
use super::nesting;
use super::picture_parts::PictureRoles;
use super::render_request::RenderRequest;
use super::renderer::{RenderError, Renderer};
use super::tokenizer::Tokenizer;

/// A chat template, ready to render conversations.
#[derive(Debug)]
pub struct ChatTemplate {
    renderer: Renderer,
    markup: MarkupText,
    tested: Vec<String>, // text that the template compares content with
    learned: Arc<Learned>,
}

/// A request as the template sees it.
#[derive(Clone)]
struct Context {
    messages: Vec<Map<String, Value>>,
    tools: Value,
    extra: Map<String, Value>,
}

impl ChatTemplate {
    /// The template of a model: `tool_use` if there is one and it is asked for, else `default`,
    /// else the only one. `None` for a model without a template, or with several of other names.
    pub fn of(tokenizer: &Tokenizer, with_tools: bool) -> Option<Result<Self, TextError>> {
        let source = tokenizer.chat_template_source(with_tools)?;
        let known = tokenizer.templates.find(source);
        let template = Self::with_learned(source, tokenizer.markup_text(), known);
        if let Ok(template) = &template {
            tokenizer.templates.keep(source, &template.learned);
        }
        Some(template.map_err(|err| match (err, tokenizer.template_file()) {
            (TextError::TemplateSyntax(reason), Some(path)) => {
                TextError::TemplateSyntax(format!("{reason} ({})", path.display()))
            }
            (err, _) => err,
        }))
    }

    /// Parses a Jinja template. `markup` comes from [`super::Tokenizer::markup_text`]; it decides
    /// what content must not turn into.
    pub fn new(source: &str, markup: MarkupText) -> Result<Self, TextError> {
        Self::with_learned(source, markup, None)
    }

    /// As [`ChatTemplate::new`], with what is known of a template of the same source.
    fn with_learned(
        source: &str,
        markup: MarkupText,
        known: Option<Arc<Learned>>,
    ) -> Result<Self, TextError> {
        let renderer = Renderer::new(source).map_err(|err| match err {
            RenderError::Template(reason) | RenderError::Limit(reason) => {
                TextError::TemplateSyntax(one_line(&reason))
            }
            RenderError::Process(reason) => TextError::NoRenderer(reason),
        })?;
        let mut tested = jinja::string_literals(source);
        tested.retain(|text| text.chars().any(|c| markup.is_edge(c)) && !markup.has_special(text));
        let is_known = known.is_some();
        let mut template = Self { renderer, markup, tested, learned: known.unwrap_or_default() };
        if !is_known {
            let shape = HistoryShape::find(|messages| template.plain(messages, None));
            let written =
                Written::find(|messages, tools| template.plain(&shape.apply(messages), tools));
            let render = |messages: &[Message]| template.plain(&shape.apply(messages), None);
            let placeholder = template.markup.placeholder();
            let pictures = placeholder.map(|text| PictureRoles::find(text, render));
            let pictures = pictures.unwrap_or_default();
            let spent = Arc::clone(&template.learned.spent);
            template.learned = Arc::new(Learned { shape, written, pictures, spent });
        }
        Ok(template)
    }

    /// Refuses a conversation that is certain to have more than `max_tokens`, before it is rendered,
    /// which takes several times its memory.
    ///
    /// # Errors
    /// [`TextError::TooLong`] with a number of tokens below which it cannot come, and
    /// [`TextError::TooNested`].
    pub fn check_length(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        tools: &[Value],
        max_tokens: usize,
    ) -> Result<(), TextError> {
        nesting::check_parts(messages, tools)?;
        if max_tokens == usize::MAX {
            return Ok(());
        }
        let fewest = |text: &str| tokenizer.fewest_tokens(text);
        let n_tokens = self.learned.written.fewest_tokens(messages, tools, &self.tested, fewest);
        if n_tokens > max_tokens {
            Err(TextError::TooLong { n_tokens, is_exact: false, max_tokens })
        } else {
            Ok(())
        }
    }

    /// Whether the template writes pictures, if only those of users.
    pub fn takes_pictures(&self) -> bool {
        self.learned.pictures.takes_any()
    }

    /// What the template makes of messages as they are; `None` where it refuses them.
    pub(super) fn plain(&self, messages: &[Message], tools: Option<&Value>) -> Option<String> {
        self.render_as_given(&RenderRequest { messages, tools, ..RenderRequest::default() })
    }

    /// What the template makes of a request whose messages keep their shape; `None` also where it
    /// met its limits more than once, or has written or computed too much for what can be learned.
    pub(super) fn render_as_given(&self, request: &RenderRequest<'_>) -> Option<String> {
        let spent = &self.learned.spent;
        if self.renderer.is_costly() || spent.is_all() {
            return None;
        }
        let now = chrono::Local::now().naive_local();
        let before = self.renderer.spent();
        let text = self.run(&Context::new(request).ok()?, request.add_generation_prompt, now);
        let time = self.renderer.spent().saturating_sub(before);
        spent.add(text.as_ref().map_or(0, String::len), time);
        text.ok()
    }

    /// Renders a conversation.
    ///
    /// # Errors
    /// Where the template fails or refuses the conversation, where a role is not a plain word,
    /// where data is nested too deeply, and where content cannot be distinguished from control
    /// text.
    pub fn render(&self, request: &RenderRequest<'_>) -> Result<Rendered, TextError> {
        nesting::check(request)?;
        let messages = self.learned.shape.apply(request.messages);
        let messages = &self.learned.pictures.apply(messages);
        let context = Context::new(&RenderRequest { messages, ..request.clone() })?;
        let now = chrono::Local::now().naive_local();
        let run = |context: &Context| {
            let text = self.run(context, request.add_generation_prompt, now);
            text.map_err(|err| match err {
                RenderError::Template(reason) | RenderError::Limit(reason) => {
                    TextError::Render(one_line(&reason))
                }
                RenderError::Process(reason) => TextError::NoRenderer(reason),
            })
        };
        let plain = run(&context)?;
        if self.fenced_leaves(&context).is_empty() {
            return Ok(Rendered::new(plain, Vec::new()));
        }
        let mark = Mark::draw(&[
            &Value::Array(context.messages.iter().cloned().map(Value::Object).collect()),
            &context.tools,
            &Value::Object(context.extra.clone()),
            &Value::String(plain.clone()),
        ]);
        for leniency in [Leniency::Assistant, Leniency::All] {
            let marked = context.map(&mut |owner, leaf| {
                let fences = self.markup.fences_of(leaf, self.spared(owner, leniency));
                mark.insert(leaf, &fences)
            });
            // A template may refuse the marked conversation; then the next way is tried.
            let Ok(marked) = run(&marked) else { continue };
            let (text, mut fences) = mark.remove(&marked);
            if text != plain {
                continue;
            }
            if leniency == Leniency::All {
                fences.extend(self.spared_fences(&context, &plain)?);
            }
            return Ok(Rendered::new(plain, fences));
        }
        let mut fences = Vec::new();
        for (leaf, offsets) in self.fenced_leaves(&context) {
            fences.extend(look_up(&plain, &leaf, &offsets)?);
        }
        Ok(Rendered::new(plain, fences))
    }

    /// Renders a conversation up to where the text of its last message ends, for the model to go
    /// on with it.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`], and where the template leaves that message out.
    pub fn render_unfinished(&self, request: &RenderRequest<'_>) -> Result<Rendered, TextError> {
        nesting::check(request)?;
        let mut messages = request.messages.to_vec();
        let last = messages.last_mut().ok_or(TextError::NoLastMessage)?;
        let text = last.content.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
        let all = messages.iter().map(serde_json::to_value).filter_map(Result::ok).collect();
        let end = Mark::draw(&[&Value::Array(all)]);
        if let Some(last) = messages.last_mut() {
            last.content = Some(Value::from(end.insert(&text, &[text.len()])));
        }
        let request =
            RenderRequest { messages: &messages, add_generation_prompt: false, ..request.clone() };
        let rendered = self.render(&request)?;
        let at = end.find_last(rendered.text()).ok_or(TextError::NoLastMessage)?;
        Ok(rendered.up_to(at))
    }

    fn run(
        &self,
        context: &Context,
        add_generation_prompt: bool,
        now: chrono::NaiveDateTime,
    ) -> Result<String, RenderError> {
        let mut variables = Map::new();
        for (name, text) in &self.markup.named {
            variables.insert(name.clone(), Value::String(text.clone()));
        }
        variables.insert("tools".into(), context.tools.clone());
        variables.insert("documents".into(), Value::Null);
        variables.extend(context.extra.clone());
        let messages = context.messages.iter().cloned().map(Value::Object).collect();
        variables.insert("messages".into(), Value::Array(messages));
        variables.insert("add_generation_prompt".into(), Value::Bool(add_generation_prompt));
        self.renderer.render(&variables, now)
    }

    /// What stays unmarked in a leaf of `owner`, which is a role or empty.
    fn spared(&self, owner: &str, leniency: Leniency) -> &[String] {
        match leniency {
            Leniency::All => &self.tested,
            Leniency::Assistant if owner == "assistant" => &self.tested,
            _ => &[],
        }
    }

    fn fenced_leaves(&self, context: &Context) -> Vec<(String, Vec<usize>)> {
        let mut leaves = Vec::new();
        context.map(&mut |owner, leaf| {
            let spared = self.spared(owner, Leniency::Assistant);
            let fences = self.markup.fences_of(leaf, spared);
            if !fences.is_empty() {
                leaves.push((leaf.to_owned(), fences));
            }
            String::new()
        });
        leaves
    }

    /// Fences within text that was spared although no assistant said it.
    fn spared_fences(&self, context: &Context, plain: &str) -> Result<Vec<usize>, TextError> {
        let mut fences = Vec::new();
        let mut failed = None;
        context.map(&mut |owner, leaf| {
            let has_tested = self.tested.iter().any(|text| leaf.contains(text.as_str()));
            if owner != "assistant" && has_tested && self.markup.has_control(leaf) {
                match look_up(plain, leaf, &self.markup.fences_of(leaf, &[])) {
                    Ok(found) => fences.extend(found),
                    Err(error) => failed = Some(error),
                }
            }
            String::new()
        });
        failed.map_or(Ok(fences), Err)
    }
}

impl Context {
    fn new(request: &RenderRequest<'_>) -> Result<Self, TextError> {
        let mut messages = Vec::with_capacity(request.messages.len());
        for (idx, message) in request.messages.iter().enumerate() {
            let value = serde_json::to_value(message);
            let value = value.map_err(|err| TextError::Render(err.to_string()))?;
            match value {
                Value::Object(fields) if role_of(&fields).is_some_and(is_word) => {
                    messages.push(fields);
                }
                _ => return Err(TextError::Role { idx, role: excerpt(&message.role) }),
            }
        }
        let tools = request.tools.cloned().unwrap_or(Value::Null);
        Ok(Self { messages, tools, extra: request.extra.clone() })
    }

    /// Applies `change(owner, leaf)` to everything that a user can choose.
    fn map(&self, change: &mut dyn FnMut(&str, &str) -> String) -> Self {
        let mut messages = Vec::with_capacity(self.messages.len());
        for fields in &self.messages {
            let owner = role_of(fields).unwrap_or_default();
            let mut mapped = Map::new();
            for (name, value) in fields {
                let value = match name.as_str() {
                    "role" => value.clone(),
                    _ => map_leaves(value, &mut |leaf| change(owner, leaf)),
                };
                mapped.insert(name.clone(), value);
            }
            messages.push(mapped);
        }
        let tools = map_leaves(&self.tools, &mut |leaf| change("", leaf));
        let mut extra = Map::new();
        for (name, value) in &self.extra {
            extra.insert(name.clone(), map_leaves(value, &mut |leaf| change("", leaf)));
        }
        Self { messages, tools, extra }
    }
}

fn role_of(message: &Map<String, Value>) -> Option<&str> {
    message.get("role")?.as_str()
}

/// Finds every copy of `leaf` in `plain` and places its fences there.
fn look_up(plain: &str, leaf: &str, fences: &[usize]) -> Result<Vec<usize>, TextError> {
    // As templates trim.
    let core = leaf.trim_matches(jinja::is_space);
    let skipped = leaf.len() - leaf.trim_start_matches(jinja::is_space).len();
    let mut placed = Vec::new();
    for (start, _) in plain.match_indices(core) {
        for at in fences.iter().filter_map(|at| at.checked_sub(skipped)) {
            placed.push(start + at.min(core.len()));
        }
    }
    if placed.is_empty() {
        return Err(TextError::Ambiguous { excerpt: excerpt(leaf) });
    }
    Ok(placed)
}
