//! Bodies of requests that clients have compressed.

use std::io::{self, Read};

use axum::http::header::CONTENT_ENCODING;
use axum::http::{HeaderMap, StatusCode};
use flate2::read::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};

use crate::error::{ApiError, ApiResult};

/// The encodings that are read, as a header names them.
pub(crate) const ENCODINGS: &str = "gzip, deflate, zstd";

/// The code of an error that names an encoding.
pub(crate) const UNKNOWN_ENCODING: &str = "unsupported_content_encoding";

/// The logarithm of the largest window of zstd in bytes: RFC 9659 allows 8 MiB.
const ZSTD_WINDOW: u32 = 23;

/// How a body is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Gzip,
    Deflate,
    Zstd,
}

/// What a body was before it was compressed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unpacked {
    Whole(Vec<u8>),
    /// It has more bytes than were wanted.
    More,
}

impl Encoding {
    /// The encoding that headers name; `None` where the body is as it was.
    pub(crate) fn of(headers: &HeaderMap) -> ApiResult<Option<Encoding>> {
        let values = headers.get_all(CONTENT_ENCODING).iter();
        let values = values.map(|value| String::from_utf8_lossy(value.as_bytes()).to_lowercase());
        let all = values.collect::<Vec<String>>().join(",");
        let names = all.split(',').map(str::trim);
        let names: Vec<&str> =
            names.filter(|name| !name.is_empty() && *name != "identity").collect();
        match names[..] {
            [] => Ok(None),
            ["gzip" | "x-gzip"] => Ok(Some(Encoding::Gzip)),
            ["deflate"] => Ok(Some(Encoding::Deflate)),
            ["zstd"] => Ok(Some(Encoding::Zstd)),
            _ => {
                let shown: String = names.join(", ").chars().take(100).collect();
                let message = format!(
                    "the body has the encoding {shown:?}: send it as it is, or with one of \
                     {ENCODINGS} (Content-Encoding)"
                );
                let error = ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message);
                Err(ApiError { code: Some(UNKNOWN_ENCODING), ..error })
            }
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Encoding::Gzip => "gzip",
            Encoding::Deflate => "deflate",
            Encoding::Zstd => "zstd",
        }
    }

    /// Unpacks a body that has at most `most` bytes then. It stops where there are more.
    ///
    /// # Errors
    /// Where the bytes are not of this encoding, or end early.
    pub(crate) fn unpack(self, packed: &[u8], most: usize) -> io::Result<Unpacked> {
        match self {
            Encoding::Gzip => read_at_most(MultiGzDecoder::new(packed), most),
            // HTTP's name of zlib; some clients send the data without its header.
            Encoding::Deflate if has_zlib_header(packed) => {
                read_at_most(ZlibDecoder::new(packed), most)
            }
            Encoding::Deflate => read_at_most(DeflateDecoder::new(packed), most),
            Encoding::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(packed)?;
                decoder.window_log_max(ZSTD_WINDOW)?;
                read_at_most(decoder, most)
            }
        }
    }
}

fn read_at_most(reader: impl Read, most: usize) -> io::Result<Unpacked> {
    let mut bytes = Vec::new();
    reader.take(most as u64 + 1).read_to_end(&mut bytes)?;
    Ok(if bytes.len() > most { Unpacked::More } else { Unpacked::Whole(bytes) })
}

/// Whether bytes begin as RFC 1950 says.
fn has_zlib_header(bytes: &[u8]) -> bool {
    matches!(bytes, [method, check, ..]
        if method & 0xf == 8 && u16::from_be_bytes([*method, *check]).is_multiple_of(31))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use axum::http::HeaderValue;
    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};

    use super::*;

    fn packed(text: &[u8]) -> [(Encoding, Vec<u8>); 4] {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(text).unwrap();
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
        zlib.write_all(text).unwrap();
        let mut raw = DeflateEncoder::new(Vec::new(), Compression::default());
        raw.write_all(text).unwrap();
        [
            (Encoding::Gzip, gzip.finish().unwrap()),
            (Encoding::Deflate, zlib.finish().unwrap()),
            (Encoding::Deflate, raw.finish().unwrap()),
            (Encoding::Zstd, zstd::encode_all(text, 3).unwrap()),
        ]
    }

    #[test]
    fn what_was_packed_comes_out_up_to_the_limit() {
        let text = "a question, ".repeat(1000);
        for (encoding, bytes) in packed(text.as_bytes()) {
            let whole = Unpacked::Whole(text.clone().into_bytes());
            assert_eq!(encoding.unpack(&bytes, text.len()).unwrap(), whole);
            assert_eq!(encoding.unpack(&bytes, text.len() - 1).unwrap(), Unpacked::More);
            // Cut anywhere it is an error or, of data without checks, less text.
            for end in 0..bytes.len() {
                let cut = encoding.unpack(&bytes[..end], text.len());
                assert!(cut.is_err() || cut.unwrap() != whole, "{encoding:?} {end}");
            }
            let wrong = encoding.unpack(b"{\"messages\": []}", 100);
            assert!(wrong.is_err(), "{encoding:?}: {wrong:?}");
        }
    }

    #[test]
    fn a_window_beyond_the_limit_is_refused() {
        let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        encoder.window_log(24).unwrap();
        encoder.write_all(&[7; 100]).unwrap();
        // Without the size of the content the frame asks for the whole window.
        let bytes = encoder.finish().unwrap();
        assert!(Encoding::Zstd.unpack(&bytes, 1000).is_err());
    }

    #[test]
    fn an_encoding_is_known_by_its_name() {
        let of = |values: &[&str]| {
            let values = values.iter().map(|value| HeaderValue::from_str(value).unwrap());
            Encoding::of(&values.map(|value| (CONTENT_ENCODING, value)).collect())
        };
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&["identity"]), Ok(None));
        assert_eq!(of(&["GZIP"]), Ok(Some(Encoding::Gzip)));
        assert_eq!(of(&["identity, deflate"]), Ok(Some(Encoding::Deflate)));
        for wrong in [&["br"][..], &["gzip, gzip"], &["gzip,zstd"], &["\"gzip\""]] {
            let error = of(wrong).unwrap_err();
            assert_eq!((error.status.as_u16(), error.code), (415, Some(UNKNOWN_ENCODING)));
        }
        let error = of(&["compress"]).unwrap_err();
        assert!(error.message.contains("compress"), "{error:?}");
    }
}
