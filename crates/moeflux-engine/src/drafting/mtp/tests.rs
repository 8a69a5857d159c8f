//! Multi-token prediction, against modules of transformers' layers (`tools/golden/make_mtp.py`).

use std::path::{Path, PathBuf};

use moeflux_backend::Span;
use moeflux_core::TokenId;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use tempfile::TempDir;

use crate::device::Device;
use crate::drafting::mtp::{MtpRequest, mtp_draft};
use crate::engine::Engine;
use crate::options::Activations;
use crate::options::EngineOptions;
use crate::session::Session;
use crate::session::evaluator::Evaluator;
use crate::speculation::options::Speculation;
use crate::step::{MtpBatch, Outputs, RowLogits};

const CASES: [&str; 9] = [
    "qwen3_5_moe-mtp",
    "qwen3_next-mtp",
    "deepseek_v3-mtp",
    "deepseek_v4-mtp",
    "glm4_moe-mtp",
    "hy_v3-mtp",
    "qwen4_exp-mtp",
    "qwen4_exp-fp8-mtp",
    "gguf-qwen35moe",
];
/// Places where tokens are drafted, and how many.
const PLACES: usize = 8;
const DEPTH: usize = 3;
/// As for the model's own logits.
const MAX_DIFFERENCE: f32 = 2e-3;

struct Golden {
    dir: PathBuf,
    bytes: Vec<u8>,
}

impl Golden {
    fn read(case: &str) -> Golden {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(case);
        let bytes = std::fs::read(dir.join("expected.safetensors")).unwrap();
        Golden { dir, bytes }
    }

    fn words(&self, name: &str) -> Vec<[u8; 4]> {
        let tensors = SafeTensors::deserialize(&self.bytes).unwrap();
        tensors.tensor(name).unwrap().data().as_chunks::<4>().0.to_vec()
    }

    fn tokens(&self, name: &str) -> Vec<TokenId> {
        self.words(name).into_iter().map(|word| TokenId(u32::from_le_bytes(word))).collect()
    }

    fn drafts(&self) -> Vec<Vec<TokenId>> {
        self.tokens("predicted").chunks_exact(DEPTH).map(<[_]>::to_vec).collect()
    }

    fn open(&self) -> Engine {
        self.open_with(Speculation::Auto)
    }

    fn open_with(&self, speculation: Speculation) -> Engine {
        self.open_on(Device::Cpu, speculation)
    }

    fn open_on(&self, device: Device, speculation: Speculation) -> Engine {
        let activations = Activations::Full;
        let ctx = Some(64);
        let options = EngineOptions::default()
            .device(device)
            .activations(activations)
            .speculation(speculation)
            .ctx(ctx);
        Engine::open(&self.dir, &options).unwrap()
    }
}

#[test]
fn logits_agree_with_the_reference_at_every_position() {
    check_logits(Device::Cpu);
}

/// Whether there is no GPU and `MOEFLUX_EXPECTED_GPU` demands none.
#[cfg(feature = "gpu")]
#[expect(clippy::print_stdout, reason = "a test that did not run says so")]
fn lacks_gpu() -> bool {
    let lacks = crate::devices(None).iter().all(|device| device.lacks.is_some());
    if lacks {
        assert!(std::env::var_os("MOEFLUX_EXPECTED_GPU").is_none(), "there is no GPU");
        println!("SKIP: this machine has no GPU that runs models");
    }
    lacks
}

#[cfg(feature = "gpu")]
#[test]
fn a_gpu_drafts_the_tokens_of_the_reference() {
    if lacks_gpu() {
        return;
    }
    check_logits(Device::Gpu(None));
    for case in CASES {
        let golden = Golden::read(case);
        let engine = golden.open_on(Device::Gpu(None), Speculation::Auto);
        check_drafts(&golden, &engine, 7, &mut |session, tokens| {
            session.eval_prompt(tokens).unwrap();
        });
    }
}

#[cfg(feature = "gpu")]
#[test]
fn steps_that_verify_drafts_of_a_gpu_have_the_bits_of_others() {
    if lacks_gpu() {
        return;
    }
    for case in CASES {
        let golden = Golden::read(case);
        let engine = golden.open_on(Device::Gpu(None), Speculation::Fixed(2));
        let tokens = golden.tokens("tokens.1");
        let (prompt, rest) = tokens.split_at(tokens.len() / 2);
        let bits = |logits: &[f32]| logits.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>();
        let mut session = engine.session();
        session.eval_prompt(prompt).unwrap();
        let want = rest.iter().map(|token| bits(&session.eval_token(*token).unwrap()));
        let want: Vec<Vec<u32>> = want.collect();
        let mut session = engine.session();
        session.eval_prompt(prompt).unwrap();
        let (mut n_steps, mut at) = (0, 0);
        while at < rest.len() - 2 {
            assert!(session.prepare_rollback(), "{case}");
            // Drafts of the layer, and in every third step the right ones.
            let drafted = session.mtp_draft(rest[at], 2);
            let draft = if n_steps % 3 == 2 { &rest[at + 1..at + 3] } else { &drafted[..] };
            let next = session.eval_draft(rest[at], draft, None).unwrap();
            let n_accepted = draft.iter().zip(&rest[at + 1..]).take_while(|(a, b)| a == b).count();
            session.roll_back(2 - n_accepted).unwrap();
            for (next, want) in next.iter().zip(&want[at..]).take(1 + n_accepted) {
                assert!(bits(all(next)) == *want, "{case}, after {at}");
            }
            at += 1 + n_accepted;
            n_steps += 1;
        }
    }
}

fn all(logits: &RowLogits) -> &[f32] {
    let RowLogits::All(logits) = logits else { panic!("all logits are wanted") };
    logits
}

fn check_logits(device: Device) {
    for case in CASES {
        let golden = Golden::read(case);
        let engine = golden.open_on(device, Speculation::Auto);
        assert!(engine.shape().has_mtp(), "{case}");
        for i in 0..2 {
            let tokens = golden.tokens(&format!("tokens.{i}"));
            let mut session = engine.session();
            session.eval_prompt(&tokens).unwrap();
            let before =
                session.state.speculation.mtp.as_ref().unwrap().rows(0, tokens.len()).to_vec();
            let span = Span::new(session.state.sequence, 0..tokens.len(), 0);
            let core = &mut *engine.core();
            let rows: Vec<usize> = (0..tokens.len()).collect();
            let outputs = Outputs { rows: &rows, ..Outputs::default() };
            let (spans, tokens, hidden) = (&[span], &tokens, &before);
            let output = core.mtp_step(&MtpBatch { spans, tokens, hidden, outputs }).unwrap();
            let got: Vec<f32> = output.logits.iter().flat_map(all).copied().collect();
            let want = golden.words(&format!("mtp.{i}"));
            assert_eq!(got.len(), want.len());
            let differences = got.iter().zip(want).map(|(a, b)| (a - f32::from_le_bytes(b)).abs());
            let worst = differences.fold(0.0f32, f32::max);
            assert!(worst <= MAX_DIFFERENCE, "{case}, sequence {i}: {worst}");
        }
    }
}

/// Drafts after each of the last tokens; `advance` evaluates a token.
fn check_drafts(
    golden: &Golden,
    engine: &Engine,
    chunk: usize,
    advance: &mut dyn FnMut(&mut Session, &[TokenId]),
) {
    let tokens = golden.tokens("tokens.1");
    let mut session = engine.session();
    let n_first = tokens.len() - PLACES;
    for part in tokens[..n_first].chunks(chunk) {
        advance(&mut session, part);
    }
    for (token, want) in tokens[n_first..].iter().zip(golden.drafts()) {
        let at = session.position();
        assert_eq!(session.mtp_draft(*token, DEPTH), want, "{}, at {at}", golden.dir.display());
        advance(&mut session, &[*token]);
    }
}

#[test]
fn drafts_are_those_of_the_reference() {
    for case in CASES {
        let golden = Golden::read(case);
        let engine = golden.open();
        for chunk in [1, 7, 64] {
            check_drafts(&golden, &engine, chunk, &mut |session, tokens| {
                session.eval_prompt(tokens).unwrap();
            });
        }
    }
}

#[test]
fn rejected_drafts_change_no_later_draft() {
    for case in CASES {
        let golden = Golden::read(case);
        let engine = golden.open();
        check_drafts(&golden, &engine, 1, &mut |session, tokens| {
            for token in tokens {
                let draft = session.mtp_draft(*token, 2);
                assert!(draft.len() == 2 && session.prepare_rollback());
                session.eval_draft(*token, &draft, None).unwrap();
                session.roll_back(2).unwrap();
            }
        });
    }
}

#[test]
fn a_failed_step_changes_no_later_draft() {
    for case in CASES {
        let golden = Golden::read(case);
        let engine = golden.open();
        let mut n = 0;
        check_drafts(&golden, &engine, 5, &mut |session, tokens| {
            n += 1;
            if n % 2 == 0 {
                engine.core().n_refused = 1;
                assert!(session.eval_prompt(tokens).is_err());
            }
            session.eval_prompt(tokens).unwrap();
        });
    }
}

#[test]
fn several_sessions_draft_what_each_would_alone() {
    for case in CASES {
        let golden = Golden::read(case);
        let engine = golden.open();
        let tokens = golden.tokens("tokens.1");
        let n_first = tokens.len() - PLACES;
        let mut sessions: Vec<Session> = (0..4).map(|_| engine.session()).collect();
        for (i, session) in sessions.iter_mut().enumerate() {
            session.eval_prompt(&tokens[..n_first + i]).unwrap();
        }
        let mut requests: Vec<MtpRequest<'_>> = sessions
            .iter_mut()
            .enumerate()
            .map(|(i, session)| MtpRequest { session, token: tokens[n_first + i], n: i })
            .collect();
        let got = mtp_draft(&mut requests);
        for (i, (got, want)) in got.iter().zip(golden.drafts()).enumerate() {
            assert_eq!(got[..], want[..i], "{case}, session {i}");
        }
    }
}

#[test]
fn saved_sessions_go_on_drafting() {
    let dir = tempfile::tempdir().unwrap();
    for case in CASES {
        let golden = Golden::read(case);
        let engine = golden.open();
        let (tokens, file) = (golden.tokens("tokens.1"), dir.path().join(case));
        let n_first = tokens.len() - PLACES;
        let mut session = engine.session();
        session.eval_prompt(&tokens[..n_first]).unwrap();
        session.save(&file).unwrap();
        let mut loaded = engine.session();
        loaded.load(&file).unwrap();
        // The hidden state of the last position is not in the file.
        loaded.eval_token(tokens[n_first]).unwrap();
        assert_eq!(loaded.mtp_draft(tokens[n_first + 1], 1).len(), 1);
        // All but one entry are as if it had never stopped.
        session.eval_token(tokens[n_first]).unwrap();
        let [one, other] = [&mut session, &mut loaded].map(|session| {
            let core = &mut *engine.core();
            let Session { engine, state, .. } = &mut *session;
            Evaluator { engine, core, state }.flush_mtp().unwrap();
            let n = engine.shape().caches.len() - 1;
            core.backend()
                .save_cache(session.state.sequence, moeflux_backend::Cache(n as u32), 0..n_first)
                .unwrap()
        });
        assert!(one == other, "{case}");
    }
}

/// A case with its tensors changed.
fn changed(case: &str, change: &dyn Fn(&str, TensorView<'_>) -> Option<Tensor>) -> TempDir {
    let (golden, dir) = (Golden::read(case), tempfile::tempdir().unwrap());
    std::fs::copy(golden.dir.join("config.json"), dir.path().join("config.json")).unwrap();
    let bytes = std::fs::read(golden.dir.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let all: Vec<(String, Tensor)> = tensors
        .iter()
        .filter_map(|(name, view)| Some((name.to_owned(), change(name, view)?)))
        .collect();
    let views = all.iter().map(|(name, (dtype, shape, data))| {
        (name.clone(), TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    let bytes = safetensors::serialize(views, None).unwrap();
    std::fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
    dir
}

type Tensor = (Dtype, Vec<usize>, Vec<u8>);

fn as_it_is(view: &TensorView<'_>) -> Tensor {
    (view.dtype(), view.shape().to_vec(), view.data().to_vec())
}

#[test]
fn an_incomplete_or_oversized_mtp_layer_is_not_loaded() {
    let whole = changed("qwen3_5_moe-mtp", &|_, view| Some(as_it_is(&view)));
    let torn = changed("qwen3_5_moe-mtp", &|name, view| {
        (name != "mtp.layers.0.self_attn.o_proj.weight").then(|| as_it_is(&view))
    });
    let large = changed("qwen3_5_moe-mtp", &|name, view| {
        let (_, shape, data) = as_it_is(&view);
        if !(name.starts_with("mtp.") && name.contains(".experts.")) {
            return Some((view.dtype(), shape, data));
        }
        // The upper half of a single is a BF16.
        let floats = data.as_chunks::<2>().0.iter().flat_map(|chunk| [0, 0, chunk[0], chunk[1]]);
        Some((Dtype::F32, shape, floats.collect()))
    });
    let tokens = Golden::read("qwen3_5_moe-mtp").tokens("tokens.0");
    let cases = [(&whole, None), (&torn, Some("o_proj")), (&large, Some("pack the model"))];
    let logits = cases.map(|(dir, reason)| {
        let options = EngineOptions::default().ctx(Some(64));
        let engine = Engine::open(dir.path(), &options).unwrap();
        assert_eq!(engine.shape().has_mtp(), reason.is_none());
        let warnings = engine.warnings().iter().filter(|warning| warning.contains("multi-token"));
        let warnings: Vec<&String> = warnings.collect();
        assert_eq!(warnings.len(), usize::from(reason.is_some()), "{warnings:?}");
        assert!(warnings.iter().all(|warning| warning.contains(reason.unwrap())), "{warnings:?}");
        engine.session().eval_prompt(&tokens).unwrap().to_vec()
    });
    assert!(logits[0] == logits[1] && logits[0] == logits[2]);
}

#[test]
fn an_mtp_layer_of_eight_bits_is_left_aside_where_experts_have_four() {
    let dir = Golden::read("qwen4_exp-nvfp4").dir;
    let engine = Engine::open(&dir, &EngineOptions::default().ctx(Some(64))).unwrap();
    assert!(!engine.shape().has_mtp());
    let warnings = engine.warnings().iter();
    assert_eq!(warnings.filter(|warning| warning.contains("pack the model")).count(), 1);
}

#[test]
fn without_speculation_the_mtp_cache_is_saved_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    for case in CASES {
        let golden = Golden::read(case);
        let (tokens, file) = (golden.tokens("tokens.1"), dir.path().join(case));
        let engine = golden.open_with(Speculation::Off);
        let mut session = engine.session();
        session.eval_prompt(&tokens[..20]).unwrap();
        assert!(!session.state.can_mtp_draft() && session.mtp_draft(tokens[20], 1).is_empty());
        session.save(&file).unwrap();
        let engine = golden.open();
        let mut loaded = engine.session();
        loaded.load(&file).unwrap();
        loaded.eval_token(tokens[20]).unwrap();
        assert_eq!(loaded.mtp_draft(tokens[21], 2).len(), 2);
    }
}
