// C = Σ_z A[z], C + … or R + …: A [k, m, n] holds the partial sums of one product, which are added in the
// order of z.
// CPU twin: `model::ops::linear`, `model::ops::linear_backward`.
//
// Any number of workgroups covers any number of values (grid stride).

override WG: u32 = 64u;

@compute @workgroup_size(WG)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let quads = params.a_stride;
    let size = params.m * quads;
    for (var i = id.x; i < size; i += groups.x * WG) {
        var sum = a[i];
        for (var z = 1u; z < params.k; z++) {
            sum += a[z * size + i];
        }
        store_row(0u, i / quads, i % quads, sum);
    }
}
