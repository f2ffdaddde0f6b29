// Of each row of logits, a chunk of its classes at a time: stats = (max z, Σ exp(z − max), z of the label), merged with
// those of the chunks before; the first chunk begins anew. One workgroup takes one row.
struct Params {
    rows: u32,
    width: u32, // classes of this chunk
    first_class: u32,
}
@group(0) @binding(0) var<storage, read> logits: array<f32>; // [rows, width]
@group(0) @binding(1) var<storage, read> labels: array<i32>; // [rows]
@group(0) @binding(2) var<storage, read_write> stats: array<f32>; // [rows, 3]
@group(0) @binding(3) var<uniform> params: Params;

override WORKGROUP: u32 = 64;
const PART: u32 = 16;
const LOWEST: f32 = -3.4028234e38;

var<workgroup> partial: array<f32, WORKGROUP>;

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    // Out of range repeats the last row; it is not written.
    let index = group.x + group.y * groups.x;
    let row = min(index, params.rows - 1);
    let first = row * params.width;
    var highest = LOWEST;
    for (var c = lane; c < params.width; c += WORKGROUP) {
        highest = max(highest, logits[first + c]);
    }
    partial[lane] = highest;
    workgroupBarrier();
    for (var i = 0u; i < WORKGROUP; i++) {
        highest = max(highest, partial[i]);
    }
    workgroupBarrier();
    // By parts: one sum over a whole vocabulary would round away what each class adds.
    var sum = 0.0;
    for (var start = lane; start < params.width; start += PART * WORKGROUP) {
        let end = min(start + PART * WORKGROUP, params.width);
        var part = 0.0;
        for (var c = start; c < end; c += WORKGROUP) {
            part += exp(logits[first + c] - highest);
        }
        sum += part;
    }
    partial[lane] = sum;
    workgroupBarrier();
    if lane > 0 || index != row {
        return;
    }
    sum = 0.0;
    for (var i = 0u; i < WORKGROUP; i++) {
        sum += partial[i];
    }
    var before = vec3f(LOWEST, 0.0, LOWEST);
    if params.first_class > 0 {
        before = vec3f(stats[3 * row], stats[3 * row + 1], stats[3 * row + 2]);
    }
    let now = max(before.x, highest);
    // Differences of two finite numbers may overflow.
    let merged = before.y * exp(max(before.x - now, -100.0)) + sum * exp(max(highest - now, -100.0));
    let label = labels[row] - i32(params.first_class);
    stats[3 * row] = now;
    stats[3 * row + 1] = merged;
    if label >= 0 && label < i32(params.width) {
        stats[3 * row + 2] = logits[first + u32(label)];
    } else {
        stats[3 * row + 2] = before.z;
    }
}
