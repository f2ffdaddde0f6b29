//! Losses.

mod lm_head;

use crate::error::{Result, show_number};
use crate::gpu::{Recording, Tensor};
use crate::kernels::loss::{bce_with_logits, cross_entropy, mean, mse};
pub(crate) use lm_head::{Classes, IGNORED, LmHead};

/// A loss over a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Loss {
    /// Mean over all elements of `(output − target)²`.
    Mse,
    /// Mean over all elements of the binary cross-entropy of a logit with a target in `[0, 1]`.
    BceWithLogits,
    /// Mean over the counted rows of the softmax cross-entropy with a class label.
    CrossEntropy {
        /// Rows with this label count nothing; PyTorch's default is −100.
        ignore_index: i32,
        /// PyTorch's `label_smoothing`, in `[0, 1]`.
        label_smoothing: f64,
    },
}

impl Loss {
    /// Its name with what it depends on.
    pub(crate) fn name(self) -> String {
        match self {
            Loss::Mse => "mse".into(),
            Loss::BceWithLogits => "bceWithLogits".into(),
            Loss::CrossEntropy { ignore_index, label_smoothing } => {
                format!("crossEntropy, ignoreIndex {ignore_index}, labelSmoothing {}", show_number(label_smoothing))
            }
        }
    }

    /// Records the *sum* of the loss with its gradient `d_output`, as `output`. `totals [2]` becomes the sum and what
    /// was counted in it; with `accumulate` both are added. `targets` has `output`'s shape, or is `[rows]` of integers.
    pub fn record_sum(
        self,
        rec: &Recording,
        output: &Tensor,
        targets: &Tensor,
        d_output: &Tensor,
        totals: &Tensor,
        accumulate: bool,
    ) -> Result<()> {
        match self {
            Loss::Mse => mse::record(rec, output, targets, d_output, totals, accumulate),
            Loss::BceWithLogits => bce_with_logits::record(rec, output, targets, d_output, totals, accumulate),
            Loss::CrossEntropy { ignore_index, label_smoothing } => {
                let smoothing = label_smoothing as f32;
                cross_entropy::record(rec, output, targets, d_output, totals, accumulate, ignore_index, smoothing)
            }
        }
    }

    /// Records the mean, `loss [1]`, with its gradient `d_output`; both 0 where nothing is counted.
    pub fn record(
        self,
        rec: &Recording,
        output: &Tensor,
        targets: &Tensor,
        d_output: &Tensor,
        loss: &Tensor,
    ) -> Result<()> {
        let totals = rec.gpu().scratch_totals()?;
        rec.all_or_nothing(|| {
            self.record_sum(rec, output, targets, d_output, &totals, false)?;
            mean::record(rec, &totals, d_output, loss)
        })
    }
}
