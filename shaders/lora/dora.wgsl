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

// One invocation takes four tokens of one column.
@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let place = id.x + id.y * groups.x * WORKGROUP;
    let o = place % params.out_features;
    let first = place / params.out_features * 4;
    if first >= params.tokens {
        return;
    }
    // Out of range repeats the last token; it is not written.
    let row = min(first + vec4u(0, 1, 2, 3), vec4u(params.tokens - 1)) * params.rank;
    var sum = vec4f();
    for (var r = 0u; r < params.rank; r++) {
        sum += vec4f(h[row.x + r], h[row.y + r], h[row.z + r], h[row.w + r]) * b[o * params.rank + r];
    }
    let offset = select(0.0, bias[o * params.has_bias], params.has_bias == 1);
    let factor = select(magnitude[o] / norm[o], 0.0, norm[o] == 0.0);
    for (var j = 0u; j < min(4, params.tokens - first); j++) {
        let i = (first + j) * params.out_features + o;
        var p = output[i] - offset;
        if params.dropped == 1 {
            p = u[i];
        }
        let changed = p + params.scale * sum[j];
        u[i] = changed;
        output[i] += factor * changed - p;
    }
}
