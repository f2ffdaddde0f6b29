// d_magnitude += Σₜ d_output⊙u/norm, or parts of that sum, each over `part` tokens, and du = m/norm·d_output, the norm held
// constant. One invocation takes one column of a part. A row of zeros, of norm 0, has no gradients.
struct Params {
    tokens: u32,
    out_features: u32,
    part: u32,
    accumulate: u32,
}
@group(0) @binding(0) var<storage, read> magnitude: array<f32>; // [out_features]
@group(0) @binding(1) var<storage, read> norm: array<f32>; // [out_features]
@group(0) @binding(2) var<storage, read> d_output: array<f32>; // [tokens, out_features]
@group(0) @binding(3) var<storage, read> u: array<f32>; // [tokens, out_features]
@group(0) @binding(4) var<storage, read_write> d_magnitude: array<f32>; // [parts, out_features]
@group(0) @binding(5) var<storage, read_write> du: array<f32>; // [tokens, out_features]
@group(0) @binding(6) var<uniform> params: Params;

override WORKGROUP: u32 = 64;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let i = id.x + id.y * groups.x * WORKGROUP;
    let o = i % params.out_features;
    let first = i / params.out_features * params.part;
    if first >= params.tokens {
        return;
    }
    let zeros = norm[o] == 0.0;
    let factor = select(magnitude[o] / norm[o], 0.0, zeros);
    let end = min(first + params.part, params.tokens);
    var sum = vec4f();
    // Four tokens at a time, read before any is written; out of range repeats the last one, which counts nothing.
    for (var token = first; token < end; token += 4) {
        let tokens = token + vec4u(0, 1, 2, 3);
        let at = min(tokens, vec4u(end - 1)) * params.out_features + o;
        let d = vec4f(d_output[at.x], d_output[at.y], d_output[at.z], d_output[at.w]);
        let product = d * vec4f(u[at.x], u[at.y], u[at.z], u[at.w]);
        sum += select(vec4f(), product, tokens < vec4u(end));
        let scaled = factor * d;
        for (var j = 0u; j < 4; j++) {
            du[at[j]] = scaled[j];
        }
    }
    let total = sum.x + sum.y + sum.z + sum.w;
    d_magnitude[i] = select(total / norm[o], 0.0, zeros) + select(0.0, d_magnitude[i], params.accumulate == 1);
}
