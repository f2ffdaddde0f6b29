// DoRA (Liu et al. 2024): u = p + scale·h·Bᵀ, output += m/norm·u − p. p is what the base gives without its bias: output − bias,
// or with dropout the product of what was left of x, which then is in u. A row of zeros stays one: m/norm is 0 there.
struct Params {
    tokens: u32,
    out_features: u32,
    rank: u32,
    scale: f32,
    has_bias: u32,
    dropped: u32, // 1: p is in u
}
@group(0) @binding(0) var<storage, read> b: array<f32>; // [out_features, rank]
@group(0) @binding(1) var<storage, read> h: array<f32>; // [tokens, rank]
@group(0) @binding(2) var<storage, read> magnitude: array<f32>; // [out_features]
@group(0) @binding(3) var<storage, read> norm: array<f32>; // [out_features]
@group(0) @binding(4) var<storage, read> bias: array<f32>; // [out_features], or anything
@group(0) @binding(5) var<storage, read_write> u: array<f32>; // [tokens, out_features]
@group(0) @binding(6) var<storage, read_write> output: array<f32>; // [tokens, out_features]
@group(0) @binding(7) var<uniform> params: Params;

override WORKGROUP: u32 = 64;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let i = id.x + id.y * groups.x * WORKGROUP;
    if i >= params.tokens * params.out_features {
        return;
    }
    let token = i / params.out_features;
    let o = i % params.out_features;
    let offset = select(0.0, bias[o * params.has_bias], params.has_bias == 1);
    var p = output[i] - offset;
    if params.dropped == 1 {
        p = u[i];
    }
    var sum = 0.0;
    for (var r = 0u; r < params.rank; r++) {
        sum += h[token * params.rank + r] * b[o * params.rank + r];
    }
    let changed = p + params.scale * sum;
    u[i] = changed;
    let factor = select(magnitude[o] / norm[o], 0.0, norm[o] == 0.0);
    output[i] += factor * changed - p;
}
