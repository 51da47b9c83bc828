// Rounding of Θ̂ to 16-bit floats, as in `diloco::binary16`. It uses only integers and exact products, so every device
// gives the same bits. Constants: `parts/piece.wgsl`.

// Returns the bits of the 16-bit float nearest to the finite float with these bits. Ties go to even, results are
// clamped to ±65504, and 0 has no sign.
fn half_code(bits: u32) -> u32 {
    let size = bits & SIZE;
    var code = 0u;
    if size < 113u * EXPONENT {
        // Multiples of 2⁻²⁴: half of that or less becomes 0.
        let shift = min(126u - size / EXPONENT, 25u);
        let significand = (size % EXPONENT) | EXPONENT;
        code = (significand + (1u << (shift - 1u)) - 1u + ((significand >> shift) & 1u)) >> shift;
    } else {
        code = min(((size + 0xfffu + ((size >> 13u) & 1u)) >> 13u) - (112u << 10u), 0x7bffu);
    }
    return select(code | ((bits & SIGN) >> 16u), 0u, code == 0u);
}

// Returns the bits of the 32-bit float that equals the finite 16-bit float with these bits.
fn half_bits(code: u32) -> u32 {
    let size = code & 0x7fffu;
    let small = bitcast<u32>(f32(size) * 0x1p-24);
    return select((size << 13u) + 112u * EXPONENT, small, size < 0x400u) | ((code << 16u) & SIGN);
}
