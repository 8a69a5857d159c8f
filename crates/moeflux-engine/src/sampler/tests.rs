//! Draws, and refused options.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

fn sampler(options: SamplerOptions) -> Sampler {
    Sampler::new(options).unwrap()
}

fn warm() -> SamplerOptions {
    SamplerOptions { temperature: 1.0, ..SamplerOptions::default() }
}

/// Shares of `n` draws by token.
fn shares(options: SamplerOptions, logits: &[f32], n: usize) -> HashMap<u32, f64> {
    let mut sampler = sampler(options);
    let mut shares = HashMap::new();
    for _ in 0..n {
        let id = sampler.sample(logits, &[]).unwrap();
        *shares.entry(id.0).or_default() += 1.0 / n as f64;
    }
    shares
}

#[test]
fn random_numbers_are_those_of_the_reference_implementation() {
    let mut random = Xoshiro256 { state: [1, 2, 3, 4] };
    let got: [u64; 4] = std::array::from_fn(|_| random.next());
    assert_eq!(got, [41943041, 58720359, 3588806011781223, 3591011842654386]);
    assert_eq!(Xoshiro256::new(0).state[0], 0xe220_a839_7b1d_cdaf);
}

#[test]
fn greedy_takes_the_lowest_of_equal_ids() {
    let mut greedy = sampler(SamplerOptions::default());
    assert_eq!(greedy.sample(&[1.0, 3.0, 3.0], &[]), Ok(TokenId(1)));
    assert_eq!(greedy.sample(&[f32::NEG_INFINITY, -5.0], &[]), Ok(TokenId(1)));
}

#[test]
fn options_out_of_range_are_named() {
    let default = SamplerOptions::default;
    for (options, want) in [
        (SamplerOptions { temperature: -0.5, ..default() }, "temperature is -0.5"),
        (SamplerOptions { temperature: f32::NAN, ..default() }, "temperature is NaN"),
        (SamplerOptions { top_p: 0.0, ..default() }, "top_p is 0"),
        (SamplerOptions { top_p: 1.5, ..default() }, "top_p is 1.5"),
        (SamplerOptions { min_p: 2.0, ..default() }, "min_p is 2"),
        (SamplerOptions { repeat_penalty: 0.0, ..default() }, "repeat_penalty is 0"),
    ] {
        let error = Sampler::new(options).unwrap_err().to_string();
        assert!(error.starts_with(want), "{error}");
    }
}

#[test]
fn damaged_logits_are_errors() {
    for options in [SamplerOptions::default(), warm()] {
        let mut sampler = sampler(options);
        for (logits, want) in [
            (&[0.0, f32::NAN][..], "the logit of token 1 is NaN"),
            (&[f32::INFINITY], "the logit of token 0 is inf"),
            (&[f32::NEG_INFINITY; 3], "none of 3 tokens"),
            (&[], "none of 0 tokens"),
        ] {
            let error = sampler.sample(logits, &[]).unwrap_err().to_string();
            assert!(error.starts_with(want), "{error}");
            assert!(logprobs(logits, 1).is_err());
        }
    }
}

#[test]
fn shares_follow_the_probabilities() {
    let logits = [0.0, 2.0f32.ln(), f32::NEG_INFINITY, 5.0f32.ln()];
    let shares = shares(warm(), &logits, 20_000);
    for (id, p) in [(0, 0.125), (1, 0.25), (3, 0.625)] {
        // Five standard deviations of a share over 20 000 draws are below 0.0175.
        assert!((shares[&id] - p).abs() < 0.0175, "{shares:?}");
    }
    assert!(!shares.contains_key(&2));
}

#[test]
fn all_of_a_long_vocabulary_may_be_drawn() {
    // Far apart, with tokens that may not be drawn between and after them.
    let mut logits = vec![f32::NEG_INFINITY; 3000];
    for (id, p) in [(0, 0.125f32), (700, 0.25), (2400, 0.625)] {
        logits[id] = p.ln();
    }
    let shares = shares(warm(), &logits, 20_000);
    assert_eq!(shares.len(), 3, "{shares:?}");
    for (id, p) in [(0, 0.125), (700, 0.25), (2400, 0.625)] {
        assert!((shares[&id] - p).abs() < 0.0175, "{shares:?}");
    }
}

#[test]
fn a_nucleus_may_be_most_of_a_long_vocabulary() {
    // 3,000 weigh one, the others an e-th each: 0.8 of all is 2,694.3.
    let logits: Vec<f32> = (0..4000).map(|id| if id < 3000 { 2.0 } else { 1.0 }).collect();
    let options = SamplerOptions { temperature: 1.0, top_p: 0.8, ..SamplerOptions::default() };
    let drawn = shares(options, &logits, 20_000);
    let (least, most) = (drawn.keys().min().unwrap(), drawn.keys().max().unwrap());
    assert!(*least < 20 && (2675..2695).contains(most), "{least} to {most}");
    assert!(drawn.values().all(|share| *share < 0.0015), "one of 2,695 is drawn {drawn:?}");
}

#[test]
fn the_least_temperature_takes_the_highest() {
    let logits: Vec<f32> = (0..3000u16).map(|i| f32::from(i % 1999)).collect();
    for temperature in [f32::from_bits(1), 1e-30, 1e-3] {
        let mut sampler = sampler(SamplerOptions { temperature, ..warm() });
        assert_eq!(sampler.sample(&logits, &[]), Ok(TokenId(1998)), "{temperature:e}");
    }
}

#[test]
fn each_filter_keeps_what_it_says() {
    let logits = [0.5f32, 0.25, 0.15, 0.1].map(f32::ln);
    for (options, want) in [
        (SamplerOptions { top_k: 2, ..warm() }, vec![0, 1]),
        (SamplerOptions { top_k: 1, ..warm() }, vec![0]),
        (SamplerOptions { top_k: 99, ..warm() }, vec![0, 1, 2, 3]),
        (SamplerOptions { top_p: 0.4, ..warm() }, vec![0]),
        (SamplerOptions { top_p: 0.6, ..warm() }, vec![0, 1]),
        (SamplerOptions { top_p: 0.76, ..warm() }, vec![0, 1, 2]),
        // Of 0.5 and 0.25 alone, 0.6 is reached by the first.
        (SamplerOptions { top_k: 2, top_p: 0.6, ..warm() }, vec![0]),
        (SamplerOptions { min_p: 0.4, ..warm() }, vec![0, 1]),
        (SamplerOptions { min_p: 1.0, ..warm() }, vec![0]),
        // At half the temperature the probabilities are squared: 0.72, 0.18, …
        (SamplerOptions { temperature: 0.5, top_p: 0.7, ..warm() }, vec![0]),
    ] {
        let mut got: Vec<_> = shares(options.clone(), &logits, 500).into_keys().collect();
        got.sort_unstable();
        assert_eq!(got, want, "{options:?}");
    }
}

#[test]
fn the_penalty_counts_each_token_of_its_window_once() {
    let options = SamplerOptions { repeat_penalty: 2.0, ..SamplerOptions::default() };
    let logits = [3.0, 2.0, -1.0];
    let history = [TokenId(0), TokenId(0), TokenId(9)];
    assert_eq!(sampler(options.clone()).sample(&logits, &history), Ok(TokenId(1)));
    let near = SamplerOptions { repeat_window: Some(1), ..options.clone() };
    assert_eq!(sampler(near).sample(&logits, &history), Ok(TokenId(0)));
    // Negative logits move away from zero.
    assert_eq!(sampler(options).sample(&[-1.5, -1.0], &[TokenId(1)]), Ok(TokenId(0)));
}

#[test]
fn a_seed_gives_the_same_tokens_on_every_machine() {
    let logits: Vec<f32> = (0..1000).map(|i| ((i * 37) % 101) as f32 * 0.125).collect();
    let options = SamplerOptions { temperature: 0.8, top_p: 0.95, seed: 42, ..warm() };
    let mut sampler = sampler(options);
    let got: Vec<u32> = (0..8).map(|_| sampler.sample(&logits, &[]).unwrap().0).collect();
    assert_eq!(got, GOLDEN);
}

// Computed by an independent program in another language.
const GOLDEN: [u32; 8] = [502, 393, 439, 917, 876, 281, 838, 483];

#[test]
fn answers_of_near_seeds_differ() {
    let logits = vec![0.0; 1 << 16];
    let mut seen = std::collections::HashSet::new();
    for seed in [0, 1, 2, 3, 4, u64::MAX - 1, u64::MAX] {
        for answer in 0..64 {
            let options = SamplerOptions { seed, ..warm() }.of_answer(answer);
            let mut sampler = sampler(options);
            let draws: Vec<u32> = (0..4).map(|_| sampler.sample(&logits, &[]).unwrap().0).collect();
            assert!(seen.insert(draws), "answer {answer} of seed {seed} repeats another one");
        }
    }
}

#[test]
fn the_first_answer_has_the_seed_of_the_request() {
    let options = SamplerOptions { seed: 42, ..warm() };
    assert_eq!(options.of_answer(0), options);
}

#[test]
fn logprobs_are_sorted_and_add_up() {
    let top = logprobs(&[1.0, 3.0, 2.0, f32::NEG_INFINITY], 9).unwrap();
    assert_eq!(top.iter().map(|t| t.0.0).collect::<Vec<_>>(), [1, 2, 0]);
    let sum: f64 = top.iter().map(|t| f64::from(t.1).exp()).sum();
    assert!((sum - 1.0).abs() < 1e-6, "{top:?}");
    assert_eq!(
        logprob(&[1.0, 3.0, 2.0], TokenId(1)).unwrap(),
        logprobs(&[1.0, 3.0, 2.0], 1).unwrap()[0].1
    );
    assert_eq!(logprobs(&[0.0, 0.0], 1).unwrap(), [(TokenId(0), 0.5f32.ln())]);
}

/// The tokens that may be drawn, by sorting all.
fn allowed(options: &SamplerOptions, logits: &[f32]) -> Vec<u32> {
    let mut all: Vec<(u32, f64)> = logits
        .iter()
        .enumerate()
        .filter(|(_, x)| x.is_finite())
        .map(|(id, &x)| (id as u32, f64::from(x) / f64::from(options.temperature)))
        .collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if options.top_k > 0 {
        all.truncate(options.top_k);
    }
    let max = all[0].1;
    let total: f64 = all.iter().map(|c| (c.1 - max).exp()).sum();
    // All of the vocabulary is weighed in `f32`: an exponent below ln 700 has three roundings of
    // 2^-24 of it (1.2e-6), its power errs by 2^-22, and 32 additions by 2^-24 each (1.9e-6).
    let slack = if options.top_k == 0 { 4e-6 } else { 1e-9 };
    let mut sum = 0.0;
    let mut ids = Vec::new();
    for (id, logit) in all {
        let p = (logit - max).exp();
        // Some slack: a share that meets the limit exactly may fall on either side.
        if !ids.is_empty()
            && (sum >= total * (f64::from(options.top_p) + slack)
                || p < f64::from(options.min_p) * (1.0 - 1e-9))
        {
            break;
        }
        sum += p;
        ids.push(id);
    }
    ids
}

proptest! {
    #[test]
    fn draws_only_what_a_plain_implementation_allows(
        logits in prop::collection::vec(-20.0..20.0f32, 1..700),
        temperature in 0.1..3.0f32,
        top_k in 0..20usize,
        top_p in 0.01..1.0f32,
        min_p in 0.0..0.5f32,
        seed: u64,
    ) {
        let options =
            SamplerOptions { temperature, top_k, top_p, min_p, seed, ..SamplerOptions::default() };
        let allowed = allowed(&options, &logits);
        let mut one = sampler(options.clone());
        let mut other = sampler(options);
        for _ in 0..20 {
            let id = one.sample(&logits, &[]).unwrap();
            prop_assert!(allowed.contains(&id.0), "{id:?} of {allowed:?}");
            prop_assert_eq!(other.sample(&logits, &[]).unwrap(), id);
        }
    }
}

proptest! {
    #[test]
    fn top_logits_stand_for_all_logits(
        logits in prop::collection::vec(
            prop_oneof![8 => (-90..90i8).prop_map(|ninths| f32::from(ninths) / 9.0), 1 => Just(f32::NEG_INFINITY)],
            1..700,
        ),
        temperature in prop_oneof![Just(0.0f32), 0.1..3.0f32],
        top_k in 1..70usize,
        top_p in prop_oneof![Just(1.0f32), 0.05..1.0f32],
        min_p in prop_oneof![Just(0.0f32), 0.0..0.5f32],
        others in 0..5usize,
        seed: u64,
    ) {
        prop_assume!(logits.iter().any(|logit| logit.is_finite()));
        let options =
            SamplerOptions { temperature, top_k, top_p, min_p, seed, ..SamplerOptions::default() };
        let (mut of_all, mut of_top) = (sampler(options.clone()), sampler(options));
        let n = of_top.n_top().unwrap() + others;
        let mut maxima = Vec::new();
        let mut top = Vec::new();
        Ranks::of(&logits, &mut maxima).unwrap().top_n(n, &mut top);
        for _ in 0..20 {
            let want = of_all.sample(&logits, &[]).unwrap();
            prop_assert_eq!(of_top.sample_top(&top), want);
        }
    }
}

proptest! {
    #[test]
    fn bins_draw_what_a_sort_of_all_draws(
        logits in prop::collection::vec(
            prop_oneof![
                20 => -30.0..30.0f32,
                5 => (-9..9i8).prop_map(f32::from),
                1 => Just(-200.0f32),
                1 => Just(f32::NEG_INFINITY),
            ],
            1..3000,
        ),
        temperature in 0.1..30.0f32,
        top_p in prop_oneof![Just(1.0f32), 0.01..1.0f32, 0.999..1.0f32],
        min_p in prop_oneof![Just(0.0f32), 0.0..0.5f32, Just(1e-15f32)],
        share in prop_oneof![8 => 0.0..1.0f64, 1 => Just(0.0), 1 => Just(1.0 - f64::EPSILON)],
    ) {
        let mut maxima = Vec::new();
        let Ok(ranks) = Ranks::of(&logits, &mut maxima) else { return Ok(()) };
        let weights = Weights::new(ranks.max(), temperature);
        let (wanted, least) = (weights.total(&logits) * f64::from(top_p), f64::from(min_p));
        let token = Bins::new(weights, &logits).draw(wanted, least, share);
        let mut all = Vec::new();
        ranks.top_n(logits.len(), &mut all);
        let nth = all.iter().position(|top| top.token == token).expect("no token without a weight");
        // Sums of `f32` on one side: a token near a limit may fall to either side.
        let slack = 1e-5 * weights.total_of_top(&all);
        let n = |wanted: f64| weights.nucleus(&all, wanted, least).map_or(all.len(), |nucleus| nucleus.0);
        let n_kept = n(wanted + slack);
        prop_assert!(nth < n_kept, "the {nth}th of {n_kept}");
        let before = weights.total_of_top(&all[..nth]);
        let [few, many] = [n(wanted - slack), n_kept].map(|n| share * weights.total_of_top(&all[..n]));
        prop_assert!(before <= many + slack, "{before} is beyond {many}");
        let behind = before + weights.of(all[nth].logit);
        prop_assert!(behind >= few - slack, "{behind} does not reach {few}");
    }
}

#[test]
fn what_files_leave_open_is_sampled_as_usual() {
    let recommended = |defaults: GenerationDefaults| SamplerOptions::recommended(&defaults);
    let silent = GenerationDefaults { repetition_penalty: Some(1.1), ..Default::default() };
    assert_eq!(
        recommended(silent),
        SamplerOptions { repeat_penalty: 1.1, ..SamplerOptions::USUAL }
    );
    assert!(SamplerOptions::note(&silent).unwrap().contains("temperature 0.8"));

    let greedy = GenerationDefaults { do_sample: Some(false), ..Default::default() };
    let zero = GenerationDefaults { temperature: Some(0.0), ..Default::default() };
    for named in [greedy, zero] {
        assert_eq!(recommended(named), SamplerOptions::default());
        assert_eq!(SamplerOptions::note(&named), None);
    }
    // Who says a part of it recommends to sample, and nothing of what is usual.
    let part = GenerationDefaults { top_p: Some(0.9), ..Default::default() };
    let want = SamplerOptions { temperature: 1.0, top_p: 0.9, ..SamplerOptions::default() };
    assert_eq!(recommended(part), want);
    let samples = GenerationDefaults { do_sample: Some(true), ..Default::default() };
    assert_eq!(recommended(samples), SamplerOptions { temperature: 1.0, ..Default::default() });
}
