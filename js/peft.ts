// Adapter files: PEFT's and others', read, written, converted, combined and merged. Nothing here needs a GPU but the layers
// that are saved and filled.
import { RawCombination, RawModulesToSave, RawPeft, RawPlain, safetensorsHeader } from "./wasm/lora_webgpu.js";
import { array, boolean, callable, checkOptions, finite, float32Array, integer, json, oneOf, show, text } from "./check.js";
import { LoraError } from "./error.js";
import { changesBase, internals, type LoraAdapter, LoraLinear } from "./lora.js";
import type { Tensor } from "./tensor.js";
import { init } from "./wasm.js";
import { isZip, unzip, zip } from "./zip.js";

/** Where a file's bytes come from: an address, a Blob or File, or the bytes. */
export type FileSource = string | URL | Blob | ArrayBuffer | Uint8Array;

/**
 * Where an adapter comes from: the address of its folder, a zip of it (address, Blob or bytes), the files that a user chose or
 * dropped (of several folders with an adapter the one nearest to the top), or its two files, as {@link savePeft} gives them. A
 * `config` can also be the object itself or its JSON text.
 */
export type PeftSource = FileSource | Iterable<File> | { config: FileSource | object; weights: FileSource; zip?: unknown };

/** A module of a model. */
export interface ModelModule {
  /** E.g. `model.layers.0.self_attn.q_proj`. */
  name: string;
  /** Default `"linear"`; `"other"` is one whose weight is no matrix, as a norm's, which can be trained whole alone. */
  kind?: "linear" | "embedding" | "other";
  /** Of an embedding the number of tokens, of another 1. */
  inFeatures: number;
  /** Width of the output; of an embedding that of its vectors. */
  outFeatures: number;
  /** The output head, which `all-linear` leaves out. */
  isOutputHead?: boolean;
}

/** How an adapter fits a model, by names. */
export interface PeftReport {
  /** Modules of the adapter that the model has. */
  matched: string[];
  /** Modules that the configuration targets, but the weights lack. */
  missing: string[];
  /** Entries of the adapter that fit no module of the model. */
  leftover: string[];
  /** Tensors of the model that the adapter replaces: trained biases, modules that were trained whole. */
  replaced: string[];
}

/** PEFT's two files. */
export interface PeftFiles {
  /** `adapter_config.json` */
  config: string;
  /** `adapter_model.safetensors` */
  weights: Uint8Array;
  /** Both in one archive. */
  zip(): Blob;
}

/** Number formats of weights. */
export type WeightType = "float32" | "float16" | "bfloat16";
const DTYPES = { float32: "F32", float16: "F16", bfloat16: "BF16" };

/** What an adapter can be written as, besides PEFT's files. */
export type ExportFormat = "gguf" | "kohya" | "hesper";
const FORMATS = { peft: 0, gguf: 1, kohya: 2, hesper: 3 };

const CONFIG = "adapter_config.json", WEIGHTS = "adapter_model.safetensors";

async function bytesOf(what: string, source: unknown): Promise<Uint8Array> {
  if (source instanceof Uint8Array) return source;
  if (source instanceof ArrayBuffer) return new Uint8Array(source);
  if (source instanceof Blob) {
    return new Uint8Array(
      await source.arrayBuffer().catch((error: unknown) => {
        throw new LoraError("file", `${what}: the file could not be read; it may have changed since it was chosen: ${String(error)}`);
      }),
    );
  }
  if (typeof source !== "string" && !(source instanceof URL)) {
    throw new LoraError("invalid-argument", `${what}: expected an address, a Blob or bytes, got ${show(source)}`);
  }
  const response = await fetch(source).catch((error: unknown) => {
    throw new LoraError("file", `${what}: ${String(source)} could not be fetched: ${String(error)}`);
  });
  if (!response.ok) throw new LoraError("file", `${what}: HTTP ${response.status} from ${String(source)}`);
  return new Uint8Array(
    await response.arrayBuffer().catch((error: unknown) => {
      throw new LoraError("file", `${what}: ${String(source)} broke off: ${String(error)}`);
    }),
  );
}

async function configBytes(what: string, source: unknown): Promise<Uint8Array> {
  if (typeof source === "string" && source.trimStart().startsWith("{")) return new TextEncoder().encode(source);
  const plain = typeof source === "object" && source !== null && Object.getPrototypeOf(source) === Object.prototype;
  return plain ? new TextEncoder().encode(json(what, source)) : bytesOf(what, source);
}

const lastPart = (path: string): string => path.slice(path.lastIndexOf("/") + 1);

/** The two files of a source. */
async function peftFiles(source: unknown): Promise<[config: Uint8Array, weights: Uint8Array]> {
  // Of several folders the one nearest to the top, as of a training's checkpoints and its end.
  const pick = (files: Iterable<[path: string, file: unknown]>, where: string): [unknown, unknown] => {
    const folders = new Map<string, Map<string, unknown>>();
    const several = (...names: string[]) => new LoraError("file", `${where}: expected one adapter, found several: ${names.join(", ")}`);
    for (const [path, file] of files) {
      const folder = path.slice(0, -lastPart(path).length), own = folders.get(folder) ?? new Map<string, unknown>();
      if (own.has(lastPart(path))) throw several(path, path);
      folders.set(folder, own.set(lastPart(path), file));
    }
    const depth = (folder: string) => folder.split("/").length;
    const whole = [...folders].filter(([, own]) => own.has(CONFIG) && own.has(WEIGHTS)).sort(([a], [b]) => depth(a) - depth(b));
    const [first, second] = whole;
    if (!first) {
      const missing = [CONFIG, WEIGHTS].find((name) => ![...folders.values()].some((own) => own.has(name)));
      throw new LoraError("file", `${where}: expected ${CONFIG} and ${WEIGHTS}, found ${missing ? `no ${missing}` : "them in different folders"}`);
    }
    if (second && depth(first[0]) === depth(second[0])) throw several(first[0], second[0]);
    return [first[1].get(CONFIG), first[1].get(WEIGHTS)];
  };
  const fromZip = async (bytes: Uint8Array): Promise<[Uint8Array, Uint8Array]> => {
    if (!isZip(bytes)) throw new LoraError("file", `expected a zip of ${CONFIG} and ${WEIGHTS}, or both files, got one other file`);
    const files = await unzip(bytes, (name) => [CONFIG, WEIGHTS].includes(lastPart(name)));
    return pick(files, "the zip") as [Uint8Array, Uint8Array];
  };
  const both = async (config: unknown, weights: unknown): Promise<[Uint8Array, Uint8Array]> =>
    Promise.all([configBytes(CONFIG, config), bytesOf(WEIGHTS, weights)]);

  if (typeof source === "string" || source instanceof URL) {
    const address = String(source);
    if (/\.zip($|[?#])/.test(address)) return fromZip(await bytesOf("the adapter", source));
    const [path, query = ""] = address.split(/(?=[?#])/, 2) as [string, string?];
    const folder = path.endsWith("/") ? path : `${path}/`;
    return both(`${folder}${CONFIG}${query}`, `${folder}${WEIGHTS}${query}`);
  }
  if (source instanceof Blob || source instanceof Uint8Array || source instanceof ArrayBuffer) {
    return fromZip(await bytesOf("the adapter", source));
  }
  if (typeof source === "object" && source !== null && Symbol.iterator in source) {
    const files = [...(source as Iterable<File>)];
    const odd = files.findIndex((file) => !(file instanceof Blob && "name" in file));
    if (odd >= 0) throw new LoraError("invalid-argument", `the adapter: expected files, got ${show(files[odd])}`);
    const only = files.length === 1 ? files[0] : undefined;
    if (only?.name.endsWith(".zip")) return fromZip(await bytesOf(only.name, only));
    const wanted = files.filter(({ name }) => name === CONFIG || name === WEIGHTS);
    return both(...pick(wanted.map((file) => [file.webkitRelativePath || file.name, file]), "the files"));
  }
  checkOptions("the adapter", source, ["config", "weights", "zip"]); // `zip` of savePeft()
  const { config, weights } = source as { config: unknown; weights: unknown };
  return both(config, weights);
}

interface Header {
  tensors: { name: string; dtype: string; shape: number[]; start: number; end: number }[];
  modules: ModelModule[];
}

/** Anything of which pieces can be read, as of a Blob. */
interface Sliceable {
  readonly size: number;
  slice(start: number, end: number): { arrayBuffer(): Promise<ArrayBuffer> };
}

async function piece(file: Sliceable, start: number, end: number): Promise<Uint8Array> {
  try {
    return new Uint8Array(await file.slice(start, end).arrayBuffer());
  } catch (error) {
    throw new LoraError("file", `the model: bytes ${start} to ${end} could not be read: ${String(error)}`);
  }
}

/** The header of a safetensors file, of which no more than that is read. */
async function headerOf(file: Sliceable): Promise<Header> {
  await init();
  const length = await piece(file, 0, 8);
  const header = length.length === 8 ? Number(new DataView(length.buffer).getBigUint64(0, true)) : 0;
  // A header that is too long is refused from its first eight bytes.
  const start = header <= 100_000_000 ? await piece(file, 0, Math.min(8 + header, file.size)) : length;
  return JSON.parse(safetensorsHeader("the model", start, file.size)) as Header;
}

const isSliceable = (source: unknown): source is Sliceable => {
  const { slice, size } = (source ?? {}) as Partial<Sliceable>;
  return typeof slice === "function" && typeof size === "number";
};

async function sliceable(what: string, source: unknown): Promise<Sliceable> {
  if (isSliceable(source)) return source;
  return new Blob([(await bytesOf(what, source)) as Uint8Array<ArrayBuffer>]);
}

const list = (value: unknown): unknown[] => (Array.isArray(value) ? value : [value]);

/** What `modules` can be: a list, or a model's safetensors files, whose headers are read. */
export type ModuleSource = FileSource | readonly FileSource[] | readonly ModelModule[];

/** The modules of a model that have a weight, from the headers of its safetensors files. */
export async function modelModules(model: FileSource | readonly FileSource[]): Promise<ModelModule[]> {
  const headers = await Promise.all(list(model).map(async (file) => headerOf(await sliceable("the model", file))));
  return headers.flatMap((header) => header.modules);
}

async function modulesJson(model: ModuleSource): Promise<string> {
  const given = list(model).every((entry) => typeof entry === "object" && entry !== null && "inFeatures" in entry);
  if (!given) return JSON.stringify(await modelModules(model as FileSource));
  for (const { name, kind, inFeatures, outFeatures, isOutputHead } of list(model) as ModelModule[]) {
    text("name", name);
    oneOf("kind", kind ?? "linear", ["linear", "embedding", "other"]);
    integer("inFeatures", inFeatures);
    integer("outFeatures", outFeatures);
    boolean("isOutputHead", isOutputHead ?? false);
  }
  return json("model", model);
}

/** One module's adapter in a {@link PeftAdapter}. */
export class PeftModule {
  /** The module's name in its model. */
  readonly name!: string;
  /** A kernel of 1×1 counts as linear. */
  readonly kind!: "linear" | "conv1x1" | "embedding";
  /** Inner dimension of B·A. */
  readonly rank!: number;
  /** Numerator of the scaling, as the configuration says it. */
  readonly alpha!: number;
  /** What B·A is multiplied with. */
  readonly scaling!: number;
  /** Width of the input; of an embedding the number of tokens. */
  readonly inFeatures!: number;
  /** Width of the output. */
  readonly outFeatures!: number;
  readonly #values: (part: number) => Float32Array | undefined;

  constructor(described: object, values: (part: number) => Float32Array | undefined) {
    callable("PeftModule", values); // made by loadPeft()
    Object.assign(this, described);
    this.#values = values;
  }

  /** `A [rank, inFeatures]` */
  get a(): Float32Array {
    return this.#values(0) as Float32Array;
  }

  /** `B [outFeatures, rank]` */
  get b(): Float32Array {
    return this.#values(1) as Float32Array;
  }

  /** DoRA's magnitudes `[outFeatures]`. */
  get magnitude(): Float32Array | undefined {
    return this.#values(2);
  }

  /** The bias beside B, `[outFeatures]`. */
  get loraBias(): Float32Array | undefined {
    return this.#values(3);
  }

  /** `scaling·B·A [outFeatures, inFeatures]` */
  deltaWeight(): Float32Array {
    return this.#values(4) as Float32Array;
  }
}

/** A tensor of an adapter that is neither A nor B: a trained bias, a module that was trained whole. */
export interface PeftTensor {
  /** Its key without `base_model.model.`, e.g. `lm_head.weight`. */
  name: string;
  /** As safetensors calls it, such as `F32` or `BF16`. */
  dtype: string;
  /** Its dimensions, the outermost first. */
  shape: number[];
  /** Its numbers. */
  values(): Float32Array;
}

let reading: RawPeft | undefined;
const raws = new WeakMap<PeftAdapter, RawPeft>();
const made = (raw: RawPeft): PeftAdapter => {
  reading = raw;
  return new PeftAdapter();
};
const rawOf = (what: string, adapter: unknown): RawPeft => {
  const raw = typeof adapter === "object" && adapter !== null ? raws.get(adapter as PeftAdapter) : undefined;
  if (!raw) throw new LoraError("invalid-argument", `${what}: expected a PeftAdapter, see loadPeft(), got ${show(adapter)}`);
  return raw;
};

/** An adapter's scaling without its `scale`, which may be 0. */
const ownScaling = (adapter: LoraAdapter): number => {
  const { scale } = adapter;
  adapter.scale = 1;
  const own = adapter.scaling;
  adapter.scale = scale;
  return own;
};
const differ = (a: number, b: number): boolean => Math.abs(a - b) > 1e-6 * Math.abs(a);

/** An adapter in memory: everything that PEFT's two files hold. Made by {@link loadPeft} and the other functions here. */
export class PeftAdapter {
  /** The adapted modules, in the order of their names in the file. */
  readonly modules: readonly PeftModule[];
  /** All other tensors. */
  readonly tensors: readonly PeftTensor[];
  /** What is odd about the files, and with `strict: false` what would have been an error. */
  readonly notes: readonly string[];
  /** How many numbers are trained. */
  readonly parameters: number;
  /** Whether it sits on a base that its start has changed (PiSSA, OLoRA), so that loading it repeats the decomposition. */
  readonly changesBase: boolean;
  readonly #raw: RawPeft;

  constructor() {
    const raw = reading;
    reading = undefined;
    if (!raw) throw new LoraError("invalid-argument", "PeftAdapter: expected loadPeft() or another function to make it");
    this.#raw = raw;
    raws.set(this, raw);
    const described = JSON.parse(raw.describe());
    this.modules = described.modules.map((m: object, i: number) => new PeftModule(m, (part) => raw.values(i, part)));
    this.tensors = described.tensors.map((t: object, i: number) => ({ ...t, values: () => raw.tensor(i) }));
    this.notes = described.notes;
    this.parameters = described.parameters;
    this.changesBase = described.changesBase;
  }

  /** The configuration's fields, also those that are not understood here. */
  get config(): Record<string, unknown> {
    return JSON.parse(this.#raw.config());
  }

  /**
   * How it fits a model. Throws code `unmatched` where none of its modules is in the model and, unless `strict` is false, where
   * anything is left over; `shape` where a module has other widths.
   */
  async report(model: ModuleSource, options: { strict?: boolean } = {}): Promise<PeftReport> {
    checkOptions("report", options, ["strict"]);
    return JSON.parse(this.#raw.report(await modulesJson(model), boolean("strict", options.strict ?? true)));
  }

  /** PEFT's two files. What came as float32 from PEFT goes byte for byte as it came. */
  files(options: { dtype?: WeightType } = {}): PeftFiles {
    checkOptions("files", options, ["dtype"]);
    const { dtype = "float32" } = options;
    oneOf("dtype", dtype, Object.keys(DTYPES));
    const config = this.#raw.config();
    const weights = this.#raw.weights(DTYPES[dtype]);
    return { config, weights, zip: () => zip({ [CONFIG]: new TextEncoder().encode(config), [WEIGHTS]: weights }) };
  }

  /** What a format cannot hold of this adapter, each thing named; empty where nothing would be lost. */
  async canExport(format: ExportFormat | "peft", options: { modelConfig?: FileSource | object } = {}): Promise<string[]> {
    checkOptions("canExport", options, ["modelConfig"]);
    oneOf("format", format, Object.keys(FORMATS));
    const { modelConfig } = options;
    const config = modelConfig === undefined ? undefined : await configBytes("modelConfig", modelConfig);
    return this.#raw.cannotExport(FORMATS[format], config);
  }

  /** An adapter file of llama.cpp. `modelConfig` is the model's config.json; `name` goes into the file. */
  async toGguf(options: { modelConfig: FileSource | object; name?: string }): Promise<Uint8Array> {
    checkOptions("toGguf", options, ["modelConfig", "name"]);
    const { name } = options;
    if (name !== undefined) text("name", name);
    return this.#raw.toGguf(await configBytes("modelConfig", options.modelConfig), options.name);
  }

  /** Kohya's file, keys beginning with `prefix`, by default `lora_unet`. */
  toKohya(options: { prefix?: string } = {}): Uint8Array {
    checkOptions("toKohya", options, ["prefix"]);
    return this.#raw.toKohya(text("prefix", options.prefix ?? "lora_unet"));
  }

  /** Hesper's binary file: q and v of each layer. */
  toHesper(): Uint8Array {
    return this.#raw.toHesper();
  }

  /**
   * The same function on the model's own weights, for an adapter of PiSSA or OLoRA: a plain one of twice the rank. `model` are the
   * model's safetensors files, not quantised. Any other adapter is returned as it is.
   */
  async toPlain(options: { model: FileSource | readonly FileSource[] }): Promise<PeftAdapter> {
    checkOptions("toPlain", options, ["model"]);
    if (!this.changesBase) return this;
    const files = await Promise.all(list(options.model).map((file) => sliceable("model", file)));
    const headers = await Promise.all(files.map(headerOf));
    rename(headers, (names) => this.#raw.renamed(names));
    const plain = new RawPlain(this.#raw);
    for (let name = plain.wanted(); name !== undefined; name = plain.wanted()) {
      const at = headers.findIndex((header) => header.tensors.some((t) => t.name === `${name}.weight`));
      const tensor = headers[at]?.tensors.find((t) => t.name === `${name}.weight`);
      if (!tensor) throw new LoraError("unmatched", `the model has no tensor ${name}.weight, which the adapter started from`);
      plain.push(tensor.dtype, await piece(files[at] as Sliceable, tensor.start, tensor.end));
    }
    return made(plain.finish());
  }

  /**
   * Writes the adapter into layers of the same names, to be used or trained on: A, B, magnitudes and biases, and the scaling. The
   * layers must have been made with its ranks and variants. Throws code `unmatched` where a module has no layer or, unless
   * `strict` is false, a layer no module or another tensor no place; `shape` where the two differ; `invalid-argument` for merged
   * layers and two of one name; `disposed`. Writes all of it or nothing.
   */
  applyTo(layers: readonly LoraLinear[], options: { adapter?: string; strict?: boolean } = {}): void {
    checkOptions("applyTo", options, ["adapter", "strict"]);
    const strict = boolean("strict", options.strict ?? true);
    if (array("layers", layers).some((layer) => !(layer instanceof LoraLinear))) {
      throw new LoraError("invalid-argument", "layers: expected LoraLinear and nothing else");
    }
    const names = layers.map((layer) => layer.name), twice = names.find((name, i) => name !== undefined && names.indexOf(name) < i);
    if (twice !== undefined) throw new LoraError("invalid-argument", `layers: expected one of each name, got two called ${twice}`);
    const { init_lora_weights: init } = this.config;
    const rest = new Map(this.tensors.map((tensor) => [tensor.name, tensor]));
    const fits = this.modules.map((module) => {
      const layer = layers.find((layer) => layer.name === module.name);
      if (!layer) throw new LoraError("unmatched", `${module.name}: no layer has this name`);
      if (layer.merged) throw new LoraError("invalid-argument", `${module.name}: expected a layer whose adapters are not merged: unmerge() first`);
      const adapter = layer.adapter(options.adapter), own = ownScaling(adapter);
      if ((changesBase(layer.init) || this.changesBase) && layer.init !== init) {
        throw new LoraError("unmatched", `${module.name}: expected a layer of the file's init, ${String(init)}, got ${layer.init}; see toPlain()`);
      }
      if (init === "olora" && differ(own, module.scaling)) {
        throw new LoraError("unmatched", `${module.name}: expected a layer of the file's scaling, ${module.scaling}, which OLoRA took out of the weight, got ${adapter.scaling}`);
      }
      const got = `rank ${adapter.rank}, ${layer.outFeatures}×${layer.inFeatures}`;
      const expected = `rank ${module.rank}, ${module.outFeatures}×${module.inFeatures}`;
      if (got !== expected) throw new LoraError("shape", `\`${module.name}\`: expected a layer of ${expected}, got ${got}`);
      const parts = { magnitude: module.magnitude, loraBias: module.loraBias };
      for (const part of ["magnitude", "loraBias"] as const) {
        if ((parts[part] === undefined) !== (adapter[part] === undefined)) {
          const has = parts[part] === undefined ? "has no" : "has a";
          throw new LoraError("unmatched", `${module.name}: the file ${has} ${part}, unlike the layer`);
        }
      }
      // The second is its name in files of PEFT before 0.7.
      const keys = [`${module.name}.base_layer.bias`, `${module.name}.bias`], key = keys.find((key) => rest.has(key)) ?? "";
      const bias = adapter.baseBias && rest.get(key)?.values();
      if (bias) rest.delete(key);
      if (bias && bias.length !== layer.outFeatures) throw new LoraError("shape", `\`${key}\`: expected ${layer.outFeatures} elements, got ${bias.length}`);
      if (adapter.weight.a.disposed) throw new LoraError("disposed", `the layer ${module.name} was disposed of; expected a live one`);
      const scale = differ(own, module.scaling) ? module.scaling / own : 1;
      if (!Number.isFinite(Math.fround(scale))) throw new LoraError("invalid-argument", `${module.name}: expected a layer of about the file's scaling, ${module.scaling}, got ${own}`);
      return { module, adapter, parts, bias, scale };
    });
    const extra = layers.find((layer) => !this.modules.some((module) => module.name === layer.name));
    if (strict && extra) throw new LoraError("unmatched", `the layer ${extra.name ?? "without a name"} is not in the adapter`);
    const [left] = rest.keys();
    if (strict && left !== undefined) throw new LoraError("unmatched", `${left}: no layer takes it; expected one made with trainBias for a bias, none for other tensors`);
    for (const { module, adapter, parts, bias, scale } of fits) {
      adapter.weight.a.write(module.a);
      adapter.weight.b.write(module.b);
      if (parts.magnitude) adapter.magnitude?.value.write(parts.magnitude);
      if (parts.loraBias) adapter.loraBias?.value.write(parts.loraBias);
      if (bias) adapter.baseBias?.value.write(bias);
      adapter.scale = scale;
    }
  }
}

/** Options of {@link loadPeft}. */
export interface LoadPeftOptions {
  /** The model that it is for: an adapter that fits it in part or not at all is refused. */
  model?: ModuleSource;
  /**
   * Whether values that are not finite, an alpha of 0, fields that make the adapter something else, and what fits nothing in the
   * model are errors, as by default, or notes.
   */
  strict?: boolean;
}

/** Loads an adapter that PEFT saved. Needs no GPU. */
export async function loadPeft(source: PeftSource, options: LoadPeftOptions = {}): Promise<PeftAdapter> {
  checkOptions("loadPeft", options, ["model", "strict"]);
  const strict = boolean("strict", options.strict ?? true);
  await init();
  const [config, weights] = await peftFiles(source);
  const adapter = made(RawPeft.read(config, weights, strict));
  if (options.model !== undefined) await adapter.report(options.model, { strict });
  return adapter;
}

/** Where an adapter of another format comes from, and what that format leaves out. */
export type OtherAdapter =
  /** llama.cpp's: `modelConfig` is the model's config.json, which llama and mistral need. */
  | { format: "gguf"; file: FileSource; modelConfig?: FileSource | object }
  /** Kohya's: `model` says what its names, underscores for dots, mean. */
  | { format: "kohya"; file: FileSource; model: ModuleSource }
  /** MLX's `adapters.safetensors` and `adapter_config.json`. */
  | { format: "mlx"; file: FileSource; config: FileSource | object }
  /** Hesper's: the widths of its q and v. */
  | { format: "hesper"; file: FileSource; inFeatures: number; qOutFeatures: number; vOutFeatures: number };

/** Reads an adapter of another format. */
export async function importAdapter(options: OtherAdapter): Promise<PeftAdapter> {
  const known = { gguf: ["modelConfig"], kohya: ["model"], mlx: ["config"], hesper: ["inFeatures", "qOutFeatures", "vOutFeatures"] };
  checkOptions("importAdapter", options, ["format", "file", ...Object.values(known).flat()]);
  oneOf("format", options.format, Object.keys(known));
  checkOptions("importAdapter", options, ["format", "file", ...known[options.format]]);
  await init();
  const file = await bytesOf("file", options.file);
  switch (options.format) {
    case "gguf": {
      const { modelConfig } = options;
      return made(RawPeft.fromGguf(file, modelConfig === undefined ? undefined : await configBytes("modelConfig", modelConfig)));
    }
    case "kohya":
      return made(RawPeft.fromKohya(file, await modulesJson(options.model)));
    case "mlx":
      return made(RawPeft.fromMlx(await configBytes("config", options.config), file));
    case "hesper": {
      const widths = (["inFeatures", "qOutFeatures", "vOutFeatures"] as const).map((name) => integer(name, options[name]));
      return made(RawPeft.fromHesper(file, ...(widths as [number, number, number])));
    }
  }
}

/** A module to be saved, as arrays. */
export interface PeftModuleOptions {
  /** The module's name in its model. */
  name: string;
  /** Default `"linear"`. */
  kind?: "linear" | "conv1x1" | "embedding";
  /** Inner dimension of B·A. */
  rank: number;
  /** Default: the rank. The scaling is alpha/rank, or alpha/√rank where `config` or `like` say `use_rslora`. */
  alpha?: number;
  /** `A [rank, inFeatures]` */
  a: Float32Array;
  /** `B [outFeatures, rank]` */
  b: Float32Array;
  /** DoRA's magnitudes `[outFeatures]`. */
  magnitude?: Float32Array;
  /** The bias beside B, `[outFeatures]`. */
  loraBias?: Float32Array;
  /** The trained bias of the base `[outFeatures]`. */
  bias?: Float32Array;
}
const MODULE_OPTIONS = ["name", "kind", "rank", "alpha", "a", "b", "magnitude", "loraBias", "bias"];

/** Options of {@link savePeft}. */
export interface SavePeftOptions {
  /** Layers with names, or arrays. */
  layers: readonly (LoraLinear | PeftModuleOptions)[];
  /** The adapter of that name of each layer; by default the first active one. */
  adapter?: string;
  /** Name or path of the base model, for `base_model_name_or_path`. */
  baseModel?: string;
  /** An adapter whose configuration is kept but for modules, ranks and alphas: the one that training went on from. */
  like?: PeftAdapter;
  /**
   * Whether PiSSA and OLoRA adapters are saved as plain ones of twice the rank, for the model's own weights; else they are saved as
   * such, and whoever loads them repeats the decomposition.
   */
  plain?: boolean;
  /** Fields of the configuration to set, e.g. `{ task_type: "CAUSAL_LM" }`. Of layers `use_rslora` and `lora_dropout` are known. */
  config?: Record<string, unknown>;
  /** Of all numbers in the file; default `"float32"`. */
  dtype?: WeightType;
}

/** An adapter of layers or arrays, that PEFT and everything here takes. */
export async function makePeft(options: Omit<SavePeftOptions, "dtype">): Promise<PeftAdapter> {
  checkOptions("savePeft", options, ["layers", "adapter", "baseModel", "like", "plain", "config"]);
  const { layers, baseModel, like, config = {} } = options;
  const plain = boolean("plain", options.plain ?? false);
  array("layers", layers);
  checkOptions("config", config, Object.keys(Object(config)));
  if (like !== undefined) rawOf("like", like);
  await init();
  // All read-backs begin now, so that they see one state.
  const adapters = layers.filter((layer) => layer instanceof LoraLinear).map((layer) => layer.adapter(options.adapter));
  const known = !like && adapters.length > 0 && adapters.length === layers.length;
  const own = { use_rslora: adapters.every((each) => each.useRslora), lora_dropout: adapters[0]?.dropout };
  const fields: Record<string, unknown> = { ...(known && own), ...config };
  const inits = new Set(layers.filter((layer) => layer instanceof LoraLinear).map((layer) => startToSave(layer, options.adapter, plain)));
  if (like && adapters.length > 0) inits.add(changesBase(like.config.init_lora_weights) && !plain ? String(like.config.init_lora_weights) : true);
  if (inits.size > 1) {
    throw new LoraError("invalid-argument", `layers: expected one \`init\` in all of them and in \`like\`, got ${[...inits].join(" and ")}; \`plain\` saves any`);
  }
  const [start = true] = inits;
  if (plain || start !== true) fields.init_lora_weights = start;
  const useRslora = (fields.use_rslora ?? like?.config.use_rslora) === true;
  const modules = await Promise.all(layers.map((layer, i) => (layer instanceof LoraLinear ? readLayer(layer, i, useRslora, plain, options.adapter) : layer)));
  const raw = new RawModulesToSave();
  modules.forEach((module, i) => {
    checkOptions(`layers[${i}]`, module, MODULE_OPTIONS);
    const { name, kind = "linear", alpha = module.rank, magnitude, loraBias, bias } = module;
    const kinds = ["linear", "conv1x1", "embedding"];
    if (typeof name !== "string" || name === "" || !kinds.includes(kind)) {
      throw new LoraError("invalid-argument", `layers[${i}]: expected a name, and as kind one of ${kinds.join(", ")}; a layer needs a name to be saved`);
    }
    const [rank, a, b] = [integer("rank", module.rank), float32Array("a", module.a), float32Array("b", module.b)];
    for (const [part, values] of Object.entries({ magnitude, loraBias, bias })) if (values !== undefined) float32Array(part, values);
    raw.push(name, kinds.indexOf(kind), rank, finite("alpha", alpha), a, b, magnitude, loraBias);
    if (bias) raw.pushBias(name, bias);
  });
  if (baseModel !== undefined) raw.set("base_model_name_or_path", JSON.stringify(text("baseModel", baseModel)));
  for (const [key, value] of Object.entries(fields)) raw.set(key, json(`config.${key}`, value));
  return made(like === undefined ? raw.finish() : raw.finishLike(rawOf("like", like)));
}

/** What a file says of a layer's start: one that leaves the base as it is counts as the default. */
function startToSave(layer: LoraLinear, name: string | undefined, plain: boolean): string | true {
  if (plain || !changesBase(layer.init)) return true;
  const { name: adapter, scale } = layer.adapter(name);
  if (layer.init === "olora" && scale !== 1) {
    throw new LoraError("invalid-argument", `adapter: expected the scale 1, which OLoRA took out of the weight, got ${scale}; \`plain\` saves any`);
  }
  if (internals.isFirst(layer, adapter)) return layer.init;
  throw new LoraError("invalid-argument", `adapter: ${adapter} is on a weight that ${layer.init} changed for another; expected \`plain\``);
}

async function readLayer(layer: LoraLinear, index: number, useRslora: boolean, plain: boolean, name?: string): Promise<PeftModuleOptions> {
  if (layer.name === undefined) {
    throw new LoraError("invalid-argument", `layers[${index}]: expected a layer with a name, got one without; a layer needs a name to be saved`);
  }
  const adapter = layer.adapter(name), read = (tensor: Tensor | undefined) => tensor?.read() as Promise<Float32Array> | undefined;
  let { scaling, rank } = adapter;
  let [a, b, magnitude, loraBias, bias] = (await Promise.all(
    [adapter.weight.a, adapter.weight.b, adapter.magnitude?.value, adapter.loraBias?.value, adapter.baseBias?.value].map(read),
  )) as [Float32Array, Float32Array, ...(Float32Array | undefined)[]];
  if (plain && changesBase(layer.init)) {
    // The layer's weight is W − s·B₀·A₀, and what it gives W + s·[B·scaling/s, −B₀]·[A; A₀].
    const start = internals.takenOut(layer), first = rank, [trained, factor] = [b, scaling / start.scaling];
    rank += start.a.length / layer.inFeatures;
    const both = new Float32Array(a.length + start.a.length);
    both.set(a);
    both.set(start.a, a.length);
    a = both;
    b = Float32Array.from({ length: layer.outFeatures * rank }, (_, i) => {
      const row = Math.floor(i / rank), k = i % rank;
      return k < first ? factor * (trained[row * first + k] as number) : -(start.b[row * (rank - first) + k - first] as number);
    });
    scaling = start.scaling;
    // B's bias is scaled as B is.
    loraBias = loraBias?.map((v) => factor * v);
  }
  // A scaling in float32 has seven digits.
  const alpha = Number((scaling * (useRslora ? Math.sqrt(rank) : rank)).toPrecision(7));
  return {
    name: layer.name, rank, alpha, a, b,
    ...(magnitude && { magnitude }), ...(loraBias && { loraBias }), ...(bias && { bias }),
  };
}

/** Saves layers as PEFT does: `adapter_config.json`, `adapter_model.safetensors`, and both in a zip. */
export async function savePeft(options: SavePeftOptions): Promise<PeftFiles> {
  checkOptions("savePeft", options, ["layers", "adapter", "baseModel", "like", "plain", "config", "dtype"]);
  const { dtype = "float32", ...rest } = options;
  return (await makePeft(rest)).files({ dtype });
}

/** Several adapters as one, as PEFT's `add_weighted_adapter` has it. Its scaling is 1, the configuration that of the first. */
export async function combine(
  adapters: readonly { adapter: PeftAdapter; weight: number }[],
  options: { type?: "linear" | "cat" | "svd"; rank?: number } = {},
): Promise<PeftAdapter> {
  checkOptions("combine", options, ["type", "rank"]);
  const types = ["linear", "cat", "svd"], { type = "cat", rank } = options;
  oneOf("type", type, types);
  array("adapters", adapters);
  await init();
  const raw = new RawCombination();
  for (const entry of adapters) {
    checkOptions("adapters", entry, ["adapter", "weight"]);
    raw.push(rawOf("adapter", entry.adapter), finite("weight", entry.weight));
  }
  return made(raw.finish(types.indexOf(type), rank === undefined ? 0 : integer("rank", rank)));
}

/** A model's file with an adapter in it, piece by piece: bytes, or where they stand unchanged in the model's file. */
async function* mergedPieces(raw: RawPeft, file: Sliceable, header: Header): AsyncGenerator<Uint8Array | [number, number]> {
  const changed = new Set(raw.mergedTensors());
  let from = 0; // what is before is written
  for (const t of [...header.tensors].sort((a, b) => a.start - b.start)) {
    if (!changed.has(t.name)) continue;
    const merged = raw.mergeTensor(t.name, t.dtype, Uint32Array.from(t.shape), await piece(file, t.start, t.end));
    if (!merged) continue;
    if (t.start > from) yield [from, t.start];
    yield merged;
    from = t.end;
  }
  if (file.size > from) yield [from, file.size];
}

/** {@link merge}, for files of which not even the result fits into memory: calls `write` with one piece after another. */
export async function mergeInto(
  options: { adapter: PeftAdapter; model: readonly Sliceable[] },
  write: (index: number, bytes: Uint8Array) => Promise<void>,
): Promise<void> {
  checkOptions("mergeInto", options, ["adapter", "model"]);
  const raw = rawOf("adapter", options.adapter);
  callable("write", write);
  const model = array("model", options.model, " of files") as readonly Sliceable[];
  for (const file of model) if (!isSliceable(file)) throw new LoraError("invalid-argument", `model: expected files, got ${show(file)}`);
  const headers = await Promise.all(model.map(headerOf));
  checkMerged(raw, headers);
  for (const [i, header] of headers.entries()) {
    const file = model[i] as Sliceable;
    for await (const part of mergedPieces(raw, file, header)) {
      if (part instanceof Uint8Array) {
        await write(i, part);
        continue;
      }
      const STEP = 16 << 20;
      for (let at = part[0]; at < part[1]; at += STEP) await write(i, await piece(file, at, Math.min(at + STEP, part[1])));
    }
  }
}

/** Gives the tensors the names by which the adapter knows them. */
const rename = (headers: Header[], names: (theirs: string[]) => string[]): void => {
  const tensors = headers.flatMap((header) => header.tensors);
  names(tensors.map(({ name }) => name)).forEach((name, i) => Object.assign(tensors[i] as object, { name }));
};
const checkMerged = (raw: RawPeft, headers: Header[]): void => rename(headers, (names) => raw.checkMerge(names));

/**
 * A model with an adapter in it: `W + scaling·B·A` in the model's own number format, everything else as it is. `model` is a
 * safetensors file or several that belong together; the result is a Blob of each, whose unchanged parts are the model's own, so that
 * the model's own `model.safetensors.index.json` fits them. Rejects with code `unsupported` where the adapter changes the
 * embedding of a model without a head of its own, which is tied to it, `unmatched` where the model lacks a tensor, and `shape`.
 */
export async function merge(options: { adapter: PeftAdapter; model: FileSource }): Promise<Blob>;
export async function merge(options: { adapter: PeftAdapter; model: readonly FileSource[] }): Promise<Blob[]>;
export async function merge(options: { adapter: PeftAdapter; model: FileSource | readonly FileSource[] }): Promise<Blob | Blob[]> {
  checkOptions("merge", options, ["adapter", "model"]);
  const raw = rawOf("adapter", options.adapter);
  const files = await Promise.all(list(options.model).map(async (file) => (await sliceable("model", file)) as Blob));
  const headers = await Promise.all(files.map(headerOf));
  checkMerged(raw, headers);
  const merged = await Promise.all(headers.map(async (header, i) => {
    const file = files[i] as Blob, parts: BlobPart[] = [];
    for await (const part of mergedPieces(raw, file, header)) {
      parts.push(part instanceof Uint8Array ? (part as Uint8Array<ArrayBuffer>) : file.slice(...part));
    }
    return new Blob(parts);
  }));
  return Array.isArray(options.model) ? merged : (merged[0] as Blob);
}
