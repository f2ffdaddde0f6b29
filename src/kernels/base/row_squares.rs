//! ‖W‖² of each row.

use bytemuck::{Pod, Zeroable};

use super::{Rows, product};
use crate::error::{Error, Result};
use crate::gpu::{Access, Kernel, Recording, Tensor, workgroups};

/// `shaders/base/row_squares.wgsl` with each layout.
pub static KERNELS: [Kernel; 8] = product!(
    "row_squares",
    "../../../shaders/base/row_squares.wgsl",
    [("squares", Access::Write)],
    [&[("WORKGROUP", 64, 64)]; 8]
);

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    in_features: u32,
    rows: u32,
    first_square: u32,
    scale: f32,
}

/// Records `squares[first_square + row] = ‖W[row]‖²` of the `rows`, all of a weight; `squares` is a vector.
pub fn record(rec: &Recording, rows: &Rows, squares: &Tensor, first_square: usize) -> Result<()> {
    rows.check()?;
    if rows.first != 0 {
        return Err(Error::argument("rows", "a weight's rows from the first on", rows.first.to_string()));
    }
    rows.expect_room("squares", squares.len(), first_square)?;
    let params = Params {
        in_features: rows.in_features as u32,
        rows: rows.count as u32,
        first_square: first_square as u32,
        scale: rows.scale,
    };
    let kernel = rows.kernel(&KERNELS);
    let groups = workgroups(rows.count, kernel.constant(rec.gpu(), "WORKGROUP"));
    rec.dispatch(kernel, &[&rows.weight, squares], params, groups)
}
