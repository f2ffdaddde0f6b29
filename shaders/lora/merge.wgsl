// weight = factor·(weight + scale·B·A), or the way back weight = weight/factor − scale·B·A; factor is 1, or with DoRA
// magnitude/norm of the row.
struct Params {
    out_features: u32,
    in_features: u32,
    rank: u32,
    scale: f32,
    has_magnitude: u32,
    back: u32, // 1: the way back
}
@group(0) @binding(0) var<storage, read> a: array<f32>; // [rank, in_features]
@group(0) @binding(1) var<storage, read> b: array<f32>; // [out_features, rank]
@group(0) @binding(2) var<storage, read> magnitude: array<f32>; // [out_features], or anything
@group(0) @binding(3) var<storage, read> norm: array<f32>; // [out_features], or anything
@group(0) @binding(4) var<storage, read_write> weight: array<f32>; // [out_features, in_features]
@group(0) @binding(5) var<uniform> params: Params;

override WORKGROUP: u32 = 64;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let at = id.x + id.y * groups.x * WORKGROUP;
    if at >= params.out_features * params.in_features {
        return;
    }
    let o = at / params.in_features;
    let i = at % params.in_features;
    var sum = 0.0;
    for (var r = 0u; r < params.rank; r++) {
        sum += b[o * params.rank + r] * a[r * params.in_features + i];
    }
    let row = o * params.has_magnitude;
    // A row of zeros stays one, and has its way back.
    let factor = select(1.0, magnitude[row] / norm[row], params.has_magnitude == 1 && norm[row] != 0.0);
    let forth = factor * (weight[at] + params.scale * sum);
    weight[at] = select(forth, weight[at] / factor - params.scale * sum, params.back == 1);
}
