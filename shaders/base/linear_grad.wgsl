// d_weight = scale·leftᵀ·right, or that added to it, or parts of that sum, each over `part` tokens, one after another: the gradient
// of a whole weight, left [tokens, rows] being d_output and right [tokens, columns] the input.
struct Params {
    tokens: u32,
    rows: u32,
    columns: u32,
    accumulate: u32,
    part: u32,
    scale: f32,
}
@group(0) @binding(0) var<storage, read> left: array<f32>; // [tokens, rows]
@group(0) @binding(1) var<storage, read> right: array<f32>; // [tokens, columns]
@group(0) @binding(2) var<storage, read_write> d_weight: array<f32>; // [parts, rows, columns]
@group(0) @binding(3) var<uniform> params: Params;

fn left_four(at: vec4u) -> vec4f {
    return vec4f(left[at.x], left[at.y], left[at.z], left[at.w]);
}

fn right_four(at: vec4u) -> vec4f {
    return vec4f(right[at.x], right[at.y], right[at.z], right[at.w]);
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) index: u32,
) {
    let tile = group.x + group.y * groups.x;
    let column_tiles = (params.columns + TILE - 1) / TILE;
    let first_column = tile % column_tiles * TILE;
    let row_tiles = (params.rows + TILE - 1) / TILE;
    let first_row = tile / column_tiles % row_tiles * TILE;
    let slice = tile / column_tiles / row_tiles;
    let first_part = slice * params.part;
    let end = min(first_part + params.part, params.tokens);
    if first_part >= params.tokens {
        return;
    }
    let local = place(index);

    // Half of the invocations read left, half right, four columns of four tokens each. Out of range repeats the last column; it
    // is not written.
    let of_left = index < 128;
    let four = index % FOURS;
    let each = 4 * four + vec4u(0, 1, 2, 3);
    let width = select(params.columns, params.rows, of_left);
    let columns = min(select(first_column, first_row, of_left) + each, vec4u(width - 1));
    let term = index / FOURS % 4;
    let to = select(16 * FOURS, 0, of_left) + term * FOURS;
    var next = mat4x4f();
    var sums = Sums();
    // One round more than there are: the first only reads.
    for (var first = first_part; first < end + 16; first += 16) {
        if first > first_part {
            if first > params.tokens {
                let inside = first - 16 + term + vec4u(0, 4, 8, 12) < vec4u(params.tokens);
                next[0] = select(vec4f(), next[0], inside.x);
                next[1] = select(vec4f(), next[1], inside.y);
                next[2] = select(vec4f(), next[2], inside.z);
                next[3] = select(vec4f(), next[3], inside.w);
            }
            tiles[to + four] = next[0];
            tiles[to + 4 * FOURS + (four ^ 2)] = next[1];
            tiles[to + 8 * FOURS + (four ^ 4)] = next[2];
            tiles[to + 12 * FOURS + (four ^ 6)] = next[3];
        }
        workgroupBarrier();
        let tokens = min(first + term + vec4u(0, 4, 8, 12), vec4u(params.tokens - 1)) * width;
        if of_left {
            next[0] = left_four(tokens.x + columns);
            next[1] = left_four(tokens.y + columns);
            next[2] = left_four(tokens.z + columns);
            next[3] = left_four(tokens.w + columns);
        } else {
            next[0] = right_four(tokens.x + columns);
            next[1] = right_four(tokens.y + columns);
            next[2] = right_four(tokens.z + columns);
            next[3] = right_four(tokens.w + columns);
        }
        if first > first_part {
            add_tiles(&sums, local);
        }
        workgroupBarrier();
    }
    for (var i = 0u; i < 16; i++) {
        let row = first_row + i / 8 * (TILE / 2) + 4 * local.y + i / 2 % 4;
        for (var j = 0u; j < 4; j++) {
            let column = first_column + i % 2 * (TILE / 2) + 4 * local.x + j;
            if row < params.rows && column < params.columns {
                let at = (slice * params.rows + row) * params.columns + column;
                d_weight[at] = params.scale * sums[i][j] + select(0.0, d_weight[at], params.accumulate == 1);
            }
        }
    }
}
