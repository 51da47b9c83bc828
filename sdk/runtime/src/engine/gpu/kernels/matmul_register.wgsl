// C = A B, C + A B or R + A B, with A or B transposed or not. Each invocation sums up to 8 × 16 values of C in
// registers and reads operands directly from memory.
// CPU twin: `model::ops::linear`, `model::ops::linear_backward`.

// Blocks of 4 × 4 values in an invocation: 1 or 2 down; 1, 2 or 4 across.
override DOWN: u32 = 2u;
override ACROSS: u32 = 4u;
// Invocations of a workgroup in each of its two dimensions.
override WG: u32 = 8u;

@compute @workgroup_size(WG, WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    // The blocks of an invocation lie WG blocks apart, so that neighbouring invocations read adjacent quads.
    let i = params.row + (group.y * DOWN * WG + local.y) * 4u;
    let j = group.x * ACROSS * WG + local.x;
    if i >= params.m || j * 4u >= params.n {
        return;
    }
    var c00 = mat4x4<f32>();
    var c01 = mat4x4<f32>();
    var c02 = mat4x4<f32>();
    var c03 = mat4x4<f32>();
    var c10 = mat4x4<f32>();
    var c11 = mat4x4<f32>();
    var c12 = mat4x4<f32>();
    var c13 = mat4x4<f32>();
    let end = min((group.z + 1u) * params.depth, params.k);
    for (var k = group.z * params.depth; k < end; k += 4u) {
        let a0 = load_a(i, k);
        var a1 = mat4x4<f32>();
        if DOWN > 1u {
            a1 = load_a(i + WG * 4u, k);
        }
        let b0 = load_b(k, j);
        c00 = madd(c00, a0, b0);
        if DOWN > 1u {
            c10 = madd(c10, a1, b0);
        }
        if ACROSS > 1u {
            let b1 = load_b(k, j + WG);
            c01 = madd(c01, a0, b1);
            if DOWN > 1u {
                c11 = madd(c11, a1, b1);
            }
        }
        if ACROSS > 2u {
            let b2 = load_b(k, j + 2u * WG);
            let b3 = load_b(k, j + 3u * WG);
            c02 = madd(c02, a0, b2);
            c03 = madd(c03, a0, b3);
            if DOWN > 1u {
                c12 = madd(c12, a1, b2);
                c13 = madd(c13, a1, b3);
            }
        }
    }
    store(group.z, i, j, c00);
    if ACROSS > 1u {
        store(group.z, i, j + WG, c01);
    }
    if ACROSS > 2u {
        store(group.z, i, j + 2u * WG, c02);
        store(group.z, i, j + 3u * WG, c03);
    }
    if DOWN > 1u {
        store(group.z, i + 4u * WG, j, c10);
        if ACROSS > 1u {
            store(group.z, i + 4u * WG, j + WG, c11);
        }
        if ACROSS > 2u {
            store(group.z, i + 4u * WG, j + 2u * WG, c12);
            store(group.z, i + 4u * WG, j + 3u * WG, c13);
        }
    }
}
