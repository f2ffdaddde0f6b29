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

var<workgroup> partial: array<vec4f, CHUNKS * SLICES>; // [SLICES, CHUNKS]

@compute @workgroup_size(CHUNKS, SLICES)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_id) local: vec3u,
    @builtin(local_invocation_index) index: u32,
) {
    let columns4 = (params.in_features + 3) / 4;
    let first_chunk = (group.x + group.y * groups.x) * CHUNKS + local.x;
    let chunk = min(first_chunk, (columns4 - 1) / CHUNK);
    let last = params.rows - 1;
    var sum: array<vec4f, CHUNK>;
    // Four rows at a time are on their way; out of range repeats the last one, times 0.
    for (var k = local.y; k < params.rows; k += 4 * SLICES) {
        let row = vec4u(k) + SLICES * vec4u(0, 1, 2, 3);
        let at = min(row, vec4u(last));
        let w0 = load(params.first_row + at.x, chunk);
        let w1 = load(params.first_row + at.y, chunk);
        let w2 = load(params.first_row + at.z, chunk);
        let w3 = load(params.first_row + at.w, chunk);
        let source = params.first_column + at;
        let found = vec4f(d_output[source.x], d_output[source.y], d_output[source.z], d_output[source.w]);
        let d = select(vec4f(), found, row < vec4u(params.rows));
        for (var j = 0u; j < CHUNK; j++) {
            sum[j] += d.x * unpack(w0, j);
            sum[j] += d.y * unpack(w1, j);
            sum[j] += d.z * unpack(w2, j);
            sum[j] += d.w * unpack(w3, j);
        }
    }
    for (var j = 0u; j < CHUNK; j++) {
        partial[index] = sum[j];
        workgroupBarrier();
        // One invocation adds up one column at a time.
        for (var i = index; i < 4 * CHUNKS; i += CHUNKS * SLICES) {
            var total = 0.0;
            for (var slice = 0u; slice < SLICES; slice++) {
                total += partial[slice * CHUNKS + i / 4][i % 4];
            }
            let input = ((first_chunk - local.x + i / 4) * CHUNK + j) * 4 + i % 4;
            if input < params.in_features {
                d_input[input] = params.scale * total + select(0.0, d_input[input], params.accumulate == 1);
            }
        }
        workgroupBarrier();
    }
}
