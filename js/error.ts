/** What went wrong, as a stable name. */
export type LoraErrorCode =
  | "aliased-buffer"
  | "busy"
  | "checkpoint"
  | "checkpoint-in-use"
  | "device-lost"
  | "disposed"
  | "file"
  | "foreign-buffer"
  | "foreign-tensor"
  | "incomplete"
  | "insecure-context"
  | "invalid-argument"
  | "limit"
  | "missing-feature"
  | "no-adapter"
  | "no-webgpu"
  | "out-of-memory"
  | "shape"
  | "storage"
  | "storage-full"
  | "unknown-option"
  | "unmatched"
  | "unsupported"
  | "validation"
  | "wasm-load";

/** Every error of this package. The message names the thing, what was expected and what came. */
export class LoraError extends Error {
  /** `"LoraError"` */
  override readonly name = "LoraError";
  /** What went wrong, for code to tell by. */
  readonly code: LoraErrorCode;

  /** Made by the package; pages only catch it. */
  constructor(code: LoraErrorCode, message: string) {
    super(message);
    this.code = code;
  }
}
