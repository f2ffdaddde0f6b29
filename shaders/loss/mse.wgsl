// d_output = 2·(output − targets), and for each workgroup the sum of (output − targets)² and the number of elements.
struct Params {
    len: u32,
}
@group(0) @binding(0) var<storage, read> output: array<f32>; // [len]
@group(0) @binding(1) var<storage, read> targets: array<f32>; // [len]
@group(0) @binding(2) var<storage, read_write> d_output: array<f32>; // [len]
@group(0) @binding(3) var<storage, read_write> partial_sums: array<vec2f>; // [workgroups]
@group(0) @binding(4) var<uniform> params: Params;

override WORKGROUP: u32 = 256;
override SUMS: u32 = 16; // lanes that add up those of the others

var<workgroup> partial: array<vec2f, WORKGROUP>;

// Four elements at a time, WORKGROUP apart.
@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let len = params.len;
    var sum = vec2f();
    for (var first = group.x * 4 * WORKGROUP + lane; first < len; first += groups.x * 4 * WORKGROUP) {
        let i = first + vec4u(0, 1, 2, 3) * WORKGROUP;
        let at = min(i, vec4u(len - 1));
        let values = vec4f(output[at.x], output[at.y], output[at.z], output[at.w]);
        let wanted = vec4f(targets[at.x], targets[at.y], targets[at.z], targets[at.w]);
        let difference = values - wanted;
        for (var j = 0u; j < 4; j++) {
            if i[j] < len {
                d_output[i[j]] = 2.0 * difference[j];
                sum += vec2f(difference[j] * difference[j], 1.0);
            }
        }
    }
    partial[lane] = sum;
    workgroupBarrier();

    if lane < SUMS {
        for (var i = lane + SUMS; i < WORKGROUP; i += SUMS) {
            sum += partial[i];
        }
        partial[lane] = sum; // which no other lane reads before the barrier
    }
    workgroupBarrier();

    if lane == 0 {
        for (var i = 1u; i < SUMS; i++) {
            sum += partial[i];
        }
        partial_sums[group.x] = sum;
    }
}
