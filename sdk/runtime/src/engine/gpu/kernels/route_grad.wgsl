// dlogits = p (s − Σ p s) + w (dw − Σ w dw), row by row, where p, w and dw are rows of probs, weights and dweights, and
// s the slopes of the row's window. All are [R, stride] but slopes, [R / T, stride]; columns from E on become 0.
// CPU twin: `model::ops::route_backward`.
//
// One invocation per row at a time.

override WG: u32 = 64u;

struct Params {
    // Number of rows, R.
    rows: u32,
    // Tokens in a window, T.
    context: u32,
    // Number of experts, E.
    experts: u32,
    // Stride of the router's rows, at least E.
    stride: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> probs: array<f32>;
@group(0) @binding(2) var<storage, read> weights: array<f32>;
@group(0) @binding(3) var<storage, read> dweights: array<f32>;
@group(0) @binding(4) var<storage, read> slopes: array<f32>;
@group(0) @binding(5) var<storage, read_write> dlogits: array<f32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    for (var row = id.x; row < params.rows; row += groups.x * WG) {
        let start = row * params.stride;
        let of_window = row / params.context * params.stride;
        var slope = 0.0;
        var dweight = 0.0;
        for (var e = 0u; e < params.experts; e++) {
            slope += probs[start + e] * slopes[of_window + e];
            dweight += weights[start + e] * dweights[start + e];
        }
        for (var e = 0u; e < params.stride; e++) {
            var d = 0.0;
            if e < params.experts {
                d = probs[start + e] * (slopes[of_window + e] - slope);
                d += weights[start + e] * (dweights[start + e] - dweight);
            }
            dlogits[start + e] = d;
        }
    }
}
