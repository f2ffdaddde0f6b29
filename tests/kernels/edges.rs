//! What a comparison with numbers cannot show: steps that are skipped, losses that count nothing, what is not finite.

use lora_webgpu::kernels::optim::LrRatio;
use lora_webgpu::kernels::{loss, nn, optim};
use lora_webgpu::{Gpu, Loss, Recording, Tensor};
use wasm_bindgen_test::wasm_bindgen_test;

use crate::cases::{ADAMW, FUNCTIONS, IGNORED, state};
use crate::common::{PROFILES, Rng, bits, gpu_as};

fn tensor(gpu: &Gpu, data: &[f32]) -> Tensor {
    Tensor::from_slice(gpu, "given", &[data.len()], data).unwrap()
}

/// The gradients being what they may be.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn a_skipped_step_changes_nothing() {
    let gpu = gpu_as(PROFILES[0]).await;
    let values = Rng(1).numbers(131);
    let both = [values.as_slice(), &values].concat();
    let grad = tensor(&gpu, &[&[f32::NAN, f32::INFINITY], &values[2..]].concat());
    for skip in [true, false] {
        let state = state(1, [0.05, 1.0, 1.0], 0.7, skip).upload(&gpu, "state");
        let [param, momentum_param, adamw_param, velocity] = [(); 4].map(|()| tensor(&gpu, &values));
        let moments = Tensor::from_slice(&gpu, "moments", &[2, 131], &both).unwrap();
        let group = LrRatio { from: 7, ratio: 2.0 };
        let rec = Recording::new(&gpu);
        optim::sgd::record(&rec, &grad, &state, &param, 0.1, group).unwrap();
        optim::sgd_momentum::record(&rec, &grad, &state, &momentum_param, &velocity, 0.1, 0.9, group).unwrap();
        optim::adamw::record(&rec, &grad, &state, &adamw_param, &moments, &ADAMW, group).unwrap();
        rec.submit().await.unwrap();
        for after in [&param, &momentum_param, &adamw_param, &velocity, &moments] {
            let before = if after.len() == 131 { &values } else { &both };
            assert_eq!(bits(&after.read().await.unwrap()) == bits(before), skip);
        }
    }
}

/// 0 and no gradient, not 0/0.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn a_loss_that_counts_nothing_is_0() {
    for profile in PROFILES {
        let gpu = gpu_as(profile).await;
        let numbers = Rng(2).numbers(600 * 5);
        let matrix = |data: &[f32]| Tensor::from_slice(&gpu, "matrix", &[600, 5], data).unwrap();
        let (logits, d_logits) = (matrix(&numbers), matrix(&[f32::NAN; 3000]));
        let labels = Tensor::integers(&gpu, "labels", &[600], Some(&[IGNORED; 600])).unwrap();
        let (fresh, added, loss) =
            (tensor(&gpu, &[f32::NAN; 2]), tensor(&gpu, &[3.5, 7.0]), tensor(&gpu, &[f32::NAN; 1]));
        let rec = Recording::new(&gpu);
        let record = |totals, accumulate| {
            loss::cross_entropy::record(&rec, &logits, &labels, &d_logits, totals, accumulate, IGNORED, 0.1).unwrap();
        };
        record(&fresh, false);
        record(&added, true);
        rec.submit().await.unwrap();
        assert_eq!(fresh.read().await.unwrap(), [0.0, 0.0]);
        assert_eq!(added.read().await.unwrap(), [3.5, 7.0]);
        assert_eq!(d_logits.read().await.unwrap(), [0.0; 3000]);

        d_logits.write(&numbers).unwrap();
        let rec = Recording::new(&gpu);
        loss::mean::record(&rec, &fresh, &d_logits, &loss).unwrap();
        rec.submit().await.unwrap();
        assert_eq!(loss.read().await.unwrap(), [0.0]);
        assert_eq!(d_logits.read().await.unwrap(), [0.0; 3000]);

        let whole = Loss::CrossEntropy { ignore_index: IGNORED, label_smoothing: 0.1 };
        let rec = Recording::new(&gpu);
        whole.record(&rec, &logits, &labels, &d_logits, &loss).unwrap();
        loss.write(&[f32::NAN]).unwrap();
        rec.submit().await.unwrap();
        assert_eq!(loss.read().await.unwrap(), [0.0]);
        assert_eq!(d_logits.read().await.unwrap(), [0.0; 3000]);
    }
}

/// With one class every probability is 1, and the loss 0 with no gradient.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn cross_entropy_of_one_class_is_0() {
    let gpu = gpu_as(PROFILES[0]).await;
    let logits = Tensor::from_slice(&gpu, "logits", &[4, 1], &[1e4, -1e4, 0.5, 3.0]).unwrap();
    let labels = Tensor::integers(&gpu, "labels", &[4], Some(&[0, 0, IGNORED, 0])).unwrap();
    for smoothing in [0.0, 0.25, 1.0] {
        let d_logits = Tensor::from_slice(&gpu, "d_logits", &[4, 1], &[f32::NAN; 4]).unwrap();
        let totals = tensor(&gpu, &[f32::NAN; 2]);
        let rec = Recording::new(&gpu);
        loss::cross_entropy::record(&rec, &logits, &labels, &d_logits, &totals, false, IGNORED, smoothing).unwrap();
        rec.submit().await.unwrap();
        assert_eq!(totals.read().await.unwrap(), [0.0, 3.0]);
        assert!(d_logits.read().await.unwrap().iter().all(|g| g.abs() <= 1.2e-7));
    }
}

/// Labels are checked on the CPU where they come from there; on the GPU they at least train nothing.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn a_label_out_of_range_makes_the_loss_infinite() {
    for profile in PROFILES {
        let gpu = gpu_as(profile).await;
        for label in [5, -1, i32::MAX, i32::MIN] {
            let logits = Tensor::from_slice(&gpu, "logits", &[3, 5], &Rng(3).numbers(15)).unwrap();
            let labels = Tensor::integers(&gpu, "labels", &[3], Some(&[0, label, 4])).unwrap();
            let (d_logits, totals) = (Tensor::zeros(&gpu, "d_logits", &[3, 5]).unwrap(), tensor(&gpu, &[0.0; 2]));
            let rec = Recording::new(&gpu);
            loss::cross_entropy::record(&rec, &logits, &labels, &d_logits, &totals, false, IGNORED, 0.0).unwrap();
            rec.submit().await.unwrap();
            assert!(!totals.read().await.unwrap()[0].is_finite(), "{label}");
        }
    }
}

/// The guard against losses and gradients that are not finite would not see what an activation had made finite.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn nan_goes_through() {
    for profile in PROFILES {
        let gpu = gpu_as(profile).await;
        let row = |data: &[f32]| Tensor::from_slice(&gpu, "row", &[1, 5], data).unwrap();
        let (x, targets) = (row(&[1.0, f32::NAN, -1.0, 0.0, 2.0]), row(&[1.0; 5]));
        for (function, kind) in FUNCTIONS {
            let output = row(&[0.0; 5]);
            let rec = Recording::new(&gpu);
            nn::activation::record(&rec, kind, &x, &output).unwrap();
            rec.submit().await.unwrap();
            let nan: Vec<bool> = output.read().await.unwrap().iter().map(|v| v.is_nan()).collect();
            assert_eq!(nan, [false, true, false, false, false], "{function:?} for {profile:?}");
        }
        let weight = tensor(&gpu, &[1.0; 5]);
        for centered in [true, false] {
            let output = row(&[0.0; 5]);
            let rec = Recording::new(&gpu);
            nn::norm::record(&rec, &weight, None, &x, &output, centered, 1e-5).unwrap();
            rec.submit().await.unwrap();
            assert!(output.read().await.unwrap().iter().all(|v| !v.is_finite()), "norm for {profile:?}");
        }
        let labels = Tensor::integers(&gpu, "labels", &[1], Some(&[3])).unwrap();
        let cross_entropy = Loss::CrossEntropy { ignore_index: IGNORED, label_smoothing: 0.0 };
        for (loss, targets) in [(Loss::Mse, &targets), (Loss::BceWithLogits, &targets), (cross_entropy, &labels)] {
            let (d_output, value) = (row(&[0.0; 5]), tensor(&gpu, &[0.0]));
            let rec = Recording::new(&gpu);
            loss.record(&rec, &x, targets, &d_output, &value).unwrap();
            rec.submit().await.unwrap();
            assert!(!value.read().await.unwrap()[0].is_finite(), "{loss:?} for {profile:?}");
        }
    }
}

/// What is not finite is skipped and counted as that; what counted nothing is skipped and is no fault.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn a_step_begins_only_with_finite_numbers_of_something() {
    let [nan, inf] = [f32::NAN, f32::INFINITY];
    // Sums of squares, totals, whether skipped, whether by fault.
    let cases = [
        ([1.0, 2.0, 1.0], [3.0, 2.0], false, false),
        ([1.0, nan, 1.0], [3.0, 2.0], true, true),
        ([1.0, 2.0, inf], [3.0, 2.0], true, true),
        ([3e38, 3e38, 0.0], [3.0, 2.0], true, true),
        ([1.0, 2.0, 1.0], [nan, 2.0], true, true),
        ([1.0, 2.0, 1.0], [inf, 2.0], true, true),
        ([1.0, 2.0, 1.0], [-inf, 2.0], true, true),
        ([0.0, 0.0, 0.0], [0.0, 0.0], true, false),
        ([0.0, nan, 0.0], [0.0, 0.0], true, true),
        ([0.0, 0.0, 0.0], [0.0, 4.0], false, false),
    ];
    for profile in PROFILES {
        let gpu = gpu_as(profile).await;
        for max_norm in [0.0, 0.5] {
            let (lr, bias) = (tensor(&gpu, &[0.5]), Tensor::from_slice(&gpu, "bias", &[1, 2], &[1.0; 2]).unwrap());
            let (partial_sums, totals) = (tensor(&gpu, &[0.0; 3]), tensor(&gpu, &[0.0; 2]));
            let window = Tensor::zeros(&gpu, "window", &[4]).unwrap();
            let state = Tensor::zeros(&gpu, "state", &[8]).unwrap();
            let log = Tensor::zeros(&gpu, "log", &[3, 4]).unwrap();
            let rec = Recording::new(&gpu);
            let (lr, bias, partial_sums, totals) = (&lr, &bias, &partial_sums, &totals);
            let inputs =
                optim::begin_step::Inputs { lr, bias, partial_sums, partials: 3, totals, window: &window, max_norm };
            optim::begin_step::record(&rec, inputs, &state, &log).unwrap();
            let (mut steps, mut faults) = (0, 0);
            for (attempt, (squares, total, skip, fault)) in cases.into_iter().enumerate() {
                partial_sums.write(&squares).unwrap();
                totals.write(&total).unwrap();
                rec.submit().await.unwrap();
                steps += u32::from(!skip);
                faults += u32::from(fault);
                let name = format!("{squares:?} and {total:?} clipped at {max_norm} for {profile:?}");
                let after = state.read().await.unwrap();
                let words = bits(&after);
                assert_eq!(
                    [words[0], words[5], words[6], words[7]],
                    [steps, skip.into(), attempt as u32 + 1, faults],
                    "{name}"
                );
                let row = &log.read().await.unwrap()[4 * (attempt % 3)..][..4];
                let outcome = if fault { 2.0 } else { f32::from(u8::from(skip)) };
                assert_eq!(row[2..], [0.5, outcome], "{name}");
                if !fault {
                    assert!(row.iter().all(|v| v.is_finite()), "{name}: {row:?}");
                }
                if !skip {
                    assert!(after[4].is_finite() && after[4] > 0.0, "{name}: {after:?}");
                }
            }
        }
    }
}

/// The log names the module in whose output, or else in whose gradient, something that is not finite began; of a step that
/// is finite it names none.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn the_log_says_where_a_step_went_wrong() {
    let gpu = gpu_as(PROFILES[0]).await;
    let (lr, bias) = (tensor(&gpu, &[0.5]), Tensor::from_slice(&gpu, "bias", &[1, 2], &[1.0; 2]).unwrap());
    let (partial_sums, totals) = (tensor(&gpu, &[1.0]), tensor(&gpu, &[0.0; 2]));
    let window = Tensor::zeros(&gpu, "window", &[4]).unwrap();
    let state = Tensor::zeros(&gpu, "state", &[8]).unwrap();
    let log = Tensor::zeros(&gpu, "log", &[1, 4]).unwrap();
    let rec = Recording::new(&gpu);
    let (lr, bias, partial_sums, totals) = (&lr, &bias, &partial_sums, &totals);
    let inputs =
        optim::begin_step::Inputs { lr, bias, partial_sums, partials: 1, totals, window: &window, max_norm: 0.0 };
    optim::begin_step::record(&rec, inputs, &state, &log).unwrap();
    // Loss, module + 1 of a bad output, of a bad gradient, the outcome.
    for (loss, output, gradient, outcome) in [
        (f32::NAN, 0, 0, 2.0),
        (f32::NAN, 1, 0, 3.0),
        (f32::NAN, 0, 1, 4.0),
        (f32::INFINITY, 6, 9, 13.0),
        (1.0, 1, 1, 0.0),
    ] {
        totals.write(&[loss, 2.0]).unwrap();
        window.write(&[0, output, gradient, 0].map(f32::from_bits)).unwrap();
        rec.submit().await.unwrap();
        assert_eq!(log.read().await.unwrap()[3], outcome, "output {output}, gradient {gradient}");
    }
}
