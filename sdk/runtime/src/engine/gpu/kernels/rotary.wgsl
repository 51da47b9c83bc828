// (a, b) ← (a cos − b sin, b cos + a sin) for values i and i + D/2 of each of the first `heads` heads of a
// row, with the angle of its position, the row modulo the context. x [R, stride], cos and sin [T, D/2].
// CPU twin: `model::ops::rotate`.

override WG: u32 = 64u;

struct Params {
    // Number of rows, R.
    rows: u32,
    // Tokens in a window, T.
    context: u32,
    // Values in a row.
    stride: u32,
    // Number of query and key heads to rotate.
    heads: u32,
    // Half the values in a head, D / 2.
    half: u32,
    // Direction of the rotation: 1 forward, −1 backward.
    sign: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> cosines: array<f32>;
@group(0) @binding(2) var<storage, read> sines: array<f32>;
@group(0) @binding(3) var<storage, read_write> x: array<f32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let half = params.half;
    let pairs = params.heads * half;
    for (var i = id.x; i < params.rows * pairs; i += groups.x * WG) {
        let row = i / pairs;
        let pair = i % pairs;
        let angle = (row % params.context) * half + pair % half;
        // Skips the second half of each earlier head.
        let at = row * params.stride + pair + pair / half * half;
        let cosine = cosines[angle];
        let sine = sines[angle] * params.sign;
        let a = x[at];
        let b = x[at + half];
        x[at] = a * cosine - b * sine;
        x[at + half] = b * cosine + a * sine;
    }
}
