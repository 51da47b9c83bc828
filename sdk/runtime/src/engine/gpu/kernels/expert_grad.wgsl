// On entry, dy [R, F] is the gradient of the expert's gated output before weighting. With w = weights[r, column] and y
// = g σ(g) u: dweights[r, column] ← dy · y, gate_up ← the gradients of `swiglu_grad` for w dy, and dy ← w y. gate_up
// [R, 2 F].
// CPU twin: `model::ops::swiglu_backward`.
//
// One workgroup per row at a time.

override WG: u32 = 64u;

struct Params {
    // Number of rows, R.
    rows: u32,
    // Quads in a row, F / 4.
    quads: u32,
    // Stride of the rows of weights.
    stride: u32,
    // Column of the expert in weights.
    column: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weights: array<f32>;
@group(0) @binding(2) var<storage, read_write> gate_up: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> dy: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> dweights: array<f32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let quads = params.quads;
    for (var row = group.x; row < params.rows; row += groups.x) {
        let place = row * params.stride + params.column;
        let weight = weights[place];
        var sum = 0.0;
        for (var i = lane; i < quads; i += WG) {
            let at = row * 2u * quads + i;
            let g = gate_up[at];
            let u = gate_up[at + quads];
            let d = dy[row * quads + i];
            let s = 1.0 / (1.0 + exp(-g));
            let gated = g * s;
            sum += dot(d, gated * u);
            gate_up[at] = weight * d * u * (s + gated * (1.0 - s));
            gate_up[at + quads] = weight * d * gated;
            dy[row * quads + i] = weight * gated * u;
        }
        let dweight = total(lane, sum);
        if lane == 0u {
            dweights[place] = dweight;
        }
    }
}
