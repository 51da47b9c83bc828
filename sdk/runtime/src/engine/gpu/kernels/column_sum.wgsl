// sum = Σ_r partial[r], rows in order, set or added; partial [R, C], sum [C].
// CPU twin: `model::ops::norm_backward`, the sum in its dw.

override WG: u32 = 64u;

struct Params {
    // R.
    rows: u32,
    // C / 4.
    quads: u32,
    // 1 to add to sum, 0 to set it.
    add: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> partial: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> sum: array<vec4<f32>>;

@compute @workgroup_size(WG)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let quads = params.quads;
    for (var i = id.x; i < quads; i += groups.x * WG) {
        var value = vec4(0.0);
        for (var row = 0u; row < params.rows; row++) {
            value += partial[row * quads + i];
        }
        if params.add != 0u {
            value += sum[i];
        }
        sum[i] = value;
    }
}
