//! Which GGUF files of a repository make the model that is asked for.
//!
//! Repositories hold one model in a dozen sizes, each in one file or split into several, some in
//! folders of their own. The size is chosen by its name, as other tools do: `Q4_K_M` stands for the
//! file whose name ends with it.

use std::collections::BTreeMap;

use moeflux_core::gguf::{is_mmproj, preferred_mmproj};
use moeflux_core::show_bytes;

use super::name::{GGUF, Wanted, is_gguf, piece_of};

/// What is taken of several where nothing is asked for, as other tools do.
const DEFAULT: &str = "Q4_K_M";

/// The most entries of a message.
const MAX_SHOWN: usize = 40;

/// What separates the pieces of names.
const EDGES: [char; 7] = ['-', '.', ' ', '(', ')', '[', ']'];

/// What may end a name after its last piece.
const CLOSING: [char; 2] = [')', ']'];

/// A file of a repository, or of a copy of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'a> {
    pub(super) path: &'a str,
    /// Bytes, where they are known.
    pub(super) size: Option<u64>,
}

/// A GGUF file, or all parts of one that was split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Set {
    /// The path without the number of the part and the extension.
    stem: String,
    /// Paths of the parts, in order.
    pub(super) parts: Vec<String>,
    /// How many parts their names promise.
    n_parts: usize,
    bytes: Option<u64>,
}

/// The GGUF files of a repository.
#[derive(Clone, Debug, Default)]
pub(super) struct Sets {
    models: Vec<Set>,
    /// Files that belong to a model and are none.
    pub(super) passed_over: Vec<String>,
}

/// How well a name fits, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    /// It is the whole name.
    Whole,
    /// The name or its folder ends with it.
    Label,
    /// The name or its folder ends with it, of a mix that differs from layer to layer (`UD-`) and
    /// was not asked for.
    Dynamic,
    /// It is a part of the name or of a folder's.
    Inside,
}

/// What was chosen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice<'a> {
    pub(super) set: &'a Set,
    /// Whether the choice is the same whatever other files there are.
    pub(super) is_certain: bool,
    /// Whether it is one of several of which none was asked for.
    pub(super) is_default: bool,
}

impl Sets {
    /// The GGUF files among those of a repository.
    pub(super) fn of<'a>(files: impl Iterator<Item = Entry<'a>>) -> Sets {
        let mut sets = Sets::default();
        let mut by_stem: BTreeMap<(String, usize), BTreeMap<usize, Entry<'a>>> = BTreeMap::new();
        for entry in files.filter(|entry| is_gguf(entry.path)) {
            if is_companion(entry.path) {
                sets.passed_over.push(entry.path.to_owned());
                continue;
            }
            let part = Part::of(entry.path);
            let key = (part.stem.to_owned(), part.n);
            by_stem.entry(key).or_default().insert(part.nth, entry);
        }
        for ((stem, n_parts), parts) in by_stem {
            // Of pieces whose names do not say how many there are, the last tells.
            let n_parts = match (n_parts, parts.keys().next_back()) {
                (0, Some(last)) => last + usize::from(parts.contains_key(&0)),
                _ => n_parts,
            };
            let bytes = parts.values().map(|entry| entry.size).sum();
            let parts = parts.values().map(|entry| entry.path.to_owned()).collect();
            sets.models.push(Set { stem, parts, n_parts, bytes });
        }
        sets.models.sort_by_key(|set| set.bytes);
        sets
    }

    /// The set that is asked for.
    ///
    /// # Errors
    /// What is wrong, and what there is instead. `repo` is the name that the remedy shows.
    pub(super) fn choose(&self, wanted: Option<&Wanted>, repo: &str) -> Result<Choice<'_>, String> {
        let choice = self.choose_any(wanted, repo)?;
        match (choice.set.parts.len(), choice.set.n_parts) {
            (have, want) if have == want => Ok(choice),
            (have, want) => Err(format!("has {have} of the {want} files of {}", choice.set.stem)),
        }
    }

    /// As [`choose`](Sets::choose), also where parts of the set are missing.
    pub(super) fn choose_any(
        &self,
        wanted: Option<&Wanted>,
        repo: &str,
    ) -> Result<Choice<'_>, String> {
        let problem = match self.find(wanted) {
            Ok(choice) => return Ok(choice),
            Err(problem) => problem,
        };
        if self.models.is_empty() {
            return Err(match self.passed_over.first() {
                Some(other) => format!("has no GGUF file of a model, only such as {other}"),
                None => format!("has no GGUF files: write {repo} for the model that it has"),
            });
        }
        let shown = self.models.iter().take(MAX_SHOWN).map(|set| self.describe(set));
        let mut shown: Vec<String> = shown.collect();
        match self.models.len().saturating_sub(MAX_SHOWN) {
            0 => {}
            more => shown.push(format!("{more} more")),
        }
        let example = self.label(&self.models[0]);
        Err(format!("{problem}; it has {}: write {repo}:{example}, say", shown.join(", ")))
    }

    /// The file of the vision tower that comes with a set; `None` where the repository has none, or several
    /// that are as good.
    pub(super) fn tower(&self, set: &Set) -> Option<&String> {
        let towers = self.passed_over.iter().map(String::as_str);
        match preferred_mmproj(towers, set.first())[..] {
            [tower] => self.passed_over.iter().find(|path| *path == tower),
            _ => None,
        }
    }

    /// The files of vision towers that no other model than this set has.
    pub(super) fn own_towers(&self, set: &Set) -> impl Iterator<Item = &String> {
        let is_alone = self.models.iter().all(|other| other == set);
        self.passed_over.iter().filter(move |path| is_alone && is_mmproj(path))
    }

    /// The sets all of whose parts are there.
    pub(super) fn whole(&self) -> impl Iterator<Item = &Set> {
        self.models.iter().filter(|set| set.parts.len() == set.n_parts)
    }

    fn find(&self, wanted: Option<&Wanted>) -> Result<Choice<'_>, String> {
        match wanted {
            Some(Wanted::File(path)) => {
                let found = self.models.iter().find(|set| set.has(path));
                let found = found.map(|set| Choice { set, is_certain: true, is_default: false });
                found.ok_or_else(|| format!("has no file {path} of a model"))
            }
            Some(Wanted::Tag(tag)) => match self.by_tag(tag)[..] {
                [(set, fit)] => {
                    Ok(Choice { set, is_certain: fit <= Fit::Label, is_default: false })
                }
                [] => Err(format!("has no GGUF file called {tag:?}")),
                _ => Err(format!("has several GGUF files called {tag:?}")),
            },
            None => match (&self.models[..], &self.by_tag(DEFAULT)[..]) {
                ([set], _) => {
                    let is_certain = set.fit(&DEFAULT.to_lowercase()) <= Some(Fit::Label)
                        && set.fit(&DEFAULT.to_lowercase()).is_some();
                    Ok(Choice { set, is_certain, is_default: false })
                }
                (_, [(set, fit)]) if *fit <= Fit::Dynamic => {
                    Ok(Choice { set, is_certain: *fit <= Fit::Label, is_default: true })
                }
                _ => Err("has several GGUF files, of which none is named".to_owned()),
            },
        }
    }

    /// The sets that fit a tag best.
    fn by_tag(&self, tag: &str) -> Vec<(&Set, Fit)> {
        let tag = tag.to_lowercase();
        let fits = self.models.iter().filter_map(|set| Some((set, set.fit(&tag)?)));
        let fits: Vec<(&Set, Fit)> = fits.collect();
        let best = fits.iter().map(|(_, fit)| *fit).min();
        fits.into_iter().filter(|(_, fit)| Some(*fit) == best).collect()
    }

    /// What chooses a set: the last part of its name, or as much of its path as it takes.
    pub(super) fn label<'a>(&self, set: &'a Set) -> &'a str {
        let (folder, base) = set.stem.rsplit_once('/').unwrap_or(("", &set.stem));
        let at = base.rfind(['-', '.']).map_or(0, |at| at + 1);
        let at = match base.get(..at.saturating_sub(1)).map(str::to_lowercase) {
            Some(before) if before == "ud" => 0,
            Some(before) if before.ends_with("-ud") => at - 3,
            _ => at,
        };
        let is_his = |label: &&str| {
            let wanted = Wanted::Tag((*label).to_owned());
            !label.is_empty() && self.find(Some(&wanted)).is_ok_and(|choice| choice.set == set)
        };
        let candidates = [&base[at..], folder.rsplit('/').next().unwrap_or(""), base];
        candidates.into_iter().find(is_his).unwrap_or(&set.stem)
    }

    /// A set in a message: what chooses it, and how large it is.
    fn describe(&self, set: &Set) -> String {
        let size = set.bytes.map(show_bytes);
        let n_files = (set.n_parts > 1).then(|| format!("{} files", set.n_parts));
        let facts: Vec<String> = size.into_iter().chain(n_files).collect();
        match facts[..] {
            [] => self.label(set).to_owned(),
            _ => format!("{} ({})", self.label(set), facts.join(" in ")),
        }
    }
}

impl Set {
    /// The first part, which a checkpoint is opened by.
    pub(super) fn first(&self) -> &str {
        self.parts.first().map_or("", String::as_str)
    }

    /// Whether a path, or the name of a file, is that of a part.
    fn has(&self, path: &str) -> bool {
        let is_it = |part: &String| part == path || part.rsplit('/').next() == Some(path);
        self.parts.iter().any(is_it)
    }

    /// How well a tag fits, in lower case.
    fn fit(&self, tag: &str) -> Option<Fit> {
        let stem = self.stem.to_lowercase();
        let mut parts = stem.rsplit('/');
        let base = parts.next().unwrap_or_default();
        if stem == tag || base == tag {
            return Some(Fit::Whole);
        }
        let is_dynamic = |before: &str| before == "ud" || before.ends_with("-ud");
        let ends = |name: &str| {
            let name = name.trim_end_matches(CLOSING);
            let before = name.strip_suffix(tag)?.strip_suffix(EDGES)?;
            Some(if is_dynamic(before) { Fit::Dynamic } else { Fit::Label })
        };
        let is_inside =
            |name: &str| name.split(EDGES).any(|piece| piece == tag) || joins(name, tag);
        let mut fits = vec![ends(base), is_inside(base).then_some(Fit::Inside)];
        for folder in parts {
            fits.push((folder == tag).then_some(Fit::Label));
            fits.push(ends(folder));
            fits.push(is_inside(folder).then_some(Fit::Inside));
        }
        fits.into_iter().flatten().min()
    }
}

/// Whether pieces of a name that follow one another are a tag that has several.
fn joins(name: &str, tag: &str) -> bool {
    let is_edge = |c: Option<char>| c.is_none_or(|c| EDGES.contains(&c));
    name.match_indices(tag).any(|(at, _)| {
        is_edge(name[..at].chars().next_back()) && is_edge(name[at + tag.len()..].chars().next())
    })
}

/// What the name of a file says of the set that it is of.
struct Part<'a> {
    stem: &'a str,
    /// Counted from 1, of pieces also from 0.
    nth: usize,
    /// 0 where names do not say it.
    n: usize,
}

impl Part<'_> {
    /// `PREFIX-00001-of-00003.gguf`, a piece like `PREFIX.gguf.part1of2`, or a file of its own.
    fn of(path: &str) -> Part<'_> {
        if let Some(piece) = piece_of(path) {
            let before = path.len() - path.rsplit('/').next().map_or(0, str::len);
            let end = before + piece.prefix.to_ascii_lowercase().rfind(GGUF).unwrap_or(0);
            return Part { stem: &path[..end], nth: piece.nth(), n: piece.n().unwrap_or(0) };
        }
        let stem = &path[..path.len() - GGUF.len()];
        let whole = Part { stem, nth: 1, n: 1 };
        let number = |text: &str| {
            if text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit()) {
                text.parse::<usize>().ok()
            } else {
                None
            }
        };
        let split = stem.rsplit_once("-of-").and_then(|(rest, n)| {
            let (stem, nth) = rest.rsplit_once('-')?;
            Some(Part { stem, nth: number(nth)?, n: number(n)? })
        });
        split.filter(|part| (1..=part.n).contains(&part.nth)).unwrap_or(whole)
    }
}

/// Whether a GGUF file is no model but belongs to one: a projector of images, an importance
/// matrix, layers for multi-token prediction alone.
fn is_companion(path: &str) -> bool {
    path.to_ascii_lowercase().split('/').any(|name| {
        name.contains("mmproj")
            || name.starts_with("imatrix")
            || name.starts_with("mtp-")
            || name.ends_with("imatrix.gguf")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sets(paths: &[&str]) -> Sets {
        let sizes = (1..).map(|n| Some(n << 30));
        Sets::of(paths.iter().zip(sizes).map(|(path, size)| Entry { path, size }))
    }

    fn chosen(paths: &[&str], wanted: Option<Wanted>) -> Result<String, String> {
        let sets = sets(paths);
        sets.choose(wanted.as_ref(), "org/name").map(|choice| choice.set.parts.join(" "))
    }

    fn tagged(paths: &[&str], tag: &str) -> Result<String, String> {
        chosen(paths, Some(Wanted::Tag(tag.to_owned())))
    }

    /// As one uploader names them.
    const DYNAMIC: [&str; 9] = [
        "Qwen3-30B-A3B-IQ4_XS.gguf",
        "Qwen3-30B-A3B-Q4_0.gguf",
        "Qwen3-30B-A3B-Q4_K_M.gguf",
        "Qwen3-30B-A3B-UD-Q4_K_M.gguf",
        "Qwen3-30B-A3B-UD-Q4_K_XL.gguf",
        "BF16/Qwen3-30B-A3B-BF16-00001-of-00002.gguf",
        "BF16/Qwen3-30B-A3B-BF16-00002-of-00002.gguf",
        "mmproj-F16.gguf",
        "imatrix_unsloth.gguf",
    ];

    #[test]
    fn a_model_comes_with_one_tower() {
        let towers = ["mmproj-F32.gguf", "mmproj-BF16.gguf", "imatrix.gguf"];
        let alone = sets(&[&["a-Q4_0.gguf"][..], &towers].concat());
        let set = &alone.models[0];
        assert_eq!(alone.tower(set).map(String::as_str), Some("mmproj-BF16.gguf"));
        let own: Vec<&String> = alone.own_towers(set).collect();
        assert_eq!(own, ["mmproj-F32.gguf", "mmproj-BF16.gguf"]);
        let two = sets(&[&["a-Q4_0.gguf", "a-Q8_0.gguf"][..], &towers].concat());
        assert!(two.tower(&two.models[0]).is_some() && two.own_towers(&two.models[0]).count() == 0);
        let none = sets(&["a-Q4_0.gguf", "imatrix.gguf"]);
        assert_eq!(none.tower(&none.models[0]), None);
    }

    #[test]
    fn tags_match_the_ends_of_names() {
        for (tag, want) in [
            ("Q4_K_M", "Qwen3-30B-A3B-Q4_K_M.gguf"),
            ("q4_k_m", "Qwen3-30B-A3B-Q4_K_M.gguf"),
            ("UD-Q4_K_M", "Qwen3-30B-A3B-UD-Q4_K_M.gguf"),
            ("ud-q4_k_xl", "Qwen3-30B-A3B-UD-Q4_K_XL.gguf"),
            ("Q4_K_XL", "Qwen3-30B-A3B-UD-Q4_K_XL.gguf"),
            ("Q4_0", "Qwen3-30B-A3B-Q4_0.gguf"),
            ("IQ4_XS", "Qwen3-30B-A3B-IQ4_XS.gguf"),
            ("Qwen3-30B-A3B-Q4_0", "Qwen3-30B-A3B-Q4_0.gguf"),
            (
                "bf16",
                "BF16/Qwen3-30B-A3B-BF16-00001-of-00002.gguf \
                 BF16/Qwen3-30B-A3B-BF16-00002-of-00002.gguf",
            ),
        ] {
            assert_eq!(tagged(&DYNAMIC, tag).as_deref(), Ok(want), "{tag}");
        }
        for tag in ["Q4_K", "K_M", "Q9", "F16", "30B", "imatrix_unsloth", "mmproj-F16"] {
            let error = tagged(&DYNAMIC, tag).unwrap_err();
            assert!(error.contains(&format!("{tag:?}; it has")), "{error}");
        }
        // A folder of its own, or the middle of a name.
        let folders = ["Q4_K_M/m-00001-of-00001.gguf", "Q8_0/m-00001-of-00001.gguf"];
        assert_eq!(tagged(&folders, "q8_0").as_deref(), Ok("Q8_0/m-00001-of-00001.gguf"));
        assert_eq!(chosen(&folders, None).as_deref(), Ok("Q4_K_M/m-00001-of-00001.gguf"));
        let inside = ["V4-Flash-IQ2XXS-w2Q2K-AProjQ8.gguf", "V4-Flash-Q4K.gguf", "x.q5_0.a.GGUF"];
        assert_eq!(tagged(&inside, "IQ2XXS-w2Q2K").as_deref(), Ok(inside[0]));
        assert_eq!(tagged(&inside, "q5_0").as_deref(), Ok(inside[2]));
    }

    #[test]
    fn one_model_needs_no_name_and_several_have_a_usual_one() {
        assert_eq!(chosen(&["a-Q8_0.gguf", "mtp-a-Q8_0.gguf"], None).as_deref(), Ok("a-Q8_0.gguf"));
        assert_eq!(chosen(&DYNAMIC, None).as_deref(), Ok("Qwen3-30B-A3B-Q4_K_M.gguf"));
        let sets = sets(&DYNAMIC);
        assert!(sets.choose(None, "a/b").unwrap().is_default);
        assert_eq!(sets.passed_over, ["mmproj-F16.gguf", "imatrix_unsloth.gguf"]);
        let dynamic = ["a-UD-Q4_K_M.gguf", "a-Q8_0.gguf"];
        assert_eq!(chosen(&dynamic, None).as_deref(), Ok("a-UD-Q4_K_M.gguf"));
        let error = chosen(&["a-Q6_K.gguf", "a-Q8_0.gguf"], None).unwrap_err();
        assert_eq!(
            error,
            "has several GGUF files, of which none is named; it has Q6_K (1.00 GiB), Q8_0 \
             (2.00 GiB): write org/name:Q6_K, say"
        );
    }

    #[test]
    fn files_are_named_by_path_or_name_and_bring_their_set() {
        let file = |path: &str| chosen(&DYNAMIC, Some(Wanted::File(path.to_owned())));
        assert_eq!(file("Qwen3-30B-A3B-Q4_0.gguf").as_deref(), Ok(DYNAMIC[1]));
        let both = format!("{} {}", DYNAMIC[5], DYNAMIC[6]);
        assert_eq!(file(DYNAMIC[6]), Ok(both.clone()));
        assert_eq!(file("Qwen3-30B-A3B-BF16-00001-of-00002.gguf"), Ok(both));
        assert!(file("x.gguf").unwrap_err().starts_with("has no file x.gguf of a model; it has"));
        assert!(file("mmproj-F16.gguf").is_err());
    }

    #[test]
    fn what_cannot_be_chosen_says_what_there_is() {
        let two = ["a-Q4_K_M.gguf", "b-Q4_K_M.gguf", "b-Q8_0-00001-of-00003.gguf"];
        let error = tagged(&two, "Q4_K_M").unwrap_err();
        assert!(error.contains("several GGUF files called \"Q4_K_M\"; it has a-Q4_K_M"), "{error}");
        assert_eq!(tagged(&two, "b-q4_k_m").as_deref(), Ok("b-Q4_K_M.gguf"));
        assert_eq!(tagged(&two, "Q8_0").unwrap_err(), "has 1 of the 3 files of b-Q8_0");
        assert!(tagged(&[], "Q4_K_M").unwrap_err().contains("write org/name"));
        let error = chosen(&["mmproj-F16.gguf"], None).unwrap_err();
        assert_eq!(error, "has no GGUF file of a model, only such as mmproj-F16.gguf");
        let sets = sets(&["a-Q4_K_M.gguf"]);
        assert!(sets.choose(None, "").unwrap().is_certain);
        let other = Sets::of([Entry { path: "a-Q8_0.gguf", size: None }].into_iter());
        assert!(!other.choose(None, "").unwrap().is_certain, "others may be there");
        let many: Vec<String> = (0..60).map(|n| format!("m-Q{n}.gguf")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(tagged(&many, "x").unwrap_err().contains("20 more"));
    }
}
