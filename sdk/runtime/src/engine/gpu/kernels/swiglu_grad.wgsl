// With g = gate_up[r, f], u = gate_up[r, F + f], s = σ(g): g ← dy u s (1 + g (1 − s)), u ← dy g s,
// and dy ← y = g s u. gate_up [R, 2 F], dy [R, F].
// CPU twin: `model::ops::swiglu_backward`.

override WG: u32 = 64u;

struct Params {
    // Number of rows, R.
    rows: u32,
    // Quads in a row, F / 4.
    quads: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> gate_up: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> dy: array<vec4<f32>>;

@compute @workgroup_size(WG)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let quads = params.quads;
    for (var i = id.x; i < params.rows * quads; i += groups.x * WG) {
        let at = (i / quads) * 2u * quads + i % quads;
        let g = gate_up[at];
        let u = gate_up[at + quads];
        let s = 1.0 / (1.0 + exp(-g));
        let gated = g * s;
        gate_up[at] = dy[i] * u * (s + gated * (1.0 - s));
        gate_up[at + quads] = dy[i] * gated;
        dy[i] = gated * u;
    }
}
