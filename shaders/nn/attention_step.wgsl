// Attention of the newest token over a cache: output = softmax(scale·q·kᵀ)·v over the keys 0 … cursor. One workgroup makes
// one head, over tiles of LANES keys, with a running maximum.
struct Params {
    heads: u32,
    kv_heads: u32,
    pairs: u32, // head_dim / 2, at most MAX_PAIRS
    scale: f32,
}
@group(0) @binding(0) var<storage, read> q: array<vec2f>; // [1, heads, pairs]
@group(0) @binding(1) var<storage, read> k_cache: array<vec2f>; // [capacity, kv_heads, pairs]
@group(0) @binding(2) var<storage, read> v_cache: array<vec2f>; // [capacity, kv_heads, pairs]
@group(0) @binding(3) var<storage, read> cursor: array<i32>; // [1]
@group(0) @binding(4) var<storage, read_write> output: array<vec2f>; // [1, heads, pairs]
@group(0) @binding(5) var<uniform> params: Params;

override LANES: u32 = 128;
const MAX_PAIRS: u32 = 128;
const UNSEEN: f32 = -1e30;

var<workgroup> scores: array<f32, LANES>;
var<workgroup> sums: array<vec2f, MAX_PAIRS>;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
    let head = group.x;
    let kv_first = head / (params.heads / params.kv_heads) * params.pairs;
    let kv_stride = params.kv_heads * params.pairs;
    let keys = u32(cursor[0]) + 1;
    for (var d = lane; d < params.pairs; d += LANES) {
        sums[d] = vec2f();
    }
    var highest = UNSEEN;
    var total = 0.0;
    // In a loop with barriers all lanes must agree on its end, which a value from a buffer does not prove: the tiles are
    // counted by the cache, and those past the cursor add nothing.
    let tiles = (arrayLength(&k_cache) / kv_stride + LANES - 1) / LANES;
    for (var tile = 0u; tile < tiles; tile++) {
        let first_key = tile * LANES;
        let key = first_key + lane;
        var score = UNSEEN;
        if key < keys {
            let at = kv_first + key * kv_stride;
            score = 0.0;
            for (var d = 0u; d < params.pairs; d++) {
                score += dot(q[head * params.pairs + d], k_cache[at + d]);
            }
            score *= params.scale;
        }
        scores[lane] = score;
        workgroupBarrier();
        if first_key < keys {
            let count = min(keys - first_key, LANES);
            let before = highest;
            for (var c = 0u; c < count; c++) {
                highest = max(highest, scores[c]);
            }
            let correction = exp(max(before - highest, -100.0));
            total *= correction;
            for (var c = 0u; c < count; c++) {
                total += exp(scores[c] - highest);
            }
            for (var d = lane; d < params.pairs; d += LANES) {
                var sum = sums[d] * correction;
                for (var c = 0u; c < count; c++) {
                    sum += exp(scores[c] - highest) * v_cache[kv_first + (first_key + c) * kv_stride + d];
                }
                sums[d] = sum;
            }
        }
        workgroupBarrier();
    }
    for (var d = lane; d < params.pairs; d += LANES) {
        output[head * params.pairs + d] = sums[d] / total;
    }
}
