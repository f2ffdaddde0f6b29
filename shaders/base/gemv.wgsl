// What the products for one token share, output = scale·W·x + bias: how `lanes` invocations make their sums of ROWS rows of W.
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

const ROWS: u32 = 4;

fn add_products(sum: f32, a: vec4f, b: vec4f) -> f32 {
    return sum + a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}

// What the `lane`-th of `lanes` invocations has of the sums of the rows from `first` on.
fn sums(first: u32, lane: u32, lanes: u32) -> vec4f {
    // Out of range repeats the last row; it is not written.
    let row = params.first_row + min(vec4u(first) + vec4u(0, 1, 2, 3), vec4u(params.rows - 1));
    let columns4 = (params.in_features + 3) / 4;
    let chunks = (columns4 + CHUNK - 1) / CHUNK;
    let first_chunk = min(lane, chunks - 1);
    var next0 = load(row.x, first_chunk);
    var next1 = load(row.y, first_chunk);
    var next2 = load(row.z, first_chunk);
    var next3 = load(row.w, first_chunk);
    var sum = vec4f();
    for (var chunk = lane; chunk < chunks; chunk += lanes) {
        let w0 = next0;
        let w1 = next1;
        let w2 = next2;
        let w3 = next3;
        // Past the end the weights are 0.
        var v: array<vec4f, CHUNK>;
        for (var j = 0u; j < CHUNK; j++) {
            v[j] = x[min(chunk * CHUNK + j, columns4 - 1)] * unit(j);
        }
        // On their way while these are multiplied; past the end the last ones again.
        let next = min(chunk + lanes, chunks - 1);
        next0 = load(row.x, next);
        next1 = load(row.y, next);
        next2 = load(row.z, next);
        next3 = load(row.w, next);
        var part = vec4f();
        for (var j = 0u; j < CHUNK; j++) {
            part.x = add_products(part.x, codes(w0, j), v[j]);
        }
        for (var j = 0u; j < CHUNK; j++) {
            part.y = add_products(part.y, codes(w1, j), v[j]);
        }
        for (var j = 0u; j < CHUNK; j++) {
            part.z = add_products(part.z, codes(w2, j), v[j]);
        }
        for (var j = 0u; j < CHUNK; j++) {
            part.w = add_products(part.w, codes(w3, j), v[j]);
        }
        sum += part * vec4f(factor(w0), factor(w1), factor(w2), factor(w3));
    }
    return sum;
}

fn put(out: u32, total: f32) {
    let offset = select(0.0, bias[(params.first_bias + out) * params.has_bias], params.has_bias == 1);
    output[params.first_column + out] = params.scale * total + offset;
}
