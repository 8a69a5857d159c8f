//! The figures of the pages of `docs/models/` and of the README's table of laptops: plans of checkpoints
//! without weights, and forecasts for rates that are assumed, so that every machine makes the same
//! pages. With `MOEFLUX_WRITE_DOCS=1` these tests write the figures in place of comparing them.

use std::fmt::Write as _;
use std::path::Path;

use moeflux_convert::synth::{SynthFormat, SynthOptions, ToolFormat};
use moeflux_convert::synthesise;
use moeflux_engine::{EngineOptions, Forecast, Inspection, KvType, Plan, Rates, inspect};
use moeflux_store::IoChoice;
use tempfile::TempDir;

const BEGIN: &str = "<!-- made from plans: MOEFLUX_WRITE_DOCS=1 cargo test -p moeflux-engine --test it model_pages:: -->\n";
const END: &str = "<!-- end -->\n";

const GIB: u64 = 1 << 30;

/// What weights are multiplied at, in GB/s.
const PRODUCT_GB_S: f64 = 40.0;
/// Rates of a drive, in GB/s. The README and the times of prompts have the first.
const DRIVES_GB_S: [f64; 2] = [3.0, 6.0];
/// Memory that the system and other programs have.
const OTHERS_BYTES: u64 = 4 * GIB;

/// Memory sizes of machines.
const MACHINES_GIB: [u64; 6] = [8, 16, 24, 32, 64, 128];
/// Those of laptops, in the README.
const LAPTOPS_GIB: [u64; 4] = [16, 24, 32, 64];

/// Positions of the sessions that are planned, and of one for a coding agent.
const CTX: usize = 16_384;
const AGENT_CTX: usize = 65_536;
/// Tokens of the prompt whose reads are shown.
const PROMPT: usize = 16_384;
/// Rows of a chunk that are tried, and the part of the free memory that their activations may take,
/// as plans choose them.
const CHUNKS: [usize; 5] = [2048, 1024, 512, 256, 128];
const CHUNK_SHARE: u64 = 5;
const CHECKPOINT_BYTES: u64 = 256 << 20;

/// A page, and the shape that it is about.
struct Page {
    file: &'static str,
    shape: &'static str,
    weights: Weights,
    /// Its name in the README, if it is there.
    readme: Option<&'static str>,
}

/// How weights are stored.
#[derive(Clone, Copy)]
enum Weights {
    /// Those of MLX and of `pack`.
    FourBits,
    /// As gpt-oss is published.
    Mxfp4,
    /// As ModelOpt stores them.
    Nvfp4,
    /// As Kimi K2 is published.
    Int4,
}

impl Weights {
    fn name(self) -> &'static str {
        match self {
            Weights::FourBits => "4 bits in groups of 64",
            Weights::Mxfp4 => "experts in MXFP4, the rest in BF16",
            Weights::Nvfp4 => "experts in NVFP4, the rest in BF16",
            Weights::Int4 => "experts in INT4, the rest in BF16",
        }
    }

    fn options(self) -> SynthOptions {
        let plain = SynthOptions { is_hollow: true, ..SynthOptions::default() };
        let tool = |format| SynthOptions { format: SynthFormat::Tool(format), ..plain.clone() };
        match self {
            Weights::FourBits => plain,
            Weights::Mxfp4 => SynthOptions { bits: 16, has_mxfp4_experts: true, ..plain },
            Weights::Nvfp4 => tool(ToolFormat::Nvfp4),
            Weights::Int4 => tool(ToolFormat::Int4),
        }
    }
}

const fn page(file: &'static str, weights: Weights, readme: Option<&'static str>) -> Page {
    Page { file, shape: file, weights, readme }
}

const PAGES: [Page; 13] = [
    page("qwen3.6-35b-a3b", Weights::FourBits, Some("Qwen3.6-35B-A3B")),
    page("qwen3-30b-a3b", Weights::FourBits, None),
    page("gemma-4-26b-a4b", Weights::FourBits, None),
    page("gpt-oss-20b", Weights::Mxfp4, None),
    page("gpt-oss-120b", Weights::Mxfp4, Some("gpt-oss-120b")),
    page("qwen3-next-80b-a3b", Weights::FourBits, Some("Qwen3-Next-80B-A3B, Coder-Next")),
    page("qwen3.8-flash-next", Weights::Nvfp4, Some("Qwen3.8-Flash-Next")),
    page("glm-4.5-air", Weights::FourBits, Some("GLM-4.5-Air")),
    page("minimax-m2", Weights::FourBits, None),
    page("qwen3.5-397b-a17b", Weights::FourBits, Some("Qwen3.5-397B-A17B")),
    page("deepseek-v3", Weights::FourBits, None),
    page("glm-5", Weights::FourBits, None),
    Page { shape: "kimi-k2.5", ..page("kimi-k2", Weights::Int4, None) },
];

/// A checkpoint with the sizes of a model and no weights.
struct Hollow {
    dir: TempDir,
    shape: &'static str,
}

impl Hollow {
    fn of(page: &Page) -> Hollow {
        let dir = tempfile::tempdir().unwrap();
        let options = page.weights.options();
        let made = synthesise(page.shape, &dir.path().join("model"), &options, &mut |_| {});
        made.unwrap_or_else(|err| panic!("{}: {err}", page.shape));
        Hollow { dir, shape: page.shape }
    }

    fn inspect(&self, options: &EngineOptions) -> Inspection {
        let found = inspect(&self.dir.path().join("model"), options);
        found.unwrap_or_else(|err| panic!("{}: {err}", self.shape))
    }

    /// With the smallest cache, which leaves the rest of the plan to the options.
    fn with_chunk(&self, chunk: usize) -> Inspection {
        let options = EngineOptions::default().ctx(CTX).chunk(chunk).kv_type(KvType::Bf16);
        let options = options.checkpoint_bytes(CHECKPOINT_BYTES).expert_io(IoChoice::Direct);
        self.inspect(&options.expert_cache(0))
    }

    /// Keys, values and states of a session for an agent; `None` where the family refuses the type.
    fn session_bytes(&self, kv_type: KvType) -> Option<u64> {
        let options = EngineOptions::default().ctx(CTX).chunk(128).kv_type(kv_type);
        let options = options.checkpoint_bytes(0).expert_io(IoChoice::Direct).expert_cache(0);
        let found = inspect(&self.dir.path().join("model"), &options).ok()?;
        Some(Plan { ctx: AGENT_CTX, ..found.plan }.session_bytes())
    }
}

/// What is planned on a machine.
struct Expected {
    plan: Plan,
    forecasts: [Forecast; 2],
}

impl Expected {
    fn has_all(&self) -> bool {
        self.plan.cached_share() >= 1.0
    }

    /// Seconds for the reads of a prompt: each chunk needs nearly all experts.
    fn prompt_seconds(&self) -> f64 {
        let missing = (1.0 - self.plan.cached_share()) * self.plan.expert_bytes as f64;
        PROMPT.div_ceil(self.plan.chunk) as f64 * missing / (DRIVES_GB_S[0] * 1e9)
    }
}

/// A model of which plans for machines are made.
struct Model {
    by_chunk: Vec<Inspection>,
}

impl Model {
    fn of(hollow: &Hollow) -> Model {
        Model { by_chunk: CHUNKS.map(|chunk| hollow.with_chunk(chunk)).into() }
    }

    /// `None` where it does not fit.
    fn on(&self, machine_gib: u64) -> Option<Expected> {
        let budget = (machine_gib * GIB).saturating_sub(OTHERS_BYTES);
        let fits = |found: &&Inspection| {
            let free = budget.saturating_sub(found.plan.fixed_bytes() - found.plan.scratch_bytes);
            found.plan.scratch_bytes <= free / CHUNK_SHARE
        };
        let found = self.by_chunk.iter().find(fits)?;
        let left = budget.checked_sub(found.plan.fixed_bytes())?;
        // Fewer than the experts of a token would be read more than once for it.
        (left >= found.plan.working_set_bytes).then_some(())?;
        let plan = Plan { cache_bytes: left.min(found.plan.expert_bytes), ..found.plan.clone() };
        let forecasts = DRIVES_GB_S.map(|drive| {
            let (product_gb_s, drive_gb_s) = (Some(PRODUCT_GB_S), Some(drive));
            let rates = Rates { product_gb_s, drive_gb_s, ..Rates::default() };
            Forecast::of(found, rates).of_plan(&plan)
        });
        Some(Expected { plan, forecasts })
    }
}

fn gib(bytes: u64) -> String {
    let gib = bytes as f64 / GIB as f64;
    match gib {
        ..9.95 => format!("{gib:.1} GiB"),
        _ => format!("{gib:.0} GiB"),
    }
}

fn time(seconds: f64) -> String {
    match seconds {
        ..99.5 => format!("{seconds:.0} s"),
        _ => format!("{:.0} min", seconds / 60.0),
    }
}

/// What the figures of a page are: sizes, then machines.
fn sizes(page: &Page, hollow: &Hollow, model: &Model) -> String {
    let least = EngineOptions::default().ctx(4096).chunk(128).checkpoint_bytes(0);
    let least = hollow.inspect(&least.expert_io(IoChoice::Pread)).plan;
    let cache_mib = least.min_cache_bytes.div_ceil(1 << 20);
    let least_bytes = least.fixed_bytes() + (cache_mib << 20);
    let checkpoints = if least.state_bytes == 0 { "" } else { " --checkpoint-memory 0" };
    let plan = &model.by_chunk[0].plan;
    let files = plan.resident_bytes + plan.expert_bytes + plan.table_bytes;
    let stored = page.weights.name();
    let sessions = [(KvType::F32, "f32"), (KvType::Bf16, "bf16"), (KvType::Q8, "q8")];
    let sessions: Vec<String> = sessions
        .into_iter()
        .filter_map(|(kv, name)| {
            Some(format!("{} with `--kv-type {name}`", gib(hollow.session_bytes(kv)?)))
        })
        .collect();
    let [per_token, experts] = [plan.bytes_per_token, plan.working_set_bytes].map(gib);
    let whole = gib(plan.fixed_bytes() + plan.expert_bytes);
    format!(
        "\n| | |\n|---|---|\n\
         | files, {stored} | {} |\n\
         | a token reads | {per_token}, {experts} of it experts |\n\
         | least memory | {}: `--ctx 4096 --chunk 128{checkpoints} --expert-cache {cache_mib}MiB` |\n\
         | all experts in memory | {whole}: `--ctx 16384 --kv-type bf16` |\n\
         | a context of 65,536 for agents | {} |\n",
        gib(files),
        gib(least_bytes),
        sessions.join(", "),
    )
}

fn machines(model: &Model) -> String {
    let [slow, fast] = DRIVES_GB_S;
    let mut made = format!(
        "\n| memory of the machine | experts in the cache | drive of {slow} GB/s | of {fast} GB/s | \
         reads for a prompt of 16,384 |\n|---:|---:|---:|---:|---:|\n"
    );
    for machine in MACHINES_GIB {
        let Some(found) = model.on(machine) else { continue };
        let rates = found.forecasts.map(|forecast| match forecast.streamed {
            Some(rate) => format!("{rate} tok/s"),
            None => panic!("no rate on {machine} GiB"),
        });
        let share = 100.0 * found.plan.cached_share();
        let [slow, fast] = rates;
        let prompt = if found.has_all() { "none".into() } else { time(found.prompt_seconds()) };
        let _ = writeln!(made, "| {machine} GB | {share:.0} % | {slow} | {fast} | {prompt} |");
        if found.has_all() {
            break;
        }
    }
    made + "\n"
}

/// Compares what is between the marks of a document with `made`, or puts it there.
fn check(document: &str, made: &str) -> Result<(), String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(document);
    let text = std::fs::read_to_string(&path).map_err(|err| format!("{document}: {err}"))?;
    let parts = text.split_once(BEGIN).and_then(|(head, rest)| Some((head, rest.split_once(END)?)));
    let (head, (kept, tail)) = parts.ok_or(format!("{document}: no {BEGIN} and {END}"))?;
    if kept == made {
        return Ok(());
    }
    if std::env::var_os("MOEFLUX_WRITE_DOCS").is_some_and(|flag| flag == "1") {
        let text = format!("{head}{BEGIN}{made}{END}{tail}");
        return std::fs::write(&path, text).map_err(|err| format!("{document}: {err}"));
    }
    let differs = kept.lines().zip(made.lines()).find(|(kept, made)| kept != made);
    let command = "MOEFLUX_WRITE_DOCS=1 cargo test -p moeflux-engine --test it model_pages::";
    Err(format!("{document} is not current: {differs:?}; write it with {command}"))
}

#[test]
fn pages_of_models_have_what_plans_say() {
    let mut laptops = String::from("\n| 4 bits, a drive of 3 GB/s |");
    LAPTOPS_GIB.iter().for_each(|gib| drop(write!(laptops, " {gib} GB |")));
    laptops.push_str("\n|---|---:|---:|---:|---:|\n");
    let mut faults = Vec::new();
    for page in &PAGES {
        let hollow = Hollow::of(page);
        let model = Model::of(&hollow);
        let made = sizes(page, &hollow, &model) + &machines(&model);
        faults.extend(check(&format!("docs/models/{}.md", page.file), &made).err());
        let Some(name) = page.readme else { continue };
        let _ = write!(laptops, "| [{name}](docs/models/{}.md) |", page.file);
        for machine in LAPTOPS_GIB {
            let found = model.on(machine);
            let rate = found.and_then(|found| found.forecasts[0].streamed);
            let _ = write!(laptops, " {} |", rate.map_or("-".into(), |rate| rate.to_string()));
        }
        laptops.push('\n');
    }
    faults.extend(check("README.md", &(laptops + "\n")).err());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn more_memory_and_faster_drives_are_faster() {
    let hollow = Hollow::of(&PAGES[0]);
    let model = Model::of(&hollow);
    let found: Vec<Expected> = MACHINES_GIB.iter().filter_map(|gib| model.on(*gib)).collect();
    assert_eq!(found.len(), MACHINES_GIB.len());
    let rate =
        |expected: &Expected, drive: usize| expected.forecasts[drive].streamed.unwrap().middle();
    for pair in found.windows(2) {
        assert!(rate(&pair[0], 0) < rate(&pair[1], 0) || pair[0].has_all());
        assert!(pair[0].prompt_seconds() >= pair[1].prompt_seconds());
    }
    assert!(found.iter().all(|at| rate(at, 0) < rate(at, 1) || at.has_all()));
    let [first, last] = [&found[0], &found[found.len() - 1]];
    assert!(!first.has_all() && last.has_all() && last.prompt_seconds() == 0.0);
    for at in &found {
        let total = at.plan.total_bytes() + OTHERS_BYTES;
        assert!(at.has_all() || MACHINES_GIB.iter().any(|gib| total == gib * GIB), "{total}");
    }
}
