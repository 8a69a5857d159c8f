//! What is kept of a response.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::owner::Owner;

/// Bytes of one record: larger ones are not kept.
pub(super) const MAX_RECORD: usize = 16 << 20;

/// What is kept of a response: texts, which take less memory than values.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(super) owner: Owner,
    /// The response that it goes on from.
    pub(super) previous: Option<String>,
    /// The items of its request.
    input: String,
    /// Its own items.
    output: String,
    /// All else of it, as it was sent.
    head: String,
}

/// A record on the drive.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Stored {
    version: u32,
    previous: Option<String>,
    input: Vec<Value>,
    output: Vec<Value>,
    head: Value,
}

/// The version of [`Stored`] that is written and read.
const VERSION: u32 = 2;

impl Record {
    /// A request that begins a response, by its body.
    pub(crate) fn of_request(owner: Owner, body: &Value) -> Record {
        let input = match &body["input"] {
            Value::String(text) => json!([{"role": "user", "content": text}]).to_string(),
            items => items.to_string(),
        };
        let previous = body["previous_response_id"].as_str().map(str::to_owned);
        Record { owner, previous, input, output: String::from("[]"), head: String::from("{}") }
    }

    /// With the response, whose items are its `output`.
    pub(crate) fn answered(self, response: &impl Serialize) -> Record {
        let mut head = serde_json::to_value(response).unwrap_or_default();
        let output = head.get_mut("output").map_or_else(Value::default, Value::take);
        Record { output: output.to_string(), head: head.to_string(), ..self }
    }

    /// The response as it was sent.
    pub(super) fn response(&self) -> Value {
        let mut response = self.head();
        response["output"] = Value::Array(self.output());
        response
    }

    /// The response without its items: an object.
    fn head(&self) -> Value {
        serde_json::from_str(&self.head).unwrap_or_else(|_| json!({}))
    }

    /// The items of the request, references among them.
    pub(super) fn input(&self) -> Vec<Value> {
        serde_json::from_str(&self.input).unwrap_or_default()
    }

    /// The items of the response.
    pub(super) fn output(&self) -> Vec<Value> {
        serde_json::from_str(&self.output).unwrap_or_default()
    }

    pub(super) fn n_bytes(&self) -> usize {
        self.input.len() + self.output.len() + self.head.len()
    }

    pub(super) fn to_json(&self) -> Vec<u8> {
        let Record { previous, .. } = self;
        let (previous, input, output) = (previous.clone(), self.input(), self.output());
        let stored = Stored { version: VERSION, previous, input, output, head: self.head() };
        serde_json::to_vec(&stored).unwrap_or_default()
    }

    /// A record of a file; `None` where it is damaged, or of another version.
    pub(super) fn from_json(owner: Owner, bytes: &[u8]) -> Option<Record> {
        let stored: Stored = serde_json::from_slice(bytes).ok()?;
        let Stored { version, previous, input, output, head } = stored;
        let [input, output] = [input, output].map(|items| Value::Array(items).to_string());
        let is_whole = version == VERSION && head.is_object();
        is_whole.then(|| Record { owner, previous, input, output, head: head.to_string() })
    }
}
