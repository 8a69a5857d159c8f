//! The scheduler's thread: take jobs, run a step, hand on what it gave.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use moeflux_backend::DeviceError;
use moeflux_core::TokenId;
use moeflux_text::Tokenizer;

use super::answer::{Phase, Running};
use super::job::{Answer, Event, Job};
use super::pool::{Pool, Slot};
use crate::draft::limits::MOST_ROWS;
use crate::draft::{Guess, Occasion};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::generate::Finish;
use crate::sampler::Sampler;
use crate::scheduler::shared::{Command, SchedulerOptions, Shared};
use crate::session::{Foreseeing, Guessed, Next, Part, eval_next_together, foresee_together};

/// While answers are being made, prompts get this part of the rows of a step.
const PROMPT_SHARE: usize = 4;

pub(super) struct Runner {
    engine: Engine,
    tokenizer: Arc<Tokenizer>,
    shared: Arc<Shared>,
    inbox: Receiver<Command>,
    waiting: VecDeque<(Box<Job>, Instant)>,
    pool: Pool,
    /// When what still runs is cancelled, once it is known that all ends.
    stop_at: Option<Instant>,
}

/// What one session does in a step.
struct Share {
    slot: usize,
    tokens: Vec<TokenId>,
    /// How many of them are guessed, the last.
    n_guessed: usize,
    wants_logits: bool,
    is_mark: bool,
}

impl Share {
    fn guess(&self) -> &[TokenId] {
        &self.tokens[self.tokens.len() - self.n_guessed..]
    }

    fn without_guess(&self) -> Share {
        let Share { slot, tokens, n_guessed, wants_logits, is_mark } = self;
        let tokens = tokens[..tokens.len() - n_guessed].to_vec();
        Share { slot: *slot, tokens, n_guessed: 0, wants_logits: *wants_logits, is_mark: *is_mark }
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
        Runner { engine, tokenizer, shared, inbox, waiting: VecDeque::new(), pool, stop_at: None }
    }

    pub(super) fn run(mut self) {
        loop {
            self.receive();
            self.drop_cancelled();
            self.admit();
            if self.pool.n_running() > 0 {
                self.step();
                continue;
            }
            let is_idle = self.stop_at.is_none() && !self.save_one();
            if self.stop_at.is_some() || (is_idle && !self.wait()) {
                break;
            }
        }
        while self.save_one() {}
    }

    /// Takes what has arrived.
    fn receive(&mut self) {
        loop {
            match self.inbox.try_recv() {
                Ok(command) => self.take(command),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => return self.stop(Instant::now()),
            }
        }
    }

    /// Sleeps until something arrives; `false` where nothing can.
    fn wait(&mut self) -> bool {
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
            Command::Stop(at) => self.stop(at),
        }
    }

    fn stop(&mut self, at: Instant) {
        self.shared.is_stopped.store(true, Ordering::Release);
        self.stop_at.get_or_insert(at);
    }

    /// Ends what nobody wants any more.
    fn drop_cancelled(&mut self) {
        let is_over = self.stop_at.is_some_and(|it| it <= Instant::now());
        for slot in &mut self.pool.slots {
            let cancelled = |it: &mut Running| is_over || it.job.is_cancelled();
            if let Some(running) = slot.running.take_if(cancelled) {
                end(&self.shared, slot, running, Ok(Finish::Cancelled));
            }
        }
        self.waiting.retain_mut(|(job, arrived)| {
            let cancelled = is_over || job.is_cancelled();
            if cancelled {
                self.shared.n_waiting.fetch_sub(1, Ordering::AcqRel);
                let answer = Answer::never_begun(job, *arrived);
                (job.listener)(Event::Done(answer));
            }
            !cancelled
        });
    }

    /// Gives free sessions to those who have waited longest, but for those that
    /// will need to read less in a while.
    fn admit(&mut self) {
        let mut i = 0;
        while let Some((job, _)) = self.waiting.get(i) {
            let tokens = &job.prompt.tokens;
            if self.pool.is_being_read(tokens) {
                i += 1;
                continue;
            }
            let Some(slot) = self.pool.choose(tokens) else { break };
            if let Some((job, arrived)) = self.waiting.remove(i) {
                self.shared.n_waiting.fetch_sub(1, Ordering::AcqRel);
                self.begin(slot, *job, arrived);
            }
        }
    }

    fn begin(&mut self, i: usize, mut job: Job, arrived: Instant) {
        let ready = Sampler::new(job.sampler.clone()).map_err(EngineError::from);
        let ready = ready.and_then(|it| Ok((it, self.prepare(i, &job.prompt.tokens)?)));
        let (sampler, n_reused) = match ready {
            Ok(ready) => ready,
            Err(err) => return (job.listener)(Event::Failed(Arc::new(err))),
        };
        let n_total = job.prompt.tokens.len();
        {
            let mut load = self.shared.load();
            load.n_running += 1;
            load.n_reused += n_reused as u64;
            load.n_prompt += (n_total - n_reused) as u64;
        }
        (job.listener)(Event::Prompt { n_done: n_reused, n_total, n_reused });
        let slot = &mut self.pool.slots[i];
        slot.unsaved = Some(job.prompt.marks.clone());
        let (drafts, tokenizer) = (self.engine.drafts(), &self.tokenizer);
        slot.running = Some(Running::new(job, sampler, drafts, tokenizer, n_reused, arrived));
    }

    fn prepare(&mut self, i: usize, tokens: &[TokenId]) -> Result<usize, EngineError> {
        self.pool.slots[i].session.check_prompt(tokens)?;
        loop {
            match self.pool.prepare(i, tokens) {
                Err(err) if is_short(&err) && self.free_one() => {}
                outcome => return outcome,
            }
        }
    }

    /// Runs one step with a row of every answer and rows of every prompt.
    fn step(&mut self) {
        let start = Instant::now();
        let mut shares = self.shares();
        let guessed = self.guess(&mut shares);
        let outcomes = self.outcomes(&shares);
        if let Some((rows, foresight)) = guessed
            && outcomes.iter().all(Result::is_ok)
        {
            let time = start.elapsed().saturating_sub(foresight);
            let is_guess = shares.iter().any(|it| it.n_guessed > 0);
            self.engine.learned().pace.note(rows, time, is_guess);
        }
        {
            let mut load = self.shared.load();
            load.n_steps += 1;
            load.n_rows += shares.iter().map(|it| it.tokens.len() as u64).sum::<u64>();
            load.busy += start.elapsed();
        }
        for (share, outcome) in shares.iter().zip(outcomes) {
            match outcome {
                Ok(next) => self.advance(share, &next),
                Err(err) => {
                    let slot = &mut self.pool.slots[share.slot];
                    if let Some(running) = slot.running.take() {
                        end(&self.shared, slot, running, Err(Arc::new(err)));
                    }
                }
            }
        }
    }

    /// Evaluates shares together. Where that fails, each by itself, so that what
    /// one job lacks ends no other; and where memory is short, the sessions that
    /// nobody uses forget what they hold.
    fn outcomes(&mut self, shares: &[Share]) -> Vec<Result<Vec<Next>, EngineError>> {
        loop {
            let err = match self.evaluate(shares) {
                Ok(all) => return all.into_iter().map(Ok).collect(),
                Err(err) => err,
            };
            if shares.len() > 1 {
                let apart = shares.iter().map(std::slice::from_ref);
                return apart.flat_map(|it| self.outcomes(it)).collect();
            }
            if shares[0].n_guessed > 0 {
                // A step that needs less may succeed.
                return self.outcomes(&[shares[0].without_guess()]);
            }
            if !is_short(&err) || !self.free_one() {
                return vec![Err(err)];
            }
        }
    }

    /// Gives back what the session holds that was unused for longest; whether there
    /// was any.
    fn free_one(&mut self) -> bool {
        let Some(i) = self.pool.oldest_idle() else { return false };
        self.save(i);
        self.pool.slots[i].session = self.engine.session();
        true
    }

    /// Who gets which rows: every answer one, and prompts equal parts of the
    /// rest, so that a short one need not wait for a long one.
    fn shares(&self) -> Vec<Share> {
        let running = self.pool.slots.iter().enumerate();
        let running = running.filter_map(|(i, it)| Some((i, it.running.as_ref()?)));
        let (mut shares, mut prompts) = (Vec::new(), Vec::new());
        for (slot, it) in running {
            match it.phase {
                Phase::Decode(token) => shares.push(Share {
                    slot,
                    tokens: vec![token],
                    n_guessed: 0,
                    wants_logits: true,
                    is_mark: false,
                }),
                Phase::Prompt(n_done) => prompts.push((slot, n_done, &it.job.prompt)),
            }
        }
        let chunk = self.engine.plan().chunk;
        let mut n_free = match shares.len() {
            0 => chunk,
            n => (chunk / PROMPT_SHARE).max(1).min(chunk - n),
        };
        // The shortest first: what they leave goes to the others.
        prompts.sort_by_key(|(_, n_done, prompt)| prompt.tokens.len() - n_done);
        let mut n_left = prompts.len();
        for (slot, n_done, prompt) in prompts {
            let part = n_free.div_ceil(n_left);
            n_left -= 1;
            let marks = prompt.marks.iter().filter(|it| **it > n_done);
            let mark = marks.min().map_or(usize::MAX, |it| it - n_done);
            let n = part.min(prompt.tokens.len() - n_done).min(mark);
            if n == 0 {
                continue;
            }
            n_free -= n;
            let tokens = prompt.tokens[n_done..n_done + n].to_vec();
            let wants_logits = n_done + n == prompt.tokens.len();
            shares.push(Share { slot, tokens, n_guessed: 0, wants_logits, is_mark: n == mark });
        }
        shares.sort_by_key(|it| it.slot);
        shares
    }

    /// Adds what answers guess to their tokens, where no prompt is being read; gives the
    /// rows of the step then, and what it took to foresee some.
    fn guess(&mut self, shares: &mut [Share]) -> Option<(usize, Duration)> {
        let Runner { engine, pool, .. } = self;
        let pending = |it: &Share| pool.slots[it.slot].session.n_pending();
        let mut rows = shares.iter().map(|it| 1 + pending(it)).sum();
        let is_decoding = |it: &Share| {
            let running = pool.slots[it.slot].running.as_ref();
            running.is_some_and(|it| matches!(it.phase, Phase::Decode(_)))
        };
        if !shares.iter().all(is_decoding) {
            return None;
        }
        let most = engine.plan().chunk.min(MOST_ROWS);
        let n_others = shares.len() - 1;
        let mut guesses = Vec::with_capacity(shares.len());
        for share in &*shares {
            let Slot { session, running, .. } = &mut pool.slots[share.slot];
            let Some(running) = running else {
                guesses.push(Guess::Known(Vec::new()));
                continue;
            };
            let room = most.saturating_sub(rows).min(session.guess_room());
            let again = session.evaluates_again();
            let learned = engine.learned();
            let foresight = session.can_foresee().then(|| learned.foresight());
            let pace = &learned.pace;
            let guess = running.guess(&Occasion { pace, rows, n_others, room, again, foresight });
            drop(learned);
            let is_marked = !guess.is_empty() && session.mark();
            if !is_marked {
                running.forget_guess();
                guesses.push(Guess::Known(Vec::new()));
                continue;
            }
            rows += guess.len();
            guesses.push(guess);
        }
        let (guesses, foresight) = foresee(pool, shares, guesses);
        rows = shares.iter().map(|it| 1 + pool.slots[it.slot].session.n_pending()).sum();
        for (share, guess) in shares.iter_mut().zip(guesses) {
            if guess.is_empty() {
                let running = pool.slots[share.slot].running.as_mut();
                running.into_iter().for_each(Running::forget_guess);
                continue;
            }
            rows += guess.len();
            share.n_guessed = guess.len();
            share.tokens.extend(guess);
        }
        Some((rows, foresight))
    }

    /// How many leaders say enough to all who choose a token behind this step; `None`
    /// where somebody needs all logits.
    fn n_leaders(&self, shares: &[Share]) -> Option<usize> {
        let choosing = shares.iter().filter(|it| it.wants_logits);
        let wanted = choosing.map(|it| self.pool.slots[it.slot].running.as_ref()?.n_leaders());
        wanted.collect::<Option<Vec<_>>>()?.into_iter().max()
    }

    fn evaluate(&mut self, shares: &[Share]) -> Result<Vec<Vec<Next>>, EngineError> {
        let n_leaders = self.n_leaders(shares);
        let mut shares = shares.iter().peekable();
        let mut parts = Vec::new();
        for (i, slot) in self.pool.slots.iter_mut().enumerate() {
            if let Some(share) = shares.next_if(|it| it.slot == i) {
                let part = Part {
                    session: &mut slot.session,
                    tokens: &share.tokens,
                    wants_logits: share.wants_logits,
                    is_mark: share.is_mark,
                };
                parts.push(Guessed { part, n_guessed: share.n_guessed });
            }
        }
        eval_next_together(&mut parts, n_leaders)
    }

    /// Hands a job what a step gave.
    fn advance(&mut self, share: &Share, next: &[Next]) {
        let slot = &mut self.pool.slots[share.slot];
        let Some(running) = &mut slot.running else { return };
        if let Phase::Prompt(n_done) = running.phase {
            let n_done = n_done + share.tokens.len();
            running.phase = Phase::Prompt(n_done);
            let (n_total, n_reused) = (running.job.prompt.tokens.len(), running.n_reused);
            (running.job.listener)(Event::Prompt { n_done, n_total, n_reused });
        }
        if next.is_empty() {
            return;
        }
        let ctx = self.engine.plan().ctx;
        // Where it took a step without, nothing was guessed.
        let guess = &share.guess()[..share.n_guessed.min(next.len() - 1)];
        let ended = match running.follow((guess, next), &mut slot.session, &self.tokenizer, ctx) {
            Ok(None) => return,
            Ok(Some(finish)) => Ok(finish),
            Err(err) => Err(Arc::new(err)),
        };
        if let Some(running) = slot.running.take() {
            end(&self.shared, slot, running, ended);
        }
    }

    /// Keeps one session in the prompt cache that is not there yet; whether
    /// there was any.
    fn save_one(&mut self) -> bool {
        let unsaved = self.pool.slots.iter().position(|it| it.unsaved.is_some());
        unsaved.is_some_and(|it| self.save(it))
    }

    /// The same of one session.
    fn save(&mut self, i: usize) -> bool {
        let slot = &mut self.pool.slots[i];
        let Some(marks) = slot.unsaved.take() else { return false };
        let end = slot.session.position();
        let marks: Vec<usize> = marks.into_iter().filter(|it| *it < end).collect();
        if end > 0 {
            // What cannot be kept is read again; the cache keeps its own warnings.
            let _ = slot.session.store_turn(&marks, true);
        }
        true
    }
}

/// Has the tokens foreseen that guesses ask for, those of all answers together; also says
/// how long that took.
fn foresee(
    pool: &mut Pool,
    shares: &[Share],
    guesses: Vec<Guess>,
) -> (Vec<Vec<TokenId>>, Duration) {
    let wanted = shares.iter().zip(&guesses).filter_map(|(share, guess)| match guess {
        Guess::Foresee(n) => Some((share.slot, (share.tokens[0], *n))),
        Guess::Known(_) => None,
    });
    let wanted: BTreeMap<usize, (TokenId, usize)> = wanted.collect();
    let start = Instant::now();
    let slots = pool.slots.iter_mut().enumerate();
    let mut asks: Vec<Foreseeing<'_>> = slots
        .filter_map(|(i, slot)| {
            let (token, n) = *wanted.get(&i)?;
            Some(Foreseeing { session: &mut slot.session, token, n })
        })
        .collect();
    let foreseen = foresee_together(&mut asks);
    let time = start.elapsed();
    let mut foreseen: BTreeMap<usize, Vec<TokenId>> = wanted.into_keys().zip(foreseen).collect();
    let guess = |(share, guess): (&Share, Guess)| match guess {
        Guess::Known(guess) => guess,
        Guess::Foresee(_) => {
            let guess = foreseen.remove(&share.slot).unwrap_or_default();
            let running = pool.slots[share.slot].running.as_mut();
            running.into_iter().for_each(|it| it.has_foreseen(guess.len()));
            guess
        }
    };
    (shares.iter().zip(guesses).map(guess).collect(), time)
}

/// Whether memory was missing that others may give back.
fn is_short(err: &EngineError) -> bool {
    matches!(err, EngineError::Device(DeviceError::OutOfMemory { .. }))
}

/// Counts a job as ended, then tells its listener how: who has heard the end
/// finds it in the figures.
fn end(
    shared: &Shared,
    slot: &mut Slot,
    mut running: Running,
    ended: Result<Finish, Arc<EngineError>>,
) {
    {
        let mut load = shared.load();
        load.n_running -= 1;
        load.n_generated += ended.as_ref().map_or(0, |_| running.n_generated as u64);
        load.drafts += running.draft_counts();
        load.n_ended += 1;
        load.served += running.started.elapsed();
    }
    match ended {
        Ok(finish) => running.finish(finish),
        Err(err) => {
            (running.job.listener)(Event::Failed(err));
            slot.unsaved = None;
        }
    }
}
