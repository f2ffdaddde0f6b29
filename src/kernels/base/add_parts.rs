//! Sums that are shared out among more workgroups than they have results: each makes a part of a sum, and the parts are added up in
//! a fixed order.

use bytemuck::{Pod, Zeroable};

use crate::error::{Error, Result};
use crate::gpu::{Access, Kernel, Recording, Tensor, elementwise};

const EACH: usize = 2;
/// Terms that are not worth sharing out.
const LEAST: usize = 128;

/// `shaders/base/add_parts.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "base/add_parts",
    source: &[wgsl!("../../../shaders/base/add_parts.wgsl")],
    buffers: &[("parts", Access::Read), ("output", Access::Write)],
    constants: &[("WORKGROUP", 256, 64)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    len: u32,
    parts: u32,
    width: u32,
    columns: u32,
    first_column: u32,
    accumulate: u32,
}

/// Where sums go: some columns of `output [.., columns]`.
#[derive(Clone, Copy)]
pub struct Sums<'a> {
    /// The matrix.
    pub output: &'a Tensor,
    /// Its width.
    pub columns: usize,
    /// The first column that they go to.
    pub first_column: usize,
    /// How many columns these are.
    pub width: usize,
    /// Whether they are added to what is there.
    pub accumulate: bool,
}

impl<'a> Sums<'a> {
    /// All of `output`.
    pub fn all_of(output: &'a Tensor) -> Sums<'a> {
        let columns = output.len();
        Sums { output, columns, first_column: 0, width: columns, accumulate: false }
    }

    /// Added to all of `output`.
    pub fn added_to(output: &'a Tensor) -> Sums<'a> {
        Sums { accumulate: true, ..Sums::all_of(output) }
    }

    fn len(&self) -> usize {
        self.output.len() / self.columns * self.width
    }
}

/// Records `sums = Σ parts`, or with [`Sums::accumulate`] adds that: `parts [parts, rows · width]`.
pub fn record(rec: &Recording, parts: &Tensor, sums: Sums) -> Result<()> {
    let [count, _] = parts.matrix("parts")?;
    let Sums { output, columns, first_column, width, accumulate } = sums;
    let end = first_column.saturating_add(width);
    if width == 0 || end > columns || !output.len().is_multiple_of(columns) {
        return Err(Error::shape("output", format!("columns {first_column} to {end}"), columns.to_string()));
    }
    parts.expect_shape("parts", &[count, sums.len()])?;
    let params = Params {
        len: sums.len() as u32,
        parts: count as u32,
        width: width as u32,
        columns: columns as u32,
        first_column: first_column as u32,
        accumulate: accumulate.into(),
    };
    let groups = elementwise(sums.len(), EACH * KERNEL.constant(rec.gpu(), "WORKGROUP"));
    rec.dispatch(&KERNEL, &[parts, output], params, groups)
}

/// Records by `record` one dispatch that adds to all of `output`: to what is there, or in its place to the sum of so many parts, in
/// their order. They are those that were recorded last to be added up to all of `output`; that dispatch is dropped.
pub(in crate::kernels) fn record_onto(
    rec: &Recording,
    output: &Tensor,
    record: impl FnOnce(u32, Option<&Tensor>) -> Result<()>,
) -> Result<()> {
    let Some((parts, count)) = parts_of(rec, output) else { return record(0, None) };
    record(count, Some(&parts))?;
    rec.drop_last_but_one();
    Ok(())
}

/// The parts that all of `output` is the sum of, by what was recorded last, and how many there are.
fn parts_of(rec: &Recording, output: &Tensor) -> Option<(Tensor, u32)> {
    let (tensors, params) = rec.last(&KERNEL)?;
    let Params { parts: count, width, columns, accumulate, .. } = bytemuck::pod_read_unaligned(&params);
    match &tensors[..] {
        [parts, sums] if sums.is(output) && width == columns && accumulate == 0 => Some((parts.clone(), count)),
        _ => None,
    }
}

/// How many of `terms` go into each part, so that `tiles` of them are `enough` workgroups: all, or a number divisible by 16.
fn part(terms: usize, tiles: usize, enough: usize) -> usize {
    terms.div_ceil((enough / tiles).min(terms / LEAST).max(1)).next_multiple_of(16).min(terms)
}

/// Makes `sums` over `terms` by what `record` records in `tiles` workgroups. Where `enough` of them are needed to fill a GPU, the
/// terms are shared out: `record` gets a matrix of as many parts to overwrite, and the number of terms of each, divisible by 16.
pub(in crate::kernels) fn record_sums(
    rec: &Recording,
    sums: Sums,
    terms: usize,
    tiles: usize,
    enough: usize,
    record: impl Fn(Sums, usize) -> Result<()>,
) -> Result<()> {
    let part = part(terms, tiles, enough);
    if part == terms {
        return record(sums, terms);
    }
    let parts = rec.gpu().scratch_sums([terms.div_ceil(part), sums.len()])?;
    rec.all_or_nothing(|| {
        record(Sums { output: &parts, columns: sums.width, first_column: 0, accumulate: false, ..sums }, part)?;
        self::record(rec, &parts, sums)
    })
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::{Sums, record};
    use crate::error::{Error, Result};
    use crate::gpu::{Gpu, GpuRequest, Recording, Tensor};
    use crate::kernels::lora::fused_b_add;

    #[pollster::test]
    async fn what_fails_leaves_the_sums_of_parts_that_were_recorded_before_it() {
        let gpu = Gpu::request(GpuRequest::default()).await.unwrap();
        let rec = Recording::new(&gpu);
        let tensor = |shape: &[usize], value: f32| {
            Tensor::from_slice(&gpu, "given", shape, &vec![value; shape.iter().product()]).unwrap()
        };
        let (b, h) = (tensor(&[5, 2], 1.0), tensor(&[4, 2], 1.0));
        let (parts, output) = (tensor(&[3, 20], 10.0), tensor(&[4, 5], f32::NAN));
        let sum = || record(&rec, &parts, Sums::all_of(&output));
        let add = || fused_b_add::record(&rec, &b, &h, &output, 0.5);
        let fail = || -> Result<()> { Err(Error::unsupported("a failure".into())) };
        let result = async |dispatches, expected: f32| {
            assert_eq!(rec.dispatches(), dispatches);
            rec.submit().await.unwrap();
            assert_eq!(output.read().await.unwrap(), [expected; 20]);
        };

        sum().unwrap();
        rec.all_or_nothing(|| add().and_then(|()| fail())).unwrap_err();
        result(1, 30.0).await;
        // What is recorded within may be spared; then it is gone with the rest.
        rec.all_or_nothing(|| {
            rec.zero(&output)?;
            rec.all_or_nothing(sum)?;
            add()?;
            assert_eq!(rec.dispatches(), 2);
            fail()
        })
        .unwrap_err();
        result(1, 30.0).await;
        // One within another keeps what the other began with, and the other what was there before.
        rec.all_or_nothing(|| rec.all_or_nothing(|| add().and_then(|()| fail())).or(Ok(()))).unwrap();
        result(1, 30.0).await;
        rec.all_or_nothing(|| sum().and_then(|()| rec.all_or_nothing(add)).and_then(|()| fail())).unwrap_err();
        result(1, 30.0).await;
        // The same number of dispatches as were submitted last, but another.
        add().unwrap();
        result(1, 31.0).await;
    }
}
