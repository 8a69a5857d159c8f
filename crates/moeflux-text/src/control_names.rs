//! Names of control tokens that programs know by heart: those that end an answer, and those that mark
//! text in whose middle something is missing.
//!
//! A GGUF file has room for one token that ends a text, one that ends a turn and one that ends a
//! message; converters leave the others to programs that find them by their texts. Folders of
//! safetensors lose the lists of `generation_config.json` when they are merged or converted. So the
//! same names count wherever a vocabulary comes from.

/// Texts of tokens that end an answer in every model that has them as control tokens.
const ENDS: [&str; 36] = [
    "<|endoftext|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|eot|>",
    "<|eom|>",
    "<|EOT|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<|end_of_text|>",
    "<|end_of_sentence|>",
    "<|eos|>",
    "<|role_end|>",
    "[|endofturn|]",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    "</s>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<EOT>",
    "_<EOT>",
    "▁<EOT>",
    "[EOT]",
    "[EOS]",
    "[e~[",
    "<|fim_pad|>",
    "<fim_pad>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<|file_separator|>",
];

/// Tokens that end an answer only where a vocabulary has all of a group: they open the next turn, which
/// is the user's or a tool's.
const NEXT_TURNS: [&[&str]; 1] = [&["<|user|>", "<|observation|>"]];

/// What ends an answer, and the tokens with which it does not: a message of several ends with the first, and
/// where the others mark up, the first is what documents have.
const NO_ENDS: [(&str, &[&str]); 5] = [
    ("<|end|>", &["<|return|>", "<|call|>"]),
    ("<|end|>", &["<|return|>", "<|calls|>"]),
    ("<|end|>", &["<|calls|>", "<|flush|>"]),
    ("</s>", &["<|tool_response>"]),
    ("</s>", &["<end_of_turn>"]),
];

/// A tag of documents, which is an ordinary token in many vocabularies.
pub(crate) const TAG_OF_DOCUMENTS: &str = "</s>";

/// The tokens that end an answer, ascending: those that files list, and those that are called so.
/// `id_of` gives the number of a control token.
pub(crate) fn ends(listed: &[u32], id_of: impl Fn(&str) -> Option<u32>) -> Vec<u32> {
    let has_all = |texts: &[&str]| texts.iter().all(|text| id_of(text).is_some());
    let next_turns = NEXT_TURNS.iter().filter(|group| has_all(group)).copied().flatten();
    let named = ENDS.iter().chain(next_turns).filter_map(|text| id_of(text));
    let mut ends: Vec<u32> = listed.iter().copied().chain(named).collect();
    for (text, _) in NO_ENDS.iter().filter(|(_, with)| has_all(with)) {
        let id = id_of(text);
        ends.retain(|end| Some(*end) != id);
    }
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// Whether a token of this text is a control token whatever its file says of it: it ends answers.
pub(crate) fn is_end(text: &str) -> bool {
    text != TAG_OF_DOCUMENTS && ENDS.contains(&text)
}

/// Texts of the tokens around the parts of a text in whose middle something is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InfillNames {
    pub(crate) prefix: &'static str,
    pub(crate) suffix: &'static str,
    /// `None` where what is missing follows the prefix, and the suffix comes first.
    pub(crate) middle: Option<&'static str>,
}

const fn names(prefix: &'static str, suffix: &'static str, middle: &'static str) -> InfillNames {
    InfillNames { prefix, suffix, middle: Some(middle) }
}

/// The spellings, in the order in which they are looked for.
pub(crate) const INFILL: [InfillNames; 9] = [
    names("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    names("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    names("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    names("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    names("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    names("<|prefix|>", "<|suffix|>", "<|middle|>"),
    names("▁<PRE>", "▁<SUF>", "▁<MID>"),
    names("<PRE>", "<SUF>", "<MID>"),
    InfillNames { prefix: "[PREFIX]", suffix: "[SUFFIX]", middle: None },
];

/// Texts of the token before the name of a project, and of that before the name of a file.
pub(crate) const PROJECT: [&str; 4] = ["<|repo_name|>", "<|fim_repo|>", "<reponame>", "<fim-repo>"];
pub(crate) const FILE: [&str; 2] = ["<|file_sep|>", "<file_sep>"];

/// Whether a token of this text marks a part of a text in whose middle something is missing.
pub(crate) fn is_infill(text: &str) -> bool {
    let of = |names: &InfillNames| {
        text == names.prefix || text == names.suffix || Some(text) == names.middle
    };
    INFILL.iter().any(of) || PROJECT.contains(&text) || FILE.contains(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(listed: &[u32], texts: &[&str], want: &[&str]) {
        let id_of = |text: &str| texts.iter().position(|one| *one == text).map(|id| id as u32);
        let found: Vec<&str> =
            ends(listed, id_of).into_iter().map(|id| texts[id as usize]).collect();
        assert_eq!(found, want);
    }

    #[test]
    fn answers_end_with_what_is_listed_and_with_what_is_called_so() {
        check(&[], &["a", "<|im_end|>", "<|endoftext|>"], &["<|im_end|>", "<|endoftext|>"]);
        check(&[0], &["a", "[EOS]", "[EOT]"], &["a", "[EOS]", "[EOT]"]);
        check(&[1, 1], &["a", "<|im_end|>"], &["<|im_end|>"]);
    }

    #[test]
    fn the_end_of_one_of_several_messages_is_no_end() {
        let all = ["<|end|>", "<|return|>", "<|call|>"];
        check(&[0], &all, &all[1..]);
        check(&[], &["<|end|>", "<|calls|>", "<|flush|>"], &["<|calls|>", "<|flush|>"]);
        check(&[], &["<|end|>", "<|return|>"], &["<|end|>", "<|return|>"]);
    }

    #[test]
    fn the_opening_of_another_turn_ends_an_answer_where_tools_have_turns_too() {
        check(&[], &["<|user|>", "<|observation|>"], &["<|user|>", "<|observation|>"]);
        check(&[], &["<|user|>"], &[]);
    }

    #[test]
    fn a_tag_of_documents_ends_no_answer_where_others_mark_up() {
        check(&[], &["</s>", "<s>"], &["</s>"]);
        check(&[], &["</s>", "<turn|>", "<|tool_response>"], &["<turn|>", "<|tool_response>"]);
        assert!(!is_end("</s>") && is_end("<|im_end|>"));
    }
}
