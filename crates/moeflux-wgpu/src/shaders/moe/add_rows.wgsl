// Adds to each of some rows the row of a table.

struct Params {
    n: u32,
    cols: u32,
    // Pairs: where the row begins, and the row of the table. CHOSEN: rows of
    // the table alone, from here on.
    rows: u32,
    // Then: from one row to the next.
    width: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<storage, read> table: array<f32>;
@group(0) @binding(3) var<storage, read> lists: array<u32>;

#main_per_element idx p.n
    let col = idx % p.cols;
#if CHOSEN
    let nth = idx / p.cols;
    y[nth * p.width + col] += table[lists[p.rows + nth] * p.cols + col];
#else
    let at = p.rows + 2u * (idx / p.cols);
    y[lists[at] + col] += table[lists[at + 1u] * p.cols + col];
#end
}
