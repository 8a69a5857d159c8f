//! From logits to an answer's text, token by token: the only place where answers are decoded. The
//! scheduler owns one [`Decoding`] for each answer.

mod choose;
mod decode;
mod options;
mod values;
mod writer;

pub(crate) use self::decode::{Decoding, Evaluated};
pub use self::options::{Bias, DecodingOptions};
pub use self::values::{Finish, TokenLogprob, TokenText};
