//! Losses with their gradients, in the same recording: sums over what is counted, so that the micro-batches of one step add
//! up; `mean` divides.

pub mod bce_with_logits;
pub mod cross_entropy;
pub mod lm_head_grad;
pub mod lm_head_loss;
pub mod lm_head_stats;
pub mod mean;
pub mod mse;
pub mod total;

/// Elements that one invocation of an elementwise loss takes, unless there are more than there is room for sums.
const ELEMENTS: usize = 8;
