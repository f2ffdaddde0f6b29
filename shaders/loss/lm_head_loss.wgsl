// From the stats of all classes, for each workgroup the sum over its rows of max + log Σ exp(z − max) − z of the label, and
// the number of rows counted: those whose label is not ignore_index. A label out of range makes the loss infinite.
struct Params {
    rows: u32,
    classes: u32,
    ignore_index: i32,
}
@group(0) @binding(0) var<storage, read> stats: array<f32>; // [rows, 3]
@group(0) @binding(1) var<storage, read> labels: array<i32>; // [rows]
@group(0) @binding(2) var<storage, read_write> partial_sums: array<vec2f>; // [workgroups]
@group(0) @binding(3) var<uniform> params: Params;

override WORKGROUP: u32 = 64;

var<workgroup> partial: array<vec2f, WORKGROUP>;

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    var sum = vec2f();
    for (var row = group.x * WORKGROUP + lane; row < params.rows; row += groups.x * WORKGROUP) {
        let label = labels[row];
        if label != params.ignore_index {
            let valid = label >= 0 && label < i32(params.classes);
            let infinite = 3.4028234e38 * f32(params.classes + 1);
            let loss = stats[3 * row] - stats[3 * row + 2] + log(stats[3 * row + 1]);
            sum += vec2f(select(infinite, loss, valid), 1.0);
        }
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
