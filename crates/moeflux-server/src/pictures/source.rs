//! Where the bytes of a picture are: in the request, or at an address.

use std::num::NonZeroUsize;
use std::time::Instant;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use moeflux_core::{OptionId, show_bytes};

use super::fetch::fetch;
use crate::error::{ApiError, ApiResult};

/// Bytes of a picture's file at most.
pub(super) const MAX_BYTES: usize = 20 << 20;

/// Characters of an address at most.
const MAX_URL: usize = 8192;

/// Some clients leave the padding out.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Where the bytes of a picture are.
#[derive(Clone)]
pub(crate) struct Source {
    /// The path of its field.
    at: String,
    place: Place,
    /// Rows of the prompt that it takes at most, where the request says so.
    max_tokens: Option<NonZeroUsize>,
}

#[derive(Clone)]
enum Place {
    /// In the request: base64, which may have white space in it.
    Here(String),
    Address(String),
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source").field("at", &self.at).finish_non_exhaustive()
    }
}

impl Source {
    /// A picture in base64.
    ///
    /// # Errors
    /// Where it is too long.
    pub(super) fn of_base64(text: String, at: &str) -> ApiResult<Source> {
        // Without padding and white space, of which there is little.
        if text.len() / 4 * 3 > MAX_BYTES + MAX_BYTES / 16 {
            return Err(too_long(at));
        }
        Ok(Source { at: at.to_owned(), place: Place::Here(text), max_tokens: None })
    }

    /// A picture at an address, which may hold the picture itself.
    ///
    /// # Errors
    /// Where the address is of another kind, or is to be fetched and `fetches` is false.
    pub(super) fn of_url(mut url: String, at: &str, fetches: bool) -> ApiResult<Source> {
        let is = |scheme: &str| {
            url.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
        };
        if is("data:") {
            let problem = "a data URL holds an image in base64: data:image/png;base64,…";
            let comma = url.find(',').filter(|at| url[..*at].ends_with(";base64"));
            let comma = comma.ok_or_else(|| ApiError::field(at, problem))?;
            return Source::of_base64(url.split_off(comma + 1), at);
        }
        if !(is("https://") || is("http://")) {
            let problem = "it must be a data URL: data:image/png;base64,…";
            return Err(ApiError::field(at, problem));
        }
        if !fetches {
            let problem = format!(
                "this server fetches no images: send the image itself as data:image/png;base64,… \
                 ({} allows addresses)",
                OptionId::AllowImageUrls
            );
            return Err(ApiError::not_supported(at, &problem));
        }
        if url.len() > MAX_URL {
            let problem = format!("an address has at most {MAX_URL} characters");
            return Err(ApiError::field(at, problem));
        }
        Ok(Source { at: at.to_owned(), place: Place::Address(url), max_tokens: None })
    }

    /// As it is, with at most this many rows where that is given.
    pub(super) fn within(self, max_tokens: Option<NonZeroUsize>) -> Source {
        Source { max_tokens, ..self }
    }

    /// Bytes at most, with the text that they are decoded from.
    pub(super) fn max_bytes(&self) -> usize {
        match &self.place {
            Place::Here(text) => text.len() * 2,
            Place::Address(_) => MAX_BYTES,
        }
    }

    /// The path of its field.
    pub(super) fn at(&self) -> &str {
        &self.at
    }

    /// Rows at most, where the request says so.
    pub(super) fn max_tokens(&self) -> Option<NonZeroUsize> {
        self.max_tokens
    }

    /// Takes its bytes. Fetching them takes a while, until `fetching_ends` at most.
    ///
    /// # Errors
    /// Where they are no base64, are too many, or cannot be fetched.
    pub(super) fn read(&mut self, fetching_ends: Instant) -> ApiResult<Vec<u8>> {
        let bytes = match &mut self.place {
            Place::Address(url) => {
                let within = fetching_ends.saturating_duration_since(Instant::now());
                fetch(url, MAX_BYTES, within)
                    .map_err(|problem| ApiError::field(&self.at, problem))?
            }
            Place::Here(text) => {
                let mut text = std::mem::take(text).into_bytes();
                if text.iter().any(u8::is_ascii_whitespace) {
                    text.retain(|byte| !byte.is_ascii_whitespace());
                }
                let decoded = BASE64.decode(text);
                decoded.map_err(|err| {
                    let problem = format!("it is not valid base64: {err}");
                    ApiError::field(&self.at, problem)
                })?
            }
        };
        match bytes.len() {
            0 => Err(ApiError::field(&self.at, "it is empty")),
            len if len > MAX_BYTES => Err(too_long(&self.at)),
            _ => Ok(bytes),
        }
    }
}

fn too_long(at: &str) -> ApiError {
    let most = show_bytes(MAX_BYTES as u64);
    ApiError::field(at, format!("an image has at most {most}: send a smaller one"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<Vec<u8>, String> {
        let source = Source::of_url(url.to_owned(), "field", false);
        source.and_then(|mut source| source.read(Instant::now())).map_err(|err| err.message)
    }

    #[test]
    fn data_urls_and_base64_are_read_as_clients_write_them() {
        for url in [
            "data:image/png;base64,aGVsbG8=",
            "DATA:text/plain;charset=x;base64,aGVsbG8",
            "data:;base64,aGVs\r\nbG8=\n",
        ] {
            assert_eq!(read(url).as_deref(), Ok(&b"hello"[..]), "{url}");
        }
        for (url, problem) in [
            ("data:image/png,hello", "holds an image in base64"),
            ("data:image/png;base64", "holds an image in base64"),
            ("data:image/png;base64,", "it is empty"),
            ("data:image/png;base64,aGVsbG8-", "it is not valid base64"),
            ("file:///etc/hostname", "it must be a data URL"),
            ("/etc/hostname", "it must be a data URL"),
            ("http://example.org/a.png", "allow_image_urls"),
        ] {
            let err = read(url).unwrap_err();
            assert!(err.starts_with("field: ") && err.contains(problem), "{url}: {err}");
        }
    }

    #[test]
    fn what_is_too_long_is_refused_before_it_is_decoded() {
        let long = "A".repeat((MAX_BYTES + MAX_BYTES / 8) / 3 * 4);
        let err = Source::of_base64(long, "field").unwrap_err();
        assert!(err.message.contains(&show_bytes(MAX_BYTES as u64)), "{}", err.message);
        let over = "A".repeat(MAX_BYTES / 3 * 4 + 8);
        let err = Source::of_base64(over, "field").unwrap().read(Instant::now()).unwrap_err();
        assert!(err.message.contains(&show_bytes(MAX_BYTES as u64)), "{}", err.message);
        let address = format!("http://example.org/{}", "a".repeat(MAX_URL));
        let err = Source::of_url(address, "field", true).unwrap_err();
        assert!(err.message.contains("8192 characters"), "{}", err.message);
    }
}
