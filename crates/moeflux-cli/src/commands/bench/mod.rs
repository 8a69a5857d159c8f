//! `moeflux bench`: how fast a model runs, and how fast the machine would let
//! it.

mod figures;
mod gpu;
mod json;
mod kernels;
mod picture;
mod prompt;
mod report;
mod share;
mod table;

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use moeflux_engine::measure::{
    self, DraftKernels, DriveProbe, Machine, MemoryProbe, TeacherForced, Workload,
};
use moeflux_engine::{Device, Engine, EngineOptions, MAX_SESSIONS, TokenId};

use self::figures::{Drive, Figures, Sample};
use self::prompt::Prompts;
use super::print;
use crate::args::BenchArgs;
use crate::error::UsageError;
use crate::files::OutFile;
use crate::report::note;
use crate::{model, rates};

/// How long the drive is measured at each depth in the beginning, and again
/// before every run.
const DEPTH_TIME: Duration = Duration::from_millis(200);
const AGAIN_TIME: Duration = Duration::from_millis(100);

/// Decoded tokens of the run with clocks inside, at most.
const PROFILED_TOKENS: usize = 64;

pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    let sequences = args.sequences;
    if sequences > MAX_SESSIONS {
        return Err(UsageError(format!("--sequences {sequences}: at most {MAX_SESSIONS}")).into());
    }
    let name = || format!("--report {}", args.report.as_deref().unwrap_or("".as_ref()).display());
    let mut plain = args.model.engine_options(false)?;
    if args.report.is_some() && plain.compute.device == Device::Auto {
        // A report has the processor's clocks.
        plain.compute.device = Device::Cpu;
    }
    model::choose_device(&args.model, &mut plain, args.json)?;
    let is_on_gpu = plain.compute.device != Device::Cpu;
    if is_on_gpu && args.report.is_some() {
        let message = format!("{}: its clocks are the processor's; leave it out", name());
        return Err(UsageError(message).into());
    }
    let report = args.report.as_deref().map(OutFile::create).transpose().with_context(name)?;
    let shared = share::open(args)?;
    let text = args.text.as_deref().map(prompt::read).transpose()?;
    if let Some(busy) = args.share.then(rates::busy_now).flatten() {
        note(false, &format!("{busy}: a result of an idle machine says more"));
    }
    let mut options = plain.timed(true);
    if !args.kernels {
        let n_tokens = args.prompt_tokens.saturating_add(args.gen_tokens);
        // A GPU's kernels are timed in one token more.
        options.memory.ctx.get_or_insert(n_tokens.saturating_add(usize::from(is_on_gpu)));
        options.memory.sessions.get_or_insert(sequences);
        // No run returns to an earlier position, except for rejected drafts.
        if args.teacher_force.is_none() && args.mtp_acceptance.is_none() {
            options.memory.checkpoint_bytes.get_or_insert(0);
        }
    }
    let machine = Machine::probe(&options)?;
    measure::reset_peak_memory();
    let engine = model::open_with(&args.model, options.clone(), args.json)?;
    if let Some(path) = &args.image {
        return picture::run(args, path, &engine);
    }
    let prompts = Prompts::new(args, text, &engine)?;
    let teacher_forced = match (&args.teacher_force, args.mtp_acceptance) {
        (Some(path), _) => Some(prompt::to_force(path, args, &engine)?),
        (None, Some(share)) => Some(prompt::with_mtp_acceptance(share, args, &prompts, &engine)?),
        (None, None) => None,
    };
    if args.kernels && is_on_gpu {
        return gpu::kernels(args, &engine, machine, &options);
    }
    if args.kernels {
        return kernels::run(args, &engine, &prompts, &machine, &options);
    }
    let bench = Bench { args, engine: &engine, prompts, teacher_forced, options: &options };
    let figures = bench.measure(machine)?;
    let text = match () {
        () if args.share => share::text(&figures, &engine, options.compute.device)?,
        () if args.json => json::text(&figures)?,
        () => table::text(&figures),
    };
    print(&text)?;
    if let Some(shared) = shared {
        share::write(args, shared, &text)?;
    }
    if let Some(report) = report {
        let html = report::html(&figures);
        report.file().write_all(html.as_bytes()).with_context(name)?;
        report.publish().with_context(name)?;
        note(args.json, &format!("wrote {}", name().trim_start_matches("--report ")));
    }
    Ok(())
}

struct Bench<'a> {
    args: &'a BenchArgs,
    engine: &'a Engine,
    prompts: Prompts,
    /// The tokens of `--teacher-force` or `--mtp-acceptance`.
    teacher_forced: Option<Vec<TokenId>>,
    options: &'a EngineOptions,
}

impl Bench<'_> {
    fn measure(self, machine: Machine) -> Result<Figures> {
        let mut drive = DriveProbe::new(self.engine, self.args.seed);
        let depths = drive.as_mut().map_or(Vec::new(), |drive| drive.depths(DEPTH_TIME));
        // What is measured then finds everything as a run before left it.
        let mut before = if self.args.cold { None } else { Some(self.run(0)?) };
        let memory = self.memory_probe()?;
        let mut samples: Vec<Sample> = Vec::with_capacity(self.args.repeat);
        for i in 1..=self.args.repeat {
            let memory_gb_s = memory.as_ref().map_or(machine.memory_gb_s, MemoryProbe::gb_s);
            let before = before.take();
            let before = samples.last().map(|sample| &sample.run).or(before.as_ref());
            let again = drive.as_ref().zip(before).and_then(|(drive, run)| {
                drive.again(&run.decode.reads, AGAIN_TIME).first().copied()
            });
            let drive_gb_s = again.or(depths.first().copied()).map(|drive| drive.gb_s);
            let (run, together) = (self.run(i)?, self.run_together(i)?);
            let teacher_forced = self.teacher_force()?;
            samples.push(Sample { run, together, teacher_forced, memory_gb_s, drive_gb_s });
        }
        let held = memory.as_ref().map_or(0, MemoryProbe::bytes);
        let peak_rss_bytes = measure::peak_memory().map(|peak| peak.saturating_sub(held));
        drop(memory);
        let profiled = self.work(self.args.repeat + 1);
        let n_gen = profiled.n_gen.min(PROFILED_TOKENS);
        let profile = measure::profile(self.engine, &Workload { n_gen, ..profiled })?;
        let draft = match &self.teacher_forced {
            Some(_) if self.options.compute.device != Device::Cpu => {
                measure::draft_kernels(self.engine, profiled.prompt)?
            }
            _ => DraftKernels::default(),
        };
        let machine = machine.or_awake(self.options);
        if machine.gpu.is_some() {
            samples.iter_mut().for_each(|sample| sample.memory_gb_s = machine.memory_gb_s);
        }
        let drive = drive.map(|drive| Drive {
            depths,
            is_direct: drive.is_direct(),
            has_reread: drive.has_reread(),
            piece_bytes: drive.piece_bytes(),
        });
        Ok(Figures::new(self.args, self.engine, machine, drive, samples)
            .with_profile(profile.unwrap_or_default(), draft)
            .with_peak(peak_rss_bytes))
    }

    /// Memory is measured again before every run, where there is enough of it
    /// for the probe to stay; never a GPU's, which experts fill.
    fn memory_probe(&self) -> Result<Option<MemoryProbe>> {
        const SHARE: u64 = 8;
        if self.options.compute.device != Device::Cpu {
            return Ok(None);
        }
        let available = moeflux_store::usable_memory().available;
        // One that is made and dropped again would be part of the peak.
        let is_small = MemoryProbe::wanted_bytes() as u64 * SHARE <= available;
        is_small.then(|| MemoryProbe::new(self.options)).transpose().map_err(Into::into)
    }

    fn work(&self, i: usize) -> Workload<'_> {
        let prompt = self.prompts.get(i);
        let (n_gen, given) = (self.args.gen_tokens, self.prompts.given(i));
        Workload { prompt, n_gen, given, is_cold: self.args.cold }
    }

    fn run(&self, i: usize) -> Result<measure::Run> {
        Ok(measure::run(self.engine, &self.work(i))?)
    }

    /// Decodes the teacher-forced text without drafts, and with them.
    fn teacher_force(&self) -> Result<Option<[TeacherForced; 2]>> {
        let Some(tokens) = &self.teacher_forced else { return Ok(None) };
        let (prompt, text) = tokens.split_at(self.args.prompt_tokens);
        let text = &text[..text.len().min(self.args.gen_tokens)];
        let [alone, drafted] = [false, true]
            .map(|speculates| measure::teacher_force(self.engine, prompt, text, speculates));
        Ok(Some([alone?, drafted?]))
    }

    /// What the conversations of `--sequences` take together.
    fn run_together(&self, i: usize) -> Result<Option<measure::Phase>> {
        let n = self.args.sequences;
        if n == 1 {
            return Ok(None);
        }
        let works: Vec<Workload<'_>> = (0..n).map(|k| self.work(i * n + k)).collect();
        Ok(Some(measure::run_together(self.engine, &works)?))
    }
}
