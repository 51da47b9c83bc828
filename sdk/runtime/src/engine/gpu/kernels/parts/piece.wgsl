// Shared parts of the exchange kernels. A piece is the part of a segment that lies in one chunk of the vectors. It may
// begin and end within a block, and even within a word of codes. Any number of workgroups covers a piece (grid stride).

override WG: u32 = 64u;
// Values in a block, a multiple of 8.
override BLOCK: u32 = 256u;
// Codes of a body's values.
const INT4 = 0u;
const E3M0 = 1u;
const F32 = 2u;
override CODE: u32 = INT4;

struct Params {
    // Index of the piece's first value within the bound slices.
    start: u32,
    // Number of values.
    len: u32,
    // Index of the first value within the segment.
    offset: u32,
    // Index of the segment's first value within the fragment.
    value: u32,
    // Index of the segment's first code, in words.
    code: u32,
    // Index of the segment's first block within the fragment.
    block: u32,
    // For `decode_add`: 1 if the values are Θ̂ and must be rounded to 16 bits, else 0.
    is_hat: u32,
}

@group(0) @binding(0) var<uniform> params: Params;

// Bit fields of a float.
const SIGN: u32 = 1u << 31u;
const SIZE: u32 = SIGN - 1u;
const EXPONENT: u32 = 1u << 23u;
const INFINITY: u32 = 255u * EXPONENT;
