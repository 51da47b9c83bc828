// x[r] = table[tokens[r] − first] for tokens in first..first + count; other rows stay unchanged.
// table [count, C] holds the rows of the vocabulary from `first` on; x is [R, C].
// CPU twin: `model::ops::embed`.

override WG: u32 = 64u;

struct Params {
    // Number of rows, R.
    rows: u32,
    // Quads in a row, C / 4.
    quads: u32,
    first: u32,
    count: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> tokens: array<u32>;
@group(0) @binding(2) var<storage, read> table: array<vec4<f32>>;
// The same table, for formats other than 32-bit floats.
@group(0) @binding(3) var<storage, read> table_words: array<vec2<u32>>;
@group(0) @binding(4) var<storage, read_write> x: array<vec4<f32>>;

fn word(at: u32) -> u32 {
    return word_of(table_words[at / 2u], at);
}

fn quad(row: u32, column: u32) -> vec4<f32> {
    let at = row * params.quads + column;
    if VALUES == HALF {
        return half_quad(table_words[at]);
    }
    if VALUES == INT8 {
        return int8_quad(word(at), word(scale_at(row, column, params.count, params.quads)));
    }
    return table[at];
}

@compute @workgroup_size(WG)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let quads = params.quads;
    for (var i = id.x; i < params.rows * quads; i += groups.x * WG) {
        // The difference wraps around for tokens below `first`.
        let row = tokens[i / quads] - params.first;
        if row < params.count {
            x[i] = quad(row, i % quads);
        }
    }
}
