// dh = d_output·B, unscaled, for many tokens and out_features divisible by four.
// A workgroup makes EACH·DOWN tokens × RANKS elements of dh from `part` columns: LANES invocations share the inner products of
// EACH tokens, so that d_output is read once for RANKS ranks and B once for EACH·DOWN tokens, 4·LANES of its rows at a time.
struct Params {
    tokens: u32,
    out_features: u32,
    rank: u32,
    part: u32,
}
@group(0) @binding(0) var<storage, read> b: array<f32>; // [out_features, rank]
@group(0) @binding(1) var<storage, read> d_output: array<vec4f>; // [tokens, out_features]
@group(0) @binding(2) var<storage, read_write> dh: array<f32>; // [⌈out_features / part⌉, tokens, rank]
@group(0) @binding(3) var<uniform> params: Params;

override LANES: u32 = 16; // divisible by 8
const DOWN: u32 = 8;
const EACH: u32 = 4;
const RANKS: u32 = 16;
const READS: u32 = 2; // of B by one invocation: RANKS / DOWN

// First rows of B [RANKS, LANES], four together, then sums of one of the EACH tokens [RANKS / 4, DOWN, LANES].
var<workgroup> pool: array<vec4f, 4 * DOWN * LANES>;

// One of four, by selection: an index that is no constant would move all sums to slower memory.
fn pick(a: f32, b: f32, c: f32, d: f32, i: u32) -> f32 {
    return select(select(a, b, i == 1), select(c, d, i == 3), i >= 2);
}

@compute @workgroup_size(LANES * DOWN)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) index: u32,
) {
    let tile = group.x + group.y * groups.x;
    let rank_tiles = (params.rank + RANKS - 1) / RANKS;
    let token_tiles = (params.tokens + EACH * DOWN - 1) / (EACH * DOWN);
    let first_rank = tile % rank_tiles * RANKS;
    let first_token = tile / rank_tiles % token_tiles * EACH * DOWN;
    let part = tile / rank_tiles / token_tiles;
    let blocks = params.out_features / 4;
    let begin = min(part * params.part / 4, blocks);
    let count = min(params.part / 4, blocks - begin);

    // Neighbours in twos have the same columns, and eight of them in a row what lies together.
    let down = index % 2 + index / 16 % (DOWN / 2) * 2;
    let lane = index / 2 % 8 + index / (8 * DOWN) * 8;
    var rows: array<u32, EACH>;
    for (var i = 0u; i < EACH; i++) {
        // Out of range repeats the last row; it is not written.
        rows[i] = min(first_token + down * EACH + i, params.tokens - 1) * blocks + begin;
    }
    var low: array<f32, 8 * EACH>; // of the first half of the ranks and EACH tokens
    var high: array<f32, 8 * EACH>; // of the second
    var next_b: array<vec4f, READS>;
    var next_d: array<vec4f, EACH>;
    // One round more than there are: the first only reads.
    for (var first = 0u; first < count + LANES; first += LANES) {
        var of_d: array<vec4f, EACH>;
        for (var i = 0u; i < EACH; i++) {
            of_d[i] = next_d[i];
        }
        workgroupBarrier();
        for (var i = 0u; i < READS; i++) {
            let e = index + i * LANES * DOWN;
            pool[e % RANKS * LANES + ((e / RANKS) ^ (e % 8))] = next_b[i]; // so that eight ranks lie in eight banks
        }
        workgroupBarrier();
        for (var i = 0u; i < READS; i++) {
            let e = index + i * LANES * DOWN;
            let row = 4 * (begin + min(first + e / RANKS, count - 1));
            let at = (row + vec4u(0, 1, 2, 3)) * params.rank + min(first_rank + e % RANKS, params.rank - 1);
            next_b[i] = vec4f(b[at.x], b[at.y], b[at.z], b[at.w]);
        }
        let inside = first + lane < count;
        let k = min(first + lane, count - 1);
        for (var i = 0u; i < EACH; i++) {
            next_d[i] = select(vec4f(), d_output[rows[i] + k], vec4<bool>(inside));
        }
        for (var r = 0u; r < RANKS / 2; r++) {
            let of_b = pool[r * LANES + (lane ^ r)];
            for (var k = 0u; k < 4; k++) {
                for (var i = 0u; i < EACH; i++) {
                    low[r * EACH + i] += of_b[k] * of_d[i][k];
                }
            }
        }
        if first_rank + RANKS / 2 < params.rank {
            for (var r = 0u; r < RANKS / 2; r++) {
                let of_b = pool[(RANKS / 2 + r) * LANES + (lane ^ r)];
                for (var k = 0u; k < 4; k++) {
                    for (var i = 0u; i < EACH; i++) {
                        high[r * EACH + i] += of_b[k] * of_d[i][k];
                    }
                }
            }
        }
    }
    // Of one of the EACH tokens after the other: its ranks' sums, added up over the invocations.
    let place = down * LANES + lane;
    for (var i = 0u; i < min(EACH, params.tokens); i++) {
        workgroupBarrier();
        for (var r = 0u; r < 2; r++) {
            var of_low = vec4f();
            var of_high = vec4f();
            for (var j = 0u; j < 4; j++) {
                let k = (4 * r + j) * EACH;
                of_low[j] = pick(low[k], low[k + 1], low[k + 2], low[k + 3], i);
                of_high[j] = pick(high[k], high[k + 1], high[k + 2], high[k + 3], i);
            }
            pool[r * DOWN * LANES + place] = of_low;
            pool[(r + 2) * DOWN * LANES + place] = of_high;
        }
        workgroupBarrier();
        for (var e = index; e < 4 * DOWN; e += LANES * DOWN) {
            let start = (e % 4 * DOWN + e / 4) * LANES;
            var total = vec4f();
            for (var l = 0u; l < LANES; l++) {
                total += pool[start + (l + e) % LANES]; // each from another bank
            }
            let token = first_token + e / 4 * EACH + i;
            for (var j = 0u; j < 4; j++) {
                let rank = first_rank + e % 4 * 4 + j;
                if count > 0 && token < params.tokens && rank < params.rank {
                    dh[(part * params.tokens + token) * params.rank + rank] = total[j];
                }
            }
        }
    }
}
