// What products read: matrices, and rows of activations that meet them. How elements are stored is
// in `include/formats.wgsl` and, of blocks of ggml, in `include/blocks.wgsl`.
//
// FORMAT: 0 affine integers of BITS bits; 1 singles; 2 halves; 3 bfloat16; 4 E2M1 and 5 E4M3 in
// groups with scales; 6 E4M3 in rectangles with scales; 7 blocks of ggml of the type BITS. FLOATS:
// how affine scales and biases (0 bfloat16 and 1 half: both in a word; 2 single: a word each) or a
// rectangle's scale are stored; 3 more where biases are apart, as checkpoints have them; 6 more where
// a bias is its scale times -2^(BITS - 1), and only scales are stored. FLOATS of E2M1 and of blocks: 1
// where the device reads halves below the smallest normal as what they are. BITS of small floats: 0
// for scales in E8M0, 1 in E4M3; 2 more for groups of 16 columns; 4 more where all of the matrix
// shares a scale, a single in front of the others, and 8 more where that is apart.

struct Matrix {
    cols: u32,
    n_blocks: u32,
    // A group has 32 columns, shifted by this.
    group_shift: u32,
    // Of the rectangles that share a scale, and how many are side by side.
    block_rows: u32,
    block_cols: u32,
    n_col_blocks: u32,
    // Parts of parameters are whole multiples of 16 bytes.
    unused_a: u32,
    unused_b: u32,
}

@group(0) @binding(1) var<storage, read> w: array<u32>;

// One matrix, or rows of one, and the rows of activations that it meets.
struct Job {
    elements: u32,
    scales: u32,
    first_row: u32,
    n_rows: u32,
    // Pairs: where a row of activations is, and where its output.
    list: u32,
    n_list: u32,
    phase: u32,
    // Added to where outputs and activations are.
    out: u32,
    x: u32,
}

const JOB_WORDS: u32 = 9u;

// The `i`-th job of a list.
fn job_at(list: u32, i: u32) -> Job {
    let at = list + JOB_WORDS * i;
    return Job(
        lists[at], lists[at + 1u], lists[at + 2u], lists[at + 3u],
        lists[at + 4u], lists[at + 5u], lists[at + 6u], lists[at + 7u],
        lists[at + 8u],
    );
}
