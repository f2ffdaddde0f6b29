import { type RawGpu, RawTensor } from "./wasm/lora_webgpu.js";
import { bind, checkOptions, disposable, integer, numbers, show, unwrap } from "./check.js";
import { LoraError } from "./error.js";
import { Gpu } from "./gpu.js";

/** Options of {@link Tensor}. */
export interface TensorOptions {
  /** Dimensions, none of them 0, e.g. `[tokens, inFeatures]`. */
  shape: readonly number[];
  /** Values, row-major; zeros when left out. An `Int32Array` makes a tensor of integers: class labels. */
  data?: Float32Array | Int32Array;
  /** A name for messages. */
  label?: string;
}

/** A row-major tensor in GPU memory, of `float32` or, for labels, of `int32`. */
export class Tensor {
  readonly shape: readonly number[];
  readonly label: string;
  #raw: RawTensor;

  /** Throws code `shape` where `data` has another length, `limit` above the device's limits. */
  constructor(gpu: Gpu, options: TensorOptions) {
    if ((options as unknown) instanceof RawTensor) {
      this.#raw = options as unknown as RawTensor;
    } else {
      checkOptions("Tensor", options, ["shape", "data", "label"]);
      const { shape, data, label = "tensor" } = options;
      if (!Array.isArray(shape)) throw new LoraError("invalid-argument", `shape: expected an array of integers, got ${show(shape)}`);
      const dimensions = Uint32Array.from(shape, (d) => integer("shape", d));
      if (data !== undefined) numbers("data", data);
      this.#raw = new RawTensor(unwrap<RawGpu>("gpu", Gpu, gpu), String(label), dimensions, data instanceof Int32Array);
      if (data !== undefined) {
        try {
          this.#raw.write(data);
        } catch (error) {
          this.#raw.destroy();
          throw error;
        }
      }
    }
    bind(this, this.#raw);
    this.shape = Object.freeze(Array.from(this.#raw.shape()));
    this.label = this.#raw.label();
  }

  /** Number of elements. */
  get length(): number {
    return this.shape.reduce((n, d) => n * d, 1);
  }

  /** Overwrites all elements before whatever is submitted next. */
  write(data: Float32Array | Int32Array): void {
    this.#raw.write(numbers("data", data));
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

  /** Frees the GPU memory. Idempotent; work that was submitted still runs. */
  dispose(): void {
    this.#raw.destroy();
  }
}
disposable(Tensor.prototype);

/** A tensor that Rust made. */
export function wrapTensor(raw: RawTensor): Tensor {
  return new Tensor(undefined as unknown as Gpu, raw as unknown as TensorOptions);
}
