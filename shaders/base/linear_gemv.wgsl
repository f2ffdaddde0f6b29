// output = scale·W·x + bias for one token. LANES invocations share ROWS rows of W; a workgroup has TEAMS times as many.
struct Params {
    in_features: u32,
    first_row: u32,
    rows: u32,
    first_column: u32,
    first_bias: u32,
    has_bias: u32,
    scale: f32,
}
@group(0) @binding(1) var<storage, read> bias: array<f32>; // [out_features], anything when has_bias is 0
@group(0) @binding(2) var<storage, read> x: array<vec4f>; // [1, ⌈in_features / 4⌉]
@group(0) @binding(3) var<storage, read_write> output: array<f32>; // [1, columns]
@group(0) @binding(4) var<uniform> params: Params;

override LANES: u32 = 32;
override TEAMS: u32 = 4;
const ROWS: u32 = 4;

var<workgroup> partial: array<vec4f, LANES * TEAMS>; // [TEAMS, LANES], a component for each row

@compute @workgroup_size(LANES, TEAMS)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_id) local: vec3u,
    @builtin(local_invocation_index) index: u32,
) {
    let first = ((group.x + group.y * groups.x) * TEAMS + local.y) * ROWS;
    // Out of range repeats the last row; it is not written.
    let row = params.first_row + min(vec4u(first) + vec4u(0, 1, 2, 3), vec4u(params.rows - 1));
    let columns4 = (params.in_features + 3) / 4;
    let chunks = (columns4 + CHUNK - 1) / CHUNK;
    var s0 = vec4f();
    var s1 = vec4f();
    var s2 = vec4f();
    var s3 = vec4f();
    for (var chunk = local.x; chunk < chunks; chunk += LANES) {
        let w0 = load(row.x, chunk);
        let w1 = load(row.y, chunk);
        let w2 = load(row.z, chunk);
        let w3 = load(row.w, chunk);
        for (var j = 0u; j < CHUNK; j++) {
            // Past the end the weights are 0.
            let part = x[min(chunk * CHUNK + j, columns4 - 1)];
            s0 += unpack(w0, j) * part;
            s1 += unpack(w1, j) * part;
            s2 += unpack(w2, j) * part;
            s3 += unpack(w3, j) * part;
        }
    }
    let ones = vec4f(1);
    partial[index] = vec4f(dot(s0, ones), dot(s1, ones), dot(s2, ones), dot(s3, ones));
    workgroupBarrier();

    // One invocation for each row, LANES being no fewer.
    let out = first + local.x;
    if local.x < ROWS && out < params.rows {
        var sum = 0.0;
        for (var lane = 0u; lane < LANES; lane++) {
            sum += partial[local.y * LANES + lane][local.x];
        }
        let offset = select(0.0, bias[(params.first_bias + out) * params.has_bias], params.has_bias == 1);
        output[params.first_column + out] = params.scale * sum + offset;
    }
}
