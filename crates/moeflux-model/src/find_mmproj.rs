//! Which GGUF file has the vision tower of a model, by the names that publishers and llama.cpp give them.

use std::path::{Path, PathBuf};

use moeflux_core::gguf::{first_part, is_mmproj, preferred_mmproj};

use crate::load::LoadError;

/// The most names of a folder that are looked at.
const MAX_NAMES: usize = 10_000;

/// The most names in a message.
const MAX_SHOWN: usize = 8;

/// The file of the vision tower next to a model's GGUF file; of several the one whose name has the model's
/// in it, then the one whose weights are BF16, F16, Q8_0 or F32, in this order. Where publishers have a
/// folder for each quantisation, the file is in the folder around these.
///
/// # Errors
/// Where several files are as good.
pub fn find_mmproj(model_file: &Path) -> Result<Option<PathBuf>, LoadError> {
    let dir = model_file.parent().filter(|dir| !dir.as_os_str().is_empty());
    let dir = dir.unwrap_or(Path::new("."));
    let model = model_file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let around = || {
        let around = dir.canonicalize().ok()?.parent()?.to_path_buf();
        let names = names(&around);
        // With other models, it is no folder of one model's quantisations.
        let is_his = |name: &String| !is_model(name) || are_of_one_model(name, model);
        names.iter().all(is_his).then_some((around, names))
    };
    let own = names(dir);
    let (dir, names) = if own.iter().any(|name| is_mmproj(name)) {
        (dir.to_path_buf(), own)
    } else {
        around().unwrap_or((dir.to_path_buf(), own))
    };
    let best = preferred_mmproj(names.iter().map(String::as_str), model);
    match best[..] {
        [] => Ok(None),
        [one] => Ok(Some(dir.join(one))),
        [..] => {
            let shown = best[..best.len().min(MAX_SHOWN)].join(", ");
            let more = best.len().saturating_sub(MAX_SHOWN);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let names = format!("{} vision towers, {shown}{more}", best.len());
            Err(LoadError::SeveralTowers { path: dir, names })
        }
    }
}

/// Whether two files are quantisations of one model, by their names before the types of their weights.
fn are_of_one_model(one: &str, other: &str) -> bool {
    let [one, other] = [one, other].map(|name| first_part(Path::new(name)));
    let [one, other] = [&one, &other].map(|path| model_name(path.to_str().unwrap_or_default()));
    one.eq_ignore_ascii_case(other)
}

/// The name of a file before `-Q4_K_M`, `.i1-IQ3_XS`, `-UD-Q2_K_XL` and the like, or before its extension.
fn model_name(file: &str) -> &str {
    let is_end = |c: char| matches!(c, '-' | '_' | '.' | ' ');
    let words = file.match_indices(is_end).map(|(at, _)| (at, file[at + 1..].split(is_end).next()));
    let is_type = |word: &str| {
        let word = word.to_ascii_lowercase();
        let has_bits = |kind: &&str| {
            let bits = word.strip_prefix(kind);
            bits.is_some_and(|bits| !bits.is_empty() && bits.bytes().all(|b| b.is_ascii_digit()))
        };
        let is_other = matches!(&word[..], "ud" | "i1" | "gguf" | "mxfp4" | "nvfp4");
        is_other || ["q", "iq", "tq", "f", "bf", "fp"].iter().any(has_bits)
    };
    let end = words.into_iter().find(|(_, word)| word.is_some_and(is_type));
    &file[..end.map_or(file.len(), |(at, _)| at)]
}

/// Whether a GGUF file is neither a tower nor an importance matrix, by its name.
fn is_model(name: &str) -> bool {
    !is_mmproj(name) && !name.to_lowercase().starts_with("imatrix")
}

/// The names of a folder's GGUF files; none where it cannot be read.
fn names(dir: &Path) -> Vec<String> {
    let entries = dir.read_dir().into_iter().flatten().take(MAX_NAMES).flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.to_lowercase().ends_with(".gguf")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_as_good_as_each_other_are_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let write = |name: &str| std::fs::write(path(name), b"GGUF").expect("a file");
        write("m.gguf");
        assert_eq!(find_mmproj(&path("m.gguf")).expect("none"), None);
        write("mmproj-a-F16.gguf");
        assert_eq!(find_mmproj(&path("m.gguf")).expect("one"), Some(path("mmproj-a-F16.gguf")));
        write("mmproj-b-F16.gguf");
        let err = find_mmproj(&path("m.gguf")).expect_err("two").to_string();
        let names = "2 vision towers, mmproj-a-F16.gguf, mmproj-b-F16.gguf: name one of these";
        assert!(err.contains(names) && err.ends_with("(mmproj FILE)"), "{err}");
    }

    #[test]
    fn a_folder_of_each_quantisation_has_the_file_around_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().canonicalize().expect("a path");
        std::fs::create_dir(root.join("Q4")).expect("a folder");
        let model = root.join("Q4/Kimi-K2.5-Q4-00001-of-00002.gguf");
        for path in [&model, &root.join("mmproj-F16.gguf")] {
            std::fs::write(path, b"GGUF").expect("a file");
        }
        assert_eq!(find_mmproj(&model).expect("one"), Some(root.join("mmproj-F16.gguf")));
        std::fs::write(root.join("Kimi-K2.5-Q8_0.gguf"), b"GGUF").expect("a file");
        assert_eq!(find_mmproj(&model).expect("one"), Some(root.join("mmproj-F16.gguf")));
        for other in
            ["Kimi-K2.5-UD-Q2_K_XL.gguf", "kimi-k2.5.i1-IQ3_XXS.gguf", "Kimi-K2.5-mxfp4_moe.gguf"]
        {
            std::fs::write(root.join(other), b"GGUF").expect("a file");
            assert_eq!(
                find_mmproj(&model).expect("one"),
                Some(root.join("mmproj-F16.gguf")),
                "{other}"
            );
        }
        std::fs::create_dir(root.join("parts")).expect("a folder");
        let part = |nth| root.join(format!("parts/whole/m-0000{nth}-of-00002.gguf"));
        std::fs::create_dir(root.join("parts/whole")).expect("a folder");
        for path in [part(1), part(2), root.join("parts/mmproj-F16.gguf")] {
            std::fs::write(path, b"GGUF").expect("a file");
        }
        std::fs::write(root.join("parts/m-00002-of-00002.gguf"), b"GGUF").expect("a file");
        let around = Some(root.join("parts/mmproj-F16.gguf"));
        assert_eq!(find_mmproj(&part(1)).expect("one"), around);
        std::fs::write(root.join("Qwen3-VL-30B.gguf"), b"GGUF").expect("a file");
        assert_eq!(find_mmproj(&model).expect("none"), None);
    }
}
