//! The frozen base: products with a weight that lies in GPU memory in one of several [`Layout`]s, forward, transposed, by rows.
//!
//! A kernel is two WGSL files joined: `weight_<layout>.wgsl`, which binds the weight and reads four columns of a row as floats,
//! and the product, which does not know how they are stored. Its name is `base/<product>_<layout>`.

pub mod absmax_int8;
pub mod add_parts;
pub mod linear;
pub mod linear_gemv;
pub mod linear_gemv_subgroups;
pub mod linear_grad;
pub mod linear_half;
pub mod linear_quad;
pub mod linear_t;
pub mod linear_t_gemv;
pub mod linear_t_half;
pub mod linear_t_quad;
pub mod linear_t_vec4;
pub mod linear_t_wide;
pub mod linear_vec4;
pub mod linear_wide;
pub mod pad_rows;
pub mod row_squares;
pub mod rows;

use crate::error::{Error, Result};
use crate::gpu::{DType, Kernel, Tensor};

/// How a weight lies in GPU memory: `shaders/base/weight_<layout>.wgsl`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Floats, in_features divisible by 4.
    F32,
    /// Floats.
    F32Any,
    /// Half precision.
    F16,
    /// The upper halves of floats.
    Bf16,
    /// {−1, 0, 1} in two bits.
    Ternary,
    /// GGUF's blocks of 32 in 8 bits and a factor.
    Q8_0,
    /// GGUF's blocks of 32 in 4 bits and a factor.
    Q4_0,
    /// GGUF's blocks of 32 in 4 bits, a factor and an offset.
    Q4_1,
}

impl Layout {
    /// All of them, in the order of the products' `KERNELS`.
    pub const ALL: [Layout; 8] = [
        Layout::F32,
        Layout::F32Any,
        Layout::F16,
        Layout::Bf16,
        Layout::Ternary,
        Layout::Q8_0,
        Layout::Q4_0,
        Layout::Q4_1,
    ];

    /// Bytes of one row of `in_features`.
    pub const fn row_bytes(self, in_features: usize) -> usize {
        match self {
            Layout::F32 | Layout::F32Any => 4 * in_features,
            Layout::F16 | Layout::Bf16 => 16 * in_features.div_ceil(8),
            Layout::Ternary => 16 * in_features.div_ceil(64),
            Layout::Q8_0 => in_features + 16 * in_features.div_ceil(256),
            Layout::Q4_0 => in_features / 2 + 16 * in_features.div_ceil(256),
            Layout::Q4_1 => in_features / 2 + 16 * in_features.div_ceil(128),
        }
    }

    /// The most columns that one `Packed` of the shader holds.
    pub(crate) const fn chunk(self) -> usize {
        match self {
            Layout::F32 | Layout::F32Any => 4,
            Layout::F16 | Layout::Bf16 => 8,
            Layout::Ternary | Layout::Q8_0 | Layout::Q4_0 | Layout::Q4_1 => 16,
        }
    }

    /// Divisor of the number of columns that it can have.
    pub(crate) const fn block(self) -> usize {
        match self {
            Layout::F32 => 4,
            Layout::Q8_0 | Layout::Q4_0 | Layout::Q4_1 => 32,
            _ => 1,
        }
    }
}

/// Rows of a weight that take part in a product.
#[derive(Clone)]
pub struct Rows {
    /// How it is stored.
    pub layout: Layout,
    /// `[rows, in_features]` of floats or `[rows, row_bytes / 4]` of words.
    pub weight: Tensor,
    /// Columns of W.
    pub in_features: usize,
    /// The first row in `weight`.
    pub first: usize,
    /// How many rows there are.
    pub count: usize,
    /// What the stored numbers are to be multiplied by.
    pub scale: f32,
}

impl Rows {
    /// Columns of `x`: those of W, padded to whole vectors of four.
    pub(crate) fn padded(&self) -> usize {
        self.in_features.next_multiple_of(4)
    }

    pub(crate) fn kernel(&self, kernels: &'static [Kernel; 8]) -> &'static Kernel {
        &kernels[self.layout as usize]
    }

    /// Fails where the rows do not lie in `weight`.
    pub(crate) fn check(&self) -> Result<()> {
        let [rows, _] = self.weight.matrix("weight")?;
        let floats = matches!(self.layout, Layout::F32 | Layout::F32Any);
        self.weight.expect_dtype(if floats { DType::F32 } else { DType::U32 })?;
        self.weight.expect_shape("weight", &[rows, self.layout.row_bytes(self.in_features) / 4])?;
        if self.in_features == 0 || !self.in_features.is_multiple_of(self.layout.block()) {
            let expected = format!("in_features divisible by {}", self.layout.block());
            return Err(Error::shape("weight", expected, self.in_features.to_string()));
        }
        if self.count == 0 || self.first.checked_add(self.count).is_none_or(|end| end > rows) {
            let got = format!("{} from {} on", self.count, self.first);
            return Err(Error::shape("rows", format!("some of {rows} rows"), got));
        }
        Ok(())
    }

    /// Fails where the rows do not lie in `weight` in [`Layout::F32`].
    fn check_f32(&self) -> Result<()> {
        self.check()?;
        match self.layout {
            Layout::F32 => Ok(()),
            _ => Err(self.other_than("float32 with in_features divisible by 4")),
        }
    }

    /// That the rows lie in another layout than `expected`.
    fn other_than(&self, expected: &str) -> Error {
        Error::shape("weight", expected, format!("{:?}", self.layout))
    }

    /// Fails unless `columns` of a matrix have room for the rows' results from `first_column` on.
    pub(crate) fn expect_room(&self, name: &str, columns: usize, first_column: usize) -> Result<()> {
        if first_column.checked_add(self.count).is_none_or(|end| end > columns) {
            let expected = format!("at least {} columns from {first_column} on", self.count);
            return Err(Error::shape(name, expected, columns.to_string()));
        }
        Ok(())
    }
}

/// Workgroups of a tiled product over `terms` that fill a GPU; with few terms it is done before a second dispatch would have begun.
const fn enough(terms: usize) -> usize {
    if terms < 512 { 0 } else { 384 }
}

/// Width of the tiles of the products for many results.
const WIDE: usize = 128;

/// What those products share.
const TILES: &str = wgsl!("../../../shaders/base/wide.wgsl");

/// What the products for one token share.
const GEMV: &str = wgsl!("../../../shaders/base/gemv.wgsl");

/// The first file of the kernels that read f16 as such.
const HALF: &str = wgsl!("../../../shaders/base/weight_half.wgsl");

/// By which kernel a product is made, the width of its tiles, and how many workgroups are enough to fill a GPU.
struct Tiles {
    kernel: &'static Kernel,
    width: usize,
    enough: usize,
}

impl Tiles {
    const fn wide(kernel: &'static Kernel, enough: usize) -> Tiles {
        Tiles { kernel, width: WIDE, enough }
    }
}

/// How many workgroups of wide tiles `[_, _]` sums over `terms` are worth, with as few parts as keep a large GPU busy: one that runs
/// about 128 of them at a time, in all rounds but an eighth of one, or there are many rounds. None where fewer than four fifths of
/// the results count, or no parts of 512 terms or more do it.
fn wide_groups([left, right]: [usize; 2], terms: usize) -> Option<usize> {
    let tiles = left.div_ceil(WIDE) * right.div_ceil(WIDE);
    if left * right < tiles * (WIDE * WIDE / 5 * 4) {
        return None;
    }
    let busy = |groups: usize| groups >= 512 || groups.next_multiple_of(128) * 7 / 8 <= groups;
    (1..=(terms / 512).max(1)).map(|parts| tiles * parts).find(|&groups| busy(groups))
}

/// Whether wide tiles are the ones to choose.
pub(super) fn suit_wide(results: [usize; 2], terms: usize) -> bool {
    wide_groups(results, terms).is_some_and(|groups| groups > 0)
}

/// Workgroups for wide tiles, also where others suit better.
fn enough_wide(results: [usize; 2], terms: usize) -> usize {
    wide_groups(results, terms).unwrap_or(256)
}

/// Tokens from which on the products by quads are faster: they make 16 or 32 at a time, the others on software adapters 8.
const QUADS_FROM: usize = 9;

/// A bias `[out_features]`, and which of it belongs to the first row.
#[derive(Clone, Copy)]
pub struct Bias<'a> {
    /// `[out_features]`
    pub bias: &'a Tensor,
    /// Index of the first row's.
    pub first: usize,
}

/// The first file of each kernel, in the order of [`Layout::ALL`].
const WEIGHTS: [&str; 8] = [
    wgsl!("../../../shaders/base/weight_f32.wgsl"),
    wgsl!("../../../shaders/base/weight_f32_any.wgsl"),
    wgsl!("../../../shaders/base/weight_f16.wgsl"),
    wgsl!("../../../shaders/base/weight_bf16.wgsl"),
    wgsl!("../../../shaders/base/weight_ternary.wgsl"),
    wgsl!("../../../shaders/base/weight_q8_0.wgsl"),
    wgsl!("../../../shaders/base/weight_q4_0.wgsl"),
    wgsl!("../../../shaders/base/weight_q4_1.wgsl"),
];

/// One product in all layouts: its kernels in the order of [`Layout::ALL`]. Constants are those of each layout or of all; what the
/// product shares with others, if anything, is the last.
macro_rules! product {
    ($product:literal, $path:literal, $buffers:tt, $constants:expr $(, $shared:expr)?) => {{
        const PRODUCT: &str = wgsl!($path);
        const CONSTANTS: [&[(&str, u32, u32)]; 8] = $constants;
        [
            product!(@one $product, "f32", 0, Read, $buffers $(, $shared)?),
            product!(@one $product, "f32_any", 1, Read, $buffers $(, $shared)?),
            product!(@one $product, "f16", 2, ReadWords, $buffers $(, $shared)?),
            product!(@one $product, "bf16", 3, ReadWords, $buffers $(, $shared)?),
            product!(@one $product, "ternary", 4, ReadWords, $buffers $(, $shared)?),
            product!(@one $product, "q8_0", 5, ReadWords, $buffers $(, $shared)?),
            product!(@one $product, "q4_0", 6, ReadWords, $buffers $(, $shared)?),
            product!(@one $product, "q4_1", 7, ReadWords, $buffers $(, $shared)?),
        ]
    }};
    (@one $product:literal, $layout:literal, $i:literal, $access:ident, [$($buffer:expr),*] $(, $shared:expr)?) => {
        Kernel {
            name: concat!("base/", $product, "_", $layout),
            source: &[$crate::kernels::base::WEIGHTS[$i], $($shared,)? PRODUCT],
            buffers: &[("weight", Access::$access), $($buffer),*],
            constants: CONSTANTS[$i],
            params_size: size_of::<Params>(),
        }
    };
}
use product;

/// All kernels of the products.
pub(super) fn products() -> impl Iterator<Item = &'static Kernel> {
    [
        &linear::KERNELS,
        &linear_gemv::KERNELS,
        &linear_vec4::KERNELS,
        &linear_wide::KERNELS,
        &linear_t::KERNELS,
        &linear_t_gemv::KERNELS,
        &linear_t_vec4::KERNELS,
        &linear_t_wide::KERNELS,
        &rows::KERNELS,
        &row_squares::KERNELS,
    ]
    .into_iter()
    .flatten()
    .chain(&linear_gemv_subgroups::KERNELS)
}
