// The products of what is in both tiles, in `matmul/coop_matmul.wgsl`.
#if EMULATED
        for (var k = 0u; k < 2u * STEP; k++) {
            for (var pair = 0u; pair < PARTS + W_PARTS - 1u; pair++) {
                // Upper parts of weights with all of activations, then lower ones with upper ones.
                let part = select(pair, 0u, pair >= PARTS);
                let w_part = select(0u, 1u, pair >= PARTS);
                let k_x = 8u * PARTS * (k >> 1u) + 8u * part + 4u * (k & 1u);
                let k_w = 8u * W_PARTS * (k >> 1u) + 8u * w_part + 4u * (k & 1u);
                // Software devices stop loops, nested ones together, after 65,535 times.
                for (var i = 0u; i < 8u * X_FRAGS * W_FRAGS; i++) {
                    let o_x = (i * THREADS + thread) / W_TILE;
                    let o_w = (i * THREADS + thread) % W_TILE;
                    let at_x = (o_x & 15u) * X_LD + k_x;
                    let at_w = (o_w & 15u) * W_LD + k_w;
                    var sum = sums[i];
#each k 4
                    sum += dot(
                        vec4<f32>(x_tile[o_x >> 4u][(at_x + $ku) >> 1u][$ku & 1u]),
                        vec4<f32>(w_tile[o_w >> 4u][(at_w + $ku) >> 1u][$ku & 1u]),
                    );
#end
                    sums[i] = sum;
                }
            }
        }
#else
#each s STEP
#each h 2
#each b W_FRAGS
        let b_$s_$h_$b = coopLoad<coop_mat16x16<f16, B>>(
            &w_tile[in_w + $bu][4u * W_PARTS * $su + 2u * $hu][0], W_LD,
        );
#end
#each q PARTS
#each a X_FRAGS
        let a_$s_$h_$q_$a = coopLoadT<coop_mat16x16<f16, A>>(
            &x_tile[in_x + $au][4u * (PARTS * $su + $qu) + 2u * $hu][0], X_LD,
        );
#each b W_FRAGS
        c_$a_$b = coopMultiplyAdd(a_$s_$h_$q_$a, b_$s_$h_$b, c_$a_$b);
#end
#end
#end
#if W_PARTS/2
#each b W_FRAGS
        let lower_$s_$h_$b = coopLoad<coop_mat16x16<f16, B>>(
            &w_tile[in_w + $bu][4u * (W_PARTS * $su + 1u) + 2u * $hu][0], W_LD,
        );
#each a X_FRAGS
        c_$a_$b = coopMultiplyAdd(a_$s_$h_0_$a, lower_$s_$h_$b, c_$a_$b);
#end
#end
#end
#end
#end
#end
