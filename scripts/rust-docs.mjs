// The crate's public items with their comments, read from src/ as rustfmt leaves it: an item begins at the margin, what is in it four
// columns further in, and its `}` ends it. No compiler is asked, whose output (rustdoc's JSON) has no stable form.
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { root } from "./lib.mjs";

const ITEM = /^pub (?:(?:const|async|unsafe) )*(fn|struct|enum|trait|type|const) (\w+)/;

/** A file's own comment, and its public items: `{ kind, name, signature, doc, members, path, line }`. */
function readFile(path) {
  const lines = readFileSync(join(root, path), "utf8").split("\n"), items = [], own = [], module = path.split("/")[1];
  let doc = [], inside; // inside: the item, or the name of the impl, whose braces are open
  const take = (at) => { // a signature, over as many lines as it has
    let end = at;
    while (!/[{;,}]$/.test(lines[end]) || lines[end].endsWith(",") && /[(<]/.test(lines[at]) && !/[)>]/.test(lines[end].trim()[0]) && depth(lines.slice(at, end + 1).join("\n")) > 0) end += 1;
    const text = lines.slice(at, end + 1).map((line) => line.replace(/^ {4}/, at && lines[at].startsWith("    ") ? "" : "$&")).join("\n");
    return text.replace(/ ?(\{\}|\{.*\}|\{|;|,)$/, "").replace(/^( *pub const .*?) = .*$/s, "$1").replace(/^( *pub struct \w+(?:<[^>]*>)?)\((?!pub [^(]).*\)$/, "$1");
  };
  const depth = (text) => [...text.replaceAll("->", "")].reduce((sum, c) => sum + ("([<".includes(c) ? 1 : ")]>".includes(c) ? -1 : 0), 0);
  for (let i = 0; i < lines.length; i += 1) {
    const line = lines[i];
    const comment = line.match(/^ *\/\/(\/|!) ?(.*)/);
    if (comment) {
      (comment[1] === "!" ? own : doc).push(comment[2]);
      continue;
    }
    if (/^ *#!?\[/.test(line)) {
      while (depth(lines[i]) > 0 && !lines[i].endsWith("]")) i += 1;
      continue;
    }
    const item = line.match(ITEM), impl = line.match(/^impl(?:<.*?>)? (\w+)(?:<[^>]*>)? \{$/);
    const add = (kind, name) => ({ kind, name, signature: take(i), doc: doc.join("\n"), members: [], path, line: i + 1 });
    if (item) {
      items.push(add(item[1], item[2]));
      inside = line.endsWith("{") && item[1] !== "fn" ? items.at(-1) : undefined;
    } else if (impl) {
      inside = impl[1];
    } else if (/^\S/.test(line)) {
      inside = undefined;
    } else if (/^ {4}\S/.test(line) && inside) {
      const member = typeof inside === "string" ? line.match(/^ {4}pub (?:(?:const|async|unsafe) )*(?:fn|const) (\w+)/)
        : inside.kind === "enum" ? line.match(/^ {4}([A-Z]\w*)/) : inside.kind === "trait" ? line.match(/^ {4}fn (\w+)/) : line.match(/^ {4}pub (\w+):/);
      const owner = typeof inside === "string" ? items.find(({ name }) => name === inside) ?? { members: (impls[`${module} ${inside}`] ??= []) } : inside;
      if (member) owner.members.push(add("member", member[1]));
    }
    doc = [];
  }
  return { path, doc: own.join("\n"), items };
}
const impls = {}; // by module and type: of a type that stands in another file of the module

/** `[{ path, doc, items: [[rust path, item], …] }, …]`: what the crate gives at its root, then its public modules. */
export function rustItems() {
  const files = readdirSync(join(root, "src"), { recursive: true }).map((name) => `src/${name.replaceAll("\\", "/")}`).filter((name) => name.endsWith(".rs")).sort().map(readFile);
  const find = (folder, name) => {
    const found = files.filter(({ path }) => path.startsWith(folder)).flatMap(({ items }) => items).find((item) => item.name === name);
    return found && { ...found, members: [...found.members, ...(impls[`${found.path.split("/")[1]} ${name}`] ?? [])] };
  };
  const uses = (path) => Array.from(readFileSync(join(root, path), "utf8").matchAll(/^pub use (?:crate::)?(\w+)(?:::\w+)*::(?:\{([^}]*)\}|(\w+));/gm), ([, module, several, one]) =>
    (several ?? one).split(",").map((name) => name.trim()).filter(Boolean).map((name) => [module, name])).flat();
  const file = (path) => files.find((file) => file.path === path);
  const exported = (mod, folder, prefix) => uses(mod).map(([module, name]) => [`${prefix}${name}`, find(`${folder}${module}`, name) ?? find("src/", name)]).filter(([, item]) => item);
  const module = (path, prefix) => ({ path: prefix.slice(0, -2), file: path, doc: file(path).doc, items: file(path).items.map((item) => [`${prefix}${item.name}`, item]) });
  const io = module("src/io/mod.rs", "io::");
  io.items.push(...exported("src/io/mod.rs", "src/io/", "io::"));
  const kernels = files.filter(({ path }) => /^src\/kernels\/\w+\/\w+\.rs$/.test(path) && !path.endsWith("mod.rs"));
  return [
    { path: "lora_webgpu", file: "src/lib.rs", doc: file("src/lib.rs").doc, items: exported("src/lib.rs", "src/", "") },
    io,
    module("src/io/safetensors.rs", "io::safetensors::"),
    module("src/io/gguf.rs", "io::gguf::"),
    { ...module("src/kernels/mod.rs", "kernels::"), items: [
      ...module("src/kernels/mod.rs", "kernels::").items,
      ...kernels.flatMap(({ path, items }) => items.map((item) => [`${path.slice(4, -3).replaceAll("/", "::")}::${item.name}`, item])),
    ] },
  ];
}
