//! The fields that say how an answer is made.

use moeflux_engine::{Bias, TokenId};
use schemars::JsonSchema;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess};
use serde_json::{Map, Value};

use crate::error::{ApiError, ApiResult};
use crate::model::Model;
use crate::request::{Body, FromMap, Integer, Limit, List, Number, Seed, StringOr, read_map};
use crate::settings::Settings;

/// Answers to one prompt at most.
const MAX_N: u64 = 16;

/// Stop texts at most.
pub(crate) const MAX_STOPS: usize = 16;

/// Biased tokens at most.
const MAX_BIASED: usize = 1024;

/// Most alternatives with their log probabilities for each token of the answer.
pub(crate) const MAX_TOP: u64 = 20;

/// How freely tokens are drawn; 0 takes the likeliest.
pub(crate) type Temperature = Number<0, 2>;
/// A probability.
pub(crate) type Share = Number<0, 1>;
/// What is taken from the logits of tokens that the answer has.
pub(crate) type Penalty = Number<-2, 2>;
/// What logits of tokens that were there are divided by.
pub(crate) type RepeatPenalty = Number<1, 1000, 100>;
/// Texts that end an answer.
pub(crate) type Stops = StringOr<List<String, MAX_STOPS>>;

/// The fields of [`Sampling`], and how they are read.
macro_rules! fields {
    ($(#[$about:meta])* struct $name:ident { $($(#[$doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, JsonSchema)]
        pub(crate) struct $name {
            $($(#[$doc])* pub(crate) $field: Option<$type>,)*
        }

        impl $name {
            /// Reads the value of a field; whether there is such a field.
            fn read<'de, A: MapAccess<'de>>(
                &mut self,
                field: &str,
                map: &mut A,
            ) -> Result<bool, A::Error> {
                match field {
                    $(stringify!($field) => self.$field = map.next_value()?,)*
                    _ => return Ok(false),
                }
                Ok(true)
            }
        }
    };
}

fields! {
    /// How answers are made, whatever they answer.
    struct Sampling {
        /// How freely tokens are drawn; 0 takes the likeliest.
        temperature: Temperature,
        /// Draw from the fewest tokens whose probabilities reach this sum.
        top_p: Share,
        /// Draw from this many of the likeliest tokens; 0 or -1 for all.
        top_k: Limit<0>,
        /// Leave out tokens below this share of the highest probability.
        min_p: Share,
        /// How many answers are made to each prompt.
        n: Integer<1, MAX_N>,
        /// Another name of `n`, which it must equal: every answer is given.
        best_of: Integer<1>,
        /// Texts that end the answer.
        stop: Stops,
        /// Taken from a token's logit for every time that the answer has it.
        frequency_penalty: Penalty,
        /// Taken from the logits of tokens that the answer has.
        presence_penalty: Penalty,
        /// Divides the logits of tokens that the text has.
        repetition_penalty: RepeatPenalty,
        /// llama-server's name of `repetition_penalty`.
        repeat_penalty: RepeatPenalty,
        /// How many of the last tokens the repetition penalty looks at; -1 for all.
        repeat_last_n: Limit<0>,
        /// By token, what is added to its logit: -100 to 100.
        logit_bias: Map<String, Value>,
        /// Determines draws; -1 leaves it to the server.
        seed: Seed,
        /// Whether the answer goes on until its limit.
        ignore_eos: bool,
    }
}

// A request with the fields of `Sampling` among its own. Its schema has the description of the request.
#[derive(Clone, Debug, JsonSchema)]
#[schemars(rename = "{T}")]
pub(crate) struct Sampled<T> {
    #[schemars(flatten)]
    pub(crate) request: T,
    #[schemars(flatten)]
    pub(crate) sampling: Sampling,
}

impl<T: FromMap + Body> Body for Sampled<T> {
    const HINTS: &'static [&'static [&'static str]] = T::HINTS;
}

impl<'de, T: FromMap> Deserialize<'de> for Sampled<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Sampled<T>, D::Error> {
        read_map(from)
    }
}

impl<T: FromMap> FromMap for Sampled<T> {
    fn from_map<'de, A: MapAccess<'de>>(map: A) -> Result<Sampled<T>, A::Error> {
        let mut sampling = Sampling::default();
        let request = T::from_map(Others { map, sampling: &mut sampling })?;
        Ok(Sampled { request, sampling })
    }
}

/// The fields of a request but for those of [`Sampling`], which are read on the way.
struct Others<'a, A> {
    map: A,
    sampling: &'a mut Sampling,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Others<'_, A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        while let Some(name) = self.map.next_key::<String>()? {
            if !self.sampling.read(&name, &mut self.map)? {
                return seed.deserialize(name.into_deserializer()).map(Some);
            }
        }
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

impl Sampling {
    /// The settings of a request.
    pub(crate) fn settings(self, model: &Model) -> ApiResult<Settings> {
        let mut settings = Settings::of(model);
        settings.names_temperature = self.temperature.is_some();
        if let Some(Integer(n)) = self.n {
            settings.n = n;
        }
        if self.best_of.is_some_and(|Integer(best_of)| best_of != settings.n) {
            return Err(ApiError::field("best_of", "it must be n: every answer is given"));
        }
        settings.stop = texts(self.stop);
        let sampler = &mut settings.sampler;
        if let Some(Number(temperature)) = self.temperature {
            sampler.temperature = temperature;
        }
        if let Some(Number(top_p)) = self.top_p {
            // Of nothing, the likeliest token is left.
            sampler.top_p = top_p.max(f32::MIN_POSITIVE);
        }
        if let Some(Limit(top_k)) = self.top_k {
            sampler.top_k = top_k.unwrap_or(0);
        }
        if let Some(Number(min_p)) = self.min_p {
            sampler.min_p = min_p;
        }
        if let Some(Number(penalty)) = self.repetition_penalty.or(self.repeat_penalty) {
            sampler.repeat_penalty = penalty;
        }
        if let Some(Limit(window)) = self.repeat_last_n {
            sampler.repeat_window = window;
        }
        if let Some(Seed(Some(seed))) = self.seed {
            sampler.seed = seed;
        }
        let penalty = |penalty: Option<Penalty>| penalty.map_or(0.0, |Number(value)| value);
        let mut tokens = self.logit_bias.map_or(Ok(Vec::new()), |map| logit_bias(model, map))?;
        if self.ignore_eos == Some(true) {
            tokens.extend(model.text.tokenizer().eos_ids().iter().map(|id| (*id, -1000.0)));
        }
        settings.bias = Bias {
            tokens,
            frequency_penalty: penalty(self.frequency_penalty),
            presence_penalty: penalty(self.presence_penalty),
        };
        Ok(settings)
    }
}

/// The texts of a field that is one or a list of them.
pub(crate) fn texts<const MOST: usize>(field: Option<StringOr<List<String, MOST>>>) -> Vec<String> {
    match field {
        None => Vec::new(),
        Some(StringOr::String(text)) => vec![text],
        Some(StringOr::Other(List(texts))) => texts,
    }
}

fn logit_bias(model: &Model, map: Map<String, Value>) -> ApiResult<Vec<(TokenId, f32)>> {
    let vocab = model.facts.n_logits;
    if map.len() > MAX_BIASED {
        let problem = format!("it has more than {MAX_BIASED} tokens");
        return Err(ApiError::field("logit_bias", problem));
    }
    let one = |(key, value): (String, Value)| {
        let is_number = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_digit());
        let token =
            key.parse().ok().filter(|_| is_number).filter(|id| (*id as usize) < vocab).map(TokenId);
        let bias = value.as_f64().filter(|bias| bias.abs() <= 100.0);
        let both = token.zip(bias.map(|bias| bias as f32));
        both.ok_or_else(|| {
            let shown: String = key.chars().take(20).collect();
            let want = format!("a token below {vocab} and a number from -100 to 100 are needed");
            ApiError::field(format!("logit_bias.{shown}"), want)
        })
    };
    map.into_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::request::{Request, object, read};

    #[derive(Clone, Debug, serde::Deserialize)]
    #[serde(remote = "Self")]
    struct Named {
        name: String,
        size: Option<Integer<1, 9>>,
    }

    object!(Named);

    impl Body for Named {
        const HINTS: &'static [&'static [&'static str]] = &[&["hint"]];
    }

    #[test]
    fn the_fields_stand_among_those_of_a_request() {
        let value = json!({
            "temperature": 0.5, "mood": {"top_k": 1}, "name": "a", "stop": ["b"], "size": 3,
            "top_p": null, "hint": 1, "seed": 7,
        });
        let Request { body, ignored } = read::<Sampled<Named>>(value).unwrap();
        let Sampled { request, sampling } = body;
        assert_eq!((request.name.as_str(), request.size.map(|Integer(n)| n)), ("a", Some(3)));
        assert_eq!(sampling.temperature.map(|Number(value)| value), Some(0.5));
        assert!(sampling.top_p.is_none() && sampling.top_k.is_none());
        assert_eq!(texts(sampling.stop), ["b"]);
        assert_eq!(ignored.header().as_deref(), Some("mood"));
    }

    #[test]
    fn a_field_that_is_wrong_is_named() {
        for (value, want) in [
            (json!({"name": "a", "top_p": 2}), "top_p: it must be a number from 0 to 1"),
            (json!({"name": "a", "stop": ["b", 1]}), "stop[1]: it must be a string"),
            (json!({"size": 0, "top_p": 2}), "size: it must be a whole number, from 1 to 9"),
            (json!({"top_p": 2, "size": 0}), "top_p: it must be a number from 0 to 1"),
            (json!({"temperature": 0}), "name: it is missing"),
        ] {
            let error = read::<Sampled<Named>>(value.clone()).unwrap_err();
            assert_eq!(error.message, want, "{value}");
        }
    }
}
