//! A kernel in Metal's language as a part of `tools/metal/runner.cpp`.

use std::fmt::Write as _;

use moeflux_core::fnv1a_64;
use naga::valid::Capabilities;
use naga::{AddressSpace, Module, Scalar, ScalarKind, StorageAccess, TypeInner};

use super::super::translate::{arguments, parse};
use crate::kernels::kernel::Variant;

/// How the elements of a buffer are compared, as the runner numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Singles = 0,
    Halves = 1,
    Words = 2,
}

/// The kind of each buffer.
pub(super) fn kinds(variant: Variant) -> Vec<Kind> {
    let (module, _) = parse(variant, 32, Capabilities::SHADER_FLOAT16);
    let mut kinds = vec![Kind::Words; variant.info.bindings.len()];
    for (_, variable) in module.global_variables.iter() {
        let (Some(binding), TypeInner::Array { base, .. }) =
            (&variable.binding, &module.types[variable.ty].inner)
        else {
            continue;
        };
        let is_storage = matches!(variable.space, AddressSpace::Storage { access } if access.contains(StorageAccess::LOAD));
        if let (true, Some(scalar)) = (is_storage, module.types[*base].inner.scalar()) {
            kinds[binding.binding as usize - 1] = match scalar {
                Scalar { kind: ScalarKind::Float, width: 4 } => Kind::Singles,
                Scalar { kind: ScalarKind::Float, .. } => Kind::Halves,
                _ => Kind::Words,
            };
        }
    }
    kinds
}

/// The name of a kernel's text, and a C++ file with it that lists it under that name.
pub(super) fn program(text: &str, module: &Module) -> (String, String) {
    let name = format!("{:016x}", fnv1a_64(text.as_bytes()));
    let [entry] = &module.entry_points[..] else { panic!("one entry point") };
    let [x, y, z] = entry.workgroup_size;
    let (mut shared, mut listed, mut passed) = (String::new(), String::new(), Vec::new());
    for argument in arguments(text).expect("one a line") {
        if let Some(slot) = argument.slot() {
            let words = argument.ty.trim_end_matches('&').split(' ');
            let plain: Vec<&str> =
                words.filter(|word| !["device", "constant", "const"].contains(word)).collect();
            passed.push(format!("*({}*)msl::buffers[{slot}]", plain.join(" ")));
        } else if let Some(ty) = argument.ty.strip_prefix("threadgroup ") {
            let its = format!("{}_shared", argument.name);
            writeln!(shared, "{} {its};", ty.trim_end_matches('&'))
                .expect("a string takes any text");
            write!(listed, "{{&{its}, sizeof {its}}}, ").expect("a string takes any text");
            passed.push(its);
        } else {
            passed.push(format!("msl::position().{}", argument.attribute));
        }
    }
    let sized: String = sized(module).map(|slot| format!("{slot}, ")).collect();
    let passed = passed.join(", ");
    let file = format!(
        "#include \"runner.h\"\nnamespace {{\n{}\n{shared}void run() {{ main_({passed}); }}\n\
         const msl::Kernel listed = {{\"{name}\", run, {{{x}, {y}, {z}}}, {{{sized}0}}, {{{listed}{{}}}}}};\n\
         const msl::Listed entry(listed);\n}}\n",
        with_makers(text)
    );
    (name, file)
}

/// Other names of vectors make vectors too: clang needs a macro for that.
fn with_makers(text: &str) -> String {
    let with_maker = |line: &str| {
        let names = line.strip_prefix("typedef metal::").and_then(|names| names.split_once(' '));
        // Arrays have brackets.
        let names = names.filter(|(_, name)| !name.contains('['));
        let maker = names.map(|(vector, name)| {
            let name = name.trim_end_matches(';');
            format!("#define {name}(...) make_{vector}(__VA_ARGS__)\n")
        });
        format!("{line}\n{}", maker.unwrap_or_default())
    };
    text.lines().map(with_maker).collect()
}

/// The slots of buffers whose sizes are passed to the kernel, as wgpu-hal collects them.
fn sized(module: &Module) -> impl Iterator<Item = u32> {
    let variables = module.global_variables.iter().map(|(_, variable)| variable);
    let sized = variables.filter(|variable| {
        module.types[variable.ty].inner.needs_host_buffer_byte_size(&module.types)
    });
    sized.filter_map(|variable| Some(variable.binding.as_ref()?.binding))
}
