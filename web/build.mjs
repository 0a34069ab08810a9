// Builds the page into the Python package. With --check it builds to memory and compares with the committed files.
import { build } from "esbuild";
import { readFileSync, writeFileSync, mkdirSync, readdirSync } from "node:fs";
import { gzipSync } from "node:zlib";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const HERE = dirname(fileURLToPath(import.meta.url));
const OUT = join(HERE, "..", "src", "holdfast", "http", "page_files");
const BUDGET = 90 * 1024; // bytes of all files, compressed
const SHIPPED = ["preact", "@preact/signals", "@preact/signals-core", "uplot"];

function licences() {
  const parts = ["The dashboard contains these packages. Their licences follow.\n"];
  for (const name of SHIPPED) {
    const folder = join(HERE, "node_modules", name);
    const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
    if (!file) throw new Error(`${name} has no licence file`);
    const text = readFileSync(join(folder, file), "utf8").replace(/\r\n/g, "\n").trim();
    parts.push(`${"-".repeat(72)}\n${name} ${version} (${license})\n\n${text}\n`);
  }
  return parts.join("\n");
}

const bundled = await build({
  absWorkingDir: HERE,
  entryPoints: { app: "src/main.tsx" },
  bundle: true,
  minify: true,
  format: "esm",
  target: ["es2022"],
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  outdir: "/out",
  write: false,
  charset: "utf8",
  loader: { ".svg": "text" },
  define: { "process.env.NODE_ENV": '"production"' },
});
const packages = Object.fromEntries(
  bundled.outputFiles.map((file) => [file.path.replace(/.*[\\/]/, ""), Buffer.from(file.contents)]),
);
const made = {
  "index.html": readFileSync(join(HERE, "src", "index.html")),
  "icon.svg": readFileSync(join(HERE, "src", "icon.svg")),
  "app.js": packages["app.js"],
  "app.css": packages["app.css"],
  "THIRD_PARTY.txt": Buffer.from(licences()),
};

let total = 0;
let wrong = 0;
mkdirSync(OUT, { recursive: true });
for (const [name, bytes] of Object.entries(made)) {
  const packed = gzipSync(bytes, { level: 9 }).length;
  total += packed;
  console.log(`${name.padEnd(16)} ${String(bytes.length).padStart(8)} bytes, ${String(packed).padStart(6)} compressed`);
  if (!process.argv.includes("--check")) writeFileSync(join(OUT, name), bytes);
  else if (!readFileSync(join(OUT, name)).equals(bytes)) {
    console.error(`${name} in the package differs from what web/ builds: run make page and commit it`);
    wrong = 1;
  }
}
console.log(`${"in all".padEnd(16)} ${" ".repeat(14)} ${String(total).padStart(6)} compressed, ${BUDGET} allowed`);
if (total > BUDGET) {
  console.error("the page is larger than its budget");
  wrong = 1;
}
process.exit(wrong);
