// square ← a I + b gram + c square, for matrices [side, side].
// CPU twin: `engine::cpu::kernels::polynomial`.
//
// Any number of workgroups covers any number of values (grid stride).

override WG: u32 = 64u;

struct Params {
    // Rows and columns, a multiple of 4.
    side: u32,
    a: f32,
    b: f32,
    c: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> gram: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> square: array<vec4<f32>>;

@compute @workgroup_size(WG)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let stride = params.side / 4u;
    let columns = vec4<u32>(0u, 1u, 2u, 3u);
    for (var i = id.x; i < params.side * stride; i += groups.x * WG) {
        let row = vec4<u32>(i / stride);
        let identity = select(vec4<f32>(0.0), vec4<f32>(1.0), columns + i % stride * 4u == row);
        square[i] = params.a * identity + params.b * gram[i] + params.c * square[i];
    }
}
