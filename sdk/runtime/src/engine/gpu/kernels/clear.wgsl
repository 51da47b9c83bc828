// y[i] = 0, four values at a time.
// CPU twin: `model::ops::embed_backward`, whose sums begin with zeros.
//
// Any number of workgroups covers any number of values (grid stride).

override WG: u32 = 64u;

struct Params {
    // Number of quads.
    quads: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;

@compute @workgroup_size(WG)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    for (var i = id.x; i < params.quads; i += groups.x * WG) {
        y[i] = vec4(0.0);
    }
}
