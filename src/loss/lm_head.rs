//! The cross-entropy of a language model's head over a large vocabulary, which never has all logits at once.

use crate::base::FrozenLinear;
use crate::error::Result;
use crate::gpu::{Gpu, Recording, Tensor};
use crate::kernels::loss::{lm_head_grad, lm_head_loss, lm_head_stats};

/// The label of rows that count nothing; PyTorch's.
pub(crate) const IGNORED: i32 = -100;

/// Room for the logits of a chunk of the vocabulary, and for what is kept of all.
pub(crate) struct LmHead {
    /// Classes of a chunk.
    chunk: usize,
    /// `[rows, chunk]`
    logits: Tensor,
    /// `[rows, 3]`
    stats: Tensor,
}

/// Logits that a chunk has at most, unless it is the smallest one: 32 MiB.
const MOST_LOGITS: usize = 1 << 23;
/// A chunk is a multiple of this many classes, as a product's tile is.
const CLASSES: usize = 64;

impl LmHead {
    /// For `rows` rows, and chunks of `chunk` classes, by default as many as make 32 MiB of logits.
    pub fn new(gpu: &Gpu, rows: usize, classes: usize, chunk: Option<usize>) -> Result<LmHead> {
        let chunk = LmHead::chunk(rows, classes, chunk);
        Ok(LmHead {
            chunk,
            logits: Tensor::zeros(gpu, "logits", &[rows, chunk])?,
            stats: Tensor::zeros(gpu, "logit stats", &[rows, 3])?,
        })
    }

    /// Classes of a chunk.
    pub fn chunk(rows: usize, classes: usize, chunk: Option<usize>) -> usize {
        chunk.unwrap_or(MOST_LOGITS / rows).next_multiple_of(CLASSES).max(CLASSES).min(classes)
    }

    /// Records the sum of the cross-entropy of `hidden·Wᵀ` with `labels [rows]` over the rows whose label is not −100,
    /// added to `totals [2]` with their number, and its gradient at `hidden` into `d_hidden` where it is given.
    ///
    /// A first sweep over the chunks makes maximum and sum of each row, a second one makes the logits again, turns them into
    /// their gradient and takes it back through the weight.
    pub fn record_sum(
        &self,
        rec: &Recording,
        head: &FrozenLinear,
        hidden: &Tensor,
        labels: &Tensor,
        d_hidden: Option<&Tensor>,
        totals: &Tensor,
    ) -> Result<()> {
        let classes = head.out_features();
        let chunks: Vec<usize> = (0..classes).step_by(self.chunk).collect();
        let chunk_of = |first: usize| {
            let count = self.chunk.min(classes - first);
            Ok((first..first + count, self.logits.prefix(&[hidden.shape()[0], count])?))
        };
        for &first in &chunks {
            let (rows, logits) = chunk_of(first)?;
            head.forward_rows(rec, rows, hidden, &logits)?;
            lm_head_stats::record(rec, &logits, labels, &self.stats, first)?;
        }
        lm_head_loss::record(rec, &self.stats, labels, totals, true, classes, IGNORED)?;
        let Some(d_hidden) = d_hidden else { return Ok(()) };
        for &first in &chunks {
            let (rows, logits) = chunk_of(first)?;
            if chunks.len() > 1 {
                head.forward_rows(rec, rows.clone(), hidden, &logits)?;
            }
            lm_head_grad::record(rec, labels, &self.stats, &logits, first, IGNORED)?;
            head.backward_vocabulary(rec, rows, &logits, d_hidden, first > 0)?;
        }
        Ok(())
    }

    /// Frees the GPU memory.
    pub fn destroy(&self) {
        [&self.logits, &self.stats].iter().for_each(|tensor| tensor.destroy_storage());
    }
}
