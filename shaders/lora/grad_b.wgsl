// dB += scale·d_outputᵀ·h.
// A workgroup makes COLUMNS × RANKS elements of dB; SLICES invocations share the tokens of one column, so that d_output
// is read once for RANKS ranks. The only barrier stands before the last sum.
struct Params {
    tokens: u32,
    out_features: u32,
    rank: u32,
    scale: f32,
}
@group(0) @binding(0) var<storage, read> d_output: array<f32>; // [tokens, out_features]
@group(0) @binding(1) var<storage, read> h: array<f32>; // [tokens, rank]
@group(0) @binding(2) var<storage, read_write> d_b: array<f32>; // [out_features, rank]
@group(0) @binding(3) var<uniform> params: Params;

override COLUMNS: u32 = 16;
override SLICES: u32 = 16;
const RANKS: u32 = 8;

var<workgroup> partial: array<f32, COLUMNS * SLICES * RANKS>; // [SLICES, COLUMNS, RANKS]

@compute @workgroup_size(COLUMNS, SLICES)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_id) local: vec3u,
    @builtin(local_invocation_index) index: u32,
) {
    let tile = group.x + group.y * groups.x;
    let rank_tiles = (params.rank + RANKS - 1) / RANKS;
    let first_column = tile / rank_tiles * COLUMNS;
    let first_rank = tile % rank_tiles * RANKS;

    // Out of range repeats the last column; it is not written.
    let column = min(first_column + local.x, params.out_features - 1);
    // RANKS sums as two vectors: an array, indexed, is slow on software adapters.
    let low = min(first_rank + vec4u(0, 1, 2, 3), vec4u(params.rank - 1));
    let high = min(first_rank + vec4u(4, 5, 6, 7), vec4u(params.rank - 1));
    var sum_low = vec4f();
    var sum_high = vec4f();
    for (var t = local.y; t < params.tokens; t += SLICES) {
        let value = d_output[t * params.out_features + column];
        let row = t * params.rank;
        sum_low += value * vec4f(h[row + low.x], h[row + low.y], h[row + low.z], h[row + low.w]);
        sum_high += value * vec4f(h[row + high.x], h[row + high.y], h[row + high.z], h[row + high.w]);
    }
    for (var j = 0u; j < 4; j++) {
        partial[index * RANKS + j] = sum_low[j];
        partial[index * RANKS + 4 + j] = sum_high[j];
    }
    workgroupBarrier();

    for (var e = index; e < COLUMNS * RANKS; e += COLUMNS * SLICES) {
        let out = first_column + e / RANKS;
        let rank = first_rank + e % RANKS;
        var total = 0.0;
        for (var slice = 0u; slice < SLICES; slice++) {
            total += partial[slice * COLUMNS * RANKS + e];
        }
        if out < params.out_features && rank < params.rank {
            d_b[out * params.rank + rank] += params.scale * total;
        }
    }
}
