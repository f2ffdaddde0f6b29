// A chunk of logits becomes its gradient, in place: exp(z − max) / Σ exp(z − max) − 1 at the label; 0 in rows whose label
// is ignore_index.
struct Params {
    len: u32,
    width: u32, // classes of this chunk
    first_class: u32,
    ignore_index: i32,
}
@group(0) @binding(0) var<storage, read> labels: array<i32>; // [rows]
@group(0) @binding(1) var<storage, read> stats: array<f32>; // [rows, 3]
@group(0) @binding(2) var<storage, read_write> logits: array<f32>; // [rows, width]
@group(0) @binding(3) var<uniform> params: Params;

override WORKGROUP: u32 = 64;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let i = id.x + id.y * groups.x * WORKGROUP;
    if i >= params.len {
        return;
    }
    let row = i / params.width;
    let index = i32(params.first_class + i % params.width);
    let label = labels[row];
    let hit = select(0.0, 1.0, index == label);
    let gradient = exp(logits[i] - stats[3 * row]) / stats[3 * row + 1] - hit;
    logits[i] = select(gradient, 0.0, label == params.ignore_index);
}
