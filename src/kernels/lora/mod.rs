//! The adapter: the six products of the forward and backward pass, and what composes them.

pub mod add_scaled;
pub mod bias_add;
pub mod bias_grad;
pub mod dora;
pub mod dora_grad;
pub mod dora_tiled;
pub mod dropout;
pub mod dropout_vec4;
pub mod find_non_finite;
pub mod fused_b_add;
pub mod fused_b_add_tiled;
pub mod grad_a;
pub mod grad_a_tiled;
pub mod grad_b;
pub mod grad_b_dh;
pub mod grad_b_dh_sums;
pub mod grad_b_tiled;
pub mod grad_dh;
pub mod grad_dh_gemv;
pub mod grad_dh_tiled;
pub mod input_grad;
pub mod input_grad_tiled;
pub mod merge;
pub mod merge_f16;
pub mod project_a;
pub mod project_a_gemv;
pub mod project_a_subgroups;
pub mod project_a_tiled;
pub mod project_b;
pub mod save_activation;
pub mod scale_rows;
pub mod weight_norm;

use crate::error::{Error, Result, show_number};
use crate::gpu::{Profile, Recording};

/// A scalar that reaches a kernel must be finite: NaN would spread through everything it touches.
pub(crate) fn finite(name: &str, value: f32) -> Result<f32> {
    if value.is_finite() { Ok(value) } else { Err(Error::argument(name, "a finite number", show_number(value.into()))) }
}

/// Workgroups of kernels that share tokens out which fill a GPU.
const ENOUGH: usize = 768;

/// Whether the kernels for many tokens are the ones to choose: they do more at a time, and take a microsecond longer to begin.
fn many(rec: &Recording, tokens: usize) -> bool {
    rec.gpu().profile() == Profile::Hardware && tokens >= 1024
}

/// The same of products whose inner dimension is long: with few tokens it is shared out.
fn many_or_long(rec: &Recording, tokens: usize, inner: usize) -> bool {
    many(rec, if inner < 1536 { tokens } else { tokens.max(1024) })
}

/// Workgroups of a product of a thin result that are worth having: each goes through 512 columns or more.
fn shares(tiles: usize, inner: usize) -> usize {
    (tiles * (inner / 512)).min(256)
}
