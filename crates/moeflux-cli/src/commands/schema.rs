//! `--schema`: the form of an answer.

use std::path::Path;

use anyhow::Result;
use moeflux_core::json_problem;
use moeflux_text::AnswerShape;
use serde_json::{Value, json};

use crate::error::UsageError;
use crate::files;

/// The form that a flag asks for: a schema in JSON, `json` for any object, or a file with a schema.
///
/// # Errors
/// Where it is none of these.
pub(super) fn shape(flag: Option<&str>) -> Result<AnswerShape> {
    let Some(text) = flag else { return Ok(AnswerShape::Text) };
    let text = text.trim();
    if text.is_empty() {
        let message =
            "--schema is empty: write json, a JSON schema, or the name of a file with one";
        return Err(UsageError(String::from(message)).into());
    }
    if text == "json" {
        return Ok(AnswerShape::Json(json!({"type": "object"})));
    }
    let (schema, source) = if text.starts_with(['{', '[', '"']) {
        (text.as_bytes().to_vec(), String::from("--schema"))
    } else {
        let refuse = |err| {
            UsageError(format!(
                "--schema: cannot read {text}: {err}; name a file, or give a JSON schema"
            ))
        };
        (files::read(Path::new(text)).map_err(refuse)?, format!("--schema {text}"))
    };
    let refuse = |problem: String| UsageError(format!("{source}: {problem}"));
    let schema: Value = serde_json::from_slice(&schema)
        .map_err(|err| refuse(format!("not valid JSON: {}", json_problem(&err))))?;
    match schema {
        Value::Object(_) => Ok(AnswerShape::Json(schema)),
        _ => {
            let problem = "a JSON schema is an object, such as {\"type\": \"object\"}";
            Err(refuse(String::from(problem)).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_is_json_or_the_name_of_a_file_with_it() {
        assert_eq!(shape(None).unwrap(), AnswerShape::Text);
        let object = AnswerShape::Json(json!({"type": "object"}));
        assert_eq!(shape(Some("json")).unwrap(), object);
        assert_eq!(shape(Some(" {\"type\": \"object\"}")).unwrap(), object);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("schema.json");
        std::fs::write(&file, "{\"type\": \"object\"}").unwrap();
        assert_eq!(shape(file.to_str()).unwrap(), object);
        for (text, want) in [
            ("{", "--schema: not valid JSON: "),
            ("  ", "--schema is empty"),
            ("[1]", "a JSON schema is an object"),
            ("/nowhere.json", "cannot read /nowhere.json"),
        ] {
            let problem = shape(Some(text)).unwrap_err().to_string();
            assert!(problem.contains(want) && !problem.contains('\n'), "{problem}");
        }
    }
}
