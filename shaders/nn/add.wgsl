// output = a + b: a residual connection.
struct Params {
    len: u32,
}
@group(0) @binding(0) var<storage, read> a: array<f32>; // [len]
@group(0) @binding(1) var<storage, read> b: array<f32>; // [len]
@group(0) @binding(2) var<storage, read_write> output: array<f32>; // [len]
@group(0) @binding(3) var<uniform> params: Params;

override WORKGROUP: u32 = 256;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    for (var i = id.x; i < params.len; i += groups.x * WORKGROUP) {
        output[i] = a[i] + b[i];
    }
}
