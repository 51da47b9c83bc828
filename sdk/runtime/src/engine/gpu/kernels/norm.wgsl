// y = x s ∘ w with s = 1 / √(mean(x²) + eps), row by row; x and y [R, C], w [C], scales [R] receives s.
// CPU twin: `model::ops::norm`.
//
// One workgroup per row at a time.

override WG: u32 = 64u;

struct Params {
    // Number of rows, R.
    rows: u32,
    // Quads in a row, C / 4.
    quads: u32,
    eps: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> w: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> scales: array<f32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let quads = params.quads;
    for (var row = group.x; row < params.rows; row += groups.x) {
        let start = row * quads;
        var squares = 0.0;
        for (var i = lane; i < quads; i += WG) {
            squares += dot(x[start + i], x[start + i]);
        }
        let scale = 1.0 / sqrt(total(lane, squares) / f32(4u * quads) + params.eps);
        for (var i = lane; i < quads; i += WG) {
            y[start + i] = x[start + i] * scale * w[i];
        }
        if lane == 0u {
            scales[row] = scale;
        }
    }
}
