// output = W·x + bias for one token: a whole workgroup for each row of W.
struct Params {
    in_features: u32,
    out_features: u32,
    has_bias: u32,
}
@group(0) @binding(0) var<storage, read> weight: array<f32>; // [out_features, in_features]
@group(0) @binding(1) var<storage, read> bias: array<f32>; // [out_features], anything when has_bias is 0
@group(0) @binding(2) var<storage, read> x: array<f32>; // [1, in_features]
@group(0) @binding(3) var<storage, read_write> output: array<f32>; // [1, out_features]
@group(0) @binding(4) var<uniform> params: Params;

override LANES: u32 = 64;

var<workgroup> partial: array<f32, LANES>;

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let out = group.x + group.y * groups.x;
    let row = min(out, params.out_features - 1) * params.in_features;
    var sum = 0.0;
    for (var k = lane; k < params.in_features; k += LANES) {
        sum += weight[row + k] * x[k];
    }
    partial[lane] = sum;
    workgroupBarrier();

    if lane == 0 && out < params.out_features {
        sum = 0.0;
        for (var i = 0u; i < LANES; i++) {
            sum += partial[i];
        }
        output[out] = sum + select(0.0, bias[out * params.has_bias], params.has_bias == 1);
    }
}
