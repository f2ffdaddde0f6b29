//! The cross-entropy of a language model's head over a large vocabulary, which never has all logits at once.

use std::ops::Range;

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

/// A head, some of whose classes are there at a time.
pub(crate) struct Classes<'a> {
    /// How many there are in all.
    pub count: usize,
    /// Records their logits `[rows, classes]`.
    pub forward: &'a OfClasses<'a>,
    /// Takes the gradient of these logits back; None for the loss alone. They come from the first class on.
    pub backward: Option<&'a OfClasses<'a>>,
}

/// What is done with some of them.
type OfClasses<'a> = dyn Fn(Range<usize>, &Tensor) -> Result<()> + 'a;

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

    /// Records the sum of the cross-entropy of a head's logits with `labels [rows]` over the rows whose label is not −100,
    /// added to `totals [2]` with their number, and takes its gradient back.
    ///
    /// A first sweep over the chunks makes maximum and sum of each row, a second one makes the logits again, turns them into
    /// their gradient and hands it over.
    pub fn record_sum(&self, rec: &Recording, classes: &Classes, labels: &Tensor, totals: &Tensor) -> Result<()> {
        let chunks: Vec<usize> = (0..classes.count).step_by(self.chunk).collect();
        let chunk_of = |first: usize| {
            let count = self.chunk.min(classes.count - first);
            Ok((first..first + count, self.logits.prefix(&[labels.len(), count])?))
        };
        for &first in &chunks {
            let (range, logits) = chunk_of(first)?;
            (classes.forward)(range, &logits)?;
            lm_head_stats::record(rec, &logits, labels, &self.stats, first)?;
        }
        lm_head_loss::record(rec, &self.stats, labels, totals, true, classes.count, IGNORED)?;
        let Some(backward) = classes.backward else { return Ok(()) };
        for &first in &chunks {
            let (range, logits) = chunk_of(first)?;
            if chunks.len() > 1 {
                (classes.forward)(range.clone(), &logits)?;
            }
            lm_head_grad::record(rec, labels, &self.stats, &logits, first, IGNORED)?;
            backward(range, &logits)?;
        }
        Ok(())
    }

    /// Frees the GPU memory.
    pub fn destroy(&self) {
        [&self.logits, &self.stats].iter().for_each(|tensor| tensor.destroy_storage());
    }
}
