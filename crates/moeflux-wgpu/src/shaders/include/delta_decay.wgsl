// How much stays of a state of the gated delta rule, of what its decay is made of. DECAY: 2 where its
// logarithm is at least a bound.

fn decay_of(a_log: f32, it: f32, bound: f32) -> f32 {
#if DECAY/2
    return exp_(bound * sigmoid(exp_(a_log) * it));
#else
    let rate = exp_(a_log) * softplus(it);
    return exp_(-rate);
#end
}
