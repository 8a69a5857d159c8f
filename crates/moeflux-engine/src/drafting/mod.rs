//! Speculative decoding: tokens are drafted, and one step verifies several of them.
//!
//! Drafts are copied from a place where the end of the text occurred before, forced by a
//! grammar, or come from the model's multi-token prediction (MTP). Every token is still chosen
//! from its own logits, so that the text is the same with and without drafts. An accepted draft
//! is a token for the price of a row.
//!
//! Sources: prompt lookup, a form of speculative decoding (Leviathan et al., 2023) that drafts
//! copies and verifies by equality with the sampled token; multi-token prediction
//! (DeepSeek-V3, 2024).

pub(crate) mod drafter;
mod lookup;
pub(crate) mod mtp;
#[cfg(test)]
mod tests;
pub(crate) mod verify;
