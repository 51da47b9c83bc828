// dtable[t − first] += Σ dx[order[i]], in order, for i from begin to end of each run (t, begin, end).
// dtable [count, C] holds the embedding's rows from `first` on; other tokens are skipped. dx [R, C].
// CPU twin: `model::ops::embed_backward`.
//
// One workgroup for each run at a time. Each token has one run, so no two workgroups write the same row.

override WG: u32 = 64u;

struct Params {
    // Number of runs, R, empty ones included.
    rows: u32,
    // Quads in a row, C / 4.
    quads: u32,
    first: u32,
    count: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> runs: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> order: array<u32>;
@group(0) @binding(3) var<storage, read> dx: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> dtable: array<vec4<f32>>;

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    for (var r = group.x; r < params.rows; r += groups.x) {
        let run = runs[r];
        if run.x < params.first || run.x - params.first >= params.count || run.y >= run.z {
            continue;
        }
        let start = (run.x - params.first) * params.quads;
        for (var quad = lane; quad < params.quads; quad += WG) {
            var sum = dtable[start + quad];
            for (var i = run.y; i < run.z; i++) {
                sum += dx[order[i] * params.quads + quad];
            }
            dtable[start + quad] = sum;
        }
    }
}
