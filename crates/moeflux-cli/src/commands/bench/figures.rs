//! What all outputs show: medians of what was measured, and their spread.

use moeflux_engine::measure::{
    DraftKernels, DriveRate, LayerCounts, Machine, Phase, Profile, RowStats, Run, Spread,
    TeacherForced, has_hollow_tables, prefill_limit,
};
use moeflux_engine::{DeviceStats, DeviceTuning, Engine};

use crate::args::BenchArgs;

/// One run, and the machine just before it.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) run: Run,
    /// Tokens of several conversations at once.
    pub(super) together: Option<Phase>,
    /// A teacher-forced text, without drafts and with them.
    pub(super) teacher_forced: Option<[TeacherForced; 2]>,
    /// On one thread and on all.
    pub(super) memory_gb_s: [f64; 2],
    /// On the records that the run before read; on unread pieces where there are none.
    pub(super) drive_gb_s: Option<f64>,
}

/// What the drive can do.
#[derive(Clone, Debug)]
pub(super) struct Drive {
    /// The best first.
    pub(super) depths: Vec<DriveRate>,
    pub(super) is_direct: bool,
    pub(super) has_reread: bool,
    pub(super) piece_bytes: usize,
}

/// What runs, and how.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) model: String,
    pub(super) family: &'static str,
    pub(super) n_layers: usize,
    pub(super) experts_per_token: usize,
    pub(super) prompt_tokens: usize,
    pub(super) gen_tokens: usize,
    pub(super) repeat: usize,
    /// Conversations at once.
    pub(super) sequences: usize,
    pub(super) is_cold: bool,
    pub(super) expert_io: String,
    /// Bytes for experts.
    pub(super) cache_bytes: u64,
    /// Bytes of all experts.
    pub(super) expert_bytes: u64,
    pub(super) planned_bytes: u64,
    /// Weights that a token reads, routed experts included.
    pub(super) weight_bytes_per_token: u64,
}

/// Of one phase, over all runs.
#[derive(Clone, Debug, Default)]
pub(super) struct PhaseFigures {
    pub(super) tok_s: Spread,
    /// Bytes of experts that a token asks for.
    pub(super) bytes_per_token: f64,
    /// Bytes that the store read for a token.
    pub(super) read_per_token: f64,
    /// Bytes that the drive read for a token, where the system tells.
    pub(super) storage_per_token: Option<f64>,
    pub(super) hit_rate: f64,
    pub(super) miss_rate: f64,
    pub(super) precision: f64,
    pub(super) recall: f64,
    pub(super) stall_share: f64,
    /// Of the drive while the store was reading.
    pub(super) read_gb_s: Option<f64>,
    pub(super) rh: Option<Spread>,
    /// Where the model has tables whose rows are read one by one.
    pub(super) rows: Option<RowFigures>,
    /// Where a device has memory of its own.
    pub(super) device: Option<DeviceFigures>,
}

/// What became of rows of tables that tokens needed.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowFigures {
    /// Rows of a token.
    pub(super) per_token: f64,
    /// Share of them that were in the cache when a layer asked for them, read ahead or used before.
    pub(super) ready_rate: f64,
    /// Share of them that needed no read of their own.
    pub(super) hit_rate: f64,
    /// Bytes that were read for a token.
    pub(super) read_per_token: f64,
    /// Reads a second while there were any in progress.
    pub(super) reads_s: Option<f64>,
    /// Share of the time in which steps waited for rows.
    pub(super) stall_share: f64,
}

/// What became of experts on a device with memory of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceFigures {
    /// Share of the experts asked for that were there.
    pub(super) hit_rate: f64,
    /// Bytes copied to it for a token.
    pub(super) uploaded_per_token: f64,
    /// While they were copied.
    pub(super) upload_gb_s: Option<f64>,
    /// Kernels that it ran for a token.
    pub(super) kernels_per_token: f64,
    /// Share of the time in which the host waited for it; the rest went into
    /// telling it what to do.
    pub(super) wait_share: f64,
}

/// A text that was made as if the model had chosen it.
#[derive(Clone, Copy, Debug)]
pub(super) struct TeacherForcedFigures {
    /// One by one.
    pub(super) alone: Spread,
    /// With drafts.
    pub(super) drafted: Spread,
    /// Of a run.
    pub(super) tokens_per_step: f64,
    pub(super) drafted_per_token: f64,
    /// Share of drafted tokens that were accepted.
    pub(super) acceptance_rate: f64,
}

#[derive(Clone, Debug)]
pub(super) struct Figures {
    pub(super) setting: Setting,
    pub(super) machine: Machine,
    pub(super) drive: Option<Drive>,
    /// GB/s on one thread, and on all.
    pub(super) memory: [Spread; 2],
    pub(super) drive_gb_s: Option<Spread>,
    pub(super) prefill: PhaseFigures,
    pub(super) decode: PhaseFigures,
    /// Of several conversations at once.
    pub(super) together: Option<PhaseFigures>,
    /// Of a teacher-forced text.
    pub(super) teacher_forced: Option<TeacherForcedFigures>,
    /// Share of the memory's limit that decode reaches, run by run.
    pub(super) memory_share: Spread,
    /// Share of the limit of the arithmetic units that prefill reaches.
    pub(super) arithmetic_share: Option<Spread>,
    /// Milliseconds of every decoded token, run by run.
    pub(super) token_ms: Vec<Vec<f64>>,
    /// Hits and misses of every layer while decoding.
    pub(super) layers: Vec<LayerCounts>,
    pub(super) peak_rss_bytes: Option<u64>,
    pub(super) profile: Profile,
    pub(super) draft: DraftKernels,
    /// Whether rows of tables are read from holes of files.
    pub(super) has_hollow_tables: bool,
    /// Of a GPU, where the model was opened there.
    pub(super) tuning: Option<DeviceTuning>,
}

impl Figures {
    pub(super) fn new(
        args: &BenchArgs,
        engine: &Engine,
        machine: Machine,
        drive: Option<Drive>,
        samples: Vec<Sample>,
    ) -> Figures {
        let of = |part: &dyn Fn(&Sample) -> f64| Spread::of(samples.iter().map(part));
        let drive_gb_s =
            Spread::of(samples.iter().filter_map(|sample| sample.drive_gb_s)).or_else(|| {
                Spread::of(
                    drive.iter().flat_map(|drive| drive.depths.first()).map(|drive| drive.gb_s),
                )
            });
        let memory = [0, 1].map(|i| of(&|sample| sample.memory_gb_s[i]).unwrap_or_default());
        let memory_share =
            of(&|sample| sample.run.decode.weight_gb_s(engine) / sample.memory_gb_s[1]);
        let limit = prefill_limit(engine, &machine);
        let arithmetic_share =
            limit.and_then(|limit| of(&|sample| sample.run.prefill.tok_s() / limit));
        let phase = |part: fn(&Sample) -> Option<&Phase>| {
            let all: Vec<(&Phase, Option<f64>)> = samples
                .iter()
                .filter_map(|sample| Some((part(sample)?, sample.drive_gb_s)))
                .collect();
            (!all.is_empty()).then(|| PhaseFigures::new(engine, &all))
        };
        Figures {
            setting: Setting::new(args, engine),
            drive_gb_s,
            memory,
            prefill: phase(|sample| Some(&sample.run.prefill)).unwrap_or_default(),
            decode: phase(|sample| Some(&sample.run.decode)).unwrap_or_default(),
            together: phase(|sample| sample.together.as_ref()),
            teacher_forced: TeacherForcedFigures::new(&samples),
            memory_share: memory_share.unwrap_or_default(),
            arithmetic_share,
            token_ms: samples.iter().map(milliseconds).collect(),
            layers: layers(&samples),
            peak_rss_bytes: None,
            profile: Profile::default(),
            draft: DraftKernels::default(),
            has_hollow_tables: has_hollow_tables(engine),
            tuning: engine.tuning().cloned(),
            machine,
            drive,
        }
    }

    pub(super) fn with_profile(self, profile: Profile, draft: DraftKernels) -> Figures {
        Figures { profile, draft, ..self }
    }

    pub(super) fn with_peak(self, peak_rss_bytes: Option<u64>) -> Figures {
        Figures { peak_rss_bytes, ..self }
    }

    /// All decoded tokens, the fastest first.
    pub(super) fn sorted_token_ms(&self) -> Vec<f64> {
        let mut all = self.token_ms.concat();
        all.sort_by(f64::total_cmp);
        all
    }

    /// Tokens that took more than three times the median.
    pub(super) fn n_slow_tokens(&self) -> usize {
        let sorted = self.sorted_token_ms();
        let limit = 3.0 * quantile(&sorted, 0.5);
        sorted.iter().filter(|ms| **ms > limit).count()
    }
}

/// The quantile of sorted values at `share`, 0 to 1; 0 of no values.
pub(super) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((share * last as f64).round() as usize).copied().unwrap_or(0.0)
}

fn milliseconds(sample: &Sample) -> Vec<f64> {
    sample.run.steps.iter().map(|step| step.as_secs_f64() * 1e3).collect()
}

/// Decode of all runs together.
fn layers(samples: &[Sample]) -> Vec<LayerCounts> {
    let mut sum: Vec<LayerCounts> = Vec::new();
    for sample in samples {
        let layers = &sample.run.decode.layers;
        sum.resize(sum.len().max(layers.len()), LayerCounts::default());
        for (sum, layer) in sum.iter_mut().zip(layers) {
            sum.hits += layer.hits;
            sum.misses += layer.misses;
        }
    }
    sum
}

impl TeacherForcedFigures {
    fn new(samples: &[Sample]) -> Option<TeacherForcedFigures> {
        let of = |part: &dyn Fn(&[TeacherForced; 2]) -> f64| {
            Spread::of(
                samples.iter().filter_map(|sample| Some(part(sample.teacher_forced.as_ref()?))),
            )
        };
        let share = |n: u64, of: usize| n as f64 / of.max(1) as f64;
        let tokens_per_step = of(&|[_, drafted]| share(drafted.n_tokens as u64, drafted.n_steps))?;
        let drafted_per_token =
            of(&|[_, drafted]| share(drafted.speculation.drafted, drafted.n_tokens))?;
        let acceptance_rate = of(&|[_, text]| {
            text.speculation.accepted as f64 / text.speculation.drafted.max(1) as f64
        })?;
        Some(TeacherForcedFigures {
            alone: of(&|texts| texts[0].tok_s())?,
            drafted: of(&|texts| texts[1].tok_s())?,
            tokens_per_step: tokens_per_step.median,
            drafted_per_token: drafted_per_token.median,
            acceptance_rate: acceptance_rate.median,
        })
    }
}

impl DeviceFigures {
    fn new(all: &[(&Phase, Option<f64>)]) -> Option<DeviceFigures> {
        let rates = all.iter().filter_map(|phase| phase.0.device_hit_rate());
        let of_device = |part: &dyn Fn(&Phase, &DeviceStats) -> f64| {
            Spread::of(all.iter().filter_map(|phase| Some(part(phase.0, phase.0.device.as_ref()?))))
        };
        let per_token = |n: u64, phase: &Phase| n as f64 / phase.n_tokens.max(1) as f64;
        let uploaded = of_device(&|phase, device| per_token(device.uploaded_bytes, phase));
        let kernels = of_device(&|phase, device| per_token(device.kernels, phase));
        let wait_share =
            of_device(&|phase, device| device.wait_ns as f64 / phase.time.as_nanos().max(1) as f64);
        let upload_gb_s = all.iter().filter_map(|(phase, _)| phase.device?.upload_gb_s());
        Some(DeviceFigures {
            hit_rate: Spread::of(rates)?.median,
            uploaded_per_token: uploaded?.median,
            upload_gb_s: Spread::of(upload_gb_s).map(|spread| spread.median),
            kernels_per_token: kernels?.median,
            wait_share: wait_share?.median,
        })
    }
}

impl RowFigures {
    fn new(all: &[(&Phase, Option<f64>)]) -> Option<RowFigures> {
        let of_rows = |part: &dyn Fn(&Phase, &RowStats) -> f64| {
            let rows = all.iter().filter_map(|phase| Some(part(phase.0, phase.0.rows.as_ref()?)));
            Spread::of(rows).map(|spread| spread.median)
        };
        let per_token = |n: u64, phase: &Phase| n as f64 / phase.n_tokens.max(1) as f64;
        let reads_s = all.iter().filter_map(|(phase, _)| phase.rows?.reads_s());
        Some(RowFigures {
            per_token: of_rows(&|phase, rows| per_token(rows.rows, phase))?,
            ready_rate: of_rows(&|_, rows| rows.ready_rate())?,
            hit_rate: of_rows(&|_, rows| rows.hit_rate())?,
            read_per_token: of_rows(&|phase, rows| per_token(rows.bytes_read, phase))?,
            reads_s: Spread::of(reads_s).map(|spread| spread.median),
            stall_share: of_rows(&|phase, _| phase.row_stall_share().unwrap_or(0.0))?,
        })
    }
}

impl PhaseFigures {
    fn new(engine: &Engine, all: &[(&Phase, Option<f64>)]) -> PhaseFigures {
        let spread =
            |part: &dyn Fn(&Phase) -> f64| Spread::of(all.iter().map(|(phase, _)| part(phase)));
        let median =
            |part: &dyn Fn(&Phase) -> f64| spread(part).map_or(0.0, |spread| spread.median);
        let storage = all.iter().filter_map(|(phase, _)| {
            Some(phase.storage_bytes? as f64 / phase.n_tokens.max(1) as f64)
        });
        let rh = all.iter().filter_map(|(phase, drive)| phase.rh(engine, (*drive)?));
        PhaseFigures {
            tok_s: spread(&Phase::tok_s).unwrap_or_default(),
            bytes_per_token: median(&|phase| phase.bytes_per_token(engine)),
            read_per_token: median(&Phase::read_per_token),
            storage_per_token: Spread::of(storage).map(|spread| spread.median),
            hit_rate: median(&|phase| phase.store.hit_rate()),
            miss_rate: median(&|phase| phase.miss_rate(engine)),
            precision: median(&|phase| phase.store.prefetch_precision()),
            recall: median(&|phase| phase.store.prefetch_recall()),
            stall_share: median(&Phase::stall_share),
            read_gb_s: Spread::of(all.iter().filter_map(|(phase, _)| phase.read_gb_s()))
                .map(|spread| spread.median),
            rh: Spread::of(rh),
            rows: RowFigures::new(all),
            device: DeviceFigures::new(all),
        }
    }

    /// Whether the system had in memory most of what the store read.
    pub(super) fn is_page_cached(&self) -> bool {
        self.storage_per_token.is_some_and(|bytes| bytes < self.read_per_token / 2.0)
    }
}

impl Setting {
    fn new(args: &BenchArgs, engine: &Engine) -> Setting {
        let plan = engine.plan();
        let model = args.model.model.clone().unwrap_or_else(|| String::from("demo"));
        Setting {
            model,
            family: engine.family(),
            n_layers: engine.shape().n_layers,
            experts_per_token: engine.shape().top_k,
            prompt_tokens: args.prompt_tokens,
            gen_tokens: args.gen_tokens,
            repeat: args.repeat,
            sequences: args.sequences,
            is_cold: args.cold,
            expert_io: plan.io_mode.to_string(),
            cache_bytes: plan.cache_bytes,
            expert_bytes: plan.expert_bytes,
            planned_bytes: plan.total_bytes(),
            weight_bytes_per_token: plan.bytes_per_token,
        }
    }
}
