// h = x·Aᵀ, unscaled.
// A workgroup makes EACH·TOKENS × RANKS elements of h: LANES invocations share the inner products of EACH tokens, so that
// x is read once for RANKS ranks and A once for EACH·TOKENS tokens, 4·LANES of its columns at a time.
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
const TOKENS: u32 = 8;
const EACH: u32 = 4;
const RANKS: u32 = 16;
const READS: u32 = 8; // of A by one invocation: 4 · LANES · RANKS / (LANES · TOKENS)

// First columns of A [RANKS, 4·LANES + 1], then sums [RANKS, TOKENS, LANES] of one of the EACH tokens.
var<workgroup> pool: array<f32, RANKS * TOKENS * LANES>;

// v[i], by selection: an index that is no constant would move all sums to slower memory.
fn component(v: vec4f, i: u32) -> f32 {
    return select(select(v.x, v.y, i == 1), select(v.z, v.w, i == 3), i >= 2);
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
    let stride = 4 * LANES + 1; // odd against bank conflicts

    // Out of range repeats the last row; it is not written.
    let rows = min(first_token + local.y * EACH + vec4u(0, 1, 2, 3), vec4u(params.tokens - 1)) * params.in_features;
    var low: array<vec4f, 8>; // of the first half of the ranks and EACH tokens
    var high: array<vec4f, 8>; // of the second
    var next_a: array<f32, READS>;
    var next_x: array<vec4f, EACH>;
    // One round more than there are: the first only reads.
    for (var first = 0u; first < params.in_features + 4 * LANES; first += 4 * LANES) {
        let part = transpose(mat4x4f(next_x[0], next_x[1], next_x[2], next_x[3]));
        workgroupBarrier();
        for (var i = 0u; i < READS; i++) {
            let e = index + i * LANES * TOKENS;
            pool[e / (4 * LANES) * stride + e % (4 * LANES)] = next_a[i];
        }
        workgroupBarrier();
        for (var i = 0u; i < READS; i++) {
            let e = index + i * LANES * TOKENS;
            let row = min(first_rank + e / (4 * LANES), params.rank - 1) * params.in_features;
            next_a[i] = a[row + min(first + e % (4 * LANES), params.in_features - 1)];
        }
        let column = first + local.x + vec4u(0, 1, 2, 3) * LANES;
        let inside = column < vec4u(params.in_features);
        let k = min(column, vec4u(params.in_features - 1));
        for (var i = 0u; i < EACH; i++) {
            let at = rows[i] + k;
            let found = vec4f(x[at.x], x[at.y], x[at.z], x[at.w]);
            next_x[i] = select(vec4f(), found, inside);
        }
        for (var r = 0u; r < RANKS / 2; r++) {
            let at = r * stride + local.x;
            low[r] += pool[at] * part[0];
            low[r] += pool[at + LANES] * part[1];
            low[r] += pool[at + 2 * LANES] * part[2];
            low[r] += pool[at + 3 * LANES] * part[3];
        }
        if first_rank + RANKS / 2 < params.rank {
            for (var r = 0u; r < RANKS / 2; r++) {
                let at = (RANKS / 2 + r) * stride + local.x;
                high[r] += pool[at] * part[0];
                high[r] += pool[at + LANES] * part[1];
                high[r] += pool[at + 2 * LANES] * part[2];
                high[r] += pool[at + 3 * LANES] * part[3];
            }
        }
    }
    // Of one of the EACH tokens after the other: its ranks' sums, added up over the invocations.
    for (var i = 0u; i < min(EACH, params.tokens); i++) {
        workgroupBarrier();
        for (var r = 0u; r < RANKS / 2; r++) {
            pool[r * TOKENS * LANES + index] = component(low[r], i);
            pool[(RANKS / 2 + r) * TOKENS * LANES + index] = component(high[r], i);
        }
        workgroupBarrier();
        for (var e = index; e < TOKENS * RANKS; e += LANES * TOKENS) {
            let first = (e % RANKS * TOKENS + e / RANKS) * LANES;
            var total = 0.0;
            for (var lane = 0u; lane < LANES; lane++) {
                total += pool[first + (lane + e) % LANES]; // each from another bank
            }
            let token = first_token + e / RANKS * EACH + i;
            let rank = first_rank + e % RANKS;
            if token < params.tokens && rank < params.rank {
                h[token * params.rank + rank] = total;
            }
        }
    }
}
