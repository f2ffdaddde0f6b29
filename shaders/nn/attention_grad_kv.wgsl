// The gradients of attention at k and v. With p = exp(scale·q·kᵀ − stats.x) and delta in stats.y, summed over the queries
// of all heads that share a key: d_v = Σ p·d_output and d_k = Σ scale·p·(d_output·vᵀ − delta)·q.
//
// One workgroup makes KEYS keys × DIMS pairs of one key head, over tiles of ROWS queries. For software adapters: sums stand in
// d_k and d_v, as in attention.
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
@group(0) @binding(4) var<storage, read> d_output: array<vec2f>; // [batch, tokens, heads, pairs]
@group(0) @binding(5) var<storage, read> stats: array<vec2f>; // [batch, tokens, heads]
@group(0) @binding(6) var<storage, read_write> d_k: array<vec2f>; // [batch, tokens, kv_heads, pairs]
@group(0) @binding(7) var<storage, read_write> d_v: array<vec2f>; // [batch, tokens, kv_heads, pairs]
@group(0) @binding(8) var<uniform> params: Params;

const LANES: u32 = 8;
const KEYS: u32 = 8;
const ROWS: u32 = 16;
const DIMS: u32 = 32;

var<workgroup> shares: array<f32, KEYS * ROWS>; // [KEYS, ROWS]: p
var<workgroup> slopes: array<f32, KEYS * ROWS>; // [KEYS, ROWS]: the gradient at q·kᵀ

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let last = params.tokens - 1;
    let key_tiles = (params.tokens + KEYS - 1) / KEYS;
    let dim_tiles = (params.pairs + DIMS - 1) / DIMS;
    let index = group.x + group.y * groups.x;
    let first_dim = index % dim_tiles * DIMS;
    let kv_head = index / dim_tiles % params.kv_heads;
    let tile = index / dim_tiles / params.kv_heads;
    let sequence = tile / key_tiles;
    let first_key = tile % key_tiles * KEYS;
    let end = select(0, min(first_key + KEYS, params.tokens), sequence < params.batch); // out of range there are no keys
    let first_token = sequence * params.tokens;
    let q_stride = params.heads * params.pairs;
    let kv_first = (first_token * params.kv_heads + kv_head) * params.pairs;
    let kv_stride = params.kv_heads * params.pairs;
    let head_group = params.heads / params.kv_heads;
    let first_head = kv_head * head_group;

    for (var head = first_head; head < first_head + head_group; head++) {
        let q_first = (first_token * params.heads + head) * params.pairs;
        for (var first_row = first_key; first_row < params.tokens; first_row += ROWS) {
            let rows = min(params.tokens - first_row, ROWS);
            // 2 keys × 2 queries at a time.
            for (var e = lane; e < KEYS / 2 * (ROWS / 2); e += LANES) {
                let c = e / (ROWS / 2) * 2;
                let r = e % (ROWS / 2) * 2;
                if first_key + c >= end || r >= rows {
                    continue;
                }
                let key = vec2u(first_key + c) + vec2u(0, 1);
                let row = vec2u(first_row + r) + vec2u(0, 1);
                let at_row = min(row, vec2u(last));
                let at_key = min(key, vec2u(last));
                let q_at = q_first + at_row * q_stride;
                let k_at = kv_first + at_key * kv_stride;
                var s = vec4f(); // by key and query: 00, 01, 10, 11
                var p = vec4f();
                for (var d = 0u; d < params.pairs; d++) {
                    let q0 = q[q_at.x + d];
                    let q1 = q[q_at.y + d];
                    let k0 = k[k_at.x + d];
                    let k1 = k[k_at.y + d];
                    s += vec4f(dot(k0, q0), dot(k0, q1), dot(k1, q0), dot(k1, q1));
                    let g0 = d_output[q_at.x + d];
                    let g1 = d_output[q_at.y + d];
                    let v0 = v[k_at.x + d];
                    let v1 = v[k_at.y + d];
                    p += vec4f(dot(v0, g0), dot(v0, g1), dot(v1, g0), dot(v1, g1));
                }
                let row_segment = vec2i(segments[first_token + at_row.x], segments[first_token + at_row.y]);
                let key_segment = vec2i(segments[first_token + at_key.x], segments[first_token + at_key.y]);
                let stats0 = stats[(first_token + at_row.x) * params.heads + head];
                let stats1 = stats[(first_token + at_row.y) * params.heads + head];
                let seen = (key.xxyy <= row.xyxy) & (key_segment.xxyy == row_segment.xyxy) & (row_segment.xyxy != vec4i());
                let log_sum = vec2f(stats0.x, stats1.x).xyxy;
                let delta = vec2f(stats0.y, stats1.y).xyxy;
                let share = select(vec4f(), exp(select(vec4f(-100.0), params.scale * s - log_sum, seen)), seen);
                let slope = params.scale * share * (p - delta);
                for (var i = 0u; i < 4; i++) {
                    let at = (c + i / 2) * ROWS + r + i % 2;
                    shares[at] = share[i];
                    slopes[at] = slope[i];
                }
            }
            workgroupBarrier();
            // 2 keys × 2 pairs at a time.
            for (var e = lane; e < KEYS / 2 * (DIMS / 2); e += LANES) {
                let c = e / (DIMS / 2) * 2;
                let d = e % (DIMS / 2) * 2;
                if first_dim + d >= params.pairs || first_key + c >= end {
                    continue;
                }
                let second = min(1u, params.pairs - 1 - first_dim - d);
                var k0 = vec4f();
                var k1 = vec4f();
                var v0 = vec4f();
                var v1 = vec4f();
                for (var r = 0u; r < rows; r++) {
                    let at = q_first + (first_row + r) * q_stride + first_dim + d;
                    let query = vec4f(q[at], q[at + second]);
                    let gradient = vec4f(d_output[at], d_output[at + second]);
                    k0 += slopes[c * ROWS + r] * query;
                    k1 += slopes[(c + 1) * ROWS + r] * query;
                    v0 += shares[c * ROWS + r] * gradient;
                    v1 += shares[(c + 1) * ROWS + r] * gradient;
                }
                let at = kv_first + (first_key + c) * kv_stride + first_dim + d;
                let more = head > first_head || first_row > first_key;
                k0 += select(vec4f(), vec4f(d_k[at], d_k[at + second]), more);
                v0 += select(vec4f(), vec4f(d_v[at], d_v[at + second]), more);
                d_k[at] = k0.xy;
                d_k[at + second] = k0.zw;
                d_v[at] = v0.xy;
                d_v[at + second] = v0.zw;
                if first_key + c + 1 < end {
                    let next = at + kv_stride;
                    k1 += select(vec4f(), vec4f(d_k[next], d_k[next + second]), more);
                    v1 += select(vec4f(), vec4f(d_v[next], d_v[next + second]), more);
                    d_k[next] = k1.xy;
                    d_k[next + second] = k1.zw;
                    d_v[next] = v1.xy;
                    d_v[next + second] = v1.zw;
                }
            }
            workgroupBarrier();
        }
    }
}
