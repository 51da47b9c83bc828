// Shared parts of the matrix products: reading operands and storing results in blocks of 4 × 4 values. The columns of a
// `mat4x4` are the rows of a block of A, B or C as they lie in memory.

// Layouts of the operands: A [m, k], B [n, k]; A [m, k], B [k, n]; A [k, m], B [k, n].
const NT = 0u;
const NN = 1u;
const TN = 2u;
override FORM: u32 = NN;
// Result stored in C: the product; C plus the product; R plus the product.
const SET = 0u;
const ADD = 1u;
const PLUS = 2u;
override STORE: u32 = SET;
struct Params {
    m: u32,
    n: u32,
    k: u32,
    // Row strides of A, B, C and R, in quads.
    a_stride: u32,
    b_stride: u32,
    c_stride: u32,
    // First row of C to compute.
    row: u32,
    // Number of terms per workgroup, a multiple of 4. Workgroup z sums the terms from z · depth on. Its C begins m rows
    // after that of workgroup z − 1.
    depth: u32,
    // First quad of A, and of C, within their rows.
    a_first: u32,
    c_first: u32,
    // Factor on the product.
    scale: f32,
    // Power of two by which A is multiplied and sums are divided, if 16-bit floats are multiplied.
    gain: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> b: array<vec4<f32>>;
// The same B, for formats other than 32-bit floats.
@group(0) @binding(3) var<storage, read> b_words: array<vec2<u32>>;
@group(0) @binding(4) var<storage, read> residual: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> c: array<vec4<f32>>;

// Returns the indices of four rows from `first` on, clamped to the last row.
fn rows(first: u32, count: u32) -> vec4<u32> {
    return min(first + vec4(0u, 1u, 2u, 3u), vec4(count - 1u));
}

// Returns rows i … i + 3 of A at terms k … k + 3. If A is transposed, terms from params.k on are 0; otherwise memory
// holds zeros there.
fn load_a(i: u32, k: u32) -> mat4x4<f32> {
    if FORM == TN {
        let at = rows(k, params.k) * params.a_stride + params.a_first + min(i, params.m - 1u) / 4u;
        let live = k + vec4(0u, 1u, 2u, 3u) < vec4(params.k);
        return transpose(mat4x4(
            a[at.x],
            select(vec4(0.0), a[at.y], live.y),
            select(vec4(0.0), a[at.z], live.z),
            select(vec4(0.0), a[at.w], live.w),
        ));
    }
    let at = rows(i, params.m) * params.a_stride + params.a_first + k / 4u;
    return mat4x4(a[at.x], a[at.y], a[at.z], a[at.w]);
}

fn word_b(at: u32) -> u32 {
    return word_of(b_words[at / 2u], at);
}

fn quad_b(row: u32, quad: u32) -> vec4<f32> {
    let at = row * params.b_stride + quad;
    if VALUES == HALF {
        return half_quad(b_words[at]);
    }
    if VALUES == INT8 {
        let count = select(params.k, params.n, FORM == NT);
        return int8_quad(word_b(at), word_b(scale_at(row, quad, count, params.b_stride)));
    }
    return b[at];
}

// Returns quad j of rows k … k + 3 of B.
fn load_b(k: u32, j: u32) -> mat4x4<f32> {
    if FORM == NT {
        let row = rows(j * 4u, params.n);
        let quad = k / 4u;
        let block = mat4x4(quad_b(row.x, quad), quad_b(row.y, quad), quad_b(row.z, quad), quad_b(row.w, quad));
        return transpose(block);
    }
    let row = rows(k, params.k);
    let quad = min(j, (params.n - 1u) / 4u);
    return mat4x4(quad_b(row.x, quad), quad_b(row.y, quad), quad_b(row.z, quad), quad_b(row.w, quad));
}

fn row(c: vec4<f32>, a: vec4<f32>, b: mat4x4<f32>) -> vec4<f32> {
    return fma(vec4(a.w), b[3], fma(vec4(a.z), b[2], fma(vec4(a.y), b[1], fma(vec4(a.x), b[0], c))));
}

// Returns C + A B.
fn madd(c: mat4x4<f32>, a: mat4x4<f32>, b: mat4x4<f32>) -> mat4x4<f32> {
    return mat4x4(row(c[0], a[0], b), row(c[1], a[1], b), row(c[2], a[2], b), row(c[3], a[3], b));
}

fn store_row(z: u32, i: u32, j: u32, sum: vec4<f32>) {
    if i >= params.m || j * 4u >= params.n {
        return;
    }
    let at = (z * params.m + i) * params.c_stride + params.c_first + j;
    let product = sum * params.scale;
    if STORE == SET {
        c[at] = product;
    } else if STORE == ADD {
        c[at] += product;
    } else {
        c[at] = residual[at] + product;
    }
}

fn store(z: u32, i: u32, j: u32, sum: mat4x4<f32>) {
    store_row(z, i, j, sum[0]);
    store_row(z, i + 1u, j, sum[1]);
    store_row(z, i + 2u, j, sum[2]);
    store_row(z, i + 3u, j, sum[3]);
}
