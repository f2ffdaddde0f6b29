// d_input = scale·d_output·W for one token, or that added to it: SLICES invocations share the rows of W of 4·CHUNK columns.
struct Params {
    in_features: u32,
    first_row: u32,
    rows: u32,
    first_column: u32,
    accumulate: u32,
    scale: f32,
}
@group(0) @binding(1) var<storage, read> d_output: array<f32>; // [1, columns]
@group(0) @binding(2) var<storage, read_write> d_input: array<f32>; // [1, in_features]
@group(0) @binding(3) var<uniform> params: Params;

override CHUNKS: u32 = 8;
override SLICES: u32 = 32;

var<workgroup> partial: array<vec4f, CHUNKS * SLICES * CHUNK>; // [SLICES, CHUNKS, CHUNK]

// d_output of these rows, 0 past the end.
fn gradients(row: vec4u) -> vec4f {
    let source = params.first_column + min(row, vec4u(params.rows - 1));
    let found = vec4f(d_output[source.x], d_output[source.y], d_output[source.z], d_output[source.w]);
    return select(vec4f(), found, row < vec4u(params.rows));
}

// Where in the weight these rows are; past the end the last again.
fn stored(row: vec4u) -> vec4u {
    return params.first_row + min(row, vec4u(params.rows - 1));
}

@compute @workgroup_size(CHUNKS, SLICES)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_id) local: vec3u,
    @builtin(local_invocation_index) index: u32,
) {
    let columns4 = (params.in_features + 3) / 4;
    let first_chunk = (group.x + group.y * groups.x) * CHUNKS;
    let chunk = min(first_chunk + local.x, (columns4 - 1) / CHUNK);
    // Four rows at a time are on their way while four are multiplied.
    var row = vec4u(local.y) + SLICES * vec4u(0, 1, 2, 3);
    var d = gradients(row);
    var at = stored(row);
    var next0 = load(at.x, chunk);
    var next1 = load(at.y, chunk);
    var next2 = load(at.z, chunk);
    var next3 = load(at.w, chunk);
    var sum: array<vec4f, CHUNK>;
    for (var k = local.y; k < params.rows; k += 4 * SLICES) {
        let w0 = next0;
        let w1 = next1;
        let w2 = next2;
        let w3 = next3;
        let f = d * vec4f(factor(w0), factor(w1), factor(w2), factor(w3));
        row += 4 * SLICES;
        d = gradients(row);
        at = stored(row);
        next0 = load(at.x, chunk);
        next1 = load(at.y, chunk);
        next2 = load(at.z, chunk);
        next3 = load(at.w, chunk);
        for (var j = 0u; j < CHUNK; j++) {
            sum[j] += f.x * codes(w0, j);
            sum[j] += f.y * codes(w1, j);
            sum[j] += f.z * codes(w2, j);
            sum[j] += f.w * codes(w3, j);
        }
    }
    for (var j = 0u; j < CHUNK; j++) {
        partial[index * CHUNK + j] = sum[j] * unit(j);
    }
    workgroupBarrier();

    // One invocation adds up one column at a time.
    for (var i = index; i < 4 * CHUNK * CHUNKS; i += CHUNKS * SLICES) {
        var total = 0.0;
        for (var slice = 0u; slice < SLICES; slice++) {
            total += partial[slice * CHUNKS * CHUNK + i / 4][i % 4];
        }
        let input = first_chunk * CHUNK * 4 + i;
        if input < params.in_features {
            d_input[input] = params.scale * total + select(0.0, d_input[input], params.accumulate == 1);
        }
    }
}
