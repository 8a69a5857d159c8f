//! What the cache holds, and what goes with a model that is removed from it.

use std::fs;
use std::path::{Path, PathBuf};

use moeflux_hub::{HubEnv, HubError, removal, stored};

const OLD: &str = "1111111111111111111111111111111111111111";
const NEW: &str = "2222222222222222222222222222222222222222";

fn env(cache: &Path) -> HubEnv {
    let mut env = HubEnv::from_lookup(|_| None);
    env.cache_dir = cache.to_owned();
    env
}

/// A cache as the Hub's tools leave it.
struct Cache(tempfile::TempDir);

impl Cache {
    fn new() -> Cache {
        Cache(tempfile::tempdir().unwrap())
    }

    fn root(&self) -> PathBuf {
        self.0.path().join("models--org--name")
    }

    fn env(&self) -> HubEnv {
        env(self.0.path())
    }

    /// Writes a content under its name, and a link to it in a snapshot.
    #[track_caller]
    fn add(&self, commit: &str, file: &str, content: &str) {
        let blob = self.root().join("blobs").join(format!("blob-of-{content}"));
        fs::create_dir_all(blob.parent().unwrap()).unwrap();
        fs::write(&blob, content).unwrap();
        let link = self.root().join("snapshots").join(commit).join(file);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        let up = "../".repeat(2 + file.matches('/').count());
        #[cfg(unix)]
        std::os::unix::fs::symlink(format!("{up}blobs/blob-of-{content}"), link).unwrap();
        #[cfg(not(unix))]
        fs::hard_link(&blob, link).unwrap();
        let _ = up;
    }

    fn refer(&self, name: &str, commit: &str) {
        let path = self.root().join("refs").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, commit).unwrap();
    }

    fn blobs(&self) -> Vec<String> {
        let entries = fs::read_dir(self.root().join("blobs")).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn names(&self) -> Vec<String> {
        let all = stored(&self.env()).unwrap();
        all.into_iter().flat_map(|found| found.models).map(|model| model.name).collect()
    }
}

/// Two revisions that share a file.
fn two_revisions() -> Cache {
    let cache = Cache::new();
    for (commit, config, weights) in [(OLD, "{}", "old weights"), (NEW, "{}", "new weights")] {
        cache.add(commit, "config.json", config);
        cache.add(commit, "model.safetensors", weights);
    }
    cache.refer("v1", OLD);
    cache.refer("main", NEW);
    cache
}

#[test]
fn a_cache_is_listed_by_models_that_are_whole() {
    let cache = two_revisions();
    assert_eq!(cache.names(), ["org/name@v1", "org/name"]);
    cache.add(NEW, "m-Q4_K_M.gguf", "GGUF 4");
    cache.add(NEW, "Q8_0/m-Q8_0-00001-of-00002.gguf", "GGUF 8");
    assert_eq!(cache.names(), ["org/name@v1", "org/name", "org/name:Q4_K_M"]);
    cache.add(NEW, "Q8_0/m-Q8_0-00002-of-00002.gguf", "GGUF 8, the rest");
    fs::write(cache.root().join("blobs/x.incomplete"), "12345").unwrap();
    let all = stored(&cache.env()).unwrap();
    let [found] = &all[..] else { panic!("{all:?}") };
    assert_eq!((found.repo.as_str(), found.unfinished_bytes), ("org/name", 5));
    let contents =
        ["{}", "old weights", "new weights", "GGUF 4", "GGUF 8", "GGUF 8, the rest", "12345"];
    assert_eq!(found.bytes, contents.iter().map(|text| text.len() as u64).sum::<u64>());
    assert!(found.last_used.is_some());
    let split = found.models.iter().find(|model| model.name == "org/name:Q8_0").unwrap();
    assert_eq!(split.bytes, ("GGUF 8".len() + "GGUF 8, the rest".len()) as u64);
    assert!(split.path.ends_with("Q8_0/m-Q8_0-00001-of-00002.gguf") && split.path.is_file());
    assert_eq!(stored(&env(Path::new("/no/such/cache"))).unwrap(), []);
}

#[test]
fn contents_that_another_revision_has_stay() {
    let cache = two_revisions();
    let found = removal("org/name@v1", &cache.env()).unwrap();
    assert_eq!((found.name.as_str(), found.bytes, found.n_files), ("org/name@v1", 11, 1));
    found.run().unwrap();
    assert_eq!(cache.blobs(), ["blob-of-new weights", "blob-of-{}"]);
    assert_eq!(cache.names(), ["org/name"]);
    let root = cache.root();
    assert!(!root.join("refs/v1").exists() && root.join("refs/main").exists());
    assert!(!root.join("snapshots").join(OLD).exists());
    // With the last revision all of it goes.
    removal("org/name@main", &cache.env()).unwrap().run().unwrap();
    assert!(!root.exists());
}

#[test]
fn one_gguf_file_is_removed_with_all_of_its_parts() {
    let cache = two_revisions();
    cache.add(NEW, "m-Q4_K_M.gguf", "GGUF 4");
    cache.add(NEW, "m-UD-Q5_K_M.gguf", "GGUF 5");
    cache.add(NEW, "Q8_0/m-Q8_0-00001-of-00002.gguf", "GGUF 8");
    cache.add(NEW, "Q8_0/m-Q8_0-00002-of-00002.gguf", "GGUF 8, the rest");
    let found = removal("org/name:q8_0", &cache.env()).unwrap();
    assert_eq!((found.name.as_str(), found.n_files), ("org/name:Q8_0", 2));
    found.run().unwrap();
    assert!(!cache.root().join("snapshots").join(NEW).join("Q8_0").exists());
    assert_eq!(cache.names(), ["org/name@v1", "org/name", "org/name:Q4_K_M", "org/name:UD-Q5_K_M"]);
    // Nothing is removed that only resembles what is named.
    for (tag, words) in
        [("Q5_K_M", "org/name:UD-Q5_K_M"), ("Q4", "org/name:Q4_K_M"), ("Q2_K", "it has")]
    {
        let err = removal(&format!("org/name:{tag}"), &cache.env()).unwrap_err().to_string();
        assert!(err.contains(words), "{tag}: {err}");
    }
    // A set of which parts are missing can be removed.
    cache.add(NEW, "m-Q6_K-00002-of-00002.gguf", "GGUF 6");
    removal("org/name:Q6_K", &cache.env()).unwrap().run().unwrap();
    assert!(!cache.blobs().contains(&"blob-of-GGUF 6".to_owned()));
}

#[test]
fn an_unfinished_download_goes_with_the_whole_repository_alone() {
    for name in ["org/name:Q4_K_M", "org/name@main"] {
        let cache = Cache::new();
        cache.add(NEW, "m-Q4_K_M.gguf", "GGUF 4");
        cache.refer("main", NEW);
        cache.refer("v2", OLD);
        fs::write(cache.root().join("blobs/x.incomplete"), "12345").unwrap();
        let found = removal(name, &cache.env()).unwrap();
        assert_eq!((found.bytes, found.n_files), (6, 1), "{name}");
        found.run().unwrap();
        assert_eq!(cache.blobs(), ["x.incomplete"], "{name}");
        // So does the revision that it may be of.
        assert!(cache.root().join("refs/v2").exists() && !cache.root().join("refs/main").exists());
        let found = removal("org/name", &cache.env()).unwrap();
        assert_eq!(found.bytes, 5);
        found.run().unwrap();
        assert!(!cache.root().exists());
    }
}

#[test]
fn what_is_not_there_or_in_use_is_refused() {
    let cache = two_revisions();
    for name in ["org/other", "org/name@v2"] {
        let err = removal(name, &cache.env()).unwrap_err();
        assert!(matches!(err, HubError::NotStored { .. }), "{name}: {err}");
    }
    for (name, lock) in [("moeflux.lock", "moeflux.lock"), ("0a1b.lock", "0a1b.lock")] {
        let dir = cache.0.path().join(".locks/models--org--name");
        fs::create_dir_all(&dir).unwrap();
        let held = fs::File::create(dir.join(name)).unwrap();
        held.lock().unwrap();
        let err = removal("org/name", &cache.env()).unwrap_err();
        assert!(matches!(&err, HubError::Busy { lock: path, .. } if path.ends_with(lock)), "{err}");
    }
    // No download runs while something is removed.
    let found = removal("org/name", &cache.env()).unwrap();
    let lock = cache.0.path().join(".locks/models--org--name/moeflux.lock");
    assert!(fs::File::open(&lock).unwrap().try_lock().is_err());
    drop(found);
    assert!(fs::File::open(&lock).unwrap().try_lock().is_ok() && cache.blobs().len() == 3);
}

#[cfg(unix)]
#[test]
fn links_lead_nowhere_outside() {
    let cache = two_revisions();
    let outside = tempfile::tempdir().unwrap();
    let precious = outside.path().join("precious");
    fs::write(&precious, "keep me").unwrap();
    let snapshot = cache.root().join("snapshots").join(NEW);
    std::os::unix::fs::symlink(&precious, snapshot.join("extra.safetensors")).unwrap();
    std::os::unix::fs::symlink(outside.path(), snapshot.join("folder")).unwrap();
    removal("org/name@main", &cache.env()).unwrap().run().unwrap();
    assert!(!snapshot.exists());
    removal("org/name", &cache.env()).unwrap().run().unwrap();
    assert_eq!(fs::read_to_string(&precious).unwrap(), "keep me");
    let moved = two_revisions();
    let blobs = moved.root().join("blobs");
    fs::rename(&blobs, outside.path().join("blobs")).unwrap();
    std::os::unix::fs::symlink(outside.path().join("blobs"), &blobs).unwrap();
    let err = removal("org/name", &moved.env()).unwrap_err();
    assert!(matches!(err, HubError::Elsewhere { .. }), "{err}");
    assert_eq!(fs::read_dir(outside.path().join("blobs")).unwrap().count(), 3);
}
