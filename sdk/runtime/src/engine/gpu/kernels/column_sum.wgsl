// sum = Σ_r partial[r], set or added; partial [R, C], sum [C].
// CPU twin: `model::ops::norm_backward`, the sum in its dw.
//
// A workgroup sums ACROSS quads of columns at a time. WG / ACROSS lanes share a quad: each sums every (WG / ACROSS)-th
// row, and then the first lane adds the lanes' sums in order.

override WG: u32 = 64u;
// Quads of columns in a workgroup; must divide WG.
override ACROSS: u32 = 8u;
override SHARE = WG / ACROSS;

struct Params {
    // Number of rows, R.
    rows: u32,
    // Quads in a row, C / 4.
    quads: u32,
    // 1 to add to sum, 0 to set sum.
    add: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> partial: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> sum: array<vec4<f32>>;

var<workgroup> sums: array<vec4<f32>, WG>;

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let quads = params.quads;
    for (var first = group.x * ACROSS; first < quads; first += groups.x * ACROSS) {
        let i = first + lane % ACROSS;
        var value = vec4(0.0);
        for (var row = lane / ACROSS; row < params.rows && i < quads; row += SHARE) {
            value += partial[row * quads + i];
        }
        sums[lane] = value;
        workgroupBarrier();
        if lane < ACROSS && i < quads {
            for (var other = lane + ACROSS; other < WG; other += ACROSS) {
                value += sums[other];
            }
            if params.add != 0u {
                value += sum[i];
            }
            sum[i] = value;
        }
        workgroupBarrier();
    }
}
