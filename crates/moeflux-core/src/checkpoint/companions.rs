//! Names of the files that belong to a checkpoint in addition to its weights.

/// Folder with the chat templates of a checkpoint other than its main one.
pub const TEMPLATE_FOLDER: &str = "additional_chat_templates";

/// Files in which ModelOpt, GPTQ and AWQ declare how they quantised a model whose config does not.
pub const DECLARATIONS: [&str; 3] =
    ["hf_quant_config.json", "quantize_config.json", "quant_config.json"];

/// Files that say how pictures become patches, in order of preference.
pub const PROCESSORS: [&str; 2] = ["preprocessor_config.json", "processor_config.json"];

/// A tokenizer in the format of the Hugging Face library.
pub const TOKENIZER_JSON: &str = "tokenizer.json";

/// A vocabulary in tiktoken's format: each line has a base64 token and its rank.
pub const TIKTOKEN: &str = "tiktoken.model";

/// The tokens of a byte-pair vocabulary; their merges are in [`MERGES`].
pub const VOCAB: &str = "vocab.json";

/// The merges of a byte-pair vocabulary, one per line.
pub const MERGES: &str = "merges.txt";

/// A SentencePiece model.
pub const SENTENCEPIECE: &str = "tokenizer.model";

/// Files of vocabularies in order of preference.
pub const VOCABULARY_FILES: [&str; 5] = [TOKENIZER_JSON, TIKTOKEN, VOCAB, MERGES, SENTENCEPIECE];

/// Sets of files that form a vocabulary, in order of preference.
pub const VOCABULARIES: [&[&str]; 4] =
    [&[TOKENIZER_JSON], &[TIKTOKEN], &[VOCAB, MERGES], &[SENTENCEPIECE]];
