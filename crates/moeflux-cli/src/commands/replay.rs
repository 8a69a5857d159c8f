//! `moeflux replay`: what caches and predictors would have made of a recorded
//! routing, compared with the optimum.

use anyhow::{Context, Result};
use moeflux_store::{CachePolicy, Prefetch, Replayer, RoutingTrace};
use serde_json::{Value, json};

use super::print;
use crate::args::{Policy, ReplayArgs};
use crate::error::UsageError;
use crate::values::CacheSize;
use crate::{bytes, files};

/// Everything about one size of cache.
struct Row {
    /// As it was asked for.
    name: String,
    n_slots: usize,
    /// Hit rates on demand alone.
    policies: Vec<(&'static str, f64)>,
    optimum: f64,
    predictors: Vec<Predictor>,
}

/// A predictor whose predictions are all read in time.
struct Predictor {
    policy: &'static str,
    name: &'static str,
    hit_rate: f64,
    reads_per_request: f64,
    accuracy: f64,
}

pub(crate) fn run(args: &ReplayArgs) -> Result<()> {
    let name = || args.trace.display().to_string();
    let trace =
        RoutingTrace::parse(files::read(&args.trace).with_context(name)?).with_context(name)?;
    let n_tokens = trace.n_tokens();
    let skip = args.skip.unwrap_or(0);
    let n_served = n_tokens - n_tokens % args.sequences;
    if n_served <= skip {
        let of_each = match args.sequences {
            1 => String::new(),
            n => format!(" of --sequences {n}"),
        };
        let message =
            format!("{}: {n_tokens} tokens, and --skip {skip}{of_each} leaves none", name());
        return Err(UsageError(message).into());
    }
    let replayer = Replayer::new(&trace).skip(skip).together(args.sequences);
    let choices = match args.policy.as_slice() {
        [] => Policy::ALL.to_vec(),
        some => some.to_vec(),
    };
    let rows: Vec<Row> = args
        .cache
        .iter()
        .map(|size| row(&replayer, &trace, *size, &choices))
        .collect::<Result<_>>()?;
    let text = if args.json { to_json(&trace, args, &rows)? } else { to_text(&trace, args, &rows) };
    print(&text)?;
    Ok(())
}

fn row(
    replayer: &Replayer<'_>,
    trace: &RoutingTrace,
    size: CacheSize,
    choices: &[Policy],
) -> Result<Row> {
    let n_experts = replayer.n_experts();
    let slot_bytes = trace.shape().slot_bytes.max(1);
    let n_slots = match size {
        CacheSize::Share(share) => (share * n_experts as f64).round() as usize,
        CacheSize::Bytes(bytes) => usize::try_from(bytes / slot_bytes).unwrap_or(usize::MAX),
    };
    let n_slots = n_slots.min(n_experts);
    if n_slots < trace.shape().top_k {
        let top_k = trace.shape().top_k;
        let message = format!("--cache {size}: a token needs {top_k} of {n_experts} experts");
        return Err(UsageError(message).into());
    }
    let mut row = Row {
        name: size.to_string(),
        n_slots,
        policies: Vec::new(),
        optimum: replayer.optimum(n_slots).hit_rate(),
        predictors: Vec::new(),
    };
    for choice in choices {
        let policy = CachePolicy::from(*choice);
        row.policies.push((choice.name(), replayer.policy(policy, n_slots).hit_rate()));
        let kinds = [("last-token", Prefetch::LastToken), ("lookahead", Prefetch::Lookahead)];
        for (name, prefetch) in kinds {
            let got = replayer.prefetch(policy, n_slots, prefetch);
            row.predictors.push(Predictor {
                policy: choice.name(),
                name,
                hit_rate: got.demand.hit_rate(),
                reads_per_request: got.reads as f64 / got.demand.requests.max(1) as f64,
                accuracy: got.correct as f64 / got.predictions.max(1) as f64,
            });
        }
    }
    Ok(row)
}

fn to_text(trace: &RoutingTrace, args: &ReplayArgs, rows: &[Row]) -> String {
    let shape = trace.shape();
    let skip = args.skip.unwrap_or(0);
    let mut out = format!(
        "{} tokens, {} counted; {} of {} experts in each of {} layers, {} each\n",
        trace.n_tokens(),
        trace.n_tokens() - skip,
        shape.top_k,
        shape.n_experts,
        shape.layers.len(),
        bytes::show(shape.slot_bytes),
    );
    if args.sequences > 1 {
        out += &format!("cut into {} sequences that run together\n", args.sequences);
    }
    for row in rows {
        out += &format!("\ncache {} ({} experts): hit rate\n", row.name, row.n_slots);
        for (name, rate) in &row.policies {
            out += &format!("  {name:<12} {:5.1} %\n", 100.0 * rate);
        }
        out += &format!("  {:<12} {:5.1} %\n", "optimum", 100.0 * row.optimum);
        out += "  with prefetch, if all reads were in time:\n";
        for predictor in &row.predictors {
            out += &format!(
                "  {:<12} {:<10} {:5.1} %, {:.2} reads per request, accuracy {:.1} %\n",
                predictor.policy,
                predictor.name,
                100.0 * predictor.hit_rate,
                predictor.reads_per_request,
                100.0 * predictor.accuracy,
            );
        }
    }
    out
}

fn to_json(trace: &RoutingTrace, args: &ReplayArgs, rows: &[Row]) -> Result<String> {
    let row = |row: &Row| {
        let policies: serde_json::Map<String, Value> =
            row.policies.iter().map(|(name, rate)| ((*name).to_owned(), json!(rate))).collect();
        let predictor = |predictor: &Predictor| {
            json!({
                "policy": predictor.policy,
                "prefetch": predictor.name,
                "hit_rate": predictor.hit_rate,
                "reads_per_request": predictor.reads_per_request,
                "prediction_accuracy": predictor.accuracy,
            })
        };
        json!({
            "cache": row.name,
            "slots": row.n_slots,
            "hit_rate": policies,
            "optimum": row.optimum,
            "prefetch": row.predictors.iter().map(predictor).collect::<Vec<_>>(),
        })
    };
    let value = json!({
        "tokens": trace.n_tokens(),
        "layers": trace.shape().layers.len(),
        "experts": trace.shape().n_experts,
        "top_k": trace.shape().top_k,
        "sequences": args.sequences,
        "caches": rows.iter().map(row).collect::<Vec<_>>(),
    });
    Ok(serde_json::to_string_pretty(&value)? + "\n")
}
