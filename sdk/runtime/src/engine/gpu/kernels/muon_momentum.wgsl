// m ← µ m + g, update = g + µ m, where g is the gradient times the clipping factor. Nothing changes if the step was not
// finite.
// CPU twin: `model::Muon::step`.
//
// Any number of workgroups covers any number of values (grid stride).

override WG: u32 = 64u;

struct Params {
    // First quad of the matrix in grad and m.
    start: u32,
    // Number of quads.
    quads: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(3) var<storage, read> grad: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> m: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> update: array<vec4<f32>>;

@compute @workgroup_size(WG)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    if stats.finite == 0.0 {
        return;
    }
    for (var i = id.x; i < params.quads; i += groups.x * WG) {
        let g = grad[params.start + i] * (stats.factor * hyper.gain);
        let momentum = hyper.momentum * m[params.start + i] + g;
        m[params.start + i] = momentum;
        update[i] = g + hyper.momentum * momentum;
    }
}
