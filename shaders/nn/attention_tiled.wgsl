// Attention as nn/attention has it, for GPUs. One workgroup makes ROWS queries × 4·ACROSS elements of one head, over tiles of
// KEYS keys: their scores from DEPTH·4 elements of q and k at a time, a running maximum, then the shares times v, a half of the
// keys at a time. Scores and sums are in registers: one invocation has EACH queries × 4 keys, and as many × 4 elements.
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

const ACROSS: u32 = 16; // invocations along keys and elements, 4 each
const DOWN: u32 = 4; // invocations along the queries
const EACH: u32 = 8;
const ROWS: u32 = 32;
const KEYS: u32 = 64;
const LANES: u32 = 64;
const DEPTH: u32 = 8;
const STRIDE: u32 = 9; // of a row of q and k, odd against bank conflicts
const UNSEEN: f32 = -1e30;

// First q [ROWS, STRIDE] and k [KEYS, STRIDE]; then shares [ROWS, ACROSS], and behind them what each invocation has of its rows
// [ACROSS, DOWN, EACH / 4] or half of v [KEYS / 2, ACROSS].
var<workgroup> tile: array<vec4f, 1024>;
const BEHIND: u32 = 512;

// Four elements of a head, 0 past its end.
fn q_quad(first: u32, pair: u32) -> vec4f {
    let second = select(vec2f(), q[first + pair + 1], pair + 1 < params.pairs);
    return select(vec4f(), vec4f(q[first + pair], second), pair < params.pairs);
}

fn k_quad(first: u32, pair: u32) -> vec4f {
    let second = select(vec2f(), k[first + pair + 1], pair + 1 < params.pairs);
    return select(vec4f(), vec4f(k[first + pair], second), pair < params.pairs);
}

fn v_quad(first: u32, pair: u32) -> vec4f {
    let second = select(vec2f(), v[first + pair + 1], pair + 1 < params.pairs);
    return select(vec4f(), vec4f(v[first + pair], second), pair < params.pairs);
}

// What an invocation has of its EACH rows, for all invocations of those rows.
fn leave(local: vec2u, part: array<f32, EACH>) {
    let at = BEHIND + (local.x * DOWN + local.y) * 2;
    tile[at] = vec4f(part[0], part[1], part[2], part[3]);
    tile[at + 1] = vec4f(part[4], part[5], part[6], part[7]);
}

@compute @workgroup_size(ACROSS, DOWN)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_id) local: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    // The last queries first: they see most keys.
    let row_tiles = (params.tokens + ROWS - 1) / ROWS;
    let dim_tiles = (params.pairs + 2 * ACROSS - 1) / (2 * ACROSS);
    let others = params.batch * params.heads * dim_tiles;
    let index = group.x + group.y * groups.x;
    if index >= row_tiles * others {
        return;
    }
    let first_row = (row_tiles - 1 - index / others) * ROWS;
    let first_pair = index % dim_tiles * 2 * ACROSS;
    let head = index / dim_tiles % params.heads;
    let first_token = index % others / dim_tiles / params.heads * params.tokens;
    let last = params.tokens - 1;
    let kv_head = head / (params.heads / params.kv_heads);
    let q_first = (first_token * params.heads + head) * params.pairs;
    let q_stride = params.heads * params.pairs;
    let kv_first = (first_token * params.kv_heads + kv_head) * params.pairs;
    let kv_stride = params.kv_heads * params.pairs;

    var sum: array<vec4f, EACH>;
    var highest: array<f32, EACH>;
    var total: array<f32, EACH>; // of this invocation's keys
    // Set to 0 for each tile: Chromium's software adapter does not where they are declared in a loop.
    var score: array<vec4f, EACH>;
    var segment: array<i32, EACH>;
    for (var i = 0u; i < EACH; i++) {
        highest[i] = UNSEEN;
        // Out of range repeats the last query; it is not written.
        segment[i] = segments[first_token + min(first_row + local.y + i * DOWN, last)];
    }
    let end = min(first_row + ROWS, params.tokens);
    for (var first_key = 0u; first_key < end; first_key += KEYS) {
        for (var i = 0u; i < EACH; i++) {
            score[i] = vec4f();
        }
        for (var first = 0u; first < params.pairs; first += 2 * DEPTH) {
            workgroupBarrier();
            for (var e = lane; e < ROWS * DEPTH; e += LANES) {
                let row = min(first_row + e / DEPTH, last);
                tile[e / DEPTH * STRIDE + e % DEPTH] = q_quad(q_first + row * q_stride, first + e % DEPTH * 2);
            }
            for (var e = lane; e < KEYS * DEPTH; e += LANES) {
                let key = min(first_key + e / DEPTH, last);
                tile[(ROWS + e / DEPTH) * STRIDE + e % DEPTH] = k_quad(kv_first + key * kv_stride, first + e % DEPTH * 2);
            }
            workgroupBarrier();
            for (var d = 0u; d < DEPTH; d++) {
                let keys = transpose(mat4x4f(
                    tile[(ROWS + local.x) * STRIDE + d],
                    tile[(ROWS + local.x + ACROSS) * STRIDE + d],
                    tile[(ROWS + local.x + 2 * ACROSS) * STRIDE + d],
                    tile[(ROWS + local.x + 3 * ACROSS) * STRIDE + d],
                ));
                for (var i = 0u; i < EACH; i++) {
                    let query = tile[(local.y + i * DOWN) * STRIDE + d];
                    score[i] += query.x * keys[0];
                    score[i] += query.y * keys[1];
                    score[i] += query.z * keys[2];
                    score[i] += query.w * keys[3];
                }
            }
        }
        let key = first_key + local.x + vec4u(0, 1, 2, 3) * ACROSS;
        let at = first_token + min(key, vec4u(last));
        let key_segment = vec4i(segments[at.x], segments[at.y], segments[at.z], segments[at.w]);
        var part: array<f32, EACH>;
        for (var i = 0u; i < EACH; i++) {
            let row = local.y + i * DOWN;
            let seen = (key <= vec4u(first_row + row)) & (key_segment == vec4i(segment[i]));
            score[i] = select(vec4f(UNSEEN), params.scale * score[i], seen);
            part[i] = max(max(score[i].x, score[i].y), max(score[i].z, score[i].w));
        }
        workgroupBarrier();
        leave(local.xy, part);
        workgroupBarrier();
        var low = vec4f(UNSEEN);
        var high = vec4f(UNSEEN);
        for (var x = 0u; x < ACROSS; x++) {
            low = max(low, tile[BEHIND + (x * DOWN + local.y) * 2]);
            high = max(high, tile[BEHIND + (x * DOWN + local.y) * 2 + 1]);
        }
        part = array<f32, EACH>(low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w);
        for (var i = 0u; i < EACH; i++) {
            let row = local.y + i * DOWN;
            let before = highest[i];
            highest[i] = max(before, part[i]);
            // By its bits: a comparison would make a NaN 0.
            let unseen = bitcast<vec4u>(score[i]) == vec4u(bitcast<u32>(UNSEEN));
            let share = select(exp(score[i] - highest[i]), vec4f(), unseen);
            let correction = exp(max(before - highest[i], -100.0));
            total[i] = total[i] * correction + (share.x + share.y + share.z + share.w);
            sum[i] *= correction;
            tile[row * ACROSS + local.x] = share;
        }
        // Keys local.x, + ACROSS, + 2·ACROSS, + 3·ACROSS make one vector of shares: half of those vectors at a time.
        for (var half = 0u; half < ACROSS; half += ACROSS / 2) {
            workgroupBarrier();
            for (var e = lane; e < KEYS / 2 * ACROSS; e += LANES) {
                let slot = e / ACROSS;
                let key = first_key + half + slot % (ACROSS / 2) + slot / (ACROSS / 2) * ACROSS;
                tile[BEHIND + e] = v_quad(kv_first + min(key, last) * kv_stride, first_pair + e % ACROSS * 2);
            }
            workgroupBarrier();
            for (var c = 0u; c < ACROSS / 2; c++) {
                let v0 = tile[BEHIND + c * ACROSS + local.x];
                let v1 = tile[BEHIND + (c + ACROSS / 2) * ACROSS + local.x];
                let v2 = tile[BEHIND + (c + ACROSS) * ACROSS + local.x];
                let v3 = tile[BEHIND + (c + 3 * ACROSS / 2) * ACROSS + local.x];
                for (var i = 0u; i < EACH; i++) {
                    let share = tile[(local.y + i * DOWN) * ACROSS + half + c];
                    sum[i] += share.x * v0;
                    sum[i] += share.y * v1;
                    sum[i] += share.z * v2;
                    sum[i] += share.w * v3;
                }
            }
        }
    }
    workgroupBarrier();
    leave(local.xy, total);
    workgroupBarrier();
    var low = vec4f();
    var high = vec4f();
    for (var x = 0u; x < ACROSS; x++) {
        low += tile[BEHIND + (x * DOWN + local.y) * 2];
        high += tile[BEHIND + (x * DOWN + local.y) * 2 + 1];
    }
    total = array<f32, EACH>(low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w);
    for (var i = 0u; i < EACH; i++) {
        let row = local.y + i * DOWN;
        if first_row + row >= params.tokens {
            continue;
        }
        let masked = segment[i] == 0;
        let result = select(sum[i] / total[i], vec4f(), masked);
        let pair = first_pair + 2 * local.x;
        let at = q_first + (first_row + row) * q_stride + pair;
        if pair < params.pairs {
            output[at] = result.xy;
        }
        if pair + 1 < params.pairs {
            output[at + 1] = result.zw;
        }
        if first_pair == 0 && local.x == 0 {
            let log_sum = select(highest[i] + log(total[i]), 0.0, masked);
            stats[(first_token + first_row + row) * params.heads + head] = vec2f(log_sum, 0.0);
        }
    }
}
