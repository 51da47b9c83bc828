// Θ̂ in 16 bits, as `diloco::halves` has it, in integers but for products that are exact: the same bits on every
// device. Constants: `parts/piece.wgsl`.

// The bits of the 16-bit float nearest to the float with these bits, which is finite: halves to even, held within
// ±65504, 0 without a sign.
fn half_code(bits: u32) -> u32 {
    let size = bits & SIZE;
    var code = 0u;
    if size < 113u * EXPONENT {
        // Steps of 2⁻²⁴; a half of one or less is none.
        let shift = min(126u - size / EXPONENT, 25u);
        let significand = (size % EXPONENT) | EXPONENT;
        code = (significand + (1u << (shift - 1u)) - 1u + ((significand >> shift) & 1u)) >> shift;
    } else {
        code = min(((size + 0xfffu + ((size >> 13u) & 1u)) >> 13u) - (112u << 10u), 0x7bffu);
    }
    return select(code | ((bits & SIGN) >> 16u), 0u, code == 0u);
}

// The float, as bits, that the 16-bit float with these bits is; it is finite.
fn half_bits(code: u32) -> u32 {
    let size = code & 0x7fffu;
    let small = bitcast<u32>(f32(size) * 0x1p-24);
    return select((size << 13u) + 112u * EXPONENT, small, size < 0x400u) | ((code << 16u) & SIGN);
}
