//! Which of several GGUF files has the vision tower of a model, by the names that publishers give them.

/// In names of files of towers.
const MARK: &str = "mmproj";

/// The types of weights, by the last part of a name; those before others are preferred.
const TYPES: [&[&str]; 4] = [&["bf16"], &["f16", "fp16"], &["q8_0"], &["f32", "fp32"]];

/// The files of vision towers among names, for a model's file: those that are preferred, of which there is
/// usually one. Names may have folders before them.
pub fn preferred_mmproj<'a>(
    names: impl Iterator<Item = &'a str>,
    model_name: &str,
) -> Vec<&'a str> {
    let model = letters(base(model_name));
    let rank = |name: &str| {
        let name = base(name).to_lowercase();
        let stem = name.strip_suffix(".gguf").unwrap_or(&name);
        let of_type = |types: &&[&str]| types.iter().any(|kind| stem.ends_with(kind));
        // `bf16` ends with `f16`: the first of these counts.
        let precision = TYPES.iter().position(of_type).unwrap_or(TYPES.len());
        let kind = TYPES.iter().copied().flatten().find(|kind| stem.ends_with(*kind));
        let rest = stem.strip_suffix(kind.copied().unwrap_or_default()).unwrap_or(stem);
        let own = letters(&rest.replace(MARK, ""));
        let is_of_model = !own.is_empty() && model.starts_with(&own);
        let kinship = if is_of_model { 0 } else { 1 + usize::from(!own.is_empty()) };
        (kinship, precision)
    };
    let all: Vec<&str> = names.filter(|name| is_mmproj(name)).collect();
    let Some(best) = all.iter().map(|name| rank(name)).min() else { return Vec::new() };
    let mut all: Vec<&str> = all.into_iter().filter(|name| rank(name) == best).collect();
    all.sort_unstable();
    all
}

/// The last part of a path with slashes.
fn base(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

/// A name without case and what separates its words.
fn letters(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// Whether a GGUF file has a vision tower, by its name.
pub fn is_mmproj(name: &str) -> bool {
    let name = name.to_lowercase();
    name.ends_with(".gguf") && name.contains(MARK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(names: &[&str], model: &str, want: &[&str]) {
        assert_eq!(preferred_mmproj(names.iter().copied(), model), want);
    }

    #[test]
    fn types_are_preferred_in_order() {
        let all = ["mmproj-F32.gguf", "mmproj-F16.gguf", "mmproj-BF16.gguf", "m.gguf"];
        check(&all, "m.gguf", &["mmproj-BF16.gguf"]);
        check(&all[..2], "m.gguf", &["mmproj-F16.gguf"]);
        check(&["mmproj-q8_0.gguf", "mmproj-f32.gguf"], "m.gguf", &["mmproj-q8_0.gguf"]);
        check(&["m.gguf", "imatrix.gguf", "mmproj.txt"], "m.gguf", &[]);
        check(&["mmproj.gguf", "mmproj-f32.gguf"], "m.gguf", &["mmproj-f32.gguf"]);
    }

    #[test]
    fn the_file_of_the_model_comes_before_those_of_others() {
        let all = [
            "mmproj-gemma-4-26B-A4B-it-bf16.gguf",
            "Qwen3-VL-30B-A3B-Instruct-mmproj-f16.gguf",
            "mmproj-F32.gguf",
        ];
        check(&all, "Qwen3-VL-30B-A3B-Instruct-UD-Q4_K_XL.gguf", &all[1..2]);
        check(&all, "gemma-4-26B-A4B-it-Q4_K_M.gguf", &all[..1]);
        check(&all, "Kimi-K2.5-Q2_K-00001-of-00009.gguf", &all[2..]);
        check(&["sub/mmproj-BF16.gguf", "mmproj-F16.gguf"], "q/m.gguf", &["sub/mmproj-BF16.gguf"]);
    }
}
