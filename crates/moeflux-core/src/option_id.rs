//! Options that errors name. A program calls them by its flags, a language by its keywords.

use std::fmt;
use std::sync::OnceLock;

macro_rules! options {
    ($($(#[$doc:meta])* $id:ident: $name:literal;)*) => {
        /// An option of an engine, a conversion, a server or a request. Its text is what the
        /// program calls it ([`call_options`]), else its [`name`](OptionId::name).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum OptionId {
            $($(#[$doc])* $id,)*
        }

        impl OptionId {
            /// All options.
            pub const ALL: &[OptionId] = &[$(OptionId::$id,)*];

            /// The name of the option's field or method, the same for every caller.
            pub const fn name(self) -> &'static str {
                match self {
                    $(OptionId::$id => $name,)*
                }
            }
        }
    };
}

options! {
    /// The precision of the inputs of large projections.
    Activations: "activations";
    /// Whether experts of a missing file contribute zero.
    AllowMissingExperts: "allow_missing_experts";
    /// Bytes of the state checkpoints of a session.
    CheckpointBytes: "checkpoint_bytes";
    /// Rows of a prefill chunk.
    Chunk: "chunk";
    /// Positions of a session.
    Ctx: "ctx";
    /// Where the model runs.
    Device: "device";
    /// Bytes of experts that a GPU may hold.
    DeviceCache: "device_cache";
    /// Bytes of the expert cache.
    ExpertCache: "expert_cache";
    /// How expert records are read.
    ExpertIo: "expert_io";
    /// Routed experts of a token.
    ExpertsPerToken: "experts_per_token";
    /// Rows of a prompt that a picture takes at most.
    ImageTokens: "image_tokens";
    /// The instruction set of the kernels.
    Isa: "isa";
    /// The element type of cached keys and values.
    KvType: "kv_type";
    /// The GGUF file of the vision tower.
    Mmproj: "mmproj";
    /// Bytes of the prefix cache on disk.
    PromptCacheSize: "prompt_cache_size";
    /// Bytes of the prefix cache in memory.
    PromptMemory: "prompt_memory";
    /// The file of every token's routing.
    RecordRouting: "record_routing";
    /// Bytes of the cache of rows of tables.
    RowCache: "row_cache";
    /// Sessions that memory is planned for.
    Sessions: "sessions";
    /// Threads that compute.
    Threads: "threads";

    /// Whether a destination that holds a container is packed anew.
    Force: "force";
    /// Whether a synthetic model has a layer that predicts several tokens.
    Mtp: "mtp";

    /// The address at which a server listens.
    Addr: "addr";
    /// Whether a server fetches images from addresses that clients name.
    AllowImageUrls: "allow_image_urls";
    /// The keys of a server's clients.
    ApiKeys: "api_keys";
    /// The origins of web pages that may use a server.
    CorsOrigins: "cors_origins";
    /// Whether a server has the models of the Hub's cache, too.
    Hub: "hub";
    /// Whether clients with a key may download and remove models.
    Manage: "manage";
    /// The file of the keys with names of a server's clients.
    KeysFile: "keys_file";
    /// Bytes of a request to a server.
    MaxBody: "max_body";
    /// The port at which a server listens for clients of Ollama.
    OllamaPort: "ollama_port";
    /// Whether a server refuses fields that it does not know.
    Strict: "strict";

    /// The messages of a conversation.
    Messages: "messages";
    /// The tools that a model may call.
    Tools: "tools";
    /// Whether tools may be called.
    ToolChoice: "tool_choice";
    /// The form of the answer.
    Format: "format";
    /// Whether the model is to think.
    Thinking: "thinking";
    /// The text that the answer is expected to repeat.
    Expected: "expected";

    /// What logits are divided by.
    Temperature: "temperature";
    /// The probability of the tokens to choose from, together.
    TopP: "top_p";
    /// The probability of a token to choose, by that of the likeliest.
    MinP: "min_p";
    /// What logits of tokens of the text are divided by.
    RepeatPenalty: "repeat_penalty";
}

/// Writes what a program calls an option.
pub type OptionWords = fn(OptionId, &mut fmt::Formatter<'_>) -> fmt::Result;

static WORDS: OnceLock<OptionWords> = OnceLock::new();

/// Sets what texts of this process call options. A program does so when it starts, as it chooses a
/// logger; a library leaves it alone. The first call counts.
pub fn call_options(words: OptionWords) {
    WORDS.get_or_init(|| words);
}

impl fmt::Display for OptionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match WORDS.get() {
            Some(words) => words(*self, f),
            None => f.write_str(self.name()),
        }
    }
}
