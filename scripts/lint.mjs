// What is right or wrong without running the code: formatting, lints, documentation, the crate's package, licences.
import { existsSync, readFileSync, readdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { capture, root, run, rust, seconds, stop, target } from "./lib.mjs";
import { stale } from "./reliability.mjs";
import { lintTools } from "./setup.mjs";

const text = (path) => readFileSync(join(root, path), "utf8");
const files = (folder) => readdirSync(join(root, folder), { recursive: true }).map((name) => join(folder, name));

// Runs a command, whose words are shown where it fails or warns.
async function quietly(command, args, env) {
  let output = "";
  const code = await run(command, args, { env, output: (chunk) => { output += chunk; } });
  return code === 0 && !/^warning: (?!spurious)/m.test(output) ? [] : [output.trimEnd(), `${args.join(" ")} ended with ${code}`];
}

/** WGSL's one rule: 4 spaces for each line whose bracket is still open, at most 132 columns, nothing after the last word. */
function wgslFaults(source) {
  const faults = [], open = []; // of each open bracket the line
  const lines = source.split("\n");
  if (lines.pop() !== "" || lines.at(-1) === "") faults.push("the file does not end with one line break");
  lines.forEach((line, i) => {
    const code = line.split("//")[0];
    const leading = code.trim().match(/^[)}\]]*/)[0].length;
    const indent = 4 * new Set(open.slice(0, open.length - leading)).size;
    if (line && line.search(/\S/) !== indent) faults.push(`line ${i + 1} is not indented by ${indent}`);
    if (/\s$|\t/.test(line)) faults.push(`line ${i + 1} has a tab or ends with a space`);
    if ([...line].length > 132) faults.push(`line ${i + 1} has more than 132 columns`);
    for (const [bracket] of code.matchAll(/[()[\]{}]/g)) "([{".includes(bracket) ? open.push(i) : open.pop();
  });
  return faults;
}

// Licences that ask for no more than their own text.
const ALLOWED = new Set(["0BSD", "Apache-2.0", "BlueOak-1.0.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "Unicode-3.0", "Zlib"]);
// Tools that stay on the developer's machine and are part of nothing that is given away.
const TOOLS = {
  "axe-core": "MPL-2.0", // looks for barriers in the site, in tests
  lightningcss: "MPL-2.0", // in Vite
  "caniuse-lite": "CC-BY-4.0", // in Next and webpack, which the package's tests build with
  "@img/sharp": "LGPL-3.0-or-later", // in Next
};

/**
 * Whether an SPDX expression leaves a way of allowed licences only. Brackets are ignored and OR binds closer than AND,
 * which asks for more than the expression does, never for less.
 */
const allowed = (licence, more) => typeof licence === "string" && licence.replace(/[()]/g, "").split(/ AND /)
  .every((part) => part.split(/ OR |\//).some((name) => ALLOWED.has(name.trim()) || name.trim() === more));

function licences(pair) {
  const faults = [], counts = [];
  const metadata = capture(pair.cargo, ["metadata", "--format-version", "1", "--locked"], pair.env) ?? stop("cargo metadata failed.");
  const crates = JSON.parse(metadata).packages;
  for (const { name, version, license } of crates) if (!allowed(license)) faults.push(`crate ${name} ${version}: ${license}`);
  counts.push(`${crates.length} crates`);
  const locks = capture("git", ["ls-files", "*package-lock.json"])?.split("\n") ?? stop("git does not list the lock files.");
  for (const lock of locks) {
    const packages = Object.entries(JSON.parse(text(lock)).packages).filter(([path]) => path);
    for (const [path, { license, version }] of packages) {
      const name = path.split("node_modules/").pop();
      const tool = Object.keys(TOOLS).find((tool) => name === tool || name.startsWith(`${tool}-`));
      if (!allowed(license, TOOLS[tool])) faults.push(`${lock}: ${name} ${version}: ${license}`);
    }
    counts.push(`${packages.length} of ${lock}`);
  }
  console.log(`  licences of ${counts.join(", ")}`);
  console.log("  NOT CHECKED: advisories");
  return faults;
}

// Figures that the README has of docs/performance.md are there.
function figures() {
  const numbers = (text) => text.match(/\d[\d.,]*\d|\d/g);
  const speed = text("README.md").split("\n## Speed\n")[1]?.split("\n## ")[0];
  const known = new Set(numbers(text("docs/performance.md")));
  return speed ? numbers(speed).filter((number) => !known.has(number)).map((number) => `README.md's Speed: docs/performance.md has no ${number}`) : ["README.md has no section Speed"];
}

// Links of documents within the project lead somewhere, to a heading where they name one.
const slug = (heading) => heading.toLowerCase().replace(/[^\p{L}\p{N} _-]/gu, "").replaceAll(" ", "-");
function links() {
  const faults = [], documents = capture("git", ["ls-files", "*.md"])?.split("\n") ?? stop("git does not list the documents.");
  const body = (path) => text(path).replace(/^```[^]*?^```/gm, "");
  for (const path of documents) {
    for (const [, target] of body(path).matchAll(/\]\(([^)\s]+)\)/g)) {
      if (/^[a-z]+:/.test(target)) continue;
      const [file, heading] = target.split("#");
      const own = file ? join(dirname(path), decodeURIComponent(file)) : path;
      if (!existsSync(join(root, own))) faults.push(`${path}: there is no ${target}`);
      else if (heading && own.endsWith(".md") && ![...body(own).matchAll(/^#+ (.+)$/gm)].some(([, words]) => slug(words) === heading)) faults.push(`${path}: ${own} has no heading #${heading}`);
    }
  }
  return faults;
}

// The compiler is one that the crate promises to be enough; whether it is the oldest of those is said.
function minimum(pair) {
  const promised = text("Cargo.toml").match(/^rust-version = "([\d.]+)"/m)[1];
  const [least, own] = [promised, pair.version].map((version) => Number(version.split(".")[1]));
  if (own < least) return [`rust-version is ${promised}, and this is ${pair.version}`];
  console.log(own === least ? `  rust-version ${promised} is what runs here` : `  NOT TESTED: rust-version ${promised} (this is ${pair.version})`);
  return [];
}

// A check that cannot fail is none: what the two rules of our own must let through and must catch.
function rules() {
  const right = ["fn f(\n    a: u32,\n) {\n    g(h(\n        a));\n} // }\n"];
  const wrong = ["fn f() {\n  a();\n}\n", "fn f() {\n    a(); \n}\n", "fn f() {\n\ta();\n}\n", "fn f() {}", "fn f() {}\n\n", `// ${"x".repeat(130)}\n`];
  const free = ["MIT", "Apache-2.0/MIT", "GPL-3.0-only OR MIT", "(MIT OR Apache-2.0) AND Unicode-3.0"], bound = ["GPL-3.0-only", "MIT AND GPL-3.0-only", "", undefined];
  return [
    ...right.filter((source) => wgslFaults(source).length), ...wrong.filter((source) => !wgslFaults(source).length),
    ...free.filter((licence) => !allowed(licence)), ...bound.filter((licence) => allowed(licence)),
  ].map((each) => `misjudged: ${JSON.stringify(each)}`);
}

export async function lint() {
  const pair = rust();
  await lintTools(pair);
  const cargo = (args, env) => quietly(pair.cargo, args, { ...pair.env, ...env });
  const clippy = (...args) => cargo(["clippy", "--locked", ...args, "--", "-D", "warnings"]);
  const shaders = files("shaders").filter((path) => path.endsWith(".wgsl"));
  const checks = {
    rustfmt: () => cargo(["fmt", "--check"]),
    "clippy, natively": () => clippy("--lib", "--tests", "--benches", "--example", "layer"),
    "clippy, wasm32": () => clippy("--lib", "--target", target),
    "cargo doc": () => cargo(["rustdoc", "--locked", "--lib", "--target", target, "--", "-D", "warnings"]), // shares clippy's work
    "cargo package": () => cargo(["package", "--locked", "--no-verify", "--allow-dirty"]),
    "JavaScript and TypeScript": () => quietly(process.execPath, [join(root, "node_modules/oxlint/bin/oxlint"), "--deny-warnings"]),
    "WGSL's and licences' rules": rules,
    WGSL: () => shaders.flatMap((path) => wgslFaults(text(path)).map((fault) => `${path}: ${fault}`)),
    "the README's figures": figures,
    "docs/reliability.md": stale,
    "links of documents": links,
    "the minimum Rust version": () => minimum(pair),
    licences: () => licences(pair),
  };
  const result = { code: 0, passed: 0, failed: 0 };
  for (const [name, check] of Object.entries(checks)) {
    const start = performance.now(), faults = await check();
    result[faults.length ? "failed" : "passed"]++;
    for (const fault of faults) console.error(fault);
    console.log(`${faults.length ? "✗" : "✓"} ${name} (${seconds(start)})`);
  }
  return result;
}
