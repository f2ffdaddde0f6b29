// cache[cursor + row] = x[row]: new keys or values behind those that a cache holds.
struct Params {
    len: u32,
    width: u32,
}
@group(0) @binding(0) var<storage, read> x: array<f32>; // [rows, width]
@group(0) @binding(1) var<storage, read> cursor: array<i32>; // [1]
@group(0) @binding(2) var<storage, read_write> cache: array<f32>; // [capacity, width]
@group(0) @binding(3) var<uniform> params: Params;

override WORKGROUP: u32 = 64;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let i = id.x + id.y * groups.x * WORKGROUP;
    if i >= params.len {
        return;
    }
    cache[u32(cursor[0]) * params.width + i] = x[i];
}
