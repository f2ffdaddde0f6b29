//! Sums that a base shares out are added up by the adapter's kernel that follows: a dispatch less, and the same sums.

use lora_webgpu::kernels::{base, lora};
use lora_webgpu::{FrozenLinear, Gpu, LoraConfig, LoraGrad, LoraLinear, Profile, Recording, Result, Tensor};

use crate::common::{Rng, gpu_as, refused};
use crate::reference::Dims;
use crate::{SCALE, d};

/// Shapes whose sums are shared out both ways, for the adapter's kernels for few tokens and for many.
const SHAPES: &[Dims] = &[d(3, 516, 513, 3), d(65, 640, 1031, 8), d(1030, 516, 513, 17)];

/// What records something.
type Work<'a> = &'a dyn Fn(&Recording) -> Result<()>;

struct Set {
    gpu: Gpu,
    layer: LoraLinear,
    x: Tensor,
    d_output: Tensor,
    /// Random, until a forward pass overwrites it.
    h: Tensor,
    output: Tensor,
    d_input: Tensor,
}

impl Set {
    fn new(gpu: &Gpu, Dims { tokens, in_features, out_features, rank }: Dims) -> Set {
        let rng = &mut Rng(29);
        let (w, bias) = (rng.numbers(out_features * in_features), rng.numbers(out_features));
        let base = FrozenLinear::new(gpu, out_features, in_features, &w, Some(&bias)).unwrap();
        let layer = LoraLinear::new(gpu, None, base, &LoraConfig::new(rank, 16.0)).unwrap();
        layer.weight().b.write(&rng.numbers(out_features * rank)).unwrap();
        let mut tensor = |name: &str, columns| rng.tensor(gpu, name, &[tokens, columns]).0;
        Set {
            gpu: gpu.clone(),
            x: tensor("x", in_features),
            d_output: tensor("d_output", out_features),
            h: tensor("h", rank),
            output: tensor("output", out_features),
            d_input: tensor("d_input", in_features),
            layer,
        }
    }

    fn unset(&self) {
        for tensor in [&self.output, &self.d_input] {
            tensor.write(&vec![f32::NAN; tensor.len()]).unwrap();
        }
    }

    /// Submits what `work` records; how many dispatches that is.
    async fn submit(&self, work: impl FnOnce(&Recording) -> Result<()>) -> usize {
        let rec = Recording::new(&self.gpu);
        work(&rec).unwrap();
        rec.submit().await.unwrap();
        rec.dispatches()
    }

    fn forward(&self, rec: &Recording) -> Result<()> {
        self.layer.base().forward(rec, &self.x, &self.output)
    }

    fn backward(&self, rec: &Recording) -> Result<()> {
        self.layer.base().backward_input(rec, &self.d_output, &self.d_input)
    }

    fn add(&self, rec: &Recording) -> Result<()> {
        lora::fused_b_add::record(rec, &self.layer.weight().b, &self.h, &self.output, SCALE)
    }

    fn add_back(&self, rec: &Recording) -> Result<()> {
        lora::input_grad::record(rec, &self.layer.weight().a, &self.h, &self.d_input, SCALE)
    }

    async fn read(&self) -> [Vec<f32>; 2] {
        [read(&self.output).await, read(&self.d_input).await]
    }

    /// Compares `works` in one recording of `dispatches` with each in a recording of its own, which are `more`.
    async fn compare(&self, what: &str, dispatches: usize, more: usize, works: &[Work<'_>]) {
        self.unset();
        let mut apart = 0;
        for work in works {
            apart += self.submit(work).await;
        }
        let expected = self.read().await;
        assert_eq!(apart, dispatches + more, "{what}, apart");
        self.unset();
        let joined = self.submit(|rec| works.iter().try_for_each(|work| work(rec))).await;
        assert_eq!(joined, dispatches, "{what}");
        for (got, expected) in self.read().await.iter().zip(&expected) {
            assert_same(what, got, expected, self.x.shape()[0]);
        }
    }
}

async fn read(tensor: &Tensor) -> Vec<f32> {
    tensor.read().await.unwrap()
}

/// The same bits, or of the kernels for many tokens, which add the parts to the product and not the product to their sum, what
/// two orders of 32 additions may differ by: each rounds a sum that is less than four times the largest of all.
fn assert_same(what: &str, got: &[f32], expected: &[f32], tokens: usize) {
    let largest = expected.iter().fold(0f32, |largest, v| largest.max(v.abs()));
    let bound = if tokens < 1024 { 0.0 } else { 2.0 * 32.0 * 4.0 * largest * f32::EPSILON / 2.0 };
    let differs = |(a, b): (&f32, &f32)| (a - b).abs() > bound || a.is_nan() != b.is_nan();
    assert_eq!(got.iter().zip(expected).position(differs), None, "{what}");
}

#[pollster::test]
async fn a_layer_has_two_dispatches_less_than_its_base_and_its_adapter_alone() {
    let gpu = gpu_as(Profile::Hardware).await;
    for &d in SHAPES {
        let s = Set::new(&gpu, d);
        let (layer, weight, scaling) = (&s.layer, s.layer.weight(), s.layer.scaling());
        let (grad, dh) = (LoraGrad::new(&gpu, &weight).unwrap(), s.h.clone());
        let h = Tensor::zeros(&gpu, "h", s.h.shape()).unwrap();
        let base = s.submit(|rec| s.forward(rec)).await + s.submit(|rec| s.backward(rec)).await;
        assert_eq!(base, 4, "{d:?}: both sums are shared out");
        let adapter = s.submit(|rec| rec.lora_forward_fused(&weight, &s.x, &h, &s.output, scaling)).await
            + s.submit(|rec| rec.lora_backward(&weight, &s.d_output, &s.x, &h, &dh, &grad, Some(&s.d_input), scaling))
                .await;
        let expected = [&s.output, &s.d_input, &grad.a, &grad.b];

        layer.add_adapter("second", &LoraConfig::new(2, 4.0)).unwrap();
        let d_input = Tensor::from_slice(&gpu, "d_input", s.d_input.shape(), &vec![f32::NAN; s.d_input.len()]).unwrap();
        for active in [&["default"][..], &["default", "second"]] {
            layer.set_active(active).unwrap();
            let rec = Recording::new(&gpu);
            layer.grad().zero(&rec).unwrap();
            let output = layer.forward(&rec, &s.x).unwrap();
            layer.backward(&rec, &s.x, &s.d_output, Some(&d_input)).unwrap();
            rec.submit().await.unwrap();
            // The second adapter's B is zero: it adds nothing but dispatches.
            assert_eq!(rec.dispatches(), base - 2 + active.len() * adapter, "{d:?}, {active:?}");
            for (got, expected) in [&output, &d_input, &layer.grad().a, &layer.grad().b].into_iter().zip(expected) {
                let name = expected.label();
                assert_same(&format!("{d:?}, {active:?}: {name}"), &read(got).await, &read(expected).await, d.tokens);
            }
        }
    }
}

#[pollster::test]
async fn parts_are_added_up_by_what_follows_them_where_that_is_the_same() {
    let gpu = gpu_as(Profile::Hardware).await;
    for &d in SHAPES {
        let s = Set::new(&gpu, d);
        let compare = async |what: &str, dispatches, more, works: &[Work<'_>]| {
            s.compare(&format!("{d:?}, {what}"), dispatches, more, works).await
        };
        let (forward, add) = (|rec: &Recording| s.forward(rec), |rec: &Recording| s.add(rec));
        let (backward, add_back) = (|rec: &Recording| s.backward(rec), |rec: &Recording| s.add_back(rec));
        compare("forward", 2, 1, &[&forward, &add]).await;
        compare("backward", 2, 1, &[&backward, &add_back]).await;
        compare("the second time there are no parts", 3, 1, &[&forward, &add, &add]).await;

        // Not where anything is between them, nor where the sums are added to something, are others, or not all.
        compare("something between", 3, 0, &[&forward, &|rec| rec.zero(&s.d_input), &add]).await;
        compare("the other output", 6, 0, &[&backward, &forward, &add_back, &add]).await;
        let (rows, out) = (s.layer.base().kernel_rows().remove(0), d.out_features);
        let accumulated = |rec: &Recording| base::linear_t::record(rec, &rows, &s.d_output, &s.d_input, 0, true);
        compare("added to the sums", 5, 0, &[&backward, &accumulated, &add_back]).await;
        let wide = Tensor::zeros(&gpu, "wide", &[d.tokens, out + 1]).unwrap();
        let b = Rng(3).tensor(&gpu, "b", &[out + 1, d.rank]).0;
        let some = |rec: &Recording| base::linear::record(rec, &rows, None, &s.x, &wide, 1);
        let add = |rec: &Recording| lora::fused_b_add::record(rec, &b, &s.h, &wide, SCALE);
        let copy = |rec: &Recording| base::linear_t::record(rec, &rows, &wide, &s.d_input, 1, false);
        compare("some columns", 5, 0, &[&|rec| rec.zero(&wide), &some, &add, &copy]).await;
    }
}

#[pollster::test]
async fn a_call_that_fails_leaves_the_parts_and_a_recording_goes_on_after_a_submit() {
    let gpu = gpu_as(Profile::Hardware).await;
    let s = Set::new(&gpu, SHAPES[0]);
    s.submit(|rec| s.forward(rec)).await;
    let plain = read(&s.output).await;
    s.submit(|rec| s.add(rec)).await;
    let adapted = read(&s.output).await;
    assert!(plain != adapted);

    let rec = Recording::new(&gpu);
    s.forward(&rec).unwrap();
    let gone = Tensor::zeros(&gpu, "gone", s.h.shape()).unwrap();
    gone.destroy();
    let short = Tensor::zeros(&gpu, "short", &[1, s.h.shape()[1]]).unwrap();
    for (h, scale, code) in [(&gone, 1.0, "disposed"), (&short, 1.0, "shape"), (&s.h, f32::NAN, "invalid-argument")] {
        refused(code, lora::fused_b_add::record(&rec, &s.layer.weight().b, h, &s.output, scale), code, &[]);
        assert_eq!(rec.dispatches(), 2);
    }
    rec.submit().await.unwrap();
    assert!(read(&s.output).await == plain);
    // As many dispatches as were submitted, but others.
    s.add(&rec).unwrap();
    assert_eq!(rec.dispatches(), 2);
    rec.submit().await.unwrap();
    assert!(read(&s.output).await == adapted);
}
