//! The adapter's products: the kernels of their own, or where quads of invocations share what they load, those of the base.

use crate::error::Result;
use crate::gpu::{Recording, Tensor};
use crate::kernels::base::{Layout, Rows, linear_quad, linear_t_quad};
use crate::kernels::lora;

/// A matrix as a weight in f32, where the base's products can take it. Those look for enough columns only, and take any scale:
/// what is exact here is checked here.
fn rows(name: &str, matrix: &Tensor, scale: f32) -> Result<Rows> {
    let [count, in_features] = matrix.matrix(name)?;
    let layout = if in_features.is_multiple_of(4) { Layout::F32 } else { Layout::F32Any };
    Ok(Rows { layout, weight: matrix.clone(), in_features, first: 0, count, scale: lora::finite("scale", scale)? })
}

/// Records `h = x·Aᵀ`.
pub(crate) fn project_a(rec: &Recording, a: &Tensor, x: &Tensor, h: &Tensor) -> Result<()> {
    let rows = rows("a", a, 1.0)?;
    let [tokens, _] = x.matrix("x")?;
    x.expect_shape("x", &[tokens, rows.in_features])?;
    h.expect_shape("h", &[tokens, rows.count])?;
    match linear_quad::suits(rec.gpu(), &rows, tokens) {
        true => linear_quad::record(rec, &rows, None, x, h, 0, false),
        false => lora::project_a::record(rec, a, x, h),
    }
}

/// Records `output += scale·(h·Bᵀ)`.
pub(crate) fn fused_b_add(rec: &Recording, b: &Tensor, h: &Tensor, output: &Tensor, scale: f32) -> Result<()> {
    let rows = rows("b", b, scale)?;
    let [tokens, _] = h.matrix("h")?;
    h.expect_shape("h", &[tokens, rows.in_features])?;
    output.expect_shape("output", &[tokens, rows.count])?;
    match linear_quad::suits(rec.gpu(), &rows, tokens) {
        true => linear_quad::record(rec, &rows, None, h, output, 0, true),
        false => lora::fused_b_add::record(rec, b, h, output, scale),
    }
}

/// Records `d_b += scale·d_outputᵀ·h`.
pub(crate) fn grad_b(rec: &Recording, d_output: &Tensor, h: &Tensor, d_b: &Tensor, scale: f32) -> Result<()> {
    let rows = rows("h", h, scale)?;
    let [out_features, rank] = d_b.matrix("d_b")?;
    d_output.expect_shape("d_output", &[rows.count, out_features])?;
    h.expect_shape("h", &[rows.count, rank])?;
    match linear_t_quad::suits(rec.gpu(), &rows, rows.count) {
        true => linear_t_quad::record_transposed(rec, &rows, d_output, d_b, 0, true),
        false => lora::grad_b::record(rec, d_output, h, d_b, scale),
    }
}

/// Records `dh = d_output·B`.
fn grad_dh(rec: &Recording, b: &Tensor, d_output: &Tensor, dh: &Tensor) -> Result<()> {
    let rows = rows("b", b, 1.0)?;
    let [tokens, _] = d_output.matrix("d_output")?;
    d_output.expect_shape("d_output", &[tokens, rows.count])?;
    dh.expect_shape("dh", &[tokens, rows.in_features])?;
    match linear_t_quad::suits(rec.gpu(), &rows, tokens) {
        true => linear_t_quad::record(rec, &rows, d_output, dh, 0, false),
        false => lora::grad_dh::record(rec, b, d_output, dh),
    }
}

/// Records `d_b += scale·d_outputᵀ·h` and `dh = d_output·B`.
pub(crate) fn grad_b_and_dh(
    rec: &Recording,
    b: &Tensor,
    d_output: &Tensor,
    h: &Tensor,
    d_b: &Tensor,
    dh: &Tensor,
    scale: f32,
) -> Result<()> {
    let ([out_features, rank], [tokens, _]) = (b.matrix("b")?, d_output.matrix("d_output")?);
    if lora::grad_b_dh::suits(rec.gpu(), tokens, out_features, rank) {
        return lora::grad_b_dh::record(rec, b, d_output, h, d_b, dh, scale);
    }
    grad_b(rec, d_output, h, d_b, scale)?;
    grad_dh(rec, b, d_output, dh)
}

/// Records `d_a += scale·dhᵀ·x`.
pub(crate) fn grad_a(rec: &Recording, dh: &Tensor, x: &Tensor, d_a: &Tensor, scale: f32) -> Result<()> {
    let rows = rows("x", x, scale)?;
    let ([tokens, _], [rank, in_features]) = (dh.matrix("dh")?, d_a.matrix("d_a")?);
    dh.expect_shape("dh", &[tokens, rank])?;
    x.expect_shape("x", &[tokens, in_features])?;
    match linear_t_quad::suits(rec.gpu(), &rows, rows.count) {
        true => linear_t_quad::record_transposed(rec, &rows, dh, d_a, 0, true),
        false => lora::grad_a::record(rec, dh, x, d_a, scale),
    }
}

/// Records `d_input += scale·(dh·A)`.
pub(crate) fn input_grad(rec: &Recording, a: &Tensor, dh: &Tensor, d_input: &Tensor, scale: f32) -> Result<()> {
    let rows = rows("a", a, scale)?;
    let [tokens, _] = dh.matrix("dh")?;
    dh.expect_shape("dh", &[tokens, rows.count])?;
    d_input.expect_shape("d_input", &[tokens, rows.in_features])?;
    match linear_t_quad::suits(rec.gpu(), &rows, tokens) {
        true => linear_t_quad::record(rec, &rows, dh, d_input, 0, true),
        false => lora::input_grad::record(rec, a, dh, d_input, scale),
    }
}
