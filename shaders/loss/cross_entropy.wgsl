// Softmax cross-entropy of rows z with class labels t: d_logits = softmax(z) − (1−ε)·onehot(t) − ε/classes, and for each
// workgroup the sum of −(1−ε)·log p_t − ε·mean(log p) and the number of rows counted. A row whose label is ignore_index
// counts nothing and has gradient 0. A label out of range makes loss and gradient infinite. One workgroup takes whole rows.
struct Params {
    rows: u32,
    classes: u32,
    ignore_index: i32,
    smoothing: f32, // ε
}
@group(0) @binding(0) var<storage, read> logits: array<f32>; // [rows, classes]
@group(0) @binding(1) var<storage, read> labels: array<i32>; // [rows]
@group(0) @binding(2) var<storage, read_write> d_logits: array<f32>; // [rows, classes]
@group(0) @binding(3) var<storage, read_write> partial_sums: array<vec2f>; // [workgroups]
@group(0) @binding(4) var<uniform> params: Params;

override WORKGROUP: u32 = 64;

var<workgroup> partial: array<vec2f, WORKGROUP>;

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let classes = params.classes;
    var total = vec2f();
    for (var row = group.x; row < params.rows; row += groups.x) {
        let first = row * classes;
        // max(z)
        var highest = -3.4028234e38;
        for (var c = lane; c < classes; c += WORKGROUP) {
            highest = max(highest, logits[first + c]);
        }
        partial[lane] = vec2f(highest, 0.0);
        workgroupBarrier();
        for (var i = 0u; i < WORKGROUP; i++) {
            highest = max(highest, partial[i].x);
        }
        workgroupBarrier();
        // Σ exp(z − max) and Σ (z − max)
        var sums = vec2f();
        for (var c = lane; c < classes; c += WORKGROUP) {
            let z = logits[first + c] - highest;
            sums += vec2f(exp(z), z);
        }
        partial[lane] = sums;
        workgroupBarrier();
        sums = vec2f();
        for (var i = 0u; i < WORKGROUP; i++) {
            sums += partial[i];
        }
        workgroupBarrier();

        let label = labels[row];
        let counted = label != params.ignore_index;
        let valid = label >= 0 && label < i32(classes);
        let share = params.smoothing / f32(classes);
        let infinite = 3.4028234e38 * f32(classes + 1);
        for (var c = lane; c < classes; c += WORKGROUP) {
            let hit = select(0.0, 1.0 - params.smoothing, i32(c) == label);
            let gradient = exp(logits[first + c] - highest) / sums.x - hit - share;
            d_logits[first + c] = select(0.0, select(infinite, gradient, valid), counted);
        }
        if counted {
            let log_sum = log(sums.x);
            let hit = logits[first + min(u32(max(label, 0)), classes - 1)] - highest - log_sum;
            // A logit of −∞ makes the smoothing term 0·∞ where there is none.
            let smoothed = select(share * (sums.y - f32(classes) * log_sum), 0.0, params.smoothing == 0.0);
            let loss = -(1.0 - params.smoothing) * hit - smoothed;
            total += vec2f(select(infinite, loss, valid), 1.0);
        }
    }
    if lane == 0 {
        partial_sums[group.x] = total;
    }
}
