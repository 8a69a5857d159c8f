//! A loaded model.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use moeflux_engine::{
    Engine, EngineOptions as Options, Plan, Scheduler, SchedulerOptions, SeenPicture, SubmitError,
    TokenId,
};
use moeflux_text::{ChatModel, Infill, Message, Prepared, Tokenizer};

use crate::answer::Answer;
use crate::chat::Chat;
use crate::error::Error;
use crate::generate::{
    AnswerOptions, Ask, Order, answer_all, answer_prepared, prepare, start, submit,
};
use crate::pictures::{pictures_of, see};
use crate::request::{Request, Settings};
use crate::shared::Shared;

/// Requests that may wait for a session.
const MAX_WAITING: usize = 1 << 16;

/// A loaded model. Clones share it, from any thread.
#[derive(Clone)]
pub struct Model {
    shared: Arc<Shared>,
}

impl Model {
    /// Opens a checkpoint: a directory as published, or a container that `moeflux pack` wrote.
    /// Memory is planned for this machine.
    ///
    /// # Errors
    /// Where files are damaged or of no known family, or memory does not suffice.
    pub fn open(path: impl AsRef<Path>) -> Result<Model, Error> {
        Model::open_with(path, &Options::default())
    }

    /// Opens a checkpoint.
    ///
    /// # Errors
    /// As [`Model::open`], and where an option makes no sense for the model or the machine.
    pub fn open_with(path: impl AsRef<Path>, options: &Options) -> Result<Model, Error> {
        let engine = Engine::open(path.as_ref(), options)?;
        let n_sessions = options.memory.sessions.unwrap_or(1).max(1);
        let limits = SchedulerOptions { n_sessions, max_waiting: MAX_WAITING };
        let model = Model::of_engine(engine, limits)?;
        model.text().read_templates()?;
        Ok(model)
    }

    /// A model whose engine is open: for programs that open it with options of their own. Its
    /// templates are read when they are needed first.
    ///
    /// # Errors
    /// Where the model has no tokenizer, or the system starts no thread.
    pub fn of_engine(engine: Engine, limits: SchedulerOptions) -> Result<Model, Error> {
        let tokenizer = Arc::new(engine.tokenizer()?);
        let scheduler = Scheduler::start(engine.clone(), Arc::clone(&tokenizer), limits)
            .map_err(|err| Error::no_thread(&err))?;
        let text = Arc::new(ChatModel::new(tokenizer, engine.plan().ctx));
        Ok(Model { shared: Arc::new(Shared { engine, scheduler, text }) })
    }

    /// What opening a checkpoint would take in memory, row by row. Reads headers, no weights.
    ///
    /// # Errors
    /// Where files are damaged or of no known family.
    pub fn plan(path: impl AsRef<Path>, options: &Options) -> Result<Plan, Error> {
        Ok(moeflux_engine::inspect(path.as_ref(), options)?.plan)
    }

    /// The model's family, such as `qwen3_moe`.
    pub fn family(&self) -> &str {
        self.shared.engine.family()
    }

    /// Positions of a session: tokens of a prompt and its answer together.
    pub fn context_length(&self) -> usize {
        self.shared.engine.plan().ctx
    }

    /// What the user should know although nothing failed.
    pub fn warnings(&self) -> &[String] {
        self.shared.engine.warnings()
    }

    /// The engine below, for what this crate does not cover, such as rows that are embeddings
    /// ([`Session::eval_rows`](moeflux_engine::Session::eval_rows)). Its sessions and steps share the
    /// device with this model's answers.
    pub fn engine(&self) -> &Engine {
        &self.shared.engine
    }

    /// The thread that runs this model's answers: what it does, and how it ends.
    pub fn scheduler(&self) -> &Scheduler {
        &self.shared.scheduler
    }

    /// The text side of the model: what conversations become prompts with.
    pub fn text(&self) -> &Arc<ChatModel> {
        &self.shared.text
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        self.shared.text.tokenizer()
    }

    /// Begins a conversation.
    ///
    /// # Errors
    /// Where the model has no chat template, or one that does not parse.
    pub fn chat(&self) -> Result<Chat, Error> {
        self.text().template(false).map_err(|err| self.shared.refusal(err))?;
        Ok(Chat::new(Arc::clone(&self.shared)))
    }

    /// Answers a conversation, which the caller keeps: the answer is owned and may go to
    /// any thread. What the conversation has in common with earlier ones is not evaluated again.
    ///
    /// ```
    /// use moeflux::{Message, Model, Request};
    ///
    /// # fn main() -> Result<(), moeflux::Error> {
    /// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../moeflux-cli/demo");
    /// # // The published crate comes without a model.
    /// # if !std::path::Path::new(folder).exists() {
    /// #     return Ok(());
    /// # }
    /// let model = Model::open(folder)?;
    /// let messages = [Message::new("user", "Why is the sky blue?")];
    /// let text = model.answer(&messages, &Request::default().max_tokens(20))?.text()?;
    /// assert!(!text.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Where the template refuses the messages, they are longer than the context, or the request's
    /// tools or schema cannot be used.
    pub fn answer(
        &self,
        messages: &[Message],
        request: &Request,
    ) -> Result<Answer<'static>, Error> {
        let prepared = prepare(&self.shared, messages, request)?;
        start(&self.shared, prepared, request, None)
    }

    /// The text of the prompt that a conversation becomes. Encoded, it is not the prompt itself: there
    /// no control token comes from a message.
    ///
    /// # Errors
    /// As [`Model::answer`].
    pub fn prompt_text(&self, messages: &[Message], request: &Request) -> Result<String, Error> {
        let pictures = pictures_of(messages, &request.pictures)?;
        let conversation = request.conversation(messages, &pictures);
        self.text().prompt_text(&conversation).map_err(|err| self.shared.refusal(err))
    }

    /// Continues a raw prompt, without a chat template. Control tokens that are written in `prompt`
    /// count, so it must not hold text of others; what a [`Request`] says of tools and thinking does
    /// not apply.
    ///
    /// # Errors
    /// Where the prompt has no tokens or more than the context, or the format is no usable schema.
    pub fn generate(&self, prompt: &str, request: &Request) -> Result<Answer<'static>, Error> {
        start(&self.shared, self.prepare_text(prompt, request)?, request, None)
    }

    /// Reads a conversation as [`Model::answer`] does, and asks for no answer.
    ///
    /// # Errors
    /// As [`Model::answer`].
    pub fn prepare(&self, messages: &[Message], request: &Request) -> Result<Prepared, Error> {
        Ok(prepare(&self.shared, messages, request)?.prepared)
    }

    /// Looks at a picture: the bytes of a PNG, JPEG, WebP or GIF file, of an untrusted one too. Its rows go
    /// into messages ([`picture_message`](crate::picture_message)). The first picture loads the model's
    /// vision tower; one that was seen before takes no time.
    ///
    /// ```no_run
    /// use moeflux::{Model, Request, picture_message};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let model = Model::open("models/qwen3.6-35b-a3b")?;
    /// let picture = model.see(&std::fs::read("cat.jpg")?)?;
    /// let messages = [picture_message("user", &[picture.clone()], "What is it?")];
    /// let text = model.answer(&messages, &Request::default().pictures([picture]))?.text()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Where the model takes no pictures, the bytes are none, or memory does not suffice.
    pub fn see(&self, bytes: &[u8]) -> Result<Arc<SeenPicture>, Error> {
        see(&self.shared, bytes, None)
    }

    /// The same for a picture that becomes at most `max_tokens` rows: [`LOW_DETAIL`](crate::LOW_DETAIL) is
    /// what interfaces of chats call low detail.
    ///
    /// # Errors
    /// As [`see`](Model::see).
    pub fn see_within(
        &self,
        bytes: &[u8],
        max_tokens: NonZeroUsize,
    ) -> Result<Arc<SeenPicture>, Error> {
        see(&self.shared, bytes, Some(max_tokens))
    }

    /// Reads a raw prompt as [`Model::generate`] does, and asks for no answer.
    ///
    /// # Errors
    /// As [`Model::generate`].
    pub fn prepare_text(&self, prompt: &str, request: &Request) -> Result<Prepared, Error> {
        let prepared = self.text().prepare_text(prompt, &request.format.shape());
        prepared.map_err(|err| self.shared.refusal(err))
    }

    /// Reads the tokens of a raw prompt, as [`Model::prepare_text`].
    ///
    /// # Errors
    /// Where the format is no usable schema.
    pub fn prepare_tokens(
        &self,
        tokens: Vec<TokenId>,
        request: &Request,
    ) -> Result<Prepared, Error> {
        let prepared = self.text().prepare_tokens(tokens, &request.format.shape());
        prepared.map_err(|err| self.shared.refusal(err))
    }

    /// Fills the gap in a text, for models that were trained to. None of it becomes a control token.
    ///
    /// # Errors
    /// Where the vocabulary has no tokens around a gap; else as [`Model::generate`].
    pub fn fill(&self, infill: &Infill, request: &Request) -> Result<Answer<'static>, Error> {
        let prepared = self.text().prepare_infill(infill, &request.format.shape());
        let prepared = prepared.map_err(|err| self.shared.refusal(err))?;
        start(&self.shared, prepared, request, None)
    }

    /// Answers a prompt that has been prepared: for programs that look at it, or change how its answer
    /// is read, before.
    ///
    /// # Errors
    /// Where too many answers wait already, or the model's thread has ended.
    pub fn answer_prepared(
        &self,
        prepared: Prepared,
        settings: Settings,
        options: AnswerOptions,
    ) -> Result<Answer<'static>, Error> {
        answer_prepared(&self.shared, prepared, settings, options)
    }

    /// Answers prompts that have been prepared, all or none of them: they begin with the same step, as
    /// far as there are sessions.
    ///
    /// # Errors
    /// Where a prompt has no tokens, a changed logit belongs to no token, too many answers wait already,
    /// or the model's thread has ended.
    pub fn answer_all(&self, asks: Vec<Ask>) -> Result<Vec<Answer<'static>>, Error> {
        answer_all(&self.shared, asks)
    }

    /// Queues answers, all or none of them.
    ///
    /// # Errors
    /// Where too many wait already, or the model's thread has ended.
    pub fn submit(&self, orders: Vec<Order>) -> Result<(), SubmitError> {
        submit(&self.shared, orders)
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.shared.fmt(f)
    }
}
