// m ← β1 m + (1 − β1) g, v ← β2 v + (1 − β2) g², θ ← keep θ − rate m / (root √v + ε), where g is the gradient
// times the clipping factor and keep is 1 for vectors. Nothing changes if the step was not finite.
// CPU twin: `model::adjust`.
//
// Any number of workgroups covers any number of values (grid stride).

override WG: u32 = 64u;

struct Params {
    // Number of quads.
    quads: u32,
    // Whether weight decay applies: 1 for matrices, 0 for vectors.
    decayed: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(5) var<storage, read_write> m: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read_write> v: array<vec4<f32>>;

@compute @workgroup_size(WG)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    if stats.finite == 0.0 {
        return;
    }
    let keep = select(1.0, hyper.keep, params.decayed != 0u);
    for (var i = id.x; i < params.quads; i += groups.x * WG) {
        let g = grad[i] * stats.factor;
        let first = hyper.beta1 * m[i] + (1.0 - hyper.beta1) * g;
        let second = hyper.beta2 * v[i] + (1.0 - hyper.beta2) * g * g;
        m[i] = first;
        v[i] = second;
        theta[i] = keep * theta[i] - hyper.rate * first / (sqrt(second) * hyper.root + hyper.eps);
    }
}
