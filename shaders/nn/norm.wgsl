// output = (x − μ)/√(mean((x − μ)²) + eps)·weight + bias, row by row: layer norm; RMS norm with μ = 0 (centered 0).
struct Params {
    rows: u32,
    features: u32,
    centered: u32,
    has_bias: u32,
    eps: f32,
}
@group(0) @binding(0) var<storage, read> weight: array<f32>; // [features]
@group(0) @binding(1) var<storage, read> bias: array<f32>; // [features], anything when has_bias is 0
@group(0) @binding(2) var<storage, read> x: array<f32>; // [rows, features]
@group(0) @binding(3) var<storage, read_write> output: array<f32>; // [rows, features]
@group(0) @binding(4) var<uniform> params: Params;

override WORKGROUP: u32 = 64;

var<workgroup> partial: array<vec2f, WORKGROUP>;

// Σ over the workgroup, in one order.
fn sum_up(lane: u32, value: vec2f) -> vec2f {
    partial[lane] = value;
    workgroupBarrier();
    var sum = vec2f();
    for (var i = 0u; i < WORKGROUP; i++) {
        sum += partial[i];
    }
    workgroupBarrier();
    return sum;
}

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    // Out of range repeats the last row; it is not written.
    let index = group.x + group.y * groups.x;
    let row = min(index, params.rows - 1);
    let first = row * params.features;
    let inv_features = 1.0 / f32(params.features);

    var sum = 0.0;
    for (var i = lane; i < params.features; i += WORKGROUP) {
        sum += x[first + i];
    }
    let mean = select(0.0, sum_up(lane, vec2f(sum, 0.0)).x * inv_features, params.centered == 1);
    sum = 0.0;
    for (var i = lane; i < params.features; i += WORKGROUP) {
        let difference = x[first + i] - mean;
        sum += difference * difference;
    }
    let inv_deviation = inverseSqrt(sum_up(lane, vec2f(sum, 0.0)).x * inv_features + params.eps);
    if index != row {
        return;
    }
    for (var i = lane; i < params.features; i += WORKGROUP) {
        let offset = select(0.0, bias[i * params.has_bias], params.has_bias == 1);
        output[first + i] = (x[first + i] - mean) * inv_deviation * weight[i] + offset;
    }
}
