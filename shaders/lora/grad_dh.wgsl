// dh = d_output·B, unscaled.
// A workgroup makes TOKENS × RANKS elements of dh; LANES invocations share the inner product of one token, so that
// d_output is read once for RANKS ranks. The only barrier stands before the last sum.
struct Params {
    tokens: u32,
    out_features: u32,
    rank: u32,
}
@group(0) @binding(0) var<storage, read> b: array<f32>; // [out_features, rank]
@group(0) @binding(1) var<storage, read> d_output: array<f32>; // [tokens, out_features]
@group(0) @binding(2) var<storage, read_write> dh: array<f32>; // [tokens, rank]
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
    let d_row = min(first_token + local.y, params.tokens - 1) * params.out_features;
    // RANKS sums as two vectors: an array, indexed, is slow on software adapters.
    let low = min(first_rank + vec4u(0, 1, 2, 3), vec4u(params.rank - 1));
    let high = min(first_rank + vec4u(4, 5, 6, 7), vec4u(params.rank - 1));
    var sum_low = vec4f();
    var sum_high = vec4f();
    for (var k = local.x; k < params.out_features; k += LANES) {
        let value = d_output[d_row + k];
        let row = k * params.rank;
        sum_low += value * vec4f(b[row + low.x], b[row + low.y], b[row + low.z], b[row + low.w]);
        sum_high += value * vec4f(b[row + high.x], b[row + high.y], b[row + high.z], b[row + high.w]);
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
            dh[token * params.rank + rank] = total;
        }
    }
}
