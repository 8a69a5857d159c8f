//! Drafting with the model's multi-token prediction (MTP) layer.

#[cfg(test)]
mod tests;

use std::time::Instant;

use moeflux_backend::Span;
use moeflux_core::TokenId;

use crate::engine::Core;
use crate::engine::step::{MtpBatch, Outputs, StepOutput};
use crate::error::EngineError;
use crate::session::cache_copy::zero_mtp_caches;
use crate::session::handle::Session;
use crate::speculation::limits::MAX_STEP_ROWS;
use crate::speculation::mtp_history::{MAX_MISSING, MAX_MISSING_IN_DRAFT};

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
        let n_missing = |request: &MtpRequest<'_>| request.session.n_missing_entries();
        let n_rows: usize = self.requests.iter().map(|request| 1 + n_missing(request)).sum();
        let fits =
            |request: &MtpRequest<'_>| n_rows <= request.session.chunk_rows().min(MAX_STEP_ROWS);
        let all_fit = self.requests.iter().all(fits);
        for (request, MtpRequest { session, token, .. }) in self.requests.iter_mut().enumerate() {
            if !all_fit || session.n_missing_entries() > MAX_MISSING_IN_DRAFT {
                session.fill_mtp_cache(core)?;
            }
            if !session.can_mtp_draft() {
                continue;
            }
            let Some(history) = session.speculation.drafting() else { continue };
            let end = session.position();
            let first = history.n_entries.min(end);
            let tokens = [session.timeline.tokens_at(first..end), &[*token]].concat();
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
            spans.push(Span::new(session.sequence, rows, position));
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
                let session = &mut *self.requests[entries.request].session;
                let n_filled = session.position() + 1;
                if let Some(history) = &mut session.speculation.mtp {
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

    /// Whether the hidden state of the last position is known, from which the MTP layer drafts.
    pub(crate) fn can_mtp_draft(&self) -> bool {
        let end = self.position() + 1;
        self.speculation.drafting().is_some_and(|history| history.end() == end)
    }

    /// Entries that the MTP cache lacks.
    fn n_missing_entries(&self) -> usize {
        let drafting = self.speculation.drafting().filter(|_| self.can_mtp_draft());
        drafting.map_or(0, |history| self.position().saturating_sub(history.n_entries))
    }

    /// Fills the MTP cache where many entries are missing. Where that fails, this session drafts
    /// no more with the MTP layer; a lost device is reported by the next step.
    pub(crate) fn fill_mtp_cache_if_long(&mut self, core: &mut Core) {
        let end = self.position();
        let is_long = self.speculation.drafting().is_some_and(|history| {
            end.min(history.end()).saturating_sub(history.n_entries) >= MAX_MISSING
        });
        if is_long
            && self.fill_mtp_cache(core).and_then(|()| core.synchronize()).is_err()
            && let Some(history) = &mut self.speculation.mtp
        {
            history.drafts = false;
        }
    }

    /// Computes all entries of the MTP cache whose tokens and hidden states are known.
    fn fill_mtp_cache(&mut self, core: &mut Core) -> Result<(), EngineError> {
        let (chunk_rows, end) = (self.chunk_rows(), self.position());
        let Session { sequence, timeline, speculation, .. } = self;
        let Some(history) = speculation.mtp.as_mut().filter(|history| history.drafts) else {
            return Ok(());
        };
        while history.n_entries < end.min(history.end()) {
            let first = history.n_entries;
            let n = chunk_rows.min(end.min(history.end()) - first);
            let spans = &[Span::new(*sequence, 0..n, first)];
            let (tokens, hidden) = (timeline.tokens_at(first..first + n), history.rows(first, n));
            core.mtp_step(&MtpBatch { spans, tokens, hidden, outputs: Outputs::default() })?;
            history.set_filled(first + n);
        }
        Ok(())
    }

    /// Completes the MTP cache before caches are copied: entries whose hidden states are not
    /// known become zeros.
    pub(crate) fn flush_mtp(&mut self, core: &mut Core) -> Result<(), EngineError> {
        self.fill_mtp_cache(core).and_then(|()| core.synchronize())?;
        let n_cached = self.timeline.n_cached();
        let Some(n_entries) = self.speculation.mtp.as_ref().map(|history| history.n_entries) else {
            return Ok(());
        };
        if n_entries < n_cached {
            zero_mtp_caches(&self.engine, core, self.sequence, n_entries..n_cached)?;
            self.speculation.resume_at(n_cached);
        }
        Ok(())
    }
}
