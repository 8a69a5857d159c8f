            // What a block of columns adds to the scores of `attention/coop_matrix.wgsl`, of which N_STEPS squares
            // are multiplied. The next block is on its way meanwhile.
            workgroupBarrier();
#each i Q_LOADS
            tile[q_row$i >> 4u][q_to$i] = eight(q$i);
#end
#each i K_LOADS
            tile[SUBGROUPS + (k_row$i >> 4u)][k_to$i] = eight(k$i);
#end
            workgroupBarrier();
            let ahead = min(block + 1u, K_BLOCKS - 1u);
#each i Q_LOADS
            q$i = queries[q_from$i + ahead * Q_EIGHTS];
#end
#each i K_LOADS
            k$i = cached[k_from + ((t * TILE + k_row$i) * K_BLOCKS + ahead) * EIGHTS];
#end
#if EMULATED
            for (var k = 0u; k < 2u * HALF_EIGHTS; k++) {
                let at = in_square * (LD / 2u) + (k >> 1u);
                let high = vec4<f32>(tile[subgroup][at][k & 1u]);
#if Q_PARTS/2
                let low = vec4<f32>(tile[subgroup][at + HALF_EIGHTS][k & 1u]);
#end
#each b 4
#each h 2
                for (var e = 0u; e < 4u; e++) {
                    let key = (8u * eighth + 4u * $hu + e) * (LD / 2u) + (k >> 1u);
                    let its = vec4<f32>(tile[SUBGROUPS + $bu][key][k & 1u]);
                    var sum = dot(high, its);
#if Q_PARTS/2
                    sum += dot(low, its);
#end
#if PARTS/2
                    sum += dot(high, vec4<f32>(tile[SUBGROUPS + $bu][key + HALF_EIGHTS][k & 1u]));
#end
                    s$b_$h[e] += sum;
                }
#end
#end
            }
#else
#each h N_STEPS
            {
                let high = coopLoadT<coop_mat16x16<f16, A>>(&tile[subgroup][2u * $hu][0], LD);
#if Q_PARTS/2
                let low = coopLoadT<coop_mat16x16<f16, A>>(
                    &tile[subgroup][HALF_EIGHTS + 2u * $hu][0], LD,
                );
#end
#each b 4
                let upper$b = coopLoad<coop_mat16x16<f16, B>>(
                    &tile[SUBGROUPS + $bu][2u * $hu][0], LD,
                );
                c$b = coopMultiplyAdd(high, upper$b, c$b);
#if Q_PARTS/2
                c$b = coopMultiplyAdd(low, upper$b, c$b);
#end
#if PARTS/2
                let lower$b = coopLoad<coop_mat16x16<f16, B>>(
                    &tile[SUBGROUPS + $bu][HALF_EIGHTS + 2u * $hu][0], LD,
                );
                c$b = coopMultiplyAdd(high, lower$b, c$b);
#end
#end
            }
#end
#end
