// dst = src: the copy of an activation that the backward pass reads.
struct Params {
    len: u32,
}
@group(0) @binding(0) var<storage, read> src: array<f32>; // [len]
@group(0) @binding(1) var<storage, read_write> dst: array<f32>; // [len]
@group(0) @binding(2) var<uniform> params: Params;

override WORKGROUP: u32 = 256;

// Four elements at a time, WORKGROUP apart.
@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let len = params.len;
    for (var first = group.x * 4 * WORKGROUP + lane; first < len; first += groups.x * 4 * WORKGROUP) {
        let i = first + vec4u(0, 1, 2, 3) * WORKGROUP;
        let at = min(i, vec4u(len - 1));
        let value = vec4f(src[at.x], src[at.y], src[at.z], src[at.w]);
        for (var j = 0u; j < 4; j++) {
            if i[j] < len {
                dst[i[j]] = value[j];
            }
        }
    }
}
