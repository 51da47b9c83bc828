// y[r, f] = g σ(g) u with g = gate_up[r, f], u = gate_up[r, F + f], four values at a time.
// CPU twin: `model::ops::swiglu`.
//
// Any number of workgroups covers any number of values (grid stride).

override WG: u32 = 64u;

struct Params {
    // Number of rows, R.
    rows: u32,
    // Quads in a row, F / 4.
    quads: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> gate_up: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> y: array<vec4<f32>>;

@compute @workgroup_size(WG)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let quads = params.quads;
    for (var i = id.x; i < params.rows * quads; i += groups.x * WG) {
        let at = (i / quads) * 2u * quads + i % quads;
        let g = gate_up[at];
        y[i] = g / (1.0 + exp(-g)) * gate_up[at + quads];
    }
}
