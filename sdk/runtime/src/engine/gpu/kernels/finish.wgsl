// Computes a step's statistics for the host and the optimiser from sums of squares and losses:
// stats = [mean loss, gradient norm, clipping factor, 1 if loss and norm are finite or else 0].
// CPU twin: `model::Adjust::new`.
//
// One workgroup. WG is a power of two.

override WG: u32 = 256u;

struct Params {
    // Number of sums of squares.
    partials: u32,
    // Number of losses.
    losses: u32,
    // Maximum norm of the gradient; 0 for no limit.
    clip: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> partial: array<f32>;
@group(0) @binding(2) var<storage, read> losses: array<f32>;
@group(0) @binding(3) var<storage, read_write> stats: array<vec4<f32>>;

// Sums of squares and sums of losses.
var<workgroup> sums: array<vec2<f32>, WG>;

// Returns true if x is finite. Tests the bits, because compilers may assume that floats are finite.
fn finite(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u;
}

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lane: u32) {
    var sum = vec2(0.0);
    for (var i = lane; i < params.partials; i += WG) {
        sum.x += partial[i];
    }
    for (var i = lane; i < params.losses; i += WG) {
        sum.y += losses[i];
    }
    sums[lane] = sum;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if lane < half {
            sums[lane] += sums[lane + half];
        }
    }
    if lane == 0u {
        let loss = sums[0].y / f32(params.losses);
        let norm = sqrt(sums[0].x);
        let factor = select(1.0, params.clip / norm, params.clip > 0.0 && norm > params.clip);
        stats[0] = vec4(loss, norm, factor, select(0.0, 1.0, finite(loss) && finite(norm)));
    }
}
