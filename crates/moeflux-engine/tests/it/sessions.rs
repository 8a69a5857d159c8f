//! Sessions that go back, are saved, share prefixes and fail: whatever happened
//! before, what comes next has the bits of a session that knows nothing else.

mod faults;
mod prompts;
mod timeline;
mod windows;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::common::{Golden, cases};
use moeflux_engine::{Engine, EngineOptions, KvType, Logits, Session, TokenId};

/// A model, its engine, and what a session that only ever went forward gives.
struct Subject {
    dir: PathBuf,
    engine: Engine,
    tokens: Vec<TokenId>,
    /// Bits of the logits, by position.
    want: Vec<Vec<u32>>,
}

impl Subject {
    fn open(dir: PathBuf, options: &EngineOptions) -> Subject {
        let golden = dir.clone();
        Subject::with_tokens_of(&golden, dir, options)
    }

    /// A model in another form than its golden case.
    fn with_tokens_of(golden: &Path, dir: PathBuf, options: &EngineOptions) -> Subject {
        let options = options.clone().threads(Some(1));
        let engine = Engine::open(&dir, &options).unwrap();
        let sequences = Golden::read(golden).sequences.into_iter().map(|sequence| sequence.tokens);
        let mut tokens = sequences.max_by_key(Vec::len).unwrap();
        tokens.truncate(24);
        let mut session = engine.session();
        let want = tokens.iter().map(|token| bits(&session.eval_token(*token).unwrap())).collect();
        Subject { dir, engine, tokens, want }
    }

    /// Evaluates the rest of the tokens and compares all logits.
    #[track_caller]
    fn check_rest(&self, session: &mut Session, position: usize) {
        assert_eq!(session.position(), position, "{}", self.dir.display());
        for at in position..self.tokens.len() {
            let logits = session.eval_token(self.tokens[at]).unwrap();
            assert!(bits(&logits) == self.want[at], "{}: position {at}", self.dir.display());
        }
    }
}

fn bits(logits: &Logits) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// One case of each family and set of layers, the smallest first of each.
fn families() -> Vec<PathBuf> {
    static CHOSEN: OnceLock<Vec<PathBuf>> = OnceLock::new();
    let choose = || {
        let mut seen = Vec::new();
        let mut chosen = Vec::new();
        for dir in cases() {
            let engine = Engine::open(&dir, &EngineOptions::default()).unwrap();
            let key = (engine.family(), engine.shape().caches.clone());
            if !seen.contains(&key) {
                seen.push(key);
                chosen.push(dir);
            }
        }
        chosen
    };
    CHOSEN.get_or_init(choose).clone()
}

/// Every family with every type of keys and values that it takes: indexers refuse eight bits.
fn subjects() -> Vec<Subject> {
    let takes = |dir: &PathBuf, kv_type: KvType| {
        let name = dir.to_string_lossy();
        let indexed = ["deepseek_v32", "deepseek32", "deepseek_v4", "glm5_next", "glm_moe_dsa"];
        let is_indexed = indexed.iter().any(|part| name.contains(part));
        !is_indexed || kv_type != KvType::Q8
    };
    let open = |dir: &PathBuf, kv_type| {
        Subject::open(dir.clone(), &EngineOptions::default().kv_type(kv_type))
    };
    let types = [KvType::F32, KvType::Bf16, KvType::Q8];
    let pairs = |dir: PathBuf| types.map(|kv_type| (dir.clone(), kv_type));
    let all = families().into_iter().flat_map(pairs);
    all.filter(|(dir, kv_type)| takes(dir, *kv_type))
        .map(|(dir, kv_type)| open(&dir, kv_type))
        .collect()
}
