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

override WORKGROUP: u32 = 64;

var<workgroup> partial: array<vec2f, WORKGROUP>;

// log(1 + x) for x in [0, 1]: for small x the series, where 1 + x would round x away.
fn log_1p(x: f32) -> f32 {
    return select(log(1.0 + x), x * (1.0 - x * (0.5 - x * (1.0 / 3.0 - 0.25 * x))), x < 0.02);
}

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    var sum = vec2f();
    for (var i = group.x * WORKGROUP + lane; i < params.len; i += groups.x * WORKGROUP) {
        let z = output[i];
        let y = targets[i];
        let e = exp(-abs(z));
        d_output[i] = select(e, 1.0, z >= 0.0) / (1.0 + e) - y;
        sum += vec2f(max(z, 0.0) - z * y + log_1p(e), 1.0);
    }
    partial[lane] = sum;
    workgroupBarrier();

    if lane == 0 {
        sum = vec2f();
        for (var i = 0u; i < WORKGROUP; i++) {
            sum += partial[i];
        }
        partial_sums[group.x] = sum;
    }
}
