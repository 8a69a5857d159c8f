//! What families say of their tokenizers where files leave it to the code of a model: plain data.

/// Patterns by which texts are split before bytes are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patterns {
    /// GPT-2's.
    Gpt2,
    /// GPT-4's.
    Gpt4,
    /// GPT-4o's, which gpt-oss, Llama 4 and MiniMax have too.
    O200k,
    /// `Qwen2Tokenizer` of transformers.
    Qwen2,
    /// `Qwen3_5Tokenizer` of transformers.
    Qwen3_5,
    /// DeepSeek's since V3, which Tencent and JD have too.
    DeepSeek,
    /// Regular expressions of one publisher, each within the pieces of the one before.
    Own(&'static [&'static str]),
}

/// How a byte-level vocabulary splits texts before it merges bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Splitting {
    /// The patterns.
    pub patterns: Patterns,
    /// Whether texts are normalised to NFC first.
    pub is_nfc: bool,
}

impl Splitting {
    /// By these patterns, of texts as they are.
    pub const fn of(patterns: Patterns) -> Splitting {
        Splitting { patterns, is_nfc: false }
    }

    /// By these patterns, of texts in NFC.
    pub const fn composed(patterns: Patterns) -> Splitting {
        Splitting { patterns, is_nfc: true }
    }
}

/// What a value of `tokenizer.ggml.pre` stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Splitter {
    /// How texts are split.
    pub splitting: Splitting,
    /// Whether a piece that is a token is that token, whatever its merges give.
    pub ignores_merges: bool,
    /// Whether a text begins with the token that begins texts, where the file does not say it.
    pub adds_bos: bool,
}

impl Splitter {
    /// A splitter that does nothing else.
    pub const fn new(splitting: Splitting) -> Splitter {
        Splitter { splitting, ignores_merges: false, adds_bos: false }
    }

    /// A splitter whose pieces are tokens wherever they can be.
    pub const fn ignoring_merges(splitting: Splitting) -> Splitter {
        Splitter { ignores_merges: true, ..Splitter::new(splitting) }
    }

    /// A splitter that ignores merges, of texts that have a beginning.
    pub const fn adding_bos(splitting: Splitting) -> Splitter {
        Splitter { adds_bos: true, ..Splitter::ignoring_merges(splitting) }
    }
}

/// A chat template for models that are published with a program in its place.
#[derive(Clone, Copy, Debug)]
pub struct OwnTemplate {
    /// `model_type`s of configs and architectures of GGUF files that it belongs to.
    pub models: &'static [&'static str],
    /// Control tokens that a vocabulary must have for it.
    pub tokens: &'static [&'static str],
    /// The template.
    pub source: &'static str,
}

/// What a family says of its tokenizers.
#[derive(Clone, Copy, Debug)]
pub struct TokenizerDialect {
    /// Values of `tokenizer.ggml.pre` that no other family has.
    pub splitters: &'static [(&'static str, Splitter)],
    /// Values of `tokenizer.ggml.model` of vocabularies whose merges make pieces of whole texts.
    pub merged_pieces: &'static [&'static str],
    /// How pairs of vocabulary and merges split texts, by `model_type` and whatever class the files
    /// name; `None` where no published code says it.
    pub merges: &'static [(&'static str, Option<Splitting>)],
    /// The chat template.
    pub template: Option<OwnTemplate>,
}

impl TokenizerDialect {
    /// A family whose files say all.
    pub const NONE: TokenizerDialect =
        TokenizerDialect { splitters: &[], merged_pieces: &[], merges: &[], template: None };
}
