// The gradient of norm, with x̂ = (x − μ)/σ and g = weight·d_output: d_input = (g − mean(g) − x̂·mean(g·x̂))/σ, row by row;
// RMS norm (centered 0) has μ = 0 and no mean(g). Added to d_input with accumulate.
struct Params {
    rows: u32,
    features: u32,
    centered: u32,
    accumulate: u32,
    eps: f32,
}
@group(0) @binding(0) var<storage, read> weight: array<f32>; // [features]
@group(0) @binding(1) var<storage, read> x: array<f32>; // [rows, features]
@group(0) @binding(2) var<storage, read> d_output: array<f32>; // [rows, features]
@group(0) @binding(3) var<storage, read_write> d_input: array<f32>; // [rows, features]
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

    var sums = vec2f();
    for (var i = lane; i < params.features; i += WORKGROUP) {
        let g = weight[i] * d_output[first + i];
        sums += vec2f(g, g * (x[first + i] - mean) * inv_deviation);
    }
    sums = sum_up(lane, sums) * inv_features;
    let mean_g = select(0.0, sums.x, params.centered == 1);
    if index != row {
        return;
    }
    for (var i = lane; i < params.features; i += WORKGROUP) {
        let g = weight[i] * d_output[first + i];
        let before = select(0.0, d_input[first + i], params.accumulate == 1);
        d_input[first + i] = before + (g - mean_g - (x[first + i] - mean) * inv_deviation * sums.y) * inv_deviation;
    }
}
