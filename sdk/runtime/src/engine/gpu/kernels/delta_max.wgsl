// largest[b] = max |Θ̂ − θ| over the values of each block b in one piece, as the bits of a float. flag[0] marks the
// first value that is not finite: u32::MAX less its index in the fragment, or 0 if all are finite.
// Pieces, eight values at a time, counted from the segment's first: `parts/piece.wgsl`.
// CPU twin: `diloco::Codec::encode`, for block scales, and `diloco::Replica::encode`, for refused values.

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
            // Magnitudes of floats order as their bits without the sign do.
            size = max(size, bits);
        }
        atomicMax(&largest[params.block + word * 8u / BLOCK], size);
    }
}
