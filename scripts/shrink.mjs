// What wasm-opt leaves to be had for what is gzipped: short names between wasm and glue, and like functions side by side.
import { readFileSync, writeFileSync } from "node:fs";
import { stop } from "./lib.mjs";

const [CUSTOM, IMPORT, CODE] = [0, 2, 10]; // sections

// An unsigned LEB128 at `at`, and where it ends; and the bytes of one.
function number(bytes, at) {
  let value = 0, factor = 1;
  for (;; factor *= 128) {
    const byte = bytes[at++];
    value += (byte & 127) * factor;
    if (byte < 128) return [value, at];
  }
}
const leb = (value) => value < 128 ? [value] : [value % 128 + 128, ...leb(Math.floor(value / 128))];
const sized = (bytes) => Buffer.concat([Buffer.from(leb(bytes.length)), bytes]);
const section = (id, bytes) => Buffer.concat([Buffer.from([id]), sized(bytes)]);

// The bytes at `at` that begin with their length, and where they end.
function chunk(bytes, at) {
  const [size, begin] = number(bytes, at);
  return [bytes.subarray(begin, begin + size), begin + size];
}

function* sections(bytes) {
  for (let at = 8; at < bytes.length;) {
    const [content, end] = chunk(bytes, at + 1);
    yield { id: bytes[at], content, whole: bytes.subarray(at, end) };
    at = end;
  }
}

// wasm-bindgen's imports are all functions: module, name, 0, type.
function imports(content) {
  let [count, at] = number(content, 0), module, name;
  const found = [];
  while (count--) {
    [module, at] = chunk(content, at);
    [name, at] = chunk(content, at);
    if (content[at] !== 0) stop(`scripts/shrink.mjs: the import ${name} is no function.`);
    const [, end] = number(content, at + 1);
    found.push({ module, name: String(name), type: content.subarray(at, end) });
    at = end;
  }
  return found;
}

// `__wbg_writeBuffer_53f0c2d1e4a09b77` in the wasm and in its glue, which nobody else imports, becomes `_1f`.
export function shortenImports(wasm, glue) {
  const bytes = readFileSync(wasm), names = new Map();
  const parts = [...sections(bytes)].map(({ id, content, whole }) => {
    if (id !== IMPORT) return whole;
    const entries = imports(content).map(({ module, name, type }) => {
      if (!names.has(name)) names.set(name, `_${names.size.toString(36)}`);
      return Buffer.concat([sized(module), sized(Buffer.from(names.get(name))), type]);
    });
    return section(IMPORT, Buffer.concat([Buffer.from(leb(entries.length)), ...entries]));
  });
  const defined = new Set();
  const text = readFileSync(glue, "utf8").replace(/^( +)(\w+)(?=: )/gm, (line, indent, name) => {
    if (!names.has(name)) return line;
    defined.add(name);
    return indent + names.get(name);
  });
  for (const name of names.keys()) if (!defined.has(name)) stop(`scripts/shrink.mjs: the glue does not define the import ${name}.`);
  writeFileSync(wasm, Buffer.concat([bytes.subarray(0, 8), ...parts]));
  writeFileSync(glue, text);
}

const GRAM = 6, WINDOW = 32_768; // bytes that are taken for a resemblance; how far gzip looks back

// Puts next, again and again, the function of which the largest part stands in the 32 KB before it: copies of one generic
// function and functions of one form follow each other. What many functions have counts less, for it is seldom far. The order
// is written as names, by which wasm-opt --reorder-functions-by-name sorts.
export function nameByLikeness(wasm) {
  const bytes = readFileSync(wasm);
  const kept = [], bodies = [];
  let imported = 0;
  for (const { id, content, whole } of sections(bytes)) {
    if (id === IMPORT) imported = imports(content).length;
    if (id === CODE) {
      let [count, at] = number(content, 0), body;
      while (count--) {
        [body, at] = chunk(content, at);
        bodies.push(body);
      }
    }
    if (id !== CUSTOM || String(chunk(content, 0)[0]) !== "name") kept.push(whole);
  }

  const grams = bodies.map((body) => {
    const found = new Set();
    for (let end = GRAM; end <= body.length; end++) {
      let hash = 0;
      for (let at = end - GRAM; at < end; at++) hash = Math.imul(hash ^ body[at], 0x01000193);
      found.add(hash);
    }
    return found;
  });
  const users = new Map(); // of a gram: functions
  grams.forEach((set, index) => set.forEach((gram) => users.get(gram)?.push(index) ?? users.set(gram, [index])));
  const seen = new Map(); // how often a gram is in the window
  const likeness = new Float64Array(bodies.length);
  const count = (index, change) => grams[index].forEach((gram) => {
    const others = users.get(gram), before = seen.get(gram) ?? 0;
    seen.set(gram, before + change);
    if (others.length > 1 && (before === 0 || before + change === 0)) {
      for (const other of others) likeness[other] += change / Math.log2(others.length + 1);
    }
  });

  const order = [], left = new Set(bodies.keys());
  for (let first = 0, size = 0; left.size > 0;) {
    let best, most = -Infinity;
    for (const index of left) {
      const share = likeness[index] / (grams[index].size + 10); // the smallest ones fit anywhere
      if (share > most) [best, most] = [index, share];
    }
    left.delete(best);
    order.push(best);
    count(best, 1);
    for (size += bodies[best].length; size > WINDOW && first < order.length - 1; first++) {
      size -= bodies[order[first]].length;
      count(order[first], -1);
    }
  }

  const place = new Map(order.map((index, position) => [index, position]));
  const names = bodies.map((_, index) => Buffer.concat([
    Buffer.from(leb(imported + index)), sized(Buffer.from(String(place.get(index)).padStart(6, "0"))),
  ]));
  const functions = section(1, Buffer.concat([Buffer.from(leb(names.length)), ...names]));
  writeFileSync(wasm, Buffer.concat([bytes.subarray(0, 8), ...kept, section(CUSTOM, Buffer.concat([sized(Buffer.from("name")), functions]))]));
}
