// y[i] = x[i] as a 16-bit float, four values at a time.
// CPU twin: `half::f16::from_f32`.
//
// Any number of workgroups covers any number of values (grid stride).

override WG: u32 = 64u;

struct Params {
    // Number of quads.
    quads: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> y: array<vec2<u32>>;

@compute @workgroup_size(WG)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    for (var i = id.x; i < params.quads; i += groups.x * WG) {
        y[i] = vec2(pack2x16float(x[i].xy), pack2x16float(x[i].zw));
    }
}
