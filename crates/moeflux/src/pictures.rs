//! Pictures in messages.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::sync::Arc;

use moeflux_core::{PictureRows, hex};
use moeflux_engine::SeenPicture;
use moeflux_text::Message;
use serde_json::{Value, json};

use crate::error::Error;
use crate::shared::Shared;

/// The field of a part of a message that says which picture it is.
const ID: &str = "picture";

/// A message with pictures before its text, which [`Model::see`](crate::Model::see) has given.
///
/// They are parts `{"type": "image", "picture": ID}` of the content, each with the
/// [hash](picture_id) of a picture. Parts may be moved about; what answers the conversation is given the
/// pictures themselves ([`Request::pictures`](crate::Request)).
pub fn picture_message(
    role: impl Into<String>,
    pictures: &[Arc<SeenPicture>],
    text: impl Into<String>,
) -> Message {
    let text = text.into();
    if pictures.is_empty() {
        return Message::new(role, text);
    }
    let part = |seen: &Arc<SeenPicture>| json!({"type": "image", ID: picture_id(seen)});
    let mut parts: Vec<Value> = pictures.iter().map(part).collect();
    if !text.is_empty() {
        parts.push(json!({"type": "text", "text": text}));
    }
    Message { content: Some(Value::from(parts)), ..Message::new(role, "") }
}

/// The hash of a picture by which messages name it, in hexadecimal digits.
pub fn picture_id(seen: &SeenPicture) -> String {
    hex(&seen.rows().id)
}

/// The pictures of messages, in the order of their parts.
pub(crate) fn pictures_of(
    messages: &[Message],
    known: &[Arc<SeenPicture>],
) -> Result<Vec<Arc<SeenPicture>>, Error> {
    let mut pictures = Vec::new();
    for (nth, message) in messages.iter().enumerate() {
        let parts = message.content.as_ref().and_then(Value::as_array);
        let images = parts.into_iter().flatten().filter(|part| part["type"] == "image");
        for image in images {
            let id = image[ID].as_str();
            let seen = known.iter().find(|seen| Some(picture_id(seen).as_str()) == id);
            let seen = seen.ok_or_else(|| {
                let id = id.unwrap_or_default();
                let text =
                    format!("messages[{nth}]: the picture {id:?} was not given with the request");
                Error::request(text)
            })?;
            pictures.push(Arc::clone(seen));
        }
    }
    Ok(pictures)
}

/// The rows of pictures, as conversations have them.
pub(crate) fn rows(pictures: &[Arc<SeenPicture>]) -> Vec<PictureRows> {
    pictures.iter().map(|seen| seen.rows()).collect()
}

/// Looks at a picture, which becomes at most `max_tokens` rows.
pub(crate) fn see(
    shared: &Shared,
    bytes: &[u8],
    max_tokens: Option<NonZeroUsize>,
) -> Result<Arc<SeenPicture>, Error> {
    let Some(vision) = shared.engine.vision() else {
        let text = format!("{}: this model does not take pictures", shared.name());
        return Err(Error::unsupported(text));
    };
    let picture = vision.reader().prepare(bytes, max_tokens)?;
    let seen = vision.see(&picture, &mut |_, _| ControlFlow::Continue(()))?;
    Ok(seen.expect("nothing ends it"))
}
