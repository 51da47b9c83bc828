// With g = dy ∘ w: dx = s g − s³ mean(g ∘ x) x, set or added; partial[p] = Σ s dy ∘ x over the rows of part p,
// which begin at p · rows_per_group. dy, x and dx [R, C], w [C], scales [R] holds s, partial [parts, C].
// CPU twin: `model::ops::norm_backward`.
//
// One workgroup per part at a time. `column_sum` adds the parts.

override WG: u32 = 64u;

struct Params {
    // Number of rows, R.
    rows: u32,
    // Quads in a row, C / 4.
    quads: u32,
    rows_per_group: u32,
    // 1 to add to dx, 0 to set it.
    add: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> dy: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> w: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> scales: array<f32>;
@group(0) @binding(5) var<storage, read_write> dx: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read_write> partial: array<vec4<f32>>;

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let quads = params.quads;
    let parts = (params.rows + params.rows_per_group - 1u) / params.rows_per_group;
    for (var part = group.x; part < parts; part += groups.x) {
        let first = part * params.rows_per_group;
        let end = min(first + params.rows_per_group, params.rows);
        for (var row = first; row < end; row++) {
            let start = row * quads;
            var along = 0.0;
            for (var i = lane; i < quads; i += WG) {
                along += dot(dy[start + i] * w[i], x[start + i]);
            }
            let s = scales[row];
            along = s * s * s * total(lane, along) / f32(4u * quads);
            for (var i = lane; i < quads; i += WG) {
                var value = s * dy[start + i] * w[i] - along * x[start + i];
                if params.add != 0u {
                    value += dx[start + i];
                }
                dx[start + i] = value;
            }
        }
        for (var i = lane; i < quads; i += WG) {
            var sum = vec4(0.0);
            for (var row = first; row < end; row++) {
                sum += scales[row] * dy[row * quads + i] * x[row * quads + i];
            }
            partial[part * quads + i] = sum;
        }
    }
}
