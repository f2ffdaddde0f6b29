// The gradient of attention at q. With p = exp(scale·q·kᵀ − stats.x) and delta = Σ output·d_output of each query and head:
// d_q = Σ over keys of scale·p·(d_output·vᵀ − delta)·k. Leaves delta in stats.y for attention_grad_kv.
//
// One workgroup makes ROWS queries × DIMS pairs of one head, over tiles of KEYS keys. For software adapters: sums stand in
// d_q, as in attention.
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
@group(0) @binding(4) var<storage, read> output: array<vec2f>; // [batch, tokens, heads, pairs]
@group(0) @binding(5) var<storage, read> d_output: array<vec2f>; // [batch, tokens, heads, pairs]
@group(0) @binding(6) var<storage, read_write> stats: array<vec2f>; // [batch, tokens, heads]
@group(0) @binding(7) var<storage, read_write> d_q: array<vec2f>; // [batch, tokens, heads, pairs]
@group(0) @binding(8) var<uniform> params: Params;

const LANES: u32 = 8;
const ROWS: u32 = 8;
const KEYS: u32 = 32;
const DIMS: u32 = 32;

var<workgroup> slopes: array<f32, ROWS * KEYS>; // [ROWS, KEYS]: the gradient at q·kᵀ
var<workgroup> row_stats: array<vec2f, ROWS>;

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

    for (var r = lane; r < ROWS && first_row + r < end; r += LANES) {
        let row = first_row + r;
        let at = (first_token + row) * params.heads + head;
        let first = q_first + row * q_stride;
        var delta = 0.0;
        for (var d = 0u; d < params.pairs; d++) {
            delta += dot(output[first + d], d_output[first + d]);
        }
        row_stats[r] = vec2f(stats[at].x, delta);
        if first_dim == 0 {
            stats[at].y = delta;
        }
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
            var p0 = vec4f();
            var p1 = vec4f();
            for (var d = 0u; d < params.pairs; d++) {
                let q0 = q[q_at.x + d];
                let q1 = q[q_at.y + d];
                let q2 = q[q_at.z + d];
                let q3 = q[q_at.w + d];
                let k0 = k[k_at.x + d];
                let k1 = k[k_at.y + d];
                s0 += vec4f(dot(q0, k0), dot(q1, k0), dot(q2, k0), dot(q3, k0));
                s1 += vec4f(dot(q0, k1), dot(q1, k1), dot(q2, k1), dot(q3, k1));
                let g0 = d_output[q_at.x + d];
                let g1 = d_output[q_at.y + d];
                let g2 = d_output[q_at.z + d];
                let g3 = d_output[q_at.w + d];
                let v0 = v[k_at.x + d];
                let v1 = v[k_at.y + d];
                p0 += vec4f(dot(g0, v0), dot(g1, v0), dot(g2, v0), dot(g3, v0));
                p1 += vec4f(dot(g0, v1), dot(g1, v1), dot(g2, v1), dot(g3, v1));
            }
            let key_segment = vec2i(segments[first_token + min(key.x, last)], segments[first_token + min(key.y, last)]);
            for (var i = 0u; i < 4; i++) {
                let segment = segments[first_token + min(row[i], last)];
                let seen = (key <= vec2u(row[i])) & (key_segment == vec2i(segment)) & vec2<bool>(segment != 0);
                let of_row = row_stats[r + i];
                let p = exp(select(vec2f(-100.0), params.scale * vec2f(s0[i], s1[i]) - of_row.x, seen));
                let slope = select(vec2f(), params.scale * p * (vec2f(p0[i], p1[i]) - of_row.y), seen);
                slopes[(r + i) * KEYS + c] = slope.x;
                slopes[(r + i) * KEYS + c + 1] = slope.y;
            }
        }
        workgroupBarrier();
        // 4 queries × 2 pairs at a time.
        for (var e = lane; e < ROWS / 4 * (DIMS / 2); e += LANES) {
            let r = e / (DIMS / 2) * 4;
            let d = e % (DIMS / 2) * 2;
            if first_dim + d >= params.pairs || first_row + r >= end {
                continue;
            }
            let k_at = kv_first + first_dim + d;
            let second = min(1u, params.pairs - 1 - first_dim - d);
            var s0 = vec4f();
            var s1 = vec4f();
            var s2 = vec4f();
            var s3 = vec4f();
            for (var c = 0u; c < keys; c++) {
                let at = k_at + (first_key + c) * kv_stride;
                let value = vec4f(k[at], k[at + second]);
                s0 += slopes[r * KEYS + c] * value;
                s1 += slopes[(r + 1) * KEYS + c] * value;
                s2 += slopes[(r + 2) * KEYS + c] * value;
                s3 += slopes[(r + 3) * KEYS + c] * value;
            }
            let added = array<vec4f, 4>(s0, s1, s2, s3);
            for (var i = 0u; i < min(4, end - first_row - r); i++) {
                let at = q_first + (first_row + r + i) * q_stride + first_dim + d;
                let sum = select(vec4f(), vec4f(d_q[at], d_q[at + second]), first_key > 0) + added[i];
                d_q[at] = sum.xy;
                d_q[at + second] = sum.zw;
            }
        }
        workgroupBarrier();
    }
}
