// losses[r] = ln Σ_v exp(logits[r, v]) − logits[r, target], in nats. Replaces the logits by their gradient, share ·
// (softmax − onehot(target)), which is 0 in the padding. A row whose target is masked has loss 0 and gradient 0. logits
// [R, 4 · quads], of which the first V columns are used; targets and losses [R].
// CPU twin: `model::ops::cross_entropy`.
//
// One workgroup per row at a time. WG is a power of two.

override WG: u32 = 64u;

struct Params {
    // Number of rows, R.
    rows: u32,
    // Size of the vocabulary, V.
    vocab: u32,
    // Quads in a row of logits, at least V / 4.
    quads: u32,
}

// Inputs of a step. The seventh is the weight of one target token in the mean.
struct Hyper {
    optimiser: array<f32, 6>,
    share: f32,
}

// Bit that marks a masked target.
const MASKED = 0x80000000u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> targets: array<u32>;
@group(0) @binding(2) var<storage, read> hyper: Hyper;
@group(0) @binding(3) var<storage, read_write> logits: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> losses: array<f32>;

const LOWEST = -3.4028234e38;

// The largest of some logits, and Σ exp(logit − largest) over these logits.
struct Sum {
    top: f32,
    sum: f32,
}

var<workgroup> sums: array<Sum, WG>;

fn merged(a: Sum, b: Sum) -> Sum {
    let top = max(a.top, b.top);
    return Sum(top, a.sum * exp(a.top - top) + b.sum * exp(b.top - top));
}

// Combines the sums of all lanes. Every lane gets the same result. Calls must be in uniform control flow.
fn total(lane: u32, value: Sum) -> Sum {
    sums[lane] = value;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if lane < half {
            sums[lane] = merged(sums[lane], sums[lane + half]);
        }
    }
    return workgroupUniformLoad(&sums[0]);
}

// Returns which columns of a quad are not padding.
fn real(quad: u32) -> vec4<bool> {
    return 4u * quad + vec4(0u, 1u, 2u, 3u) < vec4(params.vocab);
}

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    for (var row = group.x; row < params.rows; row += groups.x) {
        let start = row * params.quads;
        var sum = Sum(LOWEST, 0.0);
        for (var i = lane; i < params.quads; i += WG) {
            let x = select(vec4(LOWEST), logits[start + i], real(i));
            let top = max(sum.top, max(max(x.x, x.y), max(x.z, x.w)));
            let added = select(vec4(0.0), exp(x - top), real(i));
            sum = Sum(top, sum.sum * exp(sum.top - top) + dot(added, vec4(1.0)));
        }
        sum = total(lane, sum);
        let expected = targets[row] & ~MASKED;
        let is_target = targets[row] < MASKED;
        let share = select(0.0, hyper.share, is_target);
        let factor = share / sum.sum;
        for (var i = lane; i < params.quads; i += WG) {
            let x = logits[start + i];
            var gradient = select(vec4(0.0), exp(x - sum.top) * factor, real(i) & vec4(is_target));
            if i == expected / 4u {
                losses[row] = select(0.0, sum.top - x[expected % 4u] + log(sum.sum), is_target);
                gradient[expected % 4u] -= share;
            }
            logits[start + i] = gradient;
        }
    }
}
