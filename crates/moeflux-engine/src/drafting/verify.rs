//! Verifying drafts: each token is chosen from its own logits, and a draft is accepted where it is
//! that token.

use std::ops::ControlFlow;

use moeflux_core::TokenId;

use crate::error::EngineError;
use crate::session::Session;
use crate::step::RowLogits;

/// Chooses a token by the logits after the tokens that are passed; breaks where the text ends
/// with it.
pub(crate) type Choose<'a, B> =
    dyn FnMut(&mut RowLogits, &[TokenId]) -> Result<ControlFlow<B, TokenId>, EngineError> + 'a;

/// The outcome of [`verify`].
pub(crate) struct Verified<B> {
    /// The token that was chosen last, after the accepted drafts.
    pub(crate) chosen: ControlFlow<B, TokenId>,
    /// How many drafts were accepted.
    pub(crate) n_accepted: usize,
}

/// Chooses tokens after a token and its drafts, which a session has just evaluated, as long as
/// the drafts are what is chosen. Rolls the session back to before the first rejected draft.
///
/// # Errors
/// Those of `choose`, and those of the device.
pub(crate) fn verify<B>(
    session: &mut Session,
    draft: &[TokenId],
    logits: &mut [RowLogits],
    choose: &mut Choose<'_, B>,
) -> Result<Verified<B>, EngineError> {
    let n_before = session.tokens().len() - draft.len();
    let mut n_accepted = 0;
    let chosen = loop {
        match choose(&mut logits[n_accepted], &session.tokens()[..n_before + n_accepted]) {
            Ok(ControlFlow::Continue(token)) if draft.get(n_accepted) == Some(&token) => {
                n_accepted += 1;
            }
            chosen => break chosen,
        }
    };
    if !draft.is_empty() {
        session.roll_back(draft.len() - n_accepted)?;
    }
    let chosen = chosen?;
    if let ControlFlow::Continue(token) = chosen {
        // The next step evaluates it.
        session.request_next_rows(&[token]);
    }
    Ok(Verified { chosen, n_accepted })
}
