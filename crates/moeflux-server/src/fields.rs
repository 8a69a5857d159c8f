//! A request's fields, taken one by one.

use serde_json::{Map, Value};

use crate::error::{ApiError, ApiResult};

/// An object's fields.
#[derive(Clone, Debug)]
pub(crate) struct Fields {
    map: Map<String, Value>,
    /// What the object is called in front of a field's name.
    at: String,
}

impl Fields {
    /// The fields of a whole request.
    pub(crate) fn of_request(value: Value) -> ApiResult<Fields> {
        Fields::of(value, "")
    }

    /// The fields of the object called `at`.
    pub(crate) fn of(value: Value, at: &str) -> ApiResult<Fields> {
        match value {
            Value::Object(map) => Ok(Fields { map, at: at.to_owned() }),
            _ if at.is_empty() => Err(ApiError::field("body", "it must be a JSON object")),
            _ => Err(ApiError::field(at, "it must be an object")),
        }
    }

    /// A field's whole name.
    pub(crate) fn name(&self, field: &str) -> String {
        if self.at.is_empty() { field.to_owned() } else { format!("{}.{field}", self.at) }
    }

    pub(crate) fn refuse(&self, field: &str, problem: impl AsRef<str>) -> ApiError {
        ApiError::field(self.name(field), problem)
    }

    /// `null` counts as left out.
    pub(crate) fn take(&mut self, field: &str) -> Option<Value> {
        self.map.remove(field).filter(|it| !it.is_null())
    }

    pub(crate) fn string(&mut self, field: &str) -> ApiResult<Option<String>> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.refuse(field, "it must be a string")),
        }
    }

    pub(crate) fn require_string(&mut self, field: &str) -> ApiResult<String> {
        self.string(field)?.ok_or_else(|| self.refuse(field, "it is missing"))
    }

    pub(crate) fn bool(&mut self, field: &str) -> ApiResult<Option<bool>> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Bool(it)) => Ok(Some(it)),
            Some(_) => Err(self.refuse(field, "it must be true or false")),
        }
    }

    /// A number between `least` and `most`.
    pub(crate) fn number(&mut self, field: &str, least: f64, most: f64) -> ApiResult<Option<f32>> {
        let Some(value) = self.take(field) else { return Ok(None) };
        match value.as_f64() {
            Some(it) if (least..=most).contains(&it) => Ok(Some(it as f32)),
            _ => Err(self.refuse(field, format!("it must be a number from {least} to {most}"))),
        }
    }

    /// A whole number between `least` and `most`.
    pub(crate) fn integer(
        &mut self,
        field: &str,
        least: usize,
        most: usize,
    ) -> ApiResult<Option<usize>> {
        let Some(value) = self.take(field) else { return Ok(None) };
        // What is too large for any machine is the largest that this one knows.
        match whole_number(&value)
            .filter(|it| *it >= 0)
            .map(|it| usize::try_from(it).unwrap_or(usize::MAX))
        {
            Some(it) if (least..=most).contains(&it) => Ok(Some(it)),
            _ => {
                let range = match most {
                    usize::MAX => format!("{least} or more"),
                    _ => format!("from {least} to {most}"),
                };
                Err(self.refuse(field, format!("it must be a whole number, {range}")))
            }
        }
    }

    pub(crate) fn object(&mut self, field: &str) -> ApiResult<Option<Fields>> {
        let name = self.name(field);
        self.take(field).map(|it| Fields::of(it, &name)).transpose()
    }

    pub(crate) fn list(&mut self, field: &str) -> ApiResult<Option<Vec<Value>>> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(_) => Err(self.refuse(field, "it must be a list")),
        }
    }

    /// A string, or a list of strings.
    pub(crate) fn strings(&mut self, field: &str, most: usize) -> ApiResult<Vec<String>> {
        let items = match self.take(field) {
            None => return Ok(Vec::new()),
            Some(Value::Array(items)) => items,
            Some(one) => vec![one],
        };
        let texts = items.into_iter().map(|it| match it {
            Value::String(text) => Some(text),
            _ => None,
        });
        let texts: Option<Vec<String>> = texts.collect();
        let want = format!("it must be a string or a list of at most {most} strings");
        texts.filter(|it| it.len() <= most).ok_or_else(|| self.refuse(field, want))
    }

    /// Takes fields that change nothing here.
    pub(crate) fn ignore(&mut self, fields: &[&str]) {
        for field in fields {
            self.map.remove(*field);
        }
    }

    /// All that is left.
    pub(crate) fn rest(self) -> Map<String, Value> {
        self.map
    }

    /// Drops the fields that were not taken.
    pub(crate) fn finish(self) -> ApiResult<()> {
        Ok(())
    }
}

/// A whole number, however it is written: to JSON, 3 and 3.0 are the same.
pub(crate) fn whole_number(value: &Value) -> Option<i128> {
    let exact = value.as_i64().map(i128::from).or(value.as_u64().map(i128::from));
    exact.or_else(|| value.as_f64().filter(|it| it.fract() == 0.0).map(|it| it as i128))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_that_are_not_taken_are_dropped() {
        let mut fields = Fields::of_request(json!({"a": 1, "b": null, "c": {"d": true}})).unwrap();
        assert_eq!(fields.integer("a", 0, 3), Ok(Some(1)));
        let inner = fields.object("c").unwrap().unwrap();
        assert_eq!(inner.finish(), Ok(()));
        assert_eq!(fields.finish(), Ok(()));
    }

    #[test]
    fn whole_numbers_may_be_written_as_others() {
        let mut fields =
            Fields::of_request(json!({"a": 3.0, "b": 1e30, "c": -0.0, "d": 1e30, "e": -1e30}))
                .unwrap();
        assert_eq!(fields.integer("a", 0, 3), Ok(Some(3)));
        assert_eq!(fields.integer("b", 1, usize::MAX), Ok(Some(usize::MAX)));
        assert_eq!(fields.integer("c", 0, 3), Ok(Some(0)));
        assert!(fields.integer("d", 0, 3).is_err() && fields.integer("e", 0, usize::MAX).is_err());
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        let mut fields = Fields::of_request(json!({
            "a": 4, "b": "x", "c": -1, "d": 1.5, "e": [1], "f": {"g": []}, "h": 3
        }))
        .unwrap();
        let refused = [
            fields.integer("a", 0, 3).map(drop),
            fields.number("b", 0.0, 1.0).map(drop),
            fields.integer("c", 0, 3).map(drop),
            fields.integer("d", 0, 3).map(drop),
            fields.strings("e", 3).map(drop),
            fields.string("f").map(drop),
            fields.object("h").map(drop),
        ];
        let params: Vec<String> =
            refused.into_iter().map(|it| it.unwrap_err().param.unwrap()).collect();
        assert_eq!(params, ["a", "b", "c", "d", "e", "f", "h"]);
        assert!(Fields::of_request(json!([])).is_err());
    }
}
