//! Frozen weights of every kind: against f64, finite differences and other writers' bytes; in pieces, in shards, in rows.

#[path = "kernels/base_file.rs"]
mod base_file;
mod common;
mod reference;

use base_file::File;
use common::files::{self, given, list};
use common::tolerance::{Expected, assert_close, exact, products};
use common::{PROFILES, Rng, bits, f64s, gpu, gpu_as, refused, say};
use lora_webgpu::kernels::base::Layout;
use lora_webgpu::{
    FrozenLinear, FrozenLoader, Gpu, GpuRequest, LoraConfig, LoraLinear, Packing, Recording, Tensor, WeightKind, pack,
};
use reference::base::{self as equations, Ternary};
use reference::lora::{Old, lora_backward, lora_forward};
use reference::{Dims, Sum, values};
use wasm_bindgen_test::{wasm_bindgen_test, wasm_bindgen_test_configure};

wasm_bindgen_test_configure!(run_in_browser);

const ALL: u64 = u64::MAX;
const I2S: WeightKind = WeightKind::BitLinear { packing: Packing::I2S, int8_activations: false };
const TRANSFORMERS: WeightKind = WeightKind::BitLinear { packing: Packing::Transformers, int8_activations: false };

fn dims(tokens: usize, file: &File) -> Dims {
    Dims { tokens, in_features: file.columns, out_features: file.rows, rank: 1 }
}

/// The layer of a file, with a bias where there is one, in buffers of at most `max_bytes`, from pieces of so many bytes.
fn layer(gpu: &Gpu, file: &File, bias: Option<&[f32]>, max_bytes: u64, piece: usize) -> FrozenLinear {
    let mut loader = file.loader(gpu, max_bytes).unwrap();
    if let Some(bias) = bias {
        loader.set_bias(bias).unwrap();
    }
    for (i, bytes) in file.bytes.chunks(piece).enumerate() {
        loader.write((i * piece) as u64, bytes).unwrap();
    }
    loader.finish().unwrap()
}

fn unset(gpu: &Gpu, name: &str, rows: usize, columns: usize) -> Tensor {
    Tensor::from_slice(gpu, name, &[rows, columns], &vec![f32::NAN; rows * columns]).unwrap()
}

/// Output and d_input of one batch.
async fn both_ways(gpu: &Gpu, layer: &FrozenLinear, x: &Tensor, d_output: &Tensor) -> [Vec<f32>; 2] {
    let tokens = x.shape()[0];
    let (output, d_input) =
        (unset(gpu, "output", tokens, layer.out_features()), unset(gpu, "d_input", tokens, layer.in_features()));
    let rec = Recording::new(gpu);
    layer.forward(&rec, x, &output).unwrap();
    layer.backward_input(&rec, d_output, &d_input).unwrap();
    rec.submit().await.unwrap();
    [output.read().await.unwrap(), d_input.read().await.unwrap()]
}

/// One token and several, with and without a bias, on both kinds of device; and every piece size gives the same bits.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn every_kind_agrees_both_ways_and_in_pieces_of_any_size() {
    for profile in PROFILES {
        let gpu = gpu_as(profile).await;
        for layout in Layout::ALL {
            for (tokens, rows, columns) in [(1, 37, 67), (5, 33, 128), (3, 8, 5), (1, 4, 320)] {
                let rng = &mut Rng(7);
                let file = File::random(layout, rows, columns, rng);
                let d = dims(tokens, &file);
                let bias = rng.numbers(d.out_features);
                let (x, x_values) = rng.tensor(&gpu, "x", &[tokens, d.in_features]);
                let (d_output, d_output_values) = rng.tensor(&gpu, "d_output", &[tokens, d.out_features]);
                let mut first: Option<[Vec<f32>; 2]> = None;
                for piece in [usize::MAX, 1, 7, 1000] {
                    let layer = layer(&gpu, &file, Some(&bias), ALL, piece.min(file.bytes.len()));
                    let found = both_ways(&gpu, &layer, &x, &d_output).await;
                    if let Some(first) = &first {
                        for (a, b) in first.iter().zip(&found) {
                            assert_eq!(bits(a), bits(b), "{layout:?} in pieces of {piece}");
                        }
                    } else {
                        let name = format!("{layout:?} for {profile:?} at {d:?}");
                        let forward = equations::linear(d, &file.values, Some(&f64s(&bias)), &x_values);
                        assert_close(&name, &found[0], &products(&forward));
                        let transposed = equations::linear_t(d, &file.values, &d_output_values);
                        assert_close(&name, &found[1], &products(&transposed));
                        first = Some(found);
                    }
                    layer.destroy();
                }
            }
        }
    }
}

/// The forward pass has the same bits in any number of buffers.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn shards_change_nothing() {
    for profile in PROFILES {
        let gpu = gpu_as(profile).await;
        for layout in Layout::ALL {
            for tokens in [1, 6, 20] {
                let rng = &mut Rng(8);
                let file = File::random(layout, 40, 160, rng);
                let d = dims(tokens, &file);
                let bias = rng.numbers(d.out_features);
                let (x, _) = rng.tensor(&gpu, "x", &[tokens, d.in_features]);
                let (d_output, d_output_values) = rng.tensor(&gpu, "d_output", &[tokens, d.out_features]);
                let whole = layer(&gpu, &file, Some(&bias), ALL, 977);
                let expected = both_ways(&gpu, &whole, &x, &d_output).await;
                let row = layout.row_bytes(d.in_features) as u64;
                for (max_bytes, shards) in [(row, 40), (7 * row + 15, 6), (39 * row, 2)] {
                    let parts = layer(&gpu, &file, Some(&bias), max_bytes, 977);
                    let name = format!("{layout:?} for {profile:?}, {tokens} tokens in {shards} shards");
                    assert_eq!((parts.shards(), parts.bytes()), (shards, whole.bytes()), "{name}");
                    let found = both_ways(&gpu, &parts, &x, &d_output).await;
                    assert_eq!(bits(&found[0]), bits(&expected[0]), "{name}");
                    assert_close(&name, &found[1], &products(&equations::linear_t(d, &file.values, &d_output_values)));
                    parts.destroy();
                }
                whole.destroy();
            }
        }
    }
}

/// A vocabulary in chunks, across the shards: their columns are the whole's, and their gradients add up to it.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn rows_are_parts_of_the_whole() {
    for profile in PROFILES {
        let gpu = gpu_as(profile).await;
        for layout in Layout::ALL {
            for (tokens, max_rows) in [(1, 40), (6, 40), (20, 40), (1, 9), (6, 9), (20, 9)] {
                let rng = &mut Rng(9);
                let file = File::random(layout, 40, 96, rng);
                let d = dims(tokens, &file);
                let max_bytes = max_rows * layout.row_bytes(d.in_features) as u64;
                let bias = rng.numbers(d.out_features);
                let layer = layer(&gpu, &file, Some(&bias), max_bytes, 1 << 20);
                let (x, _) = rng.tensor(&gpu, "x", &[tokens, d.in_features]);
                let (d_output, d_output_values) = rng.tensor(&gpu, "d_output", &[tokens, d.out_features]);
                let whole = both_ways(&gpu, &layer, &x, &d_output).await;
                let name = format!("{layout:?} for {profile:?}, {tokens} tokens, {max_rows} rows a shard");

                let d_input = unset(&gpu, "d_input", tokens, d.in_features);
                let rec = Recording::new(&gpu);
                let mut outputs = Vec::new();
                for (i, rows) in [0..13, 13..14, 14..40].into_iter().enumerate() {
                    let columns = |values: &[f64]| -> Vec<f32> {
                        let rows = rows.clone();
                        values.chunks(d.out_features).flat_map(|v| &v[rows.clone()]).map(|v| *v as f32).collect()
                    };
                    let part = columns(&d_output_values);
                    let part = Tensor::from_slice(&gpu, "part", &[tokens, rows.len()], &part).unwrap();
                    let output = unset(&gpu, "output", tokens, rows.len());
                    layer.forward_rows(&rec, rows.clone(), &x, &output).unwrap();
                    layer.backward_input_rows(&rec, rows.clone(), &part, &d_input, i > 0).unwrap();
                    outputs.push((output, columns(&f64s(&whole[0]))));
                }
                rec.submit().await.unwrap();
                for (output, expected) in outputs {
                    assert_eq!(bits(&output.read().await.unwrap()), bits(&expected), "{name}");
                }
                let sums = equations::linear_t(d, &file.values, &d_output_values);
                assert_close(&name, &d_input.read().await.unwrap(), &products(&sums));

                let rec = Recording::new(&gpu);
                let small = unset(&gpu, "output", tokens, 3);
                for rows in [3..3, 38..41, 40..43, usize::MAX - 3..usize::MAX] {
                    let what = layer.forward_rows(&rec, rows.clone(), &x, &small);
                    refused("rows", what, "invalid-argument", &["rows", "0..40"]);
                    let what = layer.backward_input_rows(&rec, rows, &small, &x, true);
                    refused("rows", what, "invalid-argument", &["rows", "0..40"]);
                }
                refused("output", layer.forward_rows(&rec, 3..7, &x, &small), "shape", &["output", "4", "3"]);
                assert_eq!(rec.dispatches(), 0);
                layer.destroy();
            }
        }
    }
}

/// Every bit that the format defines, from every shard; ids that are no rows give NaN.
/// What each row of a large vocabulary adds to the input's gradient is not lost in the sum of those before it.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn a_sum_over_many_rows_keeps_its_bits() {
    let (rows, columns, tokens) = (40_000, 32, 2);
    let rng = &mut Rng(31);
    let positive = |v: &f32| v.abs() + 0.5;
    let weight: Vec<f32> = rng.numbers(rows * columns).iter().map(positive).collect();
    let d: Vec<f32> = rng.numbers(tokens * rows).iter().map(positive).collect();
    for profile in PROFILES {
        let gpu = gpu_as(profile).await;
        for kind in [WeightKind::F32, WeightKind::Q8_0] {
            let mut loader = FrozenLoader::new(&gpu, kind, rows, columns).unwrap();
            let packed = pack(kind, &weight).unwrap();
            loader.write(0, &packed).unwrap();
            let layer = loader.finish().unwrap();
            let read = match kind {
                WeightKind::F32 => weight.clone(),
                _ => common::gguf::dequantize(8, &packed),
            };
            let d_output = Tensor::from_slice(&gpu, "d_output", &[tokens, rows], &d).unwrap();
            let d_input = unset(&gpu, "d_input", tokens, columns);
            let rec = Recording::new(&gpu);
            layer.backward_input(&rec, &d_output, &d_input).unwrap();
            rec.submit().await.unwrap();
            let got = d_input.read().await.unwrap();
            let mut worst = 0.0f64;
            for (t, token) in d.chunks(rows).enumerate() {
                for column in 0..columns {
                    let sum: f64 =
                        (0..rows).map(|row| f64::from(token[row]) * f64::from(read[row * columns + column])).sum();
                    worst = worst.max((f64::from(got[t * columns + column]) / sum - 1.0).abs());
                }
            }
            say(&format!("{profile:?} {kind:?}: a sum of {rows} positive products is off by {worst:.1e} of itself"));
            assert!(worst < 2e-6, "{profile:?} {kind:?}: {worst:e}");
            layer.destroy();
        }
    }
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn embeddings_are_rows_of_the_weight() {
    for profile in PROFILES {
        let gpu = gpu_as(profile).await;
        for layout in Layout::ALL {
            for (columns, max_rows) in [(64, 40), (64, 7), (37, 7)] {
                let file = File::random(layout, 40, columns, &mut Rng(10));
                let max_bytes = max_rows * layout.row_bytes(file.columns) as u64;
                let layer = layer(&gpu, &file, None, max_bytes, 1 << 20);
                let ids = [0, 39, 7, 6, 8, 39, 13, 14, 40, -1, i32::MIN, i32::MAX];
                let (count, good) = (ids.len(), 8);
                let tensor = Tensor::integers(&gpu, "ids", &[count], Some(&ids)).unwrap();
                let output = Tensor::zeros(&gpu, "output", &[count, file.columns]).unwrap();
                let rec = Recording::new(&gpu);
                layer.embed(&rec, &tensor, &output).unwrap();
                rec.submit().await.unwrap();
                let found = output.read().await.unwrap();
                let rows: Vec<usize> = ids[..good].iter().map(|id| *id as usize).collect();
                let expected = equations::rows(dims(1, &file), &file.values, &rows);
                let name = format!("{layout:?} for {profile:?} of {columns} columns, {max_rows} rows a shard");
                // Of blocks with an offset and of ternary weights the last product may round.
                let exactly: Vec<Expected> = match layout {
                    Layout::Q4_1 | Layout::Ternary => products(&expected),
                    _ => exact(&values(&expected)),
                };
                assert_close(&name, &found[..good * file.columns], &exactly);
                assert!(found[good * file.columns..].iter().all(|v| v.is_nan()), "{name}: ids that are no rows");
                layer.destroy();
            }
        }
    }
}

/// d_input is the gradient of Σ d_output·output, of every kind: by central differences in single inputs.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn the_input_gradient_agrees_with_finite_differences() {
    let gpu = gpu().await;
    for layout in Layout::ALL {
        for tokens in [1, 3] {
            let rng = &mut Rng(11);
            let file = File::random(layout, 24, 64, rng);
            let d = dims(tokens, &file);
            let layer = layer(&gpu, &file, None, ALL, 1 << 20);
            let x = rng.numbers(tokens * d.in_features);
            let (d_output, weights) = rng.tensor(&gpu, "d_output", &[tokens, d.out_features]);
            let direction = rng.numbers(x.len());
            let moved = async |step: f32| {
                let at: Vec<f32> = x.iter().zip(&direction).map(|(x, d)| x + step * d).collect();
                let at = Tensor::from_slice(&gpu, "x", &[tokens, d.in_features], &at).unwrap();
                let [output, d_input] = both_ways(&gpu, &layer, &at, &d_output).await;
                (output.iter().zip(&weights).map(|(y, w)| f64::from(*y) * w).sum::<f64>(), d_input)
            };
            // A linear function: the step may be large.
            let ((up, d_input), (down, _)) = (moved(1.0).await, moved(-1.0).await);
            let slope: f64 = d_input.iter().zip(&direction).map(|(g, d)| f64::from(*g) * f64::from(*d)).sum();
            let scale: f64 = d_input.iter().zip(&direction).map(|(g, d)| (f64::from(*g) * f64::from(*d)).abs()).sum();
            assert!(((up - down) / 2.0 - slope).abs() <= 1e-3 * scale, "{layout:?}: {} {slope}", (up - down) / 2.0);
            assert!(slope.abs() > 1e-3 * scale, "{layout:?}: nothing is proved by {slope}");
            layer.destroy();
        }
    }
}

/// Half-precision numbers of every exponent, subnormal ones most of all.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn every_half_is_read_and_rounded_right() {
    let halves: Vec<u16> = (0..=u16::MAX).filter(|bits| bits >> 10 & 31 != 31).collect();
    let floats: Vec<f32> = halves.iter().map(|bits| equations::half(*bits) as f32).collect();
    let bytes: Vec<u8> = halves.iter().flat_map(|bits| bits.to_le_bytes()).collect();
    assert_eq!(pack(WeightKind::F16, &floats).unwrap(), bytes);
    for profile in PROFILES {
        let gpu = gpu_as(profile).await;
        let columns = 256;
        let rows = halves.len() / columns;
        let mut loader = FrozenLoader::new(&gpu, WeightKind::F16, rows, columns).unwrap();
        loader.write(0, &bytes).unwrap();
        let layer = loader.finish().unwrap();
        let ids: Vec<i32> = (0..rows as i32).collect();
        let ids = Tensor::integers(&gpu, "ids", &[rows], Some(&ids)).unwrap();
        let output = unset(&gpu, "output", rows, columns);
        let rec = Recording::new(&gpu);
        layer.embed(&rec, &ids, &output).unwrap();
        rec.submit().await.unwrap();
        for ((found, expected), bits) in output.read().await.unwrap().iter().zip(&floats).zip(&halves) {
            assert_eq!(found, expected, "{bits:04x} for {profile:?}");
        }
    }
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn packing_rounds_to_nearest_and_half_to_even() {
    let half = |v: f32| u16::from_le_bytes(pack(WeightKind::F16, &[v]).unwrap().try_into().unwrap());
    let brain = |v: f32| u16::from_le_bytes(pack(WeightKind::Bf16, &[v]).unwrap().try_into().unwrap());
    // Of neighbouring halves, the middle goes to the even one, and what is past it to the nearer one.
    for bits in (0..0x7bffu16).step_by(7) {
        let (low, high) = (equations::half(bits) as f32, equations::half(bits + 1) as f32);
        let middle = low + (high - low) / 2.0;
        let even = if bits.is_multiple_of(2) { bits } else { bits + 1 };
        let below = f32::from_bits(middle.to_bits() - 1);
        let above = f32::from_bits(middle.to_bits() + 1);
        for (value, expected) in [(middle, even), (below, bits), (above, bits + 1)] {
            assert_eq!(half(value), expected, "{value:e}");
            assert_eq!(half(-value), 0x8000 | expected, "{value:e}");
        }
    }
    for (value, expected) in [
        (65504.0, 0x7bff),
        (65519.99, 0x7bff),
        (65520.0, 0x7c00),
        (1e9, 0x7c00),
        (f32::INFINITY, 0x7c00),
        (f32::NEG_INFINITY, 0xfc00),
        (2f32.powi(-25), 0),
        (2f32.powi(-25) * 1.0001, 1),
        (1e-30, 0),
        (-0.0, 0x8000),
    ] {
        assert_eq!(half(value), expected, "{value:e}");
    }
    assert!(half(f32::NAN) & 0x7fff > 0x7c00 && brain(f32::NAN) & 0x7fff > 0x7f80);
    assert!(brain(f32::from_bits(0x7fff_ffff)) & 0x7fff > 0x7f80, "a NaN whose bits round up to infinity");
    for (value, expected) in [
        (0x3f80_8000, 0x3f80),
        (0x3f80_8001, 0x3f81),
        (0x3f81_8000, 0x3f82),
        (0x3f81_7fff, 0x3f81),
        (0xbf80_8001, 0xbf81),
        (0x7f7f_ffff, 0x7f80),
        (0x0000_8001, 0x0001),
    ] {
        assert_eq!(brain(f32::from_bits(value)), expected, "{value:08x}");
    }
    refused("q8_0", pack(WeightKind::Q8_0, &[0.0; 33]), "shape", &["32", "33"]);
    for kind in [WeightKind::Q4_0, WeightKind::Q4_1, I2S] {
        refused("read only", pack(kind, &[0.0; 128]), "invalid-argument", &["kind", kind.name()]);
    }
    assert_eq!(pack(WeightKind::Q8_0, &[0.0; 32]).unwrap(), [0; 34]);
}

/// 8-bit activations: as the kernel's f64 reference, then the product.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn quantised_activations_agree_and_their_gradient_goes_straight_through() {
    for profile in PROFILES {
        let gpu = gpu_as(profile).await;
        for (tokens, rows, columns) in [(1, 12, 256), (5, 8, 128), (3, 8, 70)] {
            let rng = &mut Rng(12);
            let mut file = File::random(Layout::Ternary, rows, columns, rng);
            let plain = layer(&gpu, &file, None, ALL, 1 << 20);
            if let WeightKind::BitLinear { int8_activations, .. } = &mut file.kind {
                *int8_activations = true;
            }
            let quantised = layer(&gpu, &file, None, ALL, 1 << 20);
            let d = dims(tokens, &file);
            let x = rng.numbers(tokens * columns);
            let quantised_x = values(&equations::absmax_int8(columns, &x));
            let x = Tensor::from_slice(&gpu, "x", &[tokens, columns], &x).unwrap();
            let (d_output, _) = rng.tensor(&gpu, "d_output", &[tokens, file.rows]);
            let [output, d_input] = both_ways(&gpu, &quantised, &x, &d_output).await;
            let [other, straight] = both_ways(&gpu, &plain, &x, &d_output).await;
            let mut sums = equations::linear(d, &file.values, None, &quantised_x);
            sums.iter_mut().for_each(|sum| sum.extra += 7.0 * sum.abs); // of the way back from 8 bits
            assert_close(&format!("{d:?} for {profile:?}"), &output, &products(&sums));
            assert_ne!(bits(&output), bits(&other));
            assert_eq!(bits(&d_input), bits(&straight));
        }
    }
}

/// Where a large GPU has enough to do, hardware's products are made by wide tiles, their sums in parts, and a wrong one is seen.
#[cfg(not(target_arch = "wasm32"))]
#[pollster::test]
async fn many_results_are_made_by_wide_tiles() {
    let [tokens, width] = [1024, 1024];
    let mut rng = Rng(7);
    let file = File::random(Layout::F32, width, width, &mut rng);
    let [x, d_output] = [(); 2].map(|()| rng.numbers(tokens * width));
    let run = async |wrong: Option<&str>| {
        let gpu = common::fresh_gpu(Some(lora_webgpu::Profile::Hardware)).await;
        if let Some(name) = wrong {
            let kernel = lora_webgpu::kernels::all().find(|kernel| kernel.name == name).unwrap();
            gpu.replace_shader(name, kernel.text().replace("params.scale * sums", "2.0 * params.scale * sums"));
        }
        let layer = layer(&gpu, &file, None, ALL, 1 << 20);
        let [x, d_output] = [&x, &d_output].map(|v| Tensor::from_slice(&gpu, "given", &[tokens, width], v).unwrap());
        both_ways(&gpu, &layer, &x, &d_output).await
    };
    let some = |of: &[f32]| -> Vec<f32> {
        [0, 127, 128, 300, 511].iter().flat_map(|t| &of[t * width..][..width]).copied().collect()
    };
    let d = dims(5, &file);
    let expected = [
        products(&equations::linear(d, &file.values, None, &f64s(&some(&x)))),
        products(&equations::linear_t(d, &file.values, &f64s(&some(&d_output)))),
    ];
    let found = run(None).await;
    for ((name, found), expected) in ["output", "d_input"].iter().zip(&found).zip(&expected) {
        assert_close(name, &some(found), expected);
    }
    for (i, wrong) in ["base/linear_wide_f32", "base/linear_t_wide_f32"].into_iter().enumerate() {
        let changed = run(Some(wrong)).await;
        assert_eq!(changed[i], found[i].iter().map(|v| 2.0 * v).collect::<Vec<_>>(), "{wrong} was not used");
        assert_eq!(bits(&changed[1 - i]), bits(&found[1 - i]), "{wrong}: the other");
    }
}

/// By the features of hardware: with subgroups they add up the product for one token, but of weights in 4 bits, with f16 weights
/// in f16 are read as such, with the same bits; without them the plain kernels do it.
#[cfg(not(target_arch = "wasm32"))]
#[pollster::test]
async fn features_choose_the_kernels() {
    let run = async |layout, tokens, plain, wrong: &str| {
        let mut rng = Rng(3);
        let file = File::random(layout, 68, 127, &mut rng);
        let request = GpuRequest { profile: Some(lora_webgpu::Profile::Hardware), plain, ..Default::default() };
        let gpu = Gpu::request(request).await.unwrap();
        let has = gpu.optional_features();
        assert_eq!([has.subgroups, has.subgroup_ids, has.f16], [!plain; 3], "natively every adapter has them");
        let kernel = lora_webgpu::kernels::all().find(|kernel| kernel.name == wrong);
        if let Some(kernel) = kernel {
            gpu.replace_shader(wrong, kernel.text().replace("params.scale *", "2.0 * params.scale *"));
        }
        let layer = layer(&gpu, &file, None, ALL, 1 << 20);
        let (x, x_values) = rng.tensor(&gpu, "x", &[tokens, file.columns]);
        let (d_output, d_output_values) = rng.tensor(&gpu, "d_output", &[tokens, file.rows]);
        let found = both_ways(&gpu, &layer, &x, &d_output).await;
        if kernel.is_none() {
            let d = dims(tokens, &file);
            let name = format!("{layout:?}, {tokens} tokens, plain: {plain}");
            assert_close(&name, &found[0], &products(&equations::linear(d, &file.values, None, &x_values)));
            assert_close(&name, &found[1], &products(&equations::linear_t(d, &file.values, &d_output_values)));
        }
        found
    };
    for layout in Layout::ALL {
        let name = format!("{layout:?}").to_lowercase().replace("f32any", "f32_any");
        let half = layout == Layout::F16;
        let by_subgroups = !matches!(layout, Layout::Q4_0 | Layout::Q4_1);
        // Tokens, which of both ways, the kernel without features, the kernel with them.
        for (tokens, way, without, with) in [
            (1, 0, "linear_gemv", if by_subgroups { "linear_gemv_subgroups" } else { "linear_gemv" }),
            (3, 0, "linear", if half { "linear_half" } else { "linear" }),
            (3, 1, "linear_t", if half { "linear_t_half" } else { "linear_t" }),
        ] {
            let right = [run(layout, tokens, true, "").await, run(layout, tokens, false, "").await];
            if tokens > 1 {
                assert_eq!(bits(&right[0][way]), bits(&right[1][way]), "{without} of {name}");
            }
            for (i, chosen) in [without, with].into_iter().enumerate() {
                let wrong = if chosen.ends_with("half") { chosen.into() } else { format!("{chosen}_{name}") };
                let wrong = run(layout, tokens, i == 0, &format!("base/{wrong}")).await;
                let twice: Vec<f32> = right[i][way].iter().map(|v| 2.0 * v).collect();
                assert_eq!(bits(&wrong[way]), bits(&twice), "{chosen} of {name} was not used");
            }
        }
    }
}

/// Every f16, subnormal ones most of all, by products with a unit matrix: what reads them as such reads the same.
#[cfg(not(target_arch = "wasm32"))]
#[pollster::test]
async fn every_half_is_the_same_in_both_tiles() {
    let bytes: Vec<u8> = (0..=u16::MAX).filter(|bits| bits >> 10 & 31 != 31).flat_map(u16::to_le_bytes).collect();
    let (rows, columns) = (bytes.len() / 2 / 64, 64);
    let unit = |n: usize| -> Vec<f32> { (0..n * n).map(|i| f32::from(i % (n + 1) == 0)).collect() };
    let floats: Vec<f32> =
        bytes.chunks(2).map(|pair| equations::half(u16::from_le_bytes([pair[0], pair[1]])) as f32).collect();
    for plain in [true, false] {
        let request = GpuRequest { profile: Some(lora_webgpu::Profile::Hardware), plain, ..Default::default() };
        let gpu = Gpu::request(request).await.unwrap();
        let mut loader = FrozenLoader::new(&gpu, WeightKind::F16, rows, columns).unwrap();
        loader.write(0, &bytes).unwrap();
        let layer = loader.finish().unwrap();
        let x = Tensor::from_slice(&gpu, "x", &[columns, columns], &unit(columns)).unwrap();
        let d_output = Tensor::from_slice(&gpu, "d_output", &[rows, rows], &unit(rows)).unwrap();
        let (output, d_input) = (unset(&gpu, "output", columns, rows), unset(&gpu, "d_input", rows, columns));
        let rec = Recording::new(&gpu);
        layer.forward(&rec, &x, &output).unwrap();
        layer.backward_input(&rec, &d_output, &d_input).unwrap();
        rec.submit().await.unwrap();
        let (output, d_input) = (output.read().await.unwrap(), d_input.read().await.unwrap());
        for (i, value) in floats.iter().enumerate() {
            let transposed = output[i % columns * rows + i / columns];
            assert_eq!([transposed, d_input[i]], [*value; 2], "{i}, plain: {plain}");
        }
    }
}

// ── bytes of other writers ──

/// PyTorch's products of ternary weights in transformers' packing.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn golden_bitlinear() {
    let gpu = gpu().await;
    if !given("bitlinear/").await {
        return;
    }
    let mut compared = 0;
    for path in list().await.iter().filter(|path| path.starts_with("bitlinear/")) {
        let file = files::File::read(path).await;
        let [tokens, columns] = *<&[usize; 2]>::try_from(file.shape("x")).unwrap();
        let [_, rows] = *<&[usize; 2]>::try_from(file.shape("dY")).unwrap();
        let scale = file.number("scale");
        let codes: Vec<u8> = file.tensor("packed").iter().map(|v| *v as u8).collect();
        let weight = equations::weight_ternary(&codes, Ternary::Transformers, rows, columns, scale);
        let named: Vec<f64> = file.tensor("ternary").iter().map(|v| scale * f64::from(*v)).collect();
        assert_eq!(weight, named, "{path}: the reference's unpacking");
        let d = Dims { tokens, in_features: columns, out_features: rows, rank: 1 };
        let [x, d_output] = ["x", "dY"].map(|name| f64s(file.tensor(name)));
        let quantised = values(&equations::absmax_int8(columns, file.tensor("x")));
        for int8_activations in [false, true] {
            let kind = WeightKind::BitLinear { packing: Packing::Transformers, int8_activations };
            let mut loader = FrozenLoader::new(&gpu, kind, rows, columns).unwrap();
            loader.set_scale(scale as f32).unwrap();
            loader.write(0, &codes).unwrap();
            let layer = loader.finish().unwrap();
            let upload = |name, columns| Tensor::from_slice(&gpu, name, &[tokens, columns], file.tensor(name)).unwrap();
            let [output, d_input] = both_ways(&gpu, &layer, &upload("x", columns), &upload("dY", rows)).await;
            let (name, x) = if int8_activations { ("y_int8_activations", &quantised) } else { ("y", &x) };
            for (name, found, mut sums) in [
                (name, output, equations::linear(d, &weight, None, x)),
                ("dX", d_input, equations::linear_t(d, &weight, &d_output)),
            ] {
                // The scale is one of f32 here and of f64 there, the file's numbers are rounded, and 8 bits have a way back.
                sums.iter_mut().for_each(|sum| sum.extra += 9.0 * sum.abs);
                let golden = f64s(file.tensor(name));
                let expected = golden.iter().zip(products(&sums)).map(|(value, e)| Expected { value: *value, ..e });
                assert_close(&format!("{path} {name}"), &found, &expected.collect::<Vec<_>>());
                compared += 1;
            }
        }
    }
    say(&format!("golden bitlinear/ {compared} tensors compared"));
    assert!(compared > 0);
}

/// Weights that the `gguf` package and numpy packed, with what they stand for: see tests/golden/make_blocks.py.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn golden_blocks() {
    let gpu = gpu().await;
    if !given("blocks/").await {
        return;
    }
    let mut compared = 0;
    for path in list().await.iter().filter(|path| path.starts_with("blocks/")) {
        let file = files::File::read(path).await;
        let [rows, columns] = *<&[usize; 2]>::try_from(file.shape("weight")).unwrap();
        for (name, kind) in [
            ("f16", WeightKind::F16),
            ("bf16", WeightKind::Bf16),
            ("q8_0", WeightKind::Q8_0),
            ("q4_0", WeightKind::Q4_0),
            ("q4_1", WeightKind::Q4_1),
            ("i2_s", I2S),
            ("transformers", TRANSFORMERS),
        ] {
            if !file.has(name) {
                continue;
            }
            let bytes: Vec<u8> = file.tensor(name).iter().map(|v| *v as u8).collect();
            if matches!(kind, WeightKind::F16 | WeightKind::Bf16 | WeightKind::Q8_0) {
                assert_eq!(pack(kind, file.tensor("weight")).unwrap(), bytes, "{path} {name}: our packing");
            }
            let mut loader = FrozenLoader::new(&gpu, kind, rows, columns).unwrap();
            if kind == TRANSFORMERS {
                loader.set_scale(file.number("scale") as f32).unwrap();
            }
            loader.write(0, &bytes).unwrap();
            let layer = loader.finish().unwrap();
            let ids: Vec<i32> = (0..rows as i32).collect();
            let ids = Tensor::integers(&gpu, "ids", &[rows], Some(&ids)).unwrap();
            let output = unset(&gpu, "output", rows, columns);
            let rec = Recording::new(&gpu);
            layer.embed(&rec, &ids, &output).unwrap();
            rec.submit().await.unwrap();
            let meant = f64s(file.tensor(&format!("{name}_values")));
            let expected: Vec<Expected> =
                meant.iter().map(|v| Expected { value: *v, bound: v.abs() / (1u64 << 23) as f64 }).collect();
            assert_close(&format!("{path} {name}"), &output.read().await.unwrap(), &expected);
            compared += 1;
        }
    }
    say(&format!("golden blocks/ {compared} tensors compared"));
    assert!(compared > 0);
}

// ── adapters on every base ──

/// A LoRA layer on each kind: the output and d_input are the base's and the adapter's.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn an_adapter_sits_on_every_kind() {
    let gpu = gpu().await;
    for layout in Layout::ALL {
        for tokens in [1, 4] {
            let rng = &mut Rng(13);
            let file = File::random(layout, 20, 64, rng);
            let d = Dims { rank: 3, ..dims(tokens, &file) };
            let base = layer(&gpu, &file, None, ALL, 1 << 20);
            let lora = LoraLinear::new(&gpu, Some("layer"), base, &LoraConfig::new(3, 5.25)).unwrap();
            let (a, b) = (rng.numbers(3 * d.in_features), rng.numbers(d.out_features * 3));
            lora.weight().a.write(&a).unwrap();
            lora.weight().b.write(&b).unwrap();
            let (x, x_values) = rng.tensor(&gpu, "x", &[tokens, d.in_features]);
            let (d_output, d_output_values) = rng.tensor(&gpu, "d_output", &[tokens, d.out_features]);
            let d_input = unset(&gpu, "d_input", tokens, d.in_features);
            let rec = Recording::new(&gpu);
            let output = lora.forward(&rec, &x).unwrap();
            lora.backward(&rec, &x, &d_output, Some(&d_input)).unwrap();
            rec.submit().await.unwrap();
            let (a, b) = (f64s(&a), f64s(&b));
            // The base's own sum is one term of the adapter's.
            let along = |sums: &[Sum], base: &[Sum]| -> Vec<Expected> {
                let whole = |(s, b): (&Sum, &Sum)| Sum { abs: s.abs + b.abs, terms: s.terms + b.terms, ..*s };
                products(&sums.iter().zip(base).map(whole).collect::<Vec<_>>())
            };
            let base = equations::linear(d, &file.values, None, &x_values);
            let sums = lora_forward(d, &a, &b, &x_values, &values(&base), 1.75);
            assert_close(&format!("{layout:?}"), &output.read().await.unwrap(), &along(&sums, &base));
            let base = equations::linear_t(d, &file.values, &d_output_values);
            let old = Old { d_a: vec![0.0; a.len()], d_b: vec![0.0; b.len()], d_input: values(&base) };
            let sums = lora_backward(d, &a, &b, &x_values, &d_output_values, &old, 1.75).d_input;
            assert_close(&format!("{layout:?}"), &d_input.read().await.unwrap(), &along(&sums, &base));
            lora.destroy();
        }
    }
}

// ── bad input ──

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn what_does_not_fit_is_refused_by_name() {
    let gpu = gpu().await;
    let loader = |kind, rows, columns| FrozenLoader::new(&gpu, kind, rows, columns);
    for kind in [WeightKind::Q8_0, WeightKind::Q4_0, WeightKind::Q4_1] {
        for columns in [31, 33, 0] {
            refused("a block", loader(kind, 4, columns), "shape", &["in_features", "32", kind.name()]);
        }
    }
    refused("i2_s", loader(I2S, 4, 64), "shape", &["in_features", "128", "64"]);
    refused("transformers", loader(TRANSFORMERS, 6, 64), "shape", &["out_features", "4", "6"]);
    for (rows, columns) in [(0, 4), (4, 0), (4, usize::MAX), (usize::MAX, usize::MAX)] {
        for kind in [WeightKind::F32, WeightKind::Bf16] {
            let error = loader(kind, rows, columns).err().unwrap();
            assert!(["shape", "limit"].contains(&error.code()), "{error}");
        }
    }
    let narrow = FrozenLoader::with_limit(&gpu, WeightKind::F32, 4, 64, 255);
    refused("a row", narrow, "limit", &["row", "256", "255"]);
    let many = FrozenLoader::with_limit(&gpu, WeightKind::F32, 4097, 64, 256);
    refused("too many parts", many, "limit", &["the weight", "1048832", "1048576"]);

    // Bytes: none, too few, too many, out of order.
    let bytes = [1; 2 * 34];
    let write = |offset, count: usize| {
        let mut loader = loader(WeightKind::Q8_0, 2, 32).unwrap();
        loader.write(offset, &bytes[..count]).map(|()| loader)
    };
    refused("nothing", write(0, 0).unwrap().finish(), "shape", &["weight", "68", "0"]);
    refused("truncated", write(0, 67).unwrap().finish(), "shape", &["weight", "68", "67"]);
    refused("a gap", write(1, 34), "shape", &["weight", "from 0", "from 1"]);
    let mut whole = write(0, 68).unwrap();
    refused("more", whole.write(68, &[0]), "shape", &["weight", "68"]);
    refused("again", whole.write(0, &bytes), "shape", &["weight", "68"]);
    refused("far", whole.write(u64::MAX, &bytes), "shape", &["weight", "68"]);
    whole.finish().unwrap();

    // Ternary: code 3 anywhere, no scale, a bad scale.
    for (kind, at) in [(I2S, 63), (I2S, 0), (TRANSFORMERS, 77), (TRANSFORMERS, 127)] {
        for shift in [0, 2, 4, 6] {
            let mut bytes = vec![0b01_10_00_01; 128];
            bytes[at] |= 3 << shift;
            let mut loader = loader(kind, 4, 128).unwrap();
            refused("code 3", loader.write(0, &bytes), "invalid-argument", &["weight", "code 3"]);
        }
    }
    let good = [0b01_10_00_01; 128];
    let mut ternary = loader(TRANSFORMERS, 4, 128).unwrap();
    ternary.write(0, &good).unwrap();
    refused("no scale", ternary.finish(), "invalid-argument", &["scale"]);
    let mut ternary = loader(TRANSFORMERS, 4, 128).unwrap();
    refused("nan", ternary.set_scale(f32::NAN), "invalid-argument", &["scale"]);
    refused("its own", loader(I2S, 4, 128).unwrap().set_scale(1.0), "invalid-argument", &["scale"]);
    refused("none", loader(WeightKind::F32, 4, 4).unwrap().set_scale(1.0), "invalid-argument", &["scale"]);
    let mut own = loader(I2S, 4, 128).unwrap();
    own.write(0, &good).unwrap();
    refused("half a scale", own.finish(), "shape", &["weight", "132", "128"]);
    let mut own = loader(I2S, 4, 128).unwrap();
    own.write(0, &good).unwrap();
    refused("an infinite scale", own.write(128, &f32::INFINITY.to_le_bytes()), "invalid-argument", &["scale"]);
    refused("bias", loader(WeightKind::F32, 4, 4).unwrap().set_bias(&[0.0; 3]), "shape", &["bias", "4", "3"]);

    // A weight that is neither in f32 nor in f16 cannot take an adapter in.
    let mut half = loader(WeightKind::Bf16, 4, 4).unwrap();
    half.write(0, &[0; 32]).unwrap();
    let lora = LoraLinear::new(&gpu, None, half.finish().unwrap(), &LoraConfig::new(2, 2.0)).unwrap();
    refused("merge", lora.merge(false), "invalid-argument", &["base", "f32", "f16"]);

    // Other tensors than a weight's.
    let frozen = FrozenLinear::new(&gpu, 4, 4, &[1.0; 16], None).unwrap();
    let rec = Recording::new(&gpu);
    let floats = Tensor::zeros(&gpu, "ids", &[3]).unwrap();
    let output = Tensor::zeros(&gpu, "output", &[3, 4]).unwrap();
    refused("ids", frozen.embed(&rec, &floats, &output), "invalid-argument", &["ids", "int32", "float32"]);
    let ids = Tensor::integers(&gpu, "ids", &[3], None).unwrap();
    let narrow = Tensor::zeros(&gpu, "output", &[3, 3]).unwrap();
    refused("output", frozen.embed(&rec, &ids, &narrow), "shape", &["output", "4", "3"]);
    frozen.destroy();
    refused("destroyed", frozen.embed(&rec, &ids, &output), "disposed", &["weight"]);
    assert_eq!(rec.dispatches(), 0);
}

/// What a loader allocated is freed with it.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn a_loader_that_is_dropped_leaves_nothing() {
    let gpu = gpu().await;
    let before = gpu.memory();
    for max_bytes in [ALL, 3 * 128] {
        let mut loader = FrozenLoader::with_limit(&gpu, WeightKind::Bf16, 40, 64, max_bytes).unwrap();
        loader.write(0, &[0; 1000]).unwrap();
        assert_eq!(gpu.memory().bytes, before.bytes + 40 * 128);
        drop(loader);
        assert_eq!(gpu.memory(), before);
    }
}
