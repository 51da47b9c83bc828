// Codes Θ̂ − θ of one piece: writes the scale of each block to `head` and the codes to `codes`, as in a body; both
// are zero before. head[0] belongs to `delta_max`; from head[1] on each word holds two scales.
// Pieces, eight values at a time, counted from the segment's first: `parts/piece.wgsl`.
// CPU twin: `diloco::Codec::encode`.
//
// The bytes equal the twin's if the device rounds differences and products to nearest and keeps subnormal numbers.
// On other devices the body is still valid, and the learner takes its position from the body.
// WGSL allows an error of 2.5 ulp in a division, so the two divisions here use integers.

@group(0) @binding(1) var<storage, read> theta: array<f32>;
@group(0) @binding(2) var<storage, read> hat: array<f32>;
@group(0) @binding(3) var<storage, read> largest: array<u32>;
@group(0) @binding(4) var<storage, read_write> head: array<atomic<u32>>;
@group(0) @binding(5) var<storage, read_write> codes: array<atomic<u32>>;

// 2⁶⁰, as the bits of a float.
const SIZE_MAX: u32 = 187u << 23u;
// 2⁻¹⁰⁰, as the bits of a float.
const SCALE_MIN: u32 = 27u << 23u;
const ONE: u32 = 127u << 23u;

// Returns one seventh of the float with these bits, which is above 2⁻¹²⁶, rounded to nearest.
fn seventh(bits: u32) -> u32 {
    let significand = (bits & 0x7fffffu) | 0x800000u;
    // The quotient has 24 bits. A multiple of 1/7 never ends in one half, so there are no ties.
    let shift = select(2u, 3u, significand < (7u << 21u));
    let n = significand << shift;
    let quotient = n / 7u + u32(n % 7u > 3u);
    return (((bits >> 23u) - shift) << 23u) + quotient - 0x800000u;
}

// Returns the bits of the smallest bfloat16 that is at least the scale of a block. `largest` has the bits of the
// block's largest magnitude; the scale is 0 if that is below 2⁻¹⁰⁰.
fn scale_of(largest: u32) -> u32 {
    var bits = min(largest, SIZE_MAX);
    if bits < SCALE_MIN {
        return 0u;
    }
    if CODE == INT4 {
        bits = seventh(bits);
    }
    return select((bits + 0xffffu) >> 16u, 0u, bits < SCALE_MIN);
}

// Returns the reciprocal of the bfloat16 with these bits, which is not 0, rounded to nearest.
fn reciprocal(scale: u32) -> f32 {
    let significand = (scale & 0x7fu) | 0x80u;
    // The quotient has 24 bits, or 25 for a power of two, which carries into the exponent. There are no ties.
    let n = 1u << 31u;
    let quotient = n / significand + u32(2u * (n % significand) > significand);
    return bitcast<f32>(((253u - (scale >> 7u)) << 23u) + quotient - 0x800000u);
}

// Returns the code nearest to `x`, which is in units of the scale. Ties go to even.
fn nibble(x: f32) -> u32 {
    if CODE == INT4 {
        return u32(i32(round(clamp(x, -7.0, 7.0)))) & 15u;
    }
    // Rounds the significand away. Ties go to the even exponent; exponent 120 is level 0.
    let size = min(bitcast<u32>(x) & SIZE, ONE);
    let level = max((size + 0x3fffffu + ((size >> 23u) & 1u)) >> 23u, 121u) - 120u;
    return select(level | ((bitcast<u32>(x) >> 28u) & 8u), 0u, size <= ONE - (7u << 23u));
}

@compute @workgroup_size(WG)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let end = params.offset + params.len;
    for (var word = params.offset / 8u + id.x; word * 8u < end; word += groups.x * WG) {
        let first = max(word * 8u, params.offset);
        let block = params.block + word * 8u / BLOCK;
        let scale = scale_of(largest[block]);
        if CODE != F32 && scale == 0u {
            continue;
        }
        let per_scale = reciprocal(scale);
        var packed = 0u;
        for (var at = first; at < min(word * 8u + 8u, end); at++) {
            let i = params.start + at - params.offset;
            let delta = hat[i] - theta[i];
            if CODE == F32 {
                let bits = bitcast<u32>(delta);
                atomicStore(&codes[params.code + at], min(bits & SIZE, SIZE_MAX) | (bits & SIGN));
            } else {
                packed |= nibble(delta * per_scale) << (4u * (at % 8u));
            }
        }
        if CODE != F32 {
            // Two pieces may share the word at their boundary.
            atomicOr(&codes[params.code + word], packed);
            if first % BLOCK == 0u {
                atomicOr(&head[1u + block / 2u], scale << (16u * (block % 2u)));
            }
        }
    }
}
