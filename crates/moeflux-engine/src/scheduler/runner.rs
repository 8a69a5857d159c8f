//! The scheduler's thread: receives jobs, runs steps, and passes the results on.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use moeflux_backend::DeviceError;
use moeflux_core::TokenId;
use moeflux_text::{Tokenizer, Turn};

use super::answer::{Phase, Running};
use super::job::{Answer, Event, Job};
use super::keeping;
use super::pool::{Pool, Slot};
use super::turns::Turns;
use crate::decoding::{Decoding, Evaluated, Finish};
use crate::drafting::drafter::{Draft, DraftContext};
use crate::drafting::mtp::{MtpRequest, mtp_draft};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::positions::input::ChunkInput;
use crate::sampler::error::SamplerError;
use crate::scheduler::shared::{Command, SchedulerOptions, Shared, Visit};
use crate::session::{DraftChunk, SequenceChunk, check_prompt, eval_draft_batch};
use crate::step::RowLogits;

/// While answers are generated, prompts get one row of this many in a step, by its limit.
const PREFILL_FRACTION: usize = 4;

/// And no more rows than this: answers wait while they are computed.
const PREFILL_ROWS: usize = 512;

pub(super) struct Runner {
    engine: Engine,
    tokenizer: Arc<Tokenizer>,
    shared: Arc<Shared>,
    inbox: Receiver<Command>,
    waiting: VecDeque<(Box<Job>, Instant)>,
    turns: Turns,
    visits: VecDeque<Visit>,
    pool: Pool,
    /// After a shutdown began, the time at which running jobs are cancelled.
    stop_at: Option<Instant>,
}

/// Rows of a step at most whose probabilities are reported: the logits of all are in memory at a time.
const SCORED_ROWS: usize = 64;

/// The tokens of one session in a batch.
struct BatchEntry {
    slot: usize,
    tokens: Vec<TokenId>,
    /// How many of them, the last ones, are drafts.
    n_drafted: usize,
    /// How many of them, the last ones, are tokens of a prompt whose probabilities are wanted.
    n_scored: usize,
    wants_logits: bool,
    checkpoint_after: bool,
}

/// A prompt that is being evaluated.
struct PromptPart<'a> {
    slot: usize,
    n_done: usize,
    prompt: &'a Turn,
    is_scored: bool,
}

impl BatchEntry {
    fn draft(&self) -> &[TokenId] {
        &self.tokens[self.tokens.len() - self.n_drafted..]
    }

    fn without_draft(&self) -> BatchEntry {
        let tokens = self.tokens[..self.tokens.len() - self.n_drafted].to_vec();
        BatchEntry { tokens, n_drafted: 0, ..*self }
    }
}

impl Runner {
    pub(super) fn new(
        engine: Engine,
        tokenizer: Arc<Tokenizer>,
        options: SchedulerOptions,
        shared: Arc<Shared>,
        inbox: Receiver<Command>,
    ) -> Runner {
        let pool = Pool::new(&engine, options.n_sessions);
        let (waiting, visits) = (VecDeque::new(), VecDeque::new());
        let turns = Turns::default();
        Runner { engine, tokenizer, shared, inbox, waiting, turns, visits, pool, stop_at: None }
    }

    pub(super) fn run(mut self) {
        loop {
            self.receive();
            self.drop_cancelled();
            self.admit();
            self.visit();
            if self.pool.n_running() > 0 {
                self.step();
                continue;
            }
            let is_idle = self.stop_at.is_none() && !self.save_one();
            if self.stop_at.is_some() || (is_idle && !self.wait()) {
                break;
            }
        }
        self.pool.slots.iter_mut().for_each(keeping::write_out);
        keeping::finish(&self.engine);
    }

    /// Receives the commands that have arrived.
    fn receive(&mut self) {
        loop {
            match self.inbox.try_recv() {
                Ok(command) => self.take(command),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => return self.stop(Instant::now()),
            }
        }
    }

    /// Waits for a command; false where all handles are gone.
    fn wait(&mut self) -> bool {
        keeping::write_images(&self.engine);
        match self.inbox.recv() {
            Ok(command) => {
                self.take(command);
                true
            }
            Err(_) => false,
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Run(job) => self.waiting.push_back((job, Instant::now())),
            Command::Visit(visit) => self.visits.push_back(visit),
            Command::Stop(at) => self.stop(at),
        }
    }

    fn stop(&mut self, at: Instant) {
        self.shared.is_stopped.store(true, Ordering::Release);
        self.stop_at.get_or_insert(at);
    }

    /// Ends jobs that their callers have cancelled, and all jobs after the end of a shutdown's
    /// grace period.
    fn drop_cancelled(&mut self) {
        let is_over = self.stop_at.is_some_and(|at| at <= Instant::now());
        for slot in &mut self.pool.slots {
            let cancelled = |running: &mut Running| is_over || running.is_cancelled();
            if let Some(running) = slot.running.take_if(cancelled) {
                end(&self.shared, slot, running, Ok(Finish::Cancelled));
            }
        }
        self.waiting.retain_mut(|(job, arrived)| {
            let cancelled = is_over || job.is_cancelled();
            if cancelled {
                self.shared.waiting().leave(&job.owner);
                let answer = Answer::cancelled_in_queue(job, *arrived);
                (job.listener)(Event::Done(answer));
            }
            !cancelled
        });
    }

    /// Gives free sessions to waiting jobs, whose owners take turns, except those that wait for
    /// another job to evaluate the same prefix.
    fn admit(&mut self) {
        while self.pool.has_free()
            && let Some(i) = self.next_waiting()
            && let Some((job, arrived)) = self.waiting.remove(i)
        {
            self.shared.waiting().leave(&job.owner);
            self.turns.took(&job.owner);
            if let Some(slot) = self.pool.choose(&job.prompt.tokens) {
                self.begin(slot, *job, arrived);
            }
        }
    }

    fn next_waiting(&self) -> Option<usize> {
        let may_begin = |job: &Job| !self.pool.is_being_evaluated(&job.prompt.tokens);
        let waiting = self.waiting.iter().enumerate();
        let waiting = waiting.filter(|(_, (job, _))| may_begin(job));
        let waiting = waiting.map(|(i, (job, _))| (i, &job.owner));
        self.turns.next(waiting, |owner| self.pool.n_running_of(owner))
    }

    /// Lends a session to those who asked for one, once no job has it.
    fn visit(&mut self) {
        while !self.visits.is_empty()
            && let Some(slot) = self.pool.newest_idle()
        {
            if self.pool.slots[slot].is_unsaved {
                keeping::write_out(&mut self.pool.slots[slot]);
            }
            if let Some(visit) = self.visits.pop_front() {
                visit(&mut self.pool.slots[slot].session);
            }
        }
    }

    fn begin(&mut self, i: usize, mut job: Job, arrived: Instant) {
        let ready = self.decoding(&mut job).map_err(EngineError::from);
        let ready = ready.and_then(|decoding| Ok((decoding, self.prepare(i, &job)?)));
        let (decoding, n_reused) = match ready {
            Ok(ready) => ready,
            Err(err) => {
                self.shared.note_failure(&err);
                return (job.listener)(Event::Failed(Arc::new(err)));
            }
        };
        let n_total = job.prompt.tokens.len();
        {
            let mut stats = self.shared.stats();
            stats.n_running += 1;
            stats.n_reused += n_reused as u64;
            stats.n_prompt += (n_total - n_reused) as u64;
        }
        (job.listener)(Event::Prompt { n_done: n_reused, n_total, n_reused });
        keeping::begin_turn(&mut self.pool.slots[i], &mut job, n_reused);
        let slot = &mut self.pool.slots[i];
        let requested = slot.session.request_rows(&job.prompt.tokens[n_reused..]);
        slot.running = Some(Running::new(job, decoding, requested, n_reused, arrived));
    }

    /// Takes a job's options.
    fn decoding(&self, job: &mut Job) -> Result<Decoding, SamplerError> {
        let options = std::mem::take(&mut job.decoding);
        let (speculation, tokenizer) = (self.engine.speculation(), Arc::clone(&self.tokenizer));
        let ctx = self.engine.plan().ctx;
        Decoding::new(options, &job.prompt.tokens, speculation, tokenizer, ctx)
    }

    fn prepare(&mut self, i: usize, job: &Job) -> Result<usize, EngineError> {
        let tokens = &job.prompt.tokens;
        let pictures = job.placed_pictures()?;
        check_prompt(&self.engine, tokens, &pictures)?;
        // Where the logits after every token are wanted, none is reused.
        let reusable = if job.prompt_logprobs.is_some() { &[] } else { &tokens[..] };
        let n_reused = loop {
            match self.pool.prepare(i, reusable) {
                Err(err) if is_out_of_memory(&err) && self.free_one() => {}
                outcome => break outcome?,
            }
        };
        self.pool.slots[i].session.expect_pictures(tokens, &pictures)?;
        Ok(n_reused)
    }

    /// Runs one step with a row of every answer and rows of every prompt.
    fn step(&mut self) {
        let start = Instant::now();
        let mut batch = self.next_batch();
        let drafted = self.draft(&mut batch);
        let outcomes = self.outcomes(&batch);
        if let Some(DraftedStep { rows, mtp_time }) = drafted
            && outcomes.iter().all(Result::is_ok)
        {
            let time = start.elapsed().saturating_sub(mtp_time);
            let has_draft = batch.iter().any(|entry| entry.n_drafted > 0);
            self.engine.speculation_rates().step_cost.record(rows, time, has_draft);
        }
        {
            let mut stats = self.shared.stats();
            stats.n_steps += 1;
            stats.n_rows += batch.iter().map(|entry| entry.tokens.len() as u64).sum::<u64>();
            stats.busy += start.elapsed();
        }
        for (entry, outcome) in batch.iter().zip(outcomes) {
            match outcome {
                Ok(mut logits) => self.advance(entry, &mut logits),
                Err(err) => {
                    let slot = &mut self.pool.slots[entry.slot];
                    if let Some(running) = slot.running.take() {
                        end(&self.shared, slot, running, Err(Arc::new(err)));
                    }
                }
            }
        }
    }

    /// Evaluates a batch. Where that fails, each entry is evaluated alone, so that only the jobs
    /// fail that cause it; and where memory is short, idle sessions are emptied.
    fn outcomes(&mut self, batch: &[BatchEntry]) -> Vec<Result<Vec<RowLogits>, EngineError>> {
        loop {
            let err = match self.evaluate(batch) {
                Ok(all) => return all.into_iter().map(Ok).collect(),
                Err(err) => err,
            };
            if batch.len() > 1 {
                let apart = batch.iter().map(std::slice::from_ref);
                return apart.flat_map(|entry| self.outcomes(entry)).collect();
            }
            if batch[0].n_drafted > 0 {
                // A step without drafts needs less memory.
                return self.outcomes(&[batch[0].without_draft()]);
            }
            if !is_out_of_memory(&err) || !self.free_one() {
                return vec![Err(err)];
            }
        }
    }

    /// Has one session written that was not since its last job. Returns whether there was one.
    fn save_one(&mut self) -> bool {
        let unsaved = self.pool.slots.iter_mut().find(|slot| slot.is_unsaved);
        unsaved.map(keeping::write_behind).is_some()
    }

    /// Stores and empties the least recently used idle session. Returns whether there was one.
    fn free_one(&mut self) -> bool {
        let Some(i) = self.pool.oldest_idle() else { return false };
        keeping::write_out(&mut self.pool.slots[i]);
        self.pool.slots[i].session = self.engine.session();
        true
    }

    /// Plans the next batch: one row for every answer, and equal parts of the rest for prompts,
    /// so that a short prompt does not wait for a long one.
    fn next_batch(&self) -> Vec<BatchEntry> {
        let running = self.pool.slots.iter().enumerate();
        let running = running.filter_map(|(i, slot)| Some((i, slot.running.as_ref()?)));
        let (mut batch, mut prompts) = (Vec::new(), Vec::new());
        for (slot, running) in running {
            match running.phase {
                Phase::Decode(token) => batch.push(BatchEntry {
                    slot,
                    tokens: vec![token],
                    n_drafted: 0,
                    n_scored: 0,
                    wants_logits: true,
                    checkpoint_after: false,
                }),
                Phase::Prompt(n_done) => {
                    let is_scored = running.prompt_logprobs.is_some();
                    prompts.push(PromptPart { slot, n_done, prompt: &running.prompt, is_scored });
                }
            }
        }
        let chunk = self.engine.plan().chunk;
        let mut n_most = chunk - batch.len();
        let mut n_free = match batch.len() {
            0 => chunk,
            n => (chunk / PREFILL_FRACTION).clamp(1, PREFILL_ROWS).min(chunk - n),
        };
        // The shortest first: rows that it leaves go to the others.
        prompts.sort_by_key(|part| part.prompt.tokens.len() - part.n_done);
        let (mut n_left, mut n_scorable) = (prompts.len(), SCORED_ROWS);
        for PromptPart { slot, n_done, prompt, is_scored } in prompts {
            let part = n_free.div_ceil(n_left);
            let part = if is_scored { part.min(n_scorable) } else { part };
            n_left -= 1;
            let ahead = prompt.checkpoints.iter().filter(|position| **position > n_done);
            let n_to_checkpoint = ahead.min().map_or(usize::MAX, |position| position - n_done);
            let n = part.min(prompt.tokens.len() - n_done).min(n_to_checkpoint);
            // A picture that a step takes whole takes rows of prompts after it, and of later steps.
            let timeline = &self.pool.slots[slot].session.state.timeline;
            let n = timeline.pictures().whole(n_done, n);
            if n == 0 || n > n_most {
                continue;
            }
            n_free = n_free.saturating_sub(n);
            n_most -= n;
            let n_scored = if is_scored { n } else { 0 };
            n_scorable = n_scorable.saturating_sub(n_scored);
            batch.push(BatchEntry {
                slot,
                tokens: prompt.tokens[n_done..n_done + n].to_vec(),
                n_drafted: 0,
                n_scored,
                wants_logits: n_done + n == prompt.tokens.len(),
                checkpoint_after: n == n_to_checkpoint,
            });
        }
        batch.sort_by_key(|entry| entry.slot);
        batch
    }

    /// Adds drafts to a batch of answers; does nothing and returns `None` where it has a prompt.
    fn draft(&mut self, batch: &mut [BatchEntry]) -> Option<DraftedStep> {
        let is_decoding = |entry: &BatchEntry| {
            let running = self.pool.slots[entry.slot].running.as_ref();
            running.is_some_and(|running| matches!(running.phase, Phase::Decode(_)))
        };
        if !batch.iter().all(is_decoding) {
            return None;
        }
        let plans = self.plan_drafts(batch);
        let start = Instant::now();
        let drafts = draft_with_mtp(&mut self.pool, batch, plans);
        let mtp_time = start.elapsed();
        let mut rows = self.rows_without_drafts(batch);
        for (entry, draft) in batch.iter_mut().zip(drafts) {
            if draft.is_empty() {
                if let Some(running) = &mut self.pool.slots[entry.slot].running {
                    running.decoding.discard_draft();
                }
                continue;
            }
            rows += draft.len();
            entry.n_drafted = draft.len();
            entry.tokens.extend(draft);
        }
        Some(DraftedStep { rows, mtp_time })
    }

    /// What each answer drafts; nothing where there is no memory for its rollback point.
    fn plan_drafts(&mut self, batch: &[BatchEntry]) -> Vec<Draft> {
        let mut rows = self.rows_without_drafts(batch);
        let mut drafts = Vec::with_capacity(batch.len());
        for entry in batch {
            let Slot { session, running, .. } = &mut self.pool.slots[entry.slot];
            let Some(running) = running else {
                drafts.push(Draft::Tokens(Vec::new()));
                continue;
            };
            let rates = self.engine.speculation_rates();
            let draft = running.decoding.draft(&DraftContext {
                step_cost: &rates.step_cost,
                rows,
                n_others: batch.len() - 1,
                max_draft: session.max_draft(rows),
                reevaluates: session.reevaluates_accepted(),
                mtp: session.state.can_mtp_draft().then(|| rates.mtp()),
            });
            drop(rates);
            if draft.is_empty() || !session.prepare_rollback() {
                running.decoding.discard_draft();
                drafts.push(Draft::Tokens(Vec::new()));
                continue;
            }
            rows += draft.len();
            drafts.push(draft);
        }
        drafts
    }

    /// Rows of a step with one token of each answer and the pending tokens of its session.
    fn rows_without_drafts(&self, batch: &[BatchEntry]) -> usize {
        let pending = |entry: &BatchEntry| self.pool.slots[entry.slot].session.state.n_pending();
        batch.iter().map(|entry| 1 + pending(entry)).sum()
    }

    /// How many of the highest logits suffice for all answers that choose a token after this
    /// step; `None` where one needs all.
    fn n_top(&self, batch: &[BatchEntry]) -> Option<usize> {
        if batch.iter().any(|entry| entry.n_scored > 0) {
            return None;
        }
        let choosing = batch.iter().filter(|entry| entry.wants_logits);
        let wanted = choosing.map(|entry| {
            let running = self.pool.slots[entry.slot].running.as_ref()?;
            running.decoding.n_top(entry.draft())
        });
        wanted.collect::<Option<Vec<_>>>()?.into_iter().max()
    }

    fn evaluate(&mut self, batch: &[BatchEntry]) -> Result<Vec<Vec<RowLogits>>, EngineError> {
        let n_top = self.n_top(batch);
        let mut entries = batch.iter().peekable();
        let mut chunks = Vec::new();
        for (i, slot) in self.pool.slots.iter_mut().enumerate() {
            if let Some(entry) = entries.next_if(|entry| entry.slot == i) {
                let chunk = SequenceChunk {
                    session: &mut slot.session,
                    input: ChunkInput::Tokens(&entry.tokens),
                    wants_logits: entry.wants_logits,
                    checkpoint_after: entry.checkpoint_after,
                };
                let BatchEntry { n_drafted, n_scored, .. } = *entry;
                chunks.push(DraftChunk { chunk, n_drafted, n_scored });
            }
        }
        eval_draft_batch(&mut chunks, n_top)
    }

    /// Passes the logits of a step to the job of an entry.
    fn advance(&mut self, entry: &BatchEntry, logits: &mut [RowLogits]) {
        let slot = &mut self.pool.slots[entry.slot];
        let Some(running) = &mut slot.running else { return };
        let scored = running.score(running.n_done(), logits);
        running.advance_prompt(entry.tokens.len());
        // Behind a part of a prompt no token is chosen.
        if scored.is_ok() && !entry.wants_logits {
            return;
        }
        let n_before = entry.n_scored.saturating_sub(1);
        let logits = &mut logits[n_before..];
        // The drafts were dropped where the step failed with them.
        let draft = &entry.draft()[..entry.n_drafted.min(logits.len() - 1)];
        let step = Evaluated { draft, logits };
        let taken = match scored {
            Err(err) => Err(err),
            Ok(()) if running.decoding.is_empty() => Ok(Some(Finish::MaxTokens)),
            Ok(()) => running.take_step(step, &mut slot.session),
        };
        let ended = match taken {
            Ok(None) => return,
            Ok(Some(finish)) => Ok(finish),
            Err(err) => Err(Arc::new(err)),
        };
        if let Some(running) = slot.running.take() {
            end(&self.shared, slot, running, ended);
        }
    }
}

/// A step whose drafts were decided.
struct DraftedStep {
    /// All rows of it, drafts included.
    rows: usize,
    /// How long MTP took to draft.
    mtp_time: Duration,
}

/// Drafts the tokens that MTP is to draft, for all answers together. Returns the drafts of all
/// entries.
fn draft_with_mtp(pool: &mut Pool, batch: &[BatchEntry], plans: Vec<Draft>) -> Vec<Vec<TokenId>> {
    let wanted = batch.iter().zip(&plans).filter_map(|(entry, plan)| match plan {
        Draft::Mtp(n) => Some((entry.slot, (entry.tokens[0], *n))),
        Draft::Tokens(_) => None,
    });
    let wanted: BTreeMap<usize, (TokenId, usize)> = wanted.collect();
    let slots = pool.slots.iter_mut().enumerate();
    let mut requests: Vec<MtpRequest<'_>> = slots
        .filter_map(|(i, slot)| {
            let (token, n) = *wanted.get(&i)?;
            Some(MtpRequest { session: &mut slot.session, token, n })
        })
        .collect();
    let drafts = mtp_draft(&mut requests);
    let mut drafts: BTreeMap<usize, Vec<TokenId>> = wanted.into_keys().zip(drafts).collect();
    let mut tokens_of = |(entry, plan): (&BatchEntry, Draft)| match plan {
        Draft::Tokens(tokens) => tokens,
        Draft::Mtp(_) => {
            let tokens = drafts.remove(&entry.slot).unwrap_or_default();
            if let Some(running) = &mut pool.slots[entry.slot].running {
                running.decoding.set_mtp_len(tokens.len());
            }
            tokens
        }
    };
    batch.iter().zip(plans).map(&mut tokens_of).collect()
}

/// Whether the device had too little memory, which idle sessions may give back.
fn is_out_of_memory(err: &EngineError) -> bool {
    matches!(err, EngineError::Device(DeviceError::OutOfMemory { .. }))
}

/// Counts a job as ended and then calls its listener, so that a caller that has seen the end
/// finds it in the statistics.
fn end(
    shared: &Shared,
    slot: &mut Slot,
    running: Running,
    ended: Result<Finish, Arc<EngineError>>,
) {
    {
        let mut stats = shared.stats();
        stats.n_running -= 1;
        stats.n_generated += ended.as_ref().map_or(0, |_| running.decoding.n_generated() as u64);
        stats.speculation += running.decoding.speculation_stats();
        stats.n_ended += 1;
        stats.served += running.started.elapsed();
    }
    match ended {
        Ok(finish) => running.finish(finish),
        Err(err) => {
            shared.note_failure(&err);
            running.fail(err);
            keeping::forget_turn(slot);
        }
    }
}
