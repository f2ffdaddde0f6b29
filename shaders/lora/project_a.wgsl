// h = x·Aᵀ, unscaled.
// A workgroup makes TOKENS × RANKS elements of h; LANES invocations share the inner product of one token, so that x is
// read once for RANKS ranks. The only barrier stands before the last sum.
struct Params {
    tokens: u32,
    in_features: u32,
    rank: u32,
}
@group(0) @binding(0) var<storage, read> a: array<f32>; // [rank, in_features]
@group(0) @binding(1) var<storage, read> x: array<f32>; // [tokens, in_features]
@group(0) @binding(2) var<storage, read_write> h: array<f32>; // [tokens, rank]
@group(0) @binding(3) var<uniform> params: Params;

override LANES: u32 = 32;
override TOKENS: u32 = 8;
const RANKS: u32 = 8;

var<workgroup> partial: array<f32, LANES * TOKENS * RANKS>; // [TOKENS, LANES, RANKS]

@compute @workgroup_size(LANES, TOKENS)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_id) local: vec3u,
    @builtin(local_invocation_index) index: u32,
) {
    let tile = group.x + group.y * groups.x;
    let rank_tiles = (params.rank + RANKS - 1) / RANKS;
    let first_token = tile / rank_tiles * TOKENS;
    let first_rank = tile % rank_tiles * RANKS;

    // Out of range repeats the last row; it is not written.
    let x_row = min(first_token + local.y, params.tokens - 1) * params.in_features;
    // RANKS sums as two vectors: an array, indexed, is slow on software adapters.
    let low = min(first_rank + vec4u(0, 1, 2, 3), vec4u(params.rank - 1)) * params.in_features;
    let high = min(first_rank + vec4u(4, 5, 6, 7), vec4u(params.rank - 1)) * params.in_features;
    var sum_low = vec4f();
    var sum_high = vec4f();
    for (var k = local.x; k < params.in_features; k += LANES) {
        let value = x[x_row + k];
        sum_low += value * vec4f(a[low.x + k], a[low.y + k], a[low.z + k], a[low.w + k]);
        sum_high += value * vec4f(a[high.x + k], a[high.y + k], a[high.z + k], a[high.w + k]);
    }
    for (var j = 0u; j < 4; j++) {
        partial[index * RANKS + j] = sum_low[j];
        partial[index * RANKS + 4 + j] = sum_high[j];
    }
    workgroupBarrier();

    for (var e = index; e < TOKENS * RANKS; e += LANES * TOKENS) {
        let token = first_token + e / RANKS;
        let rank = first_rank + e % RANKS;
        var total = 0.0;
        for (var lane = 0u; lane < LANES; lane++) {
            total += partial[(e / RANKS * LANES + lane) * RANKS + e % RANKS];
        }
        if token < params.tokens && rank < params.rank {
            h[token * params.rank + rank] = total;
        }
    }
}
