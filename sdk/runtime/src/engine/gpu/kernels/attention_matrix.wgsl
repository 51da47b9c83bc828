// Causal attention on matrix units, equal to `attention.wgsl`: y_t = Σ_{s ≤ t} p_s v_s with
// p = softmax_s(q_t · k_s / √D), and lse_t; out is y [R, C], lse [R, H]. Lanes: `parts/strips.wgsl`.
// CPU twin: `model::ops::attention`.
//
// There are two passes over the keys: the first computes lse, the second the sum with the final weights.

@group(0) @binding(2) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> lse: array<f32>;

const LOWEST = -3.4028234e38;
const FOUR = vec4(0u, 1u, 2u, 3u);

// Largest score of each lane, and its sum of exponentials relative to that score.
var<workgroup> found: array<vec2<f32>, WG>;

// Returns the scores of four keys from `key` on, for a query that attends to keys up to `query`.
fn scores(at: u32, key: u32, query: u32) -> vec4<f32> {
    return select(vec4(LOWEST), wide[at], vec4(key) + FOUR <= vec4(query));
}

fn largest(x: vec4<f32>) -> f32 {
    return max(max(x.x, x.y), max(x.z, x.w));
}

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) index: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let mine = wide_at(subgroup, lane);
    let to = half_at(subgroup, lane);
    let own = lane % 2u * 16u;
    let across = params.windows * params.heads;
    for (var unit = params.first + group.x; unit < params.end; unit += groups.x) {
        // Rows with the most keys are processed first.
        let first = (down() - 1u - unit / across) * SIDE;
        let end = min(first + SIDE, params.context);
        let start = unit % across / params.heads * params.context;
        let head = unit % across % params.heads;
        let keys = (params.heads + head / (params.heads / params.kv_heads)) * HEAD;
        let values = keys + params.kv_heads * HEAD;
        let query = first + subgroup * STRIP + lane / 2u;
        workgroupBarrier();
        keep(0u, index, fetch(start, first, head * HEAD, scale(), index));
        keep(BLOCK, index, fetch(start, first + ROWS, head * HEAD, scale(), index));
        workgroupBarrier();
        let q0 = strip(subgroup, 0u);
        var q1: BlockA;
        var q2: BlockA;
        var q3: BlockA;
        if HEAD > 4u {
            q1 = strip(subgroup, 4u);
        }
        if HEAD > 8u {
            q2 = strip(subgroup, 8u);
        }
        if HEAD > 12u {
            q3 = strip(subgroup, 12u);
        }

        var top = LOWEST;
        var sum = 0.0;
        var next = fetch(start, 0u, keys, 1.0, index);
        for (var key = 0u; key < end; key += ROWS) {
            workgroupBarrier();
            keep(0u, index, next);
            workgroupBarrier();
            next = fetch(start, key + ROWS, keys, 1.0, index);
            spread(subgroup, dots(q0, q1, q2, q3, 0u), dots(q0, q1, q2, q3, 16u * ALONG));
            workgroupBarrier();
            let a = scores(mine, key + own, query);
            let b = scores(mine + 1u, key + own + 4u, query);
            let c = scores(mine + 2u, key + own + 8u, query);
            let d = scores(mine + 3u, key + own + 12u, query);
            let before = top;
            top = max(top, max(max(largest(a), largest(b)), max(largest(c), largest(d))));
            let weights = exp(a - top) + exp(b - top) + exp(c - top) + exp(d - top);
            sum = sum * exp(before - top) + dot(weights, vec4(1.0));
        }
        found[subgroup * 32u + lane] = vec2(top, sum);
        workgroupBarrier();
        // The neighbouring lane has the other half of the row.
        let other = found[subgroup * 32u + (lane ^ 1u)];
        let both = max(top, other.x);
        let total = both + log(sum * exp(top - both) + other.y * exp(other.x - both));
        if lane % 2u == 0u && query < params.context {
            lse[(start + query) * params.heads + head] = total;
        }

        var y0: Sum;
        var y1: Sum;
        var y2: Sum;
        var y3: Sum;
        next = fetch(start, 0u, keys, 1.0, index);
        var next_values = fetch(start, 0u, values, 1.0, index);
        for (var key = 0u; key < end; key += ROWS) {
            workgroupBarrier();
            keep(0u, index, next);
            keep(BLOCK, index, next_values);
            workgroupBarrier();
            next = fetch(start, key + ROWS, keys, 1.0, index);
            next_values = fetch(start, key + ROWS, values, 1.0, index);
            spread(subgroup, dots(q0, q1, q2, q3, 0u), dots(q0, q1, q2, q3, 16u * ALONG));
            workgroupBarrier();
            halves[to] = vec4<f16>(SHARES * exp(scores(mine, key + own, query) - total));
            halves[to + 1u] = vec4<f16>(SHARES * exp(scores(mine + 1u, key + own + 4u, query) - total));
            halves[to + 2u] = vec4<f16>(SHARES * exp(scores(mine + 2u, key + own + 8u, query) - total));
            halves[to + 3u] = vec4<f16>(SHARES * exp(scores(mine + 3u, key + own + 12u, query) - total));
            workgroupBarrier();
            let low = half_strip(subgroup, 0u);
            let high = half_strip(subgroup, 1u);
            y0 = add_rows(low, high, BLOCK, y0);
            if HEAD > 4u {
                y1 = add_rows(low, high, BLOCK + 4u, y1);
            }
            if HEAD > 8u {
                y2 = add_rows(low, high, BLOCK + 8u, y2);
            }
            if HEAD > 12u {
                y3 = add_rows(low, high, BLOCK + 12u, y3);
            }
        }
        let at = ((start + query) * params.heads + head) * HEAD;
        put(subgroup, lane, y0, y1, query < params.context, at, HEAD, SHARES);
        if HEAD > 8u {
            put(subgroup, lane, y2, y3, query < params.context, at + 8u, HEAD - 8u, SHARES);
        }
    }
}
