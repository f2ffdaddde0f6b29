// total = Σ values, in one workgroup.
struct Params {
    len: u32,
}
@group(0) @binding(0) var<storage, read> values: array<f32>; // [len]
@group(0) @binding(1) var<storage, read_write> total: array<f32>; // [1]
@group(0) @binding(2) var<uniform> params: Params;

override WORKGROUP: u32 = 64;

var<workgroup> partial: array<f32, WORKGROUP>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(local_invocation_index) lane: u32) {
    var sum = 0.0;
    for (var i = lane; i < params.len; i += WORKGROUP) {
        sum += values[i];
    }
    partial[lane] = sum;
    workgroupBarrier();

    if lane == 0 {
        sum = 0.0;
        for (var i = 0u; i < WORKGROUP; i++) {
            sum += partial[i];
        }
        total[0] = sum;
    }
}
