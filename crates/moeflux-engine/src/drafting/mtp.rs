//! Drafting with the model's multi-token prediction (MTP) layer.

#[cfg(test)]
mod tests;

use std::time::Instant;

use moeflux_backend::Span;
use moeflux_core::TokenId;

use crate::error::EngineError;
use crate::session::Session;
use crate::session::evaluator::Evaluator;
use crate::speculation::limits::MAX_STEP_ROWS;
use crate::speculation::mtp_history::MAX_MISSING_IN_DRAFT;
use crate::step::{Core, MtpBatch, Outputs, StepOutput};

/// Asks for drafts of the tokens after one that is chosen and not evaluated.
pub(crate) struct MtpRequest<'a> {
    pub(crate) session: &'a mut Session,
    pub(crate) token: TokenId,
    /// The number of tokens to draft.
    pub(crate) n: usize,
}

/// Drafts tokens for several sessions of an engine together. Returns the drafts of each request,
/// fewer than asked for where the MTP layer fails or lacks the session's hidden states.
pub(crate) fn mtp_draft(requests: &mut [MtpRequest<'_>]) -> Vec<Vec<TokenId>> {
    let n_requests = requests.len();
    let Some(first) = requests.first() else { return Vec::new() };
    let engine = first.session.engine.clone();
    let core = &mut *engine.core();
    let mut drafter = MtpDrafter { requests, active: Vec::new(), drafts: Vec::new() };
    drafter.drafts.resize(n_requests, Vec::new());
    // The step that verifies the drafts meets the same failure and reports it.
    if drafter.begin(core).is_err() {
        return drafter.drafts;
    }
    let start = Instant::now();
    let _ = drafter.run(core);
    let n_rounds = drafter.drafts.iter().map(Vec::len).max().unwrap_or(0);
    engine.speculation_rates().step_cost.record_mtp(n_rounds, start.elapsed());
    drafter.drafts
}

/// Drafts one token a round for each request that wants more.
struct MtpDrafter<'a, 'b> {
    requests: &'a mut [MtpRequest<'b>],
    active: Vec<Entries>,
    drafts: Vec<Vec<TokenId>>,
}

/// The entries that the MTP layer computes next for one request. A token is drafted after the
/// last of them.
struct Entries {
    /// The index of the request.
    request: usize,
    tokens: Vec<TokenId>,
    /// The hidden states of the positions before them.
    hidden: Vec<f32>,
}

impl MtpDrafter<'_, '_> {
    /// Collects the entries of the first round: that of each request's token, and the few before
    /// it that the MTP cache lacks. Where it lacks more, they are computed now.
    fn begin(&mut self, core: &mut Core) -> Result<(), EngineError> {
        let n_missing = |request: &MtpRequest<'_>| request.session.state.n_missing_entries();
        let n_rows: usize = self.requests.iter().map(|request| 1 + n_missing(request)).sum();
        let fits = |request: &MtpRequest<'_>| {
            n_rows <= request.session.engine.plan().chunk.min(MAX_STEP_ROWS)
        };
        let all_fit = self.requests.iter().all(fits);
        for (request, MtpRequest { session, token, .. }) in self.requests.iter_mut().enumerate() {
            let Session { engine, state, .. } = &mut **session;
            if !all_fit || state.n_missing_entries() > MAX_MISSING_IN_DRAFT {
                Evaluator { engine, core, state }.fill_mtp_cache()?;
            }
            if !state.can_mtp_draft() {
                continue;
            }
            let Some(history) = state.speculation.drafting() else { continue };
            let end = state.position();
            let first = history.n_entries.min(end);
            let mut tokens = state.timeline.vocabulary_at(first..end).into_owned();
            tokens.push(*token);
            let hidden = history.rows(first, tokens.len()).to_vec();
            self.active.push(Entries { request, tokens, hidden });
        }
        Ok(())
    }

    fn run(&mut self, core: &mut Core) -> Result<(), EngineError> {
        for round in 0.. {
            let requests = &self.requests;
            self.active.retain(|entries| requests[entries.request].n > round);
            if self.active.is_empty() {
                return Ok(());
            }
            self.round(core, round)?;
        }
        Ok(())
    }

    /// Drafts one token for each active request.
    fn round(&mut self, core: &mut Core, round: usize) -> Result<(), EngineError> {
        let (mut spans, mut tokens, mut hidden) = (Vec::new(), Vec::new(), Vec::new());
        for entries in &self.active {
            let session = &*self.requests[entries.request].session;
            let rows = tokens.len()..tokens.len() + entries.tokens.len();
            let position = session.position() + round + 1 - entries.tokens.len();
            let rotary = session.state.timeline.rotary(position..position + rows.len());
            spans.push(Span { rotary, ..Span::new(session.state.sequence, rows, position) });
            tokens.extend_from_slice(&entries.tokens);
            hidden.extend_from_slice(&entries.hidden);
        }
        let is_last = self.active.iter().all(|draft| self.requests[draft.request].n <= round + 1);
        let ends: Vec<usize> = spans.iter().map(|span| span.rows.end - 1).collect();
        let hidden_rows = if is_last { 0 } else { tokens.len() };
        let outputs = Outputs { rows: &ends, n_top: Some(1), hidden_rows };
        let batch = MtpBatch { spans: &spans, tokens: &tokens, hidden: &hidden, outputs };
        let StepOutput { logits, hidden } = core.mtp_step(&batch)?;
        let width = hidden.len() / tokens.len();
        for ((entries, end), logits) in self.active.iter_mut().zip(ends).zip(&logits) {
            let token = logits.likeliest();
            self.drafts[entries.request].push(token);
            let request = &mut self.requests[entries.request];
            let known = [&[request.token], &self.drafts[entries.request][..]].concat();
            request.session.request_next_rows(&known);
            entries.tokens = vec![token];
            entries.hidden = hidden[end * width..][..width].to_vec();
            if round == 0 {
                let state = &mut request.session.state;
                let n_filled = state.position() + 1;
                if let Some(history) = &mut state.speculation.mtp {
                    history.set_filled(n_filled);
                }
            }
        }
        Ok(())
    }
}

impl Session {
    /// Drafts `n` tokens after one that is chosen and not evaluated, with the MTP layer.
    pub(crate) fn mtp_draft(&mut self, token: TokenId, n: usize) -> Vec<TokenId> {
        let requests = &mut [MtpRequest { session: self, token, n }];
        mtp_draft(requests).pop().unwrap_or_default()
    }
}
