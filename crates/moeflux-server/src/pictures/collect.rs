//! Pictures as clients of all dialects write them, collected in order.

use moeflux_engine::LOW_DETAIL;
use serde_json::Value;

use super::source::Source;
use crate::error::{ApiError, ApiResult};
use crate::model::Model;

/// Pictures of a request at most.
const MAX_PICTURES: usize = 100;

/// Pictures of a request, in the order in which they stand in its messages.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pictures {
    /// Whether the model sees.
    sees: bool,
    /// Whether the server fetches pictures from addresses.
    fetches: bool,
    sources: Vec<Source>,
}

/// The fields of a part of a message that may be a picture.
#[derive(Clone, Debug, Default)]
pub(crate) struct PictureFields {
    /// An address, or an object with one.
    pub(crate) image_url: Option<Value>,
    /// Another name of `image_url`.
    pub(crate) image: Option<Value>,
    /// Anthropic's: an object of the type `base64` or `url`.
    pub(crate) source: Option<Value>,
    /// MCP's: base64.
    pub(crate) data: Option<Value>,
    /// How much of it is looked at.
    pub(crate) detail: Option<Value>,
}

impl PictureFields {
    /// Those of a part that may be a picture; `None` where it is none.
    pub(crate) fn of(part: &mut Value) -> Option<PictureFields> {
        let kind = part["type"].as_str().map(str::to_owned);
        let fields = part.as_object_mut()?;
        let mut take = |name: &str| fields.get_mut(name).map(Value::take);
        if !is_picture(&kind?) {
            return None;
        }
        Some(PictureFields {
            image_url: take("image_url"),
            image: take("image"),
            source: take("source"),
            data: take("data"),
            detail: take("detail"),
        })
    }

    /// Whether they are those of a picture, by the part's type or, where it has none, by their names.
    pub(crate) fn is_picture(&self, kind: Option<&str>) -> bool {
        match kind {
            Some(kind) => is_picture(kind),
            None => self.image_url.is_some() || self.image.is_some(),
        }
    }
}

fn is_picture(kind: &str) -> bool {
    matches!(kind, "image" | "image_url" | "input_image")
}

impl Pictures {
    /// Of a request to a model.
    pub(crate) fn of(model: &Model) -> Pictures {
        let facts = &model.facts;
        Pictures { sees: facts.sees, fetches: facts.fetches_pictures, sources: Vec::new() }
    }

    /// Others of the same request, which are appended later.
    pub(crate) fn others(&self) -> Pictures {
        Pictures { sources: Vec::new(), ..*self }
    }

    /// Appends those of another part of the request.
    pub(crate) fn append(&mut self, others: Pictures) -> ApiResult<()> {
        self.sources.extend(others.sources);
        self.check_number("messages")
    }

    /// Whether the model sees.
    pub(crate) fn sees(&self) -> bool {
        self.sees
    }

    /// Where they are.
    pub(crate) fn into_sources(self) -> Vec<Source> {
        self.sources
    }

    /// Adds the picture of the part at a path; false where the model does not see.
    ///
    /// # Errors
    /// Where there are too many, or it is not said where it is.
    pub(crate) fn add(&mut self, fields: PictureFields, at: &str) -> ApiResult<bool> {
        if !self.sees {
            return Ok(false);
        }
        let PictureFields { image_url, image, source, data, detail } = fields;
        let (url, image_detail) = match image_url.or(image) {
            Some(Value::Object(mut fields)) => (fields.remove("url"), fields.remove("detail")),
            url => (url, None),
        };
        let detail = image_detail.or(detail);
        let max_tokens = (detail == Some(Value::from("low"))).then_some(LOW_DETAIL);
        let source = match (url, source, data) {
            (Some(url), _, _) => self.url(url, format!("{at}.image_url"))?,
            (None, Some(source), _) => self.anthropic(source, at)?,
            (None, None, Some(data)) => Source::of_base64(text(data, at, "data")?, at)?,
            (None, None, None) => {
                let problem = "there is no image in it: write it like \
                               {\"type\": \"image_url\", \"image_url\": {\"url\": \
                               \"data:image/png;base64,…\"}}";
                return Err(ApiError::field(at, problem));
            }
        };
        self.push(source.within(max_tokens), at)?;
        Ok(true)
    }

    /// Adds a picture in base64 at a path; false where the model does not see.
    ///
    /// # Errors
    /// Where there are too many, or it is no text.
    pub(crate) fn add_base64(&mut self, data: Value, at: &str) -> ApiResult<bool> {
        if !self.sees {
            return Ok(false);
        }
        let Value::String(text) = data else {
            return Err(ApiError::field(at, "it must be an image in base64"));
        };
        let is_url = text.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("data:"));
        let source = if is_url {
            Source::of_url(text, at, self.fetches)?
        } else {
            Source::of_base64(text, at)?
        };
        self.push(source, at)?;
        Ok(true)
    }

    fn push(&mut self, source: Source, at: &str) -> ApiResult<()> {
        self.sources.push(source);
        self.check_number(at)
    }

    fn check_number(&self, at: &str) -> ApiResult<()> {
        if self.sources.len() <= MAX_PICTURES {
            return Ok(());
        }
        let problem = format!("the request has more than {MAX_PICTURES} images: send fewer");
        Err(ApiError::field(at, problem))
    }

    fn url(&self, url: Value, at: String) -> ApiResult<Source> {
        match url {
            Value::String(url) => Source::of_url(url, &at, self.fetches),
            _ => Err(ApiError::field(at, "it must be a string: data:image/png;base64,…")),
        }
    }

    /// `source` of Anthropic's API.
    fn anthropic(&self, mut source: Value, at: &str) -> ApiResult<Source> {
        let at = format!("{at}.source");
        let mut take = |name: &str| source.get_mut(name).map(Value::take).unwrap_or_default();
        let kind = take("type");
        match kind.as_str() {
            Some("base64") => Source::of_base64(text(take("data"), &at, "data")?, &at),
            Some("url") => self.url(take("url"), format!("{at}.url")),
            Some("file") => {
                let problem = "this server keeps no files: send the image itself, as base64";
                Err(ApiError::not_supported(&format!("{at}.type"), problem))
            }
            _ => Err(ApiError::field(format!("{at}.type"), "choose base64 or url")),
        }
    }
}

fn text(value: Value, at: &str, name: &str) -> ApiResult<String> {
    match value {
        Value::String(text) => Ok(text),
        _ => Err(ApiError::field(format!("{at}.{name}"), "it must be an image in base64")),
    }
}
