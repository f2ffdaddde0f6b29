// d_input = d_output·W for one token: SLICES invocations share the rows of W of one column.
struct Params {
    in_features: u32,
    out_features: u32,
}
@group(0) @binding(0) var<storage, read> weight: array<f32>; // [out_features, in_features]
@group(0) @binding(1) var<storage, read> d_output: array<f32>; // [1, out_features]
@group(0) @binding(2) var<storage, read_write> d_input: array<f32>; // [1, in_features]
@group(0) @binding(3) var<uniform> params: Params;

override COLUMNS: u32 = 32;
override SLICES: u32 = 8;

var<workgroup> partial: array<f32, COLUMNS * SLICES>; // [SLICES, COLUMNS]

@compute @workgroup_size(COLUMNS, SLICES)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_id) local: vec3u,
    @builtin(local_invocation_index) index: u32,
) {
    let column = (group.x + group.y * groups.x) * COLUMNS + local.x;
    let input = min(column, params.in_features - 1);
    var sum = 0.0;
    for (var k = local.y; k < params.out_features; k += SLICES) {
        sum += d_output[k] * weight[k * params.in_features + input];
    }
    partial[index] = sum;
    workgroupBarrier();

    if local.y == 0 && column < params.in_features {
        sum = 0.0;
        for (var slice = 0u; slice < SLICES; slice++) {
            sum += partial[slice * COLUMNS + local.x];
        }
        d_input[column] = sum;
    }
}
