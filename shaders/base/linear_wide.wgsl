// output = scale·x·Wᵀ + bias, or parts of that sum, as linear.wgsl, for many tokens and outputs: a workgroup makes TILE tokens ×
// TILE outputs from 16 columns of x and W at a time, one invocation 8 × 8 of them. Half of the invocations read x, half W, 4 × 4
// each, the next while these are worked on.
struct Params {
    tokens: u32,
    in_features: u32,
    first_row: u32,
    rows: u32,
    columns: u32,
    first_column: u32,
    first_bias: u32,
    has_bias: u32,
    part: u32,
    scale: f32,
}
@group(0) @binding(1) var<storage, read> bias: array<f32>; // [out_features], anything when has_bias is 0
@group(0) @binding(2) var<storage, read> x: array<vec4f>; // [tokens, ⌈in_features / 4⌉]
@group(0) @binding(3) var<storage, read_write> output: array<f32>; // [parts, tokens, columns]
@group(0) @binding(4) var<uniform> params: Params;


@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) index: u32,
) {
    let tile = group.x + group.y * groups.x;
    let output_tiles = (params.rows + TILE - 1) / TILE;
    let first_out = tile % output_tiles * TILE;
    let token_tiles = (params.tokens + TILE - 1) / TILE;
    let first_token = tile / output_tiles % token_tiles * TILE;
    let columns4 = (params.in_features + 3) / 4;
    let slice = tile / output_tiles / token_tiles;
    let first_part = slice * params.part;
    let end = min(first_part + params.part, columns4);
    if first_part >= columns4 {
        return;
    }
    let local = place(index);

    let of_x = index < 128;
    let k4 = index % 4;
    let row4 = index / 4 % FOURS;
    let to = select(16 * FOURS, 0, of_x) + 4 * k4 * FOURS + (row4 ^ (2 * k4));
    // Out of range repeats the last row; it is not written.
    let each = 4 * row4 + vec4u(0, 1, 2, 3);
    var rows = min(first_token + each, vec4u(params.tokens - 1)) * columns4;
    if !of_x {
        rows = params.first_row + min(first_out + each, vec4u(params.rows - 1));
    }
    var next = mat4x4f();
    var sums = Sums();
    // One round more than there are: the first only reads.
    for (var first_k = first_part; first_k < end + 4; first_k += 4) {
        if first_k > first_part {
            if first_k > columns4 && first_k - 4 + k4 >= columns4 {
                next = mat4x4f();
            }
            let columns = transpose(next);
            tiles[to] = columns[0];
            tiles[to + FOURS] = columns[1];
            tiles[to + 2 * FOURS] = columns[2];
            tiles[to + 3 * FOURS] = columns[3];
        }
        workgroupBarrier();
        let k = min(first_k + k4, columns4 - 1);
        if of_x {
            next = mat4x4f(x[rows.x + k], x[rows.y + k], x[rows.z + k], x[rows.w + k]);
        } else {
            next[0] = unpack(load(rows.x, k / CHUNK), k % CHUNK);
            next[1] = unpack(load(rows.y, k / CHUNK), k % CHUNK);
            next[2] = unpack(load(rows.z, k / CHUNK), k % CHUNK);
            next[3] = unpack(load(rows.w, k / CHUNK), k % CHUNK);
        }
        if first_k > first_part {
            add_tiles(&sums, local);
        }
        workgroupBarrier();
    }
    for (var i = 0u; i < 16; i++) {
        let token = first_token + i / 8 * (TILE / 2) + 4 * local.y + i / 2 % 4;
        for (var j = 0u; j < 4; j++) {
            let out = first_out + i % 2 * (TILE / 2) + 4 * local.x + j;
            if token < params.tokens && out < params.rows {
                let offset = select(0.0, bias[(params.first_bias + out) * params.has_bias], params.has_bias == 1 && slice == 0);
                let at = (slice * params.tokens + token) * params.columns + params.first_column + out;
                output[at] = params.scale * sums[i][j] + offset;
            }
        }
    }
}
