//! Prompts with pictures against transformers 5.24: logits of tokens and of the rows that a tower makes,
//! and of tokens that follow. `tests/towers` has, by family, a small random model, the rows of its pictures and
//! three prompts with them.

use std::path::Path;

use moeflux_engine::{
    Activations, Engine, EngineOptions, InputRow, RowInput, RowPosition, TokenId,
};
use moeflux_store::{IoChoice, Prefetch};
use safetensors::SafeTensors;
use serde_json::Value;

use crate::common::floats;
use crate::towers;

/// Largest difference of a logit, the logits' standard deviation being about 1.
const MAX_DIFFERENCE: f32 = 2e-3;

/// A prompt, the rows of its pictures, and what the reference makes of them.
pub(crate) struct SeenPrompt {
    pub(crate) name: String,
    pub(crate) tokens: Vec<TokenId>,
    /// The names of its pictures, in order.
    pub(crate) pictures: Vec<String>,
    /// By row, whether it is one of a picture.
    pub(crate) is_picture: Vec<bool>,
    positions: Vec<RowPosition>,
    /// `hidden_size` floats for each row of a picture.
    embeddings: Vec<f32>,
    /// What each of the first layers adds to these rows.
    deepstack: Vec<Vec<f32>>,
    /// The rows whose logits are known.
    pub(crate) known: Vec<usize>,
    pub(crate) logits: Vec<f32>,
    pub(crate) then: Vec<TokenId>,
    pub(crate) then_logits: Vec<f32>,
}

/// How the rows of a prompt are shared out between calls.
#[derive(Clone, Copy, Debug)]
enum Calls {
    One,
    /// A call ends at every row whose logits are known.
    Known,
    /// This number of rows each.
    Each(usize),
}

/// The prompts of a family.
pub(crate) fn prompts(family: &str) -> Vec<SeenPrompt> {
    let folder = towers::dir().join(family);
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    let facts: Value = serde_json::from_slice(&read("prompts.json")).unwrap();
    let (seen, logits) = (read("golden.safetensors"), read("prompts.safetensors"));
    let seen = SafeTensors::deserialize(&seen).unwrap();
    let logits = SafeTensors::deserialize(&logits).unwrap();
    let facts = facts.as_object().unwrap().iter();
    facts.map(|(name, facts)| SeenPrompt::read(name, facts, &seen, &logits)).collect()
}

fn numbers(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

fn tokens(value: &Value) -> Vec<TokenId> {
    numbers(value).into_iter().map(TokenId).collect()
}

impl SeenPrompt {
    fn read(
        name: &str,
        facts: &Value,
        seen: &SafeTensors<'_>,
        logits: &SafeTensors<'_>,
    ) -> SeenPrompt {
        let [temporal, height, width] =
            [0, 1, 2].map(|part: usize| numbers(&facts["positions"][part]));
        let position =
            |i: usize| RowPosition { temporal: temporal[i], height: height[i], width: width[i] };
        let pictures: Vec<String> = serde_json::from_value(facts["pictures"].clone()).unwrap();
        let of_all = |part: &str| -> Option<Vec<f32>> {
            let of = |picture: &String| seen.tensor(&format!("{picture}.{part}")).ok();
            let each: Option<Vec<_>> = pictures.iter().map(of).collect();
            Some(each?.iter().flat_map(floats).collect())
        };
        let deepstack = (0..).map_while(|nth| of_all(&format!("deep.{nth}"))).collect();
        let of = |part: &str| floats(&logits.tensor(&format!("{name}.{part}")).unwrap());
        let is_picture = numbers(&facts["is_picture"]).into_iter().map(|flag| flag == 1);
        SeenPrompt {
            name: name.to_owned(),
            tokens: tokens(&facts["tokens"]),
            pictures: pictures.clone(),
            is_picture: is_picture.collect(),
            positions: (0..temporal.len()).map(position).collect(),
            embeddings: of_all("embeds").unwrap(),
            deepstack,
            known: numbers(&facts["rows"]).into_iter().map(|row| row as usize).collect(),
            logits: of("logits"),
            then: tokens(&facts["then"]),
            then_logits: of("then_logits"),
        }
    }

    /// By row of a picture, what layers add to it.
    fn deepstack(&self, hidden: usize) -> Vec<Vec<&[f32]>> {
        let of_row =
            |row: usize| self.deepstack.iter().map(|all| &all[row * hidden..][..hidden]).collect();
        (0..self.embeddings.len() / hidden).map(of_row).collect()
    }

    /// The rows: those of pictures with their positions, tokens without.
    fn rows<'a>(&'a self, hidden: usize, deepstack: &'a [Vec<&'a [f32]>]) -> Vec<InputRow<'a>> {
        let mut of_pictures = self.embeddings.chunks_exact(hidden).zip(deepstack);
        let row = |(i, token): (usize, &TokenId)| {
            if !self.is_picture[i] {
                return InputRow::token(*token);
            }
            let (values, deepstack) = of_pictures.next().unwrap();
            let input = RowInput::Embedding { values, deepstack, token: *token };
            InputRow { input, position: Some(self.positions[i]) }
        };
        self.tokens.iter().enumerate().map(row).collect()
    }

    /// Where calls end.
    fn ends(&self, calls: Calls, keeps_pictures: bool) -> Vec<usize> {
        let all = self.tokens.len();
        let ends: Vec<usize> = match calls {
            Calls::One => Vec::new(),
            Calls::Known => self.known.iter().map(|row| row + 1).collect(),
            Calls::Each(n) => (n..all).step_by(n).collect(),
        };
        let is_inside = |end: usize| self.is_picture[end - 1] && self.is_picture[end];
        let may_end = |end: &usize| *end < all && !(keeps_pictures && is_inside(*end));
        ends.into_iter().filter(may_end).chain([all]).collect()
    }

    /// Checks an engine against the reference. Returns the logits behind the prompt, behind the tokens that
    /// follow, and behind the prompt again after a return into it.
    fn check(&self, engine: &Engine, calls: Calls) -> Vec<f32> {
        let shape = engine.shape();
        let (vocab, deepstack) = (shape.vocab, self.deepstack(shape.hidden));
        let rows = self.rows(shape.hidden, &deepstack);
        let (mut session, mut n_compared, mut worst) = (engine.session(), 0, 0.0f32);
        let mut see = |got: &[f32], want: &[f32]| {
            let differences = got.iter().zip(want).map(|(a, b)| (a - b).abs());
            worst = differences.fold(worst, f32::max);
            n_compared += 1;
        };
        let mut all = Vec::new();
        for end in self.ends(calls, shape.sees_pictures_whole) {
            let logits = session.eval_rows(&rows[session.position()..end]).unwrap();
            if let Some(nth) = self.known.iter().position(|row| row + 1 == end) {
                see(&logits, &self.logits[nth * vocab..][..vocab]);
            }
            all = logits.to_vec();
        }
        for (token, want) in self.then.iter().zip(self.then_logits.chunks_exact(vocab)) {
            let logits = session.eval_token(*token).unwrap();
            see(&logits, want);
            all.extend_from_slice(&logits);
        }
        // A session that returns into its rows goes on as if the others had not been.
        let first = self.is_picture.iter().position(|is_picture| *is_picture).unwrap();
        session.truncate(first).unwrap();
        let again = session.eval_rows(&rows[session.position()..]).unwrap();
        see(&again, &self.logits[self.logits.len() - vocab..]);
        all.extend_from_slice(&again);
        assert!(n_compared > 3 + self.then.len() || !matches!(calls, Calls::Known));
        assert!(worst <= MAX_DIFFERENCE, "{}, {calls:?}: {worst}", self.name);
        all
    }
}

/// Checks all prompts of a family. Returns for each the logits of every way to share out its rows.
fn check_ways(engine: &Engine, family: &str, ways: &[Calls]) -> Vec<Vec<Vec<f32>>> {
    let check =
        |prompt: SeenPrompt| ways.iter().map(|calls| prompt.check(engine, *calls)).collect();
    prompts(family).into_iter().map(check).collect()
}

/// Checks all prompts of a family, at once and in parts.
pub(crate) fn check(engine: &Engine, family: &str) {
    check_ways(engine, family, &[Calls::One, Calls::Known]);
}

/// Checks them, and that logits have the same bits however the rows are shared out. Returns these.
#[track_caller]
fn check_bits(engine: &Engine, family: &str) -> Vec<Vec<u32>> {
    let to_bits =
        |logits: &Vec<f32>| logits.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>();
    let vocab = engine.shape().vocab;
    let same = |ways: Vec<Vec<f32>>| {
        let ways: Vec<Vec<u32>> = ways.iter().map(to_bits).collect();
        assert!(ways.windows(2).all(|pair| pair[0] == pair[1]), "{family}: calls change a bit");
        assert!(ways[0].ends_with(&ways[0][..vocab]), "{family}: a return changes a bit");
        ways.concat()
    };
    let ways = [Calls::One, Calls::Known, Calls::Each(7), Calls::Each(1)];
    check_ways(engine, family, &ways).into_iter().map(same).collect()
}

fn open(folder: &Path, options: &EngineOptions) -> Engine {
    Engine::open(folder, options).unwrap()
}

#[test]
fn prompts_with_pictures_agree_with_the_reference_however_they_are_cut_and_experts_come() {
    let exact = EngineOptions::default().activations(Activations::Full);
    // As few experts as one row needs.
    let streamed = exact.clone().expert_io(IoChoice::Pread).expert_cache(Some(128 << 10));
    let streamed = streamed.prefetch(Prefetch::Lookahead);
    for family in &towers::families() {
        let folder = towers::dir().join(family);
        let whole = open(&folder, &exact);
        // A step has all rows of a picture where these see each other.
        let chunk = if whole.shape().sees_pictures_whole { 66 } else { 5 };
        let want = check_bits(&whole, family);
        let one = exact.clone().threads(Some(1)).isa(Some(String::from("scalar")));
        for options in [one.chunk(Some(chunk)), streamed.clone().chunk(Some(chunk + 2))] {
            assert!(check_bits(&open(&folder, &options), family) == want, "{family}");
        }
        check_bits(&open(&folder, &EngineOptions::default()), family);
    }
}
