//! Where drafts are found, how long they are, and what steps cost.

use std::time::Duration;

use moeflux_core::{PictureRows, TokenId};
use proptest::prelude::*;

use super::drafter::{
    CLASSES, Draft, DraftContext, Drafter, EXPLORE_AFTER, N_EXPLORED, tokens_per_second,
};
use super::lookup::{Found, Lookup};
use crate::speculation::limits::{MAX_DRAFT, MAX_MTP_DRAFT};
use crate::speculation::options::{Speculation, SpeculationStats};
use crate::speculation::rates::{MtpRates, SpeculationRates, StepCost};

fn tokens(ids: &[u32]) -> Vec<TokenId> {
    ids.iter().copied().map(TokenId).collect()
}

fn lookup(ids: &[u32]) -> Lookup {
    let mut lookup = Lookup::default();
    lookup.extend(&tokens(ids));
    lookup
}

#[test]
fn the_place_with_most_in_common_is_found_and_of_several_the_latest() {
    let mut text = lookup(&[9, 1, 2, 3, 4, 8, 1, 2, 3, 5, 9, 1, 2, 3]);
    assert_eq!(text.find(), Some(Found { n_common: 4, start: 4 }));
    assert_eq!(text.continuation(4, 3), tokens(&[4, 8, 1]));
    let mut text = lookup(&[1, 2, 3, 4, 7, 1, 2, 3, 5, 8, 1, 2, 3]);
    assert_eq!(text.find(), Some(Found { n_common: 3, start: 8 }));
    for few in [&[][..], &[1], &[1, 2, 3], &[1, 2, 1, 2]] {
        assert_eq!(lookup(few).find(), None, "{few:?}");
    }
}

#[test]
fn a_text_that_repeats_itself_goes_on_so() {
    let mut text = lookup(&[1, 2, 1, 2, 1, 2]);
    let found = text.find().unwrap();
    assert_eq!((found.n_common, found.start), (4, 4));
    assert_eq!(text.continuation(found.start, 7), tokens(&[1, 2, 1, 2, 1, 2, 1]));
    let mut text = lookup(&[7, 7, 7, 7]);
    let start = text.find().unwrap().start;
    assert_eq!(text.continuation(start, 5), tokens(&[7; 5]));
}

#[test]
fn rows_of_pictures_are_not_copied() {
    let rows: Vec<TokenId> = PictureRows { id: [7; 32], n_rows: 5 }.tokens().collect();
    let prompt = [&tokens(&[1, 2, 3, 4])[..], &rows, &tokens(&[5, 1, 2, 3])].concat();
    let mut text = Lookup::default();
    text.extend(&prompt);
    let start = text.find().unwrap().start;
    assert_eq!([1, 2, 9].map(|most| text.n_copied(start, most)), [1, 1, 1]);
    // In rows, and from behind them on, where the copy continues with itself.
    assert_eq!([4, 9].map(|start| text.n_copied(start, 6)), [0, 6]);
    assert_eq!(text.continuation(9, 6), tokens(&[5, 1, 2, 3, 5, 1]));
    let (cheap, fixed) = (StepCost::default(), Speculation::Fixed(3));
    let drafted = |prompt: &[TokenId]| {
        let mut drafter = Drafter::new(fixed, &[], prompt).unwrap();
        draft(&mut drafter, &context(&cheap), &[])
    };
    assert_eq!(drafted(&prompt), tokens(&[4]));
    // The answer begins like what stands before the picture.
    let at_picture = [&tokens(&[1, 2, 3])[..], &rows, &tokens(&[5, 1, 2, 3])].concat();
    assert!(drafted(&at_picture).is_empty());
}

proptest! {
    #[test]
    fn what_is_found_is_what_looking_everywhere_finds(
        ids in prop::collection::vec(0..4_u32, 0..60),
        split in 0..60_usize,
    ) {
        // Read in two parts, with a look in between.
        let (one, other) = ids.split_at(split.min(ids.len()));
        let mut text = lookup(one);
        let _ = text.find();
        other.iter().for_each(|id| text.push(TokenId(*id)));
        let n = ids.len();
        let in_common = |end: usize| {
            (0..=end).take_while(|k| ids[end - k] == ids[n - 1 - k]).count()
        };
        let mut best: Option<(usize, usize)> = None;
        // No more places than are looked at.
        for end in (0..n.saturating_sub(1)).rev().filter(|end| in_common(*end) >= 3).take(32) {
            if best.is_none_or(|best| best.0 < in_common(end)) {
                best = Some((in_common(end), end + 1));
            }
        }
        prop_assert_eq!(text.find().map(|text| (text.n_common, text.start)), best);
    }
}

/// Steps of which another row costs this part of the first.
fn step_cost(per_row: f64) -> StepCost {
    let mut step_cost = StepCost::default();
    for rows in 1..=32 {
        for _ in 0..2 {
            let seconds = 0.01 * (1.0 + per_row * (rows - 1) as f64);
            step_cost.record(rows, Duration::from_secs_f64(seconds), rows > 1);
        }
    }
    step_cost
}

#[test]
fn the_cost_of_a_step_is_measured_from_the_second_on_and_interpolated() {
    let near = |one: f64, other: f64| (one - other).abs() < 1e-9;
    let mut step_cost = StepCost::default();
    assert!(near(step_cost.of(1), 1.0) && near(step_cost.of(6), 2.0));
    step_cost.record(1, Duration::from_secs(100), false);
    step_cost.record(1, Duration::from_secs(2), false);
    assert!(near(step_cost.of(1), 2.0) && near(step_cost.of(6), 4.0));
    step_cost.record(5, Duration::from_secs(100), false);
    step_cost.record(5, Duration::from_secs(6), false);
    assert!(near(step_cost.of(5), 6.0) && near(step_cost.of(3), 4.0));
    // Of the next ones the least, then all.
    step_cost.record(1, Duration::from_secs(3), false);
    assert!(near(step_cost.of(1), 2.0));
    step_cost.record(1, Duration::from_secs(1), false);
    assert!(near(step_cost.of(1), 1.0));
    step_cost.record(1, Duration::from_secs(2), false);
    assert!(near(step_cost.of(1), 1.2));
    // After a step with a draft, one without takes longer than after others.
    step_cost.record(9, Duration::from_secs(9), true);
    step_cost.record(1, Duration::from_secs(2), false);
    assert!(near(step_cost.of(1), 1.2));
    step_cost.record(1, Duration::from_secs(2), false);
    assert!(near(step_cost.of(1), 1.36));
    step_cost.record(1000, Duration::from_secs(1), false);
}

fn context(step_cost: &StepCost) -> DraftContext<'_> {
    DraftContext { step_cost, rows: 1, n_others: 0, max_draft: 100, reevaluates: true, mtp: None }
}

/// The draft where MTP drafts nothing.
fn draft(drafter: &mut Drafter, at: &DraftContext<'_>, forced: &[TokenId]) -> Vec<TokenId> {
    match drafter.draft(at, forced) {
        Draft::Tokens(draft) => draft,
        draft => panic!("{draft:?}"),
    }
}

/// A text of four tokens again and again.
fn drafter(drafts: Speculation) -> Drafter {
    Drafter::new(drafts, &[], &tokens(&[1, 2, 3, 4].repeat(20))).unwrap()
}

#[test]
fn accepted_drafts_grow_to_the_limit() {
    let (step_cost, mut drafter) = (step_cost(0.1), drafter(Speculation::Auto));
    let mut lens = Vec::new();
    for _ in 0..20 {
        let draft = draft(&mut drafter, &context(&step_cost), &[]);
        let want: Vec<u32> = [1, 2, 3, 4].into_iter().cycle().take(draft.len()).collect();
        assert_eq!(draft, tokens(&want));
        drafter.record(draft.len());
        lens.push(draft.len());
    }
    assert!(lens[0] > 0 && lens.is_sorted(), "{lens:?}");
    assert_eq!(lens[19], MAX_DRAFT);
    let n: usize = lens.iter().sum();
    assert_eq!(drafter.stats(), SpeculationStats { drafted: n as u64, accepted: n as u64 });
}

#[test]
fn rejected_drafts_stop_and_are_explored_with_one_token() {
    let (step_cost, mut drafter) = (step_cost(0.3), drafter(Speculation::Auto));
    let mut lens = Vec::new();
    for _ in 0..1000 {
        lens.push(draft(&mut drafter, &context(&step_cost), &[]).len());
        drafter.record(0);
    }
    let n_first = lens.iter().take_while(|len| **len > 0).count();
    assert!((1..20).contains(&n_first), "{n_first}");
    let later: Vec<usize> = lens[n_first..].iter().copied().filter(|len| *len > 0).collect();
    assert!(later.iter().all(|n| *n == 1), "{later:?}");
    // After 64, 128, 256 and 512 steps.
    assert_eq!(later.len(), 4 * N_EXPLORED, "{later:?}");
}

#[test]
fn nothing_is_drafted_where_rows_cost_as_much_as_steps() {
    let (dear, mut drafter) = (step_cost(1.0), drafter(Speculation::Auto));
    let n = (0..EXPLORE_AFTER[0])
        .filter(|_| !draft(&mut drafter, &context(&dear), &[]).is_empty())
        .count();
    assert_eq!(n, 0);
    // Right tokens before a wrong one that are evaluated again cost something, and before the
    // first one there are none.
    let (cheap, mut drafter) = (step_cost(0.4), self::drafter(Speculation::Auto));
    let rates = |acceptance: &[f64]| {
        [true, false].map(|reevaluates| {
            tokens_per_second(acceptance, 0.0, &DraftContext { reevaluates, ..context(&cheap) })
        })
    };
    let [again, not] = rates(&[0.5, 0.5]);
    assert!(again < not);
    let [again, not] = rates(&[0.5]);
    assert!((again - not).abs() < 1e-9);
    // With other answers, whose tokens would come later, less is worth it than alone.
    let alone = draft(&mut drafter, &context(&cheap), &[]).len();
    let among_others = DraftContext { n_others: 20, rows: 21, ..context(&cheap) };
    assert!(alone > 0 && draft(&mut drafter, &among_others, &[]).len() <= alone);
}

#[test]
fn a_fixed_draft_has_its_length_or_what_there_is_room_for() {
    let step_cost = step_cost(1.0);
    let mut fixed = drafter(Speculation::Fixed(5));
    assert_eq!(draft(&mut fixed, &context(&step_cost), &[]), tokens(&[1, 2, 3, 4, 1]));
    assert_eq!(
        draft(&mut fixed, &DraftContext { max_draft: 2, ..context(&step_cost) }, &[]).len(),
        2
    );
    assert!(
        draft(&mut fixed, &DraftContext { max_draft: 0, ..context(&step_cost) }, &[]).is_empty()
    );
    fixed.record(3);
    assert_eq!(fixed.stats(), SpeculationStats::default());
    draft(&mut fixed, &context(&step_cost), &[]);
    fixed.discard();
    fixed.record(3);
    assert_eq!(fixed.stats(), SpeculationStats::default());
    assert!(Drafter::new(Speculation::Off, &[], &[]).is_none());
    assert!(Drafter::new(Speculation::Fixed(0), &[], &[]).is_none());
    let mut unknown = Drafter::new(Speculation::Fixed(5), &[], &tokens(&[1, 2, 3])).unwrap();
    assert!(draft(&mut unknown, &context(&step_cost), &[]).is_empty());
    assert!(CLASSES.is_sorted_by(|one, other| one.0 < other.0 && one.1 < other.1));
}

#[test]
fn the_expected_text_is_drafted_from_its_beginning_and_wherever_it_occurs() {
    let step_cost = step_cost(0.1);
    let expected: Vec<u32> = (10..40).collect();
    let begin = |said: &[u32]| {
        let text = tokens(&[1, 2, 3]);
        let mut drafter = Drafter::new(Speculation::Auto, &tokens(&expected), &text).unwrap();
        said.iter().for_each(|id| drafter.push(TokenId(*id)));
        draft(&mut drafter, &context(&step_cost), &[])
    };
    assert!(begin(&[]).is_empty() && begin(&[7]).is_empty() && begin(&[10, 12]).is_empty());
    for n in 1..6 {
        let draft = begin(&expected[..n]);
        assert!(!draft.is_empty() && tokens(&expected)[n..].starts_with(&draft), "{n}: {draft:?}");
    }
    let draft = begin(&[7, 20, 21, 22]);
    assert!(!draft.is_empty() && tokens(&expected)[13..].starts_with(&draft), "{draft:?}");
}

#[test]
fn forced_tokens_come_before_copies() {
    let (step_cost, mut drafter) = (step_cost(0.3), drafter(Speculation::Auto));
    let forced = tokens(&[7, 8, 9]);
    assert_eq!(draft(&mut drafter, &context(&step_cost), &forced), forced);
    drafter.record(3);
    let one = DraftContext { max_draft: 1, ..context(&step_cost) };
    assert_eq!(draft(&mut drafter, &one, &forced), forced[..1]);
    // Copies keep their own rate.
    (0..20).for_each(|_| {
        draft(&mut drafter, &context(&step_cost), &forced);
        drafter.record(0);
    });
    assert!(draft(&mut drafter, &context(&step_cost), &forced).is_empty());
    assert!(!draft(&mut drafter, &context(&step_cost), &[]).is_empty());
}

/// Of a token that takes this long.
fn mtp_rates(seconds: f64) -> MtpRates {
    MtpRates { seconds, acceptance: [0.6; MAX_MTP_DRAFT] }
}

/// Nothing occurred before.
fn new_text() -> Drafter {
    Drafter::new(Speculation::Auto, &[], &tokens(&[1, 2, 3, 4, 5])).unwrap()
}

#[test]
fn mtp_drafts_where_no_copy_is_found_and_it_pays() {
    let step_cost = step_cost(0.1);
    let cheap = DraftContext { mtp: Some(mtp_rates(0.0005)), ..context(&step_cost) };
    let Draft::Mtp(n) = new_text().draft(&cheap, &[]) else { panic!("it would pay") };
    assert!((1..=MAX_MTP_DRAFT).contains(&n), "{n}");
    // A draft that takes as long as a step does not pay.
    let dear = DraftContext { mtp: Some(mtp_rates(0.01)), ..context(&step_cost) };
    assert_eq!(new_text().draft(&dear, &[]), Draft::Tokens(Vec::new()));
    // Nor one that is never accepted.
    let (mut drafter, step_cost) = (new_text(), self::step_cost(0.3));
    let cheap = DraftContext { step_cost: &step_cost, ..cheap };
    let wrong = (0..100).filter(|_| {
        let is_mtp = matches!(drafter.draft(&cheap, &[]), Draft::Mtp(_));
        drafter.record(0);
        is_mtp
    });
    let n_wrong = wrong.count();
    assert!((1..20).contains(&n_wrong), "{n_wrong}");
    // A copy, which takes no time, comes before it, and forced tokens always.
    let mut drafter = self::drafter(Speculation::Auto);
    assert!(matches!(drafter.draft(&cheap, &[]), Draft::Tokens(tokens) if !tokens.is_empty()));
    assert!(
        matches!(new_text().draft(&cheap, &tokens(&[9])), Draft::Tokens(tokens) if tokens.len() == 1)
    );
}

#[test]
fn only_tokens_that_mtp_drafted_are_counted() {
    let step_cost = step_cost(0.1);
    let at = DraftContext { mtp: Some(mtp_rates(0.0005)), ..context(&step_cost) };
    let fixed = |n| Drafter::new(Speculation::Fixed(n), &[], &tokens(&[1, 2, 3])).unwrap();
    assert_eq!(fixed(9).draft(&at, &[]), Draft::Mtp(MAX_MTP_DRAFT));
    assert_eq!(fixed(2).draft(&DraftContext { max_draft: 1, ..at }, &[]), Draft::Mtp(1));
    let mut drafter = fixed(3);
    drafter.draft(&at, &[]);
    drafter.set_mtp_len(1);
    assert_eq!(drafter.record(1), Some(1));
    assert_eq!(drafter.stats(), SpeculationStats { drafted: 1, accepted: 1 });
    drafter.draft(&at, &[]);
    drafter.set_mtp_len(0);
    assert_eq!(drafter.record(0), None);
    let mut found = self::drafter(Speculation::Auto);
    assert!(!draft(&mut found, &context(&step_cost), &[]).is_empty());
    assert_eq!(found.record(1), None);
    assert_eq!(drafter.stats(), SpeculationStats { drafted: 1, accepted: 1 });
}

#[test]
fn the_time_of_mtp_is_measured_from_the_second_draft_on() {
    let near = |one: f64, other: f64| (one - other).abs() < 1e-9;
    let mut step_cost = step_cost(0.1);
    let unknown = step_cost.mtp();
    assert!(unknown > 0.0 && unknown < step_cost.of(1));
    step_cost.record_mtp(1, Duration::from_secs(100));
    assert!(near(step_cost.mtp(), unknown));
    step_cost.record_mtp(2, Duration::from_secs(4));
    assert!(near(step_cost.mtp(), 2.0));
    step_cost.record_mtp(0, Duration::from_secs(100));
    step_cost.record_mtp(1, Duration::from_secs(3));
    assert!(near(step_cost.mtp(), 2.0));
}

#[test]
fn a_new_text_begins_with_the_rates_of_others() {
    let mut rates = SpeculationRates::default();
    rates.step_cost = step_cost(0.3);
    let is_worth_it = |rates: &SpeculationRates| {
        let mtp = Some(MtpRates { seconds: 0.0005, ..rates.mtp() });
        let at = DraftContext { mtp, ..context(&rates.step_cost) };
        matches!(new_text().draft(&at, &[]), Draft::Mtp(_))
    };
    assert!(is_worth_it(&rates));
    (0..20).for_each(|_| rates.record_mtp(1, 0));
    assert!(!is_worth_it(&rates));
    (0..20).for_each(|_| rates.record_mtp(2, 2));
    assert!(is_worth_it(&rates));
    // Where only the first is accepted, one is drafted.
    (0..20).for_each(|_| rates.record_mtp(3, 1));
    let mtp = Some(MtpRates { seconds: 0.0005, ..rates.mtp() });
    let at = DraftContext { mtp, ..context(&rates.step_cost) };
    assert_eq!(new_text().draft(&at, &[]), Draft::Mtp(1));
}
