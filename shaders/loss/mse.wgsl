// d_output = 2·(output − targets), and for each workgroup the sum of (output − targets)² and the number of elements.
struct Params {
    len: u32,
}
@group(0) @binding(0) var<storage, read> output: array<f32>; // [len]
@group(0) @binding(1) var<storage, read> targets: array<f32>; // [len]
@group(0) @binding(2) var<storage, read_write> d_output: array<f32>; // [len]
@group(0) @binding(3) var<storage, read_write> partial_sums: array<vec2f>; // [workgroups]
@group(0) @binding(4) var<uniform> params: Params;

override WORKGROUP: u32 = 64;

var<workgroup> partial: array<vec2f, WORKGROUP>;

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    var sum = vec2f();
    for (var i = group.x * WORKGROUP + lane; i < params.len; i += groups.x * WORKGROUP) {
        let difference = output[i] - targets[i];
        d_output[i] = 2.0 * difference;
        sum += vec2f(difference * difference, 1.0);
    }
    partial[lane] = sum;
    workgroupBarrier();

    if lane == 0 {
        sum = vec2f();
        for (var i = 0u; i < WORKGROUP; i++) {
            sum += partial[i];
        }
        partial_sums[group.x] = sum;
    }
}
