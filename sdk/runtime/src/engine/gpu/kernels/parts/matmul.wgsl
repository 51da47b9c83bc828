// What the matrix products share: how operands are read and results are kept, in blocks of 4 × 4. The columns
// of a `mat4x4` are the rows of a block, whether of A, B or C: that is how they lie in memory.

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
// Whether B is of 16-bit floats.
override HALF: u32 = 0u;

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
@group(0) @binding(3) var<storage, read> b_half: array<vec2<u32>>;
@group(0) @binding(4) var<storage, read> residual: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> c: array<vec4<f32>>;

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

fn quad_b(at: u32) -> vec4<f32> {
    if HALF != 0u {
        let pairs = b_half[at];
        return vec4(unpack2x16float(pairs.x), unpack2x16float(pairs.y));
    }
    return b[at];
}

// Rows k … k + 3 of B at the quad j.
fn load_b(k: u32, j: u32) -> mat4x4<f32> {
    if FORM == NT {
        let at = rows(j * 4u, params.n) * params.b_stride + k / 4u;
        return transpose(mat4x4(quad_b(at.x), quad_b(at.y), quad_b(at.z), quad_b(at.w)));
    }
    let at = rows(k, params.k) * params.b_stride + min(j, (params.n - 1u) / 4u);
    return mat4x4(quad_b(at.x), quad_b(at.y), quad_b(at.z), quad_b(at.w));
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
