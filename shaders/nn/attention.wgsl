// Causal attention of grouped-query heads: output = softmax(scale·q·kᵀ)·v over the keys that are not later than the query
// and of its segment; a query of segment 0 sees none and gives 0. stats.x = log Σ exp(scale·q·kᵀ), for the backward pass.
//
// One workgroup makes ROWS queries × DIMS pairs of one head, over tiles of KEYS keys, with a running maximum. For software
// adapters: they unroll the zeros of workgroup memory, 0.4 ms of compiling for each word, so that sums stand in the output.
struct Params {
    batch: u32,
    tokens: u32,
    heads: u32,
    kv_heads: u32,
    pairs: u32, // head_dim / 2
    scale: f32,
}
@group(0) @binding(0) var<storage, read> q: array<vec2f>; // [batch, tokens, heads, pairs]
@group(0) @binding(1) var<storage, read> k: array<vec2f>; // [batch, tokens, kv_heads, pairs]
@group(0) @binding(2) var<storage, read> v: array<vec2f>; // [batch, tokens, kv_heads, pairs]
@group(0) @binding(3) var<storage, read> segments: array<i32>; // [batch, tokens]
@group(0) @binding(4) var<storage, read_write> output: array<vec2f>; // [batch, tokens, heads, pairs]
@group(0) @binding(5) var<storage, read_write> stats: array<vec2f>; // [batch, tokens, heads]
@group(0) @binding(6) var<uniform> params: Params;

const LANES: u32 = 8;
const ROWS: u32 = 8;
const KEYS: u32 = 32;
const DIMS: u32 = 32;
const UNSEEN: f32 = -1e30;

var<workgroup> scores: array<f32, ROWS * KEYS>; // [ROWS, KEYS]
var<workgroup> highest: array<f32, ROWS>;
var<workgroup> correction: array<f32, ROWS>;
var<workgroup> total: array<f32, ROWS>;

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let last = params.tokens - 1;
    let row_tiles = (params.tokens + ROWS - 1) / ROWS;
    let dim_tiles = (params.pairs + DIMS - 1) / DIMS;
    let index = group.x + group.y * groups.x;
    let first_dim = index % dim_tiles * DIMS;
    let head = index / dim_tiles % params.heads;
    let tile = index / dim_tiles / params.heads;
    let sequence = tile / row_tiles;
    let first_row = tile % row_tiles * ROWS;
    let end = select(0, min(first_row + ROWS, params.tokens), sequence < params.batch); // out of range there are no rows
    let first_token = sequence * params.tokens;
    let kv_head = head / (params.heads / params.kv_heads);
    let q_first = (first_token * params.heads + head) * params.pairs;
    let q_stride = params.heads * params.pairs;
    let kv_first = (first_token * params.kv_heads + kv_head) * params.pairs;
    let kv_stride = params.kv_heads * params.pairs;

    for (var r = lane; r < ROWS; r += LANES) {
        highest[r] = UNSEEN;
        total[r] = 0.0;
    }
    workgroupBarrier();
    for (var first_key = 0u; first_key < end; first_key += KEYS) {
        let keys = min(end - first_key, KEYS);
        // 4 queries × 2 keys at a time.
        for (var e = lane; e < ROWS / 4 * (KEYS / 2); e += LANES) {
            let r = e / (KEYS / 2) * 4;
            let c = e % (KEYS / 2) * 2;
            if first_row + r >= end || c >= keys {
                continue;
            }
            let row = vec4u(first_row + r) + vec4u(0, 1, 2, 3);
            let key = vec2u(first_key + c) + vec2u(0, 1);
            let q_at = q_first + min(row, vec4u(last)) * q_stride;
            let k_at = kv_first + min(key, vec2u(last)) * kv_stride;
            var s0 = vec4f();
            var s1 = vec4f();
            for (var d = 0u; d < params.pairs; d++) {
                let q0 = q[q_at.x + d];
                let q1 = q[q_at.y + d];
                let q2 = q[q_at.z + d];
                let q3 = q[q_at.w + d];
                let k0 = k[k_at.x + d];
                let k1 = k[k_at.y + d];
                s0 += vec4f(dot(q0, k0), dot(q1, k0), dot(q2, k0), dot(q3, k0));
                s1 += vec4f(dot(q0, k1), dot(q1, k1), dot(q2, k1), dot(q3, k1));
            }
            let key_segment = vec2i(segments[first_token + min(key.x, last)], segments[first_token + min(key.y, last)]);
            for (var i = 0u; i < 4; i++) {
                let segment = segments[first_token + min(row[i], last)];
                let seen = (key <= vec2u(row[i])) & (key_segment == vec2i(segment));
                let s = select(vec2f(UNSEEN), params.scale * vec2f(s0[i], s1[i]), seen);
                scores[(r + i) * KEYS + c] = s.x;
                scores[(r + i) * KEYS + c + 1] = s.y;
            }
        }
        workgroupBarrier();
        for (var r = lane; r < ROWS; r += LANES) {
            let before = highest[r];
            var now = before;
            for (var c = 0u; c < keys; c++) {
                now = max(now, scores[r * KEYS + c]);
            }
            highest[r] = now;
            correction[r] = exp(max(before - now, -100.0));
        }
        workgroupBarrier();
        for (var e = lane; e < ROWS * KEYS; e += LANES) {
            let r = e / KEYS;
            let at = r * KEYS + e % KEYS;
            if first_row + r >= end || e % KEYS >= keys {
                continue;
            }
            let s = scores[at];
            // By its bits: a comparison would make a NaN 0.
            scores[at] = select(exp(s - highest[r]), 0.0, bitcast<u32>(s) == bitcast<u32>(UNSEEN));
        }
        workgroupBarrier();
        for (var r = lane; r < ROWS; r += LANES) {
            var sum = total[r] * correction[r];
            for (var c = 0u; c < keys; c++) {
                sum += scores[r * KEYS + c];
            }
            total[r] = sum;
        }
        // 4 queries × 2 pairs at a time.
        for (var e = lane; e < ROWS / 4 * (DIMS / 2); e += LANES) {
            let r = e / (DIMS / 2) * 4;
            let d = e % (DIMS / 2) * 2;
            if first_dim + d >= params.pairs || first_row + r >= end {
                continue;
            }
            let v_at = kv_first + first_dim + d;
            let second = min(1u, params.pairs - 1 - first_dim - d);
            var s0 = vec4f();
            var s1 = vec4f();
            var s2 = vec4f();
            var s3 = vec4f();
            for (var c = 0u; c < keys; c++) {
                let at = v_at + (first_key + c) * kv_stride;
                let value = vec4f(v[at], v[at + second]);
                s0 += scores[r * KEYS + c] * value;
                s1 += scores[(r + 1) * KEYS + c] * value;
                s2 += scores[(r + 2) * KEYS + c] * value;
                s3 += scores[(r + 3) * KEYS + c] * value;
            }
            let added = array<vec4f, 4>(s0, s1, s2, s3);
            for (var i = 0u; i < min(4, end - first_row - r); i++) {
                let at = q_first + (first_row + r + i) * q_stride + first_dim + d;
                let before = select(vec4f(), vec4f(output[at], output[at + second]), first_key > 0);
                let sum = before * correction[r + i] + added[i];
                output[at] = sum.xy;
                output[at + second] = sum.zw;
            }
        }
        workgroupBarrier();
    }
    // By the same invocations, so that what they wrote is there.
    for (var e = lane; e < ROWS / 4 * (DIMS / 2); e += LANES) {
        let r = e / (DIMS / 2) * 4;
        let d = first_dim + e % (DIMS / 2) * 2;
        for (var i = 0u; i < 8; i++) {
            let row = first_row + r + i / 2;
            if row < end && d + i % 2 < params.pairs {
                let at = q_first + row * q_stride + d + i % 2;
                let masked = segments[first_token + row] == 0;
                output[at] = select(output[at] / total[r + i / 2], vec2f(), masked);
            }
        }
    }
    for (var r = lane; r < ROWS; r += LANES) {
        let row = first_row + r;
        if row < end && first_dim == 0 {
            let masked = segments[first_token + row] == 0;
            let log_sum = select(highest[r] + log(total[r]), 0.0, masked);
            stats[(first_token + row) * params.heads + head] = vec2f(log_sum, 0.0);
        }
    }
}
