//! The text side of a model: its tokenizer, its templates, how it writes, and its grammars.

use std::sync::{Arc, OnceLock};

use moeflux_core::{OptionId, TokenId};
use serde_json::{Map, Value};

use super::conversation::{Conversation, ToolChoice};
use super::effort::Efforts;
use super::error::PromptError;
use super::prepared::{AnswerReader, Prepared};
use super::tool_names::ToolNames;
use crate::chat::ChatTemplate;
use crate::constrain::{AnswerShape, Constraint, ConstraintError, Grammar, Grammars};
use crate::encode::Markup;
use crate::error::TextError;
use crate::infill::{Infill, InfillMarks};
use crate::message::Message;
use crate::output::{OutputFormat, OutputParser};
use crate::render_request::RenderRequest;
use crate::tokenizer::Tokenizer;
use crate::turn::Turn;

/// The names by which templates know whether a model is to think.
const THINKING: [&str; 2] = ["enable_thinking", "thinking"];

/// The name by which templates know how much it is to think.
const EFFORT: &str = "reasoning_effort";

/// The text side of a model: what conversations become prompts with, and answers are read by.
///
/// The templates and the grammars are read when they are needed first.
pub struct ChatModel {
    tokenizer: Arc<Tokenizer>,
    /// Tokens of a prompt and its answer together.
    ctx: usize,
    template: OnceLock<ChatTemplate>,
    tool_template: OnceLock<ChatTemplate>,
    format: OnceLock<OutputFormat>,
    efforts: OnceLock<Efforts>,
    grammars: OnceLock<Result<Grammars, ConstraintError>>,
}

impl ChatModel {
    /// The model of a tokenizer, with `ctx` tokens of a prompt and its answer together;
    /// `usize::MAX` reads prompts of any length.
    pub fn new(tokenizer: Arc<Tokenizer>, ctx: usize) -> ChatModel {
        ChatModel {
            tokenizer,
            ctx,
            template: OnceLock::new(),
            tool_template: OnceLock::new(),
            format: OnceLock::new(),
            efforts: OnceLock::new(),
            grammars: OnceLock::new(),
        }
    }

    /// Reads the templates now, rather than with the first conversation.
    ///
    /// # Errors
    /// Where the model has a template that cannot be read.
    pub fn read_templates(&self) -> Result<(), TextError> {
        for with_tools in [false, true] {
            // A model may have none.
            if let Err(PromptError::Text(err)) = self.template(with_tools) {
                return Err(err);
            }
        }
        self.format();
        Ok(())
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// How the model writes thoughts and calls.
    pub fn format(&self) -> &OutputFormat {
        self.format.get_or_init(|| OutputFormat::of(&self.tokenizer))
    }

    /// The chat template.
    ///
    /// # Errors
    /// Where the model has none, or one that cannot be read.
    pub fn template(&self, with_tools: bool) -> Result<&ChatTemplate, PromptError> {
        let cell = if with_tools { &self.tool_template } else { &self.template };
        if let Some(template) = cell.get() {
            return Ok(template);
        }
        let template =
            ChatTemplate::of(&self.tokenizer, with_tools).ok_or(PromptError::NoTemplate)??;
        Ok(cell.get_or_init(|| template))
    }

    /// Tokens of a prompt and its answer together.
    pub fn ctx(&self) -> usize {
        self.ctx
    }

    /// Tokens that a prompt may have: one of the context is left for an answer.
    pub fn max_prompt(&self) -> usize {
        match self.ctx {
            usize::MAX => usize::MAX,
            ctx => ctx.saturating_sub(1),
        }
    }

    /// Refuses what an answer cannot be that has begun as text.
    ///
    /// # Errors
    /// [`PromptError::Refused`].
    pub fn check_continued(&self, conversation: &Conversation) -> Result<(), PromptError> {
        let Conversation { tools, tool_choice, shape, continues, .. } = conversation;
        let (option, reason) = match () {
            () if !continues => return Ok(()),
            () if matches!(tool_choice, ToolChoice::Required | ToolChoice::Named(_)) => {
                (OptionId::ToolChoice, "the answer has begun as text: it cannot be a call")
            }
            () if *shape != AnswerShape::Text => {
                (OptionId::Format, "the answer has begun: it cannot be held to a format any more")
            }
            () if conversation.thinks() == Some(true) => {
                (OptionId::Thinking, "the answer has begun: there is no thinking before it")
            }
            () if !tools.is_empty() && !self.format().can_call_behind_text() => {
                (OptionId::Tools, "this model cannot call tools in an answer that has begun")
            }
            () => return Ok(()),
        };
        Err(PromptError::refused(option, reason))
    }

    /// The text of the prompt that a conversation becomes.
    ///
    /// # Errors
    /// Where the template refuses it, or it is certain not to fit.
    pub fn prompt_text(&self, conversation: &Conversation) -> Result<String, PromptError> {
        let renamed = ToolNames::applied(conversation);
        let conversation = renamed.as_ref().map_or(conversation, |(changed, _)| changed);
        self.check_length(conversation)?;
        let rendered = self.render(conversation, |template, request| {
            if conversation.continues {
                template.render_unfinished(request)
            } else {
                template.render(request)
            }
        })?;
        Ok(rendered.text().to_owned())
    }

    /// What the answer to a conversation is held to, in front of its first token; `None` where that
    /// is any text.
    ///
    /// # Errors
    /// Where the form of the answer or the tools cannot be enforced.
    pub fn constraint(
        &self,
        conversation: &Conversation,
    ) -> Result<Option<Constraint>, PromptError> {
        let renamed = ToolNames::applied(conversation);
        let conversation = renamed.as_ref().map_or(conversation, |(changed, _)| changed);
        self.constraint_after(conversation, false)
    }

    /// Reads a conversation as the model does.
    ///
    /// # Errors
    /// Where the template refuses it, it does not fit, or its answer cannot be held to what is
    /// asked for.
    pub fn prepare(&self, conversation: &Conversation) -> Result<Prepared, PromptError> {
        self.check_continued(conversation)?;
        if let Some(i) = conversation.tools.unnamed() {
            let reason = format!(
                "tool {i} has no name: write it like \
                 {{\"type\": \"function\", \"function\": {{\"name\": \"f\", \"parameters\": {{…}}}}}}"
            );
            return Err(PromptError::Refused { option: OptionId::Tools, item: Some(i), reason });
        }
        self.check_length(conversation)?;
        let (renamed, tool_names) = ToolNames::applied(conversation).unzip();
        let conversation = renamed.as_ref().unwrap_or(conversation);
        let (tokenizer, max_tokens) = (&self.tokenizer, self.max_prompt());
        let turn = self.render(conversation, |template, request| {
            if conversation.continues {
                Turn::continuing(tokenizer, template, request, max_tokens)
            } else {
                Turn::of(tokenizer, template, request, max_tokens)
            }
        })?;
        let format = self.format();
        let is_thinking = format.prompt_opens_thinking(&turn.tokens, tokenizer);
        let may_call =
            conversation.tool_choice != ToolChoice::Never && !conversation.tools.is_empty();
        let tools = may_call.then(|| Value::from(conversation.tools.functions.clone()));
        let parser = OutputParser::new(format, tools.as_ref(), is_thinking);
        let parser = if conversation.continues { parser.continuing() } else { parser };
        let constraint = self.constraint_after(conversation, is_thinking)?;
        let expected = self.expected(conversation)?;
        let no_calls =
            if may_call { None } else { format.no_calls(&conversation.messages, &turn.tokens) };
        let wants_thoughts = conversation.thinks() == Some(true) && format.can_think();
        let thoughts = format.thoughts(is_thinking, may_call);
        let thoughts = thoughts.map(|thoughts| {
            let begun = if conversation.continues { thoughts.continuing() } else { thoughts };
            begun.within(conversation.thinking_budget)
        });
        Ok(Prepared {
            turn,
            expected,
            constraint,
            no_calls,
            thoughts,
            shown: format.shown(),
            reader: AnswerReader::new(parser, tool_names.unwrap_or_default()),
            may_think: (is_thinking || wants_thoughts) && conversation.thinking_budget != Some(0),
        })
    }

    /// Reads a raw prompt, which the model continues without a chat template: control tokens in it
    /// count, so it must not hold text of others.
    ///
    /// # Errors
    /// Where it does not fit, or `shape` cannot be enforced.
    pub fn prepare_text(&self, text: &str, shape: &AnswerShape) -> Result<Prepared, PromptError> {
        let tokens = self.tokenizer.encode_prompt(text, self.max_prompt())?;
        self.prepare_tokens(tokens, shape)
    }

    /// Reads a text with a gap, which the model fills. None of it becomes a control token.
    ///
    /// # Errors
    /// [`PromptError::NoInfill`] where the vocabulary has no tokens for that; where the text does not
    /// fit, or `shape` cannot be enforced.
    pub fn prepare_infill(
        &self,
        infill: &Infill,
        shape: &AnswerShape,
    ) -> Result<Prepared, PromptError> {
        let marks = InfillMarks::of(&self.tokenizer).ok_or(PromptError::NoInfill)?;
        let tokens = marks.encode(&self.tokenizer, infill, self.max_prompt())?;
        self.prepare_tokens(tokens, shape)
    }

    /// Whether the model fills gaps in texts.
    pub fn can_infill(&self) -> bool {
        InfillMarks::of(&self.tokenizer).is_some()
    }

    /// Whether conversations may have pictures: the template writes them, and the vocabulary has a token
    /// that stands for one.
    pub fn takes_pictures(&self) -> bool {
        self.template(false).is_ok_and(ChatTemplate::takes_pictures)
    }

    /// Reads tokens that the model continues.
    ///
    /// # Errors
    /// Where `shape` cannot be enforced.
    pub fn prepare_tokens(
        &self,
        tokens: Vec<TokenId>,
        shape: &AnswerShape,
    ) -> Result<Prepared, PromptError> {
        let constraint = match shape {
            AnswerShape::Text => None,
            shape => Some(self.compile(&Grammar {
                format: OutputFormat::plain(),
                is_thinking: false,
                shape: shape.clone(),
                tools: Vec::new(),
                must_call: false,
                may_call_many: false,
            })?),
        };
        Ok(Prepared { constraint, ..Prepared::of_tokens(tokens) })
    }

    /// Refuses a conversation that is certain not to fit, before anything of it is copied.
    fn check_length(&self, conversation: &Conversation) -> Result<(), PromptError> {
        let Conversation { messages, tools, .. } = conversation;
        // A model without a template is refused when the conversation is rendered.
        let Ok(template) = self.template(!tools.is_empty()) else { return Ok(()) };
        let max_tokens = self.max_prompt();
        Ok(template.check_length(&self.tokenizer, messages, &tools.functions, max_tokens)?)
    }

    /// Calls `work` with the template that a conversation needs and what it is rendered with.
    fn render<T>(
        &self,
        conversation: &Conversation,
        work: impl FnOnce(&ChatTemplate, &RenderRequest<'_>) -> Result<T, TextError>,
    ) -> Result<T, PromptError> {
        let Conversation { messages, pictures, effort, variables, continues, .. } = conversation;
        let tools = Value::from(conversation.tools.functions.clone());
        let tools = (!conversation.tools.is_empty()).then_some(&tools);
        if tools.is_some() && self.format().syntax().is_none() {
            return Err(PromptError::NoTools);
        }
        let template = self.template(tools.is_some())?;
        let mut extra = variables.clone();
        if let Some(thinks) = conversation.thinks().or(continues.then_some(false)) {
            for name in THINKING {
                extra.entry(name).or_insert(Value::from(thinks));
            }
        }
        if let Some(effort) = effort.as_ref().filter(|_| conversation.thinks() != Some(false)) {
            let word = || Value::from(self.efforts(template).nearest(effort));
            extra.entry(EFFORT).or_insert_with(word);
        }
        let request =
            RenderRequest { messages, pictures, tools, add_generation_prompt: true, extra };
        Ok(work(template, &request)?)
    }

    /// The words for how much the model thinks that a template knows.
    fn efforts(&self, template: &ChatTemplate) -> &Efforts {
        self.efforts.get_or_init(|| {
            let messages = [Message::new("user", "Hi")];
            let render = |word: &str| {
                let mut extra = Map::from_iter([(EFFORT.to_owned(), Value::from(word))]);
                extra.extend(THINKING.map(|name| (name.to_owned(), Value::from(true))));
                let request = RenderRequest {
                    messages: &messages,
                    add_generation_prompt: true,
                    extra,
                    ..RenderRequest::default()
                };
                template.render(&request).ok().map(|rendered| rendered.text().to_owned())
            };
            let source = self.tokenizer.chat_template_source(false).unwrap_or_default();
            Efforts::find(source, render)
        })
    }

    /// Tokens of what is expected to be said, as far as any answer could.
    fn expected(&self, conversation: &Conversation) -> Result<Arc<[TokenId]>, PromptError> {
        let Some(text) = &conversation.expected else { return Ok(Arc::default()) };
        let tokens = self.tokenizer.encode_first(text, Markup::Literal, self.ctx);
        let tokens =
            tokens.map_err(|err| PromptError::refused(OptionId::Expected, err.to_string()))?;
        Ok(tokens.into())
    }

    /// What holds the answer to what was asked for, where `is_thinking` says whether the prompt ends
    /// with thinking that has begun; `None` where that is text.
    fn constraint_after(
        &self,
        conversation: &Conversation,
        is_thinking: bool,
    ) -> Result<Option<Constraint>, PromptError> {
        let Conversation { tools, tool_choice, may_call_many, shape, .. } = conversation;
        let functions: Vec<Value> = match tool_choice {
            ToolChoice::Never => Vec::new(),
            ToolChoice::Auto | ToolChoice::Required => tools.functions.clone(),
            ToolChoice::Named(name) => {
                let named = tools.functions.iter();
                named.filter(|tool| tool["function"]["name"] == **name).cloned().collect()
            }
        };
        let must_call = matches!(tool_choice, ToolChoice::Required | ToolChoice::Named(_));
        if must_call && functions.is_empty() {
            let reason = "there is no such tool in tools";
            return Err(PromptError::refused(OptionId::ToolChoice, reason));
        }
        if functions.is_empty() && *shape == AnswerShape::Text {
            return Ok(None);
        }
        let compiled = self.compile(&Grammar {
            format: self.format().clone(),
            is_thinking,
            shape: shape.clone(),
            tools: functions,
            must_call,
            may_call_many: *may_call_many,
        })?;
        let left = compiled.left_to_model();
        if let Some(refused) = left.iter().find(|part| tools.strict.contains(&part.tool)) {
            let mut all = tools.functions.iter();
            let i = all.position(|tool| tool["function"]["name"] == *refused.tool).unwrap_or(0);
            let reason = format!("{refused}, which strict: true does not allow");
            return Err(PromptError::Refused { option: OptionId::Tools, item: Some(i), reason });
        }
        Ok(Some(compiled))
    }

    /// Makes a grammar ready; the first call takes a second for a large vocabulary.
    fn compile(&self, grammar: &Grammar) -> Result<Constraint, PromptError> {
        let grammars = self.grammars.get_or_init(|| Grammars::new(&self.tokenizer)).as_ref();
        let grammars = grammars.map_err(|err| PromptError::Vocabulary(err.clone()))?;
        let is_text = grammar.shape == AnswerShape::Text;
        let option = if is_text { OptionId::Tools } else { OptionId::Format };
        grammars.compile(grammar).map_err(|source| PromptError::Constraint { option, source })
    }
}

impl std::fmt::Debug for ChatModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatModel").field("ctx", &self.ctx).finish_non_exhaustive()
    }
}
