// What a hyper-connection does with STREAMS streams of a row, from logits; a thread has a row. PARTS: 3
// where outputs join the streams, else 1.

struct View {
    start: u32,
    width: u32,
    stride: u32,
    unused: u32,
}

struct Params {
    n: u32,
    n_rounds: u32,
    eps: f32,
    unused: u32,
    y: View,
    x: View,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;
// A scale for each part, then a base for each logit.
@group(0) @binding(3) var<storage, read> of_logits: array<f32>;

// The scaled logit at a place of a part.
fn scaled(first: u32, part: u32, i: u32) -> f32 {
    return fma(x[first + i], of_logits[part], of_logits[PARTS + i]);
}

#main_per_element row p.n
    let first = row * p.x.width + p.x.start;
    let out = row * p.y.width + p.y.start;
#each j STREAMS
    let read$j = sigmoid(scaled(first, 0u, $ju)) + p.eps;
#end
#if PARTS/3
#each j STREAMS
    let write$j = 2.0 * sigmoid(scaled(first, 1u, STREAMS + $ju));
#end
#each s STREAMS
#each j STREAMS
    var mix$s_$j = scaled(first, 2u, 2u * STREAMS + $su * STREAMS + $ju);
#end
    var highest$s = mix$s_0;
#each j STREAMS
    highest$s = max(highest$s, mix$s_$j);
#end
    var sum$s = 0.0;
#each j STREAMS
    mix$s_$j = exp_(mix$s_$j - highest$s);
    sum$s += mix$s_$j;
#end
#each j STREAMS
    mix$s_$j = mix$s_$j / sum$s + p.eps;
#end
#end
    for (var round = 0u; round < p.n_rounds; round++) {
        if (round > 0u) {
#each s STREAMS
            sum$s = 0.0;
#each j STREAMS
            sum$s += mix$s_$j;
#end
            sum$s += p.eps;
#each j STREAMS
            mix$s_$j /= sum$s;
#end
#end
        }
#each j STREAMS
        sum$j = 0.0;
#each s STREAMS
        sum$j += mix$s_$j;
#end
        sum$j += p.eps;
#each s STREAMS
        mix$s_$j /= sum$j;
#end
#end
    }
#each j STREAMS
    y[out + STREAMS + $ju] = write$j;
#end
#each s STREAMS
#each j STREAMS
    y[out + 2u * STREAMS + $su * STREAMS + $ju] = mix$s_$j;
#end
#end
#end
#each j STREAMS
    y[out + $ju] = read$j;
#end
}
