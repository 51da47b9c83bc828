// C = A B, C + A B or R + A B, where A lies transposed in Tn, B in Nt; each invocation holds up to 8 × 16 of
// C in registers. CPU twin: `model::reference::linear` and `linear_backward`.
//
// A matrix of 4 × 4 is the unit of all that follows: as a block of A its columns are 4 rows of A, as a block
// of B or C its columns are 4 rows likewise, so that C + A B is `C[r] + B * A[r]` for each r.

// How the operands lie: A [m, k], B [n, k]; A [m, k], B [k, n]; A [k, m], B [k, n].
const NT = 0u;
const NN = 1u;
const TN = 2u;
override FORM: u32 = NN;
// What C takes: the product, itself and the product, R and the product.
const SET = 0u;
const ADD = 1u;
const PLUS = 2u;
override STORE: u32 = SET;
// Blocks of an invocation: 1 or 2 down, 1, 2 or 4 across.
override DOWN: u32 = 2u;
override ACROSS: u32 = 4u;
// Invocations of a workgroup in each of its two dimensions.
override WG: u32 = 8u;

struct Params {
    m: u32,
    n: u32,
    k: u32,
    // Rows of A, B, C and R, in quads.
    a_stride: u32,
    b_stride: u32,
    c_stride: u32,
    // First row of C to compute.
    row: u32,
    // What workgroup z sums up: k from z · depth on; a multiple of 4. Its C begins m rows after that of z − 1.
    depth: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> b: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> residual: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> c: array<vec4<f32>>;

// Four rows from `first` on; the last one again where there are no more.
fn rows(first: u32, count: u32) -> vec4<u32> {
    return min(first + vec4(0u, 1u, 2u, 3u), vec4(count - 1u));
}

// Rows i … i + 3 of A at k … k + 3; 0 from params.k on if A lies transposed, else there are zeros.
fn load_a(i: u32, k: u32) -> mat4x4<f32> {
    if FORM == TN {
        let at = rows(k, params.k) * params.a_stride + min(i, params.m - 1u) / 4u;
        let live = k + vec4(0u, 1u, 2u, 3u) < vec4(params.k);
        return transpose(mat4x4(
            a[at.x],
            select(vec4(0.0), a[at.y], live.y),
            select(vec4(0.0), a[at.z], live.z),
            select(vec4(0.0), a[at.w], live.w),
        ));
    }
    let at = rows(i, params.m) * params.a_stride + k / 4u;
    return mat4x4(a[at.x], a[at.y], a[at.z], a[at.w]);
}

// Rows k … k + 3 of B at the quad j.
fn load_b(k: u32, j: u32) -> mat4x4<f32> {
    if FORM == NT {
        let at = rows(j * 4u, params.n) * params.b_stride + k / 4u;
        return transpose(mat4x4(b[at.x], b[at.y], b[at.z], b[at.w]));
    }
    let at = rows(k, params.k) * params.b_stride + min(j, (params.n - 1u) / 4u);
    return mat4x4(b[at.x], b[at.y], b[at.z], b[at.w]);
}

fn row(c: vec4<f32>, a: vec4<f32>, b: mat4x4<f32>) -> vec4<f32> {
    return fma(vec4(a.w), b[3], fma(vec4(a.z), b[2], fma(vec4(a.y), b[1], fma(vec4(a.x), b[0], c))));
}

// C + A B.
fn madd(c: mat4x4<f32>, a: mat4x4<f32>, b: mat4x4<f32>) -> mat4x4<f32> {
    return mat4x4(row(c[0], a[0], b), row(c[1], a[1], b), row(c[2], a[2], b), row(c[3], a[3], b));
}

fn store_row(z: u32, i: u32, j: u32, sum: vec4<f32>) {
    if i >= params.m || j * 4u >= params.n {
        return;
    }
    let at = (z * params.m + i) * params.c_stride + j;
    if STORE == SET {
        c[at] = sum;
    } else if STORE == ADD {
        c[at] += sum;
    } else {
        c[at] = residual[at] + sum;
    }
}

fn store(z: u32, i: u32, j: u32, sum: mat4x4<f32>) {
    store_row(z, i, j, sum[0]);
    store_row(z, i + 1u, j, sum[1]);
    store_row(z, i + 2u, j, sum[2]);
    store_row(z, i + 3u, j, sum[3]);
}

@compute @workgroup_size(WG, WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    // The blocks of an invocation lie WG blocks apart, so that neighbours read neighbouring quads.
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
