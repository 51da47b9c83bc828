// Counts for each window and expert e the tokens routed to e, n, and adds n to seen[first + e]. Also writes
// slopes[window, e] = aux · target_count · n / T², the load-balancing loss's gradient for each p_e of the window, where
// target_count is the weight of the window's target tokens in the mean. weights [windows T, stride], slopes [windows,
// stride].
// CPU twin: `model::ops::seen`, `model::ops::balance_slopes`.
//
// One invocation for each window and expert at a time.

override WG: u32 = 64u;

struct Params {
    windows: u32,
    // Tokens in a window, T.
    context: u32,
    // Number of experts, E.
    experts: u32,
    // Stride of the router's rows, at least E.
    stride: u32,
    // Index of the layer's first count.
    first: u32,
    // Weight of a layer's load-balancing loss, times E.
    aux: f32,
}

// Inputs of a step. The seventh is the weight of one target token in the mean.
struct Hyper {
    optimiser: array<f32, 6>,
    share: f32,
}

// Bit that marks a masked target.
const MASKED = 0x80000000u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weights: array<f32>;
@group(0) @binding(2) var<storage, read> targets: array<u32>;
@group(0) @binding(3) var<storage, read> hyper: Hyper;
@group(0) @binding(4) var<storage, read_write> slopes: array<f32>;
@group(0) @binding(5) var<storage, read_write> seen: array<atomic<u32>>;

@compute @workgroup_size(WG)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    for (var i = id.x; i < params.windows * params.experts; i += groups.x * WG) {
        let window = i / params.experts;
        let expert = i % params.experts;
        var count = 0u;
        var target_count = 0u;
        for (var row = window * params.context; row < (window + 1u) * params.context; row++) {
            count += select(0u, 1u, weights[row * params.stride + expert] > 0.0);
            target_count += select(0u, 1u, targets[row] < MASKED);
        }
        let tokens = f32(params.context);
        let counted = params.aux * hyper.share * f32(target_count);
        slopes[window * params.stride + expert] = counted * (f32(count) / tokens) / tokens;
        atomicAdd(&seen[params.first + expert], count);
    }
}
