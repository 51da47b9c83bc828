// values[i] += the decoded value of `head` and `codes`, for one piece; if the values are a Θ̂, the sum is rounded to
// 16 bits. The body has the layout of `delta_code`. Pieces: `parts/piece.wgsl`.
// CPU twin: `diloco::Codec::decode`, an addition and for a Θ̂ `diloco::binary16::nearest`.
//
// The bits equal the twins' on every device, even if the device flushes subnormal numbers or loses the sign of zero, so
// that all learners and the syncer hold the same Θ̂. Decoded values are exact, and a sum of floats is rounded to
// nearest.

@group(0) @binding(1) var<storage, read> head: array<u32>;
@group(0) @binding(2) var<storage, read> codes: array<u32>;
@group(0) @binding(3) var<storage, read_write> values: array<u32>;

// Returns the bits of the decoded value of code `at`, counted within the segment.
fn decoded(at: u32) -> u32 {
    if CODE == F32 {
        return codes[params.code + at];
    }
    let block = params.block + at / BLOCK;
    let pair = head[1u + block / 2u];
    let scale = bitcast<f32>(select(pair << 16u, pair & 0xffff0000u, block % 2u == 1u));
    let word = codes[params.code + at / 8u];
    if CODE == INT4 {
        return bitcast<u32>(f32(i32(word << (28u - 4u * (at % 8u))) >> 28u) * scale);
    }
    let code = word >> (4u * (at % 8u));
    let size = f32((1u << (code & 7u)) >> 1u) * (scale * 0x1p-6);
    return bitcast<u32>(size) | ((code << 28u) & SIGN);
}

// Returns 2¹⁰⁰ times the float with these bits. Its magnitude is below 2⁻⁷⁷.
fn lifted(bits: u32) -> f32 {
    let size = bits & SIZE;
    let x = select(bitcast<f32>(size + 100u * EXPONENT), f32(size) * 0x1p-49, size < EXPONENT);
    return select(x, -x, bits >= SIGN);
}

// Returns the bits of a + b.
fn sum(a: u32, b: u32) -> u32 {
    if (b & SIZE) == 0u {
        return select(a, a & b, (a & SIZE) == 0u);
    }
    if (a & SIZE) == 0u {
        return b;
    }
    let small = min(a & SIZE, b & SIZE);
    let large = max(a & SIZE, b & SIZE);
    var bits = bitcast<u32>(bitcast<f32>(a) + bitcast<f32>(b));
    // If both operands are at least 2⁻¹⁰³, no sum is subnormal. A smaller one cannot change an operand of 2⁻⁷⁷ or more.
    if small < 24u * EXPONENT && large < 50u * EXPONENT {
        bits = bitcast<u32>(lifted(a) + lifted(b));
        let size = bits & SIZE;
        let subnormal = u32(bitcast<f32>(size) * 0x1p49);
        let settled = select(size - 100u * EXPONENT, subnormal, size < 101u * EXPONENT);
        bits = (bits & SIGN) | settled;
    }
    return select(bits, 0u, (bits & SIZE) == 0u);
}

@compute @workgroup_size(WG)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    for (var i = id.x; i < params.len; i += groups.x * WG) {
        let at = params.start + i;
        let bits = sum(values[at], decoded(params.offset + i));
        values[at] = select(bits, half_bits(half_code(bits)), params.is_hat == 1u);
    }
}
