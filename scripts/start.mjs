// npm start: set-up, build, and the site on localhost.
import { createReadStream, existsSync, readFileSync, realpathSync, statSync } from "node:fs";
import { createServer } from "node:http";
import { extname, join, sep } from "node:path";
import { pathToFileURL } from "node:url";
import { createGzip } from "node:zlib";
import { build } from "./build.mjs";
import { main, root, stop } from "./lib.mjs";
import { setup } from "./setup.mjs";

const TYPES = {
  ".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".mjs": "text/javascript; charset=utf-8",
  ".css": "text/css; charset=utf-8", ".json": "application/json", ".map": "application/json", ".txt": "text/plain; charset=utf-8",
  ".wasm": "application/wasm", ".svg": "image/svg+xml", ".png": "image/png", ".jpg": "image/jpeg", ".webp": "image/webp",
  ".ico": "image/x-icon", ".woff2": "font/woff2", ".webmanifest": "application/manifest+json",
};

// Sent compressed, as static hosts do.
const TEXTS = new Set([".html", ".js", ".mjs", ".css", ".json", ".map", ".txt", ".jsonl", ".wasm", ".svg"]);

// The file below `folder` that a request means: undefined where it is none or lies elsewhere, links followed.
function find(folder, path) {
  try {
    let file = realpathSync(join(folder, decodeURIComponent(path)));
    if (statSync(file).isDirectory()) file = realpathSync(join(file, "index.html"));
    return file.startsWith(folder + sep) && statSync(file).isFile() ? file : undefined;
  } catch { /* malformed or missing */ }
}

// What `_headers` in the folder says for all paths, as static hosts read that file: `/*`, then indented lines.
function headersOf(folder) {
  const file = join(folder, "_headers");
  const lines = existsSync(file) ? readFileSync(file, "utf8").matchAll(/^[ \t]+([\w-]+):[ \t]*(.+)$/gm) : [];
  return Object.fromEntries(Array.from(lines, ([, name, value]) => [name.toLowerCase(), value.trim()]));
}

const answer = (folder, always = headersOf(folder)) => (request, response) => {
  const end = (status, text, headers) => response.writeHead(status, { "content-type": "text/plain; charset=utf-8", ...always, ...headers }).end(`${text}\n`);
  if (!["GET", "HEAD"].includes(request.method)) return end(405, "Only GET and HEAD.", { allow: "GET, HEAD" });
  const file = find(folder, request.url.split(/[?#]/)[0]);
  if (!file) return end(404, "Not found.");
  const type = extname(file).toLowerCase(), small = TEXTS.has(type) && /\bgzip\b/.test(request.headers["accept-encoding"]);
  response.writeHead(200, {
    "content-type": TYPES[type] ?? "application/octet-stream", "cache-control": "no-cache", "x-content-type-options": "nosniff", ...always,
    ...(small ? { "content-encoding": "gzip", vary: "accept-encoding" } : { "content-length": statSync(file).size }),
  });
  if (request.method === "HEAD") return response.end();
  const bytes = createReadStream(file).on("error", () => response.destroy());
  (small ? bytes.pipe(createGzip()) : bytes).pipe(response);
};

const listen = (handler, port, host) => new Promise((resolve, reject) => {
  const server = createServer(handler).on("error", reject).listen(port, host, () => resolve(server));
});

// Serves a folder to this machine only, from `port` or the next free one. «localhost» is two addresses:
// both must be ours, or the browser may reach somebody else's page.
export async function serve(folder, port = 8080) {
  const handler = answer(realpathSync(folder));
  for (const last = Math.min(port + 100, 65535); port <= last; port += 1) {
    const servers = [];
    try {
      servers.push(await listen(handler, port, "127.0.0.1"));
      const own = servers[0].address().port;
      await listen(handler, own, "::1").then((server) => servers.push(server), (error) => {
        if (error.code === "EADDRINUSE") throw error; // else: no IPv6 here
      });
      const close = () => Promise.all(servers.map((server) => new Promise((done) => { server.close(done); server.closeAllConnections(); })));
      return { url: `http://localhost:${own}/`, close };
    } catch (error) {
      for (const server of servers) server.close();
      if (!["EADDRINUSE", "EACCES"].includes(error.code)) throw error;
    }
  }
  stop(`No free port from the one asked for up to ${port - 1}; set LORA_PORT.`);
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) main(async () => {
  const port = Number(process.env.LORA_PORT || 8080);
  if (!Number.isInteger(port) || port < 0 || port > 65535) stop(`LORA_PORT is ${process.env.LORA_PORT}; it must be a port number from 0 to 65535.`);
  await setup("start");
  await build();
  const site = join(root, "www/dist");
  if (!existsSync(join(site, "index.html"))) stop("There is no built site in www/dist.");
  const { url, close } = await serve(site, port);
  console.log(`\n  The site is at ${url}   (Ctrl-C ends it)\n`);
  for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => close().then(() => process.exit(0)));
});
