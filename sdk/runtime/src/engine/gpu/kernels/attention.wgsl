// Causal attention: y_t = Σ_{s ≤ t} p_s v_s with p = softmax_s(q_t · k_s / √D), in each window and head, and
// lse_t = ln Σ_{s ≤ t} exp(q_t · k_s / √D); out is y [R, C], lse [R, H]. Layout and lanes: `parts/bands.wgsl`.
// CPU twin: `model::ops::attention`.

@group(0) @binding(2) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> lse: array<f32>;

const LOWEST = -3.4028234e38;

// Result of each lane for its band.
var<workgroup> found: array<Eight, WG>;

fn larger(a: Eight, b: Eight) -> Eight {
    return Eight(max(a[0], b[0]), max(a[1], b[1]));
}

fn exponential(x: Eight) -> Eight {
    return Eight(exp(x[0]), exp(x[1]));
}

fn by_row(a: vec4<f32>, x: mat4x4<f32>) -> mat4x4<f32> {
    return mat4x4(a.x * x[0], a.y * x[1], a.z * x[2], a.w * x[3]);
}

// Returns the scores of one key, from its dot products with the rows of the band.
fn scores(band: Band, key: u32, products: Eight) -> Eight {
    let all = products * inverseSqrt(4.0 * f32(HEAD));
    return Eight(
        select(vec4(LOWEST), all[0], vec4(key) <= band.low.position),
        select(vec4(LOWEST), all[1], vec4(key) <= band.high.position),
    );
}

// Stores the scores of keys first + i + QUARTER · (0, 1, 2, 3) in workgroup memory. Returns the largest score.
fn four_keys(band: Band, slot: u32, first: u32, i: u32) -> Eight {
    let keys = first + i + QUARTER * FOUR;
    let at = row_at(band.start, keys) * stride() + keys_at(band.head);
    let low_at = band.low.row * stride() + band.head * HEAD;
    let high_at = band.high.row * stride() + band.head * HEAD;
    var a = Eight();
    var b = Eight();
    var c = Eight();
    var d = Eight();
    for (var j = 0u; j < HEAD; j++) {
        let low = transpose(load(low_at + j));
        let high = transpose(load(high_at + j));
        let k = load(at + j);
        a = add_eight(a, k[0], low, high);
        b = add_eight(b, k[1], low, high);
        c = add_eight(c, k[2], low, high);
        d = add_eight(d, k[3], low, high);
    }
    a = scores(band, keys.x, a);
    b = scores(band, keys.y, b);
    c = scores(band, keys.z, c);
    d = scores(band, keys.w, d);
    let to = i * SLOTS + slot;
    weights[to] = a;
    weights[to + QUARTER * SLOTS] = b;
    weights[to + 2u * QUARTER * SLOTS] = c;
    weights[to + 3u * QUARTER * SLOTS] = d;
    return larger(larger(a, b), larger(c, d));
}

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let slot = lane / LANES;
    let wide = across(params.heads);
    for (var unit = params.first + group.x; unit < params.end; unit += groups.x) {
        // Bands with the most keys are processed first.
        let block = (down() - 1u - unit / wide) * 8u * BANDS;
        let end = min(block + 8u * BANDS, params.context);
        let band = band_at(slot, unit % wide, params.heads, block);
        let low_out = (band.low.row * params.heads + band.head) * HEAD;
        let high_out = (band.high.row * params.heads + band.head) * HEAD;
        var top = Eight(vec4(LOWEST), vec4(LOWEST));
        var sum = Eight();
        for (var first = 0u; first < end; first += KEYS) {
            let before = top;
            for (var i = lane % LANES; i < QUARTER; i += LANES) {
                top = larger(top, four_keys(band, slot, first, i));
            }
            found[lane] = top;
            barrier();

            for (var i = 0u; i < LANES; i++) {
                top = larger(top, found[slot * LANES + i]);
            }
            let rescale = exponential(before - top);
            sum = Eight(sum[0] * rescale[0], sum[1] * rescale[1]);
            for (var i = lane % LANES; i < KEYS; i += LANES) {
                let weight = exponential(weights[i * SLOTS + slot] - top);
                weights[i * SLOTS + slot] = weight;
                sum += weight;
            }
            barrier();

            for (var i = lane % LANES; i < HEAD; i += LANES) {
                var low = mat4x4<f32>();
                var high = mat4x4<f32>();
                if first > 0u {
                    low = by_row(rescale[0], load_out(low_out + i));
                    high = by_row(rescale[1], load_out(high_out + i));
                }
                var at = (band.start + first) * stride() + values_at(band.head) + i;
                for (var j = 0u; j < min(KEYS, end - first); j++) {
                    let weight = weights[j * SLOTS + slot];
                    low = add_outer(low, weight[0], qkv[at]);
                    high = add_outer(high, weight[1], qkv[at]);
                    at += stride();
                }
                store_out(low_out + i, band.low.live, low);
                store_out(high_out + i, band.high.live, high);
            }
            barrier();
        }

        found[lane] = sum;
        barrier();
        sum = Eight();
        for (var i = 0u; i < LANES; i++) {
            sum += found[slot * LANES + i];
        }
        barrier();
        for (var i = lane % LANES; i < HEAD; i += LANES) {
            store_out(low_out + i, band.low.live, by_row(1.0 / sum[0], load_out(low_out + i)));
            store_out(high_out + i, band.high.live, by_row(1.0 / sum[1], load_out(high_out + i)));
        }
        for (var i = lane % LANES; i < 4u; i += LANES) {
            if band.low.live[i] {
                lse[band.low.row[i] * params.heads + band.head] = top[0][i] + log(sum[0][i]);
            }
            if band.high.live[i] {
                lse[band.high.row[i] * params.heads + band.head] = top[1][i] + log(sum[1][i]);
            }
        }
    }
}
