//! Bodies of requests: read within limits, and parsed as JSON.

use axum::body::{Body, HttpBody};
use axum::extract::{FromRequest, Request};
use axum::http::header::{CONTENT_TYPE, ORIGIN};
use axum::http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use moeflux_core::{OptionId, show_bytes};
use moeflux_engine::json_problem;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;

use crate::connections::Activity;
use crate::encoding::{Encoding, Unpacked};
use crate::error::{ApiError, ApiResult};
use crate::json_values::{self, MAX_VALUES, Parsed};
use crate::offload::offload;
use crate::options::ServerOptions;
use crate::parsed_room::{MAX_PARSED, ParsedShare};
use crate::reply::Dialect;
use crate::room::{Place, Room};
use crate::site::Site;
use crate::surrogates::replace_lone_surrogates;

use std::io;
use std::sync::Arc;

/// The JSON of a request's body, with its part of the room for what is parsed.
#[derive(Debug)]
pub(crate) struct JsonBody {
    pub(crate) value: Value,
    pub(crate) share: ParsedShare,
}

impl FromRequest<Arc<Site>> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, site: &Arc<Site>) -> ApiResult<JsonBody> {
        let dialect = Dialect::of(request.uri().path(), request.headers());
        check_content_type(request.headers(), dialect)?;
        let encoding = Encoding::of(request.headers())?;
        let activity = request.extensions().get::<Activity>().cloned().unwrap_or_default();
        // A client that sends its body slowly gives way to others where connections run out.
        let receiving = activity.receive();
        let received = read(request.into_body(), encoding, &site.common.options).await?;
        drop(receiving);
        let received = match encoding {
            Some(encoding) => received.unpack(encoding, &site.common.options).await?,
            None => received,
        };
        received.parse().await
    }
}

/// Refuses types that a foreign page can send without a preflight request.
fn check_content_type(headers: &HeaderMap, dialect: Dialect) -> ApiResult<()> {
    let mime = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mime = mime.split(';').next().unwrap_or_default().trim();
    // Ollama's documentation calls its API with a bare `curl -d`. Browsers always name the origin
    // of a page that posts.
    let is_curl = dialect == Dialect::Ollama && !headers.contains_key(ORIGIN);
    if mime.eq_ignore_ascii_case("application/json") || is_curl {
        return Ok(());
    }
    Err(ApiError::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "the body must be JSON: Content-Type: application/json",
    ))
}

/// Memory for bodies that are received and not yet parsed.
static ROOM: Room = Room::new(16 << 20);

/// The first bytes of a body: it reserves room when more has come.
const SMALL_BODY: usize = 256 << 10;

/// A body, with its part of the room for bodies.
struct Received {
    bytes: Vec<u8>,
    /// Of a large one; given back when this is dropped.
    place: Option<Place<'static>>,
}

impl Received {
    /// Unpacks a compressed body, which stops where it exceeds the limit of bodies.
    async fn unpack(self, encoding: Encoding, options: &ServerOptions) -> ApiResult<Received> {
        let Received { bytes, mut place } = self;
        let is_wrong = |err: io::Error| {
            ApiError::field("body", format!("it is not valid {}: {err}", encoding.name()))
        };
        if place.is_none() {
            // Another attempt begins with the room for all that it may have.
            let most = SMALL_BODY.min(options.max_body);
            if let Unpacked::Whole(bytes) = encoding.unpack(&bytes, most).map_err(is_wrong)? {
                return Ok(Received { bytes, place });
            }
            let most = options.max_body;
            let taken = ROOM.reserve(most, most, Instant::now(), options.body_timeout).await;
            taken.complete();
            place = Some(taken);
        }
        let most = options.max_body;
        let unpacked = offload(move || encoding.unpack(&bytes, most)).await?;
        match unpacked.map_err(is_wrong)? {
            Unpacked::Whole(bytes) => Ok(Received { bytes, place }),
            Unpacked::More => Err(too_large(options)),
        }
    }

    /// Parses it, on a thread of its own where that takes a while.
    async fn parse(self) -> ApiResult<JsonBody> {
        let Parsed { n_values, bytes } = json_values::parsed(&self.bytes);
        if n_values > MAX_VALUES || bytes > MAX_PARSED {
            let message = format!(
                "the body has {n_values} JSON values, which take {} when they are parsed; at most {MAX_VALUES} and \
                 {} are taken: send fewer messages, or fewer values in them",
                show_bytes(bytes as u64),
                show_bytes(MAX_PARSED as u64)
            );
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message));
        }
        let share = ParsedShare::take(bytes).await;
        let value = if self.bytes.len() > SMALL_BODY {
            offload(move || parse(&self.bytes)).await??
        } else {
            parse(&self.bytes)?
        };
        Ok(JsonBody { value, share })
    }
}

async fn read(
    body: Body,
    encoding: Option<Encoding>,
    options: &ServerOptions,
) -> ApiResult<Received> {
    if body.size_hint().lower() > options.max_body as u64 {
        return Err(too_large(options));
    }
    let received =
        tokio::time::timeout(options.body_timeout, receive(body, encoding, options)).await;
    received.unwrap_or_else(|_| {
        Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time"))
    })
}

async fn receive(
    mut body: Body,
    encoding: Option<Encoding>,
    options: &ServerOptions,
) -> ApiResult<Received> {
    let began = Instant::now();
    let length = body.size_hint().exact().map(|n_bytes| n_bytes as usize);
    // Where no length is given, all that it may have; and so where it will be unpacked.
    let announced = length.filter(|_| encoding.is_none()).unwrap_or(options.max_body);
    let (mut bytes, mut place) = (Vec::new(), None::<Place<'static>>);
    loop {
        let frame = match &place {
            Some(place) => tokio::select! {
                frame = body.frame() => frame,
                () = place.given_up() => return Err(ApiError::crowded()),
            },
            None => body.frame().await,
        };
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|_| ApiError::field("body", "it ended early"))?;
        let Some(data) = frame.data_ref() else { continue };
        let len = bytes.len() + data.len();
        if len > options.max_body {
            return Err(too_large(options));
        }
        if len > SMALL_BODY && place.is_none() {
            place = Some(ROOM.reserve(announced, len, began, options.body_timeout).await);
            // All at once: growing would copy, and have both copies for a while.
            bytes.reserve_exact(length.unwrap_or(len).saturating_sub(bytes.len()));
        }
        if let Some(place) = &place {
            place.note(len);
        }
        bytes.extend_from_slice(data);
    }
    if let Some(place) = &place {
        place.complete();
    }
    Ok(Received { bytes, place })
}

fn too_large(options: &ServerOptions) -> ApiError {
    ApiError::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        format!("the body is larger than {} bytes ({})", options.max_body, OptionId::MaxBody),
    )
}

/// Parses a body. Escapes of lone surrogates, which JavaScript writes where text is cut in the
/// middle of a character, become U+FFFD.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> ApiResult<T> {
    let parsed = serde_json::from_slice(bytes).or_else(|err| {
        // The parser's words for half a pair of surrogates.
        if err.to_string().contains("hex escape") {
            replace_lone_surrogates(bytes)
                .map_or(Err(err), |replaced| serde_json::from_slice(&replaced))
        } else {
            Err(err)
        }
    });
    parsed.map_err(|err| {
        ApiError::field("body", format!("it is not valid JSON: {}", json_problem(&err)))
    })
}
