//! Kernels in Metal's language, as wgpu-hal hands them to Apple's compiler: its options are those
//! of `Device::load_shader` and `create_pipeline_layout` in its `metal/device.rs`.

use naga::back::msl::{self, BindTarget, EntryPointResources, Options, PipelineOptions};
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{Module, ResourceBinding, ShaderStage};

use crate::kernels::kernel::Variant;
use crate::kernels::source::source;

/// Versions of Metal's language that wgpu-hal asks for, of macOS 10.14 (the first with subgroups) and
/// of macOS 26 (`metal/adapter.rs`, `msl_version`).
pub(super) const OLDEST: (u8, u8) = (2, 1);
pub(super) const NEWEST: (u8, u8) = (4, 0);

/// What kernels may use of Metal's library: what `tools/metal/include/metal_stdlib` has. Of matrices Metal
/// has 8 by 8 alone.
const NAMES: &str = "abs all any atomic_fetch_add_explicit atomic_fetch_max_explicit atomic_load_explicit \
    atomic_store_explicit atomic_uint bool2 bool3 bool4 clamp dot exp2 float2 float3 float4 fma half2 half3 half4 \
    int2 int3 int4 log max mem_flags memory_order_relaxed min popcount rint select simd_max simd_min simd_shuffle \
    simd_shuffle_xor sqrt threadgroup_barrier uint uint2 uint3 uint4 \
    simdgroup_float8x8 simdgroup_half8x8 simdgroup_load simdgroup_multiply_accumulate simdgroup_store";

/// The module, checked.
pub(super) fn parse(variant: Variant, lanes: u32, more: Capabilities) -> (Module, ModuleInfo) {
    let source = source(variant, lanes);
    let module = naga::front::wgsl::parse_str(&source)
        .unwrap_or_else(|err| panic!("{variant:?}: {}", err.emit_to_string(&source)));
    let info = Validator::new(
        ValidationFlags::all(),
        Capabilities::SUBGROUP | Capabilities::SHADER_FLOAT16_IN_FLOAT32 | more,
    )
    .validate(&module)
    .unwrap_or_else(|err| panic!("{variant:?}: {}", err.emit_to_string(&source)));
    (module, info)
}

/// The slots of bindings: their order, and behind them the sizes of all.
fn resources(variant: Variant) -> EntryPointResources {
    let mut resources = EntryPointResources::default();
    let mut slots = 0..=u8::MAX;
    let bindings = std::iter::once('r').chain(variant.info.bindings.chars());
    for (access, slot) in bindings.zip(&mut slots) {
        let binding = ResourceBinding { group: 0, binding: u32::from(slot) };
        let target =
            BindTarget { buffer: Some(slot), mutable: access == 'w', ..Default::default() };
        resources.resources.insert(binding, target);
    }
    resources.sizes_buffer = slots.next();
    resources
}

/// The text for a version of Metal's language.
pub(super) fn translate(
    variant: Variant,
    module: &Module,
    info: &ModuleInfo,
    lang_version: (u8, u8),
) -> Result<String, msl::Error> {
    // `ShaderRuntimeChecks::checked()`, which `create_shader_module` asks for.
    let checked = BoundsCheckPolicy::Restrict;
    let options = Options {
        lang_version,
        per_entry_point_map: [(String::from("main"), resources(variant))].into(),
        inline_samplers: Vec::new(),
        spirv_cross_compatibility: false,
        fake_missing_bindings: false,
        bounds_check_policies: BoundsCheckPolicies {
            index: checked,
            buffer: checked,
            image_load: checked,
            binding_array: BoundsCheckPolicy::Unchecked,
        },
        zero_initialize_workgroup_memory: !variant.writes_first(),
        force_loop_bounding: true,
        task_dispatch_limits: None,
        mesh_shader_primitive_indices_clamp: true,
        emit_int_div_checks: true,
        ray_query_initialization_tracking: true,
    };
    let pipeline = PipelineOptions {
        entry_point: Some((ShaderStage::Compute, String::from("main"))),
        vertex_pulling_transform: true,
        ..PipelineOptions::default()
    };
    Ok(msl::write_string(module, info, &options, &pipeline)?.0)
}

/// An argument of a kernel.
#[derive(Debug)]
pub(super) struct Argument<'a> {
    pub(super) ty: &'a str,
    pub(super) name: &'a str,
    /// Between its brackets; empty for memory of the workgroup.
    pub(super) attribute: &'a str,
}

impl Argument<'_> {
    /// The slot of a buffer.
    pub(super) fn slot(&self) -> Option<usize> {
        self.attribute.strip_prefix("buffer(")?.strip_suffix(')')?.parse().ok()
    }
}

/// The arguments of a text's kernel, one a line.
pub(super) fn arguments(text: &str) -> Option<Vec<Argument<'_>>> {
    let (_, behind) = text.split_once("kernel void main_(\n")?;
    let (lines, _) = behind.split_once("\n) {")?;
    lines.lines().map(read_argument).collect()
}

fn read_argument(line: &str) -> Option<Argument<'_>> {
    let line = line.trim_start_matches([',', ' ']);
    let (declared, attribute) = line.split_once(" [[").unwrap_or((line, ""));
    let (ty, name) = declared.rsplit_once(' ')?;
    Some(Argument { ty, name, attribute: attribute.trim_end_matches("]]") })
}

/// Whether a text is what wgpu-hal and Metal expect.
///
/// # Errors
/// What is wrong with it.
pub(super) fn check(text: &str, variant: Variant, threads: u32) -> Result<(), String> {
    let arguments = arguments(text).ok_or("no kernel with an argument a line")?;
    arguments.iter().try_for_each(|argument| check_argument(argument, variant.info.bindings))?;
    if !text
        .contains(&format!("[[max_total_threads_per_threadgroup({threads})]] kernel void main_("))
    {
        return Err(format!("not {threads} threads"));
    }
    let is_shared = |argument: &&Argument<'_>| argument.ty.starts_with("threadgroup ");
    let is_zeroed = |argument: &&Argument<'_>| {
        let name = argument.name;
        let atomics = format!("metal::atomic_store_explicit(&{name}.inner[__i0], 0, ");
        text.contains(&format!("\n        {name} = {{}};\n")) || text.contains(&atomics)
    };
    let n_shared = arguments.iter().filter(is_shared).count();
    let n_zeroed = arguments.iter().filter(is_shared).filter(is_zeroed).count();
    if n_zeroed != if variant.writes_first() { 0 } else { n_shared } {
        return Err(format!("{n_zeroed} of {n_shared} variables of the workgroup are zeroed"));
    }
    let count = |part: &str| text.matches(part).count();
    let (loops, bounds) = (count("while("), count("if (metal::all(loop_bound"));
    if loops != bounds || count("for (") != count("for (int __i0 = 0; __i0 < ") {
        return Err(format!("{loops} loops, {bounds} of them bounded"));
    }
    check_indices(text)?;
    check_names(text)
}

fn check_argument(argument: &Argument<'_>, bindings: &str) -> Result<(), String> {
    let is_const = argument.ty.starts_with("constant ") || argument.ty.ends_with(" const&");
    let is_right = match argument.slot() {
        Some(0) => argument.ty.starts_with("constant "),
        Some(slot) if slot <= bindings.len() => is_const == (bindings.as_bytes()[slot - 1] == b'r'),
        Some(slot) => slot == bindings.len() + 1 && argument.ty == "constant _mslBufferSizes&",
        None => !argument.attribute.is_empty() || argument.ty.starts_with("threadgroup "),
    };
    if is_right { Ok(()) } else { Err(format!("{argument:?} of {bindings}")) }
}

/// Indices are numbers, or end where the array does.
fn check_indices(text: &str) -> Result<(), String> {
    for (at, _) in text.match_indices('[') {
        let (before, behind) = (&text[..at], &text[at + 1..]);
        let is_attribute = before.ends_with('[') || behind.starts_with('[');
        let is_number = behind.starts_with(|c: char| c.is_ascii_digit());
        // Of loops that naga writes to zero atomics.
        let is_number = is_number || behind.starts_with("__i0]");
        if !is_attribute && !is_number && !behind.starts_with("metal::min(unsigned(") {
            let line = before.lines().last().unwrap_or("");
            return Err(format!("not checked: {line}[{}", behind.lines().next().unwrap_or("")));
        }
    }
    Ok(())
}

fn check_names(text: &str) -> Result<(), String> {
    for behind in text.split("metal::").skip(1) {
        let end = behind.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(behind.len());
        let name = &behind[..end];
        if !NAMES.split_whitespace().any(|known| known == name) {
            return Err(format!("metal::{name}"));
        }
    }
    Ok(())
}
