// output += scale·bias, the same for every token.
struct Params {
    tokens: u32,
    out_features: u32,
    scale: f32,
}
@group(0) @binding(0) var<storage, read> bias: array<f32>; // [out_features]
@group(0) @binding(1) var<storage, read_write> output: array<f32>; // [tokens, out_features]
@group(0) @binding(2) var<uniform> params: Params;

override WORKGROUP: u32 = 64;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let i = id.x + id.y * groups.x * WORKGROUP;
    if i >= params.tokens * params.out_features {
        return;
    }
    output[i] += params.scale * bias[i % params.out_features];
}
