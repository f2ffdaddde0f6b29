// docs/*.md, the public types and the crate's comments → www/docs/*.html, pages of the site without head and foot, which Vite adds.
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join, relative, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { main, root } from "./lib.mjs";
import { rustItems } from "./rust-docs.mjs";
import { docs, site } from "../www/text.js";

const PAGES = ["quick-start", "how-it-works", "numerics", "performance", "reliability", "interop", "troubleshooting"];
const out = join(root, "www/docs");
const escape = (text) => text.replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
const slug = (text) => text.toLowerCase().replace(/<[^>]*>|&\w+;|`/g, "").replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "");

/** Where a link of a document leads on the site: to another document, to a page, else to the code. */
function link(href) {
  if (/^(https?:|#)/.test(href)) return href;
  const [path, hash] = href.split("#");
  const target = relative(root, resolve(root, "docs", path)), tail = hash ? `#${hash}` : "";
  const page = target.match(/^docs\/([\w-]+)\.md$/)?.[1];
  if (PAGES.includes(page)) return `./${page}.html${tail}`;
  if (target === "www/index.html") return "../";
  if (/^www\/\w+\.html$/.test(target)) return `../${target.slice(4)}${tail}`;
  if (!existsSync(join(root, target))) throw new Error(`docs: there is no ${target}`);
  return `${site.repository}/blob/main/${target}${tail}`;
}

const page = (current, title, titles, body, source) => `<!doctype html>
<html lang="en">
<head>
  <site-head page="docs" title="${escape(title)}"></site-head>
</head>
<body>
  <site-header page="docs"></site-header>
  <main id="main" class="document">
    <nav aria-label="{{docs.pages}}">${titles.map(([name, words]) => `<a href="./${name}.html"${name === current ? ' aria-current="page"' : ""}>${escape(words)}</a>`).join("")}</nav>
    <article>
${body}
<p class="source"><a href="${site.repository}/blob/main/${source}">{{docs.source}}</a></p>
    </article>
  </main>
  <site-footer></site-footer>
</body>
</html>
`;

export async function writeDocs() {
  const { Marked } = await import("marked"); // installed by set-up
  const marked = new Marked({
    renderer: {
      heading({ tokens, depth, text }) { return `<h${depth} id="${slug(text)}">${this.parser.parseInline(tokens)}</h${depth}>\n`; },
      link({ href, tokens }) { return `<a href="${escape(link(href))}">${this.parser.parseInline(tokens)}</a>`; },
      image: ({ href }) => readFileSync(join(root, "docs", href), "utf8"), // drawings, whose colour is the page's
      html: ({ text }) => (text.startsWith("<!--") ? "" : escape(text)),
      code: ({ text }) => `<pre tabindex="0"><code>${escape(text)}</code></pre>\n`,
    },
    hooks: {
      // Wide tables scroll by themselves.
      postprocess: (html) => html.replaceAll("<table>", '<div class="scroll" tabindex="0"><table>').replaceAll("</table>", "</table></div>").replaceAll("<th></th>", "<td></td>").replaceAll("{{", "&#123;{"),
    },
  });
  const texts = PAGES.map((name) => [name, readFileSync(join(root, `docs/${name}.md`), "utf8")]);
  const titles = [...texts.map(([name, text]) => [name, text.match(/^# (.+)$/m)[1]]), ["api", docs.api], ["rust", docs.rust]];
  rmSync(out, { recursive: true, force: true });
  mkdirSync(out, { recursive: true });
  for (const [name, text] of texts) {
    const title = titles.find(([own]) => own === name)[1];
    writeFileSync(join(out, `${name}.html`), page(name, title, titles, marked.parse(text), `docs/${name}.md`));
  }
  writeFileSync(join(out, "rust.html"), page("rust", docs.rust, titles, rust((text) => marked.parse(text)), "src/lib.rs"));
  writeFileSync(join(out, "api.html"), page("api", docs.api, titles, await api((text) => marked.parse(text)), "js/index.ts"));
}

/** What js/index.ts exports, by kind, with the comments that stand there. */
async function api(markdown) {
  const { default: ts } = await import("typescript");
  const file = join(root, "dist/index.d.ts");
  const program = ts.createProgram([file], { target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.NodeNext, skipLibCheck: true, types: [] });
  const checker = program.getTypeChecker();
  const resolved = (symbol) => (symbol.flags & ts.SymbolFlags.Alias ? checker.getAliasedSymbol(symbol) : symbol);
  const symbols = checker.getExportsOfModule(checker.getSymbolAtLocation(program.getSourceFile(file))).map((symbol) => [symbol.name, resolved(symbol)]);
  const names = new Set(symbols.map(([name]) => name));
  const linked = (text) => text.replace(/\{@link (\w+)(?:\.(\w+))?\}/g, (_, name, member) => (names.has(name) ? `[\`${member ? `${name}.${member}` : name}\`](#${slug(name)})` : `\`${member ?? name}\``));
  const comment = (thing) => {
    const text = ts.displayPartsToString(thing.getDocumentationComment(checker));
    // displayPartsToString drops the braces of links
    const raw = (thing.declarations ?? []).flatMap((declaration) => ts.getJSDocCommentsAndTags(declaration)).find(ts.isJSDoc);
    const words = raw ? ts.getTextOfJSDocComment(raw.comment) ?? "" : text;
    return words ? markdown(linked(words)) : "";
  };
  const code = (text) => `<pre tabindex="0"><code>${escape(text)}</code></pre>`;
  const printer = ts.createPrinter({ removeComments: true });
  const printed = (node) => printer.printNode(ts.EmitHint.Unspecified, node, node.getSourceFile()).replace(/^export declare |^export /, "").replaceAll("    ", "  ");
  const hidden = (member) => ts.isPropertyDeclaration(member) && ts.isPrivateIdentifier(member.name)
    || (ts.getCombinedModifierFlags(member) & ts.ModifierFlags.Private) || member.name?.getText().startsWith("_");
  const entry = (name, symbol) => {
    const nodes = (symbol.declarations ?? []).filter((node) => node.getSourceFile().fileName.includes("/dist/"));
    const source = nodes[0] && relative(join(root, "dist"), nodes[0].getSourceFile().fileName).replace(/\.d\.ts$/, ".ts");
    const body = nodes.map((node) => {
      if (!ts.isClassDeclaration(node) && !ts.isInterfaceDeclaration(node)) return code(printed(node));
      const members = node.members.filter((member) => !hidden(member));
      if (!members.length) return "";
      const heritage = (node.heritageClauses ?? []).map((clause) => ` ${clause.getText()}`).join("");
      const head = `<p><code>${ts.isClassDeclaration(node) ? "class" : "interface"} ${escape(name + heritage)}</code></p>`;
      return head + members.map((member) => `<div class="member">${code(printed(member))}${comment(member.symbol ?? symbol)}</div>`).join("\n");
    });
    return `<h3 id="${slug(name)}"><code>${name}</code></h3>\n${comment(symbol)}${body.join("\n")}\n<p class="source"><a href="${site.repository}/blob/main/js/${source}">js/${source}</a></p>`;
  };
  const is = (flag) => ([, symbol]) => symbol.flags & flag;
  const groups = [
    [docs.classes, is(ts.SymbolFlags.Class)],
    [docs.functions, is(ts.SymbolFlags.Function | ts.SymbolFlags.Variable)],
    [docs.types, ([, symbol]) => !(symbol.flags & (ts.SymbolFlags.Class | ts.SymbolFlags.Function | ts.SymbolFlags.Variable))],
  ];
  const sections = groups.map(([title, belongs]) => {
    const own = symbols.filter(belongs).sort(([a], [b]) => (a < b ? -1 : 1));
    return `<h2>${title}</h2>\n<p>${own.map(([name]) => `<a href="#${slug(name)}">${name}</a>`).join(", ")}</p>\n${own.map(([name, symbol]) => entry(name, symbol)).join("\n")}`;
  });
  return `<h1>{{docs.api}}</h1>\n<p>{{docs.apiLede}}</p>\n${sections.join("\n")}`;
}

/** What the crate gives, by module, with the comments that stand there. */
function rust(markdown) {
  const modules = rustItems(), paths = modules.flatMap(({ items }) => items.map(([path]) => path));
  const id = (path) => slug(path.replaceAll("::", "-"));
  // Links between comments, `[`Name::member`]` and `[words](Name)`: to what is on the page, else the words alone.
  const target = (name, module) => [module ? `${module}::${name}` : name, name, name.split("::").slice(0, -1).join("::")].find((path) => paths.includes(path));
  const linked = (text, module) => text
    .replace(/^#+ (.+)$/gm, "**$1**") // «Errors», below an item
    .replace(/\[([^\]]+)\]\((?!https?:)([^)]*)\)/g, (_, words, to) => (target(to, module) ? `[${words}](#${id(target(to, module))})` : words))
    .replace(/\[`(?:\w+@)?([\w:]+)(?:\(\))?`\](?!\()/g, (_, name) => (target(name, module) ? `[\`${name}\`](#${id(target(name, module))})` : `\`${name}\``));
  const code = (text) => `<pre tabindex="0"><code>${escape(text)}</code></pre>`;
  const entry = ([path, { signature, doc, members, path: file, line }], module) => `<h3 id="${id(path)}"><code>${path}</code></h3>
${code(signature)}
${markdown(linked(doc, module))}
${members.map((member) => `<div class="member">${code(member.signature)}${markdown(linked(member.doc, module))}</div>`).join("\n")}
<p class="source"><a href="${site.repository}/blob/main/${file}#L${line}">${file}</a></p>`;
  const sections = modules.map(({ path, doc, file, items }) => {
    const module = path === "lora_webgpu" ? "" : path, sorted = items.toSorted(([a], [b]) => (a < b ? -1 : 1));
    const names = sorted.map(([path]) => `<a href="#${id(path)}">${module && path.startsWith(module) ? path.slice(module.length + 2) : path}</a>`);
    return `<h2 id="${id(path)}"><code>${path}</code></h2>\n${markdown(linked(doc, module))}\n<p>${names.join(", ")}</p>\n<p class="source"><a href="${site.repository}/blob/main/${file}">${file}</a></p>\n${sorted.map((item) => entry(item, module)).join("\n")}`;
  });
  return `<h1>{{docs.rust}}</h1>\n<p>{{docs.rustLede}}</p>\n${sections.join("\n")}`;
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) main(writeDocs);
