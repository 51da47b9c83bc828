// Shared parts of both attention gradients on matrix units, in addition to `parts/strips.wgsl`.

@group(0) @binding(2) var<storage, read> dy: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> lse: array<f32>;
@group(0) @binding(4) var<storage, read> means: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<vec4<f32>>;

fn quad_of_dy(start: u32, first: u32, head: u32, index: u32) -> vec4<f16> {
    let row = row_of(start, first, index) * params.heads + head;
    return vec4<f16>(dy[row * HEAD + index % HEAD] * params.gain);
}

// Fetches this lane's part of the block with rows of dy from position `first` on.
fn fetch_dy(start: u32, first: u32, head: u32, lane: u32) -> Quads {
    var quads: Quads;
    quads[0] = quad_of_dy(start, first, head, lane);
    if HEAD > 4u {
        quads[1] = quad_of_dy(start, first, head, lane + WG);
    }
    if HEAD > 8u {
        quads[2] = quad_of_dy(start, first, head, lane + 2u * WG);
    }
    if HEAD > 12u {
        quads[3] = quad_of_dy(start, first, head, lane + 3u * WG);
    }
    return quads;
}
