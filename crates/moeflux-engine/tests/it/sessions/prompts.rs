//! Prompts that begin like earlier ones, in this session, in another one, or in
//! one of a process that has ended.

use std::fs;
use std::path::{Path, PathBuf};

use moeflux_engine::{Engine, EngineOptions, Prompt, PromptCacheOptions, Session, TokenId};

use super::{Subject, bits, families};

fn cached(dir: &Path, max_bytes: u64) -> EngineOptions {
    let prompt_cache =
        Some(PromptCacheOptions { dir: dir.to_path_buf(), max_bytes, min_tokens: 1 });
    EngineOptions::default().prompt_cache(prompt_cache)
}

/// A fresh engine on the same directory, as after a restart.
fn reopened(subject: &Subject, options: &EngineOptions) -> Session {
    let options = options.clone().threads(Some(1));
    Engine::open(&subject.dir, &options).unwrap().session()
}

/// Reads a prompt of the first `n` tokens, and checks how many were known.
#[track_caller]
fn check_read(
    subject: &Subject,
    session: &mut Session,
    n: usize,
    checkpoints: &[usize],
    known: usize,
) {
    let prompt = Prompt { tokens: &subject.tokens[..n], checkpoints, ..Prompt::default() };
    let mut progress = Vec::new();
    let read = session.eval_conversation(prompt, &mut |n| progress.push(n)).unwrap();
    assert_eq!(read.n_reused, known, "{}", subject.dir.display());
    assert!(bits(&read.logits) == subject.want[n - 1], "{}", subject.dir.display());
    assert_eq!(progress.last(), Some(&n));
    assert_eq!(session.tokens(), &subject.tokens[..n]);
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn a_session_evaluates_only_what_it_does_not_know() {
    for family in families() {
        let subject = Subject::open(family, &EngineOptions::default());
        let is_recurrent = subject.engine.shape().is_recurrent();
        let mut session = subject.engine.session();
        check_read(&subject, &mut session, 12, &[10], 0);
        check_read(&subject, &mut session, 20, &[], 12);
        // The same again, and a shorter one: from the mark on.
        check_read(&subject, &mut session, 20, &[], if is_recurrent { 10 } else { 19 });
        check_read(&subject, &mut session, 12, &[], if is_recurrent { 10 } else { 11 });
        // Another answer, behind the mark.
        let other = u32::from(subject.tokens[12].0 == 0);
        session.eval_prompt(&[other, 3, 4].map(TokenId)).unwrap();
        check_read(&subject, &mut session, 18, &[], if is_recurrent { 10 } else { 12 });
        check_read(&subject, &mut session, 5, &[], if is_recurrent { 0 } else { 4 });
        subject.check_rest(&mut session, 5);
    }
}

#[test]
fn a_prompt_survives_in_the_cache() {
    for family in families() {
        let dir = tempfile::tempdir().unwrap();
        let options = cached(dir.path(), 1 << 30);
        let subject = Subject::open(family, &options);
        let is_recurrent = subject.engine.shape().is_recurrent();
        let mut session = subject.engine.session();
        check_read(&subject, &mut session, 12, &[4, 10], 0);
        session.store_prefix(4).unwrap();
        session.store().unwrap();
        session.store().unwrap();
        assert_eq!(files(dir.path()).len(), if is_recurrent { 2 } else { 1 });
        check_read(&subject, &mut reopened(&subject, &options), 20, &[], 12);
        check_read(
            &subject,
            &mut reopened(&subject, &options),
            12,
            &[],
            if is_recurrent { 10 } else { 11 },
        );
        check_read(
            &subject,
            &mut reopened(&subject, &options),
            6,
            &[],
            if is_recurrent { 4 } else { 5 },
        );
        // The next turn takes the place of this one, not of the shared beginning.
        check_read(&subject, &mut session, 16, &[14], 12);
        session.store().unwrap();
        assert_eq!(files(dir.path()).len(), if is_recurrent { 2 } else { 1 });
        let mut other = reopened(&subject, &options);
        check_read(&subject, &mut other, 15, &[], 14);
        subject.check_rest(&mut other, 15);
        // Other arithmetic, other states.
        let exact = options.clone().kv_type(moeflux_engine::KvType::Bf16);
        assert_eq!(reopened(&subject, &exact).match_prefix(&subject.tokens).unwrap(), 0);
    }
}

#[test]
fn damaged_files_of_the_cache_are_removed_and_reported() {
    for family in families() {
        let dir = tempfile::tempdir().unwrap();
        let options = cached(dir.path(), 1 << 30);
        let subject = Subject::open(family, &options);
        let mut session = subject.engine.session();
        for damage in [0, 1, 2] {
            check_read(&subject, &mut session, 12, &[10], 0);
            session.store().unwrap();
            let [file] = &files(dir.path())[..] else { panic!("one file") };
            let mut bytes = fs::read(file).unwrap();
            match damage {
                0 => *bytes.last_mut().unwrap() ^= 1,
                1 => bytes.truncate(bytes.len() / 2),
                _ => bytes.clear(),
            }
            fs::write(file, bytes).unwrap();
            let engine = Engine::open(&subject.dir, &options).unwrap();
            check_read(&subject, &mut engine.session(), 14, &[], 0);
            let warnings = engine.take_warnings();
            assert!(warnings.len() == 1 && warnings[0].contains("removed"), "{warnings:?}");
            assert!(files(dir.path()).is_empty() && engine.take_warnings().is_empty());
            session.clear();
        }
        // Strangers' files are left alone.
        fs::write(dir.path().join("notes.txt"), "mine").unwrap();
        check_read(&subject, &mut session, 12, &[], 0);
        session.store().unwrap();
        assert_eq!(files(dir.path()).len(), 2);
    }
}

#[test]
fn the_cache_stays_within_its_bytes_and_the_oldest_leave() {
    for family in families() {
        let dir = tempfile::tempdir().unwrap();
        let subject = Subject::open(family, &cached(dir.path(), 1 << 30));
        let mut session = subject.engine.session();
        session.eval_prompt(&subject.tokens[..5]).unwrap();
        session.store().unwrap();
        let size = files(dir.path())[0].metadata().unwrap().len();
        fs::remove_file(&files(dir.path())[0]).unwrap();

        let options = cached(dir.path(), size * 2 + size / 2);
        let engine = Engine::open(&subject.dir, &options).unwrap();
        let store = |first: usize| {
            let mut session = engine.session();
            session.eval_prompt(&subject.tokens[first..first + 5]).unwrap();
            session.store().unwrap();
            let newest = files(dir.path())
                .into_iter()
                .max_by_key(|file| file.metadata().unwrap().modified().unwrap());
            // Times of files are coarse.
            std::thread::sleep(std::time::Duration::from_millis(20));
            newest.unwrap()
        };
        let [first, second, third] = [0, 1, 2].map(store);
        assert_eq!(files(dir.path()).len(), 2);
        assert!(!first.exists() && second.exists() && third.exists());
        let small = Engine::open(&subject.dir, &cached(dir.path(), size / 2)).unwrap();
        let mut session = small.session();
        session.eval_prompt(&subject.tokens[3..8]).unwrap();
        session.store().unwrap();
        let warnings = small.take_warnings();
        assert!(warnings.len() == 1 && warnings[0].contains("prompt_cache_size"), "{warnings:?}");
    }
}
