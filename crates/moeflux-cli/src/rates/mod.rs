//! How fast this machine is, for forecasts: what a flag says, what was seen before, and what is
//! measured now, of which the best counts.
//!
//! A forecast of a model whose files are here is made by [`MachineRates::rates`] with its folder. Of
//! a shape, or of a model on the Hub, the drive is that of the Hub's cache, measured once and then
//! remembered. [`MachineRates::known`] measures and writes nothing.

mod load;
mod place;
mod remembered;
mod scratch;

use std::path::{Path, PathBuf};

use moeflux_engine::{Activations, EngineOptions, Inspection, Rates, isa_names};
use moeflux_hub::HubEnv;

use self::load::Load;
use self::remembered::{Before, Kind, Remembered};
use crate::hardware::cpu_name;
use crate::paths;

pub(crate) use self::remembered::today;

/// What is busy now, in words; `None` on an idle machine.
pub(crate) fn busy_now() -> Option<String> {
    Load::watch().in_words()
}

/// Where the rate of the drive is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DriveSource {
    /// A flag.
    Given,
    /// It was measured now.
    Measured,
    /// It was seen on that day, and nothing better now.
    Remembered(String),
    /// There is none, for this reason.
    Unknown(String),
}

/// Where the drive is that a model's experts are read from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place<'a> {
    /// The model's files are in this folder.
    Model(&'a Path),
    /// They would be in the Hub's cache.
    Hub,
}

/// The rates of this machine: what was remembered of them, and what a command line says.
pub(crate) struct MachineRates {
    remembered: Remembered,
    given_drive_gb_s: Option<f64>,
    /// Whether what was seen before is to be forgotten.
    is_again: bool,
    /// Of the machine, before anything was measured.
    load: Option<Load>,
    machine: String,
    hub_dir: PathBuf,
}

/// Rates for a model, and where they are from.
pub(crate) struct Found {
    pub(crate) rates: Rates,
    pub(crate) drive: DriveSource,
}

impl MachineRates {
    /// Reads what is remembered. `given_drive_gb_s` takes the place of any rate of a drive;
    /// `is_again` has everything measured, and what was seen before forgotten.
    pub(crate) fn open(given_drive_gb_s: Option<f64>, is_again: bool) -> MachineRates {
        let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
        MachineRates {
            remembered: Remembered::open(paths::cache_dir().ok().map(|dir| dir.join("rates.json"))),
            given_drive_gb_s,
            is_again,
            load: None,
            machine: format!("{}, {n_cores} cores", cpu_name()),
            hub_dir: HubEnv::from_lookup(|name| std::env::var(name).ok()).cache_dir,
        }
    }

    /// What is wrong with the file of what is remembered.
    pub(crate) fn damage(&self) -> Option<String> {
        self.remembered.damage()
    }

    /// Why what was measured now may be too low, in words.
    pub(crate) fn busy(&self) -> Option<String> {
        self.load.and_then(Load::in_words)
    }

    /// The rates for a model, as far as they are known: nothing is measured or written.
    pub(crate) fn known(
        &self,
        facts: &Inspection,
        options: &EngineOptions,
        place: Place<'_>,
    ) -> Found {
        let memory = |what: String| Some(self.remembered.memory(&what)?.gb_s);
        let (drive_gb_s, drive) = self.known_drive(facts, place);
        let rates = Rates {
            memory_gb_s: memory(self.loop_key(options)),
            product_gb_s: self.product_key(facts, options).and_then(memory),
            drive_gb_s,
            row_seconds: None,
        };
        Found { rates, drive }
    }

    /// The rates for a model. What is not known is measured, and more where the machine is idle;
    /// what an idle machine had is remembered.
    pub(crate) fn rates(
        &mut self,
        facts: &Inspection,
        options: &EngineOptions,
        place: Place<'_>,
    ) -> Found {
        let is_busy = self.load.get_or_insert_with(Load::watch).is_busy();
        let mut found = self.known(facts, options, place);
        let before = if self.is_again && !is_busy { Before::Forgotten } else { Before::Counts };
        self.measure_memory(facts, options, &mut found, before);
        self.measure_drive(facts, place, &mut found, before);
        self.remembered.save();
        found
    }

    fn is_busy(&self) -> bool {
        self.load.is_some_and(Load::is_busy)
    }

    fn measure_memory(
        &mut self,
        facts: &Inspection,
        options: &EngineOptions,
        found: &mut Found,
        before: Before,
    ) {
        let rates = &mut found.rates;
        let is_known = rates.memory_gb_s.is_some() && rates.product_gb_s.is_some();
        if self.is_busy() && is_known && !self.is_again {
            return;
        }
        let now = Rates::of_memory(facts, options);
        let keys = [Some(self.loop_key(options)), self.product_key(facts, options)];
        let known = [&mut rates.memory_gb_s, &mut rates.product_gb_s];
        for ((key, known), now) in
            keys.into_iter().zip(known).zip([now.memory_gb_s, now.product_gb_s])
        {
            let (Some(key), Some(now)) = (key, now) else { continue };
            if !self.is_busy() {
                self.remembered.see(Kind::Memory, &key, 0, now, before);
            }
            *known = Some(best(*known, now, before));
        }
    }

    fn measure_drive(
        &mut self,
        facts: &Inspection,
        place: Place<'_>,
        found: &mut Found,
        before: Before,
    ) {
        let is_known = found.rates.drive_gb_s.is_some();
        let is_given = found.drive == DriveSource::Given;
        let record_bytes = facts.plan.record_bytes;
        if is_given && facts.plan.table_bytes == 0 {
            return;
        }
        let now = match place {
            // Records may be shorter or longer than what a file of no model is read by.
            Place::Model(_) if !(self.is_busy() && is_known) || self.is_again => {
                let now = Rates::of_drive(facts);
                found.rates.row_seconds = now.row_seconds;
                let why = || String::from("the file system of the model has no direct reads");
                now.drive_gb_s.map(|gb_s| (gb_s, record_bytes)).ok_or_else(why)
            }
            Place::Hub if !is_known || self.is_again => {
                let gb_s = scratch::drive_gb_s(&self.hub_dir, record_bytes);
                gb_s.map(|gb_s| (gb_s, scratch::request_bytes(record_bytes)))
            }
            _ => return,
        };
        match now {
            Ok((gb_s, request_bytes)) => {
                if !self.is_busy() {
                    let drive = self.drive_key(place);
                    self.remembered.see(Kind::Drive, &drive, request_bytes, gb_s, before);
                }
                if !is_given && best(found.rates.drive_gb_s, gb_s, before) == gb_s {
                    (found.rates.drive_gb_s, found.drive) = (Some(gb_s), DriveSource::Measured);
                }
            }
            Err(why) if !is_known => found.drive = DriveSource::Unknown(why),
            Err(_) => {}
        }
    }

    fn known_drive(&self, facts: &Inspection, place: Place<'_>) -> (Option<f64>, DriveSource) {
        if let Some(gb_s) = self.given_drive_gb_s {
            return (Some(gb_s), DriveSource::Given);
        }
        match self.remembered.drive(&self.drive_key(place), facts.plan.record_bytes) {
            Some(entry) => (Some(entry.gb_s), DriveSource::Remembered(entry.seen.clone())),
            None => (None, DriveSource::Unknown(String::from("it was not measured yet"))),
        }
    }

    fn drive_key(&self, place: Place<'_>) -> String {
        let dir = match place {
            Place::Model(dir) => dir,
            Place::Hub => &self.hub_dir,
        };
        format!("{} of {}", place::drive_of(dir), self.machine)
    }

    fn loop_key(&self, options: &EngineOptions) -> String {
        format!("plain loop, {}", self.compute_key(options))
    }

    fn product_key(&self, facts: &Inspection, options: &EngineOptions) -> Option<String> {
        let inputs = match options.compute.activations {
            Activations::Full => "f32",
            Activations::Int16 => "int16",
            Activations::Int8 => "int8",
        };
        let format = facts.expert_format()?.name;
        Some(format!("{format} by {inputs}, {}", self.compute_key(options)))
    }

    fn compute_key(&self, options: &EngineOptions) -> String {
        let n_threads = options.compute.threads;
        let threads = n_threads.map_or(String::from("all"), |n| n.to_string());
        let isa = options.compute.isa.as_deref().or_else(|| isa_names().pop()).unwrap_or("scalar");
        format!("{threads} threads, {isa}, {}", self.machine)
    }
}

/// The better rate, or what was measured now where older ones are forgotten.
fn best(known: Option<f64>, now: f64, before: Before) -> f64 {
    match before {
        Before::Counts => known.map_or(now, |known| known.max(now)),
        Before::Forgotten => now,
    }
}
