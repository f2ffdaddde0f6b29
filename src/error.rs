//! The one error type. Every message names the thing, what was expected and what came.

use thiserror::Error;

/// Whatever can go wrong, with a stable [`code`](Error::code) that JavaScript sees as `LoraError.code`. One word, so that the
/// path of success carries no more: a tenth of the wasm.
#[derive(Debug, Clone, PartialEq, Error)]
#[error(transparent)]
pub struct Error(Box<ErrorKind>);

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No adapter answered the request.
    #[error("no GPU adapter: {0}")]
    NoAdapter(String),
    /// A tensor has another shape than the call needs.
    #[error("{name}: expected {expected}, got {got}")]
    Shape {
        /// Name of the tensor or argument.
        name: String,
        /// What the call needs.
        expected: String,
        /// What was passed.
        got: String,
    },
    /// A scalar or option that is not acceptable: rank 0, a learning rate that is NaN …
    #[error("{name}: expected {expected}, got {got}")]
    InvalidArgument {
        /// Name of the argument.
        name: String,
        /// What the call needs.
        expected: String,
        /// What was passed.
        got: String,
    },
    /// A tensor that was made by another [`Gpu`](crate::Gpu).
    #[error("{0} belongs to another Gpu; expected a tensor of the one that this call runs on")]
    ForeignTensor(String),
    /// A GPU buffer of another device, one that could not be made or, where that is known at once, is destroyed.
    #[error("the buffer of {0}; expected a live GPUBuffer of the device that the Gpu is on")]
    ForeignBuffer(String),
    /// One buffer bound for reading and for writing in the same dispatch.
    #[error(
        "{kernel}: `{read}` and `{written}` lie in the same GPU buffer, which WebGPU forbids when one is written; expected separate tensors"
    )]
    AliasedBuffer {
        /// The kernel.
        kernel: &'static str,
        /// One binding.
        read: String,
        /// The written binding.
        written: String,
    },
    /// Use of something after it was destroyed.
    #[error("{0} was disposed of; expected a live one")]
    Disposed(String),
    /// More than the device's limits allow.
    #[error("{name}: needs {needed}{}, but this device allows {limit} ({which})", unit(which))]
    Limit {
        /// Name of the tensor.
        name: String,
        /// What it needs, in the limit's unit: mostly bytes.
        needed: u64,
        /// What is allowed.
        limit: u64,
        /// The limit's WebGPU name.
        which: &'static str,
    },
    /// The device could not allocate.
    #[error("out of GPU memory: {0}")]
    OutOfMemory(String),
    /// The device was lost, for the reason given.
    #[error("the GPU device was lost: {0}")]
    DeviceLost(String),
    /// A second step while the parts of another are under way.
    #[error("{0} is under way; expected one step at a time")]
    Busy(&'static str),
    /// Bytes that are not the checkpoint of such a training.
    #[error("this is no checkpoint of this training: {0}")]
    Checkpoint(String),
    /// A file whose bytes are not what its format allows.
    #[error("{name}: {reason}")]
    File {
        /// The file, or the tensor in it.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The beginning of a file that ends too early for its header.
    #[error("{name}: its header ends at byte {needed} or later; expected more of the file")]
    Incomplete {
        /// The file.
        name: String,
        /// How many of its first bytes to pass at least.
        needed: u64,
    },
    /// Something that is right in itself but not done here, named.
    #[error("{0}")]
    Unsupported(String),
    /// An adapter and a model that do not fit each other.
    #[error("{0}")]
    Unmatched(String),
    /// WebGPU refused a call: a fault of this package, worth a report.
    #[error("WebGPU refused the call: {0}")]
    Validation(String),
}

impl ErrorKind {
    /// The stable, kebab-case name of the kind of error.
    pub fn code(&self) -> &'static str {
        match self {
            ErrorKind::NoAdapter(_) => "no-adapter",
            ErrorKind::Shape { .. } => "shape",
            ErrorKind::InvalidArgument { .. } => "invalid-argument",
            ErrorKind::ForeignTensor(_) => "foreign-tensor",
            ErrorKind::ForeignBuffer(_) => "foreign-buffer",
            ErrorKind::AliasedBuffer { .. } => "aliased-buffer",
            ErrorKind::Disposed(_) => "disposed",
            ErrorKind::Limit { .. } => "limit",
            ErrorKind::OutOfMemory(_) => "out-of-memory",
            ErrorKind::DeviceLost(_) => "device-lost",
            ErrorKind::Busy(_) => "busy",
            ErrorKind::Checkpoint(_) => "checkpoint",
            ErrorKind::File { .. } => "file",
            ErrorKind::Incomplete { .. } => "incomplete",
            ErrorKind::Unsupported(_) => "unsupported",
            ErrorKind::Unmatched(_) => "unmatched",
            ErrorKind::Validation(_) => "validation",
        }
    }
}

impl Error {
    /// What went wrong.
    pub fn kind(&self) -> &ErrorKind {
        &self.0
    }

    /// The stable, kebab-case name of the kind of error.
    pub fn code(&self) -> &'static str {
        self.0.code()
    }

    #[cold]
    #[inline(never)]
    fn new(kind: ErrorKind) -> Error {
        Error(Box::new(kind))
    }

    pub(crate) fn argument(name: &str, expected: &str, got: impl Into<String>) -> Error {
        Error::new(ErrorKind::InvalidArgument { name: name.into(), expected: expected.into(), got: got.into() })
    }

    pub(crate) fn file(name: &str, reason: impl Into<String>) -> Error {
        Error::new(ErrorKind::File { name: name.into(), reason: reason.into() })
    }

    pub(crate) fn shape(name: &str, expected: impl Into<String>, got: impl Into<String>) -> Error {
        Error::new(ErrorKind::Shape { name: name.into(), expected: expected.into(), got: got.into() })
    }

    pub(crate) fn limit(name: &str, needed: u64, limit: u64, which: &'static str) -> Error {
        Error::new(ErrorKind::Limit { name: name.into(), needed, limit, which })
    }

    /// The same of the tensor of this name.
    pub(crate) fn of(mut self, tensor: &str) -> Error {
        if let ErrorKind::Shape { name, .. } | ErrorKind::Limit { name, .. } = &mut *self.0 {
            *name = format!("tensor `{tensor}`: {name}");
        }
        if let ErrorKind::OutOfMemory(text) = &mut *self.0 {
            *text = format!("tensor `{tensor}`: {text}");
        }
        self
    }

    pub(crate) fn incomplete(file: &str, needed: u64) -> Error {
        Error::new(ErrorKind::Incomplete { name: file.into(), needed })
    }

    pub(crate) fn aliased_buffer(kernel: &'static str, read: &str, written: &str) -> Error {
        Error::new(ErrorKind::AliasedBuffer { kernel, read: read.into(), written: written.into() })
    }

    pub(crate) fn no_adapter(text: String) -> Error {
        Error::new(ErrorKind::NoAdapter(text))
    }

    pub(crate) fn foreign_tensor(text: String) -> Error {
        Error::new(ErrorKind::ForeignTensor(text))
    }

    pub(crate) fn foreign_buffer(text: String) -> Error {
        Error::new(ErrorKind::ForeignBuffer(text))
    }

    pub(crate) fn disposed(text: String) -> Error {
        Error::new(ErrorKind::Disposed(text))
    }

    pub(crate) fn out_of_memory(text: String) -> Error {
        Error::new(ErrorKind::OutOfMemory(text))
    }

    pub(crate) fn device_lost(text: String) -> Error {
        Error::new(ErrorKind::DeviceLost(text))
    }

    pub(crate) fn busy(what: &'static str) -> Error {
        Error::new(ErrorKind::Busy(what))
    }

    pub(crate) fn checkpoint(text: String) -> Error {
        Error::new(ErrorKind::Checkpoint(text))
    }

    pub(crate) fn unsupported(text: String) -> Error {
        Error::new(ErrorKind::Unsupported(text))
    }

    pub(crate) fn unmatched(text: String) -> Error {
        Error::new(ErrorKind::Unmatched(text))
    }

    pub(crate) fn validation(text: String) -> Error {
        Error::new(ErrorKind::Validation(text))
    }
}

/// Bytes of an array in 32 bits of address space.
const LARGEST: u64 = i32::MAX as u64;

/// An empty array with room for so many elements, where a small request can make that many.
///
/// # Errors
/// [`Limit`](ErrorKind::Limit) above 2³¹ − 1 bytes, or what the memory has.
pub(crate) fn room<T>(name: &str, elements: u64) -> Result<Vec<T>> {
    let bytes = elements.saturating_mul(size_of::<T>() as u64);
    let mut array = Vec::new();
    if bytes > LARGEST || array.try_reserve_exact(elements as usize).is_err() {
        return Err(Error::limit(name, bytes, LARGEST, "maxArraySize"));
    }
    Ok(array)
}

/// The unit of a limit: bytes are those whose names end in `Size`.
fn unit(limit: &str) -> &'static str {
    if limit.ends_with("Size") { " bytes" } else { "" }
}

/// A number as text. In the browser by JavaScript: Rust's own printing of floats would be a tenth of the wasm.
pub(crate) fn show_number(value: f64) -> String {
    #[cfg(target_arch = "wasm32")]
    return js_sys::Number::from(value).to_string_with_radix(10).map_or_else(|_| String::new(), String::from);
    #[cfg(not(target_arch = "wasm32"))]
    value.to_string()
}

/// `Result` with this crate's [`struct@Error`].
pub type Result<T> = std::result::Result<T, Error>;
