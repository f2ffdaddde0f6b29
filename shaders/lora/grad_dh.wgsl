// dh = d_output·B, unscaled.
// A workgroup makes 4·TOKENS × RANKS elements of dh; LANES invocations share the inner product of four tokens, so that
// d_output is read once for RANKS ranks and B once for four tokens. The only barrier stands before the last sum.
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
override TOKENS: u32 = 2;
const EACH: u32 = 4;
const RANKS: u32 = 8;

var<workgroup> partial: array<f32, LANES * TOKENS * EACH * RANKS>; // [TOKENS·EACH, LANES, RANKS]

fn keep(at: u32, sum_low: vec4f, sum_high: vec4f) {
    for (var j = 0u; j < 4; j++) {
        partial[at * RANKS + j] = sum_low[j];
        partial[at * RANKS + 4 + j] = sum_high[j];
    }
}

@compute @workgroup_size(LANES, TOKENS)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_id) local: vec3u,
    @builtin(local_invocation_index) index: u32,
) {
    let tile = group.x + group.y * groups.x;
    let rank_tiles = (params.rank + RANKS - 1) / RANKS;
    let first_token = tile / rank_tiles * TOKENS * EACH;
    let first_rank = tile % rank_tiles * RANKS;

    // Out of range repeats the last row; it is not written.
    let first = first_token + local.y * EACH;
    let rows = min(first + vec4u(0, 1, 2, 3), vec4u(params.tokens - 1)) * params.out_features;
    // RANKS sums as two vectors: an array, indexed, is slow on software adapters.
    let low = min(first_rank + vec4u(0, 1, 2, 3), vec4u(params.rank - 1));
    let high = min(first_rank + vec4u(4, 5, 6, 7), vec4u(params.rank - 1));
    var low0 = vec4f();
    var low1 = vec4f();
    var low2 = vec4f();
    var low3 = vec4f();
    var high0 = vec4f();
    var high1 = vec4f();
    var high2 = vec4f();
    var high3 = vec4f();
    for (var k = local.x; k < params.out_features; k += LANES) {
        let row = k * params.rank;
        let b_low = vec4f(b[row + low.x], b[row + low.y], b[row + low.z], b[row + low.w]);
        let b_high = vec4f(b[row + high.x], b[row + high.y], b[row + high.z], b[row + high.w]);
        let value = vec4f(d_output[rows.x + k], d_output[rows.y + k], d_output[rows.z + k], d_output[rows.w + k]);
        low0 += value.x * b_low;
        low1 += value.y * b_low;
        low2 += value.z * b_low;
        low3 += value.w * b_low;
        high0 += value.x * b_high;
        high1 += value.y * b_high;
        high2 += value.z * b_high;
        high3 += value.w * b_high;
    }
    let at = local.y * EACH * LANES + local.x;
    keep(at, low0, high0);
    keep(at + LANES, low1, high1);
    keep(at + 2 * LANES, low2, high2);
    keep(at + 3 * LANES, low3, high3);
    workgroupBarrier();

    for (var e = index; e < TOKENS * EACH * RANKS; e += LANES * TOKENS) {
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
