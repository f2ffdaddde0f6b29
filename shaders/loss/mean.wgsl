// loss = totals.x / totals.y and d_output /= totals.y: from the sum over what was counted to its mean; 0 where nothing was.
struct Params {
    len: u32,
}
@group(0) @binding(0) var<storage, read> totals: array<vec2f>; // [1]
@group(0) @binding(1) var<storage, read_write> d_output: array<f32>; // [len]
@group(0) @binding(2) var<storage, read_write> loss: array<f32>; // [1]
@group(0) @binding(3) var<uniform> params: Params;

override WORKGROUP: u32 = 64;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let i = id.x + id.y * groups.x * WORKGROUP;
    if i >= params.len {
        return;
    }
    let count = totals[0].y;
    d_output[i] = select(0.0, d_output[i] / count, count > 0.0);
    if i == 0 {
        loss[0] = select(0.0, totals[0].x / count, count > 0.0);
    }
}
