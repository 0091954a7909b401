// Bundles the pages' scripts and style into dist/, and the licences of what the bundle holds. `npm run build` runs it.
import { readFile, writeFile } from "node:fs/promises";
import { build } from "esbuild";

const options = { bundle: true, minify: true, metafile: true, legalComments: "none", logLevel: "warning" };

const script = await build({
  ...options,
  entryPoints: ["src/main.js"],
  outfile: "dist/page.js",
  format: "iife",
  target: "es2022",
});
await build({ ...options, entryPoints: ["src/page.css"], outfile: "dist/page.css" });
const shared = { ...options, format: "iife", target: "es2022" };
await build({ ...shared, entryPoints: ["src/serve/main.js"], outfile: "dist/serve.js" });
await build({ ...options, entryPoints: ["src/serve/serve.css"], outfile: "dist/serve.css" });
await writeFile("dist/LICENSES.txt", await licences(Object.keys(script.metafile.inputs)));

/** Returns name, version and licence text of each package that one of the files belongs to. */
async function licences(files) {
  const folders = files.map((file) => file.match(/^.*node_modules\/(?:@[^/]+\/)?[^/]+/)?.[0]);
  const texts = [];
  for (const folder of [...new Set(folders.filter(Boolean))].sort()) {
    const { name, version, license } = JSON.parse(await readFile(`${folder}/package.json`, "utf8"));
    const text = (await readFile(`${folder}/LICENSE`, "utf8")).trim();
    texts.push(`${name} ${version} (${license})\n\n${text}\n`);
  }
  return texts.join(`\n${"-".repeat(80)}\n\n`);
}
