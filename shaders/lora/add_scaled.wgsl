// output += scale·y.
struct Params {
    len: u32,
    scale: f32,
}
@group(0) @binding(0) var<storage, read> y: array<f32>; // [len]
@group(0) @binding(1) var<storage, read_write> output: array<f32>; // [len]
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
        let before = vec4f(output[at.x], output[at.y], output[at.z], output[at.w]);
        let value = before + params.scale * vec4f(y[at.x], y[at.y], y[at.z], y[at.w]);
        for (var j = 0u; j < 4; j++) {
            if i[j] < len {
                output[i[j]] = value[j];
            }
        }
    }
}
