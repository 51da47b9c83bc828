// Router of a mixture of experts: probs = softmax(logits). weights = probs over their sum for the `active`
// largest of a row (of equal ones the first), and 0 for all others. All are [R, stride], of which the first E columns
// count; the others are set to 0.
// CPU twin: `model::ops::route`.
//
// One invocation per row at a time: there are few experts.

override WG: u32 = 64u;

struct Params {
    // Number of rows, R.
    rows: u32,
    // Number of experts, E.
    experts: u32,
    // Stride of the router's rows, at least E.
    stride: u32,
    // Number of experts chosen for each token.
    chosen: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> logits: array<f32>;
@group(0) @binding(2) var<storage, read_write> probs: array<f32>;
@group(0) @binding(3) var<storage, read_write> weights: array<f32>;

const LOWEST = -3.4028234e38;
// Minimum weight of a chosen expert. A weight above 0 marks the expert as chosen.
const WEIGHT_MIN = 1e-30;

@compute @workgroup_size(WG)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    for (var row = id.x; row < params.rows; row += groups.x * WG) {
        let start = row * params.stride;
        var top = LOWEST;
        for (var e = 0u; e < params.experts; e++) {
            top = max(top, logits[start + e]);
        }
        var sum = 0.0;
        for (var e = 0u; e < params.experts; e++) {
            let p = exp(logits[start + e] - top);
            probs[start + e] = p;
            sum += p;
        }
        for (var e = 0u; e < params.stride; e++) {
            let p = select(0.0, probs[start + e] / sum, e < params.experts);
            probs[start + e] = p;
            weights[start + e] = 0.0;
        }
        var total = 0.0;
        for (var slot = 0u; slot < params.chosen; slot++) {
            // Logits are compared, because they may differ where probabilities do not.
            var best = params.experts;
            for (var e = 0u; e < params.experts; e++) {
                let is_free = weights[start + e] == 0.0;
                if is_free && (best == params.experts || logits[start + e] > logits[start + best]) {
                    best = e;
                }
            }
            weights[start + best] = max(probs[start + best], WEIGHT_MIN);
            total += weights[start + best];
        }
        for (var e = 0u; e < params.experts; e++) {
            if weights[start + e] > 0.0 {
                weights[start + e] = max(weights[start + e] / total, WEIGHT_MIN);
            }
        }
    }
}
