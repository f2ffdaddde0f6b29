// What a GGUF file says beside its weights: metadata, chat template, and the tokenizer in Hugging Face's form.
import { show } from "./check.js";
import { LoraError } from "./error.js";
import { isFile, length, type ModelFile, readHeader } from "./source.js";

/** A value of the metadata; integers of 64 bits as numbers. */
export type GgufValue = number | boolean | string | GgufValue[];

/** What {@link readGguf} finds in a file beside its weights. */
export interface GgufInfo {
  /** All keys, such as `general.architecture`, with their values. */
  metadata: ReadonlyMap<string, GgufValue>;
  /** `tokenizer.json`, as `@huggingface/tokenizers` takes it. */
  tokenizer: object;
  /** `tokenizer_config.json` */
  tokenizerConfig: { bos_token?: string; eos_token?: string; unk_token?: string; chat_template?: string };
}

/**
 * Reads a GGUF file's metadata and turns its tokenizer into the form of `tokenizer.json`. Rejects with code `file` for what is no
 * GGUF file, and `unsupported` naming a tokenizer that is not known here.
 */
export async function readGguf(file: ModelFile): Promise<GgufInfo> {
  if (!isFile(file)) throw new LoraError("invalid-argument", `file: expected a Uint8Array, Blob or File, got ${show(file)}`);
  const metadata = await readHeader(file, (bytes) => readMetadata(bytes, length(file)));
  return { metadata, ...tokenizerOf(metadata) };
}

function readMetadata(bytes: Uint8Array, total: number): Map<string, GgufValue> {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength), text = new TextDecoder("utf-8", { ignoreBOM: true }); // tokens can begin with one
  let at = 0;
  const take = (size: number): number => {
    if (!(at + size <= bytes.length)) {
      const whole = bytes.length >= total || !(at + size <= total);
      throw new LoraError(whole ? "file" : "incomplete", "the GGUF file is cut off, or says more than it has");
    }
    return (at += size) - size;
  };
  const u32 = () => view.getUint32(take(4), true);
  const u64 = () => Number(view.getBigUint64(take(8), true));
  const string = () => {
    const size = u64();
    const start = take(size);
    return text.decode(bytes.subarray(start, start + size));
  };
  const value = (type: number, depth: number): GgufValue => {
    switch (type) {
      case 0: return view.getUint8(take(1));
      case 1: return view.getInt8(take(1));
      case 2: return view.getUint16(take(2), true);
      case 3: return view.getInt16(take(2), true);
      case 4: return u32();
      case 5: return view.getInt32(take(4), true);
      case 6: return view.getFloat32(take(4), true);
      case 7: return view.getUint8(take(1)) !== 0;
      case 8: return string();
      case 10: return u64();
      case 11: return Number(view.getBigInt64(take(8), true));
      case 12: return view.getFloat64(take(8), true);
    }
    if (type !== 9 || depth > 4) throw new LoraError("file", `the GGUF file has a value of the unknown type ${type}`);
    const [kind, count] = [u32(), u64()];
    const all: GgufValue[] = [];
    for (let i = 0; i < count; i++) all.push(value(kind, depth + 1));
    return all;
  };
  if (text.decode(bytes.subarray(take(4), 4)) !== "GGUF") throw new LoraError("file", "this is no GGUF file");
  const version = u32();
  if (version !== 2 && version !== 3) throw new LoraError("file", `the file is GGUF of version ${version}; expected 2 or 3`);
  take(8);
  const count = u64();
  const metadata = new Map<string, GgufValue>();
  for (let i = 0; i < count; i++) {
    const key = string();
    metadata.set(key, value(u32(), 0));
  }
  return metadata;
}

// How texts are cut before the merges, by llama.cpp's names.
const bytes = (use_regex: boolean) => ({ type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex });
const cut = (digits: string) => [
  {
    type: "Split",
    pattern: { Regex: `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}${digits}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+` },
    behavior: "Isolated",
    invert: false,
  },
  bytes(false),
];
const PRE: Readonly<Record<string, object[]>> = {
  "default": [bytes(true)],
  "gpt-2": [bytes(true)],
  "smollm": [{ type: "Digits", individual_digits: true }, bytes(true)],
  "qwen2": cut(""),
  "llama-bpe": cut("{1,3}"),
};

function tokenizerOf(metadata: ReadonlyMap<string, GgufValue>): Omit<GgufInfo, "metadata"> {
  const get = (key: string) => metadata.get(`tokenizer.ggml.${key}`);
  const list = <T>(key: string, type: string): T[] => {
    const all = get(key);
    if (!Array.isArray(all) || all.some((one) => typeof one !== type)) {
      throw new LoraError("file", `tokenizer.ggml.${key}: expected an array of ${type}s, got ${show(all)}`);
    }
    return all as T[];
  };
  const [model, tokens] = [get("model"), list<string>("tokens", "string")];
  const types = get("token_type") === undefined ? [] : list<number>("token_type", "number");
  const vocab: Record<string, number> = Object.create(null);
  tokens.forEach((token, id) => (vocab[token] ??= id));
  // Where the file does not say, llama.cpp has ids of SentencePiece's own, and a beginning of text for it and for Llama 3.
  const ids: Readonly<Record<string, number>> = model === "llama" ? { unknown: 0, bos: 1, eos: 2 } : {};
  const token = (name: string): string | undefined => {
    const id = get(`${name}_token_id`) ?? ids[name];
    return typeof id === "number" ? tokens[id] : undefined;
  };
  // 3: control tokens, 4: such as users add.
  const added_tokens = tokens.flatMap((content, id) =>
    types[id] === 3 || types[id] === 4
      ? [{ id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: types[id] === 3 }]
      : [],
  );
  // Older files do not say it, nor Microsoft's of BitNet, which has Llama 3's tokens: where the model tells, it is the model's own.
  const own = "<|begin_of_text|>" in vocab ? "llama-bpe" : metadata.get("general.architecture") === "qwen2" ? "qwen2" : undefined;
  const pre = get("pre") ?? own ?? (tokens.length > 100_000 ? undefined : "default");
  const base = { dropout: null, continuing_subword_prefix: null, end_of_word_suffix: null };
  let parts: object;
  if (model === "gpt2") {
    const pretokenizers = Object.hasOwn(PRE, String(pre)) ? PRE[String(pre)] : undefined;
    if (!pretokenizers) throw new LoraError("unsupported", `tokenizer.ggml.pre: expected one of ${Object.keys(PRE).join(", ")}, got ${pre === undefined ? "none" : show(pre)}`);
    const merges = list<string>("merges", "string").map((merge) => merge.split(/(?<=.) /su, 2));
    parts = {
      normalizer: pre === "qwen2" ? { type: "NFC" } : null,
      pre_tokenizer: { type: "Sequence", pretokenizers },
      decoder: bytes(true),
      model: { type: "BPE", ...base, unk_token: null, fuse_unk: false, byte_fallback: false, ignore_merges: pre === "llama-bpe", vocab, merges },
    };
  } else if (model === "llama") {
    const spaces = [{ type: "Replace", pattern: { String: " " }, content: "▁" }];
    const front = get("add_space_prefix") === false ? [] : [{ type: "Prepend", prepend: "▁" }];
    const strip = front.length > 0 ? [{ type: "Strip", content: " ", start: 1, stop: 0 }] : [];
    parts = {
      normalizer: { type: "Sequence", normalizers: [...front, ...spaces] },
      pre_tokenizer: null,
      decoder: { type: "Sequence", decoders: [{ type: "Replace", pattern: { String: "▁" }, content: " " }, { type: "ByteFallback" }, { type: "Fuse" }, ...strip] },
      model: { type: "BPE", ...base, unk_token: token("unknown") ?? null, fuse_unk: true, byte_fallback: true, ignore_merges: false, vocab, merges: mergesOf(tokens, vocab, list<number>("scores", "number")) },
    };
  } else {
    throw new LoraError("unsupported", `tokenizer.ggml.model: ${show(model)} is not supported; gpt2 and llama are`);
  }
  const [bos, eos] = [token("bos"), token("eos")];
  const single = [{ Sequence: { id: "A", type_id: 0 } }];
  const begins = get("add_bos_token") ?? (model === "llama" || pre === "llama-bpe");
  const special = bos !== undefined && begins === true ? [{ SpecialToken: { id: bos, type_id: 0 } }] : [];
  const ends = eos !== undefined && get("add_eos_token") === true ? [{ SpecialToken: { id: eos, type_id: 0 } }] : [];
  const special_tokens = Object.fromEntries(
    [...special, ...ends].map(({ SpecialToken: { id } }) => [id, { id, ids: [vocab[id]], tokens: [id] }]),
  );
  const whole = [...special, ...single, ...ends];
  const post_processor = special.length + ends.length > 0 ? { type: "TemplateProcessing", single: whole, pair: whole, special_tokens } : null;
  const template = metadata.get("tokenizer.chat_template");
  const unk = token("unknown");
  return {
    tokenizer: { version: "1.0", truncation: null, padding: null, added_tokens, post_processor, ...parts },
    tokenizerConfig: {
      ...(bos !== undefined && { bos_token: bos }),
      ...(eos !== undefined && { eos_token: eos }),
      ...(unk !== undefined && { unk_token: unk }),
      ...(typeof template === "string" && { chat_template: template }),
    },
  };
}

/** SentencePiece joins whatever gives the piece of the highest score; as merges, in that order. */
function mergesOf(tokens: readonly string[], vocab: Readonly<Record<string, number>>, scores: readonly number[]): [string, string][] {
  const merges: { pair: [string, string]; score: number; ids: [number, number] }[] = [];
  tokens.forEach((token, id) => {
    if (token.length > 256) return; // no real piece is as long, and its splits would be as many
    const letters = [...token];
    for (let i = 1; i < letters.length; i++) {
      const pair: [string, string] = [letters.slice(0, i).join(""), letters.slice(i).join("")];
      const [left, right] = [vocab[pair[0]], vocab[pair[1]]];
      if (left !== undefined && right !== undefined) merges.push({ pair, score: scores[id] ?? 0, ids: [left, right] });
    }
  });
  merges.sort((a, b) => b.score - a.score || a.ids[0] - b.ids[0] || a.ids[1] - b.ids[1]);
  return merges.map(({ pair }) => pair);
}
