//! Multi-token prediction behind a session: what the model made of its last positions, and
//! tokens foreseen from that.
//!
//! The layer that foresees has keys and values like the others, an entry a position: what
//! comes of the token there and of what the model made of the position before. Where rows are
//! not known (before the first position, behind a state that was loaded) zeros stand for them.
//! All of it decides what is guessed and nothing else.

#[cfg(test)]
mod tests;

use std::time::Instant;

use moeflux_backend::{Cache, Span};
use moeflux_core::TokenId;

use super::Session;
use crate::draft::limits::MOST_ROWS;
use crate::engine::Core;
use crate::error::EngineError;
use crate::sampler;
use crate::session::Trail;
use crate::session::trail::{FEW_WAITING, MOST_WAITING};

/// A token of a session that is chosen and not evaluated, behind which others are foreseen.
pub(crate) struct Foreseeing<'a> {
    pub(crate) session: &'a mut Session,
    pub(crate) token: TokenId,
    /// How many are wanted.
    pub(crate) n: usize,
}

/// The tokens that multi-token prediction finds likeliest behind those of several sessions of
/// an engine: none where it fails, or does not know what came before.
pub(crate) fn foresee_together(asks: &mut [Foreseeing<'_>]) -> Vec<Vec<TokenId>> {
    let mut foreseen = vec![Vec::new(); asks.len()];
    let Some(first) = asks.first() else { return foreseen };
    let engine = first.session.engine.clone();
    let core = &mut *engine.core();
    // What fails is met again by the step that follows, which says so.
    let Ok(going) = first_entries(core, asks) else { return foreseen };
    let start = Instant::now();
    let _ = foresee(core, asks, going, &mut foreseen);
    let n_rounds = foreseen.iter().map(Vec::len).max().unwrap_or(0);
    engine.learned().pace.note_foresight(n_rounds, start.elapsed());
    foreseen
}

/// Entries that an ask makes next, behind the last of which a token is foreseen.
struct Entries {
    ask: usize,
    tokens: Vec<TokenId>,
    /// What was made of the positions before them.
    before: Vec<f32>,
}

fn foresee(
    core: &mut Core,
    asks: &mut [Foreseeing<'_>],
    mut going: Vec<Entries>,
    foreseen: &mut [Vec<TokenId>],
) -> Result<(), EngineError> {
    for round in 0.. {
        going.retain(|it| asks[it.ask].n > round);
        if going.is_empty() {
            return Ok(());
        }
        let goes_on = going.iter().any(|it| asks[it.ask].n > round + 1);
        let (mut spans, mut tokens, mut before) = (Vec::new(), Vec::new(), Vec::new());
        for it in &going {
            let session = &*asks[it.ask].session;
            let rows = tokens.len()..tokens.len() + it.tokens.len();
            let position = session.position() + round + 1 - it.tokens.len();
            spans.push(Span { sequence: session.sequence, rows, position });
            tokens.extend_from_slice(&it.tokens);
            before.extend_from_slice(&it.before);
        }
        core.foresee(&spans, &tokens, &before, true)?;
        if goes_on {
            core.will_see(tokens.len());
        }
        let lasts: Vec<usize> = spans.iter().map(|it| it.rows.end - 1).collect();
        for (it, token) in going.iter_mut().zip(likeliest(core, &lasts)?) {
            foreseen[it.ask].push(token);
            it.tokens = vec![token];
            if round == 0 {
                let session = &mut *asks[it.ask].session;
                let end = session.position() + 1;
                session.trail.iter_mut().for_each(|it| it.made(end));
            }
        }
        if goes_on {
            let hidden = core.hidden(tokens.len())?;
            let width = hidden.len() / tokens.len();
            for (it, last) in going.iter_mut().zip(lasts) {
                it.before = hidden[last * width..][..width].to_vec();
            }
        }
    }
    Ok(())
}

/// The entry of each token that something is foreseen behind, with the few before it that are
/// not made yet; more are made now.
fn first_entries(
    core: &mut Core,
    asks: &mut [Foreseeing<'_>],
) -> Result<Vec<Entries>, EngineError> {
    let n_rows: usize = asks.iter().map(|it| 1 + it.session.n_waiting()).sum();
    let fits = asks.iter().all(|it| n_rows <= it.session.chunk_rows().min(MOST_ROWS));
    let mut all = Vec::with_capacity(asks.len());
    for (ask, Foreseeing { session, token, .. }) in asks.iter_mut().enumerate() {
        if !fits || session.n_waiting() > FEW_WAITING {
            session.catch_up(core)?;
        }
        let Some(trail) = session.foreseeing() else { continue };
        let first = trail.n_entries.min(session.position());
        let tokens = [&session.tokens[first - session.n_unknown..], &[*token]].concat();
        let before = trail.of(first, tokens.len()).to_vec();
        all.push(Entries { ask, tokens, before });
    }
    Ok(all)
}

fn likeliest(core: &mut Core, rows: &[usize]) -> Result<Vec<TokenId>, EngineError> {
    if let Some(leaders) = core.leaders(rows, 1)? {
        return Ok(leaders.iter().filter_map(|it| it.first()).map(|it| it.token).collect());
    }
    let logits = core.logits(rows)?;
    Ok(logits
        .chunks_exact(logits.len() / rows.len().max(1))
        .map(sampler::likeliest_token)
        .collect())
}

impl Session {
    /// Tokens that multi-token prediction finds likeliest behind one that is chosen and not
    /// evaluated.
    pub(crate) fn foresee(&mut self, token: TokenId, n: usize) -> Vec<TokenId> {
        let asks = &mut [Foreseeing { session: self, token, n }];
        foresee_together(asks).pop().unwrap_or_default()
    }

    /// Entries that could be made and are not.
    fn n_waiting(&self) -> usize {
        self.foreseeing().map_or(0, |it| self.position().saturating_sub(it.n_entries))
    }

    /// Whether the token after the next one can be foreseen.
    pub(crate) fn can_foresee(&self) -> bool {
        self.foreseeing().is_some()
    }

    /// What that goes by.
    fn foreseeing(&self) -> Option<&Trail> {
        self.trail.as_ref().filter(|it| it.is_followed && it.end() == self.position() + 1)
    }

    /// Whether somebody foresees what follows its tokens.
    pub(super) fn is_followed(&self) -> bool {
        self.trail.as_ref().is_some_and(|it| it.is_followed)
    }

    /// Takes what the model made of the last step's rows, which begin at `position`.
    pub(super) fn note_hidden(&mut self, position: usize, rows: &[f32]) {
        if let Some(trail) = self.trail.as_mut().filter(|it| it.is_followed) {
            trail.note(position, rows);
        }
    }

    /// Makes entries where many wait. Where that fails no more is foreseen in this session:
    /// nobody else misses anything, and a device that is lost says so at the next step.
    pub(super) fn catch_up_in_time(&mut self, core: &mut Core) {
        let end = self.position();
        let waits = |it: &Trail| end.min(it.end()).saturating_sub(it.n_entries) >= MOST_WAITING;
        if self.trail.as_ref().is_some_and(|it| it.is_followed && waits(it)) {
            let done = self.catch_up(core).and_then(|()| core.hidden(0));
            if done.is_err() {
                self.trail.iter_mut().for_each(|it| it.is_followed = false);
            }
        }
    }

    /// Makes all entries whose tokens are known.
    fn catch_up(&mut self, core: &mut Core) -> Result<(), EngineError> {
        let (chunk, end, n_unknown) = (self.chunk_rows(), self.position(), self.n_unknown);
        let Some(trail) = self.trail.as_mut().filter(|it| it.is_followed) else { return Ok(()) };
        while trail.n_entries < end.min(trail.end()) {
            let first = trail.n_entries;
            let n = chunk.min(end.min(trail.end()) - first);
            let span = Span { sequence: self.sequence, rows: 0..n, position: first };
            let tokens = &self.tokens[first - n_unknown..][..n];
            core.foresee(&[span], tokens, trail.of(first, n), false)?;
            trail.made(first + n);
        }
        Ok(())
    }

    /// Has an entry for every position that the caches hold, before they are copied.
    pub(super) fn settle(&mut self, core: &mut Core) -> Result<(), EngineError> {
        self.catch_up(core).and_then(|()| core.hidden(0))?;
        let n_cached = self.n_cached;
        let Some(n_entries) = self.trail.as_ref().map(|it| it.n_entries) else { return Ok(()) };
        if n_entries < n_cached {
            self.fill_entries(core, n_entries, n_cached)?;
            self.trail.iter_mut().for_each(|it| it.resume_at(n_cached));
        }
        Ok(())
    }

    /// Entries that nothing is known of.
    pub(super) fn fill_entries(
        &self,
        core: &mut Core,
        first: usize,
        end: usize,
    ) -> Result<(), EngineError> {
        let shape = self.engine.shape();
        let caches = (0..).map(Cache).zip(&shape.caches).skip(shape.own_caches().len());
        for (cache, spec) in caches {
            for start in (first..end).step_by(super::COPIED_POSITIONS) {
                let positions = start..end.min(start + super::COPIED_POSITIONS);
                let zeros = vec![0; spec.saved_bytes(positions.len())];
                core.backend().load_cache(self.sequence, cache, positions, &zeros)?;
            }
        }
        Ok(())
    }
}
