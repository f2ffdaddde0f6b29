// What one update needs, computed on the GPU: the gradients' norm, whether loss and norm are finite, the learning rate and
// the bias corrections 1/(1−β₁ᵗ) and 1/√(1−β₂ᵗ) of step t, tabulated in f64 on the CPU (a table's last row holds for all
// later steps). A step that is not finite, or that counted nothing, is skipped: t stays. The log says what became of it:
// 0 updated, 1 nothing counted, 2 not finite; from 3 on not finite from layer k on: 3+2k in its output, 4+2k in its gradient.
struct Params {
    lr_rows: u32,
    bias_rows: u32,
    partials: u32,
    log_rows: u32,
    max_norm: f32, // 0: no clipping
}
struct State {
    step: u32,
    lr: f32,
    inv_bias1: f32,
    inv_sqrt_bias2: f32,
    grad_scale: f32,
    skip: u32,
    attempts: u32,
    skipped: u32,
}
struct Window {
    micro_batches: u32,
    bad_output: u32,
    bad_gradient: u32,
    unused: u32,
}
@group(0) @binding(0) var<storage, read> lr: array<f32>; // [lr_rows]
@group(0) @binding(1) var<storage, read> bias: array<f32>; // [bias_rows, 2]
@group(0) @binding(2) var<storage, read> partial_sums: array<f32>; // [partials]: of grad²
@group(0) @binding(3) var<storage, read> totals: array<f32>; // [2]: sum of the loss, and over how many
@group(0) @binding(4) var<storage, read> window: Window; // layer + 1 where something bad began
@group(0) @binding(5) var<storage, read_write> state: State;
@group(0) @binding(6) var<storage, read_write> log: array<f32>; // [log_rows, 4]: loss, norm, lr, outcome
@group(0) @binding(7) var<uniform> params: Params;

override WORKGROUP: u32 = 64;

var<workgroup> partial: array<f32, WORKGROUP>;

// By its bits: a compiler may take x == x for granted.
fn is_finite(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u;
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(local_invocation_index) lane: u32) {
    var sum = 0.0;
    for (var i = lane; i < params.partials; i += WORKGROUP) {
        sum += partial_sums[i];
    }
    partial[lane] = sum;
    workgroupBarrier();

    if lane == 0 {
        sum = 0.0;
        for (var i = 0u; i < WORKGROUP; i++) {
            sum += partial[i];
        }
        let count = totals[1];
        let inv_count = select(0.0, 1.0 / count, count > 0.0);
        let norm = sqrt(sum) * inv_count;
        let loss = totals[0] * inv_count;
        let finite = is_finite(norm) && is_finite(loss);
        let skip = !finite || count <= 0.0;

        let step = state.step;
        let row = min(step, params.bias_rows - 1);
        let rate = lr[min(step, params.lr_rows - 1)];
        let clip = select(1.0, min(1.0, params.max_norm / (norm + 1e-6)), params.max_norm > 0.0);
        state.lr = rate;
        state.inv_bias1 = bias[2 * row];
        state.inv_sqrt_bias2 = bias[2 * row + 1];
        state.grad_scale = inv_count * clip;
        state.skip = u32(skip);
        state.step = select(step + 1, step, skip);
        state.skipped += u32(!finite);

        var outcome = select(0.0, 1.0, skip);
        if !finite {
            let in_gradient = select(2.0, 2.0 + 2.0 * f32(window.bad_gradient), window.bad_gradient > 0);
            outcome = select(in_gradient, 1.0 + 2.0 * f32(window.bad_output), window.bad_output > 0);
        }

        let at = 4 * (state.attempts % params.log_rows);
        log[at] = loss;
        log[at + 1] = norm;
        log[at + 2] = rate;
        log[at + 3] = outcome;
        state.attempts += 1;
    }
}
