// h = x·Aᵀ for one token: a whole workgroup for each rank's inner product.
struct Params {
    in_features: u32,
    rank: u32,
}
@group(0) @binding(0) var<storage, read> a: array<f32>; // [rank, in_features]
@group(0) @binding(1) var<storage, read> x: array<f32>; // [1, in_features]
@group(0) @binding(2) var<storage, read_write> h: array<f32>; // [1, rank]
@group(0) @binding(3) var<uniform> params: Params;

override LANES: u32 = 256;
const GROUP: u32 = 16; // partial sums that one invocation adds up

var<workgroup> partial: array<f32, LANES>;

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let rank = group.x + group.y * groups.x;
    let row = min(rank, params.rank - 1) * params.in_features;
    var sum = 0.0;
    for (var k = lane; k < params.in_features; k += LANES) {
        sum += x[k] * a[row + k];
    }
    partial[lane] = sum;
    workgroupBarrier();

    sum = 0.0;
    if lane < LANES / GROUP {
        for (var i = 0u; i < GROUP; i++) {
            sum += partial[lane * GROUP + i];
        }
    }
    workgroupBarrier();
    if lane < LANES / GROUP {
        partial[lane] = sum;
    }
    workgroupBarrier();

    if lane == 0 && rank < params.rank {
        sum = 0.0;
        for (var i = 0u; i < LANES / GROUP; i++) {
            sum += partial[i];
        }
        h[rank] = sum;
    }
}
