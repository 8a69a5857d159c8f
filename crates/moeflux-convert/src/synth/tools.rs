//! Checkpoints in the formats of other tools than MLX: each expert has tensors of its own.

use moeflux_core::ShapedPart;
use moeflux_core::checkpoint::Dtype;
use moeflux_core::manifest::{ExpertsDecl, Manifest, MatrixDecl, Role};
use moeflux_core::quant::{Affine, Float, MatrixFormat, MicroScaled};
use serde_json::{Value, json};

use super::fill::{E4M3_STD, Fill, Noise, affine_scales};
use super::options::ToolFormat;
use super::plan::{Made, gain, indices, is_gate, made, small};
use crate::files::TensorEntry;
use crate::pack::plan::matrix_entries;

/// Rows and columns of a block of FP8.
const FP8_BLOCK: usize = 128;

/// Columns of a group of MXFP4.
const PAIRS_GROUP: usize = 32;

/// The root of the mean square of all codes of E2M1.
const E2M1_STD: f32 = 2.926;

/// All tensors, under the names that Hugging Face gives them.
pub(super) fn tensors(
    manifest: &Manifest,
    tool: ToolFormat,
    tables: Vec<Made>,
    seed: u64,
) -> Vec<Made> {
    let matrices = manifest.matrices.iter().flat_map(|decl| resident(decl, tool, seed));
    let vectors = manifest.vectors.iter().map(|decl| small(decl, seed));
    let indices = manifest.indices.iter().map(|decl| indices(decl, seed));
    let experts = manifest.experts.iter().flat_map(|decl| of_layer(decl, tool, seed));
    let mut all: Vec<Made> = matrices.chain(vectors).chain(indices).chain(experts).collect();
    all.extend(tables);
    for made in &mut all {
        if !made.entry.name.starts_with("lm_head") {
            made.entry.name.insert_str(0, "model.");
        }
    }
    all
}

/// What the config says of the format.
pub(super) fn declaration(tool: ToolFormat) -> Value {
    match tool {
        ToolFormat::Nvfp4 => json!({"quant_method": "modelopt", "quant_algo": "NVFP4",
            "ignore": ["lm_head", "*.mlp.gate"]}),
        ToolFormat::Int4 => {
            json!({"quant_method": "compressed-tensors", "format": "pack-quantized",
            "ignore": ["lm_head", "re:.*self_attn.*", "re:.*mlp\\.(gate|up|down)_proj.*"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4,
                "type": "int", "symmetric": true, "strategy": "group", "group_size": 32}}}})
        }
        ToolFormat::Gptq => json!({"quant_method": "gptq", "bits": 4, "group_size": 128,
            "sym": true, "desc_act": false, "checkpoint_format": "gptq"}),
        ToolFormat::Awq => json!({"quant_method": "awq", "bits": 4, "group_size": 128,
            "zero_point": true, "version": "gemm"}),
        ToolFormat::Fp8 => json!({"quant_method": "fp8", "fmt": "e4m3",
            "weight_block_size": [FP8_BLOCK, FP8_BLOCK]}),
        ToolFormat::Fp4 => json!({"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0",
            "weight_block_size": [FP8_BLOCK, FP8_BLOCK], "expert_dtype": "fp4"}),
    }
}

/// Kimi quantises experts only, others all projections.
fn resident(decl: &MatrixDecl, tool: ToolFormat, seed: u64) -> Vec<Made> {
    let is_quantised =
        decl.role == Role::Projection && !is_gate(&decl.name) && tool != ToolFormat::Int4;
    let matrix = Matrix {
        module: decl.name.clone(),
        rows: decl.rows,
        cols: decl.cols,
        std: gain(decl) / (decl.cols as f32).sqrt(),
        seed,
    };
    if is_quantised && tool.fits(decl.rows, decl.cols) { matrix.made(tool) } else { matrix.plain() }
}

fn of_layer(decl: &ExpertsDecl, tool: ToolFormat, seed: u64) -> Vec<Made> {
    let mut all = Vec::new();
    for expert in 0..decl.n_experts {
        let parts = decl.matrices.names().shaped(decl.hidden, decl.intermediate);
        for ShapedPart { part, rows, cols } in parts {
            let module = format!("{}.experts.{expert}.{part}", decl.prefix);
            let matrix = Matrix { module, rows, cols, std: 1.0 / (cols as f32).sqrt(), seed };
            let has_pairs = tool == ToolFormat::Fp4 && cols.is_multiple_of(PAIRS_GROUP);
            all.extend(if has_pairs {
                matrix.pairs()
            } else if tool.fits(rows, cols) {
                matrix.made(tool)
            } else {
                matrix.plain()
            });
        }
    }
    all
}

impl ToolFormat {
    /// Columns of a group.
    fn group_cols(self) -> usize {
        match self {
            ToolFormat::Nvfp4 => 16,
            ToolFormat::Int4 => 32,
            ToolFormat::Gptq | ToolFormat::Awq => 128,
            ToolFormat::Fp8 | ToolFormat::Fp4 => 1,
        }
    }

    /// Whether a matrix of this shape can be stored.
    fn fits(self, rows: usize, cols: usize) -> bool {
        cols.is_multiple_of(self.group_cols()) && rows.is_multiple_of(8)
    }
}

/// A matrix in the making.
struct Matrix {
    module: String,
    rows: usize,
    cols: usize,
    /// The standard deviation of its elements.
    std: f32,
    seed: u64,
}

impl Matrix {
    fn plain(&self) -> Vec<Made> {
        let format = MatrixFormat::Dense(Float::BF16);
        let entries = matrix_entries(&self.module, &[self.rows], self.cols, format);
        made(entries, format, self.std, self.seed, &self.module)
    }

    fn made(&self, tool: ToolFormat) -> Vec<Made> {
        let Matrix { rows, cols, std, .. } = *self;
        let groups = cols / tool.group_cols();
        match tool {
            ToolFormat::Nvfp4 => {
                let noise = self.noise("s");
                let scales: Vec<u8> =
                    (0..4099).map(|i| 0x34 + (noise.unit(i) * 9.0) as u8).collect();
                let global = (std / E2M1_STD).to_le_bytes();
                vec![
                    self.tensor("weight", Dtype::U8, vec![rows, cols / 2], Fill::Bits),
                    self.tensor(
                        "weight_scale",
                        Dtype::F8E4M3,
                        vec![rows, groups],
                        Fill::cycle(scales),
                    ),
                    self.float("weight_scale_2", Float::F32, vec![], Fill::cycle(global)),
                ]
            }
            ToolFormat::Int4 => vec![
                self.tensor("weight_packed", Dtype::I32, vec![rows, cols / 8], Fill::Bits),
                self.scales("weight_scale", Float::BF16, vec![rows, groups]),
            ],
            ToolFormat::Gptq => {
                // Stored zero points are one less than eight.
                let zeros = Fill::cycle([0x77; 8]);
                let groups_of_columns: Vec<u8> =
                    (0..cols).flat_map(|col| ((col / 128) as u32).to_le_bytes()).collect();
                vec![
                    self.tensor("qweight", Dtype::I32, vec![cols / 8, rows], Fill::Bits),
                    self.tensor("qzeros", Dtype::I32, vec![groups, rows / 8], zeros),
                    self.scales("scales", Float::F16, vec![groups, rows]),
                    self.tensor("g_idx", Dtype::I32, vec![cols], Fill::cycle(groups_of_columns)),
                ]
            }
            ToolFormat::Awq => vec![
                self.tensor("qweight", Dtype::I32, vec![cols, rows / 8], Fill::Bits),
                self.tensor("qzeros", Dtype::I32, vec![groups, rows / 8], Fill::cycle([0x88; 8])),
                self.scales("scales", Float::F16, vec![groups, rows]),
            ],
            ToolFormat::Fp8 => {
                let grid = vec![rows.div_ceil(FP8_BLOCK), cols.div_ceil(FP8_BLOCK)];
                let scale = (std / E4M3_STD).to_le_bytes();
                vec![
                    self.tensor("weight", Dtype::F8E4M3, vec![rows, cols], Fill::SmallE4m3),
                    self.float("weight_scale_inv", Float::F32, grid, Fill::cycle(scale)),
                ]
            }
            ToolFormat::Fp4 => {
                let grid = vec![rows.div_ceil(FP8_BLOCK), cols.div_ceil(FP8_BLOCK)];
                let power = ((std / E4M3_STD).log2().round() + 127.0).clamp(0.0, 254.0) as u8;
                vec![
                    self.tensor("weight", Dtype::F8E4M3, vec![rows, cols], Fill::SmallE4m3),
                    self.tensor("scale", Dtype::F8E8M0, grid, Fill::cycle([power])),
                ]
            }
        }
    }

    /// Two floats of four bits in a byte, and powers of two for groups of them.
    fn pairs(&self) -> Vec<Made> {
        let Matrix { rows, cols, std, .. } = *self;
        let mxfp4 = MatrixFormat::Micro(MicroScaled::MXFP4);
        let [weight, scales, _] = Fill::matrix(mxfp4, std, self.noise("scale"));
        let groups = vec![rows, cols / PAIRS_GROUP];
        vec![
            self.tensor("weight", Dtype::I8, vec![rows, cols / 2], weight),
            self.tensor("scale", Dtype::F8E8M0, groups, scales),
        ]
    }

    fn noise(&self, part: &str) -> Noise {
        Noise::of(self.seed, &format!("{}.{part}", self.module))
    }

    fn tensor(&self, part: &str, dtype: Dtype, shape: Vec<usize>, fill: Fill) -> Made {
        let name = format!("{}.{part}", self.module);
        Made { entry: TensorEntry { name, dtype, shape }, fill, noise: self.noise(part) }
    }

    fn float(&self, part: &str, float: Float, shape: Vec<usize>, fill: Fill) -> Made {
        self.tensor(part, Dtype::Float(float), shape, fill)
    }

    /// Scales that give integers of four bits the standard deviation of the matrix.
    fn scales(&self, part: &str, float: Float, shape: Vec<usize>) -> Made {
        let affine = Affine::new(4, 32, float);
        let scales = affine_scales(affine, self.std, self.noise(part));
        self.float(part, float, shape, Fill::cycle(scales))
    }
}
