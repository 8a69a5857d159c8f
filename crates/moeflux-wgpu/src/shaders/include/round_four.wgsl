// What writes a thread's four columns as `include/quantize.wgsl` says.
#if DIGITS

// The word `i` of a block of a row of this many. The whole workgroup comes along, threads of a
// group side by side, also in their subgroups; who is not inside has zeros.
fn round_four(
    thread: u32, row: u32, n_blocks: u32, block: u32, i: u32, v: vec4<f32>, is_inside: bool,
) {
    // As integers, so that what is not a number is the largest.
    let bits = bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
    var most = max(max(bits.x, bits.y), max(bits.z, bits.w));
#if SUBGROUP*4/GROUP
    most = max(most, subgroupShuffleXor(most, 1u));
    most = max(most, subgroupShuffleXor(most, 2u));
    if (GROUP >= 32u) { most = max(most, subgroupShuffleXor(most, 4u)); }
    if (GROUP >= 64u) { most = max(most, subgroupShuffleXor(most, 8u)); }
    if (GROUP >= 128u) { most = max(most, subgroupShuffleXor(most, 16u)); }
#else
    workgroupBarrier();
    highest[thread] = most;
    workgroupBarrier();
    let first = thread - thread % (GROUP / 4u);
#each k GROUP/4
    most = max(most, highest[first + $ku]);
#end
#end
    let largest = bitcast<f32>(most);
    let factor = select(LARGEST / largest, 0.0, largest == 0.0);
    let scale = largest / LARGEST;
    let limit = vec4<i32>(i32(LARGEST));
    let q = clamp(vec4<i32>(round(v * factor)), -limit, limit);
    var all = q.x + q.y + q.z + q.w;
#if SUBGROUP*4/GROUP
    all += subgroupShuffleXor(all, 1u);
    all += subgroupShuffleXor(all, 2u);
    if (SUMMED_FOURS == 8u) { all += subgroupShuffleXor(all, 4u); }
#else
    totals[thread] = all;
    workgroupBarrier();
    if (i % SUMMED_FOURS == 0u) {
#each k 3
        all += totals[thread + ${k+1}u];
#end
        if (SUMMED_FOURS == 8u) {
#each k 4
            all += totals[thread + ${k+4}u];
#end
        }
    }
#end
    if (!is_inside) { return; }
    if (FLOAT != FLOAT_VALUES && i % SUMMED_FOURS == 0u) {
        let nth = (row * n_blocks + block) * (8u / SUMMED_FOURS) + i / SUMMED_FOURS;
        sums[nth] = vec2<f32>(scale, scale * f32(all));
    }
#if FLOAT/2
    var divided = vec4<f32>(q);
    if (ORDER == ORDER_EVEN_ODD) {
        divided *= vec4<f32>(1.0, 0.0625, 0.00390625, 0.000244140625);
        if ((i & 1u) == 1u) { divided *= 0.0000152587890625; }
    }
    let at = 4u * ((row * 8u + i) * n_blocks + block);
    rounded[at] = bitcast<u32>(divided.x);
    rounded[at + 1u] = bitcast<u32>(divided.y);
    rounded[at + 2u] = bitcast<u32>(divided.z);
    rounded[at + 3u] = bitcast<u32>(divided.w);
#else
#if FLOAT
    let columns = columns_of(i);
    let at = (row * n_blocks + block) * 32u + columns.x;
    rounded[at] = bitcast<u32>(scale * f32(q.x));
    rounded[at + columns.y] = bitcast<u32>(scale * f32(q.y));
    rounded[at + 2u * columns.y] = bitcast<u32>(scale * f32(q.z));
    rounded[at + 3u * columns.y] = bitcast<u32>(scale * f32(q.w));
#else
    let at = 4u * ((row * (2u * DIGITS) + (i >> 2u)) * n_blocks + block) + (i & 3u);
    if (DIGITS == 2u) {
        rounded[at] = bytes((q + vec4<i32>(128)) >> vec4<u32>(8u));
        rounded[at + 8u * n_blocks] = bytes(q);
    } else {
        rounded[at] = bytes(q);
    }
#end
#end
}
#end
