//! Flags of llama.cpp, mlx-lm, vLLM and Ollama, and what they are here.

use std::ffi::OsStr;

/// What a flag of another program is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Does {
    /// A flag of this program, with the same value.
    Is(&'static str),
    /// As `Is`; each of these values means what leaving it out does.
    Unless(&'static str, &'static [&'static str]),
    /// The name on the Hub, of a command that takes it without a flag.
    Name,
    /// The prompt.
    Prompt,
    /// A file of the repository that another flag names.
    File,
    /// How many layers are on the GPU.
    Layers,
    /// The type of keys or of values.
    CacheType,
    /// Nothing that has to be asked for.
    Nothing(&'static str),
    /// As `Nothing`, with a value.
    NothingWith(&'static str),
    /// As `Nothing`, with one of these values or none.
    NothingMaybeWith(&'static str, &'static [&'static str]),
    /// Something else here: what to write.
    Other(&'static str),
}

/// A flag of another program.
#[derive(Debug)]
pub(super) struct Foreign {
    names: &'static [&'static str],
    pub(super) does: Does,
    /// The commands that it means this for; none are all.
    commands: &'static [&'static str],
}

pub(super) const LAYERS: &str = "layers are not counted here; --device gpu runs the model on the GPU, and --device-cache SIZE limits \
     the memory that it takes for experts";

pub(super) const CACHE_TYPES: &str = "keys and values are f32, bf16 or q8: --kv-type";

pub(super) const ONE_CACHE_TYPE: &str = "keys and values have one type here: --kv-type";

const EXPERTS: &str =
    "experts are placed as memory allows (--expert-cache and --device-cache limit them)";
const MAPPED: &str =
    "weights are held in memory or read as the drive likes best (--expert-io chooses)";
const ON_OFF: &[&str] = &["on", "off", "auto", "0", "1", "true", "false", "enabled", "disabled"];
const BACK_AGAIN: &str = "the prompt goes on standard input: moeflux run < FILE";
const DRAFTS: &str =
    "a second model does not draft here; --draft N sets how many tokens are drafted";
const ONE_GPU: &str =
    "a model runs on one GPU: --device gpu:N, and moeflux inspect --devices lists them";
const TEMPLATE: &str =
    "the model's own chat template is used; another one is chat_template.jinja in its folder";
const GRAMMARS: &str = "answers follow JSON schemas: --schema FILE, --schema json";
const SHAPES: &str = "the API takes schemas and grammars: moeflux serve, response_format";

const fn all(names: &'static [&'static str], does: Does) -> Foreign {
    Foreign { names, does, commands: &[] }
}

const fn of(
    commands: &'static [&'static str],
    names: &'static [&'static str],
    does: Does,
) -> Foreign {
    Foreign { names, does, commands }
}

/// Flags that mean something for some commands alone come first.
const FLAGS: &[Foreign] = &[
    of(&["bench"], &["-p", "--n-prompt"], Does::Is("--prompt-tokens")),
    of(&["bench"], &["-n", "--n-gen"], Does::Is("--gen-tokens")),
    of(&["bench"], &["-r", "--repetitions"], Does::Is("--repeat")),
    of(&["run", "chat"], &["-p", "--prompt"], Does::Prompt),
    of(&["run", "chat"], &["-sys", "--system-prompt"], Does::Is("--system")),
    of(&["run", "chat"], &["-s"], Does::Unless("--seed", &["-1"])),
    of(
        &["pull", "rm"],
        &["-hf", "-hfr", "--hf", "--hf-repo", "-mu", "--model-url", "-m", "--model"],
        Does::Name,
    ),
    of(&["run", "chat"], &["-f", "--file"], Does::Other(BACK_AGAIN)),
    of(
        &["run"],
        &["-no-cnv", "--no-conversation", "-st", "--single-turn"],
        Does::Nothing("run answers once"),
    ),
    of(
        &["chat"],
        &["-cnv", "--conversation", "-i", "--interactive"],
        Does::Nothing("chat is a conversation"),
    ),
    of(
        &["run"],
        &["-cnv", "--conversation", "-i", "--interactive"],
        Does::Other("moeflux chat is a conversation"),
    ),
    of(&["run", "chat"], &["-v", "--verbose"], Does::Is("--stats")),
    of(&["perplexity", "calibrate"], &["-f", "--file"], Does::Is("--text")),
    of(&["calibrate"], &["-o", "--output-file"], Does::Is("--out")),
    of(&["serve"], &["-np"], Does::Is("--sessions")),
    of(&["serve"], &["-a"], Does::Is("--model-name")),
    of(
        &["serve", "launch", "ps"],
        &["--api-key"],
        Does::Other("others see arguments: --api-key-file FILE, or the variable MOEFLUX_API_KEY"),
    ),
    all(&["-hf", "-hfr", "--hf", "--hf-repo", "-mu", "--model-url"], Does::Is("--model")),
    all(&["-hff", "--hf-file"], Does::File),
    all(&["-hft", "--hf-token"], Does::Other("others see arguments: set the variable HF_TOKEN")),
    all(&["-c", "--ctx-size", "--context-size", "--max-kv-size"], Does::Unless("--ctx", &["0"])),
    all(
        &["-n", "--predict", "--n-predict", "--num-predict"],
        Does::Unless("--max-tokens", &["-1", "-2"]),
    ),
    all(&["--reasoning-budget"], Does::Unless("--thinking-budget", &["-1"])),
    all(&["-t", "-tb", "--threads-batch"], Does::Unless("--threads", &["-1"])),
    all(&["-b", "-ub", "--batch-size", "--ubatch-size"], Does::Is("--chunk")),
    all(&["-ngl", "--gpu-layers", "--n-gpu-layers"], Does::Layers),
    all(&["-ctk", "-ctv", "--cache-type-k", "--cache-type-v"], Does::CacheType),
    all(
        &["-fa", "--flash-attn"],
        Does::NothingMaybeWith("attention never holds all scores at once", ON_OFF),
    ),
    all(&["--jinja"], Does::Nothing("chat templates are always rendered")),
    all(&["--no-jinja"], Does::Other("run --raw sends a prompt without the chat template")),
    all(&["--mlock", "--no-mmap", "--mmap", "-dio", "--direct-io"], Does::Nothing(MAPPED)),
    all(&["-cmoe", "--cpu-moe"], Does::Nothing(EXPERTS)),
    all(&["-ncmoe", "--n-cpu-moe", "-ot", "--override-tensor"], Does::NothingWith(EXPERTS)),
    all(
        &["--no-warmup", "--log-disable", "-e", "--escape"],
        Does::Nothing("it changes nothing here"),
    ),
    all(&["--trust-remote-code"], Does::Nothing("no code of a model is run")),
    all(&["--dtype", "--quantization"], Does::NothingWith("the files say what is stored how")),
    all(&["-md", "--model-draft", "--draft-model"], Does::Other(DRAFTS)),
    all(&["--draft-max", "--draft-n", "--num-draft-tokens"], Does::Is("--draft")),
    all(
        &["-sm", "--split-mode", "-ts", "--tensor-split", "-mg", "--main-gpu", "-dev"],
        Does::Other(ONE_GPU),
    ),
    all(&["--tensor-parallel-size"], Does::Other(ONE_GPU)),
    all(
        &["--gpu-memory-utilization"],
        Does::Other("--device-cache SIZE limits the experts on the GPU"),
    ),
    all(&["--kv-bits"], Does::Other(CACHE_TYPES)),
    all(&["--chat-template", "--chat-template-file"], Does::Other(TEMPLATE)),
    of(
        &["run", "chat"],
        &["-j", "--json-schema", "-jf", "--json-schema-file"],
        Does::Is("--schema"),
    ),
    of(&["run", "chat"], &["--format"], Does::Is("--schema")),
    of(&["run", "chat"], &["--grammar", "--grammar-file"], Does::Other(GRAMMARS)),
    all(&["--grammar", "--grammar-file", "--json-schema", "--format"], Does::Other(SHAPES)),
    all(
        &["--lora", "--adapter-path"],
        Does::Other("adapters are not run: merge them into the model"),
    ),
    all(&["-mm"], Does::Is("--mmproj")),
    all(&["-mmu", "--mmproj-url"], Does::Other("--mmproj takes a file: download it first")),
    all(
        &["--mmproj-auto", "--mmproj-offload"],
        Does::Nothing("the tower of a model is found, and runs where the model does"),
    ),
    of(&["chat"], &["--image"], Does::Other("in the chat, /image FILE shows one")),
    all(&["--image"], Does::Other("moeflux run --image FILE shows a model one")),
    all(
        &["--embedding", "--embeddings", "--reranking"],
        Does::Other("models here answer; for embeddings run a model of them in another program"),
    ),
    all(
        &["--keepalive"],
        Does::Other("moeflux serve --idle-timeout 5m unloads a model that is not used"),
    ),
];

/// The flag of another program that `name` is where a command is written.
pub(super) fn find(command: &str, name: &str) -> Option<&'static Foreign> {
    let is_meant = |flag: &&Foreign| {
        flag.names.contains(&name) && (flag.commands.is_empty() || flag.commands.contains(&command))
    };
    FLAGS.iter().find(is_meant)
}

/// The type of keys and values by llama.cpp's name.
pub(super) fn cache_type(name: &OsStr) -> Option<&'static str> {
    Some(match name.to_str()? {
        "f32" => "f32",
        "bf16" => "bf16",
        "q8_0" | "q8" => "q8",
        _ => return None,
    })
}
