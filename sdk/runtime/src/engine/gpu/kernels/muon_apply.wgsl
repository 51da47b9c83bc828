// θ ← keep θ − rate · scale · polar. Nothing changes if the step was not finite.
// CPU twin: `model::Muon::step`.
//
// Any number of workgroups covers any number of values (grid stride).

override WG: u32 = 64u;

struct Params {
    // First quad of the matrix in theta.
    start: u32,
    // Number of quads.
    quads: u32,
    // Factor on the polar factor at a learning rate of 1.
    scale: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(3) var<storage, read_write> theta: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> polar: array<vec4<f32>>;

@compute @workgroup_size(WG)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    if stats.finite == 0.0 {
        return;
    }
    for (var i = id.x; i < params.quads; i += groups.x * WG) {
        let moved = hyper.keep * theta[params.start + i];
        theta[params.start + i] = moved - hyper.muon_rate * params.scale * polar[i];
    }
}
