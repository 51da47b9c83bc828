// Like `adamw`, with both moments of a parameter in one word as bfloat16s, m below v. Rounding is stochastic: a hash of
// the parameter's index and the step decides whether to round up or down.
// CPU twin: `model::moments::adjust_halves`.
//
// Any number of workgroups covers any number of values (grid stride).

override WG: u32 = 64u;

struct Params {
    // Number of quads.
    quads: u32,
    // Whether weight decay applies: 1 for matrices, 0 for vectors.
    decayed: u32,
    // Index of the chunk's first value among the values of all chunks.
    first: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(5) var<storage, read_write> moments: array<vec4<u32>>;

const SIZE = vec4(0x7fffffffu);
// Bits of the largest finite magnitude.
const SIZE_MAX = vec4(0x7f7fffffu);
const UPPER = vec4(0xffff0000u);

fn mix(word: vec4<u32>) -> vec4<u32> {
    var bits = (word ^ (word >> vec4(16u))) * 0x7feb352du;
    bits = (bits ^ (bits >> vec4(15u))) * 0x846ca68bu;
    return bits ^ (bits >> vec4(16u));
}

// Rounds each value at random to one of its two bfloat16 neighbours, in the upper 16 bits.
fn by_chance(values: vec4<f32>, noise: vec4<u32>) -> vec4<u32> {
    let bits = bitcast<vec4<u32>>(values);
    return min((bits & SIZE) + noise, SIZE_MAX) | (bits & ~SIZE);
}

@compute @workgroup_size(WG)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    if stats.finite == 0.0 {
        return;
    }
    let keep = select(1.0, hyper.keep, params.decayed != 0u);
    let seed = mix(vec4(hyper.step));
    for (var i = id.x; i < params.quads; i += groups.x * WG) {
        let g = grad[i] * stats.factor;
        let words = moments[i];
        let m = hyper.beta1 * bitcast<vec4<f32>>(words << vec4(16u)) + (1.0 - hyper.beta1) * g;
        let v = hyper.beta2 * bitcast<vec4<f32>>(words & UPPER) + (1.0 - hyper.beta2) * g * g;
        theta[i] = keep * theta[i] - hyper.rate * m / (sqrt(v) * hyper.root + hyper.eps);
        let noise = mix(vec4(params.first + 4u * i) + vec4(0u, 1u, 2u, 3u) + seed);
        moments[i] = (by_chance(v, noise >> vec4(16u)) & UPPER) | (by_chance(m, noise & ~UPPER) >> vec4(16u));
    }
}
