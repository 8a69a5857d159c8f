//! `bench --image`: how long the vision tower takes for a picture.

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use moeflux_engine::measure::Spread;
use moeflux_engine::{Engine, PreparedPicture, Vision};
use serde_json::json;

use crate::args::BenchArgs;
use crate::commands::print;
use crate::files;

/// What was measured.
struct Figures {
    picture: PreparedPicture,
    /// Decoding and resizing.
    prepare: Duration,
    /// The first picture, with which the tower is loaded.
    first: Duration,
    /// The others, in seconds.
    tower: Spread,
}

pub(super) fn run(args: &BenchArgs, path: &Path, engine: &Engine) -> Result<()> {
    let name = || format!("--image {}", path.display());
    let bytes = files::read(path).with_context(name)?;
    let vision = engine.vision();
    ensure!(vision.is_some(), "{}: the model does not take pictures", name());
    let Some(vision) = vision else { return Ok(()) };
    let start = Instant::now();
    let picture = vision.reader().prepare(&bytes, None).with_context(name)?;
    let prepare = start.elapsed();
    let first = see(vision, &picture)?;
    let seconds = (0..args.repeat).map(|_| Ok(see(vision, &picture)?.as_secs_f64()));
    let seconds = seconds.collect::<Result<Vec<f64>>>()?;
    let tower = Spread::of(seconds).unwrap_or_default();
    let figures = Figures { picture, prepare, first, tower };
    let text = if args.json { figures.json(vision)? } else { figures.table(vision) };
    print(&text)?;
    Ok(())
}

fn see(vision: &Vision, picture: &PreparedPicture) -> Result<Duration> {
    vision.forget();
    let start = Instant::now();
    vision.see(picture, &mut |_, _| ControlFlow::Continue(()))?;
    Ok(start.elapsed())
}

impl Figures {
    fn table(&self, vision: &Vision) -> String {
        let Figures { picture, prepare, first, tower } = self;
        let (layout, mut text) = (picture.layout(), String::new());
        let (source, canvas, grid) = (layout.source(), layout.canvas(), layout.grid());
        let [matrices, attention] = vision.operations(layout).map(|operations| operations / 1e12);
        let rate = (matrices + attention) / tower.median;
        let mut line = |name: &str, value: String| {
            writeln!(text, "{name:<17} {value}").expect("a string takes any text");
        };
        line(
            "picture",
            format!(
                "{} x {} pixels, as {} x {}: {} x {} patches, {} tokens",
                source.width,
                source.height,
                canvas.width,
                canvas.height,
                grid.rows,
                grid.columns,
                layout.n_tokens()
            ),
        );
        line("decoded, resized", format!("{:.3} s", prepare.as_secs_f64()));
        line("first picture", format!("{:.3} s, the tower loaded", first.as_secs_f64()));
        line("tower", format!("{:.3} s ({:.3} to {:.3})", tower.median, tower.min, tower.max));
        line(
            "arithmetic",
            format!(
                "{matrices:.2} TFLOP in matrices, {attention:.2} in attention: {rate:.3} TFLOP/s"
            ),
        );
        text
    }

    fn json(&self, vision: &Vision) -> Result<String> {
        let Figures { picture, prepare, first, tower } = self;
        let layout = picture.layout();
        let (source, canvas, grid) = (layout.source(), layout.canvas(), layout.grid());
        let [matrices, attention] = vision.operations(layout);
        let object = json!({
            "picture": [source.width, source.height],
            "canvas": [canvas.width, canvas.height],
            "patches": [grid.rows, grid.columns],
            "tokens": layout.n_tokens(),
            "prepare_s": prepare.as_secs_f64(),
            "first_s": first.as_secs_f64(),
            "tower_s": tower.median,
            "tower_s_min": tower.min,
            "tower_s_max": tower.max,
            "matrix_flop": matrices,
            "attention_flop": attention,
            "tflop_s": (matrices + attention) / 1e12 / tower.median,
            "tower_bytes": vision.tower_bytes(),
        });
        Ok(serde_json::to_string_pretty(&object)? + "\n")
    }
}
