//! The figures of the pages of `docs/models/` and of the README's table of laptops: plans of checkpoints
//! without weights, and forecasts for rates that are assumed, so that every machine makes the same
//! pages. With `MOEFLUX_WRITE_DOCS=1` these tests write the figures in place of comparing them.

use std::fmt::Write as _;
use std::path::Path;

use moeflux_convert::synth::{SynthFormat, SynthOptions, ToolFormat};
use moeflux_convert::synthesise;
use moeflux_engine::{EngineOptions, Forecast, Inspection, KvType, Plan, Rate, Rates, inspect};
use moeflux_store::IoChoice;

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
        let plain = SynthOptions { is_hollow: true, has_vision: false, ..SynthOptions::default() };
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

/// A model, inspected in a checkpoint that has its sizes and no weights.
struct Model {
    shape: &'static str,
    f32: Inspection,
    bf16: Inspection,
    /// `None` where the family refuses it.
    q8: Option<Inspection>,
}

impl Model {
    fn of(page: &Page) -> Model {
        let (shape, dir) = (page.shape, tempfile::tempdir().unwrap());
        let out = dir.path().join(shape);
        synthesise(shape, &out, &page.weights.options(), &mut |_| {})
            .unwrap_or_else(|err| panic!("{shape}: {err}"));
        let inspected = |kv_type| {
            let options = EngineOptions::default().ctx(CTX).chunk(128).kv_type(kv_type);
            inspect(&out, &options.checkpoint_bytes(0).expert_io(IoChoice::Pread))
        };
        let [f32, bf16] = [KvType::F32, KvType::Bf16].map(|kv_type| {
            inspected(kv_type).unwrap_or_else(|err| panic!("{shape}, {kv_type:?}: {err}"))
        });
        Model { shape, f32, bf16, q8: inspected(KvType::Q8).ok() }
    }

    /// The plan of a session in BF16.
    fn plan(&self, chunk: usize) -> Plan {
        self.plan_of(&self.bf16, CTX, chunk, CHECKPOINT_BYTES)
    }

    /// The plan with the least memory.
    fn least(&self, found: &Inspection) -> Plan {
        self.plan_of(found, 4096, 128, 0)
    }

    fn plan_of(&self, found: &Inspection, ctx: usize, chunk: usize, checkpoints: u64) -> Plan {
        let options = EngineOptions::default().ctx(ctx).chunk(chunk).checkpoint_bytes(checkpoints);
        found.plan_with(options.memory).unwrap_or_else(|err| panic!("{}: {err}", self.shape))
    }

    /// `None` where it does not fit.
    fn on(&self, machine_gib: u64) -> Option<Expected> {
        let budget = (machine_gib * GIB).saturating_sub(OTHERS_BYTES);
        let fits = |plan: &Plan| {
            let free = budget.saturating_sub(plan.fixed_bytes() - plan.scratch_bytes);
            plan.scratch_bytes <= free / CHUNK_SHARE
        };
        let plan = CHUNKS.iter().map(|chunk| self.plan(*chunk)).find(fits)?;
        let left = budget.checked_sub(plan.fixed_bytes())?;
        // Fewer than the experts of a token would be read more than once for it.
        (left >= plan.working_set_bytes).then_some(())?;
        let plan = Plan { cache_bytes: left.min(plan.expert_bytes), ..plan };
        let forecasts = DRIVES_GB_S.map(|drive| {
            let (product_gb_s, drive_gb_s) = (Some(PRODUCT_GB_S), Some(drive));
            let rates = Rates { product_gb_s, drive_gb_s, ..Rates::default() };
            Forecast::of(&self.bf16, rates).of_plan(&plan)
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

fn range(rate: Rate) -> String {
    match rate {
        Rate { low, high } if high < 1.0 => format!("{low:.2}-{high:.2}"),
        rate => rate.to_string(),
    }
}

fn time(seconds: f64) -> String {
    match seconds {
        ..0.95 => String::from("under 1 s"),
        ..99.5 => format!("{seconds:.0} s"),
        _ => format!("{:.0} min", seconds / 60.0),
    }
}

/// What a model needs.
fn sizes(page: &Page, model: &Model) -> String {
    let least = model.least(&model.f32);
    let cache_mib = least.min_cache_bytes.div_ceil(1 << 20);
    let least_bytes = least.fixed_bytes() + (cache_mib << 20);
    let checkpoints = if least.state_bytes == 0 { "" } else { " --checkpoint-memory 0" };
    let plan = model.plan(CHUNKS[0]);
    let files = plan.resident_bytes + plan.expert_bytes + plan.table_bytes;
    let stored = page.weights.name();
    let of_agent = |plan: Plan| gib(Plan { ctx: AGENT_CTX, ..plan }.session_bytes());
    let mut sessions = of_agent(least);
    for (found, name) in [(Some(&model.bf16), "bf16"), (model.q8.as_ref(), "q8")] {
        if let Some(found) = found {
            let bytes = of_agent(model.least(found));
            let _ = write!(sessions, "; {bytes} with `--kv-type {name}`");
        }
    }
    let [per_token, experts] = [plan.bytes_per_token, plan.working_set_bytes].map(gib);
    let whole = gib(plan.fixed_bytes() + plan.expert_bytes);
    format!(
        "\n| | |\n|---|---|\n\
         | files, {stored} | {} |\n\
         | a token reads | {per_token}, {experts} of it experts |\n\
         | least memory | {}: `--ctx 4096 --chunk 128{checkpoints} --expert-cache {cache_mib}MiB` |\n\
         | all experts in memory | {whole}: `--ctx 16384 --kv-type bf16` |\n\
         | a context of 65,536, for agents | {sessions} |\n",
        gib(files),
        gib(least_bytes),
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
            Some(rate) => format!("{} tok/s", range(rate)),
            None => panic!("no rate on {machine} GiB"),
        });
        // Almost all is not all.
        let share = (100.0 * found.plan.cached_share()).floor();
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
    for gib in LAPTOPS_GIB {
        let _ = write!(laptops, " {gib} GB |");
    }
    laptops.push_str("\n|---|---:|---:|---:|---:|\n");
    let mut faults = Vec::new();
    for page in &PAGES {
        let model = Model::of(page);
        let made = sizes(page, &model) + &machines(&model);
        faults.extend(check(&format!("docs/models/{}.md", page.file), &made).err());
        let Some(name) = page.readme else { continue };
        let _ = write!(laptops, "| [{name}](docs/models/{}.md) |", page.file);
        for machine in LAPTOPS_GIB {
            let found = model.on(machine);
            let rate = found.and_then(|found| found.forecasts[0].streamed);
            let _ = write!(laptops, " {} |", rate.map_or("-".into(), range));
        }
        laptops.push('\n');
    }
    faults.extend(check("README.md", &(laptops + "\n")).err());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn more_memory_and_faster_drives_are_faster() {
    let model = Model::of(&PAGES[0]);
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
