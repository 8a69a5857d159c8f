//! Every op against the specification, and every kernel against the compilers
//! that the machine at hand does not have.

mod activation;
mod apple;
mod attention;
mod chain;
mod coop_matrix;
mod decoding;
mod grouped;
mod host_access;
mod memory;
mod metal;
mod mixers;
mod narrow;
mod pages;
mod partly_resident;
mod prerecorded;
mod quantize;
mod routing;
mod serials;
mod state_slots;

use std::sync::{Arc, Mutex, PoisonError};

use moeflux_backend::conformance::{self, Closeness, Formats};
use moeflux_backend::{
    ActivationPrecision, Backend, Cols, DeviceError, ExpertResidency, HostMatrix, Ops, Projection,
    Weight,
};
use moeflux_core::quant::{Affine, BlockType, Float, MatrixFormat};
use moeflux_core::{HostBuf, SplitMix64};

use crate::backend::new_backend;
use crate::device::adapter::{enumerate, facts, foreign, lacks, reliable_limits};
use crate::device::context::OpenError;
use crate::device::imports::host_access::HostAccess;
use crate::state::gpu::Wgpu;
use crate::tests::metal::cases::Capturing;
use crate::{Context, Form, Layout, Tiles};

/// Share of a result's largest element by which elements may differ from the
/// specification.
///
/// Both round to 2^-24 at each of at most some thousand additions, in different
/// orders: of errors that add up by chance, the root of their number counts,
/// about 64 * 2^-24 = 4e-6. WGSL's divisions and roots add 2.5 units of the
/// last place.
const RELATIVE: f32 = 1e-5;

/// By how much elements may differ in results that are small because large terms cancel:
/// terms are of the order of one.
const ABSOLUTE: f32 = 1e-5;

/// Allowed besides as a share of the largest element, for products that take each input as one
/// half.
///
/// A half keeps 11 bits: each product is off by 2^-12 of itself at most, by 2^-12 / 3^(1/2) in
/// the root mean square where all errors are as likely. A sum's error is to the sum what its
/// products' errors are to them, as signs are by chance in both, and the largest result is no
/// less than their root mean square: so five times that, which chance exceeds once in two
/// million.
const ONE_HALF: f32 = 5.0 / 4096.0 / 1.732_050_8;

/// How close kernels come: by tiles other than singles many rows are halves.
fn closeness(tiles: Tiles) -> Closeness {
    let one_half = (tiles != Tiles::F32).then_some(ONE_HALF);
    Closeness::Within { absolute: ABSOLUTE, relative: RELATIVE, one_half }
}

/// Devices that tests share. A driver for the processor compiles in one thread of each device, and most of what tests
/// wait for there is compiling.
const N_SHARED: usize = 2;

/// The best GPU, or `None` where there is none and none is expected. Tests that run at the same time have devices of
/// their own as far as there are any; these stay open, with their compiled kernels.
#[expect(clippy::print_stdout, reason = "a test that did not run says so")]
pub(crate) fn context() -> Option<Arc<Context>> {
    static SHARED: Mutex<Vec<Arc<Context>>> = Mutex::new(Vec::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.retain(|context| context.check().is_ok());
    if shared.len() < N_SHARED && shared.iter().all(|context| Arc::strong_count(context) > 1) {
        let adapters = enumerate();
        let usable = adapters.iter().find(|adapter| facts(adapter).lacks.is_none());
        let opened = match usable.or(adapters.first()) {
            Some(adapter) => Context::open_anew(adapter),
            None => Err(OpenError::NoAdapter),
        };
        match opened {
            Ok(context) => shared.push(context),
            Err(err) if std::env::var_os("MOEFLUX_EXPECTED_GPU").is_some() => panic!("{err}"),
            Err(err) => println!("SKIP: {err}"),
        }
    }
    shared.iter().min_by_key(|context| Arc::strong_count(context)).cloned()
}

#[test]
fn every_op_agrees_with_the_specification() {
    let Some(context) = context() else { return };
    let tiles = new_backend(Arc::clone(&context), None).tiles;
    let capturing = Capturing::new(&context);
    conformance::check_ops(&[&|| Box::new(capturing.open())], closeness(tiles));
}

#[test]
fn experts_are_what_they_were_while_their_slots_are_given_away() {
    let Some(context) = context() else { return };
    // From one slot to more than there are experts.
    for slot_bytes in (0..400_000).step_by(20_000) {
        let open = |host_access: HostAccess| -> Box<dyn Backend> {
            let mut backend = new_backend(Arc::clone(&context), Some(slot_bytes));
            backend.encoder.uploads.host_access = host_access;
            Box::new(backend)
        };
        let (written, fetched) = (|| open(HostAccess::Written), || open(HostAccess::Fetched));
        let in_place = || open(HostAccess::InPlace);
        conformance::check_experts_in_turns(
            &[&written, &fetched, &in_place],
            closeness(Tiles::F32),
        );
    }
}

/// Doubles numbers on the device.
fn doubled(backend: &mut Wgpu) -> Result<Vec<f32>, DeviceError> {
    let buf = backend.alloc(1, 3);
    let other = backend.alloc(1, 3);
    for buf in [buf, other] {
        backend.write(buf, &[1.0, 2.0, 3.0]);
    }
    let all = |buf| Cols { buf, start: 0, len: 3 };
    backend.add(1, all(buf), all(other));
    backend.read(buf, 1)
}

#[test]
fn a_lost_device_says_so_at_every_read_back_and_another_can_be_opened() {
    let Some(_) = context() else { return };
    let adapter = enumerate().into_iter().next().unwrap();
    let lost = Context::open_anew(&adapter).unwrap();
    let mut backend = new_backend(Arc::clone(&lost), None);
    assert_eq!(doubled(&mut backend).unwrap(), [2.0, 4.0, 6.0]);
    lost.device.destroy();
    for _ in 0..2 {
        let err = doubled(&mut backend).unwrap_err();
        assert!(matches!(err, DeviceError::Lost { .. }), "{err}");
        assert!(!err.to_string().contains('\n'), "{err}");
    }
    let mut another = new_backend(Context::open_anew(&adapter).unwrap(), None);
    assert_eq!(doubled(&mut another).unwrap(), [2.0, 4.0, 6.0]);
}

#[test]
fn two_threads_use_one_device() {
    let Some(context) = context() else { return };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut backend = new_backend(Arc::clone(&context), None);
                for _ in 0..50 {
                    assert_eq!(doubled(&mut backend).unwrap(), [2.0, 4.0, 6.0]);
                }
            });
        }
    });
}

#[test]
fn names_what_an_adapter_lacks() {
    let all = wgpu::Features::SUBGROUP;
    let limits = wgpu::Limits::default();
    let none = lacks(wgpu::Features::empty(), &limits, 32);
    assert_eq!(none.as_deref(), Some("it has no subgroup operations"));
    assert_eq!(lacks(all, &limits, 32), None);
    let narrow = lacks(all, &limits, 2);
    assert_eq!(narrow.as_deref(), Some("lanes of a subgroup: 2 of 4 needed"));
    let short = wgpu::Limits { max_storage_buffer_binding_size: 1 << 20, ..limits };
    let short = lacks(all, &short, 32);
    assert_eq!(short.as_deref(), Some("bytes of a binding: 1048576 of 134217728 needed"));
}

#[test]
fn metal_runs_on_apples_own_gpus_alone() {
    use wgpu::Backend::{Metal, Vulkan};
    assert_eq!(foreign(Metal, "Apple M1"), None);
    assert_eq!(foreign(Metal, "Apple Paravirtual device"), None);
    assert_eq!(foreign(Vulkan, "Intel(R) Iris(R) Xe Graphics"), None);
    for name in ["Intel(R) UHD Graphics 630", "AMD Radeon Pro 5500M"] {
        let lacks = foreign(Metal, name).unwrap();
        assert!(lacks.contains("Apple") && !lacks.contains('\n'), "{lacks}");
    }
}

#[test]
fn buffers_and_bindings_of_metal_stay_below_four_gib() {
    let large = wgpu::Limits {
        max_buffer_size: 40 << 30,
        max_storage_buffer_binding_size: 40 << 30,
        ..wgpu::Limits::default()
    };
    let metal = reliable_limits(large.clone(), wgpu::Backend::Metal);
    assert_eq!(metal.max_buffer_size, (1 << 32) - 256);
    assert_eq!(metal.max_storage_buffer_binding_size, (1 << 32) - 256);
    assert_eq!(reliable_limits(large.clone(), wgpu::Backend::Vulkan), large);
    let small = wgpu::Limits { max_buffer_size: 1 << 28, ..large };
    assert_eq!(reliable_limits(small, wgpu::Backend::Metal).max_buffer_size, 1 << 28);
}

#[test]
fn a_buffer_beyond_the_limit_is_refused_as_one_beyond_the_memory() {
    let Some(context) = context() else { return };
    let bytes = context.limits.max_buffer_size.saturating_add(4);
    assert!(context.try_storage(bytes, "too large").is_none());
    assert!(context.check().is_ok());
}

/// Layouts that differ in everything.
fn layouts() -> Vec<Layout> {
    let layout = |form, lanes, rows, depth, threads, groups| Layout {
        form,
        lanes,
        rows,
        depth,
        threads,
        groups,
    };
    vec![
        layout(Form::Bytes, 32, 1, 1, 128, u32::MAX),
        layout(Form::Bytes, 4, 2, 2, 256, 1),
        layout(Form::Floats, 32, 2, 1, 128, u32::MAX),
        layout(Form::Floats, 4, 1, 2, 128, 2),
    ]
}

/// A module with a test for the formats of each kind, which calls a function with them.
macro_rules! each_kind_of_formats {
    ($module:ident: $check:ident) => {
        each_kind_of_formats! {
            $module: $check,
            affine Affine, blocks Blocks, codebooks Codebooks, floats Floats, scaled Scaled, symmetric Symmetric,
        }
    };
    ($module:ident: $check:ident, $($test:ident $kind:ident,)*) => {
        mod $module {
            use moeflux_backend::conformance::Formats;

            $(
                #[test]
                fn $test() {
                    super::$check(Formats::$kind);
                }
            )*

            #[test]
            fn no_kind_is_left_out() {
                let tested = [$(Formats::$kind),*];
                assert!(Formats::ALL.iter().all(|kind| tested.contains(kind)));
            }
        }
    };
}

each_kind_of_formats!(products_agree_with_the_specification: check_products);

fn check_products(formats: Formats) {
    let Some(context) = context() else { return };
    let tiles = new_backend(Arc::clone(&context), None).tiles;
    let capturing = Capturing::new(&context);
    conformance::check_products(&[&|| Box::new(capturing.open())], closeness(tiles), formats);
}

each_kind_of_formats!(products_agree_with_the_specification_in_other_forms: check_other_forms);

fn check_other_forms(formats: Formats) {
    let Some(context) = context() else { return };
    // As floats where the device has bytes, and by the kernel for matrix units, with or without.
    let tiles = if context.has_coop_matrix { Tiles::CoopMatrix } else { Tiles::Emulated };
    let capturing = Capturing::new(&context);
    let open = || -> Box<dyn Backend> {
        let mut backend = capturing.open();
        backend.fix_layout(Some(layouts()[2]));
        backend.fix_tiles(tiles);
        Box::new(backend)
    };
    conformance::check_products(&[&open], closeness(tiles), formats);
}

#[test]
fn the_kernels_for_matrix_units_agree_with_singles() {
    let Some(context) = context() else { return };
    if context.has_f16 {
        assert!(crate::self_test::coop_matrix::agree(&context, Tiles::Emulated));
        for inputs in [ActivationPrecision::F32, ActivationPrecision::Int16] {
            let agrees = crate::self_test::coop_matrix::attention_agrees;
            assert!(agrees(&context, Tiles::Emulated, inputs), "{inputs:?}");
        }
    }
}

/// Gives blocks small scales, as those of real weights.
fn set_small_scales(block_type: BlockType, blocks: &mut [u8]) {
    for block in blocks.chunks_exact_mut(block_type.block_bytes()) {
        match block_type {
            BlockType::MXFP4 => block[0] = 116 + block[0] % 8,
            BlockType::NVFP4 => block[..4].iter_mut().for_each(|scale| *scale %= 32),
            // The scale is in the upper halves of four words.
            BlockType::IQ1_M => {
                for (word, nibble) in
                    block[48..].as_chunks_mut::<2>().0.iter_mut().zip([5, 7, 2, 1])
                {
                    word[1] = word[1] & 15 | nibble << 4;
                }
            }
            // Numbers near 0.001.
            _ => {
                for at in block_type.scale_offsets() {
                    block[at + 1] = 0x14 | block[at + 1] & 0x83;
                }
            }
        }
    }
}

fn random_word(random: &mut SplitMix64) -> u16 {
    (random.next_u64() >> 48) as u16
}

/// A reproducible matrix of integers of some kind, or of floats.
fn matrix(
    b: &mut dyn Backend,
    format: MatrixFormat,
    rows: usize,
    cols: usize,
    inputs: ActivationPrecision,
) -> Weight {
    let mut random = SplitMix64::new(1);
    let mut bytes = |len: usize, is_float: bool| {
        let mut buf = HostBuf::zeroed(len);
        for pair in buf[..len].as_chunks_mut::<2>().0 {
            // 0x3c00 begins the numbers near 0.01 in BF16.
            let word = random_word(&mut random);
            *pair = (if is_float { 0x3c00 | word & 0x80ff } else { word }).to_le_bytes();
        }
        buf
    };
    let mut weight = bytes(rows * format.row_bytes(cols), matches!(format, MatrixFormat::Dense(_)));
    if let MatrixFormat::Ggml(it) = format {
        let len = rows * format.row_bytes(cols);
        set_small_scales(it, &mut weight[..len]);
    }
    let n_scales = format.scale_bytes(rows, cols);
    let scales = (n_scales > 0).then(|| bytes(n_scales, true));
    let biases = (n_scales > 0).then(|| bytes(n_scales, true));
    b.load_matrix(HostMatrix { rows, cols, format, inputs, weight, scales, biases })
}

#[test]
fn neither_layout_nor_company_changes_a_bit() {
    let Some(context) = context() else { return };
    let affine = |bits| MatrixFormat::Affine(Affine::new(bits, 64, Float::BF16));
    let cases = [
        (affine(4), ActivationPrecision::Int16),
        (affine(4), ActivationPrecision::Int8),
        (affine(4), ActivationPrecision::F32),
        (affine(8), ActivationPrecision::Int16),
        (affine(3), ActivationPrecision::Int16),
        (MatrixFormat::Dense(Float::BF16), ActivationPrecision::F32),
        // Units of one half and of two, these side by side and apart, with and without a codebook.
        (MatrixFormat::Ggml(BlockType::Q8_0), ActivationPrecision::Int16),
        (MatrixFormat::Ggml(BlockType::Q4_K), ActivationPrecision::Int16),
        (MatrixFormat::Ggml(BlockType::Q6_K), ActivationPrecision::Int8),
        (MatrixFormat::Ggml(BlockType::IQ2_XS), ActivationPrecision::Int16),
        (MatrixFormat::Ggml(BlockType::Q5_0), ActivationPrecision::F32),
    ];
    for (format, inputs) in cases {
        let block_cols = match format {
            MatrixFormat::Ggml(it) => it.block_cols(),
            _ => 1,
        };
        for (rows, cols) in [(37, 128), (70, 512), (19, 2240)] {
            let cols = usize::next_multiple_of(cols, block_cols);
            let mut wanted: Option<Vec<f32>> = None;
            for layout in layouts() {
                let mut b = new_backend(Arc::clone(&context), None);
                b.fix_layout(Some(layout));
                let weight = matrix(&mut b, format, rows, cols, inputs);
                let (x, y) = (b.alloc(7, cols), b.alloc(7, rows));
                let values: Vec<f32> = (0..7 * cols).map(|i| (i as f32 * 0.37).sin()).collect();
                b.write(x, &values);
                let (x, out) =
                    (Cols { buf: x, start: 0, len: cols }, Cols { buf: y, start: 0, len: rows });
                b.project(7, x, &[Projection { weight, out }]);
                let together = b.read(y, 7).expect("the device works");
                b.project(1, x, &[Projection { weight, out }]);
                let alone = b.read(y, 1).expect("the device works");
                let bits =
                    |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                let case = format!("{format:?} {inputs:?} {rows}x{cols} {layout:?}");
                assert_eq!(bits(&alone), bits(&together[..rows]), "alone: {case}");
                let wanted = wanted.get_or_insert_with(|| together.clone());
                assert_eq!(bits(&together), bits(wanted), "{case}");
            }
        }
    }
}

#[test]
fn products_of_inputs_as_they_are_go_along_with_rounded_ones() {
    let Some(context) = context() else { return };
    let (first, second, cols) = (70, 9, 320);
    let affine = |bits| MatrixFormat::Affine(Affine::new(bits, 64, Float::BF16));
    let blocks = [BlockType::Q8_0, BlockType::NVFP4].map(MatrixFormat::Ggml);
    for format in [affine(4), affine(8), affine(3)].into_iter().chain(blocks) {
        for layout in layouts() {
            for rows in [1, 7] {
                let [(want, n_apart), (got, n_both)] = [false, true].map(|fuses| {
                    let mut b = new_backend(Arc::clone(&context), None);
                    b.fuses = fuses;
                    b.fix_layout(Some(layout));
                    let rounded = matrix(&mut b, format, first, cols, ActivationPrecision::Int16);
                    let plain = matrix(&mut b, format, second, cols, ActivationPrecision::F32);
                    let (x, y) = (b.alloc(7, cols), b.alloc(7, first + second));
                    let values: Vec<f32> = (0..7 * cols).map(|i| (i as f32 * 0.37).sin()).collect();
                    b.write(x, &values);
                    let out = Cols { buf: y, start: 0, len: first + second };
                    let outputs = [
                        Projection { weight: rounded, out: out.slice(0, first) },
                        Projection { weight: plain, out: out.slice(first, second) },
                    ];
                    b.project(rows, Cols { buf: x, start: 0, len: cols }, &outputs);
                    let y = b.read(y, rows).expect("the device works");
                    let n_kernels = b.counters().stats().kernels;
                    (y.iter().map(|value| value.to_bits()).collect::<Vec<_>>(), n_kernels)
                });
                assert!(got.iter().all(|bits| f32::from_bits(*bits).is_normal()));
                assert_eq!(got, want, "{format:?}, {rows} rows, {layout}");
                assert_eq!(n_both + 1, n_apart);
            }
        }
    }
}
