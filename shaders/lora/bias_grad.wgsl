// d_bias += scale·Σₜ d_output. One invocation adds up one column.
struct Params {
    tokens: u32,
    out_features: u32,
    scale: f32,
}
@group(0) @binding(0) var<storage, read> d_output: array<f32>; // [tokens, out_features]
@group(0) @binding(1) var<storage, read_write> d_bias: array<f32>; // [out_features]
@group(0) @binding(2) var<uniform> params: Params;

override WORKGROUP: u32 = 64;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let o = id.x + id.y * groups.x * WORKGROUP;
    if o >= params.out_features {
        return;
    }
    var sum = 0.0;
    for (var token = 0u; token < params.tokens; token++) {
        sum += d_output[token * params.out_features + o];
    }
    d_bias[o] += params.scale * sum;
}
