import { type RawGpu, RawTensor } from "./wasm/lora_webgpu.js";
import { answering, platformObject } from "./adopt.js";
import { array, bind, checkOptions, disposable, integer, numbers, oneOf, show, text, unwrap } from "./check.js";
import { LoraError } from "./error.js";
import { Gpu } from "./gpu.js";

declare global {
  interface GPUBuffer {} // as GPUDevice in gpu.ts
}

/** Options of {@link Tensor}. */
export interface TensorOptions {
  /** Dimensions, none of them 0, e.g. `[tokens, inFeatures]`. */
  shape: readonly number[];
  /** Values, row-major; zeros when left out. An `Int32Array` makes a tensor of integers: class labels. */
  data?: Float32Array | Int32Array;
  /** A name for messages. */
  label?: string;
}

/** Options of {@link Tensor.fromBuffer}. */
export interface BufferOptions {
  /** A buffer of the Gpu's own device, with usage `STORAGE`; to be read also `COPY_SRC`, to be written `COPY_DST`. */
  buffer: GPUBuffer;
  /** Dimensions, none of them 0. */
  shape: readonly number[];
  /** Where the tensor begins, a multiple of the device's `minStorageBufferOffsetAlignment`, 256 as a rule; default 0. */
  byteOffset?: number;
  /** What the elements are; default `"float32"`. */
  dtype?: "float32" | "int32";
  /** A name for messages. */
  label?: string;
}

// A number for each buffer seen, by which tensors in the same one are told: no dispatch may read and write it.
const buffers = new WeakMap<object, number>();

function dimensions(shape: readonly number[]): Uint32Array {
  return Uint32Array.from(array("shape", shape, " of integers"), (d) => integer("shape", d));
}

/** Tensors that were written by hand, or trained. @internal */
export const written = new WeakSet<Tensor>();

/** A row-major tensor in GPU memory, of `float32` or, for labels, of `int32`. */
export class Tensor {
  /** Its dimensions, the outermost first. */
  readonly shape: readonly number[];
  /** How messages and browser tools call it. */
  readonly label: string;
  #raw: RawTensor;

  /** Throws code `shape` where `data` has another length, `limit` above the device's limits. */
  constructor(gpu: Gpu, options: TensorOptions) {
    if ((options as unknown) instanceof RawTensor) {
      this.#raw = options as unknown as RawTensor;
    } else {
      checkOptions("Tensor", options, ["shape", "data", "label"]);
      const { shape, data, label = "tensor" } = options;
      const size = dimensions(shape);
      if (data !== undefined) numbers("data", data);
      this.#raw = new RawTensor(unwrap<RawGpu>("gpu", Gpu, gpu), text("label", label), size, data instanceof Int32Array);
      if (data !== undefined) {
        try {
          this.#raw.write(data);
        } catch (error) {
          this.#raw.destroy();
          throw error;
        }
      }
    }
    this.shape = Object.freeze(Array.from(this.#raw.shape()));
    this.label = this.#raw.label();
    bind(this, this.#raw, (options as unknown) instanceof RawTensor ? undefined : `the tensor \`${this.label}\``);
  }

  /**
   * A tensor in a buffer that the page or another library made on the same device; it is read and written in place, and
   * never destroyed here. Needs no copy and waits for nothing.
   *
   * Throws code `invalid-argument` where the usage lacks `STORAGE`, `byteOffset` is not aligned, the buffer ends too early
   * or is mapped; `limit`; `disposed`; `device-lost`. Only the GPU process knows a buffer of another device: what is
   * awaited next on the tensor, or on a recording with it, rejects with code `foreign-buffer`.
   */
  static fromBuffer(gpu: Gpu, options: BufferOptions): Tensor {
    checkOptions("Tensor.fromBuffer", options, ["buffer", "shape", "byteOffset", "dtype", "label"]);
    const { buffer, shape, byteOffset = 0, dtype = "float32", label = "tensor" } = options;
    const rawGpu = unwrap<RawGpu>("gpu", Gpu, gpu);
    platformObject("buffer", "GPUBuffer", buffer);
    const size = dimensions(shape);
    if (!Number.isSafeInteger(byteOffset) || byteOffset < 0) {
      throw new LoraError("invalid-argument", `byteOffset: expected an integer of at least 0, got ${show(byteOffset)}`);
    }
    oneOf("dtype", dtype, ["float32", "int32"]);
    const theirs = buffer as object as { size: number; usage: number; mapState?: string };
    if (theirs.mapState !== undefined && theirs.mapState !== "unmapped") {
      throw new LoraError("invalid-argument", `buffer: expected one that is not mapped, for the GPU to use; got one that is ${theirs.mapState}`);
    }
    const raw = answering(gpu.device, "createBuffer", () => buffer, () =>
      RawTensor.adopt(rawGpu, text("label", label), size, dtype === "int32", theirs.size, theirs.usage, byteOffset, buffers.get(buffer)),
    );
    buffers.set(buffer, raw.storageId());
    return wrapTensor(raw);
  }

  /**
   * The buffer that it lies in, from {@link byteOffset} on; other tensors may lie there too. Of a tensor made here it has
   * the usages `STORAGE`, `COPY_SRC` and `COPY_DST`, and dies with it. Making an `Optimizer` or a `Trainer` moves the
   * parameters and gradients of its layers to another buffer.
   */
  get buffer(): GPUBuffer {
    const buffer = this.#raw.buffer() as GPUBuffer;
    buffers.set(buffer, this.#raw.storageId());
    return buffer;
  }

  /** Where it begins in its {@link buffer}, in bytes. */
  get byteOffset(): number {
    return this.#raw.byteOffset();
  }

  /** Number of elements. */
  get length(): number {
    return this.shape.reduce((n, d) => n * d, 1);
  }

  /** Overwrites all elements before whatever is submitted next. */
  write(data: Float32Array | Int32Array): void {
    this.#raw.write(numbers("data", data));
    written.add(this);
  }

  /** The elements of a tensor of floats, as they are after everything submitted so far. */
  async read(): Promise<Float32Array> {
    return (await this.#read(false)) as Float32Array;
  }

  /** The elements of a tensor of integers. */
  async readIntegers(): Promise<Int32Array> {
    return (await this.#read(true)) as Int32Array;
  }

  #read(integers: boolean): Promise<unknown> {
    if (this.#raw.isInteger() !== integers) {
      const [expected, got] = integers ? ["int32", "float32"] : ["float32", "int32"];
      throw new LoraError("invalid-argument", `tensor \`${this.label}\`: expected ${expected}, got ${got}`);
    }
    return this.#raw.read();
  }

  /** Whether {@link dispose} was called. */
  get disposed(): boolean {
    return this.#raw.isDestroyed();
  }

  /** Frees the GPU memory, unless the buffer is the page's. Idempotent; work that was submitted still runs. */
  dispose(): void {
    this.#raw.destroy();
  }
}
disposable(Tensor.prototype);

/** A tensor that Rust made. @internal */
export function wrapTensor(raw: RawTensor): Tensor {
  return new Tensor(undefined as unknown as Gpu, raw as unknown as TensorOptions);
}
