// largest[b] = max |Θ̂ − θ| over the values of each block b, as the bits of a float, for those of one piece; and
// in flag[0], what is not finite: u32::MAX less the lowest index in the fragment, 0 if all is.
// Pieces, eight values at a time, counted from the segment's first: `parts/piece.wgsl`.
// CPU twin: `diloco::Codec::encode`, what it scales a block by, and `diloco::Replica::encode`, what it refuses.

@group(0) @binding(1) var<storage, read> theta: array<f32>;
@group(0) @binding(2) var<storage, read> hat: array<f32>;
@group(0) @binding(3) var<storage, read_write> largest: array<atomic<u32>>;
@group(0) @binding(4) var<storage, read_write> flag: array<atomic<u32>>;

@compute @workgroup_size(WG)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let end = params.offset + params.len;
    for (var word = params.offset / 8u + id.x; word * 8u < end; word += groups.x * WG) {
        var size = 0u;
        for (var at = max(word * 8u, params.offset); at < min(word * 8u + 8u, end); at++) {
            let i = params.start + at - params.offset;
            let bits = bitcast<u32>(hat[i] - theta[i]) & SIZE;
            if bits >= INFINITY {
                atomicMax(&flag[0], ~(params.value + at));
            }
            // Without its sign a float orders as its bits do.
            size = max(size, bits);
        }
        atomicMax(&largest[params.block + word * 8u / BLOCK], size);
    }
}
