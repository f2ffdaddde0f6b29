//! DoRA (Liu et al. 2024, arXiv 2402.09353): `output = m/‖W + s·B·A‖·(W + s·B·A)·x + bias`, the norm by rows and held constant in
//! the backward pass, as PEFT has it. A row of zeros, whose m/‖·‖ would be 0/0 and is NaN in PEFT, gives 0 and learns nothing.

use std::cell::RefCell;

use super::adapter::{Adapter, Trained};
use super::products;
use crate::base::FrozenLinear;
use crate::error::{Error, Result};
use crate::gpu::{Gpu, Recording, Tensor};
use crate::kernels::lora::dora::Inputs;
use crate::kernels::lora::{dora, dora_grad, weight_norm};

/// What its forward pass makes and its backward pass needs.
#[derive(Clone)]
pub(super) struct Dora {
    /// `[tokens, out_features]`: what is scaled.
    u: Tensor,
    /// Its gradient.
    du: Tensor,
    norm: RowNorm,
}

/// The norms of the rows of `W + s·B·A`, and what they are made of.
#[derive(Clone)]
struct RowNorm {
    /// `A·Wᵀ [rank, out_features]`
    aw: Tensor,
    /// `A·Aᵀ [rank, rank]`
    aa: Tensor,
    /// `[out_features]`
    norm: Tensor,
}

impl Dora {
    /// `u` and `du` are `[tokens, out_features]`.
    pub fn new(gpu: &Gpu, u: Tensor, du: Tensor, rank: usize, out_features: usize) -> Result<Dora> {
        Ok(Dora { u, du, norm: RowNorm::new(gpu, rank, out_features)? })
    }

    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        [&self.u, &self.du, &self.norm.aw, &self.norm.aa, &self.norm.norm].into_iter()
    }

    pub fn first_rows(&self, tokens: usize) -> Result<Dora> {
        Ok(Dora { u: self.u.first_rows(tokens)?, du: self.du.first_rows(tokens)?, norm: self.norm.clone() })
    }

    /// Records `output = bias + m/norm·(W·x + s·B·h)` over `output = W·x + bias`; where `dropped` is given it stands for `x` in
    /// what DoRA adds to the base's own output.
    #[allow(clippy::too_many_arguments)]
    pub fn forward(
        &self,
        rec: &Recording,
        base: &FrozenLinear,
        squares: &RefCell<Option<Tensor>>,
        adapter: &Adapter,
        magnitude: &Tensor,
        dropped: Option<&Tensor>,
        h: &Tensor,
        output: &Tensor,
    ) -> Result<()> {
        let squares = squares.borrow();
        let squares = squares.as_ref().ok_or_else(|| Error::disposed("the layer".into()))?;
        self.norm.record(rec, base, squares, adapter)?;
        if let Some(dropped) = dropped {
            base.forward_without_bias(rec, dropped, &self.u)?;
        }
        let inputs = Inputs { b: &adapter.weight().b, h, magnitude, norm: &self.norm.norm, bias: base.bias() };
        dora::record(rec, inputs, &self.u, output, adapter.scaling(), dropped.is_some())
    }

    /// Records what the magnitudes learn, and returns the gradient of what they scale.
    pub fn backward(&self, rec: &Recording, magnitude: &Trained, d_output: &Tensor) -> Result<&Tensor> {
        let norm = &self.norm.norm;
        dora_grad::record(rec, &magnitude.value, norm, d_output, &self.u, &magnitude.grad, &self.du)?;
        Ok(&self.du)
    }
}

impl RowNorm {
    fn new(gpu: &Gpu, rank: usize, out_features: usize) -> Result<RowNorm> {
        Ok(RowNorm {
            aw: Tensor::zeros(gpu, "A·Wᵀ", &[rank, out_features])?,
            aa: Tensor::zeros(gpu, "A·Aᵀ", &[rank, rank])?,
            norm: Tensor::zeros(gpu, "row norms", &[out_features])?,
        })
    }

    fn record(&self, rec: &Recording, base: &FrozenLinear, squares: &Tensor, adapter: &Adapter) -> Result<()> {
        let weight = adapter.weight();
        base.product(rec, &weight.a, &self.aw)?;
        products::project_a(rec, &weight.a, &weight.a, &self.aa)?;
        weight_norm::record(rec, &weight.b, squares, &self.aw, &self.aa, &self.norm, adapter.scaling())
    }
}

/// Records the norms of the rows of `W + s·B·A` into a new tensor.
pub(super) fn row_norm(
    rec: &Recording,
    base: &FrozenLinear,
    squares: &RefCell<Option<Tensor>>,
    adapter: &Adapter,
) -> Result<Tensor> {
    let squares = squares.borrow();
    let squares = squares.as_ref().ok_or_else(|| Error::disposed("the layer".into()))?;
    let norm = RowNorm::new(rec.gpu(), adapter.weight().rank(), base.out_features())?;
    norm.record(rec, base, squares, adapter)?;
    Ok(norm.norm)
}

/// Submits `magnitude = ‖W + s·B·A‖` by rows, and for the first adapter of a layer ‖W‖², which is kept in `squares`.
pub(super) fn start(
    gpu: &Gpu,
    base: &FrozenLinear,
    squares: &RefCell<Option<Tensor>>,
    adapter: &Adapter,
    magnitude: &Tensor,
) -> Result<()> {
    let rec = Recording::new(gpu);
    let mut slot = squares.borrow_mut();
    if slot.is_none() {
        let squares = Tensor::zeros(gpu, "row squares", &[base.out_features()])?;
        base.row_squares(&rec, &squares)?;
        *slot = Some(squares);
    }
    if let Some(squares) = slot.as_ref() {
        let norm =
            RowNorm { norm: magnitude.clone(), ..RowNorm::new(gpu, adapter.weight().rank(), base.out_features())? };
        norm.record(&rec, base, squares, adapter)?;
    }
    // What the GPU process may still find wrong with it, it finds in the first step again, whose promise says so.
    drop(rec.try_submit()?);
    Ok(())
}
