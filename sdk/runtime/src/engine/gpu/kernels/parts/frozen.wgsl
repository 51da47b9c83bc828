// Formats of weights: 32-bit floats; 16-bit floats; or 8-bit codes, four in a word, followed by a 32-bit scale for each
// 32 codes of a row.
const WHOLE = 0u;
const HALF = 1u;
const INT8 = 2u;
override VALUES: u32 = WHOLE;

fn half_quad(pairs: vec2<u32>) -> vec4<f32> {
    return vec4(unpack2x16float(pairs.x), unpack2x16float(pairs.y));
}

// Returns the four codes of a word, each times the scale with these bits.
fn int8_quad(codes: u32, scale: u32) -> vec4<f32> {
    let high = vec4<i32>(vec4(codes << 24u, codes << 16u, codes << 8u, codes));
    return vec4<f32>(high >> vec4(24u)) * bitcast<f32>(scale);
}

// Returns word `at` of an array of pairs of words, from the pair that contains it.
fn word_of(pair: vec2<u32>, at: u32) -> u32 {
    return select(pair.x, pair.y, (at & 1u) != 0u);
}

// Returns the index of the word with the scale of quad `quad` in row `row`, for a matrix of `rows` rows of `stride`
// quads.
fn scale_at(row: u32, quad: u32, rows: u32, stride: u32) -> u32 {
    return rows * stride + row * ((stride + 7u) / 8u) + quad / 8u;
}
