//! What an answer must look like, as the fields of several servers have it.

use moeflux_text::AnswerShape;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::error::{ApiError, ApiResult};
use crate::request::{Given, StringOr, object};

/// `response_format`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct ResponseFormat {
    /// `text`, `json_object` or `json_schema`.
    #[schemars(extend("enum" = ["text", "json_object", "json_schema"]))]
    pub(crate) r#type: String,
    /// The schema and its name.
    pub(crate) json_schema: Option<NamedSchema>,
    /// A schema without a name, as llama-server has it.
    pub(crate) schema: Option<Map<String, Value>>,
}

/// A JSON schema with a name.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct NamedSchema {
    /// The schema. Answers always follow it.
    pub(crate) schema: Option<Map<String, Value>>,
}

/// vLLM's `structured_outputs`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct StructuredOutputs {
    /// A JSON schema, or its text.
    pub(crate) json: Option<StringOr<Map<String, Value>>>,
    /// Whether the answer must be a JSON object.
    pub(crate) json_object: Option<bool>,
    /// Refused: answers that match an expression.
    pub(crate) regex: Option<Given>,
    /// Refused: answers of a list.
    pub(crate) choice: Option<Given>,
    /// Refused: grammars of vLLM's notation.
    pub(crate) grammar: Option<Given>,
    /// Refused: text with tagged parts.
    pub(crate) structural_tag: Option<Given>,
}

object!(ResponseFormat, NamedSchema, StructuredOutputs);

/// A shape, and the field that asks for it.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) shape: AnswerShape,
    pub(crate) field: &'static str,
}

impl ResponseFormat {
    /// The shape that the field at a path asks for.
    pub(crate) fn shape(self, at: &str) -> ApiResult<AnswerShape> {
        let ResponseFormat { r#type: kind, json_schema, schema } = self;
        let named = json_schema.and_then(|named| named.schema);
        match kind.as_str() {
            "text" => Ok(AnswerShape::Text),
            "json_object" => Ok(json_of(schema.unwrap_or_else(any_object))),
            "json_schema" => match named.or(schema) {
                Some(schema) => Ok(json_of(schema)),
                None => {
                    let at = format!("{at}.json_schema.schema");
                    Err(ApiError::field(at, "it is missing"))
                }
            },
            _ => {
                let problem = "choose text, json_object or json_schema";
                Err(ApiError::field(format!("{at}.type"), problem))
            }
        }
    }
}

impl StructuredOutputs {
    fn shape(self) -> ApiResult<AnswerShape> {
        let refused = [
            ("regex", self.regex),
            ("choice", self.choice),
            ("grammar", self.grammar),
            ("structural_tag", self.structural_tag),
        ];
        if let Some((name, _)) = refused.iter().find(|(_, field)| *field == Some(Given(true))) {
            let problem = "only JSON schemas are enforced: use json";
            return Err(ApiError::field(format!("structured_outputs.{name}"), problem));
        }
        match (self.json, self.json_object) {
            (Some(schema), _) => schema_of(schema, "structured_outputs.json").map(json_of),
            (None, Some(true)) => Ok(json_of(any_object())),
            (None, _) => Ok(AnswerShape::Text),
        }
    }
}

/// The fields of a request that say what the answer must look like.
#[derive(Clone, Debug, Default)]
pub(crate) struct FormatFields {
    pub(crate) response_format: Option<ResponseFormat>,
    pub(crate) json_schema: Option<Map<String, Value>>,
    pub(crate) guided_json: Option<StringOr<Map<String, Value>>>,
    pub(crate) structured_outputs: Option<StructuredOutputs>,
}

impl FormatFields {
    /// The first shape of these fields that is not any text.
    pub(crate) fn wanted(self) -> ApiResult<Wanted> {
        let response = self.response_format.map(|format| format.shape("response_format"));
        let guided = self.guided_json.map(|text| schema_of(text, "guided_json").map(json_of));
        let fields = [
            ("response_format", response),
            ("json_schema", self.json_schema.map(|schema| Ok(json_of(schema)))),
            ("guided_json", guided),
            ("structured_outputs", self.structured_outputs.map(StructuredOutputs::shape)),
        ];
        for (field, shape) in fields {
            match shape.transpose()? {
                None | Some(AnswerShape::Text) => {}
                Some(shape) => return Ok(Wanted { shape, field }),
            }
        }
        Ok(Wanted { shape: AnswerShape::Text, field: "response_format" })
    }
}

fn json_of(schema: Map<String, Value>) -> AnswerShape {
    AnswerShape::Json(Value::Object(schema))
}

fn any_object() -> Map<String, Value> {
    Map::from_iter([(String::from("type"), json!("object"))])
}

/// A schema, which some clients send as text.
fn schema_of(field: StringOr<Map<String, Value>>, at: &str) -> ApiResult<Map<String, Value>> {
    match field {
        StringOr::Other(schema) => Ok(schema),
        StringOr::String(text) => serde_json::from_str(&text)
            .map_err(|_| ApiError::field(at, "it must be a JSON schema: an object, or its text")),
    }
}
