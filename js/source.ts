// Where models come from: files, folders, addresses, the Hub.
import type { RawModelLoader } from "./wasm/lora_webgpu.js";
import { boolean, callable, checkOptions, checkSignal, json, oneOf, show, text } from "./check.js";
import { LoraError } from "./error.js";

/** A file's bytes, or a file of the user's, which is read in pieces. */
export type ModelFile = Uint8Array | Blob;

/** How a model comes: by one of `config` with `weights`, `gguf` alone, `folder`, or `hub`. */
export interface ModelSource {
  /** `config.json`, its address, or what it holds. */
  config?: ModelFile | URL | string | object;
  /** `model.safetensors`, or all files of a model in several, or their addresses. */
  weights?: ModelFile | URL | string | readonly (ModelFile | URL | string)[];
  /** A GGUF file with tensors in F32, F16, BF16, Q8_0, Q4_0 or Q4_1; of a folder or of the Hub's the file's name. */
  gguf?: ModelFile | URL | string;
  /** A folder with `config.json` and the safetensors files: its address, a directory handle, or files that a user chose. */
  folder?: URL | string | FileSystemDirectoryHandle | Iterable<File>;
  /** A model's name on the Hugging Face Hub: `"org/name"`. Its files are kept in the origin-private file system. */
  hub?: string;
  /** Of the Hub: a branch, tag or commit; default `"main"`. */
  revision?: string;
  /** Of the Hub: another server that answers like it; default `"https://huggingface.co"`. */
  endpoint?: string;
  /** Of the Hub: whether files are kept for the next time; default true. */
  cache?: boolean;
  /** In place of the page's own, for instance one that adds a token. */
  fetch?: typeof globalThis.fetch;
  /**
   * How the weights of linear layers and embeddings are kept on the GPU: as in the file (default), floats as `f32`, or floats
   * packed to `q8_0`, a byte and a bit each. What is quantised in the file stays as it is.
   */
  dtype?: "as-is" | "f32" | "q8_0";
  /** Ends the loading with the signal's reason. */
  signal?: AbortSignal;
  /** Told now and then how many bytes have come: of a `file` that is downloaded, then of the `tensor`s that are on the GPU. */
  onProgress?: (progress: ModelProgress) => void;
}

/** How far a model is loaded. */
export interface ModelProgress {
  /** Bytes so far. */
  loaded: number;
  /** Of a download whose length the server does not say, 0. */
  total: number;
  /** The tensor that was just uploaded. */
  tensor?: string;
  /** The file that is being downloaded. */
  file?: string;
}

export const SOURCE_OPTIONS = [
  "config", "weights", "gguf", "folder", "hub", "revision", "endpoint", "cache", "fetch", "dtype", "signal", "onProgress",
] as const;
const INDEX = "model.safetensors.index.json", SINGLE = "model.safetensors", CACHE = "lora-webgpu-models";
const COMMIT = /^[0-9a-f]{40}$/;

const wrong = (name: string, expected: string, got: unknown) =>
  new LoraError("invalid-argument", `${name}: expected ${expected}, got ${show(got)}`);
export const isFile = (value: unknown): value is ModelFile => value instanceof Uint8Array || value instanceof Blob;
const nameOf = (file: Blob): string => ("name" in file ? String(file.name) : "a file");
export const length = (file: ModelFile): number => (file instanceof Blob ? file.size : file.length);

export async function slice(file: ModelFile, start: number, end: number): Promise<Uint8Array> {
  if (!(file instanceof Blob)) return file.subarray(start, end);
  try {
    return new Uint8Array(await file.slice(start, end).arrayBuffer());
  } catch (error) {
    throw new LoraError("file", `${nameOf(file)}: bytes ${start} to ${end} could not be read; it may have changed since it was chosen: ${String(error)}`);
  }
}

/** A file by name, or undefined where there is none. */
type Open = (name: string) => Promise<ModelFile | undefined>;

/** What of a source is wrong is said before anything is read. */
export function checkSource(source: ModelSource): void {
  checkOptions("CausalLM.load", source, SOURCE_OPTIONS);
  const ways = [source.weights !== undefined, source.folder !== undefined, source.hub !== undefined];
  if (!ways.some(Boolean)) ways.push(source.gguf !== undefined);
  if (ways.filter(Boolean).length !== 1) {
    throw wrong("source", "one of `weights` with `config`, `gguf`, `folder` or `hub`", Object.keys(source).join(", ") || "none");
  }
  if (source.weights !== undefined && source.gguf !== undefined) throw wrong("gguf", "none beside weights", source.gguf);
  if (source.weights === undefined && source.config !== undefined) throw wrong("config", "none without weights", source.config);
  for (const name of ["revision", "endpoint", "cache"] as const) {
    if (source.hub === undefined && source[name] !== undefined) throw wrong(name, "none without hub", source[name]);
  }
  for (const name of ["hub", "revision", "endpoint"] as const) if (source[name] !== undefined) text(name, source[name]);
  if (source.hub !== undefined && !/^\w[\w.-]*(\/\w[\w.-]*)?$/.test(source.hub)) throw wrong("hub", '"org/name"', source.hub);
  const { dtype = "as-is" } = source;
  oneOf("dtype", dtype, ["as-is", "f32", "q8_0"]);
  boolean("cache", source.cache ?? true);
  for (const name of ["fetch", "onProgress"] as const) {
    if (source[name] !== undefined) callable(name, source[name]);
  }
  checkSignal(source.signal);
}

/** An address, absolute or of a page relative to it. */
function addressOf(what: string, value: string | URL): string {
  try {
    return new URL(String(value), globalThis.location?.href).href;
  } catch {
    throw wrong(what, "an address", String(value));
  }
}

/** Of chosen files, which may lie in folders of a folder, those of the one nearest to the top that has a config.json. */
function nearestFolder(files: readonly File[]): Map<string, File> {
  const paths = files.map((file) => [file.webkitRelativePath || file.name, file] as const);
  const tops = paths.map(([path]) => path).filter((path) => /(^|\/)config\.json$/.test(path));
  const depth = (path: string) => path.split("/").length;
  tops.sort((a, b) => depth(a) - depth(b));
  const [top = paths.map(([path]) => path).sort((a, b) => depth(a) - depth(b))[0] ?? "", second] = tops;
  if (second !== undefined && depth(second) === depth(top)) {
    throw new LoraError("file", `folder: ${top} and ${second} lie side by side; expected the folder of one model`);
  }
  const base = top.slice(0, top.lastIndexOf("/") + 1);
  return new Map(paths.filter(([path]) => path.startsWith(base)).map(([path, file]) => [path.slice(base.length), file]));
}

/** The commit that a branch or tag of the Hub stands for, as the server says or, where it does not answer, said the last time. */
async function commitOf({ hub, endpoint = "https://huggingface.co", revision = "main", cache = true, signal, ...source }: ModelSource): Promise<string> {
  if (COMMIT.test(revision)) return revision;
  const url = `${endpoint}/api/models/${hub}/revision/${encodeURIComponent(revision)}`;
  const answer = await asked({ ...source, ...(signal && { signal }) }, url).catch(() => undefined);
  signal?.throwIfAborted();
  const info = answer?.ok ? ((await answer.json().catch(() => ({}))) as { sha?: unknown }) : {};
  const place = cache ? await cached(url) : undefined;
  if (typeof info.sha !== "string") return (await place?.getFile().then((file) => file.text()).catch(() => undefined)) || revision;
  // What cannot be kept is asked for again.
  const stream = await place?.createWritable().catch(() => undefined);
  await stream?.write(info.sha).then(() => stream.close()).catch(() => {});
  return info.sha;
}

/** The files of a source by name. */
async function opener(source: ModelSource): Promise<Open> {
  const { folder, hub, endpoint = "https://huggingface.co" } = source;
  if (hub !== undefined) {
    const at = await commitOf(source); // a branch moves, and what it was is not kept by its name
    const keep = (source.cache ?? true) && COMMIT.test(at);
    return (name) => download(source, `${endpoint}/${hub}/resolve/${encodeURIComponent(at)}/${name}`, name, keep);
  }
  if (typeof folder === "string" || folder instanceof URL) {
    const base = addressOf("folder", folder).replace(/\/?$/, "/");
    return (name) => download(source, new URL(name, base).href, name, false);
  }
  if (typeof folder !== "object" || folder === null) throw wrong("folder", "an address, a directory handle or files", folder);
  if ("getFileHandle" in folder) {
    return async (name) => {
      try {
        return await (await folder.getFileHandle(name)).getFile();
      } catch (error) {
        if ((error as DOMException).name === "NotFoundError") return undefined;
        throw new LoraError("file", `${name}: ${String(error)}`);
      }
    };
  }
  if (!(Symbol.iterator in folder)) throw wrong("folder", "an address, a directory handle or files", folder);
  const chosen = [...folder];
  const other = chosen.find((file) => !(file instanceof File));
  if (other !== undefined) throw wrong("folder", "files", other);
  const files = nearestFolder(chosen);
  return async (name) => files.get(name);
}

/** What a server answers; from a function of the caller's, which may do anything. */
async function asked({ fetch: own, signal }: ModelSource, url: string): Promise<Response> {
  const answer: unknown = await (own ?? fetch)(url, { signal: signal ?? null });
  if (typeof answer !== "object" || answer === null) throw wrong("fetch", "a function that gives a Response", answer);
  return answer as Response;
}

/** A file from an address; undefined where the server has none. */
async function download(source: ModelSource, url: string, name: string, keep: boolean): Promise<Blob | undefined> {
  const { signal, onProgress } = source;
  const place = keep ? await cached(url) : undefined;
  const kept = await place?.getFile().catch(() => undefined);
  if (kept && kept.size > 0) return kept;
  const failed = (why: string) => new LoraError("file", `${name}: ${why} from ${url}`);
  const response = await asked(source, url).catch((error: unknown) => {
    signal?.throwIfAborted();
    throw failed(String(error));
  });
  if (response.status === 404) return undefined;
  if (!response.ok || !response.body) throw failed(`HTTP ${response.status}`);
  const total = Number(response.headers.get("content-length") ?? 0);
  let loaded = 0;
  const counted = response.body.pipeThrough(
    new TransformStream<Uint8Array<ArrayBuffer>, Uint8Array<ArrayBuffer>>({
      transform(chunk, controller) {
        loaded += chunk.length;
        onProgress?.({ loaded, total, file: name });
        controller.enqueue(chunk);
      },
    }),
  );
  try {
    if (!place) return await new Response(counted).blob();
    // What breaks off leaves nothing: the file changes when all has come.
    await counted.pipeTo(await place.createWritable(), { signal: signal as AbortSignal });
    return await place.getFile();
  } catch (error) {
    signal?.throwIfAborted();
    if ((error as DOMException).name === "QuotaExceededError") throw new LoraError("storage-full", `${name}: no room to keep it; load with cache: false`);
    throw failed(String(error));
  }
}

/** Where a file from this address is kept; undefined where this browser keeps none. */
async function cached(url: string): Promise<FileSystemFileHandle | undefined> {
  try {
    const { host, pathname } = new URL(url, globalThis.location?.href);
    let folder = await (await navigator.storage.getDirectory()).getDirectoryHandle(CACHE, { create: true });
    const parts = [host, ...pathname.split("/")].filter(Boolean).map(encodeURIComponent);
    const last = parts.pop() as string;
    for (const part of parts) folder = await folder.getDirectoryHandle(part.replaceAll("%25", "%"), { create: true });
    const file = await folder.getFileHandle(last, { create: true });
    return "createWritable" in file ? file : undefined;
  } catch {
    return undefined;
  }
}

/** Frees what {@link CausalLM.load} kept of the Hub's files, all of it. */
export async function clearModelCache(): Promise<void> {
  await (await navigator.storage.getDirectory()).removeEntry(CACHE, { recursive: true }).catch(() => {});
}

/** One file of a model's folder or of the Hub's, such as `tokenizer.json`; undefined where there is none. */
export async function modelFile(source: ModelSource, name: string): Promise<ModelFile | undefined> {
  checkSource(source);
  text("name", name);
  return (await opener(source.hub === undefined && source.folder === undefined ? { folder: [] } : source))(name);
}

/** The configuration, where it is no part of the weights' files, and those by name. */
export async function openModel(source: ModelSource): Promise<{ config?: Uint8Array; files: [name: string, file: ModelFile][] }> {
  checkSource(source);
  const { config, weights, gguf } = source;
  const nameIn = (file: ModelFile | URL | string, i: number) =>
    file instanceof Blob && "name" in file ? nameOf(file) : isFile(file) ? `weights ${i}` : String(file).replace(/^.*\//, "");
  const given = async (what: string, file: unknown): Promise<ModelFile> => {
    if (isFile(file)) return file;
    if (typeof file !== "string" && !(file instanceof URL)) throw wrong(what, "a Uint8Array, Blob, File or address", file);
    const found = await download(source, addressOf(what, file), nameIn(file, 0), false);
    if (!found) throw new LoraError("file", `${what}: there is no ${String(file)}`);
    return found;
  };
  if (weights !== undefined) {
    const list = (Array.isArray(weights) ? weights : [weights]) as (ModelFile | URL | string)[];
    for (const file of list) if (!isFile(file) && typeof file !== "string" && !(file instanceof URL)) throw wrong("weights", "a Uint8Array, Blob, File or address", file);
    const bytes = await configBytes(config, (file) => given("config", file));
    const files: [string, ModelFile][] = [];
    for (const [i, file] of list.entries()) files.push([nameIn(file, i), await given("weights", file)]);
    return { config: bytes, files };
  }
  if (gguf !== undefined && source.folder === undefined && source.hub === undefined) {
    return { files: [[nameIn(gguf, 0), await given("gguf", gguf)]] };
  }
  const open = await opener(source);
  const needed = async (name: string, by: string): Promise<ModelFile> => {
    const file = await open(name);
    if (!file) throw new LoraError("file", `${by} has no ${name}`);
    return file;
  };
  const where = source.hub ?? "the folder";
  if (gguf !== undefined) {
    if (typeof gguf !== "string") throw wrong("gguf", "the name of one of the files", gguf);
    return { files: [[gguf, await needed(gguf, where)]] };
  }
  const bytes = await configBytes(await needed("config.json", where));
  const single = await open(SINGLE);
  if (single) return { config: bytes, files: [[SINGLE, single]] };
  const index = await open(INDEX);
  if (!index) throw new LoraError("file", `${where} has neither ${SINGLE} nor ${INDEX}`);
  let map: unknown;
  try {
    map = (JSON.parse(new TextDecoder().decode(await slice(index, 0, length(index)))) as { weight_map: unknown }).weight_map;
  } catch {
    map = undefined;
  }
  const names = typeof map === "object" && map !== null ? Object.values(map) : [];
  if (names.length === 0 || names.some((name) => typeof name !== "string")) throw new LoraError("file", `${INDEX}: expected a weight_map of tensors' files`);
  const files: [string, ModelFile][] = [];
  // A name that is an address or leaves the folder could send the page's token elsewhere.
  const odd = (names as string[]).find((name) => !/^[\w.-]+(\/[\w.-]+)*$/.test(name) || name.split("/").includes(".."));
  if (odd !== undefined) throw new LoraError("file", `${INDEX}: ${show(odd)} is no name of a file in the folder`);
  for (const name of [...new Set(names as string[])].sort()) files.push([name, await needed(name, `${where}, whose ${INDEX} names it,`)]);
  return { config: bytes, files };
}

/** A configuration's text. */
export async function configBytes(config: unknown, fetched?: (file: URL) => Promise<ModelFile>): Promise<Uint8Array> {
  if (config instanceof URL && fetched) return configBytes(await fetched(config));
  if (isFile(config)) return slice(config, 0, length(config));
  if (typeof config !== "string" && (typeof config !== "object" || config === null)) throw wrong("config", "config.json or its object", config);
  if (typeof config === "string" && fetched && !config.trimStart().startsWith("{")) return configBytes(await fetched(new URL(addressOf("config", config))));
  return new TextEncoder().encode(typeof config === "string" ? config : json("config", config));
}

/** Calls `parse` with the beginning of a file: with more of it as long as it is not enough. */
export async function readHeader<T>(file: ModelFile, parse: (bytes: Uint8Array) => T): Promise<T> {
  const total = length(file);
  const first = await slice(file, 0, Math.min(8, total));
  const isGguf = String.fromCharCode(...first.subarray(0, 4)) === "GGUF";
  const size = first.length < 8 ? 0 : Number(new DataView(first.buffer, first.byteOffset).getBigUint64(0, true));
  // Safetensors begin with their header's length; what is none is for the reader to refuse. A GGUF's says no length: tokens and
  // merges are some MiB, and what goes on for longer would fill the memory.
  const most = Math.min(total, 1 << 25);
  for (let end = isGguf ? 1 << 20 : size <= 100_000_000 ? 8 + size : 8; ; end *= 2) {
    try {
      return parse(await slice(file, 0, Math.min(end, total)));
    } catch (error) {
      if (!isGguf || (error as LoraError).code !== "incomplete" || end >= total) throw error;
      if (end >= most) throw new LoraError("file", `the GGUF file says that its metadata is longer than ${most >> 20} MiB`);
    }
  }
}

const PIECE = 1 << 22; // bytes that cross into wasm at a time
const IN_FLIGHT = 1 << 26; // bytes after which the GPU is waited for

/** Gives a loader all that it asks for. @internal */
export async function fill(
  raw: RawModelLoader,
  { config, files }: Awaited<ReturnType<typeof openModel>>,
  { signal, onProgress, dtype = "as-is" }: ModelSource,
  finished: () => Promise<void>,
): Promise<void> {
  for (const [i, [name, file]] of files.entries()) {
    await readHeader(file, (bytes) => raw.addFile(i, name, bytes, length(file)));
    signal?.throwIfAborted();
  }
  if (config) raw.setConfig(config);
  const ranges = raw.begin(["as-is", "f32", "q8_0"].indexOf(dtype));
  let [total, loaded, waited] = [0, 0, 0];
  for (let i = 0; i < ranges.length; i += 3) total += (ranges[i + 2] as number) - (ranges[i + 1] as number);
  for (let i = 0; i < ranges.length; i += 3) {
    const [number, start, end] = ranges.subarray(i, i + 3) as unknown as [number, number, number];
    const [, file] = files[number] as [string, ModelFile];
    const tensor = raw.name(i / 3) as string;
    for (let at = start; at < end; at += PIECE) {
      const piece = await slice(file, at, Math.min(at + PIECE, end));
      signal?.throwIfAborted();
      raw.write(i / 3, piece);
      onProgress?.({ loaded: (loaded += piece.length), total, tensor });
      if (loaded - waited < IN_FLIGHT) continue;
      waited = loaded;
      await finished();
    }
  }
  // Whether there was memory for all of it is known then.
  await finished();
}
