// partial[first + g] = Σ x[i]² over the values of workgroup g, four at a time.
// CPU twin: `engine::cpu::kernels::squares`.
//
// Any number of workgroups covers any number of values (grid stride).

override WG: u32 = 64u;

struct Params {
    // Number of quads.
    quads: u32,
    // Index of this dispatch's first sum.
    first: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> partial: array<f32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    var sum = 0.0;
    for (var i = group.x * WG + lane; i < params.quads; i += groups.x * WG) {
        sum += dot(x[i], x[i]);
    }
    sum = total(lane, sum);
    if lane == 0u {
        partial[params.first + group.x] = sum;
    }
}
