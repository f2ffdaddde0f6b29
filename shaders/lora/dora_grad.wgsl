// d_magnitude += Σₜ d_output⊙u/norm and du = m/norm·d_output, the norm held constant. One invocation takes one column. A row of
// zeros, of norm 0, has no gradients.
struct Params {
    tokens: u32,
    out_features: u32,
}
@group(0) @binding(0) var<storage, read> magnitude: array<f32>; // [out_features]
@group(0) @binding(1) var<storage, read> norm: array<f32>; // [out_features]
@group(0) @binding(2) var<storage, read> d_output: array<f32>; // [tokens, out_features]
@group(0) @binding(3) var<storage, read> u: array<f32>; // [tokens, out_features]
@group(0) @binding(4) var<storage, read_write> d_magnitude: array<f32>; // [out_features]
@group(0) @binding(5) var<storage, read_write> du: array<f32>; // [tokens, out_features]
@group(0) @binding(6) var<uniform> params: Params;

override WORKGROUP: u32 = 64;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let o = id.x + id.y * groups.x * WORKGROUP;
    if o >= params.out_features {
        return;
    }
    let zeros = norm[o] == 0.0;
    let factor = select(magnitude[o] / norm[o], 0.0, zeros);
    var sum = 0.0;
    for (var token = 0u; token < params.tokens; token++) {
        let i = token * params.out_features + o;
        sum += d_output[i] * u[i];
        du[i] = factor * d_output[i];
    }
    d_magnitude[o] += select(sum / norm[o], 0.0, zeros);
}
