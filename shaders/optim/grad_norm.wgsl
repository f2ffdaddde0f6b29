// For each workgroup the sum of squares of its share of the gradients.
struct Params {
    len: u32,
}
@group(0) @binding(0) var<storage, read> grad: array<f32>; // [len]
@group(0) @binding(1) var<storage, read_write> partial_sums: array<f32>; // [workgroups]
@group(0) @binding(2) var<uniform> params: Params;

override WORKGROUP: u32 = 64;

var<workgroup> partial: array<f32, WORKGROUP>;

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    var sum = 0.0;
    for (var i = group.x * WORKGROUP + lane; i < params.len; i += groups.x * WORKGROUP) {
        sum += grad[i] * grad[i];
    }
    partial[lane] = sum;
    workgroupBarrier();

    if lane == 0 {
        sum = 0.0;
        for (var i = 0u; i < WORKGROUP; i++) {
            sum += partial[i];
        }
        partial_sums[group.x] = sum;
    }
}
