// sum = Σ_r partial[r], set or added; partial [R, C], sum [C].
// CPU twin: `model::ops::norm_backward`, the sum in its dw.
//
// A workgroup takes ACROSS quads at a time. WG / ACROSS lanes share a quad: each sums rows at that stride, and then the
// first lane adds up the partial sums in order.

override WG: u32 = 64u;
// Must divide WG.
override ACROSS: u32 = 8u;
override SHARE = WG / ACROSS;

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
