// dst = src: the copy of an activation that the backward pass reads.
struct Params {
    len: u32,
}
@group(0) @binding(0) var<storage, read> src: array<f32>; // [len]
@group(0) @binding(1) var<storage, read_write> dst: array<f32>; // [len]
@group(0) @binding(2) var<uniform> params: Params;

override WORKGROUP: u32 = 64;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let i = id.x + id.y * groups.x * WORKGROUP;
    if i >= params.len {
        return;
    }
    dst[i] = src[i];
}
