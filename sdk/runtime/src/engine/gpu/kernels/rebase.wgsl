// θ = Θ̂ + share (θ − reference) for one piece: the unmerged progress, applied to a new Θ̂.
// CPU twin: `diloco::Replica::apply`.
//
// Any number of workgroups covers any number of values (grid stride).

override WG: u32 = 64u;

struct Params {
    // Index of the piece's first value within the bound slices.
    start: u32,
    // Number of values.
    len: u32,
    share: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> hat: array<f32>;
@group(0) @binding(2) var<storage, read> reference: array<f32>;
@group(0) @binding(3) var<storage, read_write> theta: array<f32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    for (var i = params.start + id.x; i < params.start + params.len; i += groups.x * WG) {
        theta[i] = hat[i] + params.share * (theta[i] - reference[i]);
    }
}
