//! ‖W‖² of each row.

use bytemuck::{Pod, Zeroable};

use crate::error::{Error, Result};
use crate::gpu::{Access, Kernel, Recording, Tensor, workgroups};

/// `shaders/lora/row_squares.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/row_squares",
    source: wgsl!("../../../shaders/lora/row_squares.wgsl"),
    buffers: &[("weight", Access::Read), ("squares", Access::Write)],
    constants: &[("WORKGROUP", 64, 64)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    rows: u32,
    features: u32,
    first_row: u32,
}

/// Records `squares[first_row + row] = ‖weight[row]‖²` for the rows of `weight [rows, features]`; `squares` is a vector.
pub fn record(rec: &Recording, weight: &Tensor, squares: &Tensor, first_row: usize) -> Result<()> {
    let [rows, features] = weight.matrix("weight")?;
    if first_row.checked_add(rows).is_none_or(|end| end > squares.len()) {
        let got = format!("{rows} from {first_row} on");
        return Err(Error::shape("weight", format!("rows for {} squares", squares.len()), got));
    }
    let params = Params { rows: rows as u32, features: features as u32, first_row: first_row as u32 };
    rec.dispatch(&KERNEL, &[weight, squares], params, workgroups(rows, KERNEL.constant(rec.gpu(), "WORKGROUP")))
}
