// Adds the values of one piece of a Θ̂ to its digest, sums[0] and sums[1]; both are zero before the first piece.
// Pieces: `parts/piece.wgsl`.
// CPU twin: `diloco::binary16::digest`.
//
// The sums are of integers, so the order and the number of workgroups do not matter. WG is a power of two.

@group(0) @binding(1) var<storage, read> hat: array<u32>;
@group(0) @binding(2) var<storage, read_write> sums: array<atomic<u32>>;

var<workgroup> of_group: array<vec2<u32>, WG>;

fn mix(bits: u32) -> u32 {
    var word = (bits ^ (bits >> 16u)) * 0x7feb352du;
    word = (word ^ (word >> 15u)) * 0x846ca68bu;
    return word ^ (word >> 16u);
}

@compute @workgroup_size(WG)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    var own = vec2(0u);
    for (var i = id.x; i < params.len; i += groups.x * WG) {
        let place = params.value + params.offset + i;
        let code = half_code(hat[params.start + i]);
        own += vec2(mix(place * 0x9e3779b1u + code), mix((place * 0x85ebca77u) ^ ((code << 16u) | 0x5bd1u)));
    }
    of_group[lane] = own;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if lane < half {
            of_group[lane] += of_group[lane + half];
        }
    }
    if lane == 0u {
        atomicAdd(&sums[0], of_group[0].x);
        atomicAdd(&sums[1], of_group[0].y);
    }
}
