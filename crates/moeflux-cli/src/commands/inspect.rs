//! `moeflux inspect`: what a model's files hold.

use anyhow::Result;
use moeflux_engine::{
    CheckpointKind, Device, DeviceChoice, DeviceFacts, Inspection, PictureFacts, TokenId,
    TowerFacts, devices, dialects,
};
use moeflux_hub::Download;
use moeflux_text::{OutputFormat, Tokenizer, ToolSyntax};
use serde_json::{Value, json};

use super::{download_json, download_text, print, tokenizer_json};
use crate::args::InspectArgs;
use crate::bytes::show;
use crate::model::Inspected;
use crate::{model, paths};

pub(crate) fn run(args: &InspectArgs) -> Result<()> {
    if args.devices {
        let all = devices(paths::gpu_tuning().as_deref());
        let choice = choice(args)?;
        let text = if args.json {
            devices_to_json(&all, choice.as_ref())?
        } else {
            devices_to_text(&all, choice.as_ref())
        };
        print(&text)?;
        return Ok(());
    }
    let found = model::inspect(&args.model, &args.shape, args.json)?;
    let download = found.download.as_ref();
    let text = if args.json {
        to_json(&found, download)?
    } else {
        to_text(&found) + &download.map_or(String::new(), download_text)
    };
    print(&text)?;
    Ok(())
}

/// The device on which the model runs that was named in addition to `--devices`, if one was.
fn choice(args: &InspectArgs) -> Result<Option<DeviceChoice>> {
    if args.model.model.is_none() && args.shape.shape.is_none() {
        return Ok(None);
    }
    let model = args.model.on_any_device();
    Ok(Some(model::inspect(&model, &args.shape, true)?.facts.device))
}

fn devices_to_text(all: &[DeviceFacts], choice: Option<&DeviceChoice>) -> String {
    let chosen = match choice {
        Some(choice) => format!("\nthe model runs on {choice}\n"),
        None if all.is_empty() => String::new(),
        None => String::from(
            "\nmodels run on a GPU where that is faster: moeflux inspect --devices -m MODEL says where\n",
        ),
    };
    if all.is_empty() {
        return String::from("no GPU that this build can use was found\n") + &chosen;
    }
    let mut text = String::new();
    for device in all {
        let DeviceFacts { name, maker_name, driver, kind, subgroup_sizes, .. } = device;
        let (fewest, most) = subgroup_sizes;
        let bytes = show(device.max_binding_bytes);
        let memory = device
            .memory_bytes
            .map_or(String::new(), |bytes| format!("memory of {}, ", show(bytes)));
        text.push_str(&format!(
            "{name}  {maker_name}, {kind} ({driver}), {memory}subgroups of {fewest} to {most}, buffers of {bytes}\n"
        ));
        if device.n_tuned > 0 {
            text.push_str(&format!(
                "       layouts of {} products were measured\n",
                device.n_tuned
            ));
        }
        if let Some(lacks) = &device.lacks {
            text.push_str(&format!("       cannot run models: {lacks}\n"));
        } else if device.is_software {
            text.push_str("       a software device: used only where --device names it\n");
        }
    }
    text + &chosen
}

fn devices_to_json(all: &[DeviceFacts], choice: Option<&DeviceChoice>) -> Result<String> {
    let is_chosen = |name: &str| {
        choice.map(|choice| match choice.device {
            Device::Gpu(None) => name == "gpu:0",
            device => name == device.to_string(),
        })
    };
    let device = |device: &DeviceFacts| {
        json!({
            "name": device.name,
            "maker_name": device.maker_name,
            "driver": device.driver,
            "kind": device.kind,
            "subgroup_sizes": [device.subgroup_sizes.0, device.subgroup_sizes.1],
            "max_binding_bytes": device.max_binding_bytes,
            "memory_bytes": device.memory_bytes,
            "lacks": device.lacks,
            "software": device.is_software,
            "chosen": is_chosen(&device.name),
            "tuned_products": device.n_tuned,
        })
    };
    let all: Vec<_> = all.iter().map(device).collect();
    Ok(serde_json::to_string_pretty(&all)? + "\n")
}

fn kind(facts: &Inspection) -> &'static str {
    match facts.kind {
        CheckpointKind::Safetensors => "safetensors",
        CheckpointKind::Prepared => "prepared directory",
        CheckpointKind::Packed => "packed container",
        CheckpointKind::Gguf => "GGUF",
    }
}

fn to_text(found: &Inspected) -> String {
    let facts = &found.facts;
    let (shape, plan) = (&facts.shape, &facts.plan);
    let mut text = format!(
        "{}\nfamily     {} ({})\nshape      {} layers, hidden {}, vocabulary {}, up to {} positions\n\
         experts    {} of {} a token, in {} layers, {} each\n",
        facts.root.display(),
        facts.family,
        kind(facts),
        shape.n_layers,
        shape.hidden,
        shape.vocab,
        shape.max_positions,
        shape.top_k,
        shape.n_experts,
        shape.n_moe_layers,
        show(plan.record_bytes),
    );
    if shape.has_mtp() {
        text.push_str("MTP        drafts tokens by multi-token prediction\n");
    }
    if let Some(tower) = &facts.tower {
        text.push_str(&format!("vision     {}\n", tower_text(tower)));
    }
    if let Some(why) = &facts.tower_problem {
        text.push_str(&format!("vision     none that can be used: {why}\n"));
    }
    match &found.tokenizer {
        Some(Ok(tokenizer)) => text.push_str(&format!("tokenizer  {tokenizer}\n")),
        Some(Err(why)) => text.push_str(&format!("tokenizer  none that can be used: {why}\n")),
        None => {}
    }
    if let Some(format) = output_format(found) {
        text.push_str(&match (format.syntax(), format.call_example()) {
            (Some(syntax), Ok(example)) => format!("calls      {}: {example:?}\n", syntax.name()),
            (_, reason) => format!("calls      not known: {}\n", reason.err().unwrap_or_default()),
        });
        text.push_str(&format!("thinking   {}\n", format.thinking_name()));
    }
    if let Some(tokenizer) = tokenizer(found) {
        let ends: Vec<&str> = end_texts(&tokenizer).collect();
        let ends = if ends.is_empty() { String::from("at the limit only") } else { ends.join(" ") };
        text.push_str(&format!("ends       {ends}\n"));
        for warning in tokenizer.warnings() {
            text.push_str(&format!("warning    {warning}\n"));
        }
    }
    text.push_str(&format!(
        "a token    reads {}, of which {} are experts\n\nstorage\n",
        show(plan.bytes_per_token),
        show(plan.working_set_bytes),
    ));
    for part in &facts.storage {
        let (bytes, millions) = (show(part.bytes), part.n_elements as f64 / 1e6);
        let (kind, format) = (part.kind, &part.format);
        text.push_str(&format!("  {kind:<18} {bytes:>12}  {format}, {millions:.1} M weights\n"));
    }
    if facts.n_passed_over > 0 {
        let n = facts.n_passed_over;
        text.push_str(&format!(
            "  not used: {n} tensors (other parts, buffers that the config implies, scales of KV caches)\n"
        ));
    }
    if !facts.files.is_empty() {
        text.push_str("\nfiles\n");
    }
    for (path, bytes) in &facts.files {
        let missing = if !found.has_content || path.exists() { "" } else { "  (missing)" };
        text.push_str(&format!("  {:>12}  {}{missing}\n", show(*bytes), path.display()));
    }
    text
}

/// A vision tower in a line.
fn tower_text(tower: &TowerFacts) -> String {
    let (shape, bytes) = (tower.shape, show(tower.shape.n_bytes));
    let millions = shape.n_parameters as f64 / 1e6;
    let mut text = format!("{} blocks, {millions:.1} M parameters, {bytes}", shape.n_blocks);
    if let Some(PictureFacts { patch_size: side, tokens: [least, most] }) = tower.pictures {
        text.push_str(&format!("; patches of {side} pixels, {least} to {most} tokens a picture"));
    }
    text
}

fn tower_json(tower: &TowerFacts) -> Value {
    json!({
        "blocks": tower.shape.n_blocks,
        "parameters": tower.shape.n_parameters,
        "bytes": tower.shape.n_bytes,
        "tensors": tower.n_tensors,
        "file": tower.mmproj,
        "patch_size": tower.pictures.map(|pictures| pictures.patch_size),
        "picture_tokens": tower.pictures.map(|pictures| pictures.tokens),
    })
}

/// The tokenizer, where its files are here.
fn tokenizer(found: &Inspected) -> Option<Tokenizer> {
    let text = Some(&found.facts.text).filter(|_| found.has_content)?;
    Tokenizer::open(text, dialects()).ok()
}

/// The texts of the tokens that end an answer.
fn end_texts(tokenizer: &Tokenizer) -> impl Iterator<Item = &str> {
    let texts = tokenizer.eos_ids().iter().map(|id| tokenizer.token_bytes(*id));
    texts.filter_map(|bytes| std::str::from_utf8(bytes).ok())
}

/// How the model writes calls and thoughts, where its files are here.
fn output_format(found: &Inspected) -> Option<OutputFormat> {
    Some(OutputFormat::of(&tokenizer(found)?))
}

fn ends_json(tokenizer: &Tokenizer) -> Vec<Value> {
    let one = |id: &TokenId| {
        let text = String::from_utf8_lossy(tokenizer.token_bytes(*id));
        json!({"id": id.0, "text": text})
    };
    tokenizer.eos_ids().iter().map(one).collect()
}

fn to_json(found: &Inspected, download: Option<&Download>) -> Result<String> {
    let facts = &found.facts;
    let (shape, plan) = (&facts.shape, &facts.plan);
    let storage = facts.storage.iter().map(|part| {
        json!({
            "kind": part.kind,
            "format": part.format,
            "tensors": part.n_tensors,
            "elements": part.n_elements,
            "bytes": part.bytes,
        })
    });
    let files = facts.files.iter().map(|(path, bytes)| json!({"path": path, "bytes": bytes}));
    let value = json!({
        "root": facts.root,
        "format": kind(facts),
        "family": facts.family,
        "layers": shape.n_layers,
        "moe_layers": shape.n_moe_layers,
        "hidden": shape.hidden,
        "vocab": shape.vocab,
        "experts": shape.n_experts,
        "experts_per_token": shape.top_k,
        "max_positions": shape.max_positions,
        "multi_token_prediction": shape.has_mtp(),
        "vision": facts.tower.as_ref().map(tower_json),
        "tokenizer": tokenizer_json(found),
        "calls": output_format(found).map(|format| json!({
            "syntax": format.syntax().map(ToolSyntax::name),
            "example": format.call_example().ok(),
            "missing": format.call_example().err(),
            "thinking": format.thinking_name(),
        })),
        "ends": tokenizer(found).as_ref().map(ends_json),
        "passed_over_tensors": facts.n_passed_over,
        "record_bytes": plan.record_bytes,
        "expert_bytes": plan.expert_bytes,
        "resident_bytes": plan.resident_bytes,
        "bytes_per_token": plan.bytes_per_token,
        "expert_bytes_per_token": plan.working_set_bytes,
        "storage": storage.collect::<Vec<_>>(),
        "files": files.collect::<Vec<_>>(),
        "download": download.map(download_json),
    });
    Ok(serde_json::to_string_pretty(&value)? + "\n")
}
