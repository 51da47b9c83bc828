// dots[r] = y_r · dy_r, for each row and head; y and dy [rows, D], dots [rows], rows = R H. This equals the mean of the
// gradients of a query's scores, weighted with their softmax.
// CPU twin: `model::ops::attention_backward`, its `mean`.

override WG: u32 = 64u;

struct Params {
    // Number of rows times heads, R · H.
    rows: u32,
    // Quads in a head, D / 4.
    quads: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> y: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> dy: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> dots: array<f32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let quads = params.quads;
    for (var row = id.x; row < params.rows; row += groups.x * WG) {
        var sum = 0.0;
        for (var i = row * quads; i < (row + 1u) * quads; i++) {
            sum += dot(y[i], dy[i]);
        }
        dots[row] = sum;
    }
}
