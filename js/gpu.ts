import { RawGpu } from "./wasm/lora_webgpu.js";
import { answering, platformObject } from "./adopt.js";
import { bind, boolean, checkOptions, disposable, oneOf, show, warnOfUndisposed } from "./check.js";
import { LoraError } from "./error.js";
import { type AdapterInfo, type GpuProfile, PROFILES, saidProfile, timedProfile } from "./profile.js";
import { Recording } from "./recording.js";
import { init } from "./wasm.js";

declare global {
  // Empty where neither the DOM library nor @webgpu/types says more, so that this package needs neither.
  interface GPUDevice {}
}

/** A feature that {@link Gpu.request} can ask for, by its WebGPU name. */
export type GpuFeature = "shader-f16" | "subgroups" | "timestamp-query";
const USED: readonly GpuFeature[] = ["shader-f16", "subgroups"]; // by kernels
const FEATURES: readonly string[] = [...USED, "timestamp-query"] satisfies GpuFeature[];

/** Options of {@link Gpu.request}. */
export interface GpuOptions {
  /** Which adapter of a machine with several. */
  powerPreference?: "low-power" | "high-performance";
  /** Take the software adapter even where there is hardware. */
  forceFallbackAdapter?: boolean;
  /**
   * Features to switch on; one that the adapter lacks is an error of code `missing-feature`. The adapter's `subgroups` and
   * `shader-f16` are always on: kernels are chosen by them.
   */
  features?: readonly GpuFeature[];
  /**
   * Warn on the console of tensors, layers, models and the like that are dropped without `dispose()`, when the browser collects
   * them: they keep their GPU memory. It counts for all that is made from then on. Default false.
   */
  debug?: boolean;
  /**
   * Which kernels to use, instead of those that fit: for tests and comparisons. By default the adapter's own word decides;
   * where it says nothing, products by both are timed for a moment, and this browser remembers which were faster.
   */
  profile?: GpuProfile;
}

/** What the browser tells of the adapter. */
export interface GpuInfo {
  /** Who made the GPU, such as `nvidia`; like the next three as the browser says it, or empty. */
  readonly vendor: string;
  /** Its family, such as `ampere`. */
  readonly architecture: string;
  /** The device itself; browsers mostly keep it to themselves. */
  readonly device: string;
  /** Words of the driver. */
  readonly description: string;
  /** Whether it computes on the CPU: correct, but slow. */
  readonly isSoftware: boolean;
  /** The kernels that are used. */
  readonly profile: GpuProfile;
}

/** Counters since the `Gpu` was made. */
export interface GpuStats {
  /** Submits to the queue. */
  readonly submits: number;
  /** Kernels that were started. */
  readonly dispatches: number;
  /** Bytes written to GPU buffers: data and kernel parameters. */
  readonly uploadedBytes: number;
  /** Pipelines that were compiled. */
  readonly pipelines: number;
  /** Bind groups that were made. */
  readonly bindGroups: number;
  /** Buffers that were made, freed ones included. */
  readonly buffersCreated: number;
}

// The parts of WebGPU that this file touches; the package asks for no other types.
interface Adapter {
  readonly limits: object;
  readonly features: ReadonlySet<string>;
  readonly info: AdapterInfo;
  requestDevice(descriptor: object): Promise<Device>;
}
interface Device {
  readonly limits: object;
  readonly features: ReadonlySet<string>;
  readonly adapterInfo?: AdapterInfo;
  readonly lost: Promise<{ reason: string; message: string }>;
  destroy(): void;
  pushErrorScope(filter: string): void;
  popErrorScope(): Promise<unknown>;
}
interface WebGpu {
  requestAdapter(options?: object): Promise<Adapter | null>;
}

/**
 * A WebGPU device, this package's own or the page's. Everything else is made on one and works only with things of the
 * same one.
 */
export class Gpu {
  /** Resolves when the device is lost: destroyed, crashed or taken away. */
  readonly lost: Promise<{ reason: string; message: string }>;
  /** What the device is. */
  readonly info: GpuInfo;
  /** The features that are switched on, by their WebGPU names. */
  readonly features: ReadonlySet<string>;
  /** The device itself, for other libraries of the page to use and to make buffers on. */
  readonly device: GPUDevice;
  #raw: RawGpu;

  private constructor(raw: RawGpu, device: Device, info: AdapterInfo, profile: GpuProfile) {
    this.#raw = raw;
    bind(this, raw, "a Gpu");
    this.device = device as object as GPUDevice;
    this.features = new Set(device.features);
    this.lost = device.lost.then(({ reason, message }) => ({ reason, message }));
    const { vendor, architecture, device: name, description } = info;
    this.info = { vendor, architecture, device: name, description, isSoftware: saidProfile(info) === "software", profile };
  }

  /**
   * Loads the wasm where that has not been done, and asks for a device with the adapter's own limits. A missing adapter
   * is asked for again for a second: browsers answer null while their GPU process starts.
   *
   * Rejects with code `no-webgpu`, `insecure-context`, `no-adapter`, `missing-feature` or `wasm-load`.
   */
  static async request(options: GpuOptions = {}): Promise<Gpu> {
    checkOptions("Gpu.request", options, ["powerPreference", "forceFallbackAdapter", "features", "debug", "profile"]);
    const { powerPreference, forceFallbackAdapter = false, features = [], debug = false, profile } = options;
    if (profile !== undefined) oneOf("profile", profile, PROFILES);
    if (boolean("debug", debug)) warnOfUndisposed();
    boolean("forceFallbackAdapter", forceFallbackAdapter);
    if (powerPreference !== undefined && powerPreference !== "low-power" && powerPreference !== "high-performance") {
      throw new LoraError("invalid-argument", `powerPreference: expected "low-power" or "high-performance", got ${show(powerPreference)}`);
    }
    if (!Array.isArray(features)) throw new LoraError("invalid-argument", `features: expected an array of names, got ${show(features)}`);
    const requiredFeatures: string[] = [...features];
    for (const name of requiredFeatures) {
      if (!FEATURES.includes(name)) throw new LoraError("invalid-argument", `features: expected names among ${FEATURES.join(", ")}, got ${show(name)}`);
    }
    const webgpu = findWebGpu();
    const [adapter] = await Promise.all([findAdapter(webgpu, { powerPreference, forceFallbackAdapter }), init()]);
    for (const name of requiredFeatures) {
      if (!adapter.features.has(name)) throw new LoraError("missing-feature", `features: this adapter has no ${name}; request the Gpu without it`);
    }
    for (const name of USED) if (adapter.features.has(name)) requiredFeatures.push(name);
    const requiredLimits: Record<string, number> = {};
    for (const name in adapter.limits) {
      const value = (adapter.limits as Record<string, unknown>)[name];
      if (typeof value === "number") requiredLimits[name] = value;
    }
    let device: Device;
    try {
      device = await adapter.requestDevice({ label: "lora-webgpu", requiredLimits, requiredFeatures });
    } catch (error) {
      throw new LoraError("no-adapter", `the adapter gives no device: ${String(error)}`);
    }
    const info = device.adapterInfo ?? adapter.info;
    try {
      return await Gpu.#open(webgpu, device, info, true, profile);
    } catch (error) {
      device.destroy();
      throw error;
    }
  }

  /**
   * Adopts a device that the page or another library has, so that both work on the same buffers: see
   * {@link Tensor.fromBuffer}. It is never destroyed here, and its error handlers stay its owner's; {@link dispose} frees
   * what was made on it through this package. Its limits count.
   *
   * Rejects with code `invalid-argument` for what is no GPUDevice, `device-lost`, `limit` where the device has lower
   * limits than the kernels need (a compatibility-mode device), `no-webgpu`, `insecure-context` or `wasm-load`.
   */
  static async fromDevice(device: GPUDevice, options: Pick<GpuOptions, "profile"> = {}): Promise<Gpu> {
    platformObject("device", "GPUDevice", device);
    checkOptions("Gpu.fromDevice", options, ["profile"]);
    const { profile } = options;
    if (profile !== undefined) oneOf("profile", profile, PROFILES);
    const webgpu = findWebGpu();
    const theirs = device as object as Device;
    let lost: { reason: string; message: string } | undefined;
    void theirs.lost.then((info) => (lost = info));
    await init();
    // One round trip to the GPU process, by which a loss is known.
    theirs.pushErrorScope("validation");
    await theirs.popErrorScope().catch(() => {});
    if (lost) throw new LoraError("device-lost", `the GPU device was lost: ${lost.message || lost.reason}`);
    const info = theirs.adapterInfo ?? { vendor: "", architecture: "", device: "", description: "" };
    return Gpu.#open(webgpu, theirs, info, false, profile);
  }

  static async #open(webgpu: WebGpu, device: Device, info: AdapterInfo, owned: boolean, forced?: GpuProfile): Promise<Gpu> {
    const as = (profile: GpuProfile, owned = false) => adopt(webgpu, device, info, owned, profile);
    const profile = forced ?? saidProfile(info) ?? (await timedProfile(device, info, as));
    return new Gpu(await as(profile, owned), device, info, profile);
  }

  /** Starts a recording of dispatches. */
  record(): Recording {
    return new Recording(this);
  }

  /** Resolves when everything submitted so far has been computed. */
  async finished(): Promise<void> {
    await this.#raw.finished();
  }

  /** Live GPU buffers and their bytes, free ones that are kept to read into among them. */
  memory(): { buffers: number; bytes: number } {
    const [buffers = 0, bytes = 0] = this.#raw.memory();
    return { buffers, bytes };
  }

  /** What was done so far. */
  stats(): GpuStats {
    const [submits = 0, dispatches = 0, uploadedBytes = 0, pipelines = 0, bindGroups = 0, buffersCreated = 0] = this.#raw.stats();
    return { submits, dispatches, uploadedBytes, pipelines, bindGroups, buffersCreated };
  }

  /**
   * Destroys the device with everything on it, after the calls that wait for it; of an adopted device, only what this
   * package made on it. Idempotent; later use of anything on it gives code `disposed`.
   */
  dispose(): void {
    this.#raw.destroy();
  }
}
disposable(Gpu.prototype);

function findWebGpu(): WebGpu {
  const { navigator, isSecureContext } = globalThis as { navigator?: { gpu?: WebGpu }; isSecureContext?: boolean };
  if (navigator?.gpu) return navigator.gpu;
  if (isSecureContext === false) {
    throw new LoraError("insecure-context", "WebGPU needs a secure context; open the page by localhost or https");
  }
  throw new LoraError("no-webgpu", "this browser has no WebGPU (navigator.gpu is missing); expected a recent Chrome, Edge, Safari or Firefox");
}

async function findAdapter(webgpu: WebGpu, options: object): Promise<Adapter> {
  for (let waited = 0; ; waited += 100) {
    const adapter = await webgpu.requestAdapter(options);
    if (adapter) return adapter;
    if (waited >= 1000) throw new LoraError("no-adapter", "WebGPU is there, but gives no adapter; the browser may block this GPU");
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

/** Hands a device to wgpu, which would request its own. */
function adopt(webgpu: WebGpu, device: Device, info: AdapterInfo, owned: boolean, profile: GpuProfile): Promise<RawGpu> {
  const { limits, features } = device;
  const adapter = { limits, features, info, requestDevice: () => Promise.resolve(device) };
  const work = () => RawGpu.adopt(owned, profile === "software") as Promise<RawGpu>;
  return answering(webgpu, "requestAdapter", () => Promise.resolve(adapter), work);
}
