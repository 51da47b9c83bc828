// Inputs of an AdamW step in addition to `parts/hyper.wgsl`: parameters and gradients in quads.

@group(0) @binding(3) var<storage, read_write> theta: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> grad: array<vec4<f32>>;
