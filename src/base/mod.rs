//! The frozen weight under an adapter, stored as small as it came.

mod kind;
mod loader;

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

pub use kind::{Packing, WeightKind, pack};
pub use loader::FrozenLoader;
pub(crate) use loader::paired_row;

use crate::error::{Error, Result};
use crate::gpu::{Gpu, Profile, Recording, Tensor, check_length};
use crate::kernels::base::{
    Bias, Rows, absmax_int8, linear, linear_gemv, linear_gemv_subgroups, linear_quad, linear_t, linear_t_gemv,
    linear_t_quad, linear_t_vec4, linear_vec4, pad_rows, row_squares, rows,
};

/// Rows of a vocabulary that the gradient of the input sums at a time: SmolLM2's last layer asks for this few.
const SUMMED_ROWS: usize = 2048;
/// The most rows that layers have, which are one sum.
const LAYER_ROWS: usize = 1 << 14;

/// A frozen linear layer `output = x·Wᵀ + bias`. Clones are the same layer.
///
/// Weights are stored as [`WeightKind`] says and unpacked in the shader, everything else is f32. A weight larger than the
/// device's buffers and bindings lies in several buffers.
#[derive(Clone)]
pub struct FrozenLinear {
    gpu: Gpu,
    kind: WeightKind,
    in_features: usize,
    out_features: usize,
    /// In order, one of them except for a weight larger than a binding; with the index of the first row of each.
    shards: Rc<[(usize, Rows)]>,
    bias: Option<Tensor>,
    /// `[tokens, ⌈in_features / 4⌉ · 4]`: the input, where it is not used as it is.
    input: Rc<RefCell<Option<Tensor>>>,
}

impl FrozenLinear {
    /// Uploads `weight [out_features, in_features]` in f32 and, where there is one, `bias [out_features]`.
    /// [`FrozenLoader`] takes the other kinds, and weights piece by piece.
    ///
    /// # Errors
    /// [`Shape`](crate::error::ErrorKind::Shape) where a length differs, [`Limit`](crate::error::ErrorKind::Limit) above the device's limits.
    pub fn new(
        gpu: &Gpu,
        out_features: usize,
        in_features: usize,
        weight: &[f32],
        bias: Option<&[f32]>,
    ) -> Result<FrozenLinear> {
        let mut loader = FrozenLoader::new(gpu, WeightKind::F32, out_features, in_features)?;
        check_length("weight", (out_features * in_features) as u64, weight.len())?;
        if let Some(bias) = bias {
            loader.set_bias(bias)?;
        }
        loader.write(0, bytemuck::cast_slice(weight))?;
        loader.finish()
    }

    /// A layer in f32 over tensors that are on the GPU already. They belong to the layer: [`FrozenLinear::destroy`] frees them.
    pub fn from_tensors(weight: Tensor, bias: Option<Tensor>) -> Result<FrozenLinear> {
        let [out_features, in_features] = weight.matrix("weight")?;
        if let Some(bias) = &bias {
            bias.expect_shape("bias", &[out_features])?;
        }
        let gpu = weight.gpu().clone();
        let layout = WeightKind::F32.layout(in_features);
        let rows = Rows { layout, weight, in_features, first: 0, count: out_features, scale: 1.0 };
        rows.check()?;
        let input = Rc::default();
        Ok(FrozenLinear {
            gpu,
            kind: WeightKind::F32,
            in_features,
            out_features,
            shards: [(0, rows)].into(),
            bias,
            input,
        })
    }

    /// The same layer with another bias `[out_features]`.
    pub(crate) fn with_bias(&self, bias: Tensor) -> FrozenLinear {
        FrozenLinear { bias: Some(bias), ..self.clone() }
    }

    /// How the weight is stored.
    pub fn kind(&self) -> WeightKind {
        self.kind
    }

    /// The bias `[out_features]`, if there is one.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// Number of columns of `W`.
    pub fn in_features(&self) -> usize {
        self.in_features
    }

    /// Number of rows of `W`.
    pub fn out_features(&self) -> usize {
        self.out_features
    }

    /// Bytes of GPU memory of weight and bias.
    pub fn bytes(&self) -> u64 {
        self.shards.iter().map(|(_, rows)| rows.weight.bytes()).chain(self.bias.iter().map(Tensor::bytes)).sum()
    }

    /// Number of buffers that the weight lies in.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    pub(crate) fn expect_gpu(&self, gpu: &Gpu) -> Result<()> {
        self.shards.iter().try_for_each(|(_, rows)| rows.weight.expect_gpu(gpu))
    }

    /// The weight `[out_features, in_features]` where it is in f32 and in one buffer.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) where it is not.
    pub fn f32_weight(&self) -> Result<&Tensor> {
        match &*self.shards {
            [(_, rows)] if self.kind == WeightKind::F32 => Ok(&rows.weight),
            _ => Err(Error::argument("base", "a weight in f32 and one buffer", self.kind.name())),
        }
    }

    /// The weight where adapters can be merged into it, in f32 or f16 as [`Rows`] has them and in one buffer.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) where it is not.
    pub(crate) fn mergeable(&self) -> Result<&Tensor> {
        match &*self.shards {
            [(_, rows)] if matches!(self.kind, WeightKind::F32 | WeightKind::F16) => Ok(&rows.weight),
            _ => {
                let expected = "a weight in f32 or f16 and one buffer: merge into such a copy of the model";
                Err(Error::argument("base", expected, self.kind.name()))
            }
        }
    }

    /// The weight as kernels take it: for tests of single kernels.
    #[doc(hidden)]
    pub fn kernel_rows(&self) -> Vec<Rows> {
        self.shards.iter().map(|(_, rows)| rows.clone()).collect()
    }

    /// Records `output = x·Wᵀ + bias`: `x [tokens, in_features]`; overwrites `output [tokens, out_features]`.
    pub fn forward(&self, rec: &Recording, x: &Tensor, output: &Tensor) -> Result<()> {
        self.record_forward(rec, 0..self.out_features, self.bias(), x, output, self.int8_activations())
    }

    /// Records `output = x·Wᵀ`.
    pub(crate) fn forward_without_bias(&self, rec: &Recording, x: &Tensor, output: &Tensor) -> Result<()> {
        self.record_forward(rec, 0..self.out_features, None, x, output, self.int8_activations())
    }

    /// Records `output = A·Wᵀ` of a weight `A [rows, in_features]`, which is taken as it is where activations are quantised.
    pub(crate) fn product(&self, rec: &Recording, a: &Tensor, output: &Tensor) -> Result<()> {
        self.record_forward(rec, 0..self.out_features, None, a, output, false)
    }

    /// Records the columns `rows` of `x·Wᵀ + bias`, those of these rows of W: overwrites `output [tokens, rows]`.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for a range that is empty or not within `0..out_features`, [`Shape`](crate::error::ErrorKind::Shape).
    pub fn forward_rows(&self, rec: &Recording, rows: Range<usize>, x: &Tensor, output: &Tensor) -> Result<()> {
        self.record_forward(rec, rows, self.bias(), x, output, self.int8_activations())
    }

    /// Records `d_input = d_output·W`: `d_output [tokens, out_features]`; overwrites `d_input [tokens, in_features]`.
    pub fn backward_input(&self, rec: &Recording, d_output: &Tensor, d_input: &Tensor) -> Result<()> {
        self.backward_input_rows(rec, 0..self.out_features, d_output, d_input, false)
    }

    /// Records `d_input = d_output·W` of these rows of W alone, `d_output [tokens, rows]`, or with `accumulate` adds that to
    /// `d_input`.
    ///
    /// # Errors
    /// As [`FrozenLinear::forward_rows`].
    pub fn backward_input_rows(
        &self,
        rec: &Recording,
        rows: Range<usize>,
        d_output: &Tensor,
        d_input: &Tensor,
        accumulate: bool,
    ) -> Result<()> {
        let most = if rows.len() > LAYER_ROWS { SUMMED_ROWS } else { LAYER_ROWS };
        self.record_backward_input(rec, rows, d_output, d_input, accumulate, most)
    }

    /// The same for rows of a vocabulary, however few they are.
    pub(crate) fn backward_vocabulary(
        &self,
        rec: &Recording,
        rows: Range<usize>,
        d_output: &Tensor,
        d_input: &Tensor,
        accumulate: bool,
    ) -> Result<()> {
        self.record_backward_input(rec, rows, d_output, d_input, accumulate, SUMMED_ROWS)
    }

    /// One sum over a whole vocabulary would round away what each row adds: `most` rows are summed at a time.
    fn record_backward_input(
        &self,
        rec: &Recording,
        rows: Range<usize>,
        d_output: &Tensor,
        d_input: &Tensor,
        accumulate: bool,
        most: usize,
    ) -> Result<()> {
        let [tokens, _] = d_output.matrix("d_output")?;
        let parts = self.parts(&rows)?;
        d_output.expect_shape("d_output", &[tokens, rows.len()])?;
        d_input.expect_shape("d_input", &[tokens, self.in_features])?;
        let record = match (tokens, rec.gpu().profile()) {
            (1, _) => linear_t_gemv::record,
            (_, Profile::Hardware) => linear_t::record,
            _ if linear_t_quad::suits(rec.gpu(), &self.shards[0].1, tokens) => linear_t_quad::record,
            (_, Profile::Software) => linear_t_vec4::record,
        };
        rec.all_or_nothing(|| {
            let mut more = accumulate;
            for (first, part) in &parts {
                for start in (0..part.count).step_by(most) {
                    let count = most.min(part.count - start);
                    let some = Rows { first: part.first + start, count, ..part.clone() };
                    record(rec, &some, d_output, d_input, first + start - rows.start, more)?;
                    more = true;
                }
            }
            Ok(())
        })
    }

    /// Records `output[t] = W[ids[t]]`: `ids [tokens]` of integers; overwrites `output [tokens, in_features]`. An id that is
    /// no row gives NaN.
    pub fn embed(&self, rec: &Recording, ids: &Tensor, output: &Tensor) -> Result<()> {
        rec.all_or_nothing(|| {
            self.shards
                .iter()
                .try_for_each(|(first, part)| rows::record(rec, part, ids, output, *first, self.out_features))
        })
    }

    /// A copy of the weight `[out_features, in_features]` in f32, submitted.
    pub(crate) fn to_f32(&self, label: &str) -> Result<Tensor> {
        let copy = Tensor::zeros(&self.gpu, label, &[self.out_features, self.in_features])?;
        let all: Vec<i32> = (0..self.out_features as i32).collect();
        let rec = Recording::new(&self.gpu);
        let ids = Tensor::integers(&self.gpu, label, &[self.out_features], Some(&all))?;
        self.embed(&rec, &ids, &copy)?;
        // What the GPU process may still find wrong with it, it finds in the first step again, whose promise says so.
        drop(rec.try_submit()?);
        ids.destroy_storage();
        Ok(copy)
    }

    /// Records `squares[row] = ‖W[row]‖²`, `squares [out_features]`.
    pub(crate) fn row_squares(&self, rec: &Recording, squares: &Tensor) -> Result<()> {
        self.shards.iter().try_for_each(|(first, part)| row_squares::record(rec, part, squares, *first))
    }

    fn record_forward(
        &self,
        rec: &Recording,
        rows: Range<usize>,
        bias: Option<&Tensor>,
        x: &Tensor,
        output: &Tensor,
        int8: bool,
    ) -> Result<()> {
        let [tokens, _] = x.matrix("x")?;
        let parts = self.parts(&rows)?;
        x.expect_shape("x", &[tokens, self.in_features])?;
        output.expect_shape("output", &[tokens, rows.len()])?;
        let by_quads = |rec: &Recording, rows: &Rows, bias: Option<Bias>, x: &Tensor, output: &Tensor, first| {
            linear_quad::record(rec, rows, bias, x, output, first, false)
        };
        let record = match (tokens, rec.gpu().profile()) {
            (1, _) if linear_gemv_subgroups::suits(rec.gpu(), &self.shards[0].1) => linear_gemv_subgroups::record,
            (1, _) => linear_gemv::record,
            (_, Profile::Hardware) => linear::record,
            _ if linear_quad::suits(rec.gpu(), &self.shards[0].1, tokens) => by_quads,
            (_, Profile::Software) => linear_vec4::record,
        };
        rec.all_or_nothing(|| {
            let x = self.input(rec, x, int8)?;
            for (first, part) in &parts {
                let bias = bias.map(|bias| Bias { bias, first: *first });
                record(rec, part, bias, &x, output, first - rows.start)?;
            }
            Ok(())
        })
    }

    fn int8_activations(&self) -> bool {
        matches!(self.kind, WeightKind::BitLinear { int8_activations: true, .. })
    }

    /// `x` as kernels take it, in whole vectors of four; with `int8`, quantised.
    fn input(&self, rec: &Recording, x: &Tensor, int8: bool) -> Result<Tensor> {
        if !int8 && self.in_features.is_multiple_of(4) {
            return Ok(x.clone());
        }
        let [tokens, _] = x.matrix("x")?;
        let mut slot = self.input.borrow_mut();
        let input = match slot.as_ref() {
            Some(input) if input.shape()[0] >= tokens && !input.has_failed() => input.first_rows(tokens)?,
            _ => {
                let shape = [tokens, self.in_features.next_multiple_of(4)];
                slot.insert(Tensor::zeros(&self.gpu, "input", &shape)?).clone()
            }
        };
        match int8 {
            true => absmax_int8::record(rec, x, &input)?,
            false => pad_rows::record(rec, x, &input)?,
        }
        Ok(input)
    }

    /// These rows by shards, with the index of the first of each.
    fn parts(&self, rows: &Range<usize>) -> Result<Vec<(usize, Rows)>> {
        if rows.is_empty() || rows.end > self.out_features {
            let expected = format!("a range within 0..{}", self.out_features);
            return Err(Error::argument("rows", &expected, format!("{}..{}", rows.start, rows.end)));
        }
        let part = |(first, shard): &(usize, Rows)| {
            let start = rows.start.max(*first);
            let end = rows.end.min(first + shard.count);
            (start < end).then(|| (start, Rows { first: start - first, count: end - start, ..shard.clone() }))
        };
        Ok(self.shards.iter().filter_map(part).collect())
    }

    /// Frees the GPU memory, for clones too.
    pub fn destroy(&self) {
        self.shards.iter().map(|(_, rows)| &rows.weight).chain(&self.bias).for_each(Tensor::destroy);
        if let Some(input) = self.input.take() {
            input.destroy_storage();
        }
    }
}
