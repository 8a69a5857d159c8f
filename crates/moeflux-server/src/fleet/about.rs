//! What is known of a model, loaded or not.

use std::sync::Arc;

use moeflux_engine::{Inspection, ModelShape, RowKind, dialects};
use moeflux_text::{ChatModel, GenerationDefaults, TextError, Tokenizer};

/// Facts of a model that clients ask for.
#[derive(Clone, Debug)]
pub(crate) struct About {
    /// Its family.
    pub(crate) family: &'static str,
    /// Its figures.
    pub(crate) shape: ModelShape,
    /// Tokens of a conversation at most; of a model that is not loaded, what the memory that is free
    /// would allow.
    pub(crate) ctx: usize,
    /// Whether it can think before it answers.
    pub(crate) thinks: bool,
    /// Whether it can call tools.
    pub(crate) calls_tools: bool,
    /// Whether it can fill a gap in a text.
    pub(crate) infills: bool,
    /// Whether it sees pictures.
    pub(crate) sees: bool,
    /// Whether it has a chat template.
    pub(crate) chats: bool,
    /// Its chat template, that for tools where it has one; empty without one.
    pub(crate) template: String,
    /// How its makers advise to choose tokens.
    pub(crate) defaults: GenerationDefaults,
}

impl About {
    /// Reads the tokenizer and the templates of a model that was inspected.
    pub(super) fn of_inspection(inspection: &Inspection) -> Result<About, TextError> {
        let tokenizer = Tokenizer::open(&inspection.text, dialects())?;
        let text = ChatModel::new(Arc::new(tokenizer), inspection.plan.ctx);
        text.read_templates()?;
        let has_tower = inspection.plan.rows().iter().any(|row| row.kind == RowKind::Tower);
        Ok(About::new(inspection.family, &inspection.shape, &text, has_tower))
    }

    /// Of a family, its figures and its text, and whether it has a vision tower.
    pub(super) fn new(
        family: &'static str,
        shape: &ModelShape,
        text: &ChatModel,
        has_tower: bool,
    ) -> About {
        let calls_tools = text.format().syntax().is_some();
        let template = text.tokenizer().chat_template_source(calls_tools);
        About {
            family,
            shape: shape.clone(),
            ctx: text.ctx(),
            thinks: text.format().can_think(),
            calls_tools,
            infills: text.can_infill(),
            sees: has_tower && text.takes_pictures(),
            chats: template.is_some(),
            template: template.unwrap_or_default().to_owned(),
            defaults: *text.tokenizer().generation_defaults(),
        }
    }

    /// What it can do, in Ollama's words.
    pub(crate) fn capabilities(&self) -> Vec<&'static str> {
        let all = [
            ("completion", true),
            ("tools", self.calls_tools),
            ("thinking", self.thinks),
            ("insert", self.infills),
            ("vision", self.sees),
        ];
        all.into_iter().filter_map(|(name, has)| has.then_some(name)).collect()
    }
}
