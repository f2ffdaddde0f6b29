// d_input = scale·d_output·W, or that added to it, or parts of that sum, as linear_t.wgsl, for many tokens and inputs: a workgroup
// makes TILE tokens × TILE inputs from 16 columns of d_output and rows of W at a time, one invocation 8 × 8 of them. Half of the
// invocations read d_output, half W, 4 × 4 each, the next while these are worked on.
struct Params {
    tokens: u32,
    in_features: u32,
    first_row: u32,
    rows: u32,
    columns: u32,
    first_column: u32,
    accumulate: u32,
    part: u32,
    scale: f32,
}
@group(0) @binding(1) var<storage, read> d_output: array<f32>; // [tokens, columns]
@group(0) @binding(2) var<storage, read_write> d_input: array<f32>; // [parts, tokens, in_features]
@group(0) @binding(3) var<uniform> params: Params;


fn four(at: vec4u) -> vec4f {
    return vec4f(d_output[at.x], d_output[at.y], d_output[at.z], d_output[at.w]);
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) index: u32,
) {
    let tile = group.x + group.y * groups.x;
    let columns4 = (params.in_features + 3) / 4;
    let input_tiles = (columns4 + FOURS - 1) / FOURS;
    let first_in = tile % input_tiles * FOURS;
    let token_tiles = (params.tokens + TILE - 1) / TILE;
    let first_token = tile / input_tiles % token_tiles * TILE;
    let slice = tile / input_tiles / token_tiles;
    let first_part = slice * params.part;
    let end = min(first_part + params.part, params.rows);
    if first_part >= params.rows {
        return;
    }
    let local = place(index);

    let of_d = index < 128;
    let k4 = index % 4;
    let row4 = index / 4 % FOURS;
    let to = 4 * k4 * FOURS + (row4 ^ (2 * k4));
    let last = params.rows - 1;
    // Out of range repeats the last token or column; it is not written.
    let tokens = min(first_token + 4 * row4 + vec4u(0, 1, 2, 3), vec4u(params.tokens - 1)) * params.columns + params.first_column;
    let input4 = min(first_in + index % FOURS, columns4 - 1);
    let row = vec4u(index / FOURS % 4) + vec4u(0, 4, 8, 12);
    var next = mat4x4f();
    var sums = Sums();
    // One round more than there are: the first only reads.
    for (var first_k = first_part; first_k < end + 16; first_k += 16) {
        if first_k > first_part {
            if of_d {
                // Rows past the end repeat the last one, times 0.
                if first_k > params.rows {
                    let inside = first_k - 16 + 4 * k4 + vec4u(0, 1, 2, 3) < vec4u(params.rows);
                    next[0] = select(vec4f(), next[0], inside);
                    next[1] = select(vec4f(), next[1], inside);
                    next[2] = select(vec4f(), next[2], inside);
                    next[3] = select(vec4f(), next[3], inside);
                }
                let columns = transpose(next);
                tiles[to] = columns[0];
                tiles[to + FOURS] = columns[1];
                tiles[to + 2 * FOURS] = columns[2];
                tiles[to + 3 * FOURS] = columns[3];
            } else {
                tiles[(16 + row.x) * FOURS + index % FOURS] = next[0];
                tiles[(16 + row.y) * FOURS + ((index % FOURS) ^ 2)] = next[1];
                tiles[(16 + row.z) * FOURS + ((index % FOURS) ^ 4)] = next[2];
                tiles[(16 + row.w) * FOURS + ((index % FOURS) ^ 6)] = next[3];
            }
        }
        workgroupBarrier();
        if of_d {
            let k = min(first_k + 4 * k4 + vec4u(0, 1, 2, 3), vec4u(last));
            next[0] = four(tokens.x + k);
            next[1] = four(tokens.y + k);
            next[2] = four(tokens.z + k);
            next[3] = four(tokens.w + k);
        } else {
            let k = params.first_row + min(first_k + row, vec4u(last));
            next[0] = unpack(load(k.x, input4 / CHUNK), input4 % CHUNK);
            next[1] = unpack(load(k.y, input4 / CHUNK), input4 % CHUNK);
            next[2] = unpack(load(k.z, input4 / CHUNK), input4 % CHUNK);
            next[3] = unpack(load(k.w, input4 / CHUNK), input4 % CHUNK);
        }
        if first_k > first_part {
            add_tiles(&sums, local);
        }
        workgroupBarrier();
    }
    for (var i = 0u; i < 16; i++) {
        let token = first_token + i / 8 * (TILE / 2) + 4 * local.y + i / 2 % 4;
        for (var j = 0u; j < 4; j++) {
            let input = 4 * first_in + i % 2 * (TILE / 2) + 4 * local.x + j;
            if token < params.tokens && input < params.in_features {
                let at = (slice * params.tokens + token) * params.in_features + input;
                d_input[at] = params.scale * sums[i][j] + select(0.0, d_input[at], params.accumulate == 1);
            }
        }
    }
}
