// update ← update · length / max(norm, norm_min), where the squared norm is the sum of the partial sums.
// CPU twin: `model::muon_unit`.
//
// Each workgroup adds all partial sums. Any number of workgroups covers any number of values (grid stride).

override WG: u32 = 64u;

struct Params {
    // Number of quads.
    quads: u32,
    // Number of partial sums.
    partials: u32,
    // Norm of the result.
    length: f32,
    // Smallest norm by which the update is divided.
    norm_min: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> partial: array<f32>;
@group(0) @binding(2) var<storage, read_write> update: array<vec4<f32>>;

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    var sum = 0.0;
    for (var i = lane; i < params.partials; i += WG) {
        sum += partial[i];
    }
    let unit = params.length / max(sqrt(total(lane, sum)), params.norm_min);
    for (var i = group.x * WG + lane; i < params.quads; i += groups.x * WG) {
        update[i] *= unit;
    }
}
