// totals = Σ partial_sums, or totals += Σ partial_sums: the sum of a loss and what was counted in it, in one workgroup.
struct Params {
    len: u32,
    accumulate: u32,
}
@group(0) @binding(0) var<storage, read> partial_sums: array<vec2f>; // [len]
@group(0) @binding(1) var<storage, read_write> totals: array<vec2f>; // [1]
@group(0) @binding(2) var<uniform> params: Params;

override WORKGROUP: u32 = 64;

var<workgroup> partial: array<vec2f, WORKGROUP>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(local_invocation_index) lane: u32) {
    var sum = vec2f();
    for (var i = lane; i < params.len; i += WORKGROUP) {
        sum += partial_sums[i];
    }
    partial[lane] = sum;
    workgroupBarrier();

    if lane == 0 {
        sum = vec2f();
        for (var i = 0u; i < WORKGROUP; i++) {
            sum += partial[i];
        }
        totals[0] = select(vec2f(), totals[0], params.accumulate == 1) + sum;
    }
}
