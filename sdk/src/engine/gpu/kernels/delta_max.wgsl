// largest[b] = max |Θ̂ − θ| over the values of each block b, as the bits of a float, for those of one run; and
// in flag[0], what is not finite: u32::MAX less the lowest index in the fragment, 0 if all is.
// CPU twin: `diloco::block::abs_max`.
//
// A run is a part of a segment and may begin and end within a block. Any number of workgroups covers it (grid
// stride), eight values at a time, counted from the segment's first.

override WG: u32 = 64u;
// Values in a block, a multiple of 8.
override BLOCK: u32 = 256u;

struct Params {
    // The run's first value in `theta` and `hat`.
    start: u32,
    // Its values.
    len: u32,
    // Its first value within the segment.
    offset: u32,
    // The segment's first value within the fragment.
    value: u32,
    // The segment's first block within the fragment.
    block: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> theta: array<f32>;
@group(0) @binding(2) var<storage, read> hat: array<f32>;
@group(0) @binding(3) var<storage, read_write> largest: array<atomic<u32>>;
@group(0) @binding(4) var<storage, read_write> flag: array<atomic<u32>>;

const INFINITY: u32 = 0x7f800000u;

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
            let bits = bitcast<u32>(hat[i] - theta[i]) & 0x7fffffffu;
            if (bits >= INFINITY) {
                atomicMax(&flag[0], ~(params.value + at));
            }
            // Without its sign a float orders as its bits do.
            size = max(size, bits);
        }
        atomicMax(&largest[params.block + word * 8u / BLOCK], size);
    }
}
