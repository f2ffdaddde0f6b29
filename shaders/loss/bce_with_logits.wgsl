// Binary cross-entropy with logits z and targets y in [0, 1]: d_output = σ(z) − y, and for each workgroup the sum of
// max(z, 0) − z·y + log(1 + exp(−|z|)) and the number of elements.
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

// log(1 + x) for x in [0, 1] as 2·artanh(x/(2 + x)) by its series: 1 + x would round x away, and WGSL lets log err by 2⁻²¹.
fn log_1p(x: f32) -> f32 {
    let s = x / (2.0 + x);
    let q = s * s;
    return 2.0 * s * (1.0 + q * (1.0 / 3.0 + q * (1.0 / 5.0 + q * (1.0 / 7.0 + q * (1.0 / 9.0 + q * (1.0 / 11.0
        + q * (1.0 / 13.0 + q / 15.0)))))));
}

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
        let logits = vec4f(output[at.x], output[at.y], output[at.z], output[at.w]);
        let labels = vec4f(targets[at.x], targets[at.y], targets[at.z], targets[at.w]);
        for (var j = 0u; j < 4; j++) {
            if i[j] < len {
                let z = logits[j];
                let y = labels[j];
                let e = exp(-abs(z));
                d_output[i[j]] = select(e, 1.0, z >= 0.0) / (1.0 + e) - y;
                sum += vec2f(max(z, 0.0) - z * y + log_1p(e), 1.0);
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
