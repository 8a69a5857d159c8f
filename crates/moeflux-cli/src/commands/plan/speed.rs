//! Whether a model runs here, and at what rate.

use moeflux_engine::Forecast;

use crate::bytes::show;
use crate::model::Inspected;
use crate::rates::DriveSource;
use crate::results::SharedResult;

/// A forecast, and what is known of its rates.
pub(super) struct Speed {
    pub(super) forecast: Forecast,
    pub(super) drive: DriveSource,
    /// Why what was measured now may be too low.
    pub(super) busy: Option<String>,
    /// What the same model did on a similar machine.
    pub(super) similar: Option<SharedResult>,
}

/// Whether the model runs, from where, and at what rate.
pub(super) fn verdict(found: &Inspected, speed: Option<&Speed>) -> String {
    let plan = &found.facts.plan;
    if !plan.fits() {
        let (needed, usable) = (show(plan.needed_bytes()), show(plan.usable_bytes()));
        return format!("does not run here: it needs {needed}, and {usable} are free");
    }
    let place = if plan.cache_bytes >= plan.expert_bytes {
        String::from("runs from memory")
    } else {
        let share = 100.0 * plan.cached_share();
        format!("runs streamed from the drive (cache: {share:.0} % of experts)")
    };
    let estimate = found.facts.device.tok_s.filter(|_| speed.is_none());
    match (speed.and_then(|speed| speed.forecast.streamed), estimate) {
        (Some(rate), _) => format!("{place}, at about {rate} tok/s"),
        (None, Some(tok_s)) => format!("{place}, at about {tok_s:.0} tok/s by estimate"),
        (None, None) => format!("{place}; the speed was not measured"),
    }
}
