//! Where guesses are found, how long they are, and what steps take.

use std::time::Duration;

use moeflux_core::TokenId;
use proptest::prelude::*;

use super::lookup::{Found, Lookup};
use super::{
    CLASSES, DraftCounts, Drafter, Drafts, Foresight, Guess, Learned, MAX_GUESS, Occasion, Pace,
    TRIED, TRIED_BEHIND, rate,
};
use crate::draft::limits::MOST_FORESEEN;

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
        other.iter().for_each(|it| text.push(TokenId(*it)));
        let n = ids.len();
        let in_common = |end: usize| {
            (0..=end).take_while(|k| ids[end - k] == ids[n - 1 - k]).count()
        };
        let mut best: Option<(usize, usize)> = None;
        // No more places than are looked at.
        for end in (0..n.saturating_sub(1)).rev().filter(|it| in_common(*it) >= 3).take(32) {
            if best.is_none_or(|it| it.0 < in_common(end)) {
                best = Some((in_common(end), end + 1));
            }
        }
        prop_assert_eq!(text.find().map(|it| (it.n_common, it.start)), best);
    }
}

/// Steps of which another row costs so much of the first.
fn pace(per_row: f64) -> Pace {
    let mut pace = Pace::default();
    for rows in 1..=32 {
        for _ in 0..2 {
            let seconds = 0.01 * (1.0 + per_row * (rows - 1) as f64);
            pace.note(rows, Duration::from_secs_f64(seconds), rows > 1);
        }
    }
    pace
}

#[test]
fn a_step_takes_what_it_took_but_for_the_first_and_what_lies_between() {
    let near = |one: f64, other: f64| (one - other).abs() < 1e-9;
    let mut pace = Pace::default();
    assert!(near(pace.of(1), 1.0) && near(pace.of(6), 2.0));
    pace.note(1, Duration::from_secs(100), false);
    pace.note(1, Duration::from_secs(2), false);
    assert!(near(pace.of(1), 2.0) && near(pace.of(6), 4.0));
    pace.note(5, Duration::from_secs(100), false);
    pace.note(5, Duration::from_secs(6), false);
    assert!(near(pace.of(5), 6.0) && near(pace.of(3), 4.0));
    // Of the next ones the least, then all.
    pace.note(1, Duration::from_secs(3), false);
    assert!(near(pace.of(1), 2.0));
    pace.note(1, Duration::from_secs(1), false);
    assert!(near(pace.of(1), 1.0));
    pace.note(1, Duration::from_secs(2), false);
    assert!(near(pace.of(1), 1.2));
    // Behind a guess a step without takes longer than it would behind others.
    pace.note(9, Duration::from_secs(9), true);
    pace.note(1, Duration::from_secs(2), false);
    assert!(near(pace.of(1), 1.2));
    pace.note(1, Duration::from_secs(2), false);
    assert!(near(pace.of(1), 1.36));
    pace.note(1000, Duration::from_secs(1), false);
}

fn occasion(pace: &Pace) -> Occasion<'_> {
    Occasion { pace, rows: 1, n_others: 0, room: 100, again: true, foresight: None }
}

/// What is guessed where nothing can be foreseen.
fn guess(drafter: &mut Drafter, at: &Occasion<'_>, forced: &[TokenId]) -> Vec<TokenId> {
    match drafter.guess(at, forced) {
        Guess::Known(guess) => guess,
        guess => panic!("{guess:?}"),
    }
}

/// A text of four tokens again and again.
fn drafter(drafts: Drafts) -> Drafter {
    Drafter::new(drafts, &[], &tokens(&[1, 2, 3, 4].repeat(20))).unwrap()
}

#[test]
fn right_guesses_grow_as_long_as_they_may_be() {
    let (pace, mut drafter) = (pace(0.1), drafter(Drafts::Auto));
    let mut lens = Vec::new();
    for _ in 0..20 {
        let guess = guess(&mut drafter, &occasion(&pace), &[]);
        let want: Vec<u32> = [1, 2, 3, 4].into_iter().cycle().take(guess.len()).collect();
        assert_eq!(guess, tokens(&want));
        drafter.judge(guess.len());
        lens.push(guess.len());
    }
    assert!(lens[0] > 0 && lens.is_sorted(), "{lens:?}");
    assert_eq!(lens[19], MAX_GUESS);
    let n: usize = lens.iter().sum();
    assert_eq!(drafter.counts(), DraftCounts { guessed: n as u64, right: n as u64 });
}

#[test]
fn wrong_guesses_stop_and_are_tried_again_with_one_token() {
    let (pace, mut drafter) = (pace(0.3), drafter(Drafts::Auto));
    let mut lens = Vec::new();
    for _ in 0..1000 {
        lens.push(guess(&mut drafter, &occasion(&pace), &[]).len());
        drafter.judge(0);
    }
    let n_first = lens.iter().take_while(|it| **it > 0).count();
    assert!((1..20).contains(&n_first), "{n_first}");
    let later: Vec<usize> = lens[n_first..].iter().copied().filter(|it| *it > 0).collect();
    assert!(later.iter().all(|it| *it == 1), "{later:?}");
    // Behind 64, 128, 256 and 512 places.
    assert_eq!(later.len(), 4 * TRIED, "{later:?}");
}

#[test]
fn rows_that_cost_as_much_as_steps_are_not_worth_guessing() {
    let (dear, mut drafter) = (pace(1.0), drafter(Drafts::Auto));
    let n = (0..TRIED_BEHIND[0])
        .filter(|_| !guess(&mut drafter, &occasion(&dear), &[]).is_empty())
        .count();
    assert_eq!(n, 0);
    // Right tokens before a wrong one that are evaluated again cost something, and before the
    // first one there are none.
    let (cheap, mut drafter) = (pace(0.4), self::drafter(Drafts::Auto));
    let rates = |chances: &[f64]| {
        [true, false].map(|again| rate(chances, 0.0, &Occasion { again, ..occasion(&cheap) }))
    };
    let [again, not] = rates(&[0.5, 0.5]);
    assert!(again < not);
    let [again, not] = rates(&[0.5]);
    assert!((again - not).abs() < 1e-9);
    // Beside other answers, whose tokens would come later, less is worth it than alone.
    let alone = guess(&mut drafter, &occasion(&cheap), &[]).len();
    let beside = Occasion { n_others: 20, rows: 21, ..occasion(&cheap) };
    assert!(alone > 0 && guess(&mut drafter, &beside, &[]).len() <= alone);
}

#[test]
fn as_many_are_guessed_as_was_said_and_there_is_room_for() {
    let pace = pace(1.0);
    let mut fixed = drafter(Drafts::Fixed(5));
    assert_eq!(guess(&mut fixed, &occasion(&pace), &[]), tokens(&[1, 2, 3, 4, 1]));
    assert_eq!(guess(&mut fixed, &Occasion { room: 2, ..occasion(&pace) }, &[]).len(), 2);
    assert!(guess(&mut fixed, &Occasion { room: 0, ..occasion(&pace) }, &[]).is_empty());
    // Nothing was asked of this one.
    fixed.judge(3);
    assert_eq!(fixed.counts(), DraftCounts::default());
    guess(&mut fixed, &occasion(&pace), &[]);
    fixed.forget();
    fixed.judge(3);
    assert_eq!(fixed.counts(), DraftCounts::default());
    assert!(Drafter::new(Drafts::Off, &[], &[]).is_none());
    assert!(Drafter::new(Drafts::Fixed(0), &[], &[]).is_none());
    let mut unknown = Drafter::new(Drafts::Fixed(5), &[], &tokens(&[1, 2, 3])).unwrap();
    assert!(guess(&mut unknown, &occasion(&pace), &[]).is_empty());
    assert!(CLASSES.is_sorted_by(|one, other| one.0 < other.0 && one.1 < other.1));
}

#[test]
fn what_is_expected_is_guessed_from_its_beginning_and_wherever_it_is_met() {
    let pace = pace(0.1);
    let expected: Vec<u32> = (10..40).collect();
    let begin = |said: &[u32]| {
        let text = tokens(&[1, 2, 3]);
        let mut drafter = Drafter::new(Drafts::Auto, &tokens(&expected), &text).unwrap();
        said.iter().for_each(|it| drafter.push(TokenId(*it)));
        guess(&mut drafter, &occasion(&pace), &[])
    };
    assert!(begin(&[]).is_empty() && begin(&[7]).is_empty() && begin(&[10, 12]).is_empty());
    for n in 1..6 {
        let guess = begin(&expected[..n]);
        assert!(!guess.is_empty() && tokens(&expected)[n..].starts_with(&guess), "{n}: {guess:?}");
    }
    let guess = begin(&[7, 20, 21, 22]);
    assert!(!guess.is_empty() && tokens(&expected)[13..].starts_with(&guess), "{guess:?}");
}

#[test]
fn what_is_forced_comes_before_what_is_found() {
    let (pace, mut drafter) = (pace(0.3), drafter(Drafts::Auto));
    let forced = tokens(&[7, 8, 9]);
    assert_eq!(guess(&mut drafter, &occasion(&pace), &forced), forced);
    drafter.judge(3);
    let one = Occasion { room: 1, ..occasion(&pace) };
    assert_eq!(guess(&mut drafter, &one, &forced), forced[..1]);
    // What is found keeps its own odds.
    (0..20).for_each(|_| {
        guess(&mut drafter, &occasion(&pace), &forced);
        drafter.judge(0);
    });
    assert!(guess(&mut drafter, &occasion(&pace), &forced).is_empty());
    assert!(!guess(&mut drafter, &occasion(&pace), &[]).is_empty());
}

/// Of a token that takes so long.
fn foresight(seconds: f64) -> Foresight {
    Foresight { seconds, chances: [0.6; MOST_FORESEEN] }
}

/// Nothing occurred before.
fn new_text() -> Drafter {
    Drafter::new(Drafts::Auto, &[], &tokens(&[1, 2, 3, 4, 5])).unwrap()
}

#[test]
fn tokens_are_foreseen_where_nothing_is_found_and_it_pays() {
    let pace = pace(0.1);
    let cheap = Occasion { foresight: Some(foresight(0.0005)), ..occasion(&pace) };
    let Guess::Foresee(n) = new_text().guess(&cheap, &[]) else { panic!("it would pay") };
    assert!((1..=MOST_FORESEEN).contains(&n), "{n}");
    // What takes as long as a step does not.
    let dear = Occasion { foresight: Some(foresight(0.01)), ..occasion(&pace) };
    assert_eq!(new_text().guess(&dear, &[]), Guess::Known(Vec::new()));
    // Nor what is never right.
    let (mut drafter, pace) = (new_text(), self::pace(0.3));
    let cheap = Occasion { pace: &pace, ..cheap };
    let wrong = (0..100).filter(|_| {
        let is_foreseen = matches!(drafter.guess(&cheap, &[]), Guess::Foresee(_));
        drafter.judge(0);
        is_foreseen
    });
    let n_wrong = wrong.count();
    assert!((1..20).contains(&n_wrong), "{n_wrong}");
    // What is found for nothing goes before it, what is forced always.
    let mut drafter = self::drafter(Drafts::Auto);
    assert!(matches!(drafter.guess(&cheap, &[]), Guess::Known(it) if !it.is_empty()));
    assert!(matches!(new_text().guess(&cheap, &tokens(&[9])), Guess::Known(it) if it.len() == 1));
}

#[test]
fn only_what_was_foreseen_is_judged() {
    let pace = pace(0.1);
    let at = Occasion { foresight: Some(foresight(0.0005)), ..occasion(&pace) };
    let fixed = |n| Drafter::new(Drafts::Fixed(n), &[], &tokens(&[1, 2, 3])).unwrap();
    assert_eq!(fixed(9).guess(&at, &[]), Guess::Foresee(MOST_FORESEEN));
    assert_eq!(fixed(2).guess(&Occasion { room: 1, ..at }, &[]), Guess::Foresee(1));
    let mut drafter = fixed(3);
    drafter.guess(&at, &[]);
    drafter.has_foreseen(1);
    assert_eq!(drafter.judge(1), Some(1));
    assert_eq!(drafter.counts(), DraftCounts { guessed: 1, right: 1 });
    drafter.guess(&at, &[]);
    drafter.has_foreseen(0);
    assert_eq!(drafter.judge(0), None);
    let mut found = self::drafter(Drafts::Auto);
    assert!(!guess(&mut found, &occasion(&pace), &[]).is_empty());
    assert_eq!(found.judge(1), None);
    assert_eq!(drafter.counts(), DraftCounts { guessed: 1, right: 1 });
}

#[test]
fn foresight_takes_what_it_took_but_for_the_first_time() {
    let near = |one: f64, other: f64| (one - other).abs() < 1e-9;
    let mut pace = pace(0.1);
    let unknown = pace.foresight();
    assert!(unknown > 0.0 && unknown < pace.of(1));
    pace.note_foresight(1, Duration::from_secs(100));
    assert!(near(pace.foresight(), unknown));
    pace.note_foresight(2, Duration::from_secs(4));
    assert!(near(pace.foresight(), 2.0));
    pace.note_foresight(0, Duration::from_secs(100));
    pace.note_foresight(1, Duration::from_secs(3));
    assert!(near(pace.foresight(), 2.0));
}

#[test]
fn a_new_text_begins_with_what_was_learned_of_others() {
    let mut learned = Learned::default();
    learned.pace = pace(0.3);
    let is_worth_it = |learned: &Learned| {
        let foresight = Some(Foresight { seconds: 0.0005, ..learned.foresight() });
        let at = Occasion { foresight, ..occasion(&learned.pace) };
        matches!(new_text().guess(&at, &[]), Guess::Foresee(_))
    };
    assert!(is_worth_it(&learned));
    (0..20).for_each(|_| learned.note_foreseen(1, 0));
    assert!(!is_worth_it(&learned));
    (0..20).for_each(|_| learned.note_foreseen(2, 2));
    assert!(is_worth_it(&learned));
    // Where only the first one is right one is foreseen.
    (0..20).for_each(|_| learned.note_foreseen(3, 1));
    let foresight = Some(Foresight { seconds: 0.0005, ..learned.foresight() });
    let at = Occasion { foresight, ..occasion(&learned.pace) };
    assert_eq!(new_text().guess(&at, &[]), Guess::Foresee(1));
}
