// Sums over the first SUMMED threads of a workgroup, whatever its subgroups: as a tree, thread i
// and i + half of them first. All threads come along and get it, and a barrier is between two
// sums.

var<workgroup> partial: array<Summed, SUMMED>;

fn total(thread: u32, value: Summed) -> Summed {
    if (thread < SUMMED) { partial[thread] = value; }
    workgroupBarrier();
#each j SUMMED/SUBGROUP
    var part$j = partial[thread % SUBGROUP + SUBGROUP * $ju];
#end
#each j SUMMED/SUBGROUP/2
    part$j += part${j+SUMMED/SUBGROUP/2};
#end
#each j SUMMED/SUBGROUP/4
    part$j += part${j+SUMMED/SUBGROUP/4};
#end
#each j SUMMED/SUBGROUP/8
    part$j += part${j+SUMMED/SUBGROUP/8};
#end
#each j SUMMED/SUBGROUP/16
    part$j += part${j+SUMMED/SUBGROUP/16};
#end
#each j SUMMED/SUBGROUP/32
    part$j += part${j+SUMMED/SUBGROUP/32};
#end
#each j SUMMED/SUBGROUP/64
    part$j += part${j+SUMMED/SUBGROUP/64};
#end
    var sum = part0;
    if (SUBGROUP >= 32u) { sum += subgroupShuffleXor(sum, 16u); }
    if (SUBGROUP >= 16u) { sum += subgroupShuffleXor(sum, 8u); }
    if (SUBGROUP >= 8u) { sum += subgroupShuffleXor(sum, 4u); }
    sum += subgroupShuffleXor(sum, 2u);
    sum += subgroupShuffleXor(sum, 1u);
    return sum;
}
